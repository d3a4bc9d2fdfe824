"""What the default rules say of GPUs and the driver, over time, and what they leave alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.box import IDLE_REASONS, card, cards, driver, gpu, holders, lost, xids
from tests.support.core import Story, metrics, unheard
from watchdog.core.engine import firing
from watchdog.core.model import Reading, Seconds, Value, Verdict

CRISIS = {"hw_thermal": True}
LOAD: dict[str, Value] = {
    "utilization_percent": 99.0,
    "memory_utilization_percent": 24.0,
    "power_watts": 691.0,
    "sm_clock_hertz": 1515e6,
}
"""An H200 under a matrix load, as measured."""


def fired(story: Story) -> set[str]:
    """Names of the rules that fire."""
    return {finding.rule for _, finding in firing(story.state)}


def lived(story: Story, readings: Iterator[Reading]) -> set[str]:
    """Every rule that fired at any time of ``readings``."""
    ever: set[str] = set()
    for one in readings:
        story.read(one)
        ever |= fired(story)
    return ever


def seconds(last: int, first: int = 0) -> Iterator[Seconds]:
    """Moments a second apart."""
    return (float(at) for at in range(first, last))


def test_a_healthy_card_fires_nothing_for_an_hour() -> None:
    """FACT: idle is no finding, whatever the clock and the link do at idle."""
    readings = (gpu(at, {"pcie_link_generation": 1 + int(at) % 5}) for at in seconds(3600))
    assert lived(unheard(), readings) == set()


def test_a_power_cap_at_full_load_is_normal() -> None:
    """FACT (G5): 691 W of 700 W with reason sw_power_cap all the time is no finding."""
    reasons = IDLE_REASONS | {"idle": False, "sw_power_cap": True}
    readings = (
        gpu(at, LOAD, reasons=reasons, throttled={"sw_power_cap": at * 0.9}) for at in seconds(900)
    )
    assert lived(unheard(), readings) == set()


@pytest.mark.parametrize(
    ("reason", "rules"),
    [
        ("hw_thermal", {"gpu-thermal-slowdown", "gpu-thermal-critical"}),
        ("sw_thermal", {"gpu-thermal-slowdown"}),
        ("hw_power_brake", {"gpu-power-brake"}),
    ],
)
def test_sustained_slowdown_is_a_finding_and_no_restart(reason: str, rules: set[str]) -> None:
    """FACT (G4): a card that is slowed all the time has its findings; nobody is restarted."""
    story = unheard()
    assert lived(story, (gpu(at, throttled={reason: at}) for at in seconds(300))) == rules
    assert not story.acts
    assert story.engine.verdict is not Verdict.GPU_FAULT


def test_a_flicker_at_a_change_of_load_is_none() -> None:
    """FACT (G4): two seconds of slowdown in five minutes are within what cards do."""
    readings = (gpu(at, throttled={"hw_thermal": 0.04 * (at // 6)}) for at in seconds(1200))
    assert lived(unheard(), readings) == set()


def test_slowdown_around_the_limit_does_not_flap() -> None:
    """FACT (G4): a card that is slowed for ten seconds of each minute has one finding, not many."""
    story = unheard()
    total, slow = 0.0, []
    for at in seconds(3600):
        total += int(at) % 60 < 10
        slow.append(total)
    lived(story, (gpu(at, throttled={"sw_thermal": slow[int(at)]}) for at in seconds(3600)))
    changes = [r for r in story.records if r.event in {"finding.firing", "finding.resolved"}]
    assert len(changes) == 1


def test_slowdown_clears_after_it_was_gone_for_long() -> None:
    """FACT (G4): five minutes without it empty the window, five more end the finding."""
    story = unheard()
    lived(story, (gpu(at, throttled={"sw_thermal": min(at, 60.0)}) for at in seconds(650)))
    assert "gpu-thermal-slowdown" in fired(story)
    lived(story, (gpu(at, throttled={"sw_thermal": 60.0}) for at in seconds(700, 650)))
    assert fired(story) == set()


def test_a_card_that_does_not_count_slowdown_is_not_judged_by_it() -> None:
    """FACT (G14): absent counters are neither heat nor health."""
    story = unheard()
    story.read(gpu(1.0, throttled={"hw_thermal": 0.0}))
    reading = Reading("gpu", 2.0, 0.0, (gpu(2.0).samples[0],))
    assert fired(story.read(reading)) == set()


def test_a_hot_card_is_named_by_its_own_limit() -> None:
    """FACT: above the card's own limit for a minute, not above a number of ours."""
    story = unheard()
    assert lived(story, (gpu(at, {"temperature_celsius": 88.0}) for at in seconds(70))) == {
        "gpu-hot"
    }
    assert (
        lived(unheard(), (gpu(at, {"temperature_celsius": 87.0}) for at in seconds(600))) == set()
    )


