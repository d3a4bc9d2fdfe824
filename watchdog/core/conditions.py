"""Conditions: what a rule says of a view. Three-valued, like every word of the core.

True is trouble, False is none, None is not known: a value that it needs is missing. One part that
decides makes the unknown beside it irrelevant, in ``All`` a False, in ``AnyOf`` a True.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from watchdog.core.model import Seconds, Value


class View(Protocol):
    """All that is known of a subject, by name. A mapping is one."""

    def get(self, name: str, /) -> Value | None:
        """The value, or None when it is not known."""
        ...


class Condition(Protocol):
    """Says whether trouble is there, given all that is known of the subject."""

    def __call__(self, view: View) -> bool | None:
        """True, False, or None when a value that it needs is not known."""
        ...


@dataclass(frozen=True, slots=True)
class OneOf:
    """True when ``sample`` has one of ``values``, unknown when it has one of ``undecided``."""

    sample: str
    values: tuple[Value, ...]
    undecided: tuple[Value, ...] = ()

    def __call__(self, view: View) -> bool | None:
        """See ``Condition``."""
        known = view.get(self.sample)
        if known is None or known in self.undecided:
            return None
        return known in self.values


@dataclass(frozen=True, slots=True)
class Above:
    """True when ``sample`` is greater than ``limit``, or than ``times`` the sample ``of``."""

    sample: str
    limit: float = 0.0
    of: str = ""
    times: float = 1.0

    def __call__(self, view: View) -> bool | None:
        """See ``Condition``."""
        value = number(view, self.sample)
        limit = self.limit if not self.of else _scaled(view, self.of, self.times)
        return None if value is None or limit is None else value > limit


@dataclass(frozen=True, slots=True)
class Not:
    """The opposite; the unknown has none."""

    part: Condition

    def __call__(self, view: View) -> bool | None:
        """See ``Condition``."""
        answer = self.part(view)
        return None if answer is None else not answer


@dataclass(frozen=True, slots=True)
class All:
    """Every part holds; one part that does not decides, whatever is unknown beside it."""

    parts: tuple[Condition, ...]

    def __call__(self, view: View) -> bool | None:
        """See ``Condition``."""
        unknown = False
        for part in self.parts:
            answer = part(view)
            if answer is False:
                return False
            unknown = unknown or answer is None
        return None if unknown else True


@dataclass(frozen=True, slots=True)
class AnyOf:
    """One part holds; it decides, whatever is unknown beside it."""

    parts: tuple[Condition, ...]

    def __call__(self, view: View) -> bool | None:
        """See ``Condition``."""
        unknown = False
        for part in self.parts:
            answer = part(view)
            if answer:
                return True
            unknown = unknown or answer is None
        return None if unknown else False


@dataclass(frozen=True, slots=True)
class AnyKnown:
    """As ``AnyOf``, of the parts that are known: False as soon as one is, and none holds.

    For signs that one card or driver has and another has not: what is absent does not keep what is
    there from ending a finding.
    """

    parts: tuple[Condition, ...]

    def __call__(self, view: View) -> bool | None:
        """See ``Condition``."""
        answers = {part(view) for part in self.parts}
        return True if True in answers else False if False in answers else None


@dataclass(frozen=True, slots=True)
class Besides:
    """``part``, and also True while ``sign`` holds. A sign that does not hold decides nothing.

    For a second source that can only add trouble: its silence is no health.
    """

    part: Condition
    sign: Condition

    def __call__(self, view: View) -> bool | None:
        """See ``Condition``."""
        return True if self.sign(view) else self.part(view)


@dataclass(frozen=True, slots=True)
class Unless:
    """``part``, except while ``excuse`` holds. An excuse that is not known is none.

    For samples that many cards or drivers do not have: their absence must not silence a rule.
    """

    part: Condition
    excuse: Condition

    def __call__(self, view: View) -> bool | None:
        """See ``Condition``."""
        return False if self.excuse(view) else self.part(view)


@dataclass(frozen=True, slots=True)
class Window:
    """A figure over the last ``seconds`` of a sample: its increase, or its greatest value.

    A view has it as ``name`` (``gpu.pcie_replays increase 300``), and under ``covered`` whether the
    whole window was seen.
    """

    figure: str
    sample: str
    seconds: Seconds
    name: str = field(init=False)
    covered: str = field(init=False)

    def __post_init__(self) -> None:
        """Names are asked for at every look: they are made once."""
        name = f"{self.sample} {self.figure} {self.seconds:g}"
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "covered", f"{name} covered")


@dataclass(frozen=True, slots=True)
class Rose:
    """True when a counter rose by more than ``limit`` within ``within`` seconds.

    What was seen of a window is a lower bound: more than the limit is known at once, less only
    when the whole window was seen.
    """

    sample: str
    within: Seconds
    limit: float = 0.0
    window: Window = field(init=False)

    def __post_init__(self) -> None:
        """What has to be kept for it."""
        object.__setattr__(self, "window", Window("increase", self.sample, self.within))

    def __call__(self, view: View) -> bool | None:
        """See ``Condition``."""
        rise = number(view, self.window.name)
        if rise is None:
            return None
        if rise > self.limit:
            return True
        return False if view.get(self.window.covered) else None


@dataclass(frozen=True, slots=True)
class Fell:
    """True when ``sample`` is below the greatest value it had within ``within`` seconds."""

    sample: str
    within: Seconds
    window: Window = field(init=False)

    def __post_init__(self) -> None:
        """What has to be kept for it."""
        object.__setattr__(self, "window", Window("max", self.sample, self.within))

    def __call__(self, view: View) -> bool | None:
        """See ``Condition``."""
        value, most = number(view, self.sample), number(view, self.window.name)
        return None if value is None or most is None else value < most


def number(view: View, name: str) -> float | None:
    """The value as a number; None when it is missing, or a text."""
    value = view.get(name)
    return None if value is None or isinstance(value, str) else float(value)


def _scaled(view: View, name: str, times: float) -> float | None:
    value = number(view, name)
    return None if value is None else times * value


def parts(condition: Condition) -> Iterator[Condition]:
    """The condition, and all that it is made of."""
    yield condition
    match condition:
        case All() | AnyOf() | AnyKnown():
            inner = condition.parts
        case Not():
            inner = (condition.part,)
        case Unless():
            inner = (condition.part, condition.excuse)
        case Besides():
            inner = (condition.part, condition.sign)
        case _:
            inner = ()
    for one in inner:
        yield from parts(one)


def windows(condition: Condition) -> Iterator[Window]:
    """All windows that a condition looks through."""
    return (one.window for one in parts(condition) if isinstance(one, Rose | Fell))


def samples(condition: Condition) -> Iterator[str]:
    """The names of all samples that a condition asks for."""
    for one in parts(condition):
        if isinstance(one, OneOf | Above | Rose | Fell):
            yield one.sample
        if isinstance(one, Above) and one.of:
            yield one.of
