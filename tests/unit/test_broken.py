"""What is wrong with an engine stands before what is wrong beside it, also when it is just over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from tests.support.core import engine, restarting, serving
from tests.support.windows import snapshot
from watchdog.core.model import (
    HOST,
    Finding,
    HoldReason,
    ProcessState,
    Severity,
    Value,
    Verdict,
    engine_subject,
)
from watchdog.core.state import EngineState, State, Watch
from watchdog.snapshot import Snapshot
from watchdog.web import bodies, markup, sections, tasks
from watchdog.web.answers import Answers, answered

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
    assert found.did == ("before that inc-000001: restart, recovered after 3.0 s",)
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
