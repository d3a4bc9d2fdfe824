"""The files that a vLLM start leaves behind: sockets, a rendezvous file, a shared memory segment.

Measured on vLLM 0.32: six uuid-named Unix sockets and one ``vllm_dist_<hex>`` file for each start,
never removed; ``/dev/shm/psm_<hex>`` is unlinked by the resource tracker.
"""

import os
import socket
from multiprocessing import resource_tracker
from pathlib import Path

SOCKETS_PER_START = 6
_RING_BUFFER_BYTES = 160 << 20
_RENDEZVOUS_BYTES = 2400


def temporary_directory() -> Path:
    """TMPDIR, as tempfile would choose it."""
    return Path(os.environ.get("TMPDIR") or "/tmp")  # noqa: S108 - as vLLM does


def socket_directory() -> Path:
    """Where vLLM puts its sockets."""
    base = os.environ.get("VLLM_RPC_BASE_PATH")
    return Path(base) if base else temporary_directory()


def new_listener() -> tuple[socket.socket, Path]:
    """A listening socket at a new uuid-named path; raises OSError (path too long, no directory)."""
    path = socket_directory() / _uuid4()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen()
    return listener, path


def connect(path: Path) -> socket.socket:
    """The other end of new_listener."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(str(path))
    return connection


def leave_sockets(count: int) -> None:
    """Sockets that nobody uses; their inodes stay."""
    for _ in range(count):
        new_listener()[0].close()


def leave_rendezvous_file() -> None:
    """The torch FileStore of the process group; sparse here."""
    path = temporary_directory() / f"vllm_dist_{os.urandom(16).hex()}"
    path.write_bytes(b"\0" * _RENDEZVOUS_BYTES)


def create_ring_buffer() -> str:
    """A sparse segment in /dev/shm, registered with the resource tracker; the name."""
    name = f"/psm_{os.urandom(4).hex()}"
    descriptor = os.open(f"/dev/shm{name}", os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)  # noqa: S108
    os.ftruncate(descriptor, _RING_BUFFER_BYTES)  # held open to the end, as the engine maps it
    resource_tracker.register(name, "shared_memory")
    return name


def _uuid4() -> str:
    digits = os.urandom(16).hex()
    return "-".join((digits[:8], digits[8:12], "4" + digits[13:16], digits[16:20], digits[20:]))
