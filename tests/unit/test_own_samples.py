"""What the core itself adds to a view: declared as it is given, and without a past."""

from __future__ import annotations

import pytest

from tests.support.core import Story, metrics, serving
from watchdog import registry
from watchdog.config.settings import RuleConfig
from watchdog.core import views
from watchdog.core.model import SubjectKind, Value
from watchdog.rules import RuleError, build_rules
from watchdog.rules.own import OWN


def _parts(story: Story) -> dict[str, Value]:
    """The core's own part of the engine's view."""
    return dict(views.of_engine(story.state, story.engine).parts["engine"])


def test_what_the_core_gives_of_an_engine_is_declared() -> None:
    """FACT: names and types of the declared samples are those of a serving engine's view."""
    declared = {f"engine.{spec.name}": spec.type for spec in OWN[SubjectKind.ENGINE]["engine"]}
    story = serving().read(metrics(1.0, 5.0, running=2.0))
    given = _parts(story)
    assert given.keys() <= declared.keys()
    of_a_standby = {name for name in declared if name.startswith("engine.others_")}
    assert declared.keys() - given.keys() <= {"engine.requests_waiting"} | of_a_standby
    assert all(isinstance(value, (declared[name], int)) for name, value in given.items())


def test_the_load_of_an_engine_is_known_while_it_is_read() -> None:
    """FACT: requests are those of the last reading; 15 s after it they are not known."""
    story = serving().read(metrics(1.0, 5.0, running=7.0))
    assert _parts(story)["engine.requests_running"] == 7.0
    story.tick(16.0)
    assert _parts(story)["engine.requests_running"] == 7.0
    story.tick(16.1)
    assert "engine.requests_running" not in _parts(story)


@pytest.mark.parametrize(
    ("kind", "sample"),
    [("engine", "engine.requests_waiting"), ("gpu", "engines.waiting")],
)
def test_the_core_keeps_no_past_of_its_own_samples(kind: str, sample: str) -> None:
    """FACT: a window over one would never be known, so it is refused, with what to do instead."""
    rule = RuleConfig(
        name="mine",
        subject=SubjectKind(kind),
        when=f'avg_over({sample}, "5m") > 1',
        summary="it is so",
    )
    with pytest.raises(RuleError) as refused:
        build_rules((rule,), registry.probes(), registry.actions(), "file")
    (line,) = refused.value.lines
    assert line.startswith(f"file: rule.mine.when: column 10: nothing is kept of {sample}")
    assert '"for"' in line
