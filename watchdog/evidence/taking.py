"""Takes one bundle: every part in a thread of its own, and what is there in time is kept."""

from __future__ import annotations

import platform
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from watchdog import __version__
from watchdog.config import size_of
from watchdog.core.model import Seconds, SubjectKind
from watchdog.evidence import bundles, logs, processes, readings, stacks
from watchdog.evidence.blots import Blots, Clean, secrets
from watchdog.evidence.bundles import META, Making
from watchdog.evidence.sight import Sight, Sources
from watchdog.supervisor.spawn import without_secrets
from watchdog.web import bodies

FORMAT = 1
_SETTLE: Seconds = 1.0
_READINGS_BYTES = 8 << 20
_TREE_BYTES = 512 << 10
_STATUS_BYTES = 2 << 20
_ORDER = ("processes.txt", "engine.log", "kernel.log", "gpus.json", "status.json")
"""What is written first, if there should not be room for all."""

Part = Callable[[Seconds], None]
"""Looks, until that moment (CLOCK_MONOTONIC)."""


@dataclass(slots=True)
class Basket:
    """What the parts bring. Once it is shut nothing more goes in. Safe from any thread."""

    blots: Blots
    files: dict[str, Clean] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    took: dict[str, Seconds] = field(default_factory=dict)
    _shut: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def put(self, name: str, data: Clean) -> None:
        """One file."""
        with self._lock:
            if not self._shut:
                self.files[name] = data

    def miss(self, name: str, why: str) -> None:
        """Something that could not be had."""
        with self._lock:
            if not self._shut and why:
                self.missing[name] = self.blots.word(why)

    def end(self, part: str, took: Seconds) -> None:
        """A part is over."""
        with self._lock:
            if not self._shut:
                self.took[part] = round(took, 3)

    def shut(self) -> None:
        """Take nothing more."""
        with self._lock:
            self._shut = True


