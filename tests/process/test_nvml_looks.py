"""What the worker makes of a card that is ill, old or odd: real worker, a library of our own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from probes._nvml.client import NvmlClient
from probes.gpu import Gpu
from tests.support import fake_nvml
from tests.support.fake_nvml import LOST, FakeNvml, asking, sweep
from tests.support.simulated import PATIENCE, until
from watchdog.core.model import Sampled, Unread

NEEDS_RESET = 16
ALL_ONES = 0xFFFFFFFF
ALL_ONES_LONG = 0xFFFFFFFFFFFFFFFF


@pytest.fixture
def nvml(tmp_path: Path) -> FakeNvml:
    """A loaded H200."""
    return fake_nvml.build(tmp_path)


@pytest.fixture
def client(nvml: FakeNvml) -> Iterator[NvmlClient]:
    """A client of that card."""
    with asking(nvml.environment) as asked:
        yield asked


def read(client: NvmlClient) -> list[Sampled | Unread]:
    """What the probe makes of one look."""
    return list(Gpu(client).read(time.monotonic() + 30))


def states(found: list[Sampled | Unread]) -> dict[str, str]:
    """The state of every card, by index."""
    return {
        dict(one.labels)["gpu"]: str(one.value)
        for one in found
        if isinstance(one, Sampled) and one.sample == "state"
    }


def errors(found: list[Sampled | Unread]) -> list[str]:
    """What was unread, in words."""
    return [one.error for one in found if isinstance(one, Unread)]


def names(found: list[Sampled | Unread]) -> set[str]:
    """The samples that there are."""
    return {one.sample for one in found if isinstance(one, Sampled)}


def card(client: NvmlClient) -> dict[str, Any]:
    """The only card."""
    (only,) = sweep(client)["gpus"]
    found: dict[str, Any] = only
    return found


def held(client: NvmlClient) -> dict[str, Any]:
    """The only card's answer about processes."""
    (only,) = client.ask("processes", time.monotonic() + PATIENCE)["gpus"]
    found: dict[str, Any] = only
    return found


def test_a_lost_card_hides_no_other(nvml: FakeNvml, client: NvmlClient) -> None:
    """FACT: of eight cards the lost one is unread and has its state, the others are sampled."""
    nvml.cards = 8
    nvml.set({"5.lost": LOST})
    found = read(client)
    assert errors(found) == ["cannot read GPU 5: GPU is lost"]
    assert states(found) == {str(index): "lost" if index == 5 else "ok" for index in range(8)}
    powers = {
        dict(one.labels)["gpu"]
        for one in found
        if isinstance(one, Sampled) and one.sample == "power_watts"
    }
    assert powers == {"0", "1", "2", "3", "4", "6", "7"}


def test_a_lost_card_is_who_it_was(nvml: FakeNvml, client: NvmlClient) -> None:
    """FACT: a card that is lost between two looks is unread under its UUID, and says no more."""
    sweep(client)
    nvml.set(lost=LOST)
    unread, state = read(client)
    assert isinstance(unread, Unread)
    assert isinstance(state, Sampled)
    assert str(unread.subject) == str(state.subject) == f"gpu/{fake_nvml.uuid(0)}"
    assert state.value == "lost"


def test_a_card_that_comes_back_is_read(nvml: FakeNvml, client: NvmlClient) -> None:
    """FACT: after a reset the library is started afresh, and the card is as it was before."""
    sweep(client)
    nvml.set(lost=LOST)
    assert states(read(client)) == {"0": "lost"}
    nvml.heal()
    assert states(read(client)) == {"0": "ok"}
    assert card(client)["energy_joules"] > 0


def test_a_card_that_is_not_counted_any_more_is_named(nvml: FakeNvml, client: NvmlClient) -> None:
    """FACT: a card that vanishes from the driver's count does not vanish from the answer."""
    nvml.cards = 2
    nvml.write()
    sweep(client)
    nvml.cards = 1
    nvml.write()
    found = read(client)
    assert errors(found) == ["cannot read GPU 1: GPU not found"]
    assert states(found) == {"0": "ok", "1": "GPU not found"}


