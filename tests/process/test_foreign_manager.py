"""Somebody else runs our engine: it is seen, nothing is started on top, and nobody is signalled."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from probes.engine_port import EnginePort
from tests.support.daemon import Daemon, running, simulated_command
from tests.support.engines import Engines, Target, errors
from tests.support.simulated import ROOT, alive, free_port, session_members, until
from watchdog.contracts import Endpoint, EngineLook, Owned, Owner
from watchdog.core.model import ProcessState, Sampled
from watchdog.programs import runs

RULE = '[[rule]]\nname = "foreign-manager"\nclear_for = "2s"\n'
READY = 120.0
PORT = 8123
VLLM = ("vllm", "serve", "some/model", "--port", str(PORT))

LOOP = """
import subprocess, sys, time
while True:
    subprocess.run(sys.argv[1:])
    time.sleep(0.2)
"""
"""Stands for another supervisor: what it runs is run again whenever it ends."""


@dataclass
class Table:
    """A made-up /proc in which process 4242 listens on the engine's port; every part can change."""

    root: Path
    argv: tuple[str, ...] = ("/opt/bin/python3", "/opt/bin/vllm", "serve", "m")
    environ: tuple[str, ...] = ("HOME=/root",)
    ppid: int = 17
    listens: bool = True
    visible: bool = True
    owner: Owner = Owner.FOREIGN
    leaders: list[int | None] = field(default_factory=lambda: [None])

    def look(self, **place: Any) -> str | None:  # noqa: ANN401
        """What is said of it; None when nothing is."""
        self._process(4242, "python3", self.ppid)
        self._process(17, "supervisord", 1)
        row = f"   0: 0100007F:{PORT:04X} 00000000:0000 0A 00:0 00:0 0 0 0 777 1\n"
        (self.root / "net").mkdir(exist_ok=True)
        (self.root / "net" / "tcp").write_text("head\n" + (row if self.listens else ""))
        endpoint = Endpoint("127.0.0.1", **({"port": PORT} | place))
        target = Changing(endpoint, command=VLLM, leaders=self.leaders)
        box = Engines((target,), {4242: Owned(self.owner)})
        read = EnginePort(box, str(self.root)).read(0.0)
        assert errors(read) == []
        return next((str(s.value) for s in read if isinstance(s, Sampled)), None)

    def _process(self, pid: int, name: str, ppid: int) -> None:
        place = self.root / str(pid)
        (place / "fd").mkdir(parents=True)
        (place / "stat").write_text(f"{pid} ({name}) S {ppid} {pid} {pid} " + "0 " * 46)
        if pid == 4242:
            (place / "cmdline").write_bytes(b"\0".join(os.fsencode(a) for a in self.argv))
            (place / "environ").write_bytes(b"\0".join(os.fsencode(e) for e in self.environ))
            if self.visible:
                (place / "fd" / "3").symlink_to("socket:[777]")


@dataclass
class Changing(Target):
    """An engine whose leader is another one at each look; the last one stays."""

    leaders: list[int | None] = field(default_factory=list)

    def look(self) -> EngineLook:
        """The next view."""
        leader = self.leaders[0] if len(self.leaders) == 1 else self.leaders.pop(0)
        return EngineLook("g1", ProcessState.BACKOFF, leader)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """One stranger that runs vLLM on our port."""
    return Table(tmp_path)


def test_a_stranger_is_named_with_its_parent(table: Table) -> None:
    """FACT: who runs the program on the port is told by pid and name, and who is above it."""
    assert table.look() == (
        "process 4242 (python3) runs the engine's command and listens on its port; "
        "its parent is supervisord (17)"
    )


@pytest.mark.parametrize(
    ("argv", "command", "same"),
    [
        (("python3", "-m", "vllm.entrypoints.openai.api_server"), VLLM, True),
        (("/v/bin/python3.12", "-X", "dev", "/v/bin/vllm", "serve"), VLLM, True),
        (("/v/bin/vllm", "serve"), ("env", "A=b", "/v/bin/vllm", "serve", "m"), True),
        (("/v/bin/vllm", "serve"), ("sh", "-c", "exec vllm serve m"), True),
        (("python3", "-m", "http.server", str(PORT)), VLLM, False),
        (("nginx", "-g", "daemon off;"), VLLM, False),
        (("VLLM::APIServer_0",), VLLM, False),
        (("python3", "-c", "vllm"), VLLM, False),
        (("python3",), ("python3", "-m", "mine"), False),
        ((), VLLM, False),
    ],
)
def test_only_the_same_program_is_a_manager(
    argv: tuple[str, ...], command: tuple[str, ...], *, same: bool
) -> None:
    """FACT: another program on the port is no manager of this engine, and a title names none."""
    assert runs(argv, command) is same


def test_another_program_is_nobody(table: Table) -> None:
    """FACT: a proxy that took the port is known to be no manager."""
    table.argv = ("nginx", "-g", "daemon off;")
    assert table.look() == ""


def test_one_of_a_lost_state_is_told_as_such(table: Table) -> None:
    """FACT: marked by a watchdog and unknown to this one: on-call is told what happened."""
    table.environ += ("VLLM_WATCHDOG_GENERATION=0a",)
    assert str(table.look()).endswith("is not this one, or has lost its state")


def of_the_engine(table: Table) -> None:
    """A process of the present set, recorded or below one that is."""
    table.owner = Owner.ENGINE


def an_orphan(table: Table) -> None:
    """What an earlier start left."""
    table.owner = Owner.ORPHAN


def below_us(table: Table) -> None:
    """An orphan that came to us."""
    table.ppid = os.getpid()


def led(table: Table) -> None:
    """The engine has a leader: the port is its own."""
    table.leaders = [4242]


