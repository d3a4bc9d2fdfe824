"""Laws of actions about a GPU or the box: whatever is found, asked for and outlived meanwhile."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.laws.lawful import lawful
from tests.laws.user_rules import Among
from tests.support.box import card
from tests.support.core import Story, of_box, serving
from tests.support.rules import DEFAULT_RULES
from watchdog.core.engine import GAP
from watchdog.core.model import (
    HOST,
    Decision,
    Event,
    Mode,
    Seconds,
    Severity,
    Subject,
    SubjectKind,
    Verb,
)
from watchdog.core.rules import Rule, WatchKey
from watchdog.core.state import RestartHistory, Step

EAGER = settings(lawful, max_examples=150)
SUBJECTS = (HOST, card(0), card(1))
LEAST_REST: Seconds = 300.0

Bad = tuple[bool | None, bool | None, bool | None]
Happening = tuple[str, Seconds, Bad]
"""What happens, after so many seconds, and how bad each subject is then: None is not told."""


@dataclass
class Books:
    """What somebody knows who only looks on."""

    runs: Decision | None = None
    paused_until: Seconds = -math.inf
    ends: bool = False
    anew_at: Seconds = -math.inf
    looked_at: Seconds = -math.inf
    told: dict[Subject, bool | None] = field(default_factory=dict)
    bad_since: dict[Subject, Seconds] = field(default_factory=dict)
    acted: dict[WatchKey, Seconds] = field(default_factory=dict)
    ended: dict[WatchKey, Seconds] = field(default_factory=dict)

    def looks(self, at: Seconds, told: dict[Subject, bool | None]) -> None:
        """What a probe says."""
        self.looked_at, self.told = at, told
        for one, bad in told.items():
            if bad:
                self.bad_since.setdefault(one, at)
            elif bad is not None:
                self.bad_since.pop(one, None)

    def judges(self, act: Decision, rule: Rule) -> None:
        """LAWS of one act."""
        assert self.runs is None, f"{self.runs} runs: {act}"
        assert act.at >= self.paused_until, f"paused: {act}"
        assert not self.ends, f"is ending: {act}"
        key = (rule.name, act.target)
        anew = max(self.anew_at, self.paused_until)
        ended = self.ended.get(key, -math.inf)
        assert self.looked_at >= max(anew, ended), f"nobody has looked since: {act}"
        assert self.told.get(act.target), f"it is not known to be bad: {act}"
        held = act.at - max(self.bad_since[act.target], anew)
        assert held >= rule.hold_for, f"has been so for {held} s: {act}"
        assert act.at - ended >= rule.cooldown, f"does not rest: {act}"
        rested = act.at - self.acted.get(key, -math.inf)
        assert rested >= LEAST_REST, f"again after {rested} s: {act}"
        self.runs, self.acted[key] = act, act.at


class Life(Story):
    """A serving engine on a box that falls ill; every step is checked."""

    def begins(self, rules: Sequence[Rule], mode: Mode) -> None:
        """From now on it is looked at."""
        self.mine = {rule.name: rule for rule in rules}
        self.books, self.at, self.starts = Books(), 0.0, 0
        self.reached: Counter[str] = Counter()
        self.state = replace(self.state, mode=mode)

    def take(self, event: Event) -> Step:
        """Step once, and look at what is done about the box."""
        before = self.engine.history
        done = super().take(event)
        if hasattr(self, "mine"):
            self._judges(before, done)
        return done

    def _judges(self, before: RestartHistory, done: Step) -> None:
        acts = [one for one in done.decisions if one.hold is None]
        beside = [one for one in acts if one.target.kind is not SubjectKind.ENGINE]
        for act in beside:
            rule = self.mine[act.rule]
            assert (self.state.mode, rule.mode) == (Mode.ACT, Mode.ACT), f"may not act: {act}"
            self.books.judges(act, rule)
            self.reached[f"acts on a {act.target.kind.value}"] += 1
        if acts == beside:
            assert self.engine.history.restarts == before.restarts, "on an engine's account"
            assert not (beside and self.engine.aside), "on an engine's hands"
        self.reached.update(one.hold.value for one in done.decisions if one.hold)

    def happens(self, what: str, later: Seconds, bad: Bad) -> None:
        """One thing, after the turns of the loop until then; in a gap there are none."""
        if what == "gap":
            self.at += GAP + 1.0 + later
            self.books.anew_at = self.at
            self.asleep(self.at)
            return
        self.at += later
        self.tick(self.at)
        match what:
            case "look":
                self._looks(dict(zip(SUBJECTS, bad, strict=True)))
            case "ends" | "fails" if self.books.runs is not None:
                act, self.books.runs = self.books.runs, None
                self.books.ended[act.rule, act.target] = self.at
                self.finished(self.at, act.action, ok=what == "ends", about=act.target)
            case "pause" | "short pause":
                until = self.at + 5.0 if what == "short pause" else None
                self.books.paused_until = math.inf if until is None else until
                self.command(Verb.PAUSE, self.at, until)
            case "resume":
                self.books.paused_until = min(self.books.paused_until, self.at)
                self.command(Verb.RESUME, self.at)
            case "crash" if self.engine.leader is not None:
                self.exited(self.at, generation=self.engine.generation)
            case "started" if self.engine.in_flight == "restart_engine":
                self.starts += 1
                self.restarted(self.at, f"{self.starts + 100:08x}")
                self.at += 1.0
            case "shutdown":
                self.books.ends = True
                self.command(Verb.SHUTDOWN, self.at)
            case _:
                pass

    def _looks(self, told: dict[Subject, bool | None]) -> None:
        self.books.looks(self.at, told)
        samples = [(one, "bad", bad) for one, bad in told.items() if bad is not None]
        self.read(of_box(self.at, *samples))


def lived(happenings: Sequence[Happening], rules: Sequence[Rule], mode: Mode = Mode.ACT) -> Life:
    """The life after all of it."""
    begun = serving(rule_set=(*rules, *DEFAULT_RULES))
    life = Life(begun.state, begun.rule_set)
    life.begins(rules, mode)
    for one in happenings:
        life.happens(*one)
    return life


FULL = Rule(
    "full",
    SubjectKind.HOST,
    Among("it.bad", (True,)),
    Severity.WARNING,
    "the box is full",
    actions=("sweep",),
)
HOT = replace(FULL, name="hot", subject=SubjectKind.GPU, actions=("call:me",))
_ANSWER = st.sampled_from([True, True, True, False, None])
_LATER = st.sampled_from([0.0, 0.5, 1.0, 5.0, 14.0, 100.0, 299.5, 301.0, 601.0])
_COMMON = ("look",) * 6 + ("ends",) * 3
_RARE = ("fails", "gap", "pause", "short pause", "resume", "resume", "crash", "started", "tick")
HAPPENINGS = st.lists(
    st.tuples(st.sampled_from((*_COMMON, *_RARE)), _LATER, st.tuples(_ANSWER, _ANSWER, _ANSWER)),
    min_size=3,
    max_size=30,
)
_DURATIONS = st.sampled_from([0.0, 0.0, 5.0, 60.0, 400.0])


def _ruled(rule: Rule, name: str) -> st.SearchStrategy[Rule]:
    return st.builds(
        lambda lasts, clears, rests, mode: replace(
            rule, name=name, hold_for=lasts, clear_for=clears, cooldown=rests, mode=mode
        ),
        _DURATIONS,
        _DURATIONS,
        _DURATIONS,
        st.sampled_from([Mode.ACT, Mode.ACT, Mode.ACT, Mode.OBSERVE]),
    )


RULES = st.tuples(_ruled(FULL, "full"), _ruled(FULL, "fuller"), _ruled(HOT, "hot"))
ALL: Bad = (True, True, True)
END: tuple[Happening, ...] = (
    ("shutdown", 0.0, ALL),
    ("ends", 1.0, ALL),
    ("look", 400.0, ALL),
    ("look", 61.0, ALL),
)
AGAIN: list[Happening] = [("look", 0.0, ALL), ("ends", 1.0, ALL), ("look", 1.0, ALL)]


@EAGER
@example(AGAIN, (FULL,), ())
@example([*AGAIN[:2], ("tick", 301.0, ALL)], (FULL,), ())
@example([("look", 1.0, ALL)], (FULL, HOT), ())
@example([("pause", 0.0, ALL), ("look", 1.0, ALL), ("resume", 1.0, ALL)], (FULL,), ())
@example([("pause", 0.0, ALL), *AGAIN, ("gap", 0.0, ALL), ("resume", 1.0, ALL)], (FULL,), ())
@example([*AGAIN, ("look", 1.0, (None, True, True)), ("tick", 400.0, ALL)], (FULL,), ())
@given(HAPPENINGS, RULES, st.sampled_from([(), END]))
def test_what_is_done_about_the_box_breaks_no_law(
    happenings: list[Happening], rules: tuple[Rule, ...], end: tuple[Happening, ...]
) -> None:
    """LAW: one at a time, on what is known now, rested, on no engine's account.

    And none while paused, after a gap before a look, or when the watchdog ends.
    """
    lived([*happenings, *end], rules)


@settings(lawful, max_examples=20)
@example(AGAIN, (FULL,))
@given(HAPPENINGS, RULES)
def test_who_observes_does_nothing_about_the_box(
    happenings: list[Happening], rules: tuple[Rule, ...]
) -> None:
    """LAW: in observe mode no rule acts."""
    assert not lived(happenings, rules, Mode.OBSERVE).acts


def test_these_lives_are_not_vacuous() -> None:
    """LAW: there are acts on the box and on cards, and every reason not to act."""
    reached: Counter[str] = Counter()

    @settings(lawful, max_examples=60)
    @given(HAPPENINGS, RULES)
    def draw(happenings: list[Happening], rules: tuple[Rule, ...]) -> None:
        reached.update(lived(happenings, rules).reached)

    draw()
    holds = {"in_flight", "paused", "observe", "cooldown", "stale"}
    assert {"acts on a host", "acts on a gpu", *holds} <= set(reached)
