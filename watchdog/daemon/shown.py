"""What the rest of the world is shown of the daemon: one picture of one moment."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from watchdog import __version__
from watchdog.core import policy
from watchdog.core.state import State
from watchdog.daemon.crew import Crew
from watchdog.daemon.gates import Gates
from watchdog.daemon.lookout import Lookout
from watchdog.daemon.plan import InForce
from watchdog.inbox import Inbox
from watchdog.logs import Journal
from watchdog.recorder import Recorder
from watchdog.snapshot import Snapshot
from watchdog.web.recent import Recent


@dataclass(slots=True)
class Shown:
    """Takes the pictures, from any thread. ``published`` gives the state after the last step.

    ``config_hash`` is that of the configuration in force. ``recent`` has to be told of every step;
    ``bundles`` gives the directories with the evidence of each incident.
    """

    published: Callable[[], State]
    now: InForce
    crew: Crew
    gates: Gates
    lookout: Lookout
    journal: Journal
    recorder: Recorder
    inbox: Inbox
    config_hash: str = ""
    recent: Recent = field(default_factory=Recent)
    bundles: Callable[[], Mapping[str, tuple[str, ...]]] = dict

    def snapshot(self) -> Snapshot:
        """How everything is now."""
        state, now, engines = self.published(), time.monotonic(), self.crew.engines
        settings = self.now.config.policy.core()
        return Snapshot(
            state=state,
            at=now,
            wall=time.time(),
            version=__version__,
            config_hash=self.config_hash,
            pids={
                name: tuple(info.pid for info in engine.supervised.processes())
                for name, engine in engines.items()
            },
            ports={name: e.target.endpoint.port for name, e in engines.items()},
            budget={
                name: policy.budget_remaining(
                    engine.history, now, settings, booted=engine.ready_at is not None
                )
                for name, engine in state.engines.items()
            },
            waiting={
                name: text for name in engines if (text := self.gates.waiting(name)) is not None
            },
            probes=self.lookout.stats(state),
            recent=self.recent.points,
            bundles=self.bundles(),
            lines_lost=self.journal.lost,
            events_lost=self.recorder.lost,
            inbox_depth=self.inbox.depth(),
        )
