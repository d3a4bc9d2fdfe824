"""Questions to the kernel about TCP sockets (sock_diag): of our own network namespace.

Cheaper than /proc/net/tcp, which writes a line of text for every socket that there is.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

from watchdog.core.model import Seconds

_SOCK_DIAG = 4
_BY_FAMILY = 20
_REQUEST, _DUMP = 1, 0x300
_TIME_WAIT, _LISTEN = 6, 10
_ANY_COOKIE = b"\xff" * 8
_HEAD = struct.Struct("=IHHII")
_QUESTION = struct.Struct("=BBBxI")
_QUEUES = struct.Struct("=II")
_STATE_AT, _PEER_AT, _OURS_AT, _THEIRS_AT, _PEER_END = 17, 22, 24, 40, 56
"""Offsets in an answer: its state; from there the far port, both addresses, and their end."""
_QUEUES_AT = 72
_SHORTEST = 80
_CHUNK = 1 << 16
_WIDTHS = {socket.AF_INET: 4, socket.AF_INET6: 16}


@dataclass(frozen=True, slots=True)
class Backlog:
    """Connections that nobody has accepted yet, and how many of them may wait."""

    waiting: int
    limit: int


@dataclass(frozen=True, slots=True)
class Busiest:
    """The far end that most sockets in TIME_WAIT belong to, and how many those are.

    ``loopback``: it is on this machine, by an address that no other can have.
    """

    peer: str
    sockets: int
    loopback: bool


def backlog(host: str, port: int, deadline: Seconds) -> Backlog | None:
    """Of the listener that a connection to ``host`` would reach; None when there is none.

    ``host`` is an address, or ``localhost``. Raises OSError.
    """
    for family, address in _addresses(host):
        here = struct.pack("!HH", port, 0) + address.ljust(16, b"\0") + bytes(20)
        for answer in _answers(family, 1 << _LISTEN, here + _ANY_COOKIE, 0, deadline):
            if answer[_STATE_AT] == _LISTEN:
                return Backlog(*_QUEUES.unpack_from(answer, _QUEUES_AT))
    return None


def busiest(total: int, deadline: Seconds) -> Busiest | None:
    """Of the ``total`` sockets in TIME_WAIT; None without any. Walks them all. Raises OSError.

    Ports run out for one pair of addresses and one far port. Where the far end is a client each
    socket has a far port of its own, so such a pair is never the one with most.
    """
    best = None
    for family in _WIDTHS:
        answers = _answers(family, 1 << _TIME_WAIT, bytes(48), _DUMP, deadline)
        counted = Counter(answer[_PEER_AT:_PEER_END] for answer in answers)
        for pair, count in counted.most_common(1):
            if best is None or count > best.sockets:
                best = _described(family, pair, count)
        if best is not None and 2 * best.sockets > total:  # the other family cannot have more
            break
    return best


def _described(family: socket.AddressFamily, pair: bytes, count: int) -> Busiest:
    """``127.0.0.1:8000``, ``[::1]:8000``; of an address of IPv4 in one of IPv6 the former."""
    start = _THEIRS_AT - _PEER_AT
    address = ipaddress.ip_address(pair[start : start + _WIDTHS[family]])
    if isinstance(address, ipaddress.IPv6Address):
        address = address.ipv4_mapped or address
    port = int.from_bytes(pair[: _OURS_AT - _PEER_AT], "big")
    words = f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"  # noqa: PLR2004
    return Busiest(words, count, address.is_loopback)


def _addresses(host: str) -> Iterator[tuple[socket.AddressFamily, bytes]]:
    names = ("127.0.0.1", "::1") if host == "localhost" else (host,)
    for name in names:
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            continue
        yield (socket.AF_INET if address.version == 4 else socket.AF_INET6), address.packed  # noqa: PLR2004


def _answers(
    family: int, states: int, place: bytes, flags: int, deadline: Seconds
) -> Iterator[bytes]:
    """The sockets that the kernel tells of, each as it writes it. Raises OSError."""
    body = _QUESTION.pack(family, socket.IPPROTO_TCP, 0, states) + place
    question = _HEAD.pack(_HEAD.size + len(body), _BY_FAMILY, _REQUEST | flags, 0, 0) + body
    kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC
    with closing(socket.socket(socket.AF_NETLINK, kind, _SOCK_DIAG)) as kernel:
        kernel.send(question)
        more = True
        while more:
            kernel.settimeout(max(deadline - time.monotonic(), 0.001))
            chunk = kernel.recv(_CHUNK)
            more = bool(flags) and bool(chunk)
            at = 0
            while at + _HEAD.size <= len(chunk):
                length, what, *_ = _HEAD.unpack_from(chunk, at)
                if what != _BY_FAMILY or length < _SHORTEST:  # the end, or an error
                    return
                yield chunk[at : at + length]
                at += (length + 3) & ~3
