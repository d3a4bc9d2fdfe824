"""Where the daemon's evidence comes from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from watchdog.core.model import Seconds
from watchdog.daemon.box import EngineBox
from watchdog.daemon.plan import InForce
from watchdog.daemon.shown import Shown
from watchdog.evidence import Collector, Sources
from watchdog.supervisor.household import Household


def collector(
    shown: Callable[[], Shown],
    box: EngineBox,
    household: Household,
    now: InForce,
    state_dir: Path | None,
) -> Collector:
    """What earlier watchdogs have not finished is removed. ``shown`` is asked later."""

    def say(level: str, event: str, /, **keys: object) -> None:
        shown().journal.log(level, event, **keys)

    def settle(seconds: Seconds) -> object:
        return shown().recorder.flush(seconds)

    return Collector(
        state_dir,
        Sources(
            engines=box.engines,
            published=lambda: shown().published(),
            snapshot=lambda: shown().snapshot(),
            settle=settle,
            household=household,
            settings=lambda: now.config.evidence,
            say=say,
            hurried=lambda: shown().published().shutting_down,
        ),
    )
