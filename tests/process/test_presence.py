"""Who is taken for an engine that somebody else starts: never a stranger, never several at once."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.simulated import free_port, until
from watchdog import procfs
from watchdog.contracts import Endpoint
from watchdog.supervisor import presence

SERVER = """
import os, socket, sys, time
for place in sys.argv[1:]:
    forked, _, place = place.rpartition("@")
    if forked and os.fork():
        continue
    host, _, port = place.rpartition(":")
    listener = socket.create_server((host, int(port)))
    if forked:
        break
time.sleep(600)
"""
"""Listens at HOST:PORT; at ``fork@HOST:PORT`` a child of the same words does."""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """An engine's program."""
    path = tmp_path / "serve.py"
    path.write_text(SERVER)
    return path


@contextlib.contextmanager
def listening(program: Path, *places: str) -> Iterator[int]:
    """The pid of a process that listens at ``places``, with all its children."""
    process = subprocess.Popen([sys.executable, program, *places], start_new_session=True)
    try:
        for place in places:
            until(functools.partial(_listens, place.rpartition("@")[2]))
        yield process.pid
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _listens(place: str) -> bool:
    host, _, port = place.rpartition(":")
    return procfs.is_listened_on(int(port), host=host)


def look(program: Path, port: int, host: str = "127.0.0.1") -> presence.Presence:
    """What one look finds at ``host``."""
    return presence.look(Endpoint(host, port), (sys.executable, str(program)))


def test_who_listens_on_another_address_is_somebody_else(program: Path) -> None:
    """FACT: the same program and port on 127.0.0.2 is not the engine on 127.0.0.1."""
    port = free_port()
    with listening(program, f"127.0.0.2:{port}") as other:
        assert look(program, port) == presence.Presence()
        found = look(program, port, "127.0.0.2").leader
        assert found is not None
        assert found.pid == other
        with listening(program, f"127.0.0.1:{port}") as engine:
            found = look(program, port).leader
            assert found is not None
            assert found.pid == engine


def test_who_listens_everywhere_counts_where_nobody_does_exactly(program: Path) -> None:
    """FACT: a wildcard of either version is found by an address and by a name."""
    for place in ("0.0.0.0", "::"):  # noqa: S104 - what it is about
        port = free_port()
        with listening(program, f"{place}:{port}") if place != "::" else dual(program, port) as pid:
            for host in ("127.0.0.1", "localhost"):
                found = look(program, port, host).leader
                assert found is not None
                assert found.pid == pid


@contextlib.contextmanager
def dual(program: Path, port: int) -> Iterator[int]:
    """A listener on all addresses of both versions."""
    text = program.read_text().replace(
        "create_server((host, int(port)))",
        "create_server((host, int(port)), family=socket.AF_INET6, dualstack_ipv6=True)",
    )
    program.write_text(text)
    with listening(program, f":::{port}") as pid:
        yield pid


def test_of_several_that_share_an_address_nobody_is_taken(program: Path) -> None:
    """FACT: two processes that bind the same address and port are named, and none is the engine."""
    port = free_port()
    text = program.read_text().replace("int(port)))", "int(port)), reuse_port=True)")
    program.write_text(text)
    place = f"127.0.0.1:{port}"
    with listening(program, place) as one, listening(program, place) as two:
        until(lambda: "several" in look(program, port).why)
        seen = look(program, port)
        assert (seen.leader, seen.serves) == (None, False)
        assert seen.why.startswith(f"several listen on port {port}: process ")
        assert all(f"process {pid} (" in seen.why for pid in (one, two))


def test_a_launcher_of_several_engines_is_no_engine(program: Path) -> None:
    """FACT: whoever has started another engine with its own words is not ended for one of them."""
    port, other = free_port(), free_port()
    places = (f"fork@127.0.0.1:{port}", f"fork@127.0.0.1:{other}")
    with listening(program, *places) as launcher:
        seen = look(program, port)
        assert (seen.leader, seen.serves, seen.shared) == (None, False, True)
        assert seen.why.startswith(f"process {launcher} (")
        assert seen.why.endswith(f"listens on port {other}")


def test_a_launcher_of_one_engine_is_its_first_process(program: Path) -> None:
    """FACT: the parent of the same words whose only child serves leads the engine."""
    port = free_port()
    with listening(program, f"fork@127.0.0.1:{port}") as launcher:
        found = look(program, port).leader
        assert found is not None
        assert found.pid == launcher


def test_an_argument_and_a_shell_name_no_engine(program: Path) -> None:
    """FACT: a program that the command has as an argument is a stranger on the port."""
    port = free_port()
    with listening(program, f"127.0.0.1:{port}"):
        command = ("vllm", "serve", "m", "--backend", "serve.py", "python3")
        seen = presence.look(Endpoint("127.0.0.1", port), command)
        assert seen.leader is None
        assert "does not run the engine's program" in seen.why
