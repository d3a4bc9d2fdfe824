"""The tables of a comparison as Markdown, and its raw samples as JSON: nothing is typed by hand."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field

from tests.perf.peers.idle import Cost
from tests.perf.peers.scenarios import (
    HANG_SECONDS,
    LOOP_FIRST,
    LOOP_SECONDS,
    SATURATED_SECONDS,
    Sample,
)
from tests.perf.peers.subject import LIFE, Subject
from tests.perf.table import percentile

NONE = "-"


@dataclass(slots=True)
class Results:
    """All that was measured, by scenario and by title of the subject."""

    command: str
    machine: str
    versions: dict[str, str]
    subjects: list[Subject]
    missing: dict[str, list[str]]
    crash: dict[str, list[Sample]] = field(default_factory=dict)
    stop: dict[str, list[Sample]] = field(default_factory=dict)
    loop: dict[str, list[Sample]] = field(default_factory=dict)
    hang: dict[str, list[Sample]] = field(default_factory=dict)
    saturated: dict[str, list[Sample]] = field(default_factory=dict)
    idle: dict[str, list[Cost]] = field(default_factory=dict)
    scrapes: dict[str, list[float]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def raw(self) -> str:
        """Everything, as JSON."""
        scenarios = ("crash", "stop", "loop", "hang", "saturated", "idle")
        found: dict[str, object] = {
            name: {
                who: [asdict(s) for s in samples] for who, samples in getattr(self, name).items()
            }
            for name in scenarios
        }
        found |= {"scrapes_ms": self.scrapes, "versions": self.versions, "missing": self.missing}
        found |= {"command": self.command, "machine": self.machine, "failures": self.failures}
        return json.dumps(found, indent=1) + "\n"

    def markdown(self) -> str:
        """The document."""
        parts = [_HEAD.format(command=self.command, machine=self.machine, life=LIFE)]
        parts += [_table(("subject", "version"), self.versions.items())]
        parts += [f"\n**Missing, so not measured:** {_missed(self.missing)}\n"] * bool(self.missing)
        parts += [f"\n**Failed:** {'; '.join(self.failures)}\n"] * bool(self.failures)
        settings = ((s.title, s.settings) for s in self.subjects)
        parts += ["\nThe configurations, whole in `tests/perf/peers/`:\n\n"]
        parts += [_table(("subject", "configuration"), settings)]
        order = {subject.title: place for place, subject in enumerate(self.subjects)}
        for title, text, columns, rows in self._tables():
            parts += [
                f"\n## {title}\n\n{text}\n\n",
                _table(columns, sorted(rows, key=lambda row: order.get(str(row[0]), 0))),
            ]
        return "".join(parts)

    def _tables(self) -> Iterable[tuple[str, str, tuple[str, ...], Sequence[Sequence[object]]]]:
        yield "Crash", _CRASH, _CRASH_COLUMNS, [_crash(w, s) for w, s in self.crash.items()]
        yield "Stop", _STOP, _STOP_COLUMNS, [_stop(w, s) for w, s in self.stop.items()]
        yield "Crash loop", _LOOP, _LOOP_COLUMNS, [_loop(w, s) for w, s in self.loop.items()]
        health = {s.title: s.health for s in self.subjects}
        hang = [_hang(w, health[w], s) for w, s in self.hang.items()]
        silent = [(w, "no such feature", NONE, *[NONE] * 3) for w, h in health.items() if not h]
        yield "Hang", _HANG, _HANG_COLUMNS, [*hang, *silent]
        saturated = [_saturated(w, health[w], s) for w, s in self.saturated.items()]
        yield "Saturation", _SATURATED, _SATURATED_COLUMNS, saturated
        idle = [_idle(who, cost) for who, costs in self.idle.items() for cost in costs]
        yield "Idle", _IDLE, _IDLE_COLUMNS, idle
        scrapes = [(who, len(t), *figures(t, 1)) for who, t in self.scrapes.items()]
        yield "Scrapes", _SCRAPES, ("whose /metrics", "n", *_RANGE_MS), scrapes


def figures(values: Sequence[float], digits: int) -> tuple[str, str, str, str]:
    """Median, least, p95, most; dashes for none."""
    if not values:
        return NONE, NONE, NONE, NONE
    found = (statistics.median(values), min(values), percentile(values, 0.95), max(values))
    first, second, third, fourth = (f"{value:.{digits}f}" for value in found)
    return first, second, third, fourth


def _table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    cells = ([str(cell).replace("|", "\\|") for cell in line] for line in lines)
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


def _missed(missing: dict[str, list[str]]) -> str:
    return "; ".join(f"{who} needs {', '.join(needs)}" for who, needs in missing.items())


def _came(samples: Sequence[Sample]) -> list[float]:
    return [sample.seconds for sample in samples if sample.seconds is not None]


def _of(count: int, samples: Sequence[Sample]) -> str:
    return f"{count} of {len(samples)}"


def _crash(who: str, samples: Sequence[Sample]) -> Sequence[object]:
    milliseconds = [seconds * 1000 for seconds in _came(samples)]
    living = sum(sample.alive for sample in samples)
    return who, _of(len(milliseconds), samples), *figures(milliseconds, 1), _of(living, samples)


def _stop(who: str, samples: Sequence[Sample]) -> Sequence[object]:
    median, least, _, most = figures(_came(samples), 2)
    wrong, dead = sum(s.alive for s in samples), sum(s.count for s in samples)
    return (
        who,
        _of(len(_came(samples)), samples),
        median,
        f"{least} to {most}",
        _of(wrong, samples),
        _of(dead, samples),
    )


def _loop(who: str, samples: Sequence[Sample]) -> Sequence[object]:
    early, whole = [s.count for s in samples], [int(s.seconds or 0) for s in samples]
    last = max(s.last for s in samples)
    rests = LOOP_SECONDS - last > LOOP_FIRST
    return who, *map(_range, (early, whole)), f"{last:.1f}", "yes" if rests else "no"


def _range(counts: Sequence[int]) -> str:
    least, most = min(counts), max(counts)
    return str(least) if least == most else f"{least} to {most}"


def _hang(who: str, health: str, samples: Sequence[Sample]) -> Sequence[object]:
    came, living = _came(samples), sum(s.alive for s in samples if s.seconds is not None)
    median, least, _, most = figures(came, 1)
    span = f"{least} to {most}" if came else f"never in {HANG_SECONDS:.0f}"
    return who, health, _of(len(came), samples), median, span, f"{living} of {len(came)}"


def _saturated(who: str, health: str, samples: Sequence[Sample]) -> Sequence[object]:
    times = ", ".join(f"{seconds:.1f}" for seconds in _came(samples))
    ended = sum(s.count for s in samples if s.seconds is None)
    verdict = f"restarted after {times} s" if times else "left alone"
    return who, health, len(samples), "ended, not started again" if ended else verdict


def _idle(who: str, cost: Cost) -> Sequence[object]:
    numbers = (f"{cost.core:.2f}", f"{cost.pss:.1f}", f"{cost.private:.1f}")
    return who, cost.workers, cost.processes, *numbers


_HEAD = """\
# Peers