def test_one_look_that_finds_it_lost_is_enough(nvml: FakeNvml, client: NvmlClient) -> None:
    """FACT: "GPU is lost" of any call is about the card, and nothing older is told beside it."""
    sweep(client)
    nvml.set({"error.nvmlDeviceGetPowerUsage": LOST})
    found = read(client)
    assert states(found) == {"0": "lost"}
    assert names(found) == {"state"}


@pytest.mark.parametrize(
    ("code", "state"),
    [(NEEDS_RESET, "needs reset"), (999, "unknown error"), (4, "no permission")],
)
def test_a_card_without_a_handle_has_a_state(
    nvml: FakeNvml, client: NvmlClient, code: int, state: str
) -> None:
    """FACT: a card that may not be opened is unread under its index, the other is sampled."""
    nvml.cards = 2
    nvml.set({"0.error.nvmlDeviceGetHandleByIndex": code})
    found = read(client)
    assert states(found) == {"0": state, "1": "ok"}
    unread = [one for one in found if isinstance(one, Unread)]
    assert [str(one.subject) for one in unread] == ["gpu/index-0"]


def test_a_card_that_fails_in_everything_has_that_state(nvml: FakeNvml, client: NvmlClient) -> None:
    """FACT: a card whose every look gives the same error has it as its state, once."""
    sweep(client)
    nvml.set({"lost": 17, "error.nvmlDeviceGetUUID": "0"})
    found = read(client)
    assert set(states(found).values()) <= {"blocked by the operating system"}
    assert errors(found) == ["cannot read GPU 0: blocked by the operating system"]


FUNCTIONS = {
    "nvmlDeviceGetMemoryInfo": "memory_used_bytes",
    "nvmlDeviceGetTemperature": "temperature_celsius",
    "nvmlDeviceGetPowerUsage": "power_watts",
    "nvmlDeviceGetEnforcedPowerLimit": "power_limit_watts",
    "nvmlDeviceGetClockInfo": "sm_clock_hertz",
    "nvmlDeviceGetMaxClockInfo": "sm_clock_max_hertz",
    "nvmlDeviceGetPerformanceState": "performance_state",
    "nvmlDeviceGetTotalEnergyConsumption": "energy_joules",
    "nvmlDeviceGetEccMode": "ecc_corrected_errors",
    "nvmlDeviceGetTotalEccErrors": "ecc_uncorrected_errors",
    "nvmlDeviceGetRemappedRows": "remap_pending",
    "nvmlDeviceGetPcieReplayCounter": "pcie_replays",
    "nvmlDeviceGetCurrPcieLinkWidth": "pcie_link_width",
    "nvmlDeviceGetMarginTemperature": "temperature_margin_celsius",
    "nvmlDeviceGetTemperatureThreshold": "temperature_slowdown_celsius",
    "nvmlDeviceGetFieldValues": "recovery_action",
    "nvmlDeviceGetMigMode": "mig",
    "nvmlDeviceGetUtilizationRates": "utilization_percent",
}


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("code", [fake_nvml.NOT_SUPPORTED, 6, 13])
def test_what_a_card_cannot_do_is_absent(
    nvml: FakeNvml, client: NvmlClient, function: str, code: int
) -> None:
    """FACT: "not supported" is no error: that sample is missing, and all others are there."""
    nvml.set({f"error.{function}": code, f"error.{function}_v2": code})
    for _ in range(2):
        found = read(client)
        assert errors(found) == []
        assert FUNCTIONS[function] not in names(found)
        assert states(found) == {"0": "ok"}
        assert len(names(found) & set(FUNCTIONS.values())) >= len(FUNCTIONS) - 2


def test_what_is_absent_is_asked_once(nvml: FakeNvml, client: NvmlClient) -> None:
    """FACT: a call that a card does not have is left out from then on."""
    nvml.set({"error.nvmlDeviceGetPowerUsage": fake_nvml.NOT_SUPPORTED})
    sweep(client)
    nvml.heal()
    assert "power_watts" not in card(client)


