"""The bugs that are planted: each a slip that a person might make, and the law that sees it."""

from __future__ import annotations

import sys

from tests.laws.bugs_beside import BESIDE
from tests.laws.bugs_now import ANY, NOW
from tests.laws.mutants import Mutant, main

_LAWS = "tests/laws/test_laws.py::"
_RESTRAINT = "tests/laws/test_restraint_laws.py::"
_LADDER = "tests/laws/test_ladder_laws.py::test_a_rule_acts_exactly_when_its_model_does"
_TIME = "tests/laws/test_time_laws.py::"
_W9 = f"{_TIME}test_w9_a_pause_that_ends_in_an_outage_leaves_no_debts"
_GAPS = f"{_TIME}test_nothing_is_decided_from_before_a_gap"
_CAUSES = "tests/laws/test_failure_laws.py::test_a_cause_is_retried_as_often_as_it_is_worth"
_BOX = "tests/laws/test_box_laws.py::"
_WINDOWS = "tests/laws/test_window_laws.py::test_a_figure_is_that_of_its_window"
_FAILURES = f"{_RESTRAINT}test_no_row_of_failures_breaks_a_budget"
_DEFAULTS = f"{_RESTRAINT}test_the_default_rules_keep_all_laws"
_UNKILLABLE = "tests/laws/test_failure_laws.py::test_unkillable_stays_so_until_a_person_acts"
_DAYS = "tests/laws/test_days.py::"
_ATTACHED = "tests/laws/test_attached_laws.py::"

POLICY = (
    Mutant(
        "half-a-budget-window",
        "policy.py",
        "at - restart.at < budget.window for",
        "at - restart.at < budget.window / 2 for",
        "restarts are forgotten after half their window",
        _FAILURES,
    ),
    Mutant(
        "no-boot-budget",
        "policy.py",
        "policy.boot_budget.count - boot_used",
        "policy.boot_budget.count",
        "starts that never get ready have no budget of their own",
        _FAILURES,
    ),
    Mutant(
        "half-a-backoff",
        "policy.py",
        "min(failures - 1, 62)",
        "min(failures - 2, 62)",
        "every wait is half as long as it should be",
        _FAILURES,
    ),
    Mutant(
        "two-at-a-time",
        "policy.py",
        "return state.shutting_down or bool(engine.in_flight) or starts",
        "return state.shutting_down or starts",
        "a second restart is decided while the first runs",
        ANY,
    ),
    Mutant(
        "a-pause-with-an-end-is-none",
        "policy.py",
        "if state.pause is not None:",
        "if state.pause is not None and state.pause.until is None:",
        "it acts during a pause that has an end",
        f"{_LAWS}test_paused_never_acts_by_itself",
    ),
    Mutant(
        "observe-acts",
        "policy.py",
        "if state.mode is not Mode.ACT or finding.mode is not Mode.ACT or is_only_told(engine):",
        "if finding.mode is not Mode.ACT or is_only_told(engine):",
        "a watchdog that should only look restarts engines",
        f"{_LAWS}test_observe_never_acts_at_all",
    ),
    Mutant(
        "attached-acts",
        "policy.py",
        "return engine.settings.attach is Attach.REPORT",
        "return False",
        "a watchdog that was to tell only restarts an engine of somebody else",
        f"{_ATTACHED}test_a_reported_engine_is_never_acted_upon",
    ),
    Mutant(
        "attached-ends-with-us",
        "commands.py",
        "return verb is Verb.SHUTDOWN and engine.settings.attach is not None",
        "return False",
        "an upgrade of a sidecar ends the engine beside it",
        f"{_ATTACHED}test_no_attached_engine_ends_with_us",
    ),
    Mutant(
        "any-old-look-will-do",
        "ladder.py",
        "any(one.at >= since for one in found",
        "any(one.at >= 0.0 for one in found",
        "it acts on what it saw before a gap",
        _LADDER,
    ),
    Mutant(
        "nothing-is-repeated",
        "policy.py",
        "history.repeats + 1 if cause is history.repeated else 1",
        "1",
        "memory that runs out is retried until the budget is spent",
        _CAUSES,
    ),
    Mutant(
        "any-service-ends-the-row",
        "policy.py",
        "engine.ready_at is not None and at - engine.ready_at >= policy.reset_after_ready",
        "engine.ready_at is not None",
        "an engine that dies a second after it is ready is restarted without a pause, for ever",
        _FAILURES,
    ),
)

