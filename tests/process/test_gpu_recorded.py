"""What a recorded H200 says, through worker, probe and rules: nothing is wrong with it."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from probes._nvml.client import NvmlClient
from probes.gpu import PROBE, Gpu
from tests.support import fake_nvml
from tests.support.core import serving
from tests.support.fake_nvml import RECORDINGS, asking
from watchdog.core.engine import firing
from watchdog.core.model import Event, Reading, ReadingTaken
from watchdog.runner import ProbeRun


def reading(client: NvmlClient) -> Reading:
    """One reading through the runner, which refuses what is not declared."""
    posted: list[Event] = []
    run = ProbeRun(PROBE, Gpu(client), None, None, posted.append)
    run.run()
    (event,) = posted
    assert isinstance(event, ReadingTaken)
    assert event.reading.error is None
    return event.reading


@pytest.mark.parametrize("label", ["idle", "load"])
def test_a_recorded_card_has_no_finding(label: str, tmp_path: Path) -> None:
    """FACT (G5): idle, and under a load at its power limit, it fires no rule for half an hour."""
    nvml = fake_nvml.build(tmp_path)
    nvml.lines = fake_nvml.from_recording(RECORDINGS[label])
    nvml.lines |= fake_nvml.UNRECORDED
    nvml.write()
    story = serving()
    with asking(nvml.environment) as client:
        seen = reading(client)
    began = time.monotonic()
    for second in range(1800):
        story.take(ReadingTaken(began + second, replace(seen, at=began + second)))
        assert not firing(story.state)
    assert ("gpu.throttled.sw_power_cap", label == "load") in {
        (name, value)
        for parts in story.state.views.values()
        for name, value in parts.get("gpu", {}).items()
    }
