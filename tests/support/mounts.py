"""Real mounts for tests: small ones, and one that never answers. All are gone afterwards."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def mounted(point: Path, *words: str, keep: tuple[int, ...] = ()) -> Iterator[Path]:
    """``mount WORDS point``, where ``keep`` are descriptors that it needs."""
    point.mkdir(parents=True, exist_ok=True)
    command = ["mount", *words, str(point)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, pass_fds=keep)
    if done.returncode:
        pytest.skip(f"this machine cannot mount: {done.stderr.strip()}")
    try:
        yield point
    finally:
        subprocess.run(["umount", "-l", str(point)], check=True)


def tmpfs(point: Path, options: str) -> contextlib.AbstractContextManager[Path]:
    """A file system in memory with such options."""
    return mounted(point, "-t", "tmpfs", "-o", options, "tmpfs")


@contextlib.contextmanager
def disk(point: Path, *, mebibytes: int = 8, inodes: int = 64) -> Iterator[Path]:
    """An ext4 in a file beside ``point``, of which nothing is reserved for root."""
    image = point.with_name(f"{point.name}.img")
    with image.open("wb") as file:
        file.truncate(mebibytes << 20)
    made = ["mkfs.ext4", "-q", "-m", "0", "-O", "^has_journal", "-N", str(inodes), str(image)]
    subprocess.run(made, check=True, capture_output=True)
    with mounted(point, "-o", "loop", str(image)):
        yield point


class Silent:
    """A FUSE mount whose server never answers. ``end`` is the end of the server."""

    def __init__(self) -> None:
        self._server: int | None = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)

    @property
    def server(self) -> int:
        """The descriptor, while it is open."""
        assert self._server is not None
        return self._server

    def end(self) -> None:
        """From now on everybody who waits, or comes, gets an error."""
        if self._server is not None:
            os.close(self._server)
            self._server = None


@contextlib.contextmanager
def silent(point: Path) -> Iterator[Silent]:
    """Mounts it: whatever touches ``point`` hangs until ``end``."""
    fuse = Silent()
    options = f"fd={fuse.server},rootmode=40000,user_id=0,group_id=0"
    words = ("-i", "-t", "fuse", "-o", options, "silent")
    try:
        with mounted(point, *words, keep=(fuse.server,)):
            try:
                yield fuse
            finally:
                fuse.end()  # before the mount is taken away, so that nobody waits any more
    finally:
        fuse.end()
