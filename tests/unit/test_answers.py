"""Four answers in one look: each must be true in every state an engine can be in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from tests.support.core import GENERATION, NAME, engine, restarting, serving
from tests.support.windows import snapshot
from watchdog.core.model import (
    Cause,
    EngineExited,
    Finding,
    HoldReason,
    Mode,
    Pause,
    ProcessState,
    Severity,
    Subject,
    SubjectKind,
    Verb,
    Verdict,
)
from watchdog.core.state import EngineState, RestartHistory, State, StoppedBy, Watch
from watchdog.web.answers import Answers, Level, answered

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
    assert serves or found.serving.startswith(f"no: main is {verdict.value}")


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
    found = of(alone(engine(ProcessState.STOPPED, history=history)))
    assert found.serving == "no: stopped by its operator"
    assert found.broke == ("nothing",)


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
    assert "engine/main: " in found.broke[0]
    assert "it crashed" in found.broke[0]
    assert found.did[0].endswith("decided: restart_engine, by engine-dead")
    assert found.todo == ()
    assert found.rest == "nothing yet: the watchdog is at it"


def test_after_the_repair_the_last_incident_is_named_for_a_day() -> None:
    """FACT: what it was, how it ended and how long it took; a day later it is nobody's question."""
    story = restarting(10.0).restarted(12.0, "0000000b")
    found = of(story.state, 20.0)
    assert found.broke[0].startswith("nothing now; the last was engine-dead on engine/main (crash)")
    assert found.did == ("inc-000001: restart_engine; recovered after 3.0 s",)
    assert of(story.state, 90_000.0).broke == ("nothing",)


def test_a_pause_is_told_with_its_owner_and_its_end() -> None:
    """FACT: who paused it, and the command that ends it."""
    state = replace(serving().state, pause=Pause("upgrade", "ann", 1.0))
    found = of(state)
    assert found.did == ("only looks: paused by ann: upgrade",)
    assert found.todo[0].text.startswith("vllm-watchdog resume")


def test_a_crash_while_paused_is_for_the_person() -> None:
    """FACT: with the pause nobody restarts it: the fix of the finding is to be done."""
    story = serving()
    story.command(Verb.PAUSE, 5.0)
    story.exited(10.0)
    found = of(story.state, 12.0)
    assert found.did[0] == "only looks: paused by me: why"
    assert any("held back: restart_engine" in line for line in found.did)
    assert {one.runbook for one in found.todo} == {"engine-dead", ""}


def test_observe_mode_is_told() -> None:
    """FACT: a watchdog that only looks says so before anything else."""
    assert of(replace(serving().state, mode=Mode.OBSERVE)).did == ("only looks: observe mode",)


@pytest.mark.parametrize(
    ("one", "told", "runbook"),
    [
        (
            engine(ProcessState.GIVEN_UP, cause=Cause.BAD_ARGUMENTS, explanation="no such flag"),
            "(bad_arguments: no such flag), then: vllm-watchdog start main",
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
    """FACT: the advice of its cause is told where a person has to act, and not in place of it."""
    story = serving()
    advice = "correct the flag: compare --help"
    story.take(EngineExited(9.0, NAME, GENERATION, 2, None, Cause.BAD_ARGUMENTS, "no flag", advice))
    given_up = replace(story.engine, process=ProcessState.GIVEN_UP)
    first, second = of(story.state.with_engine(given_up), 10.0).todo
    assert (first.text, first.runbook) == (f"{NAME}: {advice}", "engine-dead")
    assert second.text.endswith("vllm-watchdog start main")


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
    (todo,) = of(story.state, at + 400.0).todo
    assert todo.text.endswith("vllm-watchdog reset-breaker main")


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
    assert found.broke == ("23:59:10 host/host: it is full",)
    assert found.did == ("told, and nothing else: for this it restarts nothing",)
    assert found.level is Level.GOOD
