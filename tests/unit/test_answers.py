"""Four answers in one look: each must be true in every state an engine can be in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from tests.support.core import GENERATION, NAME, Story, engine, http, restarting, serving
from tests.support.windows import snapshot
from watchdog.core.model import (
    Cause,
    EngineExited,
    Finding,
    HoldReason,
    Mode,
    Pause,
    ProcessState,
    Reading,
    Severity,
    Subject,
    SubjectKind,
    Unread,
    Verb,
    Verdict,
    engine_subject,
)
from watchdog.core.state import (
    Attach,
    EngineSettings,
    EngineState,
    RestartHistory,
    State,
    StoppedBy,
    Vitals,
    Watch,
)
from watchdog.web.answers import Answers, Level, answered
from watchdog.web.pasted import pasted

HOST = Subject(SubjectKind.HOST, "host")
CARD = Subject(SubjectKind.GPU, "GPU-1")


def of(state: State, at: float = 100.0, waiting: Mapping[str, str] | None = None) -> Answers:
    """The answers in that state."""
    return answered(replace(snapshot(state, at), waiting=waiting or {}))


def alone(one: EngineState) -> State:
    """A box with that engine."""
    return State(engines={one.name: one})


def firing(finding: Finding, held: HoldReason | None = None) -> State:
    """A serving engine, and a finding."""
    state = serving().state
    watches = {(finding.rule, finding.subject): Watch(firing=finding, held=held)}
    return replace(state, watches=watches)


def finding(**changes: object) -> Finding:
    """Something about the host that the watchdog can only tell."""
    usual = Finding("tmpfs-full", HOST, Severity.CRITICAL, "it is full", 50.0, runbook="tmpfs-full")
    return replace(usual, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("verdict", list(Verdict))
def test_yes_is_said_of_what_serves_and_of_nothing_else(verdict: Verdict) -> None:
    """FACT: as /healthz: ``ready`` and ``busy`` serve."""
    found = of(alone(engine(verdict=verdict, failed_at=50.0)))
    serves = verdict in {Verdict.READY, Verdict.BUSY}
    assert (found.level is Level.GOOD) is serves
    assert found.serving.startswith("yes: ") is serves
    no = "not surely" if verdict is Verdict.DEGRADED else "no"
    assert serves or found.serving.startswith(f"{no}: main is {verdict.value.replace('_', ' ')}")


def test_a_first_start_is_no_alarm() -> None:
    """FACT: an engine that loads and has not failed is not there yet, with what it waits for."""
    one = engine(ProcessState.STARTING, verdict=Verdict.STARTING)
    found = of(alone(one), waiting={NAME: "its turn"})
    assert (found.level, found.serving) == (
        Level.WARNING,
        "not yet: main is starting: waits for its turn",
    )


def test_one_of_two_is_named() -> None:
    """FACT: part of the service is told as such, with the engine that is down and why."""
    engines = {
        "good": engine(name="good", verdict=Verdict.READY),
        "bad": engine(name="bad", verdict=Verdict.STALLED, reasons=("no tokens",)),
    }
    found = of(State(engines=engines))
    assert found.level is Level.WARNING
    assert found.serving == "partly: 1 of 2 engines; bad is stalled: no tokens"


def test_a_standby_that_rests_is_not_missed() -> None:
    """FACT: what nobody wants to run does not make the answer a no."""
    engines = {
        "main": engine(verdict=Verdict.READY),
        "spare": engine(name="spare", history=RestartHistory(wanted=False)),
    }
    assert of(State(engines=engines)).level is Level.GOOD


def test_an_engine_that_was_stopped_by_hand_is_not_broken() -> None:
    """FACT: it says who stopped it, and that nothing broke."""
    history = RestartHistory(wanted=False, stopped_by=StoppedBy.OPERATOR)
    found = of(alone(engine(ProcessState.STOPPED, history=history, since=70.0)))
    assert found.serving == "no: main was stopped by an operator at 23:59:30"
    assert found.broke == ("nothing: an operator stopped main",)
    assert found.did == ("23:59:30 stopped main: an operator asked for it",)
    (todo,) = found.todo
    assert todo.text == (
        "main was stopped by an operator at 23:59:30; when it may serve again: "
        "vllm-watchdog start main"
    )


def test_a_quiet_day() -> None:
    """FACT: nothing broke, nothing was done, nothing is to be done."""
    found = of(serving().state)
    assert (found.broke, found.did, found.todo, found.rest) == (
        ("nothing",),
        ("nothing: there was no need",),
        (),
        "nothing",
    )


def test_a_crash_under_repair_asks_nothing_of_anybody() -> None:
    """FACT: what broke and what was decided is told; the person has nothing to do yet."""
    found = of(restarting(10.0).state, 11.0)
    assert " main: " in found.broke[0]
    assert "it crashed" in found.broke[0]
    assert found.did[0].endswith("decided: restart main, by engine-dead")
    assert found.serving == "no: main is being restarted: it crashed"
    assert found.todo == ()
    assert found.rest == "nothing yet: the watchdog is at it"


def test_after_the_repair_the_last_incident_is_named_for_a_day() -> None:
    """FACT: what it was, how it ended and how long it took; a day later it is nobody's question."""
    story = restarting(10.0).restarted(12.0, "0000000b")
    found = of(story.state, 20.0)
    assert found.broke[0].startswith("nothing now; the last was engine-dead on main (crash)")
    assert found.did == ("nothing now; inc-000001: restart, recovered 3.0 s after it was noticed",)
    assert of(story.state, 90_000.0).broke == ("nothing",)


