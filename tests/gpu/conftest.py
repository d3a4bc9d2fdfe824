"""What the tests on a real card share: a process that holds memory, and one that faults."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest

from probes._nvml.client import NvmlClient
from tests.gpu.cuda_programs import FAULTY, HOLDER
from tests.support.fake_nvml import asking

Holding = Callable[[int], AbstractContextManager[subprocess.Popen[str]]]


@pytest.fixture
def client() -> Iterator[NvmlClient]:
    """A client of the real library."""
    with asking({}) as asked:
        yield asked


@pytest.fixture
def holding() -> Holding:
    """Starts a process that holds so many bytes of the first card; gone afterwards."""
    return holder


@contextlib.contextmanager
def holder(size: int) -> Iterator[subprocess.Popen[str]]:
    """The process, once it holds the memory."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(size)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == str(process.pid)
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def faulty() -> Callable[[], int]:
    """Runs a kernel that writes out of bounds, and returns the pid of the process it ended in."""

    def run() -> int:
        process = subprocess.Popen([sys.executable, "-c", FAULTY], stdout=subprocess.PIPE)
        out, _ = process.communicate(timeout=120)
        assert process.returncode == 0, out
        return process.pid

    return run
