"""What engine probes look at, made of plain values, and servers that mean harm."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import BinaryIO

from watchdog.contracts import (
    Endpoint,
    EngineLook,
    EngineTarget,
    FirstGood,
    LogPlace,
    Owned,
    Owner,
    ProcessInfo,
)
from watchdog.core.model import ProcessState, Sampled, Unread, Value


@dataclass
class Target:
    """An engine as the core and the supervisor would show it; every field can be set anew."""

    endpoint: Endpoint
    name: str = "main"
    now: EngineLook = field(
        default_factory=lambda: EngineLook(generation="g1", state=ProcessState.RUNNING)
    )
    living: tuple[ProcessInfo, ...] = ()
    logged: int | None = None
    log: LogPlace | None = None
    expects: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    good: FirstGood | None = None

    def look(self) -> EngineLook:
        """The current view."""
        return self.now

    def processes(self) -> tuple[ProcessInfo, ...]:
        """The set."""
        return self.living

    def log_bytes(self) -> int | None:
        """Size of the log."""
        return self.logged

    def log_place(self) -> LogPlace | None:
        """Where the log is."""
        return self.log

    def first_good(self) -> FirstGood | None:
        """What its model was."""
        return self.good


def engines(*names: str) -> tuple[Target, ...]:
    """Engines of these names."""
    return tuple(Target(Endpoint("127.0.0.1", 1), name=name) for name in names)


@dataclass
class Engines:
    """A box with engines and the owners of pids."""

    targets: tuple[Target, ...] = field(default_factory=lambda: engines("main"))
    owners: Mapping[int, Owned] = field(default_factory=dict)
    state_dir: str = ""

    def engines(self) -> tuple[EngineTarget, ...]:
        """As given."""
        return self.targets

    def owner(self, pid: int) -> Owned:
        """As given; everybody else cannot be seen."""
        return self.owners.get(pid, Owned(Owner.UNKNOWN))


def values(read: object) -> dict[str, Value]:
    """Samples without labels by name; an Unread fails the test."""
    assert isinstance(read, list)
    assert not [item for item in read if isinstance(item, Unread)]
    return {s.sample: s.value for s in read if isinstance(s, Sampled) and not s.labels}


def errors(read: object) -> list[str]:
    """What could not be read."""
    assert isinstance(read, list)
    return [item.error for item in read if isinstance(item, Unread)]


@dataclass
class Raw:
    """A server that answers each connection with a function of its own making."""

    port: int
    accepted: list[socket.socket] = field(default_factory=list)

    @property
    def endpoint(self) -> Endpoint:
        """Where it listens."""
        return Endpoint("127.0.0.1", self.port, served_name="m")


@contextlib.contextmanager
def raw_server(talk: Callable[[socket.socket], None]) -> Iterator[Raw]:
    """A listening server; each connection is given to ``talk`` in a thread of its own."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = Raw(listener.getsockname()[1])

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                server.accepted.append(connection)
                threading.Thread(target=quiet, args=(connection,), daemon=True).start()

        def quiet(connection: socket.socket) -> None:
            with contextlib.suppress(OSError, ValueError), connection:
                talk(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            thread.join()
            for connection in server.accepted:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)


def requests(connection: socket.socket) -> Iterator[bytes]:
    """The requests of a connection, one after the other, head and body together."""
    with connection.makefile("rb") as stream:
        while head := _head(stream):
            length = 0
            for line in head.lower().splitlines():
                if line.startswith(b"content-length:"):
                    length = int(line.split(b":")[1])
            yield head + b"\r\n" + stream.read(length)


def _head(stream: BinaryIO) -> bytes:
    """The lines up to the empty one; nothing when the connection ended."""
    lines = []
    while (line := stream.readline()) != b"\r\n":
        if not line:
            return b""
        lines.append(line)
    return b"".join(lines)


def answered(status: int, body: bytes = b"") -> bytes:
    """An answer with a length."""
    return b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%s" % (status, len(body), body)


def black_hole(connection: socket.socket) -> None:
    """Take everything and say nothing."""
    while connection.recv(65536):
        pass
