"""What is wrong with an engine stands before what is wrong beside it, also when it is just over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from tests.support.core import engine, restarting, serving
from tests.support.windows import snapshot
from watchdog.core.model import (
    HOST,
    Entry,
    Finding,
    HoldReason,
    Incident,
    ProcessState,
    Severity,
    Value,
    Verb,
    Verdict,
    engine_subject,
)
from watchdog.core.state import (
    EngineState,
    Restart,
    RestartHistory,
    State,
    StoppedBy,
    Vitals,
    Watch,
)
from watchdog.snapshot import Snapshot
from watchdog.web import bodies, markup, sections, tasks
from watchdog.web.answers import Answers, Level, answered

FIX = "rm -r /dev/shm/x"


def full(
    severity: Severity = Severity.WARNING, evidence: Mapping[str, Value] | None = None
) -> Finding:
    """Something about the host that is no engine's."""
    seen = tuple((evidence or {}).items())
    return Finding("tmpfs-full", HOST, severity, "it is full", 1.0, fix=FIX, evidence=seen)


def beside(state: State, finding: Finding) -> State:
    """``state``, and that about the host."""
    return replace(state, watches={**state.watches, (finding.rule, HOST): Watch(firing=finding)})


def of(state: State, at: float) -> Answers:
    """The answers in that state."""
    return answered(snapshot(state, at))


@pytest.mark.parametrize("severity", [Severity.WARNING, Severity.CRITICAL])
def test_an_engine_that_is_down_comes_before_the_host(severity: Severity) -> None:
    """FACT: in what broke and in what is to be done, although nobody has to do anything for it."""
    found = of(beside(restarting(10.0).state, full(severity)), 11.0)
    assert [" main: " in found.broke[0], " this host: " in found.broke[1]] == [True, True]
    assert [one.text for one in found.todo] == ["main: nothing yet: the watchdog is at it", FIX]


def test_a_doubtful_engine_comes_before_a_warning() -> None:
    """FACT: also while no rule fires about it."""
    doubtful = engine(verdict=Verdict.DEGRADED, reasons=("no answer",))
    state = State(engines={"main": doubtful})
    assert "main is degraded" in of(beside(state, full()), 20.0).broke[0]
    critical = of(beside(state, full(Severity.CRITICAL)), 20.0).broke
    assert "main is degraded" in critical[0]


def test_an_outage_that_is_just_over_is_told_beside_a_lesser_trouble() -> None:
    """FACT: for an hour, with what was done about it, before the warning and not in its place."""
    state = beside(restarting(10.0).restarted(12.0, "0000000b").state, full())
    found = of(state, 20.0)
    assert found.broke[0].startswith("before that engine-dead on main (crash), recovered at ")
    assert found.broke[1].endswith("this host: it is full")
    assert found.did == ("before that inc-000001: restart, recovered 3.0 s after it was noticed",)
    later = of(state, 20.0 + 3700.0)
    assert (len(later.broke), later.did[0][:4]) == (1, "told")


def test_four_warnings_do_not_hide_an_outage_that_is_just_over() -> None:
    """FACT: what is cut off is the least."""
    state = restarting(10.0).restarted(12.0, "0000000b").state
    for number in range(6):
        state = beside(state, replace(full(), rule=f"rule-{number}"))
    assert "engine-dead on main" in of(state, 20.0).broke[0]


def test_an_engine_that_fails_again_is_told_without_its_past() -> None:
    """FACT: one outage at a time is in the first look."""
    story = restarting(10.0).restarted(12.0, "0000000b")
    story.exited(20.0, generation="0000000b")
    assert "before that" not in " ".join(of(story.state, 21.0).broke)


@pytest.mark.parametrize(
    ("evidence", "told"),
    [
        ({"oom.kills": 1.0, "oom.last": "python3 (pid 7)"}, "it is full (python3 (pid 7))"),
        ({"oom.source_trouble": "no kmsg", "oom.last": ""}, "it is full"),
        ({}, "it is full"),
    ],
)
def test_whom_it_is_about_is_in_the_line(evidence: dict[str, Value], told: str) -> None:
    """FACT: the process that the kernel ended, and no empty or unread word in its place."""
    found = of(beside(serving().state, full(evidence=evidence)), 20.0)
    assert found.broke[0].endswith(f" this host: {told}")


# --- what is waited for ---------------------------------------------------------------------------


