"""The GPU probe on a real card.

Where this project's plug-ins of pytest are missing:
``python -m pytest -c /dev/null --rootdir=. --import-mode=importlib tests/gpu``.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from probes._nvml.client import NvmlClient
from probes.gpu import Gpu
from tests.support.fake_nvml import asking, sweep
from watchdog.core.model import Sampled

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not Path("/dev/nvidia0").exists(), reason="there is no NVIDIA GPU here"),
]


@pytest.fixture
def client() -> Iterator[NvmlClient]:
    """A client of the real library."""
    with asking({}) as asked:
        yield asked


def test_the_probe_samples_everything(client: NvmlClient) -> None:
    """FACT: every card brings all nine samples, and nothing is unread."""
    found = list(Gpu(client).read(time.monotonic() + 60))
    assert all(isinstance(one, Sampled) for one in found)
    cards: dict[str, set[str]] = {}
    for one in found:
        assert isinstance(one, Sampled)
        cards.setdefault(dict(one.labels)["uuid"], set()).add(one.sample)
    assert cards
    assert all(len(names) == 9 for names in cards.values())


def test_sampling_holds_no_gpu_memory(client: NvmlClient) -> None:
    """FACT: sweeps change nothing in the memory in use, and the worker is on no list."""
    first = last = sweep(client, 60)["gpus"]
    for _ in range(20):
        last = sweep(client)["gpus"]
        listed = {pid for card in last for pid, _ in card["processes"]}
        assert not listed & set(client.pids)
    if not any(card["processes"] for card in (*first, *last)):
        used = [[card["memory_used_bytes"] for card in cards] for cards in (first, last)]
        assert used[0] == used[1]


def test_the_client_loads_no_library(client: NvmlClient) -> None:
    """FACT: the process that asks has neither pynvml nor the library in it."""
    sweep(client, 60)
    assert "pynvml" not in sys.modules
    assert "libnvidia-ml" not in Path("/proc/self/maps").read_text()
