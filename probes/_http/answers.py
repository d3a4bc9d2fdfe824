"""What comes back from one request: an answer, or the kind of trouble in its place."""

from dataclasses import dataclass
from enum import StrEnum

from watchdog.core.model import Seconds


class Trouble(StrEnum):
    """Why there is no answer. Carries no text: nothing of a request can leak through it."""

    TIMEOUT = "timeout"
    """The deadline came first, at whatever step. Says nothing about why."""
    REFUSED = "refused"
    """Nobody listens."""
    ERROR = "error"
    """The connection broke, or what came is no HTTP."""
    TOO_LARGE = "too_large"
    """More bytes came than the caller allowed."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer, whatever its status. ``seconds`` is how long it took, connecting included."""

    status: int
    body: bytes
    seconds: Seconds
