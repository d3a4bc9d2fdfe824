"""``changed`` is ``dataclasses.replace`` for the values of which a step makes several."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace

import pytest

from watchdog.core.changing import changed
from watchdog.core.state import EngineSettings, EngineState, RestartHistory, State, Vitals

VALUES = (State(), Vitals(members=3), RestartHistory(starts=2), EngineState(EngineSettings("main")))
CHANGES = ({"at": 4.0}, {"cores": 1}, {"failures": 5}, {"leader": 7, "generation": "a"})


@pytest.mark.parametrize(("value", "fields"), list(zip(VALUES, CHANGES, strict=True)))
def test_it_gives_what_replace_gives(value: State, fields: dict[str, object]) -> None:
    """The copy equals that of ``dataclasses.replace``, and the value is as it was."""
    before = replace(value)
    copy = changed(value, **fields)  # type: ignore[arg-type]  # the table has them by name
    assert copy == replace(value, **fields)  # type: ignore[arg-type]  # as above
    assert type(copy) is type(value)
    assert value == before


@pytest.mark.parametrize("value", VALUES)
def test_a_copy_is_as_frozen_as_the_value(value: State) -> None:
    """Nobody can write into the copy, nor does it share what the value keeps its fields in."""
    copy = changed(value)
    with pytest.raises(FrozenInstanceError):
        copy.at = 1.0  # type: ignore[misc]  # frozen
    assert copy.__dict__ is not value.__dict__


def test_an_unknown_field_is_refused() -> None:
    """A field that the class has not is a TypeError that names it, as with replace."""
    with pytest.raises(TypeError, match="Vitals has no field memmbers"):
        changed(Vitals(), memmbers=1)  # type: ignore[call-arg]  # misspelt on purpose


@pytest.mark.parametrize("value", VALUES)
def test_nothing_waits_to_be_called(value: State) -> None:
    """None of the classes it is used with has a ``__post_init__`` that a copy would miss."""
    assert not hasattr(value, "__post_init__")
