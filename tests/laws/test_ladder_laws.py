"""Laws of time and of the ladder: one rule against a model of it, to the second."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.laws.lawful import lawful
from tests.laws.model import GAP, LAST_RUNG_RESTS, Model
from tests.laws.user_rules import Among
from tests.support.core import NAME, http, process, reading
from watchdog.core import rule_set
from watchdog.core.engine import step
from watchdog.core.model import (
    ActionFinished,
    Cause,
    EngineSpawned,
    Event,
    Outcome,
    Reading,
    ReadingTaken,
    Seconds,
    Severity,
    SubjectKind,
    Tick,
    engine_subject,
)
from watchdog.core.rules import Rule
from watchdog.core.state import EngineSettings, EngineState, PolicySettings, State

FREE = PolicySettings()
LADDER = ("first_action", "second_action", "third_action")
Look = tuple[Seconds, bool | None, bool]
"""Seconds until it, what is seen then (None: nothing), and whether nobody looked in between."""


@dataclass
class OneRule:
    """A healthy engine with ``it.x``, one rule about it, and the model of what must happen."""

    rule: Rule
    takes: Seconds
    now: Seconds = 1000.0
    state: State = field(default_factory=lambda: State({NAME: EngineState(EngineSettings(NAME))}))
    wake_at: Seconds | None = None
    serial: int = 0
    ends_at: Seconds | None = None
    acts: list[tuple[Seconds, str]] = field(default_factory=list)
    model: Model = field(init=False)

    def __post_init__(self) -> None:
        self.rules = rule_set.of((self.rule,))
        self.model = Model(self.rule)
        self._begins_anew()

    @property
    def generation(self) -> str:
        """Of its present life."""
        return f"{self.serial:08x}"

    def take(self, event: Event) -> None:
        """One step, of both."""
        self.model.happens(event.at)
        done = step(self.state, event, self.rules, FREE)
        self.state, self.wake_at = done.state, done.wake_at
        for act in (one for one in done.decisions if one.hold is None):
            self.acts.append((act.at, act.action))
            self.ends_at = act.at + self.takes
        told = [firing.firing is not None for firing in self.state.watches.values()]
        assert (True in told) is self.model.firing, (event, self.model)
        assert self.acts == self.model.acts, (self.acts, self.model.acts)

    def looks(self, look: Look) -> None:
        """Time passes, with the turns of the loop unless nobody looks, and then this is seen."""
        gap, value, asleep = look
        until = self.now + gap
        while not asleep and (due := self._due(until)) is not None:
            self._at(due)
        self.now = until
        self._read(process(until, generation=self.generation), until)
        self._settles(until)
        self.model.value, self.model.read_at = value, until
        samples = () if value is None else (("x", value),)
        self._read(reading("it", until, *samples, generation=self.generation), until)

    def _read(self, one: Reading, at: Seconds) -> None:
        self._settles(at)
        self.model.process_at = at
        self.take(ReadingTaken(at, one))

    def _settles(self, at: Seconds) -> None:
        """If nobody looked for long, that is noticed first."""
        if self.model.at is not None and at - self.model.at > GAP:
            self.take(Tick(at))

    def _due(self, until: Seconds) -> Seconds | None:
        turn = self.now + GAP
        moments = [m for m in (self.wake_at, self.ends_at, turn) if m is not None and m <= until]
        return min(moments, default=None)

    def _at(self, due: Seconds) -> None:
        self.now = max(self.now, due)
        if due == self.ends_at:
            self._ends()
        else:
            self.take(Tick(self.now))

    def _ends(self) -> None:
        action, self.ends_at = self.acts[-1][1], None
        self._begins_anew(action)

    def _begins_anew(self, action: str = "start_engine") -> None:
        """A new life that serves at once; then the action that led to it is over."""
        self.serial += 1
        self.model.value, self.model.born_at = None, self.now
        self.take(EngineSpawned(self.now, NAME, self.generation, 1, Cause.RULE))
        one = http(self.now, canary="ok", status=200, generation=self.generation)
        self.take(ReadingTaken(self.now, one))
        self.model.running = False
        if self.model.acts:
            self.model.ended_at = self.now
        outcome = Outcome(action, engine_subject(NAME), True, self.takes)  # noqa: FBT003 - a value
        self.take(ActionFinished(self.now, outcome))


DURATIONS = st.sampled_from([0.0, 0.0, 1.0, 10.0, 60.0])
RULES = st.builds(
    Rule,
    name=st.just("it"),
    subject=st.just(SubjectKind.ENGINE),
    when=st.just(Among("it.x", (True,))),
    severity=st.just(Severity.WARNING),
    summary=st.just("it is so"),
    hold_for=DURATIONS,
    clear_for=DURATIONS,
    cooldown=DURATIONS,
    actions=st.sampled_from([LADDER[:1], LADDER[:2], LADDER]),
)
_SHORT = st.sampled_from([0.5, 1.0, 1.5, 5.0, 9.5, 10.0, 10.5, 59.5, 60.0, 60.5])
_LONG = st.sampled_from([15.0, 15.5, 30.0, 599.5, 600.0, 600.5])
LOOKS = st.lists(
    st.tuples(
        st.one_of(_SHORT, _SHORT, _LONG),
        st.sampled_from([True, True, True, False, False, None]),
        st.sampled_from([False, False, False, True]),
    ),
    min_size=5,
    max_size=20,
)


SLOW = Rule(
    name="it",
    subject=SubjectKind.ENGINE,
    when=Among("it.x", (True,)),
    severity=Severity.WARNING,
    summary="it is so",
    hold_for=1.0,
    clear_for=1.0,
    actions=LADDER,
)
UNKNOWN_BETWEEN: list[Look] = [(0.5, look, False) for look in (True, None, True, True, True)]
AGAIN_LATER: list[Look] = [(600.0, look, False) for look in (True, False, True)]

RESTING = replace(SLOW, hold_for=0.0, cooldown=30.0)
ASLEEP: list[Look] = [(0.5, True, False), (5.0, True, False), (60.0, True, True)]
CLEARING = replace(SLOW, hold_for=0.0, clear_for=10.0)
GONE_WITH_THE_OLD: list[Look] = [(0.5, True, False), (1.0, False, False), (60.0, True, False)]
HOLDING = replace(SLOW, hold_for=10.0, cooldown=30.0)
HELD_BEFORE: list[Look] = [
    (0.5, True, False),
    (10.5, True, False),
    (5.0, True, False),
    (60.0, True, True),
]


@settings(lawful, max_examples=100)
@example(CLEARING, 5.0, GONE_WITH_THE_OLD)
@example(HOLDING, 0.5, [*HELD_BEFORE, (9.0, True, False), (9.0, True, False)])
@example(RESTING, 0.5, ASLEEP)
@example(SLOW, 0.5, UNKNOWN_BETWEEN)
@example(SLOW, 0.5, [*AGAIN_LATER, (0.5, True, False), (1.0, True, False)])
@given(RULES, st.sampled_from([0.5, 5.0]), LOOKS)
def test_a_rule_acts_exactly_when_its_model_does(
    rule: Rule, takes: float, looks: list[Look]
) -> None:
    """`for`, `clear_for`, `cooldown`, gaps and ladder: every act comes at its second, on its rung.

    The ladder climbs exactly when the rung before did not help, and begins anew after ten minutes
    of health; unknown neither fires nor clears; what nobody saw does not count.
    """
    one = OneRule(rule, takes)
    for look in looks:
        one.looks(look)


def test_the_ladder_is_climbed_to_its_end_and_down_again() -> None:
    """Three acts that do not help take three rungs, the last one again; health begins it anew."""
    rule = Rule(
        "it",
        SubjectKind.ENGINE,
        Among("it.x", (True,)),
        Severity.WARNING,
        "it is so",
        actions=LADDER,
        cooldown=10.0,
    )
    one = OneRule(rule, 0.5)
    for _ in range(20):
        one.looks((1.0, True, False))
        one.looks((20.0, True, False))
    assert [what for _, what in one.acts] == [*LADDER, LADDER[2]]
    assert one.acts[3][0] - one.acts[2][0] >= LAST_RUNG_RESTS
    one.looks((1.0, False, False))
    one.looks((601.0, True, False))
    assert one.acts[-1][1] == LADDER[0]