What people keep engines alive with today, and vllm-watchdog: the same worker on the same machine
in one run. It is a leader that answers on a health port, and a child that ignores SIGTERM and
survives the leader's SIGKILL (`tests/perf/peers/worker.py`). It speaks enough of vLLM for our
probes, so no row has another engine. Nothing uses a GPU. Raw samples: [peers.json](peers.json).

Made by `{command}`, which writes this file.

{machine}

"default" is what the peer does with only a command configured, "tuned" how one would set it knowing
the failure.

"""
_RANGE_MS = ("median ms", "min", "p95", "max")
_CRASH = """\
SIGKILL of the leader to the first moment of the next one, and whether the old child lived then.
Subjects that wait for the exit ran alone, in turns; those that poll all at once, each at a random
moment of its period. Limits of restarts were lifted."""
_CRASH_COLUMNS = ("subject", "restarted", *_RANGE_MS, "old child alive at the new start")
_STOP = """\
The subject's own stop command, until it says that the worker is stopped. Stop and crash loop of all
subjects ran at once, beside circus's hangs: counts hold, seconds are inflated."""
_STOP_COLUMNS = (
    "subject",
    "says stopped",
    "median s",
    "range",
    "said so while one lived",
    "all dead 5 s later",
)
_LOOP = f"A worker that exits with status 1 after {LIFE} s, watched for {LOOP_SECONDS:.0f} s."
_LOOP_COLUMNS = (
    "subject",
    f"starts in {LOOP_FIRST:.0f} s",
    f"in {LOOP_SECONDS:.0f} s",
    "last start at s",
    f"quiet in the last {LOOP_FIRST:.0f} s",
)
_HANG = """\
SIGSTOP of the leader to the next start. All at once, three times each; circus once, beside stop and
crash loop, since its observer takes a third of a core. monit is blind for 30 s after a start: its
worker was stopped later."""
_HANG_COLUMNS = (
    "subject",
    "what looks",
    "restarted",
    "median s",
    "range",
    "old tree alive at the new start",
)
_SATURATED = f"""\
The worker is busy: /health and new requests wait, while its metrics tell of running requests and of
tokens that flow. Watched for {SATURATED_SECONDS:.0f} s. A restart kills work that goes on."""
_SATURATED_COLUMNS = ("subject", "what looks", "n", "what it did")
_IDLE = """\
The subject's own processes beside 1 and 8 idle workers, four subjects at a time; children that
were waited for are counted. PSS of Python programs depends on who else shares the interpreter's
pages, private memory does not."""
_IDLE_COLUMNS = ("subject", "workers", "processes", "CPU % of a core", "PSS MiB", "private MiB")
_SCRAPES = """\
One connection, 20 ms between two scrapes, one worker; node_exporter has its own defaults."""
