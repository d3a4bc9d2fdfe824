"""``sweep`` and the action of that name: on the real /dev/shm, in a folder of the test's own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from actions.sweep_leftovers import SweepLeftovers
from tests.support.daemon import running, simulated_command
from tests.support.simulated import ROOT, free_port, until
from watchdog import procfs
from watchdog.config import EngineConfig
from watchdog.contracts import ActionError, Order
from watchdog.core.model import HOST, Cause
from watchdog.daemon.box_control import Hands, began, first_start, folders
from watchdog.daemon.once import OneTarget
from watchdog.ledger import GenerationRecord
from watchdog.store import Store
from watchdog.supervisor import holders, tempdirs
from watchdog.supervisor.holders import Holders
from watchdog.supervisor.household import Household
from watchdog.supervisor.leftovers import Sweeper, Swept

RING, SECOND = "psm_5ca1ab1e", "psm_5ca1ab1f"
STRANGER = "psm_of_somebody"
LEAVING = (
    "import mmap, os, sys, time\n"
    "fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o600)\n"
    "os.ftruncate(fd, 1 << 20)\n"
    "ring = mmap.mmap(fd, 1 << 20); ring[0] = 1; os.close(fd)\n"
    "print('x', flush=True); time.sleep(600)\n"
)


def look(deadline: float) -> Holders:
    """As the real one does, on a machine where everybody can be seen: here pid 1 may not be."""
    found = holders.look(deadline)
    if "cannot be looked at" in found.unseen:
        found.unseen = ""
    return found


@dataclass
class Shelf:
    """A folder of shared memory, and what sweeps it."""

    shm: Path
    targets: tuple[OneTarget, ...] = ()
    look: Callable[[float], Holders] = look

    def sweep(self) -> str:
        """What the action says."""
        sweeper = Sweeper(shm=self.shm, look=self.look, min_age=-1.0)
        hands = Hands(sweeper, Household(), lambda: self.targets)
        order = Order("sweep_leftovers", HOST, Cause.RULE, deadline=time.monotonic() + 60.0)
        return SweepLeftovers().run(order, hands)

    def names(self) -> list[str]:
        """What lies there."""
        return sorted(path.name for path in self.shm.iterdir())


@pytest.fixture
def shelf() -> Iterator[Shelf]:
    """On the real file system of shared memory, under a name that nobody else has.

    With temporary files of its own: a sweep looks there for sockets too.
    """
    with (
        tempfile.TemporaryDirectory(prefix="vw-sweep-", dir="/dev/shm") as shm,
        tempfile.TemporaryDirectory(prefix="sw") as own,
    ):
        before, tempfile.tempdir = tempfile.tempdir, own
        try:
            assert folders(()) == (own,)
            yield Shelf(Path(shm))
        finally:
            tempfile.tempdir = before


@contextlib.contextmanager
def worker(path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has made a ring buffer and holds it by its mapping alone."""
    command = [sys.executable, "-ISc", LEAVING, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.read(1) == b"x"
            yield process
        finally:
            process.kill()


def test_what_a_killed_process_left_goes(shelf: Shelf) -> None:
    """FACT (S3): while its process lives it is kept, after a SIGKILL it is swept, and told."""
    path = shelf.shm / RING
    with worker(path) as process:
        assert shelf.sweep() == "1 kept: a process uses it"
        assert shelf.names() == [RING]
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert shelf.sweep() == f"swept 1 leftovers: {path}"
    assert shelf.names() == []
    assert shelf.sweep() == "nothing to sweep"


def test_a_strangers_name_is_kept(shelf: Shelf) -> None:
    """FACT (S3): what vLLM does not name so is nobody's leftover, held or not."""
    (shelf.shm / STRANGER).write_bytes(b"x")
    assert shelf.sweep() == "nothing to sweep"
    assert shelf.names() == [STRANGER]


def test_what_cannot_be_known_fails_in_words(shelf: Shelf) -> None:
    """FACT: with processes that cannot be looked at the action fails, and nothing is removed."""
    (shelf.shm / RING).write_bytes(b"x")
    shelf.look = lambda _: Holders(unseen="processes of other users are not visible from here")
    with pytest.raises(ActionError) as caught:
        shelf.sweep()
    assert str(caught.value) == "cannot sweep: processes of other users are not visible from here"
    assert shelf.names() == [RING]


def test_more_than_a_start_has_time_for(shelf: Shelf) -> None:
    """FACT: a start removes 256 at most and looks at 4,096 entries; who is asked removes all."""
    for number in range(5000):
        (shelf.shm / f"aside{number}").touch()
    for number in range(300):
        (shelf.shm / f"psm_{number:08x}").touch()
    assert shelf.sweep().startswith("swept 300 leftovers: ")
    assert len(shelf.names()) == 5000


def test_a_clock_that_jumps_ahead_makes_nothing_old(shelf: Shelf) -> None:
    """FACT: what was made before somebody set the clock is kept until it is really old enough.

    Directories of ended starts go all the same, and a clock that is set back makes all young.
    """
    ahead, path, folder = [0.0], shelf.shm / RING, tempdirs.make()
    path.write_bytes(b"x")
    sweeper = Sweeper(
        lambda: [str(folder)], shelf.shm, look, min_age=1.0, wall=lambda: time.time() + ahead[0]
    )
    ahead[0] = 3600.0
    swept = sweeper.sweep(quick=True)
    assert swept.removed == (str(folder),)
    assert swept.kept == ((str(path), swept.why),)
    assert swept.why.startswith("the clock was set a moment ago")
    assert sweeper.sweep(quick=True) == Swept((), swept.kept, swept.why)
    ahead[0] = -3600.0
    assert sweeper.sweep().spared == ((str(path), "it is younger than 1 s"),)
    ahead[0] = 7200.0
    assert sweeper.sweep().kept == swept.kept
    assert until(lambda: sweeper.sweep().removed) == (str(path),)


def test_beside_a_living_engine_only_what_is_older_goes(shelf: Shelf) -> None:
    """FACT: what is younger than the first process of a living engine stays, though nobody has it.

    By /proc: the start of the process, not by what anybody has written down.
    """
    (shelf.shm / RING).write_bytes(b"x")
    made = time.time()
    until(lambda: time.time() > made + 1.5)  # a start is known to a second, rather too early
    with subprocess.Popen(["sleep", "600"]) as process:
        try:
            info = procfs.stat(process.pid)
            assert info is not None
            shelf.targets = (OneTarget("main", EngineConfig(command=("true",)), (info,)),)
            start = first_start(shelf.targets)
            assert start is not None
            assert made < start <= time.time()
            (shelf.shm / SECOND).write_bytes(b"x")
            # Held is also what has the inode number of a file that somebody has open elsewhere.
            until(lambda: shelf.sweep() == f"swept 1 leftovers: {shelf.shm / RING}")
            assert shelf.names() == [SECOND]
        finally:
            process.kill()
    shelf.targets = (OneTarget("main", EngineConfig(command=("true",))),)
    assert first_start(shelf.targets) is None
    assert shelf.sweep().startswith("swept 1 ")


def test_a_start_is_told_rather_too_early() -> None:
    """FACT: never later than the process really began: what it made is never older than it."""
    before = time.time()
    with subprocess.Popen(["sleep", "600"]) as process:
        after = time.time()
        info = procfs.stat(process.pid)
        process.kill()
    assert info is not None
    assert before - 2.0 < began(info.start_ticks) < after


# --- the command ------------------------------------------------------------------------------


@dataclass
class Place:
    """A state directory, a TMPDIR and a /dev/shm of its own for the command."""

    state: Path
    tmp: Path

    def sweep(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run ``vllm-watchdog sweep WORDS`` where /dev/shm holds one young ring buffer."""
        inside = (
            f"mount -t tmpfs sweep /dev/shm && touch /dev/shm/{RING} && {{ code=0;"
            ' "$@" || code=$?; test -e /dev/shm/* && exit $code; }'
        )
        command = [sys.executable, "-m", "watchdog", "--state-dir", str(self.state), "sweep"]
        own: Mapping[str, str] = {
            **{k: v for k, v in os.environ.items() if not k.startswith("VLLM_WATCHDOG")},
            "TMPDIR": str(self.tmp),
            "PYTHONPATH": str(ROOT),
        }
        return subprocess.run(
            ["unshare", "--mount", "sh", "-c", inside, "sh", *command, *words],
            cwd=self.tmp,
            env=own,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def told(self, *words: str) -> dict[str, Any]:
        """What it prints as JSON; it ends as it says."""
        done = self.sweep("--json", *words)
        assert done.stderr == ""
        found: dict[str, Any] = json.loads(done.stdout)
        assert found["exit_code"] == done.returncode
        return found

    def start(self, name: str, *, ended: bool) -> Path:
        """The private directory of a start that is on record."""
        folder = self.tmp / f"vw-{name * 12}"
        folder.mkdir()
        (folder / "vllm_dist_1").write_text("x")
        store = Store.open(self.state)
        store.planned(
            GenerationRecord(
                id=name,
                engine="main",
                tempdir=str(folder),
                log_path="",
                log_offset=0,
                port=1,
                command=("true",),
                boot_id=procfs.boot_id(),
                planned_at=0.0,
                planned_wall=0.0,
            )
        )
        if ended:
            store.ended(name, exit_code=1, signal=None, cause=Cause.CRASH)
        store.close()
        return folder


@pytest.fixture
def place() -> Iterator[Place]:
    """Short paths, gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="sw") as folder:
        place = Place(Path(folder) / "state", Path(folder) / "tmp")
        place.tmp.mkdir()
        yield place


@pytest.mark.root
def test_the_command_tells_first_and_removes_when_asked(place: Place) -> None:
    """FACT: a dry run removes nothing; with --yes the directory of a dead generation goes.

    That of one which is not known to have ended stays, and what is kept has its reason.
    """
    dead, living = place.start("a", ended=True), place.start("b", ended=False)
    found = place.told()
    assert (found["would_remove"], found["removed"]) == ([str(dead)], [])
    assert {"path": f"/dev/shm/{RING}", "why": "it is younger than 60 s"} in found["kept"]
    assert (dead / "vllm_dist_1").exists()
    done = place.sweep("--yes")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[:2] == ["removed:", f"  {dead}"]
    assert not dead.exists()
    assert (living / "vllm_dist_1").exists()
    assert tempdirs.is_private(living)


@pytest.mark.root
def test_a_directory_that_is_used_is_kept(place: Place) -> None:
    """FACT: somebody lives in it, whatever the record says."""
    dead = place.start("c", ended=True)
    with subprocess.Popen(["sleep", "600"], cwd=dead) as process:
        try:
            found = place.told("--yes")
        finally:
            process.kill()
    assert {"path": str(dead), "why": "a process uses it"} in found["kept"]
    assert (found["removed"], found["exit_code"]) == ([], 0)
    assert dead.is_dir()


@pytest.mark.root
def test_a_record_that_cannot_be_read_is_exit_3(place: Place) -> None:
    """FACT: which starts have ended is not known then: no directory is touched."""
    dead = place.start("d", ended=True)
    (place.state / "store.sqlite3").write_bytes(b"no database" * 1000)
    found = place.told("--yes")
    assert (found["removed"], found["exit_code"]) == ([], 3)
    assert "the record of ended starts cannot be read" in found["unknown"]
    assert dead.is_dir()


@pytest.mark.root
def test_beside_a_daemon_nothing_of_its_engine_goes(place: Place) -> None:
    """FACT: the engine serves on with all that it has, and the daemon's own record is read."""
    port = free_port()
    with running(place.state, simulated_command(port), port) as daemon:
        before = daemon.wait_ready(60.0)
        private = procfs.environ_value(before["pid"], "TMPDIR")
        assert private is not None
        held = sorted(Path(private).iterdir())
        done = place.sweep("--yes")
        assert done.returncode == 0, done.stderr
        assert private not in done.stdout
        assert sorted(Path(private).iterdir()) == held
        after = daemon.engine()
        assert (after["pid"], after["verdict"]) == (before["pid"], before["verdict"])
