"""The table of faults: what each one does, which value it takes and when it can be set.

Every fault is named on the command line (``--fault NAME[=VALUE]``) or at run time
(``POST /simulator/fault``). Nothing outside this module parses a fault.
"""

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never


class FaultError(ValueError):
    """A fault that does not exist, does not fit the moment, or has a value that makes no sense."""


class Takes(StrEnum):
    """What may stand behind the ``=``."""

    NOTHING = "nothing"
    SECONDS = "seconds"
    NUMBER = "number"
    RANK = "rank, all when left out"
    LIFETIME = "seconds, 3600 when left out"


class When(StrEnum):
    """The moments at which a fault can be set."""

    START = "start"
    RUN = "run"
    BOTH = "start, run"


@dataclass(frozen=True, slots=True)
class Fault:
    """One row of the table."""

    name: str
    takes: Takes
    when: When
    help: str


def _row(name: str, takes: Takes, when: When, help_text: str) -> Fault:
    return Fault(name, takes, when, help_text)


_N, _S, _R = Takes.NOTHING, Takes.SECONDS, Takes.RANK
_START, _BOTH = When.START, When.BOTH

_ROWS = (
    _row("never_ready", _N, _START, "the engine loads, but the port never listens"),
    _row("slow_start", _S, _START, "loading takes so long; log and memory grow all the while"),
    _row("silent_start", _N, _START, "loading hangs at once, without a log line"),
    _row("nccl_hang", _N, _START, "loading hangs in the NCCL rendezvous"),
    _row("port_in_use", _N, _START, "exit 1: address already in use"),
    _row("model_missing", _N, _START, "exit 1: the model cannot be found"),
    _row("bad_argument", _N, _START, "exit 2: unrecognized argument, as argparse does"),
    _row("driver_803", _N, _START, "exit 1: CUDA error 803, driver does not fit"),
    _row("compat_804", _N, _START, "exit 1: CUDA error 804, forward compatibility"),
    _row("memory_short", _N, _START, "exit 1: free GPU memory below the desired utilization"),
    _row("cuda_oom", _N, _BOTH, "CUDA out of memory: exit 1 in the start, engine death later"),
    _row("hang", _R, _BOTH, "EngineCore stops itself (SIGSTOP); cleared by SIGCONT"),
    _row("hang_worker", _R, _BOTH, "the workers stop themselves (SIGSTOP); cleared by SIGCONT"),
    _row("saturate", _N, _BOTH, "/health and requests never answer, other traffic's tokens flow"),
    _row("spin", _N, _BOTH, "EngineCore burns CPU, requests stay running, no token comes"),
    _row("compile", _S, _BOTH, "the next request waits so long for a ptxas below EngineCore"),
    _row("prefill", _S, _BOTH, "every request prefills so long; only the KV cache usage moves"),
    _row("sleeping", _N, _BOTH, "the engine sleeps: sleep state set, requests wait"),
    _row("ignore_term", _N, _BOTH, "the leader ignores SIGTERM"),
    _row("leave_orphans", _N, _BOTH, "the leader leaves its children alive when it exits"),
    _row("double_fork", Takes.LIFETIME, _BOTH, "a detached descendant in a session of its own"),
    _row("crash_after", _S, _BOTH, "the leader exits 1 (or exit_code) after so long"),
    _row("exit_zero_after", _S, _BOTH, "the leader exits 0 after so long"),
    _row(
        "exit_code",
        Takes.NUMBER,
        _BOTH,
        "the status of crash_after; alone: exit with it at once",
    ),
    _row("kill_core_after", _S, _BOTH, "EngineCore is killed (SIGKILL) after so long"),
    _row("keep_alive", _N, _BOTH, "the leader never exits after the death of its engine"),
    _row("bad_metrics", _N, _BOTH, "/metrics is noise"),
    _row("huge_metrics", Takes.NUMBER, _BOTH, "/metrics has so many bytes more"),
    _row("slow_answers", _N, _BOTH, "every answer comes one byte a second, headers included"),
    _row("endless_answers", _N, _BOTH, "every answer has a body without an end"),
    _row("no_answer", _N, _BOTH, "connections are accepted and never answered"),
    _row("health_503", _N, _BOTH, "/health and /ping answer 503"),
)

