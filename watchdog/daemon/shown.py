"""What the rest of the world is shown of the daemon: one picture of one moment."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from watchdog import __version__
from watchdog.command_line import CommandError, describe
from watchdog.core import ladder, policy
from watchdog.core.engine import firing
from watchdog.core.model import Finding, ProcessState, Seconds, Subject
from watchdog.core.rules import Rule
from watchdog.core.state import EngineState, PolicySettings, State
from watchdog.daemon.crew import Crew
from watchdog.daemon.gates import Gates
from watchdog.daemon.lookout import Lookout
from watchdog.daemon.plan import InForce
from watchdog.inbox import Inbox
from watchdog.logs import Journal
from watchdog.recorder import Recorder
from watchdog.snapshot import Snapshot
from watchdog.supervisor.attached import awaited
from watchdog.web import pasted
from watchdog.web.recent import Recent


@dataclass(slots=True)
class Shown:
    """Takes the pictures, from any thread. ``published`` gives the state after the last step.

    ``config_hash`` is that of the configuration in force, ``lacks`` as in a ``Snapshot``.
    ``recent`` has to be told of every step; ``bundles`` gives the directories with the evidence of
    each incident. ``state_dir`` is named in the commands that are shown, unless they find it.
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
    lacks: tuple[str, ...] = ()
    recent: Recent = field(default_factory=Recent)
    bundles: Callable[[], Mapping[str, tuple[str, ...]]] = dict
    state_dir: Path | None = None

    def snapshot(self) -> Snapshot:
        """How everything is now."""
        state, now, engines = self.published(), time.monotonic(), self.crew.engines
        settings = self.now.config.policy.core()
        budgets = {name: restarts(one, now, settings) for name, one in state.engines.items()}
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
            budget={name: count for name, (count, _) in budgets.items()},
            budgets={name: of for name, (_, of) in budgets.items()},
            retries={
                name: due
                for name, one in state.engines.items()
                if (due := policy.retry_at(one, now, settings)) is not None
            },
            logs={name: str(path) for name in engines if (path := self._log(name)) is not None},
            models={
                name: model
                for name, one in state.engines.items()
                if one.process is ProcessState.GIVEN_UP and (model := self._model(name))
            },
            outranked=outranked(state, self.now.rules),
            state_dir=pasted.unusual(self.state_dir),
            waiting={
                name: text
                for name, engine in engines.items()
                if (text := self.gates.waiting(name) or awaited(engine.supervised)) is not None
            },
            probes=self.lookout.stats(state),
            recent=self.recent.points,
            bundles=self.bundles(),
            lacks=self.lacks,
            lines_lost=self.journal.lost,
            events_lost=self.recorder.lost,
            inbox_depth=self.inbox.depth(),
        )

    def _log(self, name: str) -> Path | None:
        """Where the engine logs, or did when it last ran; None where that is not known."""
        place = self.crew.engines[name].supervised.log_place()
        if place is not None:
            return Path(place.path)
        configured = self.now.config.engine.get(name)
        if configured is None or self.state_dir is None or configured.attach is not None:
            return None
        return self.state_dir / (configured.log_file or f"engine-{name}.log")

    def _model(self, name: str) -> str:
        """The model in its command; "" when that cannot be read, or it is no engine of ours."""
        engine = self.crew.engines.get(name)
        try:
            told = None if engine is None else describe(engine.supervised.command, {}, {})
        except CommandError:
            return ""
        return "" if told is None else told.model


def outranked(state: State, rules: Sequence[Rule]) -> dict[tuple[str, Subject], Finding]:
    """Findings that say the same as a louder one, by rule and subject, with that other one."""
    by_name = {rule.name: rule for rule in rules}
    pairs = (
        (key, ladder.inhibitor(state, finding, by_name[key[0]]))
        for key, finding in firing(state)
        if key[0] in by_name
    )
    return {key: above for key, above in pairs if above is not None}


def restarts(engine: EngineState, at: Seconds, settings: PolicySettings) -> tuple[int, int]:
    """How many are left, and of how many: until it has booted, of the smaller budget."""
    booted = engine.ready_at is not None
    left = policy.budget_remaining(engine.history, at, settings, booted=True)
    boots = policy.budget_remaining(engine.history, at, settings, booted=booted)
    return (
        (boots, settings.boot_budget.count)
        if boots < left
        else (left, settings.restart_budget.count)
    )