DOWN: dict[str, Value] = {
    "utilization_percent": 100.0,
    "sm_clock_hertz": 210e6,
    "power_watts": 84.0,
    "temperature_celsius": 41.0,
}
"""A card whose sensor is broken: an eighth of its power, at a tenth of its clock."""


def test_a_downclock_without_a_reason_is_named() -> None:
    """FACT (G6): slow, hungry for nothing, and no reason named for a minute: a finding."""
    story = unheard()
    reasons = dict.fromkeys(IDLE_REASONS, False)
    ever = lived(story, (gpu(at, DOWN, reasons=reasons) for at in seconds(70)))
    assert ever == {"gpu-unexplained-downclock"}


def test_a_growing_queue_shows_a_downclock_too() -> None:
    """FACT (G6): at 12 % use a queue that waits is the sign that the card should run faster."""
    story = unheard()
    reasons = dict.fromkeys(IDLE_REASONS, False)
    for at in seconds(70):
        story.read(metrics(at, at, running=1, waiting=10 + at))
        story.read(gpu(at, DOWN | {"utilization_percent": 12.0}, reasons=reasons))
    assert fired(story) == {"gpu-unexplained-downclock"}
    assert not story.acts


@pytest.mark.parametrize("reason", ["idle", "applications_clocks", "sw_power_cap", "other"])
def test_a_downclock_with_a_reason_is_explained(reason: str) -> None:
    """FACT (G6): the driver's own word, known to us or not, is an explanation."""
    reasons = dict.fromkeys(IDLE_REASONS, False) | {reason: True}
    readings = (gpu(at, DOWN, reasons=reasons) for at in seconds(120))
    assert lived(unheard(), readings) == set()


def test_a_spin_deadlock_is_no_downclock() -> None:
    """FACT: a kernel that spins has 100 % use and low power at full clock."""
    reasons = dict.fromkeys(IDLE_REASONS, False)
    spin: dict[str, Value] = DOWN | {"sm_clock_hertz": 1980e6, "power_watts": 166.0}
    assert lived(unheard(), (gpu(at, spin, reasons=reasons) for at in seconds(120))) == set()


@pytest.mark.parametrize(
    ("kind", "rule"),
    [
        ("application", "gpu-xid-application"),
        ("reset", "gpu-xid-reset"),
        ("reboot", "gpu-lost"),
        ("hardware", "gpu-xid-hardware"),
    ],
)
def test_each_class_of_xid_has_its_finding(kind: str, rule: str) -> None:
    """FACT (G8, G9): one error of a class fires its rule at once; an ignored one fires none."""
    story = unheard().read(xids(1.0), xids(2.0, {kind: 1, "ignored": 5}))
    assert fired(story) == {rule}


def test_three_application_errors_make_the_card_suspect() -> None:
    """FACT (G8): one by one they are a process's; three within half an hour are not."""
    story = unheard().read(xids(1.0))
    for count in (1, 2, 3):
        assert "gpu-xid-repeated" not in fired(story)
        story.read(xids(600.0 * count, {"application": count}))
    assert "gpu-xid-repeated" in fired(story)


def test_an_xid_of_old_is_forgotten() -> None:
    """FACT (G9): half an hour after the last reset-class error the finding ends."""
    story = unheard().read(xids(1.0), xids(2.0, {"reset": 1}))
    lived(story, (xids(at, {"reset": 1}) for at in (600.0, 1200.0, 1790.0)))
    assert fired(story) == {"gpu-xid-reset"}
    lived(story, (xids(at, {"reset": 1}) for at in (1850.0, 1900.0)))
    assert fired(story) == set()


