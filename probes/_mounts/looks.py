"""Looks at many places of which any may hang in the kernel, for ever and beyond any signal."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

from watchdog.core.model import Seconds

T = TypeVar("T")

_MOST_STUCK = 16
"""Threads that may hang at a time; beyond that nothing new is looked at until one comes back."""


@dataclass(frozen=True, slots=True)
class Look:
    """One place, and the mount point that it is on: when that one hangs, so does the place."""

    path: str
    point: str


@dataclass(frozen=True, slots=True)
class Answers(Generic[T]):
    """What was found by path, and the paths that did not answer.

    What is in neither failed, or there was no time left for it.
    """

    found: dict[str, T]
    hung: frozenset[str]


class Looks(Generic[T]):
    """Asks ``look`` about one path after the other, in a thread that may be lost.

    A path that does not answer within ``patience`` seconds costs its thread, and that once: it is
    told as hung at once until the thread is back. The others are asked by another thread. All
    places on a mount whose own point hangs are hung with it. Not safe from several threads at once.
    """

    def __init__(self, look: Callable[[str], T | None], patience: Seconds = 1.0) -> None:
        self._look, self._patience = look, patience
        self._stuck: dict[str, tuple[threading.Thread, Seconds]] = {}

    def __call__(self, places: Iterable[Look], deadline: Seconds) -> Answers[T]:
        """All of them, mount points first, until ``deadline`` (CLOCK_MONOTONIC)."""
        self._stuck = {path: one for path, one in self._stuck.items() if one[0].is_alive()}
        wanted = list(places)
        points = dict.fromkeys(one.point for one in wanted)
        left = [Look(point, point) for point in points]
        left += [one for one in dict.fromkeys(wanted) if one.path not in points]
        found: dict[str, T] = {}
        while left := [one for one in left if not self._hangs(one)]:
            if len(self._stuck) >= _MOST_STUCK or time.monotonic() >= deadline:
                break
            left = self._asked(left, found, deadline)
        late = time.monotonic() - self._patience
        silent = {path for path, (_, asked_at) in self._stuck.items() if asked_at <= late}
        hung = {one.path for one in wanted if one.path in silent or one.point in silent}
        return Answers(found, frozenset(hung | (points.keys() & silent)))

    def _hangs(self, one: Look) -> bool:
        return one.path in self._stuck or one.point in self._stuck

    def _asked(self, left: list[Look], found: dict[str, T], deadline: Seconds) -> list[Look]:
        """Fill ``found`` until one hangs, and return those behind it."""
        answers: SimpleQueue[T | None] = SimpleQueue()
        given_up = threading.Event()
        paths = [one.path for one in left]

        def ask() -> None:
            for path in paths:
                if given_up.is_set():
                    return
                answers.put(self._answer(path))

        thread = threading.Thread(target=ask, name="mounts", daemon=True)
        thread.start()
        for index, path in enumerate(paths):
            asked_at = time.monotonic()
            patience = min(self._patience, deadline - asked_at)
            try:
                answer = answers.get(timeout=max(patience, 0.0))
            except Empty:
                given_up.set()
                self._stuck[path] = (thread, asked_at)
                return left[index + 1 :]
            if answer is not None:
                found[path] = answer
        thread.join()
        return []

    def _answer(self, path: str) -> T | None:
        try:
            return self._look(path)
        except Exception:  # noqa: BLE001 - what cannot be found out is not known
            return None
