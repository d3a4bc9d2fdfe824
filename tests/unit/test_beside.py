"""Actions about a GPU or the box: one at a time, restrained as all others, and without a budget."""

from __future__ import annotations

import pytest

from tests.support.box import card
from tests.support.core import NAME, Story, of_box, rule, serving
from tests.support.rules import when
from watchdog.core.model import (
    HOST,
    Cause,
    HoldReason,
    Mode,
    Reading,
    Sampled,
    Seconds,
    SubjectKind,
    Verb,
)
from watchdog.core.rules import Rule

BAD = when("it.x > 5", SubjectKind.HOST, x=float)


def swept(name: str = "full", **fields: object) -> Rule:
    """A rule about the box whose action is ``sweep``."""
    return rule(name, BAD, SubjectKind.HOST, **{"actions": ("sweep",), **fields})


def look(at: Seconds, value: float = 9.0) -> Reading:
    """What a probe of the box says."""
    return Reading("it", at, 0.0, (Sampled(HOST, "x", value),))


def done(story: Story, at: Seconds) -> Story:
    """The end of an action about the box."""
    story.finished(at, "sweep", about=HOST)
    return story


def holds(story: Story) -> list[HoldReason | None]:
    """Of all decisions."""
    return [one.hold for one in story.decisions]


def records(story: Story, event: str) -> list[dict[str, object]]:
    """The lines of the journal."""
    return [dict(record.keys) for record in story.records if record.event == event]


def test_what_is_found_about_the_box_is_acted_upon() -> None:
    """FACT: the order is about the box, on no engine's account, and told with its incident."""
    story = serving(rule_set=(swept(),)).read(look(1.0))
    (act,) = story.acts
    assert (act.action, act.target, act.cause) == ("sweep", HOST, Cause.RULE)
    assert story.state.beside == ("sweep", HOST)
    assert story.engine.in_flight == story.engine.aside == ""
    assert story.engine.history.restarts == ()
    (begun,) = records(story, "action.started")
    (incident,) = story.state.incidents
    assert begun == {
        "action": "sweep",
        "subject": "host/host",
        "engine": NAME,
        "incident": incident.id,
    }
    done(story, 2.0)
    (ended,) = records(story, "action.finished")
    assert (ended["subject"], ended["result"], ended["engine"]) == ("host/host", "ok", NAME)
    assert story.state.beside is None


def test_one_at_a_time() -> None:
    """FACT: another rule's waits for the end of what runs, whatever it is about."""
    hot = when("it.x > 80", SubjectKind.GPU, x=float)
    other = rule("hot", hot, SubjectKind.GPU, actions=("call",))
    story = serving(rule_set=(swept(), other)).read(look(1.0))
    story.read(of_box(2.0, (card(), "x", 99.0)))
    assert [act.action for act in story.acts] == ["sweep"]
    assert holds(story)[-1] is HoldReason.IN_FLIGHT
    done(story, 3.0)
    story.read(of_box(4.0, (card(), "x", 98.0)))
    assert [(act.action, act.target) for act in story.acts] == [("sweep", HOST), ("call", card())]


def test_an_engine_is_not_kept_waiting() -> None:
    """FACT: what runs about the box never delays a restart, nor does a restart end it."""
    story = serving(rule_set=(swept(),)).read(look(1.0))
    story.command(Verb.RESTART, 86400.0)
    assert [act.action for act in story.acts] == ["sweep", "restart_engine"]
    assert story.state.beside == ("sweep", HOST)


def test_it_rests_for_five_minutes() -> None:
    """FACT: trouble that lasts an hour is swept a dozen times, and not each second."""
    story = serving(rule_set=(swept(),))
    for at in range(1, 3600):
        story.read(look(float(at)))
        if story.state.beside is not None:
            done(story, at + 0.5)
    waits = [b.at - a.at for a, b in zip(story.acts, story.acts[1:], strict=False)]
    assert len(story.acts) == 12
    assert min(waits) >= 300.0


@pytest.mark.parametrize("mode", [Mode.OBSERVE, Mode.OFF])
def test_a_rule_that_may_not_act(mode: Mode) -> None:
    """FACT: it is judged and held, or not judged at all."""
    story = serving(rule_set=(swept(mode=mode),)).read(look(1.0))
    assert story.acts == []
    assert holds(story) == ([HoldReason.OBSERVE] if mode is Mode.OBSERVE else [])


def test_a_pause_holds_it() -> None:
    """FACT: nothing is done while paused; afterwards it must be found anew."""
    story = serving(rule_set=(swept(),))
    story.command(Verb.PAUSE, 1.0)
    story.read(look(2.0))
    assert (story.acts, holds(story)[-1]) == ([], HoldReason.PAUSED)
    story.command(Verb.RESUME, 3.0)
    assert story.acts == []
    story.read(look(4.0))
    assert [act.action for act in story.acts] == ["sweep"]


def test_after_a_gap_it_is_looked_at_first() -> None:
    """FACT: what was found before nobody looked is not acted upon."""
    story = serving(rule_set=(swept(hold_for=5.0),))
    story.read(look(1.0)).asleep(500.0)
    assert story.acts == []
    story.read(look(501.0)).read(look(505.0))
    assert story.acts == []
    story.read(look(507.0))
    assert [act.action for act in story.acts] == ["sweep"]


def test_who_outranks_it_holds_it() -> None:
    """FACT: while the other rule fires there is a reason in words and no action."""
    louder = rule("louder", when("it.x > 7", SubjectKind.HOST, x=float), SubjectKind.HOST)
    story = serving(rule_set=(louder, swept(inhibited_by=("louder",)))).read(look(1.0))
    (held,) = (one for one in story.decisions if one.rule == "full")
    assert (held.hold, held.detail) == (HoldReason.INHIBITED, "louder: louder is so")
    story.read(look(2.0, 6.0))
    assert [act.action for act in story.acts] == ["sweep"]


def test_a_ladder_is_climbed() -> None:
    """FACT: the next rung is for trouble that came back before ten minutes of health."""
    ladder = swept(actions=("sweep", "call:me"))
    story = serving(rule_set=(ladder,)).read(look(1.0))
    done(story, 2.0).read(look(3.0, 1.0)).read(look(4.0))
    assert [act.action for act in story.acts] == ["sweep", "call:me"]


def test_a_shutdown_begins_nothing() -> None:
    """FACT: who is leaving sweeps no more."""
    story = serving(rule_set=(swept(),))
    story.command(Verb.SHUTDOWN, 1.0)
    story.read(look(2.0))
    assert [act.action for act in story.acts if act.target == HOST] == []
