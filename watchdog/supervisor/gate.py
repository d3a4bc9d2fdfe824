"""What must hold before an engine is started: named steps, each a refusal or nothing."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from watchdog import procfs
from watchdog.contracts import ActionError, Endpoint
from watchdog.core.model import Cause


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why nothing may be started now, in one line that starts "cannot …"."""

    cause: Cause
    explanation: str


Step = Callable[[], Refusal | None]


@dataclass(frozen=True, slots=True)
class GateStep:
    """A named condition of a start."""

    name: str
    look: Step


def pass_gate(steps: Iterable[GateStep]) -> None:
    """Take the steps in order; raises ActionError at the first refusal."""
    for step in steps:
        refusal = step.look()
        if refusal is not None:
            raise ActionError(refusal.explanation, refusal.cause)


def port_free(endpoint: Endpoint) -> Refusal | None:
    """Refuses while somebody listens on the engine's port, and names who.

    What else binding may report (no such address, no name service) is the engine's to say.
    """
    if endpoint.uds or not endpoint.port:
        return None
    try:
        _bind(endpoint.host, endpoint.port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return Refusal(Cause.PORT_IN_USE, _taken(endpoint.port))
        if error.errno == errno.EACCES:
            text = f"cannot bind port {endpoint.port}: permission denied"
            return Refusal(Cause.BAD_ARGUMENTS, text)
    return None


def _bind(host: str, port: int) -> None:
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)


def _taken(port: int) -> str:
    owner = procfs.listening_owner(port)
    who = f"process {owner[0]} ({owner[1]}) listens there" if owner else "its owner is not visible"
    return f"cannot use port {port}: {who}"
