"""The one worker that all probes of a process share: real processes, a library of our own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from probes._nvml.client import NvmlUnavailableError, lease
from tests.support import fake_nvml
from tests.support.fake_nvml import FakeNvml
from tests.support.simulated import PATIENCE, ROOT

# Two leases: what they share, what remains when one is given back, and a new one afterwards.
LEASES = """
import time
from probes._nvml.client import NvmlUnavailableError, lease
first, second = lease(), lease()
first.ask("cards", time.monotonic() + 60)
second.ask("events", time.monotonic() + 60)
print("shared" if first.pids == second.pids else "apart", len(first.pids))
first.close()
try:
    first.ask("cards", time.monotonic() + 60)
except NvmlUnavailableError:
    print("refused")
second.ask("cards", time.monotonic() + 60)
print(len(second.pids))
second.close()
print(len(second.pids))
third = lease()
third.ask("cards", time.monotonic() + 60)
print("again", len(third.pids))
third.close()
print(len(third.pids))
"""


@pytest.fixture
def nvml(tmp_path: Path) -> FakeNvml:
    """A loaded H200."""
    return fake_nvml.build(tmp_path)


def test_a_lease_is_shared_and_counted(nvml: FakeNvml) -> None:
    """FACT: all leases of a process have one worker, which ends with the last of them."""
    child = subprocess.run(
        [sys.executable, "-c", LEASES],
        env={**os.environ, **nvml.environment},
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert child.stdout.split() == ["shared", "1", "refused", "1", "0", "again", "1", "0"]


def test_leases_end_the_worker_once() -> None:
    """FACT: giving back twice takes nothing from the other holder."""
    first, second = lease(), lease()
    try:
        first.close()
        first.close()
        with pytest.raises(NvmlUnavailableError, match="no time left"):
            first.ask("cards", time.monotonic() + PATIENCE)
    finally:
        second.close()
    assert second.pids == ()
