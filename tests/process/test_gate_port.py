"""The port step: whose process is where an engine is to listen, and in which words."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.engines import Engines
from tests.support.simulated import free_port, until
from watchdog import procfs, registry
from watchdog.contracts import Endpoint, Owned, Owner
from watchdog.core.model import Cause
from watchdog.daemon.gates import Gates
from watchdog.supervisor.gate import GateVerdict, Refusal, port_free

ME = os.getpid()


@pytest.fixture
def taken() -> Iterator[Endpoint]:
    """A port that this process listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield Endpoint("127.0.0.1", listener.getsockname()[1])


def comm() -> str:
    """What this process is called."""
    info = procfs.stat(ME)
    assert info is not None
    return info.comm


@pytest.mark.parametrize(
    ("owned", "words", "cause", "verdict"),
    [
        (Owned(Owner.FOREIGN), "", Cause.PORT_IN_USE, GateVerdict.FOREIGN_OWNER),
        (Owned(Owner.UNKNOWN), "", Cause.PORT_IN_USE, GateVerdict.PORT_TAKEN),
        (
            Owned(Owner.ORPHAN, "b"),
            " of an older start of b",
            Cause.PORT_IN_USE,
            GateVerdict.ORPHAN_OF_OURS,
        ),
        (
            Owned(Owner.ENGINE, "main"),
            " of an older start of main",
            Cause.PORT_IN_USE,
            GateVerdict.ORPHAN_OF_OURS,
        ),
        (Owned(Owner.ENGINE, "b"), " of engine b", Cause.PLACE_TAKEN, GateVerdict.PLACE_TAKEN),
    ],
)
def test_whose_the_listener_is(
    taken: Endpoint, owned: Owned, words: str, cause: Cause, verdict: GateVerdict
) -> None:
    """FACT: the process is named, and what it is to us decides cause and verdict."""
    box = Engines((), {ME: owned})
    text = f"cannot use port {taken.port}: process {ME} ({comm()}){words} listens there"
    assert port_free(taken, "main", box.owner) == Refusal(cause, text, verdict)


def test_a_free_port_passes() -> None:
    """FACT: neither a free port nor one that is not known is refused."""
    assert port_free(Endpoint("127.0.0.1", free_port())) is None
    assert port_free(Endpoint("127.0.0.1", 0)) is None


def test_without_a_box_a_listener_is_named_all_the_same(taken: Endpoint) -> None:
    """FACT: where nobody knows whose processes are, the port is just taken."""
    refusal = port_free(taken)
    assert refusal is not None
    assert refusal.verdict is GateVerdict.PORT_TAKEN
    assert f"process {ME} " in refusal.explanation


@pytest.fixture
def path() -> Iterator[str]:
    """Where a Unix socket may be."""
    with tempfile.TemporaryDirectory(prefix="uds") as folder:
        yield str(Path(folder) / "engine.sock")


@contextlib.contextmanager
def listening(path: str, backlog: int = 5) -> Iterator[socket.socket]:
    """This process listens at the path."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(backlog)
        yield listener


def test_a_unix_socket_that_is_listened_on_is_taken(path: str) -> None:
    """FACT: who listens on it is named, as on a port."""
    endpoint = Endpoint("127.0.0.1", 8000, uds=path)
    assert port_free(endpoint) is None
    box = Engines((), {ME: Owned(Owner.FOREIGN)})
    with listening(path):
        refusal = port_free(endpoint, "main", box.owner)
    text = f"cannot use {path}: process {ME} ({comm()}) listens there"
    assert refusal == Refusal(Cause.PORT_IN_USE, text, GateVerdict.FOREIGN_OWNER)


def test_a_unix_socket_of_nobody_is_free(path: str) -> None:
    """FACT: a file that a dead engine left is not taken, nor is what is no socket."""
    endpoint = Endpoint("127.0.0.1", 8000, uds=path)
    with listening(path):
        pass
    assert port_free(endpoint) is None
    Path(path).unlink()
    Path(path).write_text("x")
    assert port_free(endpoint) is None


def test_a_unix_socket_that_is_bound_and_not_listened_on_is_taken(path: str) -> None:
    """FACT: vLLM binds first and listens when it is ready; meanwhile the path is taken too."""
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(path)
        refusal = port_free(Endpoint("127.0.0.1", 8000, uds=path))
    assert refusal is not None
    assert refusal.verdict is GateVerdict.UNSEEN_OWNER


@pytest.mark.root
def test_a_socket_of_another_network_namespace_is_taken(path: str) -> None:
    """FACT: it is in no table of ours; what the kernel says to a connection counts alone."""
    text = (
        "import socket, sys, time\ns = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\n"
        f"s.bind({path!r}); print('x', flush=True); time.sleep(600)"
    )
    command = ["unshare", "--net", sys.executable, "-ISc", text]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.read(1) == b"x"
            assert port_free(Endpoint("127.0.0.1", 8000, uds=path)) is not None
        finally:
            process.kill()


def test_a_full_queue_holds_up_nobody(path: str) -> None:
    """FACT: a listener that accepts nothing is there all the same, and is not waited for."""
    with listening(path, backlog=0), contextlib.ExitStack() as stack:
        for _ in range(4):
            client = stack.enter_context(socket.socket(socket.AF_UNIX))
            client.setblocking(False)  # noqa: FBT003 - the name of the method says it
            with contextlib.suppress(BlockingIOError):
                client.connect(path)
        refusal = port_free(Endpoint("127.0.0.1", 8000, uds=path))
    assert refusal is not None


def test_the_listener_and_not_its_heir_is_named(path: str) -> None:
    """FACT: a real other process that listens on the path is named by its pid."""
    text = (
        "import socket, sys, time\ns = socket.socket(socket.AF_UNIX)\n"
        f"s.bind({path!r}); s.listen(); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-ISc", text]) as process:
        try:
            endpoint = Endpoint("127.0.0.1", 8000, uds=path)
            refusal = until(lambda: port_free(endpoint))
        finally:
            process.kill()
    assert refusal is not None
    assert f"process {process.pid} (" in refusal.explanation


def test_a_place_is_waited_for_in_words_and_not_for_ever() -> None:
    """FACT: another engine of ours in the way is waited for visibly; one that stays refuses."""
    gates = Gates(registry.probes(), Engines(()), {}, patience=lambda: patience)
    patience, other = 600.0, "b"
    step = gates.place("main", lambda: other or None)
    with ThreadPoolExecutor(1) as pool:
        passing = pool.submit(step.look)
        until(lambda: gates.waiting("main") == "engine b to leave its place, for 0 s")
        other = ""
        assert passing.result(30) is None
    assert gates.waiting("main") is None
    patience, other = 0.05, "b"
    text = "cannot start main: b has not left its place yet"
    assert step.look() == Refusal(Cause.PLACE_TAKEN, text, GateVerdict.PLACE_TAKEN)
