"""Network namespaces of a test's own, with tracked connections and sockets over their loopback.

A namespace is that of one thread and ends with it: nothing is left behind, and no setting of the
machine is touched.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

_CLONE_NEWNET = 0x40000000
_SET_FLAGS, _SET_ADDRESS = 0x8914, 0x8916
_NETFILTER = 12
_REQUEST, _ACK, _EXCLUSIVE, _CREATE, _APPEND = 0x1, 0x4, 0x200, 0x400, 0x800
_TABLES, _TRACKING = 10, 1
_ASSURED = 2 | 4 | 8  # seen in both ways, assured, confirmed
_UDP = b"\x11"
_BATCH = 200
LIMIT = Path("/proc/sys/net/netfilter/nf_conntrack_max")
"""Of all namespaces; only the first one may change it, and no test does."""


class Namespace:
    """A network namespace with loopback up. What runs in it is run by its one thread."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, initializer=_enter)

    def run(self, work: Callable[[], T]) -> T:
        """What ``work`` returns, or raises, in the namespace."""
        return self._thread.submit(work).result()

    def set(self, name: str, value: str) -> None:
        """A sysctl of the namespace, ``ipv4/tcp_tw_reuse``."""
        self.run(lambda: Path("/proc/sys/net", name).write_text(value))

    def close(self) -> None:
        """End the thread, and with it the namespace."""
        self._thread.shutdown()

    @contextlib.contextmanager
    def process(self) -> Iterator[subprocess.Popen[bytes]]:
        """A process that lives in it and does nothing until it is ended."""
        command = [sys.executable, "-ISc", "import sys; sys.stdin.read()"]
        start: Callable[[], subprocess.Popen[bytes]]
        start = lambda: subprocess.Popen(command, stdin=subprocess.PIPE)  # noqa: E731
        with self.run(start) as process:
            try:
                yield process
            finally:
                process.kill()


@contextlib.contextmanager
def namespace() -> Iterator[Namespace]:
    """One for a test. Needs the rights of root."""
    made = Namespace()
    try:
        yield made
    finally:
        made.close()


def _enter() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "cannot make a network namespace")
    _tell_loopback(_SET_FLAGS, "lo", struct.pack("=H", 1))  # up


def address(host: str) -> None:
    """Give loopback one more address of IPv4: of this machine, and not one that all have."""
    where = struct.pack("=HH4s", socket.AF_INET, 0, socket.inet_aton(host))
    _tell_loopback(_SET_ADDRESS, "lo:1", where)


def _tell_loopback(request: int, name: str, what: bytes) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, request, struct.pack("16s24s", name.encode(), what))


def track() -> None:
    """Have the kernel track what goes out: a rule that asks for the state of each packet."""
    table, chain = _attribute(1, b"t\0"), b"out\0"
    hook = _nested(4, _attribute(1, _be32(3)), _attribute(2, _be32(0)))
    asks = _nested(2, _attribute(1, _be32(1)), _attribute(2, _be32(0)))
    rule = _nested(4, _nested(1, _attribute(1, b"ct\0"), asks))
    wanted = _REQUEST | _CREATE | _ACK
    bodies = (
        (0, wanted, table),
        (3, wanted, table + _attribute(3, chain) + hook + _attribute(7, b"filter\0")),
        (6, wanted | _APPEND, table + _attribute(2, chain) + rule),
    )
    said = [_message(16, _REQUEST, 0, _TABLES, b"")]
    said += [_message(_TABLES << 8 | what, how, 2, 0, body) for what, how, body in bodies]
    said.append(_message(17, _REQUEST, 0, _TABLES, b""))
    with _netfilter() as kernel:
        kernel.send(b"".join(said))
        for _ in bodies:
            code = -struct.unpack_from("=i", kernel.recv(4096), 16)[0]
            if code:
                raise OSError(code, os.strerror(code))


def established(count: int, first: int = 0) -> None:
    """Put ``count`` connections that have been answered into the table: none of them is evicted.

    Each goes to a loopback address of its own, from number ``first`` on.
    """
    here, state = _be32(0x7F000001), _attribute(3, _be32(_ASSURED)) + _attribute(7, _be32(600))
    with _netfilter() as kernel:
        messages = []
        for number in range(first, first + count):
            there = _be32(0x7F100000 + number)
            tuples = _tuple(1, here, there) + _tuple(2, there, here)
            how = _REQUEST | _CREATE | _EXCLUSIVE
            messages.append(_message(_TRACKING << 8, how, 2, 0, tuples + state))
            if len(messages) == _BATCH or number == first + count - 1:
                kernel.send(b"".join(messages))
                messages.clear()


def datagrams(count: int) -> int:
    """Send ``count`` datagrams, each to a loopback address of its own; how many were refused."""
    refused = 0
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.bind(("127.0.0.1", 0))
        for number in range(count):
            try:
                sender.sendto(
                    b"", (f"127.{64 + (number >> 16)}.{number >> 8 & 255}.{number & 255}", 9)
                )
            except PermissionError:
                refused += 1
    return refused


def closed(count: int, port: int, host: str = "127.0.0.1") -> int:
    """Open and close connections to a server of ours until one fails: how many of ``count`` did.

    The client closes first, so that it is its port that is kept.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, port), family=family) as server:
        for number in range(count):
            with socket.socket(family) as client:
                try:
                    client.connect((host, port))
                except OSError as error:
                    if error.errno != errno.EADDRNOTAVAIL:
                        raise
                    return number
                accepted, _ = server.accept()
            accepted.close()
    return count


@contextlib.contextmanager
def crowd(count: int, address: tuple[str, int]) -> Iterator[None]:
    """``count`` clients that want to connect, and do not wait until they are."""
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            client = stack.enter_context(socket.socket())
            client.setblocking(False)  # noqa: FBT003 - the name says it
            client.connect_ex(address)
        yield


def _tuple(kind: int, source: bytes, target: bytes) -> bytes:
    addresses = _nested(1, _attribute(1, source), _attribute(2, target))
    ports = _attribute(1, _UDP) + _attribute(2, b"\0\7") + _attribute(3, b"\0\7")
    return _nested(kind, addresses, _attribute(2 | 0x8000, ports))


def _netfilter() -> socket.socket:
    kernel = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETFILTER)
    kernel.settimeout(10)
    return kernel


def _be32(number: int) -> bytes:
    return struct.pack("!I", number)


def _attribute(kind: int, value: bytes) -> bytes:
    size = 4 + len(value)
    return struct.pack("=HH", size, kind) + value + bytes(-size % 4)


def _nested(kind: int, *parts: bytes) -> bytes:
    return _attribute(kind | 0x8000, b"".join(parts))


def _message(what: int, how: int, family: int, whose: int, body: bytes) -> bytes:
    rest = struct.pack("=BBH", family, 0, socket.htons(whose)) + body
    return struct.pack("=IHHII", 16 + len(rest), what, how, 0, 0) + rest
