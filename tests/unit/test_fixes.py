"""What cures a finding is told wherever the finding is: by the default rules, and everywhere."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from tests.support.box import card, gpu
from tests.support.core import serving
from tests.support.rules import DEFAULT_RULES
from tests.support.windows import snapshot
from watchdog.cli import doctor, status
from watchdog.cli.root import COMMANDS
from watchdog.core.model import HOST, Reading, Sampled, Value
from watchdog.core.rules import Rule
from watchdog.daemon.once import Look
from watchdog.web import bodies

WITHOUT = {"standby-needed", "standby-idle"}
"""What they tell is in order, and nothing has to be done."""
LONGEST = 200
PENDING = gpu(5.0, {"remap_pending": True})


def fix_of(name: str) -> str:
    """That of a default rule."""
    (rule,) = [rule for rule in DEFAULT_RULES if rule.name == name]
    return rule.fix


@pytest.mark.parametrize("rule", DEFAULT_RULES, ids=lambda rule: rule.name)
def test_every_default_rule_says_what_cures_it(rule: Rule) -> None:
    """FACT: one line, short enough to be read at night."""
    assert bool(rule.fix) == (rule.name not in WITHOUT)
    assert rule.fix.isprintable()
    assert len(rule.fix) <= LONGEST


@pytest.mark.parametrize("rule", DEFAULT_RULES, ids=lambda rule: rule.name)
def test_it_names_only_commands_that_there_are(rule: Rule) -> None:
    """FACT: what is to be typed is a command of ours, with nothing that kills by name."""
    for name in re.findall(r"vllm-watchdog ([a-z-]+)", rule.fix):
        assert name in COMMANDS
    assert not re.search(r"pkill|killall|kill -9|rm -rf|rmmod", rule.fix)


def test_it_is_told_with_the_finding() -> None:
    """FACT: in the journal, in the JSON bodies, and in the text of ``doctor`` and ``status``."""
    story = serving(rule_set=DEFAULT_RULES).read(PENDING)
    fix = fix_of("gpu-remap-pending").replace("{subject}", card().name)
    (line,) = [dict(one.keys) for one in story.records if one.event == "finding.firing"]
    assert line["fix"] == fix
    shown = snapshot(story.state)
    (found,) = bodies.findings(shown)
    assert found["fix"] == fix
    assert f"  fix: {fix}" in doctor.render(Look(shown, ()), ()).splitlines()
    assert f"fix: {fix}" in status.render(bodies.status(shown))


def test_names_of_strangers_can_be_pasted() -> None:
    """FACT: text is quoted for a shell, braces in it fill nothing in, and the unknown stays."""
    mount = "/m/a b;$(reboot) {tmpfs.percent}"
    shown_with_it: dict[str, Value] = {
        "inodes_percent": 99.0,
        "inodes_mount": mount,
        "inodes_free": 1,
        "percent": 1.0,
    }
    samples = tuple(Sampled(HOST, *pair) for pair in shown_with_it.items())
    story = serving(rule_set=DEFAULT_RULES)
    story.read(Reading("tmpfs", 5.0, 0.0, samples))
    assert story.last is not None
    (fix,) = [one.fix for one in story.last.findings if one.rule == "tmpfs-inodes-full"]
    assert fix.endswith(f"mount -o remount,nr_inodes={{tmpfs.suggested_inodes}} '{mount}'")


def test_nothing_is_said_where_nothing_cures() -> None:
    """FACT: a rule without a fix adds no line and no key; nor does the end of a finding."""
    rules = tuple(rule for rule in DEFAULT_RULES if rule.name == "gpu-remap-pending")
    story = serving(rule_set=rules).read(PENDING)
    story.read(gpu(6.0, {"remap_pending": False}))
    (end,) = [dict(one.keys) for one in story.records if one.event == "finding.resolved"]
    assert "fix" not in end
    story = serving(rule_set=tuple(replace(rule, fix="") for rule in rules)).read(PENDING)
    (line,) = [dict(one.keys) for one in story.records if one.event == "finding.firing"]
    assert "fix" not in line
    shown = snapshot(story.state)
    assert "fix:" not in doctor.render(Look(shown, ()), ()) + status.render(bodies.status(shown))
