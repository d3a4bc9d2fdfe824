"""Laws about engines that somebody else starts, whatever happens to them and whoever asks."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given

from tests.laws.lawful import lawful
from tests.laws.world import Body, Moment, World, acts, born, moments
from watchdog.core.model import Cause, Commanded, EngineSpawned, Mode, Verb
from watchdog.core.state import Attach


def attached(attach: Attach) -> World:
    """A world with one engine that was there before its watchdog."""
    world = World(mode=Mode.ACT)
    state = born(("a",))
    engine = state.engines["a"]
    settings = replace(engine.settings, attach=attach)
    world.state = state.with_engine(replace(engine, settings=settings))
    world.bodies = [Body("a", generation="00000001", alive=True)]
    world.trace.clear()
    world.take(EngineSpawned(world.now, "a", "00000001", 1, Cause.UNKNOWN, adopted=True))
    return world


@lawful
@given(moments())
def test_a_reported_engine_is_never_acted_upon(story: list[Moment]) -> None:
    """Attached to report, nothing is started, stopped or signalled, whoever asks."""
    assert not acts(attached(Attach.REPORT).live(story).trace)


@pytest.mark.parametrize("attach", list(Attach))
@lawful
@given(moments())
def test_no_attached_engine_ends_with_us(attach: Attach, story: list[Moment]) -> None:
    """Our own end is not its end, and no operator's stop is made that somebody would undo."""
    world = attached(attach).live(story)
    before = len(world.trace)
    world.take(Commanded(world.now, Verb.SHUTDOWN))
    assert not acts(world.trace[before:])
    assert all(act.action != "stop_engine" or act.rule != "operator" for act in acts(world.trace))
