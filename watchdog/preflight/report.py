"""What a preflight found about one engine: numbers with their arithmetic, and what follows."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """Whether a model fits. ``tight``: only if the engine itself needs little besides."""

    FITS = "fits"
    TIGHT = "tight"
    TOO_LARGE = "does_not_fit"
    NOT_COMPUTED = "not_computed"


@dataclass(frozen=True, slots=True)
class Figure:
    """One number. ``value`` is None when it could not be computed: ``arithmetic`` then says why.

    ``unit`` is ``bytes``, ``tokens``, ``requests``, ``blocks``, ``GPUs``, ``files``,
    ``connections``, or ``version`` of a value that is text. ``at_most`` when the engine takes
    something off that only it can measure.
    """

    name: str
    value: float | str | None
    unit: str
    arithmetic: str
    at_most: bool = False


@dataclass(frozen=True, slots=True)
class Report:
    """``place`` is where the model was found, "" for nowhere. All texts are of one line.

    ``problems`` keep the engine from starting, ``warnings`` do not. ``why`` nothing is said of the
    whole, "" when that needs no more words than the figures have.
    """

    place: str = ""
    verdict: Verdict = Verdict.NOT_COMPUTED
    figures: tuple[Figure, ...] = ()
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    why: str = ""
