"""There is one watchdog a state directory and one a port."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.simulated import ROOT, free_port
from watchdog.supervisor.lock import LockHeldError, lock_directory, lock_port

HOLD = (
    "import sys; sys.path.insert(0, {root!r})\n"
    "from pathlib import Path\n"
    "from watchdog.supervisor import lock\n"
    "held = lock.{call}\n"
    "print('held', flush=True); sys.stdin.read()\n"
)


def holder(call: str) -> subprocess.Popen[bytes]:
    """Another process that holds the lock until it is killed."""
    text = HOLD.format(root=str(ROOT), call=call)
    process = subprocess.Popen(
        [sys.executable, "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    return process


def test_a_directory_is_locked_until_its_holder_dies(tmp_path: Path) -> None:
    """FACT: the second is told who holds it; SIGKILL of the holder frees it."""
    with holder(f"lock_directory(Path({str(tmp_path)!r}))") as other:
        with pytest.raises(LockHeldError, match=f"process {other.pid}") as caught:
            lock_directory(tmp_path)
        assert caught.value.pid == other.pid
        other.kill()

    lock_directory(tmp_path).release()


def test_a_port_is_locked_until_its_holder_dies() -> None:
    """FACT: a watchdog with another directory meets the port's lock, and is told who holds it."""
    port = free_port()
    with holder(f"lock_port({port})") as other:
        with pytest.raises(LockHeldError, match=f"port {port}.*process {other.pid}") as caught:
            lock_port(port)
        assert caught.value.pid == other.pid
        other.kill()

    lock_port(port).release()


def test_a_released_lock_can_be_taken(tmp_path: Path) -> None:
    """FACT: release frees it, twice does no harm."""
    lock = lock_directory(tmp_path)
    lock.release()
    lock.release()
    lock_directory(tmp_path).release()


@pytest.mark.parametrize("text", [b"", b"garbage", b"-1", b"\xff" * 5000, b"999999999999999999999"])
def test_what_is_written_in_a_lock_is_only_told(tmp_path: Path, text: bytes) -> None:
    """FACT: garbage in the file keeps nobody away: whether it is locked is the kernel's word."""
    (tmp_path / "lock").write_bytes(text)
    lock_directory(tmp_path).release()

    with holder(f"lock_directory(Path({str(tmp_path)!r}))") as other:
        (tmp_path / "lock").write_bytes(text)
        with pytest.raises(LockHeldError, match="another watchdog holds it"):
            lock_directory(tmp_path)
        other.kill()


@pytest.mark.parametrize("thing", ["directory", "pipe", "loop", "missing"])
def test_what_is_no_file_cannot_be_locked(tmp_path: Path, thing: str) -> None:
    """FACT: it is refused in one line that says why, at once, and what is there stays."""
    path = tmp_path / "lock"
    match thing:
        case "directory":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case "loop":
            path.symlink_to(path)
        case _:
            path = tmp_path / "missing" / "lock"
    with pytest.raises(LockHeldError, match=f"^cannot lock {path}: [A-Z]") as caught:
        lock_directory(path.parent)
    assert caught.value.pid is None
