"""What a picture of the daemon holds besides its state: who outranks whom, and where we are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.core import NAME, Is, engine, rule, serving
from tests.support.windows import snapshot
from watchdog.core.model import Cause, Finding, ProcessState, Severity, engine_subject
from watchdog.core.state import Restart, RestartHistory, State, Watch
from watchdog.daemon import shown
from watchdog.web.answers import answered
from watchdog.web.pasted import unusual
from watchdog.web.saying import left

ENGINE = engine_subject(NAME)
PICTURE = snapshot(State())


def watch(name: str) -> Watch:
    """A finding of that rule about the engine."""
    return Watch(firing=Finding(name, ENGINE, Severity.WARNING, name, 1.0))


def test_who_outranks_whom_is_in_the_picture() -> None:
    """FACT: a finding whose rule names the other one is told with it, and no other is."""
    never = Is("engine.process", ("nothing",))
    rules = (rule("loud", never), rule("quiet", never, inhibited_by=("loud",)))
    watches = {(name, ENGINE): watch(name) for name in ("loud", "quiet", "of another version")}
    state = replace(serving().state, watches=watches)
    found = shown.outranked(state, rules)
    assert {key[0]: above.rule for key, above in found.items()} == {"quiet": "loud"}


@pytest.mark.parametrize(
    ("restarts", "booted", "told"),
    [
        ((), True, "5 of 5 restarts left"),
        ((Restart(90.0), Restart(91.0)), True, "3 of 5 restarts left"),
        ((), False, "3 of 3 restarts left"),
        ((Restart(90.0, boot=True),), False, "2 of 3 restarts left"),
        (tuple(Restart(90.0 + n) for n in range(4)), False, "1 of 5 restarts left"),
    ],
)
def test_the_restarts_that_are_left_are_of_the_same_budget(
    restarts: tuple[Restart, ...],
    booted: bool,  # noqa: FBT001 - a row of the table
    told: str,
) -> None:
    """FACT: the total is that of the budget which says how many are left."""
    story = serving()
    history = RestartHistory(restarts=restarts)
    one = replace(story.engine, history=history, ready_at=0.0 if booted else None)
    count, of = shown.restarts(one, 100.0, story.settings)
    assert left(replace(PICTURE, budget={NAME: count}, budgets={NAME: of}), NAME) == told


def test_a_directory_that_is_found_is_not_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FACT: only where a command has to be told of it; a variable is not everybody's."""
    monkeypatch.setenv("VLLM_WATCHDOG_STATE_DIR", str(tmp_path))
    assert unusual(tmp_path) == str(tmp_path)
    assert unusual(None) == ""
    assert unusual(Path("/var/lib/vllm-watchdog")) == ""


def test_a_model_that_is_missing_is_named() -> None:
    """FACT: where the model is the cause, and nowhere else."""
    for cause, named in ((Cause.MODEL_MISSING, True), (Cause.CRASH, False)):
        one = engine(ProcessState.GIVEN_UP, cause=cause, explanation="x")
        picture = replace(snapshot(State(engines={NAME: one})), models={NAME: "acme/tiny"})
        found = answered(picture)
        assert found.serving.endswith(" (model acme/tiny)") is named
