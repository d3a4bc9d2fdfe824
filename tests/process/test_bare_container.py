"""A container that lacks what a machine has: the daemon says so in one line, and does its job.

Each case is the real daemon as PID 1 of namespaces of its own (tests/support/namespaces.py).
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.namespaces import (
    FEW_DEVICES,
    HIDDEN_PIDS,
    NO_CGROUPS,
    NOBODY,
    OLD_CGROUPS,
    PYTHON,
    READ_ONLY,
    UNTRUSTED,
    Box,
    boxed,
    folder,
    reachable,
    simulated,
    watchdog,
)
from tests.support.simulated import ROOT
from watchdog.daemon.blind import blind_spots

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]

_ELSEWHERE = "no processes of other PID namespaces"
_NO_TRACE = "no CAP_SYS_PTRACE"
_NO_CGROUP = "no cgroup for an engine (no cgroup v2 is mounted)"
_POWERLESS = ("no kernel log (/dev/kmsg: ", _ELSEWHERE, _NO_TRACE, "no cgroup for an engine (")


@dataclass(frozen=True, slots=True)
class Lack:
    """What is done to the box, in front of the daemon's command, and what it must say of it."""

    before: Sequence[str] = ()
    command: Sequence[str] = ()
    says: Sequence[str] = (_ELSEWHERE,)
    owner: int = 0


LACKS = {
    "nothing but namespaces": Lack(),
    "capabilities": Lack(command=("setpriv", "--bounding-set=-all"), says=_POWERLESS),
    "the rights of root": Lack(reachable(PYTHON, ROOT), UNTRUSTED, _POWERLESS, NOBODY),
    "the kernel log": Lack(FEW_DEVICES, (), ("no kernel log (/dev/kmsg: no such file", _ELSEWHERE)),
    "the pids of others": Lack(
        (*reachable(PYTHON, ROOT), *HIDDEN_PIDS),
        UNTRUSTED,
        (*_POWERLESS[:3], "no processes of other users at all (hidepid)", _POWERLESS[3]),
        NOBODY,
    ),
    "cgroups": Lack(NO_CGROUPS, (), (_ELSEWHERE, _NO_CGROUP)),
    "cgroups of version 2": Lack(OLD_CGROUPS, (), (_ELSEWHERE, _NO_CGROUP)),
    "a root to write to": Lack(("mount -t tmpfs state $STATE", *READ_ONLY)),
}


def restarted(box: Box) -> None:
    """Its engine is killed, and one that serves takes its place; all who were there are gone."""
    first = box.ready()
    old = {inner: pid for inner, pid in box.members().items() if inner in first["pids"]}
    os.kill(old[first["pid"]], signal.SIGKILL)
    second = box.ready(other_than=first["generation"])
    assert second["starts"] == 2
    assert not set(old.values()) & set(box.members().values())
    assert not box.zombies()


@pytest.mark.parametrize("lack", LACKS)
def test_it_says_what_it_cannot_see_and_restarts_the_engine(lack: str) -> None:
    """FACT: whatever lacks, it is said in one line of the log, and the engine is kept serving."""
    case = LACKS[lack]
    with folder(case.owner) as state:
        command = [*case.command, *watchdog(state, "--", *simulated())]
        with boxed(command, state, before=[f"STATE={state}", *case.before]) as box:
            restarted(box)
            (line,) = box.lines("watchdog.blind")
            said = re.split(r"; ", line["reason"])
            assert len(said) == len(case.says), said
            assert all(
                text.startswith(wanted) for text, wanted in zip(said, case.says, strict=True)
            )
            assert not box.lines("watchdog.degraded")
            assert not box.lines("watchdog.bug")
            box.send(signal.SIGTERM)
            assert box.ended() == 0


def test_nothing_can_be_kept() -> None:
    """FACT: below a root that is read-only all over it says once that memory ends with it.

    It supervises; the engine's temporary files and its log go to shared memory.
    """
    with (
        folder() as state,
        boxed(watchdog(state, "--", *simulated()), state, before=READ_ONLY) as box,
    ):
        restarted(box)
        (line,) = box.lines("watchdog.degraded")
        assert line["level"] == "warning"
        assert line["reason"] == (
            f"cannot write to {state}: Read-only file system: budgets and adoption end with us"
        )
        assert line["reason"] in box.status()["lacks"]
        leader = box.outer(box.engine()["pid"])
        environment = Path(f"/proc/{leader}/environ").read_bytes().split(b"\0")
        assert [one for one in environment if one.startswith(b"TMPDIR=/dev/shm/vw-")]
        assert str(Path(f"/proc/{leader}/fd/1").readlink()).startswith("/dev/shm/vw-log-")
        box.send(signal.SIGTERM)
        assert box.ended() == 0


def test_nothing_can_be_written_at_all() -> None:
    """FACT: where not even shared memory can be written to, it ends: exit 2 and one line."""
    before = ["mount -t tmpfs -o ro shm /dev/shm", *READ_ONLY]
    with (
        folder() as state,
        boxed(watchdog(state, "--", *simulated()), state, before=before) as box,
    ):
        assert box.ended() == 2
        last = box.log_path.read_text().splitlines()[-1]
        assert last == "cannot write to any of TMPDIR, /tmp and /dev/shm"
        assert "Traceback" not in box.log_path.read_text()


def test_a_machine_of_its_own_hides_nothing(tmp_path: Path) -> None:
    """FACT: outside of any container, with all rights and a kernel log, there is no such line."""
    log = tmp_path / "kmsg"
    log.touch()
    here = blind_spots(kernel_log=str(log))
    assert all("PID namespaces" in text or "cgroup" in text for text in here)  # of the machine


def test_the_version_is_told_without_rights_and_without_anything_to_write() -> None:
    """FACT: ``--version`` needs no state, no home and no rights."""
    with folder() as place:
        words = [*UNTRUSTED, sys.executable, "-m", "watchdog", "--version"]
        before = [*reachable(PYTHON, ROOT), *READ_ONLY]
        with boxed(words, place, before=before) as box:
            assert box.ended() == 0
            assert box.log_path.read_text().startswith("vllm-watchdog, version ")
