"""``VLLM::APIServer_N``: the processes that take the connections with ``--api-server-count``.

They share the listening socket and hand each connection through to the leader, which serves HTTP
on an inner port. Like vLLM's they outlive a leader that was killed, and go on holding the port; one
that dies takes everything down.
"""

import contextlib
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable
from typing import NoReturn

from watchdog.simulator.offspring import close_all_but
from watchdog.simulator.titles import set_title

_PIECE = 1 << 16
_CONNECT_PATIENCE = 2.0
_LOOK_PERIOD = 0.02


class ApiServers:
    """The processes, as the leader sees them."""

    def __init__(self, count: int, listener: socket.socket, inner_port: int) -> None:
        """Fork them; before the leader has threads."""
        self._pidfds = [_fork(number, listener, inner_port) for number in range(count)]
        listener.close()

    def watch(self, on_death: Callable[[int], None]) -> None:
        """Call with the number of the first that dies, from a thread of its own."""

        def wait() -> None:
            died = select.select(self._pidfds, [], [])[0][0]
            on_death(self._pidfds.index(died))

        threading.Thread(target=wait, daemon=True).start()

    def kill(self) -> None:
        """SIGKILL to all."""
        for pidfd in self._pidfds:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)


def _fork(number: int, listener: socket.socket, inner_port: int) -> int:
    pid = os.fork()
    if pid == 0:
        _run(number, listener, inner_port)
    return os.pidfd_open(pid)


def _run(number: int, listener: socket.socket, inner_port: int) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    close_all_but(listener.fileno())
    set_title(f"VLLM::APIServer_{number}")
    while True:
        try:
            client, _ = listener.accept()
        except OSError:
            time.sleep(_LOOK_PERIOD)  # out of descriptors
            continue
        threading.Thread(target=_pass_on, args=(client, inner_port), daemon=True).start()


def _pass_on(client: socket.socket, inner_port: int) -> None:
    with contextlib.suppress(OSError), client, _connected(inner_port) as server:
        ends = {client: server, server: client}
        while True:
            for end in select.select(list(ends), [], [])[0]:
                piece = end.recv(_PIECE)
                if not piece:
                    return
                ends[end].sendall(piece)


def _connected(port: int) -> socket.socket:
    """The leader begins to listen a moment after its API servers do."""
    deadline = time.monotonic() + _CONNECT_PATIENCE
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port))
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_LOOK_PERIOD)