@pytest.mark.parametrize(
    ("action", "fires"), [(0, False), (1, True), (2, True), (3, False), (4, True), (9, True)]
)
def test_the_drivers_own_word_decides(action: int, fires: bool) -> None:  # noqa: FBT001
    """FACT (G9): a recovery action that ends the GPU's use fires, known or not; 3 does not."""
    story = unheard().read(gpu(1.0, {"recovery_action": action}))
    assert ("gpu-reset-needed" in fired(story)) is fires


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"remap_pending": True}, "gpu-remap-pending"),
        ({"remap_failed": True}, "gpu-remap-failed"),
        ({"ecc_uncorrected_errors": 1}, "gpu-ecc-uncorrected"),
        ({"pcie_link_width": 8}, "gpu-pcie-degraded"),
        ({"nvlinks_active": 17}, "gpu-nvlink-down"),
        ({"fabric_state": 2}, "gpu-fabric-not-ready"),
        ({"pcie_replays": 200}, "gpu-pcie-replays"),
    ],
)
def test_memory_and_links(changes: dict[str, Value], rule: str) -> None:
    """FACT (G15): each trouble of memory cells and links has its finding after it was well."""
    story = unheard().read(gpu(0.0))
    ever = lived(story, (gpu(at, changes) for at in seconds(80, 1)))
    assert rule in ever
    assert ever <= {rule, "gpu-pcie-narrow"}
    assert story.engine.verdict is not Verdict.GPU_FAULT


def test_a_narrow_slot_is_only_told() -> None:
    """FACT (G15): fewer lanes than the card has, from the start, are the slot's: information."""
    story = unheard()
    ever = lived(story, (gpu(at, {"pcie_link_width": 8}) for at in seconds(120)))
    assert ever == {"gpu-pcie-narrow"}
    assert not story.state.incidents


def test_one_lost_card_does_not_hide_the_others() -> None:
    """FACT (G7): the finding is about the lost card, and the others are judged on."""
    story = unheard().read(cards(0.0, {0: {}, 1: {}}))
    samples = (*lost(1.0, 1).samples, *gpu(1.0, {"remap_pending": True}).samples)
    story.read(Reading("gpu", 1.0, 0.0, samples))
    found = {(finding.rule, finding.subject) for _, finding in firing(story.state)}
    assert found == {("gpu-lost", card(1)), ("gpu-remap-pending", card(0))}


def test_a_card_that_raises_on_every_call_is_unreadable() -> None:
    """FACT: neither lost nor healthy: one finding of its own, after half a minute."""
    story = unheard().read(gpu(0.0))
    assert lived(story, (lost(at, state="unknown error") for at in seconds(60, 1))) == {
        "gpu-unreadable"
    }


def test_foreign_memory_matters_on_our_cards_only() -> None:
    """FACT (G2): a stranger with a GiB is a finding where an engine of ours computes."""
    ours = unheard().read(gpu(0.0))
    readings = (holders(at, {"main": (0,)}, foreign=2 << 30) for at in seconds(40))
    assert lived(ours, readings) == {"gpu-foreign-memory"}
    elsewhere = unheard().read(cards(0.0, {0: {}, 1: {}}))
    readings = (holders(at, {"main": (1,)}, foreign=2 << 30) for at in seconds(40))
    assert lived(elsewhere, readings) == set()


def test_orphans_are_named() -> None:
    """FACT (G3): memory of an earlier start is a finding wherever it is."""
    readings = (holders(at, {}, orphan=1) for at in seconds(20))
    assert lived(unheard(), readings) == {"gpu-orphan-memory"}


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"versions_match": False}, "driver-mismatch"),
        ({"nvml": "library and driver versions differ"}, "driver-mismatch"),
        ({"device_trouble": "cannot open /dev/nvidiactl"}, "gpu-access-lost"),
        ({"gpus_expected": 8, "gpus_found": 7}, "gpu-missing"),
        ({"nvml": "unknown error"}, "gpus-unreadable"),
        ({"nvml": "library not found"}, "driver-absent"),
        ({"nvml": "driver not loaded"}, "driver-absent"),
        ({"nvml": "unresponsive", "unresponsive_seconds": 61.0}, "driver-unresponsive"),
    ],
)
def test_what_is_wrong_with_the_driver(changes: dict[str, Value], rule: str) -> None:
    """FACT (G10 to G12): each trouble of the driver has one finding."""
    assert lived(unheard(), (driver(float(at), changes) for at in range(0, 60, 5))) == {rule}


def test_a_slow_driver_is_no_finding_yet() -> None:
    """FACT (G10): a call may take a minute in the GPU's firmware and come back."""
    hangs: dict[str, Value] = {"nvml": "unresponsive", "unresponsive_seconds": 60.0}
    assert lived(unheard(), (driver(float(at), hangs) for at in range(0, 60, 5))) == set()


def test_silence_of_a_probe_resolves_nothing() -> None:
    """FACT (G10): a card that was lost when the driver began to hang is still lost."""
    story = unheard().read(lost(1.0), Reading("gpu", 2.0, 0.0, (), (), "cannot read any GPU"))
    assert fired(story) == {"gpu-lost"}