def led_meanwhile(table: Table) -> None:
    """A start came while we looked."""
    table.leaders = [None, 4242]


def gone(table: Table) -> None:
    """Nobody listens."""
    table.listens = False


@pytest.mark.parametrize("change", [of_the_engine, an_orphan, below_us, led, led_meanwhile, gone])
def test_what_is_ours_is_never_foreign(table: Table, change: Callable[[Table], None]) -> None:
    """FACT: of our set, an orphan, or a start that just came: nobody else is there, for sure."""
    change(table)
    assert table.look() == ""


@pytest.mark.parametrize("place", [{"uds": "/run/engine"}, {"port": 0}])
def test_without_a_port_nothing_is_known(table: Table, place: dict[str, object]) -> None:
    """FACT: an engine on a socket has no listener that could be looked for."""
    assert table.look(**place) is None


@pytest.mark.parametrize("hidden", ["listener", "owner"])
def test_who_cannot_be_seen_is_not_blamed(table: Table, hidden: str) -> None:
    """FACT: a port whose owner /proc hides is unknown: neither somebody nor nobody."""
    table.visible = hidden != "listener"
    table.owner = Owner.UNKNOWN
    assert table.look() is None


# --- the whole watchdog ---------------------------------------------------------------------------


@contextlib.contextmanager
def manager(port: int) -> Iterator[subprocess.Popen[bytes]]:
    """Another supervisor with our engine; it and all it started are gone afterwards."""
    command = simulated_command(port, "--startup-time", "0")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-ISc", LOOP, *command],
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
    ) as loop:
        try:
            yield loop
        finally:
            end(loop)


def end(loop: subprocess.Popen[bytes]) -> None:
    """End the other supervisor first, then what it ran."""
    loop.kill()
    loop.wait()
    for pid in session_members(loop.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    until(lambda: not session_members(loop.pid))


def serves(port: int) -> bool:
    """Whether an engine answers there."""
    with contextlib.suppress(OSError):
        url = f"http://127.0.0.1:{port}/health"
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    return False


@contextlib.contextmanager
def daemon_on(port: int, directory: Path) -> Iterator[Daemon]:
    """Ours, which waits two seconds for a foreigner to stay away."""
    config = directory / "watchdog.toml"
    config.write_text(RULE)
    command = simulated_command(port, "--startup-time", "0")
    with running(directory / "s", command, port, config=config) as daemon:
        yield daemon


def is_held(daemon: Daemon) -> bool:
    """Whether the foreigner is found, and that nothing is done is said."""
    held = [
        line
        for line in daemon.events("decision.hold")
        if line["reason"] == "blocked" and "somebody else" in line["detail"]
    ]
    return bool(held) and "foreign-manager" in findings(daemon)


def findings(daemon: Daemon) -> dict[str, dict[str, Any]]:
    """What is found now, by rule."""
    return {one["rule"]: one for one in daemon.status().get("findings", [])}


def test_a_manager_that_took_over_is_let_be(tmp_path: Path) -> None:
    """FACT: H15: it restarts its engine as it likes, and ours starts once it is gone.

    Neither is touched, no start is tried on top, no budget is used, and the hold ends by itself.
    """
    port = free_port()
    with daemon_on(port, tmp_path) as daemon:
        first = daemon.wait_ready(READY)
        assert daemon.command("pause", "--reason", "test").returncode == 0
        os.kill(first["pid"], signal.SIGKILL)
        until(lambda: daemon.verdict() == "dead" and not serves(port), READY)
        with manager(port) as loop:
            until(lambda: serves(port), READY)
            until(lambda: "foreign-manager" in findings(daemon), READY)
            assert daemon.command("resume").returncode == 0
            until(lambda: is_held(daemon), READY)
            for _ in range(2):
                theirs = engine_of(loop)
                os.kill(theirs, signal.SIGKILL)
                until(lambda old=theirs: engine_of(loop) not in {0, old}, READY)  # type: ignore[misc]
                until(lambda: serves(port), READY)
            assert is_held(daemon)
            assert alive(loop.pid)
            assert daemon.verdict() not in {"ready", "busy"}
            assert daemon.get("/healthz")[0] == 503
            assert len(daemon.events("engine.started")) == 1
            end(loop)
        second = daemon.wait_ready(READY)
        assert second["pid"] != first["pid"]
        until(lambda: "foreign-manager" not in findings(daemon))


def engine_of(loop: subprocess.Popen[bytes]) -> int:
    """The leader that the other supervisor runs now; 0 when none."""
    found = session_members(loop.pid)
    return next((p for p, t in found.items() if p != loop.pid and "--port" in t), 0)


def test_an_engine_that_is_somebody_elses_from_the_start(tmp_path: Path) -> None:
    """FACT: begun beside another manager nothing is started: its engine serves on, untouched.

    Who it is can be read in the status; once both are gone ours starts, its budget not spent.
    """
    port = free_port()
    with manager(port) as loop:
        until(lambda: serves(port), READY)
        theirs = engine_of(loop)
        with daemon_on(port, tmp_path) as daemon:
            until(lambda: is_held(daemon), READY)
            told = findings(daemon)["foreign-manager"]["evidence"]["engine_port.foreign"]
            assert told.startswith(f"process {theirs} (python")
            assert told.endswith(f"its parent is {comm(loop.pid)} ({loop.pid})")
            assert daemon.events("engine.started") == []
            assert engine_of(loop) == theirs
            assert serves(port)
            end(loop)
            daemon.wait_ready(READY)
            assert not daemon.events("breaker.opened")


def comm(pid: int) -> str:
    """The name of a process."""
    return Path(f"/proc/{pid}/comm").read_text().strip()
