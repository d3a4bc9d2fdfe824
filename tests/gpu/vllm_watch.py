"""Watches one fault of a real engine from outside: its processes, the cards' memory, a token.

Times are wall-clock seconds, to be compared with those of the daemon's log.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from types import TracebackType
from typing import Any, Self

from tests.gpu.vllm_bed import Box, Cards
from tests.support.simulated import stat_fields, until

_LOOK = 0.002
_MEMORY_EVERY = 0.01
_PING_EVERY = 0.03
_SLACK = 64 << 20
"""Bytes that a card may keep when all is back: what the driver rounds."""
_EVENTS = (
    ("exit_seen", "engine.exited"),
    ("finding", "finding.firing"),
    ("decided", "decision.act"),
    ("action_started", "action.started"),
    ("started", "engine.started"),
    ("ready", "engine.ready"),
    ("resolved", "incident.resolved"),
)


def complete(port: int, tokens: int = 1, patience: float = 5.0) -> int:
    """Tokens that a completion brought. Raises OSError, ValueError."""
    asked = {"model": "tiny", "prompt": "a", "max_tokens": tokens, "ignore_eos": True}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions",
        json.dumps({**asked, "temperature": 0}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=patience) as answer:
        return int(json.load(answer)["usage"]["completion_tokens"])


class Watch:
    """Follows the processes ``pids`` from a fault to the first token of who comes after them.

    ``marks`` are wall-clock times: fault, gone (none of ``pids`` lives), released (the cards of
    ``baseline`` have no more bytes in use than it says), first_token.
    """

    def __init__(
        self, pids: Iterable[int], port: int, cards: Cards, baseline: Mapping[int, int]
    ) -> None:
        self.marks: dict[str, float] = {}
        self.states: list[tuple[float, int, str]] = []
        self._start = {pid: fields[19] for pid in pids if (fields := stat_fields(pid))}
        self._last = dict.fromkeys(self._start, "")
        self._port = port
        self._cards = cards
        self._baseline = baseline
        self._over = threading.Event()
        looks = (self._follow, self._ping)
        self._threads = [threading.Thread(target=look, daemon=True) for look in looks]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def mark(self, name: str) -> None:
        """It is now; only the first time counts."""
        self.marks.setdefault(name, time.time())

    def until(self, name: str, patience: float) -> None:
        """Wait for a mark; fails when it does not come in time."""
        until(lambda: name in self.marks, patience)

    def _follow(self) -> None:
        looked = 0.0
        while not self._over.is_set():
            states = {pid: self._state(pid) for pid in self._start}
            self._note(states)
            if not set(states.values()) - {"", "Z", "X"}:
                self.mark("gone")
            if "fault" in self.marks and time.monotonic() - looked > _MEMORY_EVERY:
                looked = time.monotonic()
                self._look_at_memory()
            time.sleep(_LOOK)

    def _note(self, states: Mapping[int, str]) -> None:
        for pid, state in states.items():
            known = state if state in {"", "Z", "X", "T"} else "alive"
            if known != self._last[pid]:
                self.states.append((time.time(), pid, known or "gone"))
                self._last[pid] = known
                if known != "alive":
                    self.mark("fault")

    def _look_at_memory(self) -> None:
        if "released" in self.marks or not self._cards:
            return
        used = self._cards.used()
        if all(used[card] <= before + _SLACK for card, before in self._baseline.items()):
            self.mark("released")

    def _state(self, pid: int) -> str:
        fields = stat_fields(pid)
        return fields[0] if fields and fields[19] == self._start[pid] else ""

    def _ping(self) -> None:
        while not self._over.is_set():
            if "gone" in self.marks and "first_token" not in self.marks:
                with contextlib.suppress(OSError, ValueError, LookupError):
                    if complete(self._port):
                        self.mark("first_token")
            time.sleep(_PING_EVERY)


def when(line: Mapping[str, Any]) -> float:
    """Wall-clock seconds of a log line."""
    return datetime.fromisoformat(str(line["timestamp"])).timestamp()


def timeline(watch: Watch, box: Box, engine: str = "main") -> dict[str, Any]:
    """Seconds from the fault to everything that was seen, and what follows from them."""
    fault = watch.marks["fault"]
    times = {name: at - fault for name, at in watch.marks.items() if name != "fault"}
    lines = [line for line in box.lines() if when(line) > fault - 0.05]
    for name, event in _EVENTS:
        found = first(lines, event, lambda line: _of(line, engine))
        if found:
            times[name] = when(found) - fault
    resolved = first(lines, "incident.resolved", lambda line: _of(line, engine))
    return {
        **{name: round(value, 3) for name, value in sorted(times.items(), key=lambda t: t[1])},
        "derived": derived(times),
        "cause": resolved.get("cause"),
        "outcome": resolved.get("outcome"),
        "states": [[round(at - fault, 3), pid, state] for at, pid, state in watch.states],
        "log": lines,
    }


def first(
    lines: Iterable[Mapping[str, Any]],
    event: str,
    wanted: Callable[[Mapping[str, Any]], bool] = lambda _: True,
) -> Mapping[str, Any]:
    """The first line of that event; empty when there is none."""
    return next((one for one in lines if one.get("event") == event and wanted(one)), {})


def _of(line: Mapping[str, Any], engine: str) -> bool:
    return engine in {line.get("engine"), str(line.get("subject", "")).removeprefix("engine/")}


def derived(times: Mapping[str, float]) -> dict[str, float]:
    """Who took how long; what needs a time that is missing is left out.

    ``ending`` is from the decision until nobody lives and the memory is back, ``respawn`` from
    there to the new process, ``engine`` the new engine's own start to its first token, ``verdict``
    what ready comes after that token.
    """
    back = max((times[name] for name in ("gone", "released") if name in times), default=None)
    ends = {**times, **({} if back is None else {"back": back})}
    spans = {
        "ending": ("decided", "back"),
        "respawn": ("back", "started"),
        "engine": ("started", "first_token"),
        "verdict": ("first_token", "ready"),
    }
    return {
        name: round(ends[to] - ends[since], 3)
        for name, (since, to) in spans.items()
        if since in ends and to in ends
    }