_TOO_LARGE = 1e12

FAULTS: Mapping[str, Fault] = {row.name: row for row in _ROWS}

Value = bool | int | float
"""``True`` for a fault without a value, else seconds, bytes, a rank or an exit status."""

LEADER_TIMERS = ("crash_after", "exit_zero_after", "kill_core_after")
CORE_FAULTS = frozenset(
    (
        "hang",
        "hang_worker",
        "saturate",
        "spin",
        "compile",
        "prefill",
        "sleeping",
        "double_fork",
        "cuda_oom",
    ),
)


def parse(text: str, moment: When) -> tuple[str, Value]:
    """Read ``NAME[=VALUE]``; raises FaultError."""
    name, equals, value = text.partition("=")
    return checked(name, value if equals else None, moment)


def checked(name: str, value: object, moment: When) -> tuple[str, Value]:
    """The fault and its value in the right type; raises FaultError with one line."""
    fault = FAULTS.get(name)
    if fault is None:
        raise FaultError(f"unknown fault {name!r}: choose from {', '.join(FAULTS)}")
    if moment is When.RUN and fault.when is When.START:
        raise FaultError(f"fault {name} applies only at the start")
    return name, _value(fault, value)


def _value(fault: Fault, value: object) -> Value:
    match fault.takes:
        case Takes.NOTHING:
            if _absent(value):
                return True
            raise FaultError(f"fault {fault.name} takes no value")
        case Takes.SECONDS:
            return _number(fault, value)
        case Takes.LIFETIME:
            return 3600.0 if _absent(value) else _number(fault, value)
        case Takes.NUMBER:
            return int(_number(fault, value))
        case Takes.RANK:
            return True if _absent(value) else int(_number(fault, value))
        case _:
            assert_never(fault.takes)


def _absent(value: object) -> bool:
    """No value; not by equality, because rank 1 equals True."""
    return value is None or value is True


def _number(fault: Fault, value: object) -> float:
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        try:
            number = float(value)
        except ValueError:
            number = -1.0
        if 0 <= number < _TOO_LARGE:
            return number
    raise FaultError(f"fault {fault.name} needs a number ({fault.takes}), not {value!r}")


def table() -> str:
    """The table as text, for ``--help``."""
    return "\n".join(f"  {f.name:<16} [{f.when}; {f.takes}] {f.help}" for f in FAULTS.values())


def concerns(value: Value, rank: int) -> bool:
    """Whether a fault with an optional rank means this engine."""
    return value is True or value == rank


class Board:
    """The faults in force; shared by the threads of the leader."""

    def __init__(self, faults: Mapping[str, Value]) -> None:
        self._lock = threading.Lock()
        self._active: dict[str, Value] = dict(faults)

    def has(self, name: str) -> bool:
        """Whether the fault is in force."""
        return name in self._active

    def value(self, name: str) -> Value | None:
        """The fault's value, None when it is not in force."""
        return self._active.get(name)

    def put(self, name: str, value: Value) -> None:
        """Put a checked fault in force."""
        with self._lock:
            self._active = {**self._active, name: value}

    def drop(self, name: str) -> Value | None:
        """Clear a fault; None when it was not in force."""
        with self._lock:
            rest = dict(self._active)
            value = rest.pop(name, None)
            self._active = rest
        return value

    def active(self) -> dict[str, Value]:
        """A snapshot."""
        return dict(self._active)

    def among(self, names: Iterable[str]) -> str | None:
        """The first of these names that is in force."""
        return next((name for name in names if name in self._active), None)
