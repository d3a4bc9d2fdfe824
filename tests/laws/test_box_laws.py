"""Laws of the box: GPUs and drivers fail and recover in any order, and engines crash meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import example, find, given, settings
from hypothesis import strategies as st

from tests.laws.auditor import Auditor
from tests.laws.lawful import lawful
from tests.laws.world import RULES, SETTINGS
from tests.support.box import card, cards, driver, holders, lost, xids
from tests.support.core import NAME, Story, http, metrics, process, serving
from tests.support.rules import DEFAULT_RULES
from watchdog.core import cards as own_cards
from watchdog.core import rule_set
from watchdog.core.engine import GAP, firing
from watchdog.core.model import (
    ActionFinished,
    Cause,
    EngineExited,
    EngineSpawned,
    Event,
    HoldReason,
    Outcome,
    ProcessState,
    Reading,
    ReadingTaken,
    Subject,
    SubjectKind,
    Tick,
    Verdict,
)
from watchdog.core.rule_set import RuleSet
from watchdog.core.state import Watch

STILL = settings(lawful, max_examples=100)

Happening = tuple[str, float]
"""What happens, and how many seconds later."""

_WHAT = ("well", "lost", "needs reset", "other lost", "mismatch", "xid reset", "xid app", "hung")
_HAPPENINGS = st.lists(
    st.tuples(
        st.sampled_from((*_WHAT, "exit", "tick", "silence")),
        st.sampled_from((0.5, 1.0, 15.0, 70.0, 600.0)),
    ),
    min_size=1,
    max_size=30,
)


def concerns(engine: str, subject: Subject) -> bool:
    """Card 0 is the engine's, and the machine is everybody's."""
    own = {card(0), Subject(SubjectKind.ENGINE, engine)}
    return subject.kind is SubjectKind.HOST or subject in own


UNHELD = rule_set.of(
    tuple(
        replace(rule, holds=None, fault=False)
        if rule.name == "gpu-lost"
        else replace(rule, inhibited_by=("gpu-lost",))
        if rule.name == "engine-dead"
        else rule
        for rule in DEFAULT_RULES
    )
)
"""As a user may write it: a lost card holds no restart, but outranks a dead engine."""


class Box:
    """An engine on card 0 of two, and what the probes of the box say of them; all is audited."""

    def __init__(self, rules: RuleSet = RULES) -> None:
        self.story = serving(rule_set=rules)
        self.auditor = Auditor(rules, SETTINGS, concerns)
        self.auditor.account(NAME).ready = True
        self.at = 0.0
        self.counts = {"reset": 0, "application": 0}
        self.starts = 0
        self.says("well")
        self.story.read(holders(self.at, {NAME: (0,)}))

    def says(self, what: str) -> None:
        """One reading of every probe."""
        self.counts["reset"] += what == "xid reset"
        self.counts["application"] += what == "xid app"
        for reading in (self._gpu(what), self._driver(what), xids(self.at, self.counts)):
            self.take(ReadingTaken(self.at, reading))

    def take(self, event: Event) -> None:
        """One event; what was held before and after it is not acted upon by it."""
        acts, before, state = len(self.story.acts), held(self.story), self.story.state
        self.auditor.saw(event, state, self.story.take(event))
        new = self.story.acts[acts:]
        assert not (new and before and held(self.story)), f"acted on a held engine: {new}"

    def _gpu(self, what: str) -> Reading:
        if what in {"lost", "needs reset"}:
            both = (*lost(self.at, 0, what).samples, *cards(self.at, {1: {}}).samples)
            return Reading("gpu", self.at, 0.0, both)
        if what == "other lost":
            both = (*lost(self.at, 1).samples, *cards(self.at, {0: {}}).samples)
            return Reading("gpu", self.at, 0.0, both)
        if what == "hung":
            return Reading("gpu", self.at, 0.0, error="cannot read any GPU")
        return cards(self.at, {0: {}, 1: {}})

    def _driver(self, what: str) -> Reading:
        if what == "hung":
            return driver(self.at, {"nvml": "unresponsive", "unresponsive_seconds": 90.0})
        return driver(self.at, {"versions_match": what != "mismatch"})

    def happens(self, what: str, later: float) -> None:
        """Time passes, and then this; an action that was decided is carried out at once."""
        self.at += later
        engine = self.story.engine
        if what == "exit" and engine.process in {ProcessState.STARTING, ProcessState.RUNNING}:
            generation = engine.generation
            self.take(EngineExited(self.at, NAME, generation, 1, None, Cause.CRASH, "it crashed"))
        elif what == "tick":
            self.take(Tick(self.at))
        elif what not in {"exit", "silence"}:
            self.says(what)
        self._carry_out()

    def waits(self, seconds: float) -> None:
        """Nothing happens but that the loop turns."""
        until = self.at + seconds
        while self.at < until:
            self.happens("tick", min(GAP, until - self.at))

    def _carry_out(self) -> None:
        engine = self.story.engine
        if not engine.in_flight:
            return
        self.starts += 1
        generation = f"{self.starts + 100:08x}"
        action = engine.in_flight
        self.take(EngineSpawned(self.at, NAME, generation, 1, Cause.CRASH))
        self.take(ActionFinished(self.at, Outcome(action, engine.subject, True, 0.1)))  # noqa: FBT003 - a value
        self.serves()

    def serves(self) -> None:
        """The engine answers a completion."""
        generation = self.story.engine.generation
        for one in (
            process(self.at, generation=generation),
            metrics(self.at, self.at, generation=generation),
            http(self.at, canary="ok", status=200, generation=generation),
        ):
            self.take(ReadingTaken(self.at, one))


def held(story: Story) -> bool:
    """Whether the box holds restarts of the engine."""
    return own_cards.hold(story.state, story.engine) is not None


def lived(happenings: Sequence[Happening], rules: RuleSet = RULES) -> Box:
    """The box after all of it; no finding about it ever has an action."""
    box = Box(rules)
    for what, later in happenings:
        box.happens(what, later)
        for finding in (finding for _, finding in firing(box.story.state)):
            assert not (finding.actions and finding.subject.kind is not SubjectKind.ENGINE)
    return box


@STILL
@example([("hung", 1.0), ("exit", 1.0), ("tick", 1.0)])
@example([("lost", 1.0), ("exit", 1.0), ("tick", 1.0)])
@given(_HAPPENINGS)
def test_nothing_is_restarted_while_the_box_holds_it(happenings: list[Happening]) -> None:
    """LAW: a restart that cannot help, or whose start would fail, is not made."""
    lived(happenings)


@STILL
@given(_HAPPENINGS)
def test_an_engine_that_serves_is_never_touched(happenings: list[Happening]) -> None:
    """LAW: whatever GPUs and drivers do, an engine that has not failed is not acted upon."""
    box = lived([one for one in happenings if one[0] not in {"exit", "silence"}])
    assert not box.story.acts


@STILL
@given(_HAPPENINGS)
def test_a_box_that_is_well_holds_nothing(happenings: list[Happening]) -> None:
    """LAW: an hour after the last trouble no finding of the box is left, and the engine serves."""
    box = lived(happenings)
    for later in (*[150.0] * 24, *[10.0] * 6):
        box.waits(later)
        box.happens("well", 0.0)
        box.serves()
    assert not held(box.story)
    assert not own_cards.faults(box.story.state, box.story.engine)
    if not box.story.engine.history.breaker_open:
        assert box.story.engine.verdict is Verdict.READY


@STILL
@given(_HAPPENINGS)
def test_somebody_elses_card_is_not_ours(happenings: list[Happening]) -> None:
    """LAW: what happens to card 1 alone never makes a fault of an engine on card 0."""
    ours = {"lost", "needs reset", "xid reset", "exit", "silence"}
    box = Box()
    for what, later in happenings:
        if what not in ours:
            box.happens(what, later)
            assert box.story.engine.verdict is not Verdict.GPU_FAULT


@STILL
@given(_HAPPENINGS)
def test_a_finding_that_is_outranked_neither_acts_nor_opens_an_incident(
    happenings: list[Happening],
) -> None:
    """LAW: while a card of its own is lost, the dead engine's finding is held ``inhibited``."""
    box = lived(happenings, UNHELD)
    for (name, _), seen in box.story.state.watches.items():
        lost_card = box.story.state.watches.get(("gpu-lost", card(0)), Watch()).firing
        if name == "engine-dead" and seen.firing and lost_card and not box.story.engine.in_flight:
            assert seen.held is HoldReason.INHIBITED


@STILL
@given(_HAPPENINGS)
def test_cards_are_independent(happenings: list[Happening]) -> None:
    """LAW: what is found about card 0 is the same whatever the readings tell of card 1."""
    both, alone = Box(), Box()
    for what, later in happenings:
        both.happens(what, later)
        alone.happens("well" if what == "other lost" else what, later)
        ours = [_about(box, card(0)) for box in (both, alone)]
        assert ours[0] == ours[1]


def _about(box: Box, subject: Subject) -> dict[str, Watch]:
    watches = box.story.state.watches.items()
    return {name: seen for (name, about), seen in watches if about == subject}


def test_the_laws_are_about_something() -> None:
    """LAW: there are stories in which a restart is held, and stories in which it is made after."""
    find(_HAPPENINGS, lambda story: held(lived(story).story), settings=STILL)
    find(_HAPPENINGS, lambda story: bool(lived(story).story.acts), settings=STILL)
