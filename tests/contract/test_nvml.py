"""What the worker says about cards, whoever answers: the fake library, and the real one."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from probes._nvml.client import NvmlClient
from probes.gpu import PROBE, Gpu
from tests.support import fake_nvml
from tests.support.fake_nvml import RECORDINGS, asking, sweep
from tests.support.simulated import PATIENCE
from watchdog.core.model import Sampled

REAL = Path("/dev/nvidia0")
BACK_ENDS = (
    "fake",
    "recorded idle",
    "recorded load",
    pytest.param(
        "real",
        marks=[
            pytest.mark.gpu,
            pytest.mark.skipif(not REAL.exists(), reason="there is no NVIDIA GPU here"),
        ],
    ),
)


@pytest.fixture(params=BACK_ENDS)
def client(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[NvmlClient]:
    """A client of each library in turn; recordings answer as slowly as the card did."""
    environment: dict[str, str] = {}
    if request.param != "real":
        fake = fake_nvml.build(tmp_path)
        _, _, load = request.param.partition(" ")
        if load:
            fake.set(fake_nvml.from_recording(RECORDINGS[load], latencies=True))
        environment = fake.environment
    with asking(environment) as asked:
        yield asked


def cards(client: NvmlClient) -> list[dict[str, Any]]:
    """All cards of one look; there is at least one."""
    found: list[dict[str, Any]] = sweep(client, 60)["gpus"]
    assert found
    return found


def ask(client: NvmlClient, request: str) -> dict[str, Any]:
    """An answer that must come."""
    return client.ask(request, time.monotonic() + PATIENCE)


def test_it_names_every_card(client: NvmlClient) -> None:
    """FACT: cards come in NVML's order, each with a name, a UUID and an address of its own."""
    found = cards(client)
    assert [card["index"] for card in found] == list(range(len(found)))
    assert len({card["uuid"] for card in found}) == len(found)
    assert len({card["bus_id"] for card in found}) == len(found)
    assert all(re.fullmatch(r"GPU-[0-9a-f-]{36}", card["uuid"]) for card in found)
    assert all(re.fullmatch(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.0", c["bus_id"]) for c in found)
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
        assert card["power_watts"] < 1.2 * card["power_limit_watts"]
        assert 0 < card["temperature_celsius"] < 120
        assert 10**8 < card["sm_clock_hertz"] <= card["sm_clock_max_hertz"] < 10**10
        assert 0 <= card["performance_state"] < 16


def test_states_are_in_range(client: NvmlClient) -> None:
    """FACT: links, rows, errors, energy and throttling are those of a healthy card."""
    for card in cards(client):
        assert 1 <= card["pcie_link_generation"] <= card["pcie_link_generation_max"] <= 7
        assert 1 <= card["pcie_link_width"] <= card["pcie_link_width_max"] <= 32
        assert 40 < card["temperature_slowdown_celsius"] < 130
        assert -30 < card["temperature_slowdown_margin_celsius"] < 30
        assert card["remap_failed"] is False
        assert card["recovery_action"] == 0
        assert card["energy_joules"] > 0
        assert card["ecc_uncorrected_errors"] >= 0
        seconds = card["throttle_seconds"]
        expected = {"sw_power_cap", "sw_thermal", "hw_thermal", "hw_power_brake", "sync_boost"}
        assert expected <= set(seconds)
        assert all(0 <= value < 10**8 for value in seconds.values())


def test_a_second_look_tells_as_much(client: NvmlClient) -> None:
    """FACT: what is looked at seldom is told every time."""
    first, second = ([set(card) for card in cards(client)] for _ in range(2))
    assert first == second


def test_processes_come_with_their_memory(client: NvmlClient) -> None:
    """FACT: a compute process is a pid and the bytes it holds, or None when nobody tells."""
    for card in ask(client, "processes")["gpus"]:
        assert not card["errors"]
        assert card["mig"] is False
        for pid, used, gpu, compute in card["processes"]:
            assert isinstance(pid, int)
            assert used is None or 0 <= used <= card["memory_total_bytes"]
            assert gpu is None
            assert compute is None


def test_events_are_supported_and_wait_for_nothing(client: NvmlClient) -> None:
    """FACT: a healthy card reports Xids, and has none to report."""
    for _ in range(2):
        assert ask(client, "events") == {"events": [], "supported": True}


def test_it_tells_the_versions(client: NvmlClient) -> None:
    """FACT: the driver's version and the CUDA version it supports come with every look."""
    answer = sweep(client)
    assert re.fullmatch(r"\d+\.\d+(\.\d+)?", answer["driver"])
    assert re.fullmatch(r"\d+\.\d", answer["cuda"])


def test_requests_share_one_worker(client: NvmlClient) -> None:
    """FACT: all requests ask the process that answered the first."""
    sweep(client)
    before = client.pids
    for request in ("cards", "processes", "events"):
        ask(client, request)
    assert len(before) == 1
    assert client.pids == before


def test_the_worker_uses_no_gpu(client: NvmlClient) -> None:
    """FACT: NVML does not list the worker among the processes that hold GPU memory."""
    cards(client)
    listed = {row[0] for card in ask(client, "processes")["gpus"] for row in card["processes"]}
    assert not listed & set(client.pids)


def test_the_probe_samples_what_it_declares(client: NvmlClient) -> None:
    """FACT: every sample is declared, of its type, and nothing of a healthy card is unread."""
    declared = {spec.name: spec for spec in PROBE.samples}
    found = list(Gpu(client).read(time.monotonic() + PATIENCE))
    assert found
    for one in found:
        assert isinstance(one, Sampled)
        spec = declared[one.sample]
        assert type(one.value) is spec.type
        assert tuple(name for name, _ in one.labels) == spec.labels
    absent = {"fabric_state", "nvlinks_active"}  # this card has neither
    assert set(declared) - {one.sample for one in found if isinstance(one, Sampled)} <= absent
