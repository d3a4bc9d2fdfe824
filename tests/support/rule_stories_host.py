"""What makes the default rules about the driver and the machine fire and clear."""

from __future__ import annotations

from tests.support.box import driver, gpu
from tests.support.core import Story
from tests.support.rule_stories import Tale, times
from watchdog.core.model import HOST, Reading, Sampled, Seconds, Tick, Value

_DIFFER = "library and driver versions differ"


def _driver(
    rule: str, changes: dict[str, Value], hold: Seconds, clear: Seconds, *keys: str
) -> Tale:
    """Of a rule about what ``driver`` reads: ``changes`` for ``hold`` seconds, well for ``clear``.

    ``keys`` are the samples that decide, by default those that change.
    """
    return Tale(
        rule,
        fires=tuple(driver(at, changes) for at in times(1.0, 1.0 + hold)),
        clears=tuple(driver(at) for at in times(100.0, 100.0 + clear)),
        blind=(tuple(f"driver.{key}" for key in keys or changes),),
    )


def _log(at: Seconds, trouble: str) -> Reading:
    """What ``xid`` reads of its source."""
    return Reading("xid", at, 0.0, (Sampled(HOST, "source_trouble", trouble),))


def _failing(at: Seconds) -> Reading:
    return Reading("gpu", at, 0.0, (), (), "cannot read any GPU")


def _silence(story: Story) -> None:
    story.tick(900.0)


HOST_TALES = (
    _driver("driver-unresponsive", {"unresponsive_seconds": 61.0, "nvml": "unresponsive"}, 0, 10),
    _driver("driver-mismatch", {"versions_match": False}, 10, 30, "versions_match", "nvml"),
    _driver("driver-mismatch", {"nvml": _DIFFER}, 10, 30, "versions_match", "nvml"),
    _driver("gpu-access-lost", {"device_trouble": "cannot open /dev/nvidiactl"}, 10, 10),
    _driver("gpu-fallen", {"fallen_cards": "0000:00:06.0"}, 10, 10),
    _driver("gpu-missing", {"gpus_expected": 8, "gpus_found": 7}, 30, 10, "gpus_expected"),
    _driver("gpu-missing", {"gpus_expected": 8, "gpus_found": 7}, 30, 10, "gpus_found"),
    _driver("gpus-unreadable", {"nvml": "unknown error"}, 30, 10),
    _driver("driver-absent", {"nvml": "driver not loaded"}, 10, 0),
    _driver("driver-absent", {"nvml": "library not found"}, 10, 0),
    Tale(
        "xid-source-missing",
        fires=(driver(1.0), *(_log(at, "cannot open /dev/kmsg") for at in times(2.0, 32.0))),
        clears=(_log(40.0, ""),),
        blind=(("xid.source_trouble",),),
        silent=(("driver.nvml",),),
    ),
    Tale(
        "probe-failing",
        fires=(gpu(1.0), *(_failing(at) for at in times(2.0, 57.0)), Tick(62.0)),
        clears=(gpu(70.0),),
        unseen=tuple(_failing(at) for at in times(2.0, 302.0)),
        still=(_silence,),
    ),
)
"""Of the rules about the host."""
