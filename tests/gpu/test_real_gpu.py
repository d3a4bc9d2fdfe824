"""The worker and the GPU probe on a real card; ``-s`` shows the raw readings.

Where this project's plug-ins of pytest are missing:
``python -m pytest -c /dev/null --rootdir=. --import-mode=importlib tests/gpu``; likewise
``-k real tests/contract/test_nvml.py``.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from probes._nvml.client import NvmlClient
from probes.gpu import PROBE, Gpu
from tests.gpu.conftest import Holding
from tests.support.fake_nvml import sweep
from tests.support.simulated import until
from watchdog.core.model import Sampled

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not Path("/dev/nvidia0").exists(), reason="there is no NVIDIA GPU here"),
]

HELD = 2 << 30
"""Bytes that the other process holds; its context comes on top."""
CONTEXT = 1 << 30


def held(client: NvmlClient) -> dict[int, int | None]:
    """Bytes by pid, on all cards."""
    answer: dict[str, Any] = client.ask("processes", time.monotonic() + 60)
    return {row[0]: row[1] for card in answer["gpus"] for row in card["processes"]}


def test_the_probe_samples_everything(client: NvmlClient) -> None:
    """FACT: every card brings all that a card without switch and links has; nothing is unread."""
    found = list(Gpu(client).read(time.monotonic() + 60))
    assert all(isinstance(one, Sampled) for one in found)
    cards: dict[str, set[str]] = {}
    for one in found:
        assert isinstance(one, Sampled)
        cards.setdefault(dict(one.labels)["uuid"], set()).add(one.sample)
    assert cards
    optional = {"fabric_state", "nvlinks_active"}
    for names in cards.values():
        assert {spec.name for spec in PROBE.samples} - names <= optional


def test_raw_readings(client: NvmlClient) -> None:
    """FACT: all three requests are answered, one after the other; here is what they say."""
    for request in ("cards", "processes", "events"):
        answer = client.ask(request, time.monotonic() + 60)
        sys.stdout.write(f"{request}: {json.dumps(answer)}\n")
        assert answer


def test_a_process_that_holds_memory_is_seen(client: NvmlClient, holding: Holding) -> None:
    """FACT: a real process is listed with what it holds, and is gone from the list at its end."""
    with holding(HELD) as process:
        used = held(client).get(process.pid)
        assert used is not None
        assert HELD <= used <= HELD + CONTEXT
    until(lambda: process.pid not in held(client))


def test_sampling_holds_no_gpu_memory(client: NvmlClient) -> None:
    """FACT: looks change nothing in the memory in use, and the worker has no context: no row."""
    first = sweep(client, 60)["gpus"]
    last, listed = first, held(client)
    for _ in range(20):
        last = sweep(client)["gpus"]
        listed |= held(client)
        assert not set(listed) & set(client.pids)
    if not listed:
        used = [[card["memory_used_bytes"] for card in cards] for cards in (first, last)]
        assert used[0] == used[1]


def test_the_client_loads_no_library(client: NvmlClient) -> None:
    """FACT: the process that asks has neither pynvml nor the library in it."""
    sweep(client, 60)
    assert "pynvml" not in sys.modules
    assert "libnvidia-ml" not in Path("/proc/self/maps").read_text()
