"""What the core knows of a rule's condition: what it asks for, and its three-valued answer.

True is trouble, False is none, None is not known: a value that it needs is missing. How conditions
are written and compiled is not the core's business, see ``watchdog.rules``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from watchdog.core.model import Seconds, Value


class Figure(StrEnum):
    """What can be asked about the last seconds of a sample."""

    INCREASE = "increase"
    MAX_OVER = "max_over"
    MIN_OVER = "min_over"
    AVG_OVER = "avg_over"
    CHANGES = "changes"


@dataclass(frozen=True, slots=True)
class Window:
    """A figure over the last ``seconds`` of a sample.

    A view has it as ``name`` (``increase(gpu.pcie_replays, 5m)``), and under ``covered`` whether
    the whole window was seen; before, the figure is that of what was seen of it.
    """

    figure: Figure
    sample: str
    seconds: Seconds
    name: str = field(init=False)
    covered: str = field(init=False)

    def __post_init__(self) -> None:
        """Names are asked for at every look: they are made once."""
        name = f"{self.figure.value}({self.sample}, {spelled(self.seconds)})"
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "covered", f"{name} covered")


def spelled(seconds: Seconds) -> str:
    """A duration as Go writes it, in the largest unit that divides it: ``5m``, ``1.5s``."""
    for unit, size in (("h", 3600), ("m", 60)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.15g}s"


class View(Protocol):
    """All that is known of a subject, by name."""

    def get(self, name: str, /) -> Value | None:
        """The value, or None when it is not known."""
        ...

    def labelled(self, name: str, /) -> Mapping[str, Value]:
        """The known values of a sample by its one own label; empty when none is known."""
        ...


class Condition(Protocol):
    """Says whether trouble is there, given all that is known of the subject.

    ``samples`` are the names that it asks a view for, those inside windows too; ``windows`` what
    has to be kept for it. Two conditions are equal when they say the same.
    """

    @property
    def samples(self) -> frozenset[str]:
        """Names of samples, ``gpu.throttled.hw_thermal``."""
        ...

    @property
    def windows(self) -> tuple[Window, ...]:
        """The windows it looks through."""
        ...

    def __call__(self, view: View) -> bool | None:
        """True, False, or None when it is not known."""
        ...
