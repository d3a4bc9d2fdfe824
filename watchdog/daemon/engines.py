"""One engine as probes see it: its processes from the supervisor, its health from the core."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from watchdog.contracts import Endpoint, EngineLook, FirstGood, LogPlace, ProcessInfo
from watchdog.core import ranks
from watchdog.core.model import Seconds
from watchdog.core.state import EngineState, State
from watchdog.supervisor.engine import SupervisedEngine
from watchdog.supervisor.spawn import Launch


class Target:
    """Implements ``contracts.EngineTarget``. ``published`` gives the state after the last step.

    ``first_good`` tells of the model, given how the next start would be made.
    """

    def __init__(
        self,
        engine: SupervisedEngine,
        published: Callable[[], State],
        first_good: Callable[[Launch], FirstGood | None] = lambda _: None,
    ) -> None:
        self._engine = engine
        self._published = published
        self._first_good = first_good

    @property
    def name(self) -> str:
        """The name in the configuration."""
        return self._engine.name

    @property
    def endpoint(self) -> Endpoint:
        """Where its HTTP API is."""
        return self._engine.endpoint

    @property
    def command(self) -> tuple[str, ...]:
        """The command that starts it."""
        return self._engine.command

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment that its next start gets, without the generation's own variables."""
        return self._engine.environment

    def look(self) -> EngineLook:
        """What the core knew after its last step."""
        engine = self._published().engines.get(self.name)
        return EngineLook() if engine is None else look_of(engine)

    def processes(self) -> tuple[ProcessInfo, ...]:
        """The living set of the present generation."""
        return self._engine.processes()

    def log_bytes(self) -> int | None:
        """Bytes that the present generation has logged."""
        return self._engine.log_bytes()

    def log_place(self) -> LogPlace | None:
        """Where the present generation logs."""
        return self._engine.log_place()

    @property
    def expects(self) -> tuple[str, ...]:
        """What its log must show before it counts as ready."""
        return self._engine.settings.expect_log

    def first_good(self) -> FirstGood | None:
        """What its model was at its first good start, and how it differs now."""
        return self._first_good(self._engine.settings.launch)


def look_of(engine: EngineState) -> EngineLook:
    """The part of an engine's state that probes may know."""
    return EngineLook(
        generation=engine.generation,
        state=engine.process,
        leader=engine.leader,
        started_at=engine.started_at,
        ready=engine.ready_at is not None,
        progressed_at=ranks.proven_at(engine.vitals),
        sleeping=engine.vitals.sleeping,
        attached=engine.settings.attach is not None,
    )


def requests_in(engine: EngineState | None, since: Seconds) -> float | None:
    """Requests running and waiting in the engine; None when its counters were not read since."""
    if engine is None:
        return None
    if engine.ready_at is None and engine.vitals.answered_at is None:
        return 0.0  # it has never answered anybody
    if engine.vitals.running is None:
        return None
    read_at = engine.vitals.metrics_at
    if read_at is None or read_at < since:
        return None
    return engine.vitals.running + (engine.vitals.waiting or 0.0)
