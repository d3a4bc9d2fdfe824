"""All laws that can be told from one step after another, checked by one who only looks on.

The auditor keeps books of its own: what the core says of itself counts as a claim to be checked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.laws.accounts import STARTS, Account, Rungs
from tests.laws.books import Books
from tests.laws.user_rules import Over
from tests.laws.world import RULES, SETTINGS, Seen
from watchdog.core import clearing
from watchdog.core.engine import GAP
from watchdog.core.lifecycle import LIFE, TRANSITIONS
from watchdog.core.model import (
    ActionFinished,
    Commanded,
    Decision,
    EngineExited,
    EngineSpawned,
    Event,
    Finding,
    HoldReason,
    Mode,
    ProcessState,
    ReadingTaken,
    Record,
    Seconds,
    Severity,
    Subject,
    SubjectKind,
    Verb,
)
from watchdog.core.rule_set import RuleSet
from watchdog.core.rules import Rule, WatchKey
from watchdog.core.state import PolicySettings, State, Step

_LIVE = frozenset({ProcessState.STARTING, ProcessState.RUNNING})
_AT_REST = frozenset({ProcessState.RUNNING, ProcessState.STOPPED})
_OWN_STORIES = frozenset({"engine-dead", "engine-stalled", "engine-unkillable"})
"""Rules whose stories last until the engine serves or is stopped."""
_FACTS = (EngineExited, ActionFinished)
"""Events that say themselves what has become of an engine: no look is needed to believe it."""


def same_or_host(engine: str, subject: Subject) -> bool:
    """Whether a finding about ``subject`` concerns an engine that has no card."""
    return subject.kind is SubjectKind.HOST or subject == Subject(SubjectKind.ENGINE, engine)


@dataclass
class Auditor:
    """Looks on from the first step. ``saw`` raises AssertionError with the law that is broken.

    ``concerns(engine, subject)`` is the truth about whose cards are whose.
    """

    rules: RuleSet = field(default_factory=lambda: RULES)
    settings: PolicySettings = SETTINGS
    concerns: Callable[[str, Subject], bool] = same_or_host
    accounts: dict[str, Account] = field(default_factory=dict)
    rungs: dict[WatchKey, Rungs] = field(default_factory=dict)
    reached: Counter[str] = field(default_factory=Counter)
    books: Books = field(default_factory=Books)
    at: Seconds | None = None
    gap_at: Seconds | None = None
    looked: set[str] = field(default_factory=set)
    paused: bool = False
    pause_until: Seconds | None = None
    jumped: bool = False

    def saw(
        self, event: Event, before: State, done: Step, flows: frozenset[str] = frozenset()
    ) -> None:
        """One step; ``flows`` are the engines that provably serve others at that moment."""
        self._notes_time(event)
        self._notes_event(event, before)
        self.books.notes(event)
        self.books.tears(self.rules.windows)
        for record in done.records:
            self._notes_record(record, event.at, done.state)
        for name, engine in done.state.engines.items():
            was = before.engines.get(name)
            if was is not None and was.failed_at != engine.failed_at:
                self.account(name).failed(engine, self.settings)
        for decision in done.decisions:
            if decision.hold is None:
                self._judges_act(decision, event, before, done.state, flows)
            else:
                self.reached[decision.hold.value] += 1
        self._judges_engines(before, done)
        self._judges_findings(event, done)
        self._judges_state(done)

    def restarted(self) -> None:
        """The watchdog itself began anew: accounts, ladders and pause are what they were."""
        self.at = self.gap_at = None
        self.looked.clear()
        self.books.begins_anew()
        for account in self.accounts.values():
            account.running, account.charged, account.ready = "", False, False
            account.aside = ""
        for rungs in self.rungs.values():
            rungs.ended_at = rungs.acted_at if rungs.ended_at is None else rungs.ended_at

    def audit(self, trace: Sequence[Seen]) -> Auditor:
        """A whole trace."""
        for seen in trace:
            self.saw(seen.event, seen.before, seen.done, seen.flows)
        return self

    def account(self, engine: str) -> Account:
        """The account of an engine."""
        return self.accounts.setdefault(engine, Account())

    # --- what happens ---------------------------------------------------------------------------

    def _notes_time(self, event: Event) -> None:
        at = event.at
        self.jumped = self.at is not None and at - self.at > GAP
        if self.jumped:
            self.gap_at = at
            self.looked.clear()
            self.books.nobody_looked(at)
        self.at = at if self.at is None else max(at, self.at)
        if self.pause_until is not None and at >= self.pause_until:
            self.paused, self.pause_until = False, None
            self.books.forgets_windows()

    def _notes_event(self, event: Event, before: State) -> None:
        match event:
            case EngineSpawned():
                self.account(event.engine).ready = event.ready
            case ActionFinished():
                self._notes_end(event)
            case Commanded():
                self._notes_command(event, before)
            case ReadingTaken() if event.reading.subject is not None:
                self._notes_look(event, before)
            case _:
                pass

    def _notes_look(self, event: ReadingTaken, before: State) -> None:
        reading = event.reading
        assert reading.subject is not None
        engine = before.engines.get(reading.subject.name)
        told = reading.error is None and reading.samples
        if engine is not None and told and engine.generation == reading.generation != "":
            self.looked.add(engine.name)

    def _notes_end(self, event: ActionFinished) -> None:
        outcome = event.outcome
        self.reached[f"{outcome.action} {'ok' if outcome.ok else 'failed'}"] += 1
        self.account(outcome.target.name).ended(outcome)
        for key, rungs in self.rungs.items():
            ran = (key[1], rungs.action) == (outcome.target, outcome.action)
            if ran and rungs.ended_at is None:
                rungs.ended_at = event.at

    def _notes_command(self, event: Commanded, before: State) -> None:
        match event.verb:
            case Verb.PAUSE:
                self.paused, self.pause_until = True, event.until
            case Verb.RESUME:
                if self.paused:
                    self.books.forgets_windows()
                self.paused, self.pause_until = False, None
            case Verb.STOP | Verb.START | Verb.RESTART | Verb.RESET_BREAKER:
                for name in before.engines:
                    if event.engine in {"", name}:
                        self._notes_verb(name, event.verb)
            case _:
                pass

    def _notes_verb(self, name: str, verb: Verb) -> None:
        account = self.account(name)
        if verb is Verb.RESET_BREAKER:
            account.forgive()
            target = Subject(SubjectKind.ENGINE, name)
            self.rungs = {key: one for key, one in self.rungs.items() if key[1] != target}
        else:
            account.stopped, account.resigned = verb is Verb.STOP, False

    def _notes_record(self, record: Record, at: Seconds, state: State) -> None:
        keys = dict(record.keys)
        match record.event:
            case "engine.ready" | "engine.unproven":
                self.account(str(keys["engine"])).ready = True
            case "breaker.opened":
                account = self.account(str(keys["engine"]))
                assert not account.broken, "a breaker that is open was opened"
                account.broken = True
            case "finding.firing" | "finding.resolved":
                self._notes_finding(record.event == "finding.firing", keys, at)
            case "incident.opened":
                self._judges_opening(keys, state)
            case "incident.resolved":
                self._judges_closing(keys, state)
            case "watchdog.gap":
                assert self.jumped, "a gap where there was none"
            case _:
                pass

    def _notes_finding(self, fires: bool, keys: dict[str, object], at: Seconds) -> None:  # noqa: FBT001 - a fact
        kind, _, name = str(keys["subject"]).partition("/")
        key = (str(keys["rule"]), Subject(SubjectKind(kind), name))
        rule = self.rules.by_name[key[0]]
        assert rule.mode is not Mode.OFF, f"{key[0]} is off and fires"
        if self.jumped and key[1].kind is SubjectKind.ENGINE:
            lasts = rule.hold_for if fires else rule.clear_for
            assert not lasts, f"{key[0]} counts time that nobody saw"
        rungs = self.rungs.get(key)
        if rungs is not None and fires:
            rungs.fires(at, self.settings)
        elif rungs is not None:
            rungs.healed_at = at
        self.reached[f"{key[0]} {'fires' if fires else 'clears'}"] += 1

    # --- what is judged -------------------------------------------------------------------------

    def _judges_act(
        self, act: Decision, event: Event, before: State, after: State, flows: frozenset[str]
    ) -> None:
        name = act.target.name
        account, engine, was = self.account(name), after.engines[name], before.engines[name]
        assert not account.running, f"{account.running} runs: {act}"
        assert before.mode is Mode.ACT, f"observes: {act}"
        if act.action in LIFE:
            account.running, account.charged = act.action, False
        else:
            assert not account.aside, f"{account.aside} runs beside: {act}"
            account.aside = act.action
        if act.rule == clearing.RULE:
            self._judges_clearing(act, event, before, after, flows)
        elif act.rule != "operator":
            self._judges_own(act, event, before, after, flows)
        first = act.action == "start_engine" and was.history.wanted
        if act.rule != "operator" and act.action in STARTS and not first:
            account.restarted(act, engine, self.settings)
        if act.action == "start_engine":
            account.ready = False

    def _judges_clearing(
        self, act: Decision, event: Event, before: State, after: State, flows: frozenset[str]
    ) -> None:
        """What nobody starts any more leaves nothing behind; what serves is not touched."""
        name = act.target.name
        was, history = before.engines[name], after.engines[name].history
        assert act.action == "stop_engine"
        assert not self.paused, f"paused: {act}"
        assert not after.shutting_down, f"is ending: {act}"
        broken = self.account(name).broken
        assert broken or history.given_up is not None, f"was not given up: {act}"
        assert history.wanted, f"nobody wants it: {act}"
        assert name not in flows, f"it is busy: {act}"
        assert was.process in {ProcessState.STARTING, ProcessState.GIVEN_UP}, f"serves: {act}"
        self._judges_blindness(act, event, before)
        self.reached[f"clears {was.process.value}"] += 1

    def _judges_own(
        self, act: Decision, event: Event, before: State, after: State, flows: frozenset[str]
    ) -> None:
        name = act.target.name
        account, engine = self.account(name), after.engines[name]
        assert not self.paused, f"paused: {act}"
        assert not after.shutting_down, f"is ending: {act}"
        if act.action in STARTS:
            assert not account.broken, f"the breaker is open: {act}"
            assert engine.history.given_up is None, f"no retry cures it: {act}"
        assert before.engines[name].process is not ProcessState.UNKILLABLE, f"unkillable: {act}"
        if act.action in LIFE - {"start_engine"}:
            assert name not in flows, f"it is busy: {act}"
            if engine.failed_at is None and before.engines[name].process in _LIVE:
                self.books.judges_load(act)
        self._judges_blindness(act, event, before)
        self._judges_rule(act, self.rules.by_name[act.rule], after)

    def _judges_blindness(self, act: Decision, event: Event, before: State) -> None:
        if self.gap_at is None or isinstance(event, _FACTS):
            return
        live = before.engines[act.target.name].process in _LIVE
        assert not live or act.target.name in self.looked, f"nobody has looked since a gap: {act}"

    def _judges_rule(self, act: Decision, rule: Rule, after: State) -> None:
        name, account = act.target.name, self.account(act.target.name)
        assert rule.mode is Mode.ACT, f"{rule.name} may not act: {act}"
        if act.action in LIFE:
            assert not account.stopped, f"an operator has stopped it: {act}"
            account.resigned = act.action == "stop_engine"
        for other in _acting(after):
            outranks = other.rule in rule.inhibited_by or other.holds is not None
            assert not (outranks and self.concerns(name, other.subject)), f"{other.rule}: {act}"
        rungs = self.rungs.setdefault((rule.name, act.target), Rungs())
        self.reached[f"rung {rungs.rung}"] += 1
        self.books.judges_looks(act, rule, rungs.ended_at)
        if isinstance(rule.when, Over):
            self.books.judges_window(act, rule.when.window, rule.when.limit)
            self.reached[f"acts on {rule.when.window.figure.value}"] += 1
        rungs.climbs(act, rule)

    def _judges_opening(self, keys: dict[str, object], state: State) -> None:
        rule = self.rules.by_name[str(keys["rule"])]
        kind, _, name = str(keys["subject"]).partition("/")
        if SubjectKind(kind) is SubjectKind.ENGINE:
            for other in _acting(state):
                named = other.rule in rule.inhibited_by and other.severity is not Severity.INFO
                outranks = named and self.concerns(name, other.subject)
                assert not outranks, f"{rule.name} tells a story of its own under {other.rule}"

    def _judges_closing(self, keys: dict[str, object], state: State) -> None:
        self.reached[f"incident {keys['outcome']}"] += 1
        kind, _, name = str(keys["subject"]).partition("/")
        if SubjectKind(kind) is SubjectKind.ENGINE and str(keys["rule"]) in _OWN_STORIES:
            process, account = state.engines[name].process, self.account(name)
            unwanted = account.stopped or account.resigned
            assert process in _AT_REST or unwanted, (
                f"the story of {name} ends while it is {process.value}"
            )

    def _judges_engines(self, before: State, done: Step) -> None:
        for name, engine in done.state.engines.items():
            was = before.engines.get(name)
            if was is engine or was is None:
                continue
            moved = was.process is not engine.process
            allowed = not moved or engine.process in TRANSITIONS[was.process]
            assert allowed, f"{name}: {was.process} to {engine.process}"
            account = self.account(name)
            assert engine.history.breaker_open is account.broken, f"breaker of {name}"
            assert engine.in_flight == account.running, f"in flight: {name}"
            assert engine.aside == account.aside, f"aside: {name}"
            if was.verdict is not engine.verdict:
                self.reached[f"is {engine.verdict.value}"] += 1

    def _judges_findings(self, event: Event, done: Step) -> None:
        told: Counter[WatchKey] = Counter()
        acted: dict[WatchKey, HoldReason | None] = {}
        for decision in done.decisions:
            if decision.rule not in {"operator", clearing.RULE}:
                key = (decision.rule, decision.target)
                told[key] += 1
                acted[key] = decision.hold
        for key, seen in done.state.watches.items():
            if seen.firing is None:
                assert key not in told, f"decided about nothing: {key}"
            elif seen.firing.actions and key[1].kind is SubjectKind.ENGINE:
                assert told[key] <= 1, f"decided twice: {key}"
                does = key in acted and acted[key] is None
                assert (seen.held is None) is does, f"neither acted nor held at {event.at}: {key}"
            else:
                assert key not in told, f"decided without an action: {key}"

    def _judges_state(self, done: Step) -> None:
        state = done.state
        assert (state.pause is not None) is self.paused, "a pause that is none"
        open_on = [i.subject for i in state.incidents if i.resolved_at is None]
        assert len(open_on) == len(set(open_on)), "two stories of one subject"
        wake = done.wake_at
        assert wake is None or self.at is None or wake > self.at or self.jumped, "wakes in the past"


def _acting(state: State) -> list[Finding]:
    found = (seen.firing for seen in state.watches.values())
    return [one for one in found if one is not None and one.mode is Mode.ACT]