def test_a_wait_has_its_end() -> None:
    """FACT: while the next start is waited for, its time is told."""
    one = engine(ProcessState.BACKOFF, verdict=Verdict.DEAD, reasons=("x",), retry_at=130.0)
    state = State(engines={"main": one})
    assert of(state, 100.0).serving == "no: main is dead: x, the next try is at 00:00:30"
    past = State(engines={"main": replace(one, retry_at=90.0)})
    assert of(past, 100.0).serving == "no: main is dead: x"


def held(due: float) -> Snapshot:
    """A restart of a frozen engine that waits for its turn until ``due``."""
    frozen = engine(verdict=Verdict.STALLED, reasons=("1 stopped process: x (pid 7)",))
    stalled = Finding(
        "engine-stalled", engine_subject("main"), Severity.CRITICAL, "it stands", 90.0
    )
    stalled = replace(stalled, actions=("restart_engine",))
    watch = Watch(firing=stalled, held=HoldReason.BACKOFF)
    state = State(engines={"main": frozen}, watches={("engine-stalled", stalled.subject): watch})
    return replace(snapshot(state), retries={"main": due})


def test_a_restart_that_is_held_back_has_its_time() -> None:
    """FACT: also of an engine that still runs; in the answers, its row, its card."""
    found = answered(held(130.0))
    told = "main is stalled: 1 stopped process: x (pid 7), the next try is at 00:00:30"
    assert found.serving == f"no: {told}"
    assert found.did == ("held back: restart of main: the next try is at 00:00:30 (backoff)",)
    assert bodies.status(held(130.0))["engines"][0]["retry_at"] == "2026-01-01T00:00:30.000Z"  # type: ignore[index]
    assert "00:00:30" in sections.engines(held(130.0))


def test_a_time_that_is_past_is_nothing_to_wait_for() -> None:
    """FACT: it is not told."""
    assert "next try" not in answered(held(99.0)).serving


def test_an_incident_says_what_is_held_back() -> None:
    """FACT: in its JSON while it goes on, and nothing once it is over."""
    story = serving()
    story.exited(10.0)
    assert _held(story.state, HoldReason.BACKOFF, 40.0).startswith("held back: restart of main")
    over = restarting(10.0).restarted(12.0, "0000000b").state
    assert (bodies.incident(snapshot(over), "inc-000001") or {})["held"] == ""


def _held(state: State, reason: HoldReason, due: float) -> str:
    """What its incident says when the restart is held back for ``reason``."""
    down: EngineState = replace(
        state.engines["main"], process=ProcessState.BACKOFF, in_flight="", retry_at=due
    )
    watches = {key: replace(watch, held=reason) for key, watch in state.watches.items()}
    shown = snapshot(replace(state.with_engine(down), watches=watches), 20.0)
    return str((bodies.incident(shown, "inc-000001") or {})["held"])


# --- commands -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fix", "left"),
    [
        ("give it memory; then vllm-watchdog restart main", "give it memory"),
        ("reset the GPU or reboot, then vllm-watchdog start main", "reset the GPU or reboot"),
        ("x; then vllm-watchdog --state-dir '/a b' restart main", "x"),
        ("vllm-watchdog --state-dir /a start main, when it may", ""),
        ("vllm-watchdog start main, when it may", ""),
        ("vllm-watchdog stop, then reset the GPU", "vllm-watchdog stop, then reset the GPU"),
        ("", ""),
    ],
)
def test_what_is_over_asks_for_no_start(fix: str, left: str) -> None:
    """FACT: what prevents the next one stays; a start of what serves again does not."""
    assert tasks.prevention(fix) == left


def test_a_command_is_code_on_the_page() -> None:
    """FACT: with its directory and engine, and no word of the sentence around it."""
    told = markup.told("x; then: vllm-watchdog --state-dir '/a b' start main, or <b>")
    command = "<code>vllm-watchdog --state-dir &#x27;/a b&#x27; start main</code>"
    assert told == f"x; then: {command}, or &lt;b&gt;"
    assert markup.told("vllm-watchdog restart when it may").startswith(
        "<code>vllm-watchdog restart</code> when"
    )
    assert markup.told("the vllm-watchdog process") == "the vllm-watchdog process"


