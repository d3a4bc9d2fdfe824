"""States to show on the status page: everything at once, with any text in every place."""

from __future__ import annotations

from dataclasses import replace

from tests.support.core import engine
from tests.support.windows import FakeWindow, snapshot
from watchdog.core.model import (
    Cause,
    Entry,
    Finding,
    Incident,
    Pause,
    ProcessState,
    Reading,
    Sampled,
    Severity,
    Subject,
    SubjectKind,
    Verdict,
    engine_subject,
)
from watchdog.core.state import State, Watch
from watchdog.snapshot import Point


def crowded(
    word: str,
    *,
    engines: int = 1,
    cards: int = 1,
    findings: int = 1,
    incidents: int = 1,
    entries: int = 3,
    paused: bool = True,
) -> FakeWindow:
    """A daemon in all kinds of trouble; ``word`` stands wherever a text comes from outside."""
    names = [f"{word}{number}" for number in range(engines)]
    state = State(
        engines={
            name: engine(
                ProcessState.BACKOFF,
                name=name,
                verdict=Verdict.DEAD,
                reasons=(word, word),
                cause=Cause.CRASH,
                explanation=word,
                retry_at=120.0,
            )
            for name in names
        },
        readings={("gpu", ""): Reading("gpu", 99.0, 0.1, tuple(_samples(word, cards)))},
        watches={
            (f"{word}{number}", engine_subject(names[0])): Watch(firing=_finding(word, number))
            for number in range(findings)
        },
        incidents=tuple(_incident(word, number, entries) for number in range(incidents)),
        pause=Pause(word, word, 50.0) if paused else None,
    )
    shown = snapshot(state)
    return FakeWindow(
        replace(
            shown,
            pids=dict.fromkeys(names, (1, 2, 3)),
            budget=dict.fromkeys(names, 3),
            waiting=dict.fromkeys(names, word),
            bundles={f"inc-{number:06d}": (f"/{word}",) * 9 for number in range(incidents)},
            recent={f"GPU-{word}{number}": _noise() for number in range(cards)},
        )
    )


def _samples(word: str, cards: int) -> list[Sampled]:
    found = []
    for number in range(cards):
        uuid = f"GPU-{word}{number}"
        subject, labels = Subject(SubjectKind.GPU, uuid), (("gpu", str(number)), ("uuid", uuid))
        for name, value in (
            ("name", word),
            ("state", word),
            ("utilization_percent", 97.0),
            ("memory_used_bytes", float(60 << 30)),
            ("memory_total_bytes", float(80 << 30)),
            ("temperature_celsius", 71.0),
            ("power_watts", 640.0),
        ):
            found.append(Sampled(subject, name, value, labels))
    return found


def _noise() -> tuple[Point, ...]:
    """Ten minutes that no drawing can make shorter."""
    return tuple(
        Point(
            100.0 - 5 * (119 - n),
            float(n * 37 % 100),
            (n * 53 % 100) / 100,
            20.0 + n * 29 % 80,
            (("hw_thermal",), (), ("sw_power_cap",), ())[n % 4],
        )
        for n in range(120)
    )


def _finding(word: str, number: int) -> Finding:
    return Finding(
        rule=f"{word}{number}",
        subject=Subject(SubjectKind.HOST, word),
        severity=Severity.CRITICAL,
        summary=word,
        since=40.0,
        evidence=((word, word), ("n", 1.5)),
        runbook=word,
        fix=word,
    )


def _incident(word: str, number: int, entries: int) -> Incident:
    return Incident(
        id=f"inc-{number:06d}",
        rule=word,
        subject=engine_subject(word),
        severity=Severity.CRITICAL,
        summary=word,
        opened_at=41.0,
        began_at=40.0,
        cause=Cause.CRASH,
        explanation=word,
        actions=("restart_engine",),
        evidence=((word, word),),
        fix=word,
        timeline=tuple(Entry(41.0 + n / 100, "decision.hold", word) for n in range(entries)),
        omitted=7,
    )