def test_a_failing_reading_is_unread_until_it_works(nvml: FakeNvml, client: NvmlClient) -> None:
    """FACT: another error than "not supported" is said, and asked again at the next look."""
    nvml.set({"error.nvmlDeviceGetPowerUsage": 999})
    assert errors(read(client)) == ["cannot read GPU 0 (power): unknown error"]
    nvml.heal()
    assert card(client)["power_watts"] == 218.921


def test_a_question_that_is_no_question_is_dropped(nvml: FakeNvml, client: NvmlClient) -> None:
    """FACT: "invalid argument" is a stale handle once, and after a fresh start just absent."""
    nvml.set({"error.nvmlDeviceGetPowerUsage": 2})
    assert errors(read(client)) == ["cannot read GPU 0 (power): invalid argument"]
    found = read(client)
    assert errors(found) == []
    assert "power_watts" not in names(found)


def test_versions_are_no_condition(nvml: FakeNvml, client: NvmlClient) -> None:
    """FACT: a driver that does not tell its versions is read all the same."""
    nvml.set({"error.nvmlSystemGetDriverVersion": 999, "error.nvmlSystemGetCudaDriverVersion": 13})
    answer = sweep(client)
    assert "driver" not in answer
    assert len(answer["gpus"]) == 1


SENTINELS: Mapping[str, tuple[str, object]] = {
    "power": ("power_watts", {"power_milliwatts": ALL_ONES}),
    "clock": ("sm_clock_hertz", {"clock_sm": ALL_ONES}),
    "cold": ("temperature_celsius", {"temperature": 0}),
    "hot": ("temperature_celsius", {"temperature": 200}),
    "nowhere": ("temperature_celsius", {"temperature": ALL_ONES}),
    "memory cold": ("memory_temperature_celsius", {"field.82": "0 1 0"}),
    "energy": ("energy_joules", {"energy_millijoules": ALL_ONES_LONG}),
    "replays": ("pcie_replays", {"pcie_replays": ALL_ONES}),
    "ecc": ("ecc_corrected_errors", {"ecc_corrected": ALL_ONES_LONG}),
    "lanes": ("pcie_link_width", {"pcie_width": 63}),
    "state": ("performance_state", {"performance_state": 32}),
    "used": ("memory_used_bytes", {"memory_used": ALL_ONES_LONG}),
    "busy": ("utilization_percent", {"utilization": ALL_ONES}),
    "element": ("recovery_action", {"field.230": "3 1 0"}),
    "ecc off": ("ecc_corrected_errors", {"ecc_mode": "0 0"}),
    "split": ("utilization_percent", {"mig_mode": "1 1"}),
    "no fabric": ("fabric_state", {"fabric": "0 0 0 0 0"}),
}


@pytest.mark.parametrize("which", SENTINELS)
def test_what_nobody_knows_is_absent(nvml: FakeNvml, client: NvmlClient, which: str) -> None:
    """FACT: a number that means "not available" is no number, and no error."""
    name, change = SENTINELS[which]
    assert isinstance(change, dict)
    nvml.set(change)
    found = read(client)
    assert name not in names(found)
    assert errors(found) == []
    assert "memory_total_bytes" in names(found)


def told(name: str, value: object) -> Callable[[Mapping[str, Any]], bool]:
    """Whether a card tells that."""
    return lambda one: bool(one.get(name) == value)


