"""/proc is read right, and a process that goes away in between is no error."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.simulated import until
from tests.support.trees import script
from watchdog import procfs


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A child that does nothing, with a variable in its environment."""
    command = [sys.executable, "-ISc", "import time; time.sleep(60)"]
    with subprocess.Popen(command, env={"A": "1", "MARK": "x=y"}) as process:
        until(lambda: "-ISc" in procfs.cmdline(process.pid))  # exec is done
        yield process
        process.kill()


def fake(root: Path, pid: int, text: str) -> None:
    """A stat file of a process that does not exist."""
    (root / str(pid)).mkdir()
    (root / str(pid) / "stat").write_text(text)


def test_a_name_with_parentheses_and_blanks_is_parsed(tmp_path: Path) -> None:
    """FACT: comm ends at the last parenthesis, whatever it contains, and fields follow it."""
    rest = "S 7 8 9 0 -1 4194304 1 0 0 0 150 50 0 0 20 0 3 0 4242 1000 10 1 1"
    fake(tmp_path, 5, f"5 (a) R (b) {rest}\n")

    info = procfs.stat(5, str(tmp_path))

    assert info is not None
    assert (info.comm, info.state, info.ppid, info.session) == ("a) R (b", "S", 7, 9)
    assert (info.start_ticks, info.threads) == (4242, 3)
    assert info.cpu_seconds == 200 / os.sysconf("SC_CLK_TCK")
    assert info.rss_bytes == 10 * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("text", ["", "5 (cut", "5 (cut) S 1 2", "\0\0\0"])
def test_a_stat_that_is_cut_is_nobody(tmp_path: Path, text: str) -> None:
    """FACT: a file that is no stat gives None, not an error."""
    fake(tmp_path, 5, text)

    assert procfs.stat(5, str(tmp_path)) is None
    assert procfs.scan(str(tmp_path)) == ()


def test_nobody_has_nothing() -> None:
    """FACT: for a pid that does not exist every reader answers None, zero or nothing."""
    process = subprocess.Popen([sys.executable, "-ISc", ""])
    process.wait()
    pid = process.pid

    assert procfs.stat(pid) is None
    assert procfs.children(pid) == ()
    assert procfs.cmdline(pid) == ()
    assert procfs.environ_value(pid, "PATH") is None
    assert procfs.living_tasks(pid) == 0
    assert procfs.wchan(pid) == ""
    assert procfs.exit_status_of_zombie(pid) is None


def test_no_procfs_at_all(tmp_path: Path) -> None:
    """FACT: without a procfs there are no processes, no boot and no listeners."""
    root = str(tmp_path / "nowhere")

    assert procfs.scan(root) == ()
    assert procfs.boot_id(root) == ""
    assert procfs.listening_owner(80, root) is None


def test_a_child_is_seen_as_it_is(sleeper: subprocess.Popen[bytes]) -> None:
    """FACT: stat, scan, children, cmdline and environ agree about a living child."""
    info = procfs.stat(sleeper.pid)

    assert info is not None
    assert procfs.lives(info)
    assert info.ppid == os.getpid()
    assert info.session == os.getsid(0)
    assert sleeper.pid in procfs.children(os.getpid())
    assert sleeper.pid in [one.pid for one in procfs.scan()]
    assert procfs.cmdline(sleeper.pid)[1:] == ("-ISc", "import time; time.sleep(60)")
    assert procfs.environ_value(sleeper.pid, "MARK") == "x=y"
    assert procfs.environ_value(sleeper.pid, "ARK") is None
    assert procfs.living_tasks(sleeper.pid) == 1
    assert len(procfs.boot_id()) == 36


def test_children_without_the_kernel_option(tmp_path: Path) -> None:
    """FACT: where task/*/children does not exist the parents of all processes tell."""
    for pid, parent in ((5, 1), (6, 5), (7, 6), (8, 5)):
        rest = f"S {parent} 8 9 0 -1 0 1 0 0 0 0 0 0 0 20 0 1 0 1 1000 10 1 1"
        fake(tmp_path, pid, f"{pid} (x) {rest}\n")
    (tmp_path / "5" / "task" / "5").mkdir(parents=True)

    assert sorted(procfs.children(5, str(tmp_path))) == [6, 8]


def test_a_zombie_is_dead_and_shows_its_status() -> None:
    """FACT: a child that nobody waited for does not live, and its exit status can be read."""
    process = subprocess.Popen([sys.executable, "-ISc", "raise SystemExit(7)"])
    try:
        until(lambda: (info := procfs.stat(process.pid)) and info.state == "Z")
        info = procfs.stat(process.pid)

        assert info is not None
        assert not procfs.lives(info)
        assert info.threads == 0
        assert procfs.exit_status_of_zombie(process.pid) == 7 << 8
    finally:
        assert process.wait() == 7


def test_a_dead_leader_with_a_living_thread_lives() -> None:
    """FACT: when the main thread ended and another runs, the zombie still holds everything."""
    text = (
        "import ctypes, threading\n"
        "threading.Thread(target=time.sleep, args=(60,)).start()\n"
        "ctypes.CDLL(None).pthread_exit(None)\n"
    )
    process = subprocess.Popen(script(text))
    try:
        until(lambda: (info := procfs.stat(process.pid)) and info.state == "Z")
        info = procfs.stat(process.pid)

        assert info is not None
        assert info.threads == procfs.living_tasks(process.pid) == 1
        assert procfs.lives(info)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_the_owner_of_a_port_is_named(family: socket.AddressFamily) -> None:
    """FACT: who listens is found over IPv4 and IPv6; a port without a listener has no owner."""
    with socket.socket(family) as listener:
        listener.bind(("localhost", 0) if family is socket.AF_INET else ("::1", 0))
        port = listener.getsockname()[1]
        assert procfs.listening_owner(port) is None
        listener.listen()

        owner = procfs.listening_owner(port)

    assert owner is not None
    assert owner[0] == os.getpid()
    assert owner[1] == Path("/proc/self/comm").read_text().strip()
