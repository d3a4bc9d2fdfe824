"""There is one watchdog a state directory and one a port."""

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
    """FACT: release frees it, twice does no harm; a directory that is missing is an OSError."""
    lock = lock_directory(tmp_path)
    lock.release()
    lock.release()
    lock_directory(tmp_path).release()

    with pytest.raises(FileNotFoundError):
        lock_directory(tmp_path / "missing")
