"""Small builders for tests of the core: readings, settled engines, and a story told in events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypedDict

from tests.support.rules import DEFAULT_RULES
from watchdog.core import rule_set as rule_sets
from watchdog.core.conditions import Condition, View, Window
from watchdog.core.engine import GAP, step
from watchdog.core.model import (
    ActionFinished,
    Cause,
    Commanded,
    Decision,
    EngineExited,
    EngineSpawned,
    Event,
    Labels,
    Outcome,
    ProcessState,
    Reading,
    ReadingTaken,
    Record,
    Sampled,
    Seconds,
    Severity,
    Subject,
    SubjectKind,
    Tick,
    Value,
    Verb,
    engine_subject,
)
from watchdog.core.rule_set import RuleSet
from watchdog.core.rules import Rule
from watchdog.core.state import EngineSettings, EngineState, PolicySettings, State, Step, Vitals

NAME = "main"
GENERATION = "0000000a"
"""Hexadecimal, as the real ones are; low, so that the jitter of the backoff is nearly none."""


class Of(TypedDict, total=False):
    """Whose reading it is, where a test says so for several."""

    generation: str
    name: str


def reading(
    probe: str,
    at: Seconds,
    *samples: tuple[str, Value] | tuple[str, Value, Labels],
    took: Seconds = 0.0,
    generation: str = GENERATION,
    error: str | None = None,
    name: str = NAME,
) -> Reading:
    """A reading of an engine probe with ``samples`` as (name, value) or (name, value, labels)."""
    subject = engine_subject(name)
    sampled = tuple(Sampled(subject, *sample) for sample in samples)
    return Reading(probe, at, took, sampled, (), error, subject, generation)


def of_box(
    at: Seconds, *samples: tuple[Subject, str, Value], probe: str = "it", error: str | None = None
) -> Reading:
    """A reading of a probe of the box with ``samples`` as (subject, name, value)."""
    return Reading(probe, at, 0.0, tuple(Sampled(*sample) for sample in samples), (), error)


def process(
    at: Seconds, *, generation: str = GENERATION, name: str = NAME, **values: Value
) -> Reading:
    """What ``engine_process`` reads of a working, idle engine, changed by ``values``."""
    usual: dict[str, Value] = {"leader_alive": True, "members": 3, "cores": 1, "stopped_members": 0}
    usual |= {"compilers": 0, "cpu_seconds": 0.0, "rss_bytes": 1 << 30, "log_bytes": 100}
    pairs = tuple((usual | values).items())
    return reading("engine_process", at, *pairs, generation=generation, name=name)


def http(
    at: Seconds,
    health: str = "ok",
    canary: str = "skipped",
    status: int = 0,
    *,
    took: Seconds = 0.0,
    generation: str = GENERATION,
    name: str = NAME,
) -> Reading:
    """What ``engine_http`` reads: ``status`` is the canary's, 0 when it was not answered."""
    pairs: list[tuple[str, Value]] = [("health", health), ("canary", canary)]
    if status:
        pairs.append(("canary_status", status))
    return reading("engine_http", at, *pairs, took=took, generation=generation, name=name)


def metrics(
    at: Seconds,
    progress: float,
    *,
    running: float = 0.0,
    waiting: float = 0.0,
    sleeping: bool = False,
    generation: str = GENERATION,
    name: str = NAME,
) -> Reading:
    """What ``engine_metrics`` reads of an engine with one rank."""
    rank: Labels = (("rank", "0"),)
    return reading(
        "engine_metrics",
        at,
        ("progress", progress, rank),
        ("running", running, rank),
        ("waiting", waiting, rank),
        ("sleeping", sleeping),
        generation=generation,
        name=name,
    )


def engine(
    process: ProcessState = ProcessState.RUNNING,
    *,
    vitals: Vitals | None = None,
    name: str = NAME,
    **changes: object,
) -> EngineState:
    """An engine that runs since 0 and was ready at once, unless ``changes`` say otherwise."""
    settled = EngineState(
        EngineSettings(name),
        process=process,
        generation=GENERATION,
        leader=1,
        started_at=0.0,
        ready_at=0.0,
        vitals=vitals if vitals is not None else Vitals(start_sign_at=0.0),
    )
    return replace(settled, **changes)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Is:
    """A condition in Python: whether a sample has one of these values, None while it has none."""

    name: str
    values: tuple[Value, ...]
    windows: tuple[Window, ...] = ()

    @property
    def samples(self) -> frozenset[str]:
        """The one sample."""
        return frozenset({self.name})

    def __call__(self, view: View) -> bool | None:
        """Whether it is."""
        value = view.get(self.name)
        return None if value is None else value in self.values


@dataclass(frozen=True, slots=True)
class Above:
    """A condition in Python: whether a window's figure is above ``limit``."""

    window: Window
    limit: float

    @property
    def samples(self) -> frozenset[str]:
        """The one sample."""
        return frozenset({self.window.sample})

    @property
    def windows(self) -> tuple[Window, ...]:
        """The one window."""
        return (self.window,)

    def __call__(self, view: View) -> bool | None:
        """Below the limit is an answer only when the whole window was seen."""
        value = view.get(self.window.name)
        if isinstance(value, int | float) and value > self.limit:
            return True
        return False if view.get(self.window.covered) else None