LADDER = (
    Mutant(
        "health-of-a-moment-helps",
        "ladder.py",
        "at - healed_at >= helped_after",
        "at - healed_at >= 0.0",
        "the ladder never climbs: the first rung is taken for ever",
        _LADDER,
    ),
    Mutant(
        "the-ladder-never-begins-anew",
        "ladder.py",
        "rung = 0 if at - healed_at >= helped_after else track.rung",
        "rung = track.rung",
        "the hardest rung is taken for a fresh trouble",
        _LADDER,
    ),
    Mutant(
        "rests-from-the-decision-on",
        "ladder.py",
        "track.ended_at if track.ended_at is not None else track.acted_at",
        "track.acted_at",
        "after a long action there is no rest at all",
        _LADDER,
    ),
    Mutant(
        "one-rung-only",
        "ladder.py",
        "state.tracks.get(key, Track()).rung + 1",
        "state.tracks.get(key, Track()).rung",
        "the ladder never climbs",
        _LADDER,
    ),
    Mutant(
        "nobody-outranks",
        "ladder.py",
        "if not rule.inhibited_by:",
        "if rule.inhibited_by:",
        "what inhibits is not looked at",
        f"{_BOX}test_a_finding_that_is_outranked_neither_acts_nor_opens_an_incident",
    ),
)

DECIDING = (
    Mutant(
        "the-breaker-is-only-said",
        "deciding.py",
        "engine = policy.open_breaker(engine)",
        "engine = replace(engine)",
        "the breaker opens in the journal and nowhere else",
        f"{_LAWS}test_breaker_opens_once_and_stays_open",
    ),
    Mutant(
        "holds-without-a-word",
        "deciding.py",
        "replace(before, held=hold)",
        "replace(before, held=None)",
        "a finding is held and nobody can say why",
        f"{_LAWS}test_every_firing_finding_has_one_decision",
    ),
    Mutant(
        "free-restarts",
        "deciding.py",
        "engine = policy.charge(engine, work.at, work.settings)",
        "engine = replace(engine)",
        "restarts are not counted: it never gives up",
        _FAILURES,
    ),
)

WATCHING = (
    Mutant(
        "never-healed",
        "watching.py",
        "ladder.healed(work.state, (one.rule, one.subject), work.at)",
        "work.state",
        "a finding that clears counts for nothing",
        _LADDER,
    ),
    Mutant(
        "unknown-counts",
        "rules.py",
        "return before if before.pending_since is None else Watch()",
        "return before",
        "time in which nothing was known counts for trouble",
        _LADDER,
    ),
    Mutant(
        "a-moment-late",
        "rules.py",
        "at >= since + rule.hold_for",
        "at > since + rule.hold_for",
        "what has held long enough waits for the next event",
        _LADDER,
    ),
    Mutant(
        "clears-at-once",
        "rules.py",
        "at >= since + rule.clear_for",
        "at >= since + 0.0",
        "findings flap",
        _LADDER,
    ),
    Mutant(
        "counts-what-nobody-saw",
        "rules.py",
        "pending_since=None, clear_since=None, unseen_since=None, held=None",
        "clear_since=None, unseen_since=None, held=None",
        "what held before a gap is acted upon at the first look after it",
        _LADDER,
    ),
    Mutant(
        "a-pause-leaves-debts",
        "rules.py",
        "replace(seen, pending_since=None, held=None)",
        "replace(seen, held=None)",
        "when a pause ends, what was pending under it is acted upon at once",
        _W9,
    ),
    Mutant(
        "off-is-on",
        "rule_set.py",
        "rule for rule in self.rules if rule.mode is not Mode.OFF",
        "rule for rule in self.rules",
        "a rule that a user has switched off goes on",
        f"{_RESTRAINT}test_overridden_rules_keep_all_laws",
    ),
)