def test_a_pause_is_told_with_its_owner_and_its_end() -> None:
    """FACT: who paused it, and the command that ends it."""
    state = replace(serving().state, pause=Pause("upgrade", "ann", 1.0))
    found = of(state)
    assert found.did == ("only looks: paused by ann: upgrade",)
    assert found.todo[0].text.endswith(": vllm-watchdog resume")


def test_a_crash_while_paused_is_for_the_person() -> None:
    """FACT: nobody restarts it while it is paused: to end that comes first, no breaker is named."""
    story = serving()
    story.command(Verb.PAUSE, 5.0)
    story.exited(10.0)
    found = of(story.state, 12.0)
    assert found.did[0] == "only looks: paused by me: why"
    assert "held back: restart of main: paused" in found.did
    assert [one.text for one in found.todo] == [
        "while it is paused nobody restarts main: vllm-watchdog resume"
    ]


def test_observe_mode_is_told() -> None:
    """FACT: a watchdog that only looks says so before anything else."""
    assert of(replace(serving().state, mode=Mode.OBSERVE)).did == ("only looks: observe mode",)


@pytest.mark.parametrize(
    ("one", "told", "runbook"),
    [
        (
            engine(ProcessState.GIVEN_UP, cause=Cause.BAD_ARGUMENTS, explanation="no such flag"),
            "(bad arguments: no such flag); then: vllm-watchdog start main",
            "engine-dead",
        ),
        (
            engine(ProcessState.GIVEN_UP, history=RestartHistory(breaker_open=True)),
            "then: vllm-watchdog reset-breaker main",
            "engine-dead",
        ),
        (engine(ProcessState.UNKILLABLE), "cannot be killed", "engine-unkillable"),
    ],
)
def test_what_the_watchdog_cannot_do_is_the_persons(
    one: EngineState, told: str, runbook: str
) -> None:
    """FACT: the cause, the command that goes on from there, and the page."""
    (todo,) = of(alone(one)).todo
    assert told in todo.text
    assert todo.runbook == runbook


def test_what_is_known_of_this_exit_comes_before_the_command() -> None:
    """FACT: the advice of its cause is told with the command that goes on from there, in a line."""
    story = serving()
    advice = "correct the flag: compare --help"
    story.take(EngineExited(9.0, NAME, GENERATION, 2, None, Cause.BAD_ARGUMENTS, "no flag", advice))
    given_up = replace(story.engine, process=ProcessState.GIVEN_UP)
    (todo,) = of(story.state.with_engine(given_up), 10.0).todo
    assert todo.text == f"{NAME}: {advice}; then: vllm-watchdog start main"
    assert todo.runbook == "engine-dead"