def rule(
    name: str, when: Condition, kind: SubjectKind = SubjectKind.ENGINE, **changes: object
) -> Rule:
    """A warning that says its name, unless ``changes`` say otherwise."""
    return replace(
        Rule(name, kind, when, Severity.WARNING, f"{name} is so"),
        **changes,  # type: ignore[arg-type]
    )


@dataclass
class Story:
    """A state and all that followed from the events told to it.

    Between two of them the loop turns, as it does in a daemon; ``take`` and ``asleep`` jump.
    """

    state: State = field(
        default_factory=lambda: State(engines={NAME: EngineState(EngineSettings(NAME))})
    )
    rule_set: RuleSet | Sequence[Rule] = DEFAULT_RULES
    settings: PolicySettings = field(default_factory=PolicySettings)
    decisions: list[Decision] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    last: Step | None = None

    def __post_init__(self) -> None:
        """What the rules ask for is worked out once."""
        self.rule_set = rule_sets.of(self.rule_set)

    def take(self, event: Event) -> Step:
        """Step once."""
        done = step(self.state, event, self.rule_set, self.settings)
        self.state, self.last = done.state, done
        self.decisions.extend(done.decisions)
        self.records.extend(done.records)
        return done

    def _told(self, event: Event) -> Step:
        """Step once, after the turns of the loop that lie before it."""
        while self.state.at is not None and event.at - self.state.at > GAP:
            self.take(Tick(self.state.at + GAP))
        return self.take(event)

    def read(self, *readings: Reading) -> Story:
        """Take each of ``readings`` at its own time."""
        for one in readings:
            self._told(ReadingTaken(one.at, one))
        return self

    def tick(self, at: Seconds) -> Step:
        """Let time pass to ``at``."""
        return self._told(Tick(at))

    def asleep(self, at: Seconds) -> Step:
        """Time passed to ``at``, and nobody looked meanwhile."""
        return self.take(Tick(at))

    def command(self, verb: Verb, at: Seconds, until: Seconds | None = None) -> Step:
        """An operator asks for ``verb`` on every engine."""
        return self._told(Commanded(at, verb, reason="why", owner="me", until=until))

    def spawned(
        self,
        at: Seconds,
        generation: str = GENERATION,
        cause: Cause = Cause.CRASH,
        name: str = NAME,
    ) -> Step:
        """A generation's leader lives."""
        return self._told(EngineSpawned(at, name, generation, 1, cause))

    def exited(
        self,
        at: Seconds,
        cause: Cause = Cause.CRASH,
        generation: str = GENERATION,
        name: str = NAME,
    ) -> Step:
        """The leader of ``generation`` is gone."""
        return self._told(EngineExited(at, name, generation, 1, None, cause, "it crashed"))

    def finished(
        self,
        at: Seconds,
        action: str,
        *,
        ok: bool = True,
        cause: Cause = Cause.UNKNOWN,
        unkillable: bool = False,
        name: str = NAME,
        about: Subject | None = None,
    ) -> Step:
        """``action`` ended; ``about`` what that is no engine."""
        told = "" if ok else f"cannot {action}"
        target = about or engine_subject(name)
        outcome = Outcome(action, target, ok, 0.1, told, cause, unkillable)
        return self._told(ActionFinished(at, outcome))

    def serve(self, at: Seconds, generation: str = GENERATION, name: str = NAME) -> Story:
        """An engine that answers, at ``at``."""
        of = Of(generation=generation, name=name)
        self.read(process(at, **of), metrics(at, 0.0, **of))
        return self.read(http(at, canary="ok", status=200, **of))

    def restarted(self, at: Seconds, generation: str = GENERATION, name: str = NAME) -> Story:
        """The restart in flight ends well at ``at``, and the engine serves a second later."""
        self.spawned(at, generation, name=name)
        self.finished(at, "restart_engine", name=name)
        return self.serve(at + 1.0, generation, name)

    @property
    def engine(self) -> EngineState:
        """The one engine."""
        return self.state.engines[NAME]

    @property
    def acts(self) -> list[Decision]:
        """What was decided to be done, so far."""
        return [decision for decision in self.decisions if decision.hold is None]

    def events(self, name: str) -> list[Record]:
        """The journal lines with the event ``name``, so far."""
        return [record for record in self.records if record.event == name]


def serving(
    at: Seconds = 0.0, rule_set: RuleSet | Sequence[Rule] = DEFAULT_RULES, **policy: object
) -> Story:
    """An engine that was started and became ready at ``at``; nothing decided since is kept.

    ``policy`` are policy settings that differ from the usual ones.
    """
    settings = replace(PolicySettings(), **policy)  # type: ignore[arg-type]
    story = Story(rule_set=rule_set, settings=settings)
    if story.tick(at).decisions == ():  # rules of a test need not start what is stopped
        story.state = story.state.with_engine(replace(story.engine, in_flight="start_engine"))
    story.spawned(at, cause=Cause.OPERATOR)
    story.finished(at, "start_engine")
    story.serve(at)
    story.decisions.clear()
    story.records.clear()
    return story


def unheard() -> Story:
    """A serving engine in a story about cards: that nothing is read of it is no trouble here."""
    return serving(rule_set=[rule for rule in DEFAULT_RULES if rule.name != "engine-degraded"])


def restarting(at: Seconds = 10.0) -> Story:
    """A serving engine that crashed at ``at``; its restart is in flight."""
    story = serving()
    story.exited(at)
    return story
