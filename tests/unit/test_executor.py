"""Outcomes: every order ends in exactly one, whatever the action does."""

from __future__ import annotations

import queue

import pytest

from tests.support.acting import Box, repertoire, spec
from watchdog.contracts import ActionError, EngineControl, Order
from watchdog.core.model import ActionFinished, Cause, Decision, Event, engine_subject
from watchdog.executor import Actor


class Engine:
    """Does nothing when it is asked to."""

    name = "main"

    def stop(self, *, drain: bool, cause: Cause, generation: str = "") -> None:
        """Nothing to stop."""

    def start(self, cause: Cause) -> None:
        """Nothing to start."""


class Fails:
    """An action that raises what it was given."""

    def __init__(self, error: Exception | None) -> None:
        self._error = error

    def run(self, order: Order, engine: EngineControl) -> None:  # noqa: ARG002 - the contract
        """Raise it."""
        if self._error is not None:
            raise self._error


def carried_out(error: Exception | None) -> ActionFinished:
    """What the actor reports of one order."""
    posted: queue.SimpleQueue[Event] = queue.SimpleQueue()
    actions = repertoire(spec("stop_engine", Fails(error)))
    actor = Actor(Engine(), actions, posted.put, Box())
    try:
        actor.submit(Decision(1.0, "rule", engine_subject("main"), "stop_engine", Cause.CRASH))
        finished = posted.get(timeout=10)
    finally:
        actor.close()
    assert isinstance(finished, ActionFinished)
    assert posted.empty()
    return finished


def test_an_action_that_returns_is_done() -> None:
    """No exception is success."""
    finished = carried_out(None)
    assert finished.outcome.ok


@pytest.mark.parametrize("words", ["cannot start: the port is taken", ""])
def test_an_action_error_is_a_failure_also_without_words(words: str) -> None:
    """What counts is that it raised; cause and verdict come over."""
    outcome = carried_out(ActionError(words, Cause.PORT_IN_USE, unkillable=True)).outcome
    assert (outcome.ok, outcome.cause, outcome.unkillable) == (False, Cause.PORT_IN_USE, True)
    assert outcome.explanation == words


def test_a_bug_in_an_action_is_a_failure_in_one_line() -> None:
    """The actor lives on and says which action failed and how."""
    outcome = carried_out(KeyError("no such thing")).outcome
    assert not outcome.ok
    assert outcome.explanation == "cannot stop_engine: KeyError: 'no such thing'"
