"""``check`` and ``doctor`` about an engine that somebody else starts: whether it is there."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support import fake_nvml
from tests.support.fake_nvml import LIBRARY
from tests.support.managers import Manager, managed
from tests.support.simulated import ROOT, free_port, until
from watchdog import procfs

GIB = 1 << 30
HOST_PROBES = ("clock", "conntrack", "cpu", "disk", "files", "memory", "oom", "sockets", "tmpfs")
UNSEEN = "".join(f"[probes.{name}]\nenabled = false\n" for name in HOST_PROBES)
"""What ails the machine that the tests run on is its own affair."""
_BOTH = ("problems", "warnings")
NO_KILL = ("setpriv", "--bounding-set", "-kill", "--inh-caps", "-kill")
LISTENER = """#!{python}
import os, socket, sys
listener = socket.create_server(("127.0.0.1", int(sys.argv[-1])))
os.setgroups([])
os.setuid(65534)
print("up", flush=True)
sys.stdin.read()
"""
"""An engine of another user, which keeps its name and its port."""


@pytest.fixture
def no_gpu(tmp_path: Path) -> Mapping[str, str]:
    """An environment in which there is no library for any GPU."""
    (tmp_path / LIBRARY).write_text("no library\n")
    return {"LD_LIBRARY_PATH": str(tmp_path)}


@pytest.fixture
def engine() -> Iterator[Manager]:
    """One that somebody else has started, and that serves."""
    with managed() as manager:
        until(lambda: procfs.is_listened_on(manager.port))
        yield manager


def cli(
    folder: Path, environment: Mapping[str, str], *words: str, wrapper: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """Run ``vllm-watchdog WORDS`` to its end; without ``--config`` a plain file counts."""
    config = folder / "watchdog.toml"
    if not config.exists():
        config.write_text(UNSEEN)
    own = {key: value for key, value in os.environ.items() if not key.startswith("VLLM_WATCHDOG")}
    own |= {"PYTHONPATH": str(ROOT), "VLLM_WATCHDOG_STATE_DIR": str(folder / "state")}
    return subprocess.run(
        [*wrapper, sys.executable, "-m", "watchdog", *words],
        cwd=folder,
        env={**own, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def attached(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """What is told of the one engine."""
    (found,) = json.loads(done.stdout)["attached"]
    assert isinstance(found, dict)
    return found


def test_one_that_is_there_is_told_and_its_port_is_no_problem(
    tmp_path: Path, no_gpu: Mapping[str, str], engine: Manager
) -> None:
    """FACT: one line has its first process, its port, and whether it may be signalled."""
    words = ("check", "--attach", "report")
    done = cli(tmp_path, no_gpu, *words, "--", *engine.command)
    comm = Path(f"/proc/{engine.leader}/comm").read_text().strip()
    who = f"process {engine.leader} ({comm}) serves on port {engine.port}"
    assert done.stdout.splitlines() == [
        "no problems found",
        f"main: attached to report: {who}; it may be signalled",
    ]
    assert done.returncode == 0
    found = attached(cli(tmp_path, no_gpu, *words, "--json", "--", *engine.command))
    assert (found["pid"], found["serves"], found["may_signal"]) == (engine.leader, True, True)


def test_one_that_is_not_there_is_awaited(tmp_path: Path, no_gpu: Mapping[str, str]) -> None:
    """FACT: neither its program nor its model has to be here, nor need it listen already."""
    port = free_port()
    command = ("/nowhere/vllm", "serve", "/nowhere/model", "--port", str(port))
    done = cli(tmp_path, no_gpu, "check", "--attach", "signal", "--", *command)
    assert done.stdout.splitlines() == [
        "no problems found",
        f"main: attached to signal: nobody listens on port {port} yet",
    ]
    assert done.returncode == 0


def test_a_stranger_on_its_port_is_a_warning(tmp_path: Path, no_gpu: Mapping[str, str]) -> None:
    """FACT: who listens there and is not the engine is named; nothing is claimed of the engine."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        command = ("/nowhere/vllm", "serve", "/nowhere/model", "--port", str(port))
        done = cli(tmp_path, no_gpu, "check", "--attach", "report", "--", *command)
    assert f"warning: main: attached to report: process {os.getpid()} (" in done.stdout
    assert "does not run the engine's program" in done.stdout
    assert done.returncode == 0


