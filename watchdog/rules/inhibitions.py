"""Which rule silences which: names that are there, and no circles."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from watchdog.config.reading import shown
from watchdog.rules.vocabulary import meant

Inhibitions = Mapping[str, Sequence[str]]
"""By the name of a rule: the rules that outrank it."""


def faults(inhibitions: Inhibitions, given: Collection[str]) -> Iterator[tuple[str, str]]:
    """Names of rules, and what is wrong with what they are inhibited by. One line a circle.

    A circle is told of a rule that is ``given`` in the configuration.
    """
    for name, others in inhibitions.items():
        for other in others:
            if other not in inhibitions:
                yield name, f"unknown rule {shown(other)}{meant(other, inhibitions)}"
            elif other == name:
                yield name, "a rule cannot be inhibited by itself"
    for circle in _circles(inhibitions):
        first = next((at for at, name in enumerate(circle) if name in given), 0)
        around = (*circle[first:], *circle[: first + 1])
        yield circle[first], f"a cycle of inhibitions: {', '.join(around)}"


def _circles(inhibitions: Inhibitions) -> Iterator[list[str]]:
    """Every circle that a walk along the inhibitions runs into, each once."""
    done: set[str] = set()
    for start in inhibitions:
        path: list[str] = []
        stack = [(start, iter(inhibitions[start]))] if start not in done else []
        path.extend(name for name, _ in stack)
        while stack:
            name, rest = stack[-1]
            other = next(rest, None)
            if other is None:
                stack.pop()
                path.pop()
                done.add(name)
            elif other in path and other != name:
                yield path[path.index(other) :]
            elif other in inhibitions and other not in done and other not in path:
                path.append(other)
                stack.append((other, iter(inhibitions[other])))