FACTS = (
    Mutant(
        "compiling-is-stalling",
        "verdict.py",
        'limit, why = s.compile_stall, "compilers run"',
        'limit, why = s.stopped_confirm, "compilers run"',
        "an engine that compiles its kernels is restarted, and compiles them again",
        f"{_DAYS}test_h4_compiles_for_seventy_seconds",
    ),
    Mutant(
        "the-dead-still-speak",
        "facts.py",
        "(reading.error, reading.generation) == (\n"
        "        None,\n        engine.generation,\n    )",
        "reading.error is None",
        "a late answer of a dead engine is taken for one of the living",
        f"{_LAWS}test_a_late_reading_changes_nothing",
    ),
    Mutant(
        "unkillable-forgets-itself",
        "facts.py",
        "if not asked and engine.process is not ProcessState.UNKILLABLE:",
        "if not asked:",
        "something is started on top of what survived SIGKILL",
        _UNKILLABLE,
    ),
    Mutant(
        "a-stop-is-a-start",
        "lifecycle.py",
        "engine = move(engine, ProcessState.STOPPING, at)",
        "engine = move(engine, ProcessState.STARTING, at)",
        "an engine that is being stopped is said to start",
        f"{_LAWS}test_only_the_transitions_of_the_table_happen",
    ),
    Mutant(
        "lost-cards-hold-nothing",
        "cards.py",
        "if finding.holds is not None:",
        "if finding.holds is HoldReason.BLOCKED:",
        "an engine is restarted on a card that is off the bus",
        f"{_BOX}test_nothing_is_restarted_while_the_box_holds_it",
    ),
    Mutant(
        "the-driver-is-nobodys",
        "cards.py",
        "subject in cards or subject == engine.subject or machine",
        "subject in cards or subject == engine.subject",
        "an engine is restarted under a driver that cannot start it",
        f"{_BOX}test_nothing_is_restarted_while_the_box_holds_it",
    ),
    Mutant(
        "half-a-window",
        "series.py",
        "self._since(at - self.window)",
        "self._since(at - self.window / 2)",
        "an error of twenty minutes ago is forgotten",
        _WINDOWS,
    ),
    Mutant(
        "counters-fall",
        "series.py",
        "return new - old if new >= old else new",
        "return new - old",
        "a counter that begins anew takes the errors before it away",
        _WINDOWS,
    ),
    Mutant(
        "remembers-the-dead",
        "views.py",
        "return changed(state, series=series, views={**state.views, engine.subject: kept})",
        "return state",
        "a new engine is judged by what was seen of the old one",
        _LADDER,
    ),
    Mutant(
        "two-commands-at-once",
        "commands.py",
        "if engine.in_flight:\n        return state.with_engine(replace(engine, pending=verb))",
        "if engine.pending:\n        return state.with_engine(replace(engine, pending=verb))",
        "a command is carried out while an action runs",
        f"{_LAWS}test_one_action_in_flight",
    ),
    Mutant(
        "an-endless-pause",
        "engine.py",
        "if pause is None or pause.until is None or work.at < pause.until:",
        "if pause is None or pause.until is None or work.at <= pause.until:",
        "a pause lasts until the event after its end",
        _W9,
    ),
    Mutant(
        "nobody-wakes",
        "engine.py",
        "moments.extend(rules.next_look(rule, seen))",
        "moments.extend(())",
        "what is due in a second is found at the next reading",
        _W9,
    ),
    Mutant(
        "no-gap-is-noticed",
        "engine.py",
        "if last is not None and at - last > GAP:",
        "if last is not None and at - last > 100 * GAP:",
        "a machine that slept ten minutes acts on what it saw before",
        _LADDER,
    ),
    Mutant(
        "two-stories-of-one-trouble",
        "incidents.py",
        "finding.severity is Severity.INFO or open_on(state, finding.subject) is not None",
        "finding.severity is Severity.INFO",
        "every step opens an incident",
        _DEFAULTS,
    ),
    Mutant(
        "canaries-before-the-gap",
        "vitals.py",
        "if not _gap(vitals.health_at, at, settings):",
        "if vitals.health_at != -1.0:",
        "completions that failed before a gap count for a stall after it",
        f"{_GAPS}[quiet]",
    ),
)

BUGS = (*POLICY, *LADDER, *DECIDING, *WATCHING, *FACTS, *NOW, *BESIDE)


if __name__ == "__main__":
    sys.exit(main(bug for bug in BUGS if not sys.argv[1:] or bug.name in sys.argv[1:]))
