"""Planted bugs about acting on what is not known now: load, looks, windows, and free actions."""

from __future__ import annotations

from tests.laws.mutants import Mutant

_BOX_RULES = "tests/laws/test_box_rules.py::"
ANY = f"{_BOX_RULES}test_no_rule_about_the_box_breaks_a_law"
_TWO = f"{_BOX_RULES}test_two_rules_on_one_engine_break_no_law"
_LADDER = "tests/laws/test_ladder_laws.py::test_a_rule_acts_exactly_when_its_model_does"

NOW = (
    Mutant(
        "old-counters-will-do",
        "policy.py",
        "or vitals.metrics_at is None or vitals.metrics_at < since:",
        "or vitals.metrics_at is None:",
        "an engine is restarted that may be full of requests: nobody has counted them lately",
        ANY,
    ),
    Mutant(
        "what-waits-is-nothing",
        "policy.py",
        "if vitals.running + (vitals.waiting or 0.0) > 0:",
        "if vitals.running < 0:",
        "an engine that is not proven busy is restarted under its requests",
        ANY,
    ),
    Mutant(
        "one-look-for-two-starts",
        "deciding.py",
        "since = (work.state.gap_at, engine.started_at, ended)",
        "since = (work.state.gap_at, ended)",
        "a second rule restarts what the first one has just restarted",
        _TWO,
    ),
    Mutant(
        "windows-hold-gaps",
        "rules.py",
        "views={}, series={})",
        "views={})",
        "what rose before a gap is acted upon after it",
        ANY,
    ),
    Mutant(
        "windows-hold-pauses",
        "engine.py",
        "work.state = views.without_windows(work.state, names)",
        "pass",
        "what piled up during a pause is acted upon when it ends",
        ANY,
    ),
    Mutant(
        "holes-are-nothing",
        "series.py",
        "return at - self.hole_at > self.window / _BUCKETS",
        "return False",
        "a window of which half was not seen counts as seen",
        ANY,
    ),
    Mutant(
        "starts-are-free",
        "ladder.py",
        'CHARGED = frozenset({"start_engine", "restart_engine"})',
        'CHARGED = frozenset({"restart_engine"})',
        "two rules start and stop an engine for ever",
        f"{_BOX_RULES}test_stops_and_starts_by_rules_are_bounded",
    ),
    Mutant(
        "well-engines-do-not-wait",
        "policy.py",
        "return engine.history.restarts[-1].at + wait",
        "return engine.history.restarts[-1].at",
        "a rule restarts a working engine again and again without a pause",
        ANY,
    ),
    Mutant(
        "harmless-for-ever",
        "ladder.py",
        "rest = max(rule.cooldown, _REST) if free else rule.cooldown",
        "rest = rule.cooldown",
        "an action that costs nothing is repeated each second",
        _LADDER,
    ),
    Mutant(
        "for-ends-by-itself",
        "watching.py",
        "if not rule.hold_for or engine is None or engine.subject != subject:",
        "if True:",
        "one look is taken for trouble that lasts",
        _LADDER,
    ),
    Mutant(
        "harmless-actions-delay",
        "lifecycle.py",
        "return changed(engine, aside=action)",
        "return changed(engine, in_flight=action)",
        "a hung dump keeps a dead engine down",
        ANY,
    ),
)
