"""Processes and Xid events through the worker: real worker, a library of our own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from probes._nvml.client import NvmlClient
from tests.support import fake_nvml
from tests.support.fake_nvml import FakeNvml, asking, sweep
from tests.support.simulated import PATIENCE


@pytest.fixture
def nvml(tmp_path: Path) -> FakeNvml:
    """A loaded H200."""
    return fake_nvml.build(tmp_path)


@pytest.fixture
def client(nvml: FakeNvml) -> Iterator[NvmlClient]:
    """A client of that card."""
    with asking(nvml.environment) as asked:
        yield asked


def held(client: NvmlClient) -> dict[str, Any]:
    """The only card's answer about processes."""
    (only,) = client.ask("processes", time.monotonic() + PATIENCE)["gpus"]
    found: dict[str, Any] = only
    return found


def happened(client: NvmlClient) -> dict[str, Any]:
    """The events since the last look."""
    return client.ask("events", time.monotonic() + PATIENCE)


def test_odd_processes_are_told_as_they_are(nvml: FakeNvml, client: NvmlClient) -> None:
    """FACT: impossible pids come through, unknown memory is None, and nobody is listed twice."""
    nvml.set(process=["0 1024", "4294967295 2048", "7 -", "7 -", *["8 4096"] * 20, "8 64 1 2"])
    assert held(client)["processes"] == [
        [0, 1024, None, None],
        [4294967295, 2048, None, None],
        [7, None, None, None],
        [8, 4096, None, None],
        [8, 64, 1, 2],
    ]


def test_processes_that_cannot_be_listed_are_no_empty_list(
    nvml: FakeNvml, client: NvmlClient
) -> None:
    """FACT: a driver that does not list processes does not say that there are none."""
    nvml.set({"error.nvmlDeviceGetComputeRunningProcesses": 4})
    answer = held(client)
    assert "processes" not in answer
    assert answer["errors"] == {"processes": "no permission"}
    assert answer["memory_total_bytes"] > 0


def test_no_cards_is_no_error(nvml: FakeNvml, client: NvmlClient) -> None:
    """FACT: a driver without a card is an empty answer."""
    nvml.cards = 0
    nvml.write()
    assert sweep(client)["gpus"] == []
    assert happened(client) == {"events": [], "supported": False}


def test_xids_are_told_once(nvml: FakeNvml, client: NvmlClient) -> None:
    """FACT: an Xid is in the first answer after it, with its card, and in no later one."""
    nvml.cards = 2
    nvml.write()
    assert happened(client) == {"events": [], "supported": True}
    nvml.xid(31, 1)
    nvml.xid(13, 0, 3, 4)
    first = {"uuid": fake_nvml.uuid(1), "bus_id": fake_nvml.bus_id(1), "xid": 31}
    second = {"uuid": fake_nvml.uuid(0), "bus_id": fake_nvml.bus_id(0), "xid": 13}
    assert happened(client)["events"] == [
        {**first, "gi": None, "ci": None},
        {**second, "gi": 3, "ci": 4},
    ]
    assert happened(client)["events"] == []


def test_a_card_without_events_is_not_supported(nvml: FakeNvml, client: NvmlClient) -> None:
    """FACT: where no card reports Xids the answer says so."""
    nvml.set(event_types=0)
    assert happened(client) == {"events": [], "supported": False}


def test_a_broken_set_is_made_anew(nvml: FakeNvml, client: NvmlClient) -> None:
    """FACT: an error of the set costs what it held, and not what comes after."""
    happened(client)
    nvml.set({"error.nvmlEventSetWait": 999})
    happened(client)
    nvml.heal()
    happened(client)
    nvml.xid(79)
    assert [event["xid"] for event in happened(client)["events"]] == [79]
