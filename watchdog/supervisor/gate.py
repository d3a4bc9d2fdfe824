"""What must hold before an engine is started: named steps, each a refusal or nothing."""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from watchdog import procfs
from watchdog.contracts import ActionError, Endpoint, Owned, Owner
from watchdog.core.model import Cause, Seconds
from watchdog.supervisor import sockets

_OLD: Seconds = 2.0
"""What was looked at before a step that took longer is looked at again: meanwhile anything may
have taken the port."""
_ROUNDS = 3


class GateVerdict(StrEnum):
    """Why nothing is started, as evidence and documents spell it."""

    SET_NOT_EMPTY = "set_not_empty"
    ORPHAN_OF_OURS = "orphan_of_ours"
    FOREIGN_OWNER = "foreign_owner"
    UNSEEN_OWNER = "unseen_owner"
    NO_VISIBLE_OWNER = "no_visible_owner"
    PORT_TAKEN = "port_taken"
    PORT_FORBIDDEN = "port_forbidden"
    PLACE_TAKEN = "place_taken"
    DRIVER_UNFIT = "driver_unfit"
    MODEL_CHANGED = "model_changed"
    DISK_SHORT = "disk_short"
    SHM_SHORT = "shm_short"
    STOPPING = "stopping"
    NOT_WANTED = "not_wanted"
    PRE_START_FAILED = "pre_start_failed"
    REFUSED = "refused"


ADVICE: Mapping[GateVerdict, str] = MappingProxyType(
    {
        GateVerdict.SET_NOT_EMPTY: "stop the engine first: something of an earlier start lives",
        GateVerdict.ORPHAN_OF_OURS: (
            "stop the engine that it belongs to; if it stays, end that process by its pid"
        ),
        GateVerdict.FOREIGN_OWNER: (
            "find out whose process it is and end it, or give the engine another place: "
            "the watchdog ends no stranger"
        ),
        GateVerdict.UNSEEN_OWNER: (
            "look on the host, or in the other containers: the watchdog cannot see that process"
        ),
        GateVerdict.NO_VISIBLE_OWNER: (
            "look for processes in other containers; if there are none, the driver holds the "
            "memory until the GPU is reset or the machine rebooted"
        ),
        GateVerdict.PORT_TAKEN: "find out who uses the port, or give the engine another one",
        GateVerdict.PORT_FORBIDDEN: (
            "give the engine a port from 1024 on, or the watchdog the right to bind this one"
        ),
        GateVerdict.PLACE_TAKEN: (
            "stop the other engine, or give the two different ports and cards"
        ),
        GateVerdict.DRIVER_UNFIT: (
            "update the driver, or reboot to finish its update, or use an older vLLM"
        ),
        GateVerdict.MODEL_CHANGED: (
            "check that the model's files are what you want, then accept the change"
        ),
        GateVerdict.DISK_SHORT: "free space or inodes on the file system that is named",
        GateVerdict.SHM_SHORT: (
            "free /dev/shm or make it larger: --shm-size or --ipc=host for a container"
        ),
        GateVerdict.STOPPING: "nothing: the watchdog ends, the next one starts the engine",
        GateVerdict.NOT_WANTED: "nothing: the engine was told to stop while it waited",
        GateVerdict.PRE_START_FAILED: "run the hook by hand: its words are in the engine's log",
        GateVerdict.REFUSED: "see the explanation",
    }
)
"""What the engineer on call does about it, in a sentence."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why nothing may be started now, in one line that starts "cannot …".

    ``advice`` replaces that of the verdict.
    """

    cause: Cause
    explanation: str
    verdict: GateVerdict = GateVerdict.REFUSED
    advice: str = ""

    @property
    def what_to_do(self) -> str:
        """The sentence for the engineer on call."""
        return self.advice or ADVICE[self.verdict]


Step = Callable[[], Refusal | None]


@dataclass(frozen=True, slots=True)
class GateStep:
    """A named condition of a start. With ``again`` it may be looked at more than once a start."""

    name: str
    look: Step
    again: bool = False


def pass_gate(steps: Iterable[GateStep], old: Seconds = _OLD) -> None:
    """Take the steps in order; raises ActionError at the first refusal.

    After a step that took more than ``old`` seconds those before it that may be are taken again,
    and once more when that took so long too, a few times at most.
    """
    taken: list[GateStep] = []
    for step in steps:
        if _slow([step], old):
            _take_again(taken, old)
        if step.again:
            taken.append(step)


def _take_again(steps: Iterable[GateStep], old: Seconds) -> None:
    for _ in range(_ROUNDS):
        if not _slow(steps, old):
            return


def _slow(steps: Iterable[GateStep], old: Seconds) -> bool:
    """Take them; whether that took more than ``old`` seconds."""
    began = time.monotonic()
    for step in steps:
        _take(step)
    return time.monotonic() - began > old


def _take(step: GateStep) -> None:
    refusal = step.look()
    if refusal is not None:
        evidence = (
            ("gate", step.name),
            ("verdict", refusal.verdict.value),
            ("advice", refusal.what_to_do),
        )
        raise ActionError(refusal.explanation, refusal.cause, evidence=evidence)


Whose = Callable[[int], Owned]
"""Whose a process is, as ``contracts.Box.owner`` tells."""


def port_free(endpoint: Endpoint, engine: str = "", whose: Whose | None = None) -> Refusal | None:
    """Refuses while somebody listens where ``engine`` is to listen, and names who.

    What else binding may report (no such address, no name service) is the engine's to say.
    """
    if endpoint.uds:
        pid = sockets.listener(endpoint.uds)
        if pid is None:
            return None
        return _taken(endpoint.uds, (pid, _comm(pid)) if pid else None, engine, whose)
    if not endpoint.port:
        return None
    try:
        _bind(endpoint.host, endpoint.port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            owner = procfs.listening_owner(endpoint.port)
            return _taken(f"port {endpoint.port}", owner, engine, whose)
        if error.errno == errno.EACCES:
            text = f"cannot bind port {endpoint.port}: permission denied"
            return Refusal(Cause.BAD_ARGUMENTS, text, GateVerdict.PORT_FORBIDDEN)
    return None


def _bind(host: str, port: int) -> None:
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)


def _taken(
    where: str,
    owner: tuple[int, str] | None,
    engine: str,
    whose: Whose | None,
) -> Refusal:
    """The refusal that names the owner, and says what he is to us."""
    cause, start = Cause.PORT_IN_USE, f"cannot use {where}"
    if owner is None:
        text = f"{start}: its owner is not visible"
        return Refusal(cause, text, GateVerdict.UNSEEN_OWNER)
    who = f"process {owner[0]} ({owner[1]})"
    owned = Owned(Owner.UNKNOWN) if whose is None else whose(owner[0])
    if owned.owner is Owner.ORPHAN or (owned.owner is Owner.ENGINE and owned.engine == engine):
        text = f"{start}: {who} of an older start of {owned.engine} listens there"
        return Refusal(cause, text, GateVerdict.ORPHAN_OF_OURS)
    if owned.owner is Owner.ENGINE:
        text = f"{start}: {who} of engine {owned.engine} listens there"
        return Refusal(Cause.PLACE_TAKEN, text, GateVerdict.PLACE_TAKEN)
    foreign = owned.owner is Owner.FOREIGN
    verdict = GateVerdict.FOREIGN_OWNER if foreign else GateVerdict.PORT_TAKEN
    return Refusal(cause, f"{start}: {who} listens there", verdict)


def _comm(pid: int) -> str:
    info = procfs.stat(pid)
    return "" if info is None else info.comm
