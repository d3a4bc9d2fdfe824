"""The report of a run as Markdown."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from tests.chaos.journal import Invariant, told
from tests.chaos.observer import Vital
from tests.chaos.place import BUDGET, WINDOW
from tests.chaos.plan import Fault
from tests.chaos.run import Outcome

_ROWS = 10
_MIB = 1 << 20


def written(outcome: Outcome, command: str) -> str:
    """The whole page."""
    return "\n".join(_lines(outcome, command)) + "\n"


def _lines(outcome: Outcome, command: str) -> Iterator[str]:
    journal = outcome.journal
    yield "# Chaos"
    yield ""
    yield f"`{command}`: random faults against the real daemon with simulated engines and fake"
    yield "cards, and an observer of its own that believes only `/proc`. The same seed brings the"
    yield "same faults in the same order; how they meet depends on the machine."
    yield ""
    today, python = f"{datetime.now(UTC):%Y-%m-%d}", platform.python_version()
    yield f"{today}, Python {python}, {os.cpu_count()} cores,"
    yield f"Linux {platform.release()}, seed {journal.seed}, {outcome.seconds:.0f} s,"
    yield f"{len(journal.sequence)} faults, {outcome.watchdogs} watchdogs one after the other,"
    yield f"{outcome.generations} generations of engines,"
    yield f"**{len(journal.violations)} violations**."
    yield ""
    yield from _invariants(outcome)
    yield from _violations(outcome)
    yield from _livez(outcome.latencies)
    yield from _series(outcome.vitals)
    yield from _faults(outcome)


def _invariants(outcome: Outcome) -> Iterator[str]:
    violated = [one.invariant for one in outcome.journal.violations]
    yield "| invariant | checks | violations |"
    yield "| --- | --- | --- |"
    for one in Invariant:
        yield f"| {one} | {outcome.journal.checks[one]} | {violated.count(one)} |"
    yield ""
    yield f"The budget is {BUDGET} restarts in {WINDOW:.0f} s, counted by the births of leaders in"
    yield "`/proc`; what an operator asked for is on no account, and a reset begins a new one."
    yield "Growth is the median of the last third against that of the first; 0 checks: too short."
    yield ""


def _violations(outcome: Outcome) -> Iterator[str]:
    if outcome.left_out:
        yield "Left out: " + "; ".join(outcome.left_out) + "."
        yield ""
    for one in outcome.journal.violations:
        text = told(one, outcome.journal.seed).replace("`", "'")
        yield from ("```", *text.splitlines()[:20], "```", "")


def _livez(latencies: Sequence[float]) -> Iterator[str]:
    if len(latencies) > 1:
        cuts = statistics.quantiles(latencies, n=100)
        median = statistics.median(latencies) * 1e3
        yield f"`/livez` answered {len(latencies)} times: median {median:.1f} ms,"
        yield f"p99 {cuts[98] * 1e3:.0f} ms, at most {max(latencies) * 1e3:.0f} ms."
        yield ""


def _series(vitals: Sequence[Vital]) -> Iterator[str]:
    """At most ten rows, evenly spread."""
    if not vitals:
        return
    yield "| s | resident, MiB | descriptors |"
    yield "| --- | --- | --- |"
    size = max(1, -(-len(vitals) // _ROWS))
    for begin in range(0, len(vitals), size):
        part = vitals[begin : begin + size]
        memory = statistics.median(one.resident for one in part) / _MIB
        open_files = statistics.median(one.descriptors for one in part)
        yield f"| {part[0].at:.0f} to {part[-1].at:.0f} | {memory:.1f} | {open_files:.0f} |"
    yield ""
    yield "Medians of readings of watchdogs that had lived for 15 s."
    yield ""


def _faults(outcome: Outcome) -> Iterator[str]:
    yield "| fault | times |"
    yield "| --- | --- |"
    for one in Fault:
        if outcome.journal.faults[one]:
            yield f"| {one} | {outcome.journal.faults[one]} |"
    yield ""
    if outcome.journal.notes:
        yield "| beside | times |"
        yield "| --- | --- |"
        for what, times in sorted(outcome.journal.notes.items()):
            yield f"| {what} | {times} |"