def test_a_story_of_failures_ends_with_one_thing_to_do() -> None:
    """FACT: when the budget is spent there is one line, not one a finding."""
    story = serving(0.0)
    at = 10.0
    for number in range(12):
        story.exited(at, generation=story.engine.generation)
        story.tick(at + 400.0)
        if story.engine.history.breaker_open:
            break
        at += 401.0
        story.restarted(at, f"{number + 16:08x}")
        at += 5.0
    assert story.engine.history.breaker_open
    found = of(story.state, at + 400.0)
    (todo,) = found.todo
    assert todo.text.endswith("vllm-watchdog reset-breaker main")
    assert "5 restarts since " in found.did[0]
    assert found.did[0].endswith(
        "did not last; before: inc-000001, inc-000002, inc-000003, inc-000004, inc-000005"
    )


def test_a_finding_with_a_fix_is_something_to_do() -> None:
    """FACT: the command that cures it, with its page; once, however many cards say the same."""
    (todo,) = of(firing(finding(fix="mount -o remount /dev/shm"))).todo
    assert (todo.text, todo.runbook) == ("mount -o remount /dev/shm", "tmpfs-full")
    state = firing(finding(fix="x"))
    twice = replace(state, watches={**state.watches, ("b", CARD): Watch(firing=finding(fix="x"))})
    assert len(of(twice).todo) == 1


def test_a_critical_finding_without_a_fix_names_its_page() -> None:
    """FACT: nobody is left alone with a critical finding."""
    (todo,) = of(firing(finding())).todo
    assert todo.runbook == "tmpfs-full"


def test_what_is_only_information_is_no_task() -> None:
    """FACT: it neither broke anything nor asks for anything."""
    found = of(firing(finding(severity=Severity.INFO, fix="x")))
    assert (found.broke, found.todo) == (("nothing",), ())


@pytest.mark.parametrize("held", [None, *HoldReason])
def test_only_a_hold_that_does_not_end_by_itself_is_the_persons(held: HoldReason | None) -> None:
    """FACT: backoff and cool-down are waited for, a pause or a block is not."""
    state = firing(finding(actions=("sweep_leftovers",), fix="x"), held)
    theirs = {"budget", "breaker_open", "paused", "observe", "blocked", "unkillable"}
    assert bool(of(state).todo) is (held is not None and held.value in theirs)


def test_a_finding_about_the_box_is_what_broke() -> None:
    """FACT: also without an incident, with the time since when."""
    found = of(firing(finding()))
    assert found.broke == ("23:59:10 this host: it is full",)
    assert found.did == ("told, and nothing else: for this it restarts nothing",)
    assert found.level is Level.GOOD


def doubtful(at: float) -> Story:
    """An engine that served, whose completions are refused since 5 and ``at`` last."""
    story = restarting(1.0).restarted(2.0, "0000000b")
    for moment in range(5, int(at) + 1, 5):
        story.read(
            http(moment, canary="unauthorized", status=401, generation="0000000b"),
        )
    return story


@pytest.mark.parametrize("at", [20.0, 200.0])
def test_of_a_doubtful_engine_the_present_is_told(at: float) -> None:
    """FACT: not surely, why, left alone; no old repair is its answer, before its rule fires too."""
    found = of(doubtful(at).state, at)
    assert found.level is Level.WARNING
    assert found.serving.startswith("not surely: main is degraded: the completion was refused")
    assert "the completion was refused: API key needed" in found.broke[0]
    assert "engine-dead" not in " ".join(found.broke)
    assert found.did == ("left main alone on purpose: it may still serve",)
    assert [one.runbook for one in found.todo] == ([] if at < 180 else ["engine-degraded"])
    assert at > 180 or found.rest.startswith("nothing yet")


def test_an_engine_that_dies_of_its_doubts_is_dead() -> None:
    """FACT: an incident that began as a doubt is told in the words of what fires now."""
    story = doubtful(200.0)
    story.exited(201.0, generation="0000000b")
    found = of(story.state, 201.5)
    assert "main: the engine is dead" in found.broke[0]
    assert found.todo == ()
    assert found.rest == "nothing yet: the watchdog is at it"