@dataclass(slots=True)
class Taking:
    """One bundle of one sight. ``stuck`` are the parts of the engine that never came back.

    What has not come ``patience`` seconds after the sight is left behind; where no action waits,
    after it was begun.
    """

    sight: Sight
    sources: Sources
    state_dir: Path
    stuck: dict[str, threading.Thread]
    patience: Seconds

    def make(self, making: Making) -> None:
        """Collect, and write what there is; raises OSError."""
        engines = self.sources.engines()
        basket = Basket(Blots(secrets(engines)))
        self._collect(basket, self._parts(basket))
        first = [name for name in _ORDER if name in basket.files]
        rest = sorted(name for name in basket.files if name not in first)
        for name in (*first, *rest):
            if len(basket.files[name]) <= making.room():
                making.add(name, basket.files[name])
            else:
                basket.missing[name] = "no room"
        making.add(META, basket.blots.json(self._meta(basket, making)))
        making.done()

    def _collect(self, basket: Basket, parts: Mapping[str, Part]) -> None:
        begin = time.monotonic() if self.sight.beside else self.sight.at
        until = begin + self.patience
        for name, part in parts.items():
            before = self.stuck.get(name)
            if before is not None and before.is_alive():
                basket.miss(name, "it still hangs from an earlier time")
                continue
            work = partial(_run, basket, name, part, until)
            self.stuck[name] = threading.Thread(target=work, name=f"evidence-{name}", daemon=True)
            self.stuck[name].start()
        for name in parts:
            self.stuck[name].join(max(0.0, until - time.monotonic()))
            if self.stuck[name].is_alive() and name not in basket.missing:
                basket.miss(name, f"not done within {self.patience:g} s")
        basket.shut()

    # --- parts --------------------------------------------------------------------------------

    def _parts(self, basket: Basket) -> dict[str, Part]:
        return {
            "processes.txt": partial(self._processes, basket),
            "stacks": partial(self._stacks, basket),
            "engine.log": partial(self._engine_log, basket),
            "kernel.log": partial(self._kernel_log, basket),
            "status.json": partial(self._status, basket),
            "readings.jsonl": partial(self._readings, basket),
        }

    def _processes(self, basket: Basket, until: Seconds) -> None:
        seen = self.sight.seen
        if seen is None:
            seen = processes.look(self.sight.processes, until)
        page = processes.page(seen)
        basket.put("processes.txt", basket.blots.text(page, _TREE_BYTES))

    def _stacks(self, basket: Basket, until: Seconds) -> None:
        if self.sight.beside or not self.sources.settings().py_spy:
            why = (
                "its leader is dead, and the action did not wait"
                if self.sight.beside
                else "switched off"
            )
            basket.miss("stacks", why)
            return
        path = stacks.program(self.sight.engine)
        if path is None:
            basket.miss("stacks", f"{stacks.PROGRAM} is not installed")
            return

        def take(pid: int, said: bytes) -> None:
            basket.put(f"stacks-{pid}.txt", basket.blots.text(said, stacks.STACK_BYTES))

        living = self.sight.processes
        wrong = stacks.dump(path, living, self.sources.household, take, until)
        basket.miss("stacks", wrong)

    def _engine_log(self, basket: Basket, _: Seconds) -> None:
        log = self.sight.log
        if log is None:
            basket.miss("engine.log", "it cannot be opened")
            return
        tail = logs.engine_tail(log, basket.blots.longest, self.sight.wall)
        basket.put("engine.log", basket.blots.text(tail, logs.ENGINE_BYTES))

    def _kernel_log(self, basket: Basket, until: Seconds) -> None:
        tail = logs.kernel_tail(self.sources.kernel_log, until)
        basket.put("kernel.log", basket.blots.text(tail, logs.KERNEL_BYTES))

    def _status(self, basket: Basket, _: Seconds) -> None:
        snapshot = replace(self.sources.snapshot(), state=self.sight.state)
        points = {
            card: [{**asdict(point), "at": snapshot.stamp(point.at)} for point in row]
            for card, row in snapshot.recent.items()
        }
        gpus = {"gpus": bodies.gpus(snapshot), "recent": points}
        for name, body in (("gpus.json", gpus), ("status.json", bodies.status(snapshot))):
            data = basket.blots.json(body)
            if len(data) <= _STATUS_BYTES:
                basket.put(name, data)
            else:
                basket.miss(name, "too long")

    def _readings(self, basket: Basket, until: Seconds) -> None:
        self.sources.settle(_SETTLE)
        since = self.sight.at - readings.SPAN
        found = readings.recent(self.state_dir, since, basket.blots, _READINGS_BYTES, until)
        basket.put("readings.jsonl", found.lines)
        basket.miss("readings.jsonl", found.missing)

    # --- what is said of the whole ------------------------------------------------------------

    def _meta(self, basket: Basket, making: Making) -> dict[str, object]:
        sight, order = self.sight, self.sight.order
        told = sight.state.engines.get(sight.engine.name)
        return {
            "format": FORMAT,
            "engine": sight.engine.name,
            "incident": order.incident,
            "action": order.action,
            "rule": order.rule,
            "cause": order.cause.value,
            "why": list(told.reasons) if told is not None else [],
            "explanation": told.explanation if told is not None else "",
            "generation": told.generation if told is not None else "",
            "leader": told.leader if told is not None else None,
            "command": list(without_secrets(sight.engine.command)),
            "taken_at": _stamp(sight.wall),
            "taken_at_s": sight.wall,
            "beside": sight.beside,
            "took_s": round(time.monotonic() - sight.at, 3),
            "versions": {
                "watchdog": __version__,
                "python": platform.python_version(),
                "kernel": platform.release(),
                **dict(_driver(sight)),
            },
            "parts_took_s": dict(basket.took),
            "missing": dict(basket.missing),
            "files": dict(making.files),
        }


def _run(basket: Basket, name: str, part: Part, until: Seconds) -> None:
    began = time.monotonic()
    try:
        part(until)
    except Exception as error:  # noqa: BLE001 - one part less, and the rest is kept
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        basket.miss(name, " ".join(f"{type(error).__name__}: {why}".split()))
    basket.end(name, time.monotonic() - began)


def _driver(sight: Sight) -> Iterator[tuple[str, object]]:
    """What is known of the driver's versions, in the words of its probe."""
    for (probe, _), reading in sight.state.readings.items():
        for one in reading.samples if probe == "driver" else ():
            if one.subject.kind is SubjectKind.HOST and isinstance(one.value, str):
                yield one.sample, one.value


def _stamp(wall: Seconds) -> str:
    moment = datetime.fromtimestamp(wall, UTC).isoformat(timespec="milliseconds")
    return moment.replace("+00:00", "Z")


def pruned(sources: Sources, directory: Path) -> tuple[bundles.Bundle, ...]:
    """The bundles that may be kept, after the others are removed."""
    settings = sources.settings()
    return bundles.prune(directory, size_of(settings.max_bytes), settings.max_age, time.time())


__all__ = ["FORMAT", "Basket", "Taking", "pruned"]
