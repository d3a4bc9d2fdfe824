"""The story of an incident: every line of the journal that belongs to it, and no other's."""

from __future__ import annotations

import msgspec

from tests.support.box import card
from tests.support.core import GENERATION, Story, of_box, rule, serving
from tests.support.rules import DEFAULT_RULES, when
from watchdog.core.model import (
    HOST,
    ActionFinished,
    Cause,
    EngineExited,
    Incident,
    Mode,
    Outcome,
    SubjectKind,
    Verb,
    engine_subject,
)

HOT = when("it.x > 80", SubjectKind.GPU, x=float)


def lines(story: Story, number: int = -1) -> list[tuple[str, str]]:
    """Events and words of an incident."""
    return [(entry.event, entry.text) for entry in story.state.incidents[number].timeline]


def test_a_crash_from_the_exit_to_the_first_token() -> None:
    """FACT: what was found, decided, done and became of it, in this order."""
    story = serving()
    story.exited(10.0)
    story.restarted(12.0, "b" * 32)
    assert lines(story) == [
        ("engine.exited", "crash (code 1): it crashed"),
        ("finding.firing", f"engine-dead: {DEFAULT['engine-dead']}"),
        ("decision.act", "restart_engine, by engine-dead: it crashed"),
        ("engine.started", "process 1, start 2"),
        ("action.finished", "restart_engine ok after 0.1 s"),
        ("engine.ready", "after 1.0 s"),
        ("finding.resolved", f"engine-dead: {DEFAULT['engine-dead']}"),
        ("incident.resolved", "recovered"),
    ]
    times = [entry.at for entry in story.state.incidents[-1].timeline]
    assert times == sorted(times)
    assert (times[0], times[-1]) == (10.0, 13.0)


DEFAULT = {one.name: one.summary for one in DEFAULT_RULES}


def test_what_was_held_is_told_with_the_reason() -> None:
    """FACT: a pause leaves a line that says so, and why nothing was done."""
    story = serving()
    story.command(Verb.PAUSE, 1.0)
    story.exited(10.0)
    assert ("decision.hold", "restart_engine held (paused), by engine-dead: it crashed") in lines(
        story
    )


def exited(at: float, generation: str, advice: str) -> EngineExited:
    """A crash about which somebody knows what to do."""
    return EngineExited(at, "main", generation, 2, None, Cause.BAD_ARGUMENTS, "no flag", advice)


def test_what_to_do_about_this_exit_is_the_fix_of_its_incident() -> None:
    """FACT: also when a gate tells it later; where nobody knows better the rule's own stays."""
    story = serving()
    story.take(exited(10.0, GENERATION, "correct the flag"))
    assert story.state.incidents[-1].fix == "correct the flag"
    advice = (("advice", "free the port"),)
    refused = Outcome("restart_engine", engine_subject("main"), ok=False, took=0.1, evidence=advice)
    story.take(ActionFinished(11.0, refused))
    assert story.state.incidents[-1].fix == "free the port"
    story = serving()
    story.take(exited(10.0, GENERATION, ""))
    (usual,) = (one.fix for one in DEFAULT_RULES if one.name == "engine-dead")
    assert usual
    assert story.state.incidents[-1].fix == usual.replace("{subject}", "main")


def test_each_has_its_own_story() -> None:
    """FACT: a hot card, a full box and a dead engine tell nothing of each other."""
    full = rule("full", when("it.y > 5", SubjectKind.HOST, y=float), SubjectKind.HOST)
    hot = rule("hot", HOT, SubjectKind.GPU)
    story = serving(rule_set=(full, hot, *DEFAULT_RULES))
    story.read(of_box(1.0, (card(), "x", 99.0), (HOST, "y", 9.0)))
    story.exited(2.0)
    found = {one.rule: {entry.event for entry in one.timeline} for one in story.state.incidents}
    assert found["full"] == found["hot"] == {"finding.firing"}
    assert found["engine-dead"] == {"engine.exited", "finding.firing", "decision.act"}


def test_a_story_without_end_keeps_its_beginning_and_its_end() -> None:
    """FACT: thousands of lines cost the memory of a hundred, and how many are left out is told."""
    flaps = rule("flaps", HOT, SubjectKind.GPU, clear_for=0.0)
    stays = rule("stays", when("it.y > 1", SubjectKind.GPU, y=float), SubjectKind.GPU)
    story = serving(rule_set=(flaps, stays))
    for at in range(1, 1001):
        story.read(of_box(float(at), (card(), "x", 99.0 * (at % 2)), (card(), "y", 9.0)))
    (incident,) = story.state.incidents
    assert len(incident.timeline) == 100
    assert incident.omitted == 901
    assert incident.timeline[0].at == 1.0
    assert incident.timeline[-1].at == 1000.0


def test_it_is_what_the_store_keeps() -> None:
    """FACT: evidence, fix and timeline come back from their JSON as they were."""
    cures = rule(
        "cures", HOT, SubjectKind.GPU, fix="cool {it.x} down", evidence=("it.x",), mode=Mode.ACT
    )
    story = serving(rule_set=(cures,)).read(of_box(1.0, (card(), "x", 99.0)))
    (incident,) = story.state.incidents
    assert (incident.fix, incident.evidence) == ("cool 99 down", (("it.x", 99.0),))
    again = msgspec.json.decode(msgspec.json.encode(incident), type=Incident)
    assert again == incident
