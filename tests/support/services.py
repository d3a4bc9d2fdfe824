"""What the tests of deploy/ under real supervisors share: settings, and a watchdog under one."""

from __future__ import annotations

import contextlib
import os
import pwd
import shlex
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.daemon import Daemon, finish
from tests.support.reloads import READY, File
from tests.support.simulated import ROOT, alive, stat_fields, until
from watchdog import procfs

PROGRAM = Path(sys.executable).with_name("vllm-watchdog")


@dataclass
class Service(Daemon):
    """A watchdog under a supervisor of the box, which is ``process``. Its log is the logger's."""

    folder: Path = Path()
    known: set[tuple[int, str]] = field(default_factory=set)

    def watchdog(self) -> int:
        """The pid of the watchdog at work, by its own lock; 0 when there is none."""
        with contextlib.suppress(OSError, ValueError):
            pid = int((self.state_dir / "lock").read_text())
            return pid if alive(pid) and b"vllm-watchdog" in _cmdline(pid) else 0
        return 0

    def successor(self, of: int) -> int:
        """The pid of the next watchdog, once it knows an engine that runs."""
        until(lambda: self.watchdog() not in {0, of} and self.engine().get("pid"), READY)
        return self.watchdog()

    def log(self) -> str:
        """All that the logger has written."""
        with contextlib.suppress(OSError):
            return self.log_path.read_text(errors="replace")
        return ""

    def note(self) -> None:
        """Note all processes below the supervisor, by identity, to end them when all else fails."""
        frontier = [self.process.pid]
        while frontier:
            children = procfs.children(frontier.pop())
            frontier.extend(children)
            self.known |= {(p, f[19]) for p in children if len(f := stat_fields(p)) > 19}

    def end(self) -> None:
        """The polite way, then by pid: supervisor, watchdog, logger, engine."""
        self.note()
        with contextlib.suppress(Exception):
            self.verdict()
        self.ours |= self.known
        finish(self)


def _cmdline(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def settings(folder: Path, port: int, **more: str) -> dict[str, str]:
    """What points the files of deploy/ to this test's own places."""
    return {
        "program": str(PROGRAM),
        "config": str(folder / "watchdog.toml"),
        "state_dir": str(folder / "s"),
        "log_dir": str(folder / "log"),
        "listen": f"127.0.0.1:{port}",
        "pause": "1",
        **more,
    }


def written(path: Path, values: dict[str, str]) -> None:
    """The settings as shell; and where simulated engines find our modules."""
    lines = [f"{name}={shlex.quote(value)}" for name, value in values.items()]
    path.write_text("\n".join([*lines, f"export PYTHONPATH={shlex.quote(str(ROOT))}", ""]))


def configured(folder: Path, **keys: object) -> File:
    """A configuration with one simulated engine."""
    file = File(folder / "watchdog.toml")
    stop = {"drain_timeout": "0s", "term_timeout": "5s"}
    keys = {"stop": stop, **keys}
    file.engine("main", 0, "--startup-time", "0", "--workers", "0", **keys)
    file.write()
    return file


def outlives_its_keepers(
    one: Service, kill: Callable[[], object], leave: Callable[[], object]
) -> None:
    """One engine through the death of one watchdog and the upgrade of the next; then its own."""
    before, first = one.wait_ready(READY), one.watchdog()
    assert stat_fields(first)[3] == str(first)  # a session of its own
    assert stat_fields(before["pid"])[3] == str(before["pid"])

    kill()
    second = one.successor(first)
    assert one.engine()["pid"] == before["pid"]

    leave()
    third = one.successor(second)
    assert (one.engine()["pid"], one.engine()["starts"]) == (before["pid"], before["starts"])
    assert [e["leave"] for e in one.events("watchdog.stopping")] == [True]
    assert len(one.events("engine.adopted")) == 2

    os.kill(before["pid"], signal.SIGKILL)
    until(lambda: one.is_another(before), READY)
    one.wait_ready(READY)
    assert one.watchdog() == third


def went_in_order(one: Service, pid: int) -> None:
    """The watchdog ``pid`` ended its engine first, and nobody lives."""
    assert one.survivors() == []
    assert not alive(pid)
    exited = one.events("engine.exited")[-1]
    assert (exited["cause"], exited["expected"]) == ("operator", True)
    names = [e["event"] for e in one.events()]
    assert names.index("engine.stopped") < len(names) - names[::-1].index("watchdog.stopping")
    assert names[-1] == "watchdog.stopping"


@pytest.fixture
def open_tmp() -> Iterator[Path]:
    """A folder into which other users can look."""
    if os.geteuid():
        pytest.skip("only root can become somebody")
    with tempfile.TemporaryDirectory(prefix="vw-service-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def as_games(folder: Path) -> dict[str, str]:
    """Settings for a program that tells who it is, and gives up."""
    program = folder / "who"
    program.write_text('#!/bin/sh\necho "$(id -un):$(id -gn) $HOME $PWD $(ulimit -n)"\nexit 75\n')
    program.chmod(0o755)
    return {"program": str(program), "run_as": "games", "log_as": "nobody", "nofile": "4096"}


def became_games(one: Service) -> None:
    """It did, once."""
    games = pwd.getpwnam("games")
    assert one.log().count(f"games:games {games.pw_dir} {one.state_dir} 4096\n") == 1
    assert one.log().count("exit code 75") == 1
    assert one.state_dir.stat().st_uid == games.pw_uid
    assert one.log_path.stat().st_uid == pwd.getpwnam("nobody").pw_uid


def example_has(example: dict[str, str], script: dict[str, str]) -> None:
    """All of the script's settings, and their values where they have one."""
    for name, value in script.items():
        if name != "owner":
            assert name in example
            assert not value or example[name] == value


def defaults(script: Path, prefix: str = "") -> dict[str, str]:
    """The plain assignments at the beginning of lines."""
    found = {}
    for line in script.read_text().splitlines():
        name, sign, value = line.removeprefix(prefix).partition("=")
        if sign and line.startswith(prefix) and name.isidentifier():
            found[name] = value
    return found