READINGS: Mapping[str, tuple[Mapping[str, object], Callable[[Mapping[str, Any]], bool]]] = {
    "signed": (
        {"field.194": f"0 5 {ALL_ONES - 1}"},
        told("temperature_slowdown_margin_celsius", -2),
    ),
    "recovery": ({"field.230": "0 1 2"}, told("recovery_action", 2)),
    "fabric": ({"fabric": "2 0 0 0 0"}, told("fabric_state", 2)),
    "links": (
        {
            "field.165": "3 1 0",
            "field.165.0": "0 1 1",
            "field.165.1": "0 1 2",
            "field.165.2": "0 1 0",
        },
        told("nvlinks_active", 2),
    ),
    "pending": ({"remapped_rows": "1 2 1 0"}, told("remap_pending", 1)),
    "rows": ({"remapped_rows": "1 2 1 0"}, told("remapped_rows_uncorrected", 2)),
    "seconds": (
        {"field.271": "0 3 1500000000"},
        lambda one: bool(one["throttle_seconds"]["hw_power_brake"] == 1.5),
    ),
    "old seconds": (
        {"field.74": "3 3 0", "violation.0": 2_000_000_000},
        lambda one: bool(one["throttle_seconds"]["sw_power_cap"] == 2),
    ),
    "split": ({"mig_mode": "1 1"}, told("mig", 1)),
    "one bit of R615": ({"reasons": 0x204}, told("reasons", 0x204)),
}


@pytest.mark.parametrize("which", READINGS)
def test_it_reads(nvml: FakeNvml, client: NvmlClient, which: str) -> None:
    """FACT: signs, units and structures come out right."""
    change, right = READINGS[which]
    nvml.set(change)
    assert right(card(client))


def test_utilization_is_a_mean(nvml: FakeNvml, client: NvmlClient) -> None:
    """FACT: what the driver sampled is averaged, and the mean holds until there are more."""
    now = int(time.time() * 1e6) + 60_000_000
    nvml.set(sample=[f"{now} 10", f"{now + 1} 30"], utilization=99)
    assert card(client)["utilization_percent"] == 20
    nvml.set(sample=[f"{now} 10", f"{now + 1} 30", f"{now + 2} 70"])
    assert card(client)["utilization_percent"] == 20
    until(lambda: card(client)["utilization_percent"] == 70)
    until(lambda: card(client)["utilization_percent"] == 99)


def test_utilization_without_samples_is_the_rate(nvml: FakeNvml, client: NvmlClient) -> None:
    """FACT: a driver that keeps no samples tells its rate at every look."""
    nvml.set({"samples": "-", "sample": None, "utilization": 99})
    assert card(client)["utilization_percent"] == 99
    nvml.set(utilization=3)
    assert card(client)["utilization_percent"] == 3


def test_reasons_are_told_one_by_one(nvml: FakeNvml, client: NvmlClient) -> None:
    """FACT: every reason that the card can have is sampled, and an unknown bit is "other"."""
    nvml.set(reasons=0x10044, reasons_supported=0x1FF)
    found = {
        dict(one.labels)["reason"]: one.value
        for one in read(client)
        if isinstance(one, Sampled) and one.sample == "throttled"
    }
    assert {reason for reason, active in found.items() if active} == {
        "sw_power_cap",
        "hw_thermal",
        "other",
    }
    assert len(found) == 10
    assert "reliability" not in found


def test_a_slow_reading_holds_until_the_next(nvml: FakeNvml, client: NvmlClient) -> None:
    """FACT: what costs the driver much is not read at every look, and told at every look."""
    first = card(client)
    nvml.set(energy_millijoules=5_000_000_000, clock_max_sm=1, utilization=1)
    second = card(client)
    assert second["energy_joules"] == first["energy_joules"]
    assert second["sm_clock_max_hertz"] == first["sm_clock_max_hertz"]


@pytest.mark.parametrize("flag", [fake_nvml.OLD_LIBRARY, fake_nvml.LONG_PROCESSES])
def test_an_old_library_is_read(tmp_path: Path, flag: str) -> None:
    """FACT: without the newer calls the older ones are used, and either list of processes."""
    old = fake_nvml.build(tmp_path, flag)
    old.set(process=["7 4096", "8 8192", "9 -"])
    with asking(old.environment) as client:
        found = read(client)
        assert errors(found) == []
        assert {"utilization_percent", "memory_used_bytes", "throttled"} <= names(found)
        assert [row[:2] for row in held(client)["processes"]] == [[7, 4096], [8, 8192], [9, None]]
