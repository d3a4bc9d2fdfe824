"""Planted bugs about what is done beside the engines, about a GPU or the box."""

from __future__ import annotations

from tests.laws.mutants import Mutant

_LAWS = "tests/laws/test_beside_laws.py::"
_ANY = f"{_LAWS}test_what_is_done_about_the_box_breaks_no_law"

BESIDE = (
    Mutant(
        "two-sweeps-at-a-time",
        "beside.py",
        "if state.shutting_down or state.beside is not None:",
        "if state.shutting_down:",
        "a second action about the box is begun while the first runs",
        _ANY,
    ),
    Mutant(
        "sweeps-while-it-ends",
        "beside.py",
        "if state.shutting_down or state.beside is not None:",
        "if state.beside is not None:",
        "a watchdog that is ending begins something that nobody waits for",
        _ANY,
    ),
    Mutant(
        "sweeps-during-a-pause",
        "beside.py",
        "if state.pause is not None:",
        "if state.pause is not None and state.pause.until is not None:",
        "it acts on the box during a pause that has no end",
        _ANY,
    ),
    Mutant(
        "sweeps-in-observe-mode",
        "beside.py",
        "if state.mode is not Mode.ACT or finding.mode is not Mode.ACT:",
        "if finding.mode is not Mode.ACT:",
        "a watchdog that should only look removes files",
        f"{_LAWS}test_who_observes_does_nothing_about_the_box",
    ),
    Mutant(
        "sweeps-each-second",
        "beside.py",
        "if ladder.rests(state, key, rule, work.at):",
        "if rule.cooldown and ladder.rests(state, key, rule, work.at):",
        "an action that did not help is repeated for ever without a pause",
        _ANY,
    ),
    Mutant(
        "sweeps-what-nobody-knows",
        "beside.py",
        "if seen.unseen_since is not None or held is None or work.at < held:",
        "if held is not None and work.at < held:",
        "it acts on what was true before a pause, or on what nobody can tell any more",
        _ANY,
    ),
    Mutant(
        "sweeps-on-an-old-look",
        "ladder.py",
        "return all(one.at >= since for one in found if one is not None)",
        "return True",
        "what an action has just cured is done again before anybody has looked",
        _ANY,
    ),
)
