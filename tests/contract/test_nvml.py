"""What the worker says about cards, whoever answers: the fake library, and the real one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from probes._nvml.client import NvmlClient
from tests.support import fake_nvml
from tests.support.fake_nvml import asking, sweep

REAL = Path("/dev/nvidia0")


@pytest.fixture(
    params=[
        "fake",
        pytest.param(
            "real",
            marks=[
                pytest.mark.gpu,
                pytest.mark.skipif(not REAL.exists(), reason="there is no NVIDIA GPU here"),
            ],
        ),
    ]
)
def client(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[NvmlClient]:
    """A client of each library in turn."""
    fake = request.param == "fake"
    with asking(fake_nvml.build(tmp_path).environment if fake else {}) as asked:
        yield asked


def cards(client: NvmlClient) -> list[dict[str, Any]]:
    """All cards of one sweep; there is at least one."""
    found: list[dict[str, Any]] = sweep(client)["gpus"]
    assert found
    return found


def test_it_names_every_card(client: NvmlClient) -> None:
    """FACT: cards come in NVML's order, each with a name and a UUID of its own."""
    found = cards(client)
    assert [card["index"] for card in found] == list(range(len(found)))
    assert len({card["uuid"] for card in found}) == len(found)
    assert all(re.fullmatch(r"GPU-[0-9a-f-]{36}", card["uuid"]) for card in found)
    assert all(card["name"] for card in found)


def test_readings_are_in_base_units(client: NvmlClient) -> None:
    """FACT: percent, bytes, watts, degrees and hertz are of the size that a card can have."""
    for card in cards(client):
        assert not card["errors"]
        assert 0 <= card["utilization_percent"] <= 100
        assert 0 <= card["memory_utilization_percent"] <= 100
        assert 0 <= card["memory_used_bytes"] <= card["memory_total_bytes"]
        assert card["memory_total_bytes"] > 1 << 30
        assert 1 < card["power_watts"] < 3000
        assert 0 < card["temperature_celsius"] < 120
        assert 10**8 < card["sm_clock_hertz"] < 10**10


def test_processes_come_with_their_memory(client: NvmlClient) -> None:
    """FACT: a compute process is a pid and the bytes it holds, or None when nobody tells."""
    for card in cards(client):
        for pid, used in card["processes"]:
            assert isinstance(pid, int)
            assert used is None or 0 <= used <= card["memory_total_bytes"]


def test_it_tells_the_versions(client: NvmlClient) -> None:
    """FACT: the driver's version and the CUDA version it supports come with every sweep."""
    answer = sweep(client)
    assert re.fullmatch(r"\d+\.\d+(\.\d+)?", answer["driver"])
    assert re.fullmatch(r"\d+\.\d", answer["cuda"])


def test_sweeps_share_one_worker(client: NvmlClient) -> None:
    """FACT: the second sweep asks the process that answered the first."""
    sweep(client)
    before = client.pids
    sweep(client)
    assert len(before) == 1
    assert client.pids == before


def test_the_worker_uses_no_gpu(client: NvmlClient) -> None:
    """FACT: NVML does not list the worker among the processes that hold GPU memory."""
    cards(client)
    listed = {pid for card in cards(client) for pid, _ in card["processes"]}
    assert not listed & set(client.pids)