@pytest.mark.parametrize("failing", [None, 90.0])
def test_a_saturated_engine_serves_and_is_left_alone(failing: float | None) -> None:
    """FACT: yes, it is busy and with what; that it is left alone is meant so."""
    full = Vitals(waiting=0.0 if failing else 40.0, failing_since=failing)
    one = engine(verdict=Verdict.BUSY, reasons=("52 requests in the engine",), vitals=full)
    found = of(alone(one))
    assert (found.level, found.serving) == (
        Level.GOOD,
        "yes: main is busy: 52 requests in the engine",
    )
    assert found.did == ("left main alone on purpose: a busy engine is never restarted",)
    assert found.todo == ()


def test_counters_that_cannot_be_read_are_told_at_once() -> None:
    """FACT: with the reason, long before a rule fires; it serves all the same."""
    story = serving()
    blind = Reading("engine_metrics", 5.0, 0.1, (), (Unread(engine_subject(NAME), "noise"),))
    blind = replace(blind, subject=engine_subject(NAME), generation=GENERATION)
    found = of(story.read(blind).state, 6.0)
    assert found.level is Level.GOOD
    assert found.broke == ("main: its counters cannot be read: noise",)
    assert found.did == ("nothing: what cannot be read proves nothing",)


def test_who_gave_up_says_where_it_is_written() -> None:
    """FACT: the log and the newest evidence of the incident that goes on, by their paths."""
    story = serving()
    story.take(EngineExited(9.0, NAME, GENERATION, 2, None, Cause.BAD_ARGUMENTS, "no flag", "x"))
    story.state = story.state.with_engine(replace(story.engine, process=ProcessState.GIVEN_UP))
    shown = replace(
        snapshot(story.state, 10.0),
        logs={NAME: "/s/engine-main.log"},
        bundles={"inc-000001": ("/s/evidence/1", "/s/evidence/2")},
    )
    _, look = answered(shown).todo
    assert look.text == "main: look at its log /s/engine-main.log, evidence /s/evidence/2"


def test_an_attached_engine_is_started_by_others() -> None:
    """FACT: no command of ours is offered where it would be refused."""
    settings = EngineSettings(NAME, attach=Attach.REPORT)
    story = serving()
    story.state = story.state.with_engine(replace(story.engine, settings=settings))
    story.exited(10.0)
    found = of(story.state, 12.0)
    assert found.did == (
        "told, and nothing else: it is attached to report, others start main",
        *found.did[1:],
    )
    assert "start it where it is started" in found.todo[0].text
    assert not any("vllm-watchdog" in one.text for one in found.todo)


def test_a_restart_that_waits_for_others_is_theirs_to_make() -> None:
    """FACT: an engine that may be ended, and not started, by us: whoever starts it is needed."""
    settings = EngineSettings(NAME, attach=Attach.SIGNAL)
    story = serving()
    story.state = story.state.with_engine(replace(story.engine, settings=settings))
    story.exited(10.0)
    found = of(story.state, 12.0, {NAME: "somebody else to start it"})
    assert found.serving == (
        "no: main is not there: it crashed, waits for somebody else to start it"
    )
    assert "start it where it is started" in found.todo[0].text


def test_what_another_finding_outranks_is_no_task() -> None:
    """FACT: it neither broke something of its own nor asks for anything."""
    low, high = finding(rule="low", fix="x"), finding(rule="high", fix="y")
    state = firing(low)
    state = replace(state, watches={**state.watches, ("high", HOST): Watch(firing=high)})
    shown = replace(snapshot(state), outranked={("low", HOST): high})
    assert [one.text for one in answered(shown).todo] == ["y"]


def test_commands_name_the_state_directory() -> None:
    """FACT: each works when it is pasted; where the directory is found, it is not named."""
    history = RestartHistory(wanted=False, stopped_by=StoppedBy.OPERATOR)
    state = alone(engine(ProcessState.STOPPED, history=history))
    (todo,) = answered(replace(snapshot(state), state_dir="/srv/a b")).todo
    assert todo.text.endswith(": vllm-watchdog --state-dir '/srv/a b' start main")
    assert pasted(todo.text, "/srv/a b") == todo.text
    assert pasted("the vllm-watchdog process; vllm-watchdog 1.0", "/x") == (
        "the vllm-watchdog process; vllm-watchdog 1.0"
    )
