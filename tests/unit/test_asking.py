"""Which rules are asked when: at readings that are not theirs, and at moments between them."""

from __future__ import annotations

from tests.support.core import metrics, of_box, rule, serving
from tests.support.rules import DEFAULT_RULES, when
from watchdog.core.engine import firing
from watchdog.core.model import HOST, ProcessState, Subject, SubjectKind
from watchdog.core.state import Budget

GPU, HOST_KIND = SubjectKind.GPU, SubjectKind.HOST


def test_a_rule_about_cards_may_ask_for_engines_alone() -> None:
    """FACT: it is asked at each look at the card, whichever probe's."""
    card = Subject(GPU, "GPU-a")
    waits = rule("waits", when("engines.waiting > 10.0", GPU), GPU)
    story = serving(rule_set=(waits,)).read(of_box(1.0, (card, "temperature", 50.0), probe="gpu"))
    assert not firing(story.state)
    story.read(metrics(2.0, 1.0, waiting=50.0))
    story.read(of_box(3.0, (card, "temperature", 51.0), probe="gpu"))
    assert [finding.rule for _, finding in firing(story.state)] == ["waits"]


def test_a_moment_that_is_due_is_not_lost_between_readings() -> None:
    """FACT: other probes' readings do not hide the end of ``for`` from whoever looks then."""
    slow = rule("slow", when("it.bad", HOST_KIND, bad=bool), HOST_KIND, hold_for=10.0)
    story = serving(rule_set=(slow,)).read(of_box(1.0, (HOST, "bad", True)))
    assert story.last is not None
    assert story.last.wake_at == 11.0
    for tenth in range(20, 200, 4):
        story.read(of_box(tenth / 10 + 0.0005, (HOST, "x", 1.0), probe="other"))
    story.read(of_box(20.0, (HOST, "bad", True)))
    assert [finding.rule for _, finding in firing(story.state)] == ["slow"]


def test_an_engine_that_was_given_up_is_seen() -> None:
    """FACT: what a decision made of an engine is asked at the next event, whatever that is."""
    page = rule("page", when('engine.process == "given_up"'))
    story = serving(rule_set=(*DEFAULT_RULES, page), restart_budget=Budget(1, 3600.0))
    story.exited(1.0)
    story.restarted(2.0, "0000000b")
    story.exited(5.0, generation="0000000b")
    story.tick(10.0)
    assert story.engine.process is ProcessState.GIVEN_UP
    story.read(of_box(10.5, (HOST, "x", 1.0)))
    assert "page" in {finding.rule for _, finding in firing(story.state)}