@contextlib.contextmanager
def of_another_user(folder: Path) -> Iterator[tuple[int, tuple[str, ...]]]:
    """The pid and the command of an engine that runs as somebody else."""
    program = folder / "vllm"
    program.write_text(LISTENER.format(python=sys.executable))
    program.chmod(0o755)
    command = (str(program), "serve", "m", "--port", str(free_port()))
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "up\n"
            yield process.pid, command
        finally:
            process.kill()


def test_one_that_may_not_be_signalled(tmp_path: Path, no_gpu: Mapping[str, str]) -> None:
    """FACT: that is a warning where it is to be signalled, and fine where only to be reported."""
    told = {}
    with of_another_user(tmp_path) as (_, command):
        for how in ("report", "signal"):
            words = ("check", "--json", "--attach", how, "--", *command)
            told[how] = cli(tmp_path, no_gpu, *words, wrapper=NO_KILL)
    for how, done in told.items():
        found = attached(done)
        assert (found["serves"], found["may_signal"]) == (True, False)
        assert found["words"].endswith("it may not be signalled by this user")
        warned = f"main: {found['words']}" in json.loads(done.stdout)["warnings"]
        assert (warned, done.returncode) == (how == "signal", 0)


def test_its_memory_is_no_strangers(tmp_path: Path) -> None:
    """FACT: what it holds of a card is no finding for doctor; of a stranger it would be one."""
    nvml = fake_nvml.idle(tmp_path / "nvml", 1)
    doctor = ("doctor", "--json", "--config", "watchdog.toml")
    check = ("check", "--config", "watchdog.toml")
    with of_another_user(tmp_path) as (pid, command):
        nvml.set({"0.process": f"{pid} {100 * GIB}", "0.memory_used": 100 * GIB})
        table = f"{UNSEEN}[engine.main]\ncommand = {json.dumps(command)}\n"
        (tmp_path / "watchdog.toml").write_text(table)
        strange = json.loads(cli(tmp_path, nvml.environment, *doctor).stdout)
        assert "gpu-foreign-memory" in {one["rule"] for one in strange["findings"]}
        (tmp_path / "watchdog.toml").write_text(f'{table}attach = "report"\n')
        done = cli(tmp_path, nvml.environment, *doctor)
        checked = cli(tmp_path, nvml.environment, *check)
    assert [one["rule"] for one in json.loads(done.stdout)["findings"]] == []
    assert (attached(done)["pid"], done.returncode) == (pid, 0)
    first, second = checked.stdout.splitlines()
    assert (first, checked.returncode) == ("no problems found", 0)
    assert second.startswith(f"main: attached to report: process {pid} (")


def test_what_ails_the_box_keeps_no_engine_of_others_from_starting(tmp_path: Path) -> None:
    """FACT: it is a warning where all engines are attached to, a problem where one is ours."""
    nvml = fake_nvml.idle(tmp_path / "nvml", 1)
    rule = {"name": "sick", "subject": "gpu", "when": "gpu.memory_total_bytes > 0"}
    rule |= {"severity": "critical", "summary": "it is there", "reason": "r", "fix": "f"}
    lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in rule.items())
    for ours, attach in ((False, 'attach = "signal"\n'), (True, "")):
        engines = "".join(
            f'[engine.{name}]\ncommand = ["true", "--port", "{free_port()}"]\n{how}'
            for name, how in (("one", 'attach = "report"\n'), ("two", attach))
        )
        (tmp_path / "watchdog.toml").write_text(f"{UNSEEN}{engines}[[rule]]\n{lines}")
        done = cli(tmp_path, nvml.environment, "check", "--json", "--config", "watchdog.toml")
        found = json.loads(done.stdout)
        told = {key: any("it is there" in line for line in found[key]) for key in _BOTH}
        assert told == {"problems": ours, "warnings": not ours}
        assert done.returncode == int(ours)


def test_attach_needs_a_command(tmp_path: Path, no_gpu: Mapping[str, str]) -> None:
    """FACT: without one it is a usage error, as for ``run``."""
    done = cli(tmp_path, no_gpu, "check", "--attach", "report")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--attach needs the COMMAND" in done.stderr
