"""What a step has gathered so far, and how it is written down."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from watchdog.core import cards, incidents
from watchdog.core.model import Decision, Finding, Record, Seconds
from watchdog.core.rule_set import RuleSet
from watchdog.core.state import EngineState, PolicySettings, State


@dataclass(slots=True)
class Work:
    """Lives for one step only: every stage adds to it.

    ``anew`` says that watches were taken back: what holds still must be asked again. ``judged`` are
    engines as the rules saw them.
    """

    at: Seconds
    state: State
    rules: RuleSet
    settings: PolicySettings
    findings: list[Finding] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    anew: bool = False
    judged: Mapping[str, EngineState] = field(default_factory=dict)

    def add(self, done: tuple[State, tuple[Decision, ...], tuple[Record, ...]]) -> None:
        """Take over what a command led to."""
        self.state, decisions, records = done
        self.records.extend(records)
        for decision in decisions:
            self.note(decision)

    def note(self, decision: Decision) -> None:
        """One decision, with its journal line."""
        self.decisions.append(decision)
        self.state = incidents.decided(self.state, decision)
        keys: tuple[tuple[str, object], ...] = (
            ("rule", decision.rule),
            ("engine", ",".join(cards.concerned(self.state, decision.target))),
            ("subject", str(decision.target)),
            ("action", decision.action),
            ("cause", decision.cause.value),
            ("detail", decision.detail),
            ("incident", decision.incident),
        )
        if decision.hold is not None:
            keys = (*keys, ("reason", decision.hold.value))
        event = "decision.act" if decision.hold is None else "decision.hold"
        self.records.append(Record(event, "info", keys))
        if decision.hold is None:
            told = {"engine", "subject", "action", "incident"}
            kept = tuple((name, value) for name, value in keys if name in told)
            self.records.append(Record("action.started", "info", kept))
