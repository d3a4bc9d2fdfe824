"""The laws are worth something: each of many bugs planted in the core turns one of them red."""

from __future__ import annotations

import pytest

from tests.laws.bugs import BUGS
from tests.laws.mutants import RED, Mutant, PatchError, copied, judged, planted

WHERE = "tests/laws/where.py"
"""Says which package a law is judged over: red over any but the copy."""


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_seen(bug: Mutant) -> None:
    """The law that is named for the bug is broken by it, over a copy of the package."""
    with copied(bug) as folder:
        seen = judged(folder, [bug.law])
    assert seen.returncode == RED, f"{bug.why}\n{seen.stdout}{seen.stderr}"
    summary = seen.stdout.strip().splitlines()[-1]
    assert summary.startswith("1 failed") and "error" not in summary, seen.stdout  # noqa: PT018


def test_without_a_bug_the_same_laws_hold_over_the_copy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the same harness the untouched copy is green, and it is the copy that was imported."""
    with copied() as folder:
        monkeypatch.setenv("LAWS_OVER", str(folder))
        seen = judged(folder, [WHERE, *sorted({bug.law for bug in BUGS})])
    assert seen.returncode == 0, f"{seen.stdout}{seen.stderr}"


def test_the_tree_is_not_what_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever imports another package than the copy is told so: the check can fail."""
    with copied() as folder, copied() as other:
        monkeypatch.setenv("LAWS_OVER", str(other))
        assert judged(folder, [WHERE]).returncode == RED


@pytest.mark.parametrize("text", ["", "old and old"])
def test_a_bug_that_does_not_fit_is_an_error(text: str) -> None:
    """Text that is gone, or there twice, plants nothing and passes nothing."""
    bug = Mutant("misfit", "policy.py", "old", "new", "", "")
    with pytest.raises(PatchError, match="misfit"):
        planted(text, bug)


def test_the_bugs_are_many_and_everywhere() -> None:
    """At least twenty, of different names, in the files that judge and restrain."""
    assert len({bug.name for bug in BUGS}) == len(BUGS) >= 20
    assert {bug.file for bug in BUGS} >= {
        "policy.py",
        "ladder.py",
        "deciding.py",
        "watching.py",
        "rules.py",
        "verdict.py",
        "facts.py",
        "lifecycle.py",
        "cards.py",
        "series.py",
        "views.py",
        "commands.py",
        "rule_set.py",
    }
