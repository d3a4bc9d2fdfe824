"""Where a receiver is: addresses that are silent, of another family, or several of one name."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import httpcore

from tests.support.alerting import hook
from watchdog.notify.deadline import Deadline, DeadlineBackend
from watchdog.notify.post import post


@contextlib.contextmanager
def silent(address: str, port: int) -> Iterator[None]:
    """Somebody who lets nobody in: whoever knocks gets no answer."""
    with contextlib.ExitStack() as held:
        server = held.enter_context(socket.socket())
        server.bind((address, port))
        server.listen(0)
        for _ in range(8):
            knocks = held.enter_context(socket.socket())
            knocks.settimeout(0.0)
            knocks.connect_ex((address, port))
        yield


def test_an_address_of_ipv6_is_an_address() -> None:
    """FACT: in brackets in the URL and in the header, and not looked up as a name."""
    with hook() as there:
        port = int(there.url.rpartition(":")[2])
    assert post(f"http://[::1]:{port}/", {}, b"{}", 5.0) in {"refused", "error"}


def test_one_silent_address_of_a_name_is_not_all() -> None:
    """FACT: each has its share of the deadline, so that the next one is asked in time."""
    with contextlib.ExitStack() as held:
        there = held.enter_context(hook())
        port = int(there.url.rpartition(":")[2])
        held.enter_context(silent("127.0.0.2", port))
        backend = DeadlineBackend(Deadline(2.0), lambda _host, _port: ("127.0.0.2", "127.0.0.1"))
        pool = held.enter_context(httpcore.ConnectionPool(network_backend=backend))
        reply = pool.request("POST", f"http://name.invalid:{port}/", content=b"{}")
        assert reply.status == 200
        assert len(there.got) == 1