def test_what_it_cannot_see_is_on_the_page_and_in_the_status() -> None:
    """FACT: in words, once, and nothing where it lacks nothing."""
    lacking = replace(snapshot(serving().state), lacks=("no kernel log", "no <cgroup>"))
    assert bodies.status(lacking)["lacks"] == ["no kernel log", "no <cgroup>"]
    assert "no kernel log; no &lt;cgroup&gt;" in sections.lacks(lacking)
    assert sections.lacks(snapshot(serving().state)) == ""


# --- who needs a person ---------------------------------------------------------------------------


def test_a_repair_that_did_not_work_is_for_a_person() -> None:
    """FACT: of the box: an action that failed is not "at it", whatever it waits for now."""
    sweeping = replace(full(Severity.CRITICAL), actions=("sweep_leftovers",))
    watch = Watch(firing=sweeping, held=HoldReason.COOLDOWN)
    done = "sweep_leftovers {} after 0.1 s"
    for result, todo in (("failed", [FIX]), ("ok", [])):
        story = (Entry(90.0, "action.finished", done.format(result)),)
        one = Incident("inc-1", "tmpfs-full", HOST, Severity.CRITICAL, "it is full", 1.0, 1.0)
        state = replace(
            serving().state,
            watches={("tmpfs-full", HOST): watch},
            incidents=(replace(one, timeline=story),),
        )
        assert [one.text for one in of(state, 100.0).todo] == todo


def test_an_engine_without_a_restart_left_is_told_while_it_serves() -> None:
    """FACT: yes, but no green one; what to find out, and the command that gives it new ones."""
    state = restarting(10.0).restarted(12.0, "0000000b").state
    found = answered(replace(snapshot(state, 20.0), budget={"main": 0}))
    assert (found.level, found.serving) == (
        Level.WARNING,
        "yes: main is ready; no restart left of main",
    )
    assert found.todo[0].text.endswith(
        "(vllm-watchdog incidents inc-000001); then: vllm-watchdog reset-breaker main"
    )


def test_who_is_started_in_spite_of_an_open_breaker_starts() -> None:
    """FACT: an operator's restart is not answered with "given up"."""
    history = RestartHistory(breaker_open=True, restarts=(Restart(1.0, boot=False),))
    starts = engine(ProcessState.STARTING, verdict=Verdict.STARTING, history=history)
    found = of(State(engines={"main": starts}), 20.0)
    assert found.serving.startswith("not yet: main is starting")
    assert not any("gave main up" in line for line in found.did)
    down = replace(starts, process=ProcessState.BACKOFF, verdict=Verdict.DEAD)
    assert "is given up" in of(State(engines={"main": down}), 20.0).serving


def test_one_that_an_operator_stopped_is_missed_beside_another() -> None:
    """FACT: as /healthz: not all of them serve."""
    history = RestartHistory(wanted=False, stopped_by=StoppedBy.OPERATOR)
    engines = {
        "main": engine(verdict=Verdict.READY),
        "other": engine(ProcessState.STOPPED, name="other", history=history, since=70.0),
    }
    found = of(State(engines=engines), 100.0)
    assert (found.level, found.serving) == (
        Level.WARNING,
        "partly: 1 of 2 engines; other was stopped by an operator at 23:59:30",
    )


def test_no_token_flows_since_a_doubt_began() -> None:
    """FACT: one that came before EngineCore was missed proves nothing."""
    vitals = Vitals(progressed_at=18.0, core_gone_since=19.0)
    doubtful = engine(verdict=Verdict.DEGRADED, reasons=("EngineCore is missing",), vitals=vitals)
    assert "the last token was seen at" in of(State(engines={"main": doubtful}), 20.0).serving
    flowing = replace(doubtful, vitals=replace(vitals, progressed_at=19.5))
    assert "though tokens flow" in of(State(engines={"main": flowing}), 20.0).serving


def test_a_paused_wait_is_not_repaired() -> None:
    """FACT: nobody is told that the watchdog is at it while it only looks."""
    story = serving()
    story.command(Verb.PAUSE, 5.0)
    story.exited(10.0)
    found = of(beside(story.state, full()), 12.0)
    assert not any("the watchdog is at it" in one.text for one in found.todo)


def test_several_outages_within_an_hour_are_counted() -> None:
    """FACT: the last one says that it was not alone."""
    story = restarting(10.0).restarted(12.0, "0000000b")
    story.exited(100.0, generation="0000000b")
    story.tick(200.0)
    story.restarted(201.0, "0000000c")
    assert ", the last of 2 within an hour, recovered" in of(story.state, 210.0).broke[0]
