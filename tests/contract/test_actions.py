"""What every registered action must do, whoever wrote it."""

from __future__ import annotations

import inspect

import msgspec
import pytest

from tests.support.acting import Box
from watchdog import registry
from watchdog.config.reasons import reasons, summary
from watchdog.contracts import ActionError, ActionSpec, Order, SideAction
from watchdog.core.lifecycle import LIFE
from watchdog.core.model import HOST, Cause, SubjectKind
from watchdog.core.rules import Rule
from watchdog.executor import Repertoire
from watchdog.rules import build_rules

SPECS = [pytest.param(spec, id=name) for name, spec in registry.actions().items()]
CHANGING = {"raise_conntrack"}
"""They would change this machine, and have tests of their own."""
BESIDE = [
    pytest.param(spec, id=name)
    for name, spec in registry.actions().items()
    if name not in LIFE | CHANGING
]


def defaults() -> tuple[Rule, ...]:
    """The default rules."""
    return build_rules((), registry.probes(), registry.actions(), "no file")


@pytest.mark.parametrize("spec", SPECS)
def test_it_says_what_it_is(spec: ActionSpec) -> None:
    """FACT: one line of help, subjects, a timeout, and a text for each of its settings."""
    assert spec.help
    assert "\n" not in spec.help
    assert spec.subjects
    assert spec.timeout > 0
    kind: type[msgspec.Struct] = spec.settings
    assert {field.name for field in msgspec.structs.fields(kind)} == set(reasons(kind))
    assert summary(kind)


@pytest.mark.parametrize("spec", SPECS)
def test_it_is_built_with_its_defaults(spec: ActionSpec) -> None:
    """FACT: without a line in the configuration there is one, and it takes an order."""
    built = spec.build(spec.settings())
    assert len(inspect.signature(built.run).parameters) == 2
    if spec.choices is not None:
        assert isinstance(spec.choices(spec.settings()), tuple)


def test_only_engines_are_started_and_stopped() -> None:
    """FACT: what starts or stops an engine is of engines alone: no other order could say which."""
    for name in LIFE:
        assert registry.actions()[name].subjects == {SubjectKind.ENGINE}


@pytest.mark.parametrize("spec", BESIDE)
def test_beside_an_engine_it_answers_in_a_line(spec: ActionSpec) -> None:
    """FACT: with a box that does nothing it says in one line what was done, or why not."""
    action: SideAction = Repertoire({spec.name: spec}).beside(spec.name)
    try:
        said = action.run(Order(spec.name, HOST, Cause.RULE, deadline=1e12), Box())
    except ActionError as error:
        said = str(error)
    assert said
    assert "\n" not in said


def test_no_default_rule_changes_the_machine() -> None:
    """FACT: raising a limit of the kernel and running programs is for who asks for it."""
    for rule in defaults():
        names = {action.partition(":")[0] for action in rule.actions}
        assert not names & {"raise_conntrack", "run_command"}, rule.name
