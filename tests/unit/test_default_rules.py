"""Every default rule: what fires it, what clears it, and that the unknown does neither."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections import Counter
from dataclasses import replace

import pytest

from tests import support
from tests.support.core import Story
from tests.support.rule_stories import Tale, fires, told
from tests.support.rules import DEFAULT_RULES, RULES
from watchdog import registry
from watchdog.core import incidents
from watchdog.core.engine import firing
from watchdog.core.model import Reading, Severity, Subject, SubjectKind, Verdict
from watchdog.core.rules import Rule


def _tales() -> tuple[Tale, ...]:
    """What the modules ``rule_stories…`` call ``…_TALES``."""
    names = [one.name for one in pkgutil.iter_modules(support.__path__)]
    modules = [
        importlib.import_module(f"tests.support.{name}")
        for name in names
        if name.startswith("rule_stories")
    ]
    return tuple(
        tale
        for module in modules
        for name, tales in vars(module).items()
        if name.endswith("_TALES")
        for tale in tales
    )


TALES = _tales()


def _is_about_the_box(rule: Rule) -> bool:
    """Whether it judges no engine, and holds no restart."""
    return rule.subject is not SubjectKind.ENGINE and rule.holds is None


_FORGOTTEN = 3600.0
"""After so long without a word a finding about the box ends by itself."""


def _named(tales: tuple[Tale, ...]) -> list[str]:
    seen: Counter[str] = Counter()
    names = []
    for tale in tales:
        seen[tale.rule] += 1
        names.append(f"{tale.rule}-{seen[tale.rule]}")
    return names


def _of(tales: tuple[Tale, ...]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("tale", tales, ids=_named(tales))


def fired(tale: Tale) -> Story:
    """The story to the end of ``fires``."""
    story = tale.begin()
    for moment in tale.fires:
        told(story, moment)
    assert fires(story, tale.rule)
    return story


def subject(story: Story, tale: Tale) -> Subject:
    """What the finding is about."""
    return next(about for (name, about), _ in firing(story.state) if name == tale.rule)


def test_every_default_rule_has_its_tale() -> None:
    """FACT: none is left out, and each has a way to be blind."""
    assert {tale.rule for tale in TALES} == RULES.keys()
    assert not [tale.rule for tale in TALES if not (tale.blind or tale.silent or tale.unseen)]
    assert not [tale.rule for tale in TALES if not (tale.blind or tale.still)]


@_of(TALES)
def test_it_fires_when_it_must_and_not_before(tale: Tale) -> None:
    """FACT: the last moment of the story makes the finding, none before it does."""
    story = tale.begin()
    for moment in tale.fires[:-1]:
        assert not fires(told(story, moment), tale.rule)
    told(story, tale.fires[-1])
    assert fires(story, tale.rule)


@_of(TALES)
def test_it_clears_when_the_trouble_is_gone_for_long_enough(tale: Tale) -> None:
    """FACT: the last moment ends the finding, none before it does; a window only has to empty."""
    story = fired(tale)
    begins = next((one.at for one in tale.clears if isinstance(one, Reading)), 0.0)
    for moment in tale.clears[:-1]:
        told(story, moment)
        waits = isinstance(moment, Reading) and moment.at - begins < RULES[tale.rule].clear_for
        assert fires(story, tale.rule) or (tale.drains and not waits)
    told(story, tale.clears[-1])
    assert not fires(story, tale.rule)


@_of(tuple(tale for tale in TALES if tale.blind or tale.silent))
def test_what_is_not_read_fires_nothing(tale: Tale) -> None:
    """FACT: the same story without the samples that decide is silent from beginning to end."""
    for missing in (*tale.blind, *tale.silent):
        story = tale.begin()
        for moment in tale.fires:
            assert not fires(told(story, moment, missing), tale.rule), missing


@_of(tuple(tale for tale in TALES if tale.unseen))
def test_what_is_not_known_fires_nothing(tale: Tale) -> None:
    """FACT: while the core itself does not know, the rule is silent."""
    story = tale.begin()
    for moment in tale.unseen:
        assert not fires(told(story, moment), tale.rule)


@_of(tuple(tale for tale in TALES if tale.blind))
def test_what_is_not_read_clears_nothing(tale: Tale) -> None:
    """FACT: a finding outlives readings that would clear it, when what decides is missing."""
    for missing in tale.blind:
        story = fired(tale)
        until = (story.state.at or 0.0) + _FORGOTTEN
        moments = [one for one in tale.clears if not isinstance(one, Reading) or one.at < until]
        assert moments
        for moment in moments:
            assert fires(told(story, moment, missing), tale.rule), missing


@_of(tuple(tale for tale in TALES if tale.still))
def test_what_is_not_known_clears_nothing(tale: Tale) -> None:
    """FACT: a finding outlives a time in which the core itself does not know."""
    story = fired(tale)
    for moment in tale.still:
        assert fires(told(story, moment), tale.rule)


@_of(TALES)
def test_its_severity_decides_about_an_incident(tale: Tale) -> None:
    """FACT: information is only told, everything else is an incident of what it is about."""
    story = fired(tale)
    opened = incidents.open_on(story.state, subject(story, tale))
    if RULES[tale.rule].severity is Severity.INFO:
        assert opened is None or opened.rule != tale.rule
    else:
        assert opened is not None


@_of(tuple(tale for tale in TALES if RULES[tale.rule].actions))
def test_it_acts_once(tale: Tale) -> None:
    """FACT: the first rung, at once, and nothing else while it runs."""
    story = fired(tale)
    told(story, lambda seen: seen.tick((seen.state.at or 0.0) + 60.0))
    acts = [act for act in story.acts if act.rule == tale.rule]
    assert [act.action for act in acts] == [RULES[tale.rule].actions[0]]


@_of(tuple(tale for tale in TALES if not RULES[tale.rule].actions))
def test_it_restarts_nobody(tale: Tale) -> None:
    """FACT: a rule without an action decides nothing."""
    assert not [one for one in fired(tale).decisions if one.rule == tale.rule]


@_of(TALES)
def test_it_takes_an_engine_out_of_service_or_not(tale: Tale) -> None:
    """FACT: the engine is a gpu_fault when a rule fires that says so, and by no other."""
    story, rule = fired(tale), RULES[tale.rule]
    assert (story.engine.verdict is Verdict.GPU_FAULT) is rule.fault
    assert not rule.fault or rule.summary in story.engine.reasons[0]


@_of(tuple(tale for tale in TALES if RULES[tale.rule].fault))
def test_an_engine_is_back_in_service_when_it_clears(tale: Tale) -> None:
    """FACT: nobody has to say so: it serves as soon as its card does."""
    story = fired(tale)
    for moment in tale.clears:
        told(story, moment)
    assert story.engine.verdict is not Verdict.GPU_FAULT


@_of(tuple(tale for tale in TALES if RULES[tale.rule].holds is not None))
def test_it_holds_restarts_until_it_clears(tale: Tale) -> None:
    """FACT: an engine that dies meanwhile is not started, with the reason; afterwards it is."""
    story, rule = fired(tale), RULES[tale.rule]
    story.exited((story.state.at or 0.0) + 0.5)
    assert not story.acts
    assert [one.hold for one in story.decisions] == [rule.holds]
    assert rule.summary in story.decisions[0].detail
    for moment in tale.clears:
        told(story, moment)
    assert [act.rule for act in story.acts] == ["engine-dead"]


@_of(tuple(one for one in TALES if _is_about_the_box(RULES[one.rule])))
def test_it_holds_no_restart(tale: Tale) -> None:
    """FACT: findings that do not say so keep no engine from being started again."""
    story = fired(tale)
    story.exited((story.state.at or 0.0) + 0.5)
    assert [act.rule for act in story.acts if act.rule != tale.rule] == ["engine-dead"]


def test_what_a_lost_card_means_is_said_by_few_rules() -> None:
    """FACT: only what makes a card useless takes its engine out of service."""
    assert {rule.name for rule in DEFAULT_RULES if rule.fault} == {
        *("gpu-lost", "gpu-reset-needed", "gpu-xid-reset")
    }


def test_no_default_rule_is_on_trial() -> None:
    """FACT: all of them judge, tell why they are as they are, and have a page for on-call."""
    for rule in DEFAULT_RULES:
        assert rule.mode.value == "act", rule.name
        assert rule.reason, rule.name
        assert rule.summary, rule.name
        assert replace(rule, reason="") != rule


LOOKS = {"two": 2, "three": 3, "four": 4}
OF_THE_HOST = {"conntrack", "sockets", "tmpfs", "disk", "memory", "oom", "files", "clock"}


def _looks(rule: Rule) -> tuple[int, float] | None:
    """How many looks its reason promises, and how far they are apart; None without a promise."""
    (probe, *_) = [name.partition(".")[0] for name in rule.evidence]
    said = re.search(r"\b(two|three|four) looks", rule.reason, re.IGNORECASE)
    if said is None or probe not in OF_THE_HOST:
        return None
    return LOOKS[said[1].lower()], registry.probes()[probe].period


@pytest.mark.parametrize("rule", [r for r in DEFAULT_RULES if _looks(r)], ids=lambda r: r.name)
def test_as_many_looks_as_it_says(rule: Rule) -> None:
    """FACT: the look that is promised fires it, although none comes to the millisecond."""
    promised = _looks(rule)
    assert promised is not None
    looks, apart = promised
    assert apart * (looks - 2) < rule.hold_for < apart * (looks - 1) - 0.5
