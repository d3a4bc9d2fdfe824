"""Views: what rules can see of engines, cards and the host, and what vanishes from them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.box import card, cards, gpu, holders, xids
from tests.support.core import (
    GENERATION,
    NAME,
    Above,
    Is,
    Story,
    http,
    metrics,
    reading,
    rule,
    serving,
)
from tests.support.rules import DEFAULT_RULES
from watchdog.core import views
from watchdog.core.conditions import Figure, Window
from watchdog.core.engine import firing
from watchdog.core.model import (
    HOST,
    Cause,
    EngineSpawned,
    HoldReason,
    ProcessState,
    Reading,
    Sampled,
    Severity,
    SubjectKind,
    Value,
    Verb,
    engine_subject,
)
from watchdog.core.state import EngineSettings, EngineState, State

NEXT = "0000000b"
WAITING = "engine_metrics.waiting"
CHANGES = Window(Figure.CHANGES, "gpu.state", 60.0)


def seen(story: Story, *names: str, of: str = NAME) -> dict[str, Value]:
    """What the view of an engine has of ``names``."""
    view = views.of_engine(story.state, story.state.engines[of])
    return {name: value for name in names if (value := view.get(name)) is not None}


def host(story: Story, name: str) -> Value | None:
    """What the view of the host has."""
    return views.of(story.state, HOST).get(name)


def two() -> Story:
    """Two serving engines."""
    engines = {name: EngineState(EngineSettings(name)) for name in (NAME, "other")}
    story = Story(State(engines), rule_set=())
    for name in engines:
        story.take(EngineSpawned(0.0, name, GENERATION, 1, Cause.OPERATOR))
        story.serve(0.0, name=name)
    return story


def test_what_probes_read_of_an_engine_is_in_its_view() -> None:
    """FACT: with the sample's own label behind its name, and beside the core's own samples."""
    story = serving().read(metrics(5.0, 7.0, waiting=3.0))
    names = (f"{WAITING}.0", "engine_metrics.sleeping", "engine_http.health", "engine.process")
    assert seen(story, *names) == dict(zip(names, (3.0, False, "ok", "running"), strict=True))


def test_what_a_probe_does_not_read_again_is_not_known() -> None:
    """FACT: one reading replaces all that the same probe had told, and nothing of the others."""
    story = serving().read(reading("engine_metrics", 5.0, ("running", 1.0, (("rank", "0"),))))
    assert seen(story, f"{WAITING}.0", "engine_metrics.running.0", "engine_http.health") == {
        "engine_metrics.running.0": 1.0,
        "engine_http.health": "ok",
    }


def test_a_probe_that_fails_leaves_nothing_known() -> None:
    """FACT: a value from before a failure says nothing about now."""
    story = serving().read(reading("engine_metrics", 5.0, error="cannot connect"))
    assert seen(story, f"{WAITING}.0", "engine_metrics.sleeping") == {}


@pytest.mark.parametrize("generation", ["", "00000009", NEXT])
def test_a_late_reading_is_not_believed(generation: str) -> None:
    """FACT: what was read of another generation is in no view, and takes nothing out of one."""
    story = serving().read(metrics(5.0, 7.0, waiting=3.0))
    before = story.state.views
    story.read(metrics(6.0, 7.0, waiting=99.0, generation=generation))
    story.read(http(7.0, "refused", generation=generation))
    assert story.state.views == before
    assert seen(story, f"{WAITING}.0") == {f"{WAITING}.0": 3.0}


def test_readings_of_an_engine_that_nobody_knows_are_none() -> None:
    """FACT: no view, no series and no error comes of them."""
    story = serving()
    before = story.state.views
    story.read(metrics(5.0, 7.0, name="gone"))
    assert story.state.views == before


def test_what_was_seen_goes_with_its_generation() -> None:
    """FACT: after a restart nothing of the old engine is known of the new one."""
    story = serving().read(metrics(5.0, 7.0, waiting=3.0))
    story.exited(10.0)
    story.spawned(11.0, NEXT)
    names = (f"{WAITING}.0", "engine_http.health", "engine_process.members")
    assert seen(story, *names) == {}
    story.finished(11.5, "restart_engine")
    story.read(metrics(12.0, 0.0, waiting=1.0, generation=NEXT))
    assert seen(story, *names) == {f"{WAITING}.0": 1.0}


def test_what_was_seen_goes_with_a_stop() -> None:
    """FACT: a stopped engine has no requests."""
    story = serving().read(metrics(5.0, 7.0, waiting=3.0))
    story.command(Verb.STOP, 10.0)
    story.exited(11.0, Cause.SIGNAL)
    story.finished(12.0, "stop_engine")
    assert seen(story, f"{WAITING}.0", "engine_http.health") == {}
    assert seen(story, "engine.process") == {"engine.process": "stopped"}


def test_what_the_box_knows_of_an_engine_stays_over_a_restart() -> None:
    """FACT: only what its own probes saw of the generation is gone, not what others count of it."""
    story = serving().read(xids(5.0, {"application": 1}, {"application": 1}))
    counted = "xid.engine_errors.application"
    story.read(metrics(6.0, 7.0))
    story.exited(10.0)
    story.spawned(11.0, NEXT)
    assert seen(story, counted, "engine_http.health") == {counted: 1}


def test_one_engines_reading_leaves_the_others_alone() -> None:
    """FACT: neither its values nor its silence are the other's."""
    story = two().read(metrics(5.0, 7.0, waiting=3.0), metrics(5.0, 7.0, waiting=1.0, name="other"))
    story.read(reading("engine_metrics", 6.0, name="other"))
    assert seen(story, f"{WAITING}.0") == {f"{WAITING}.0": 3.0}
    assert seen(story, f"{WAITING}.0", of="other") == {}
    story.exited(7.0, name="other")
    story.spawned(8.0, NEXT, name="other")
    assert seen(story, f"{WAITING}.0", "engine_http.health") == {
        f"{WAITING}.0": 3.0,
        "engine_http.health": "ok",
    }


def test_labelled_has_all_values_of_a_sample() -> None:
    """FACT: by its own label, of this sample only, and none where nothing is known."""
    story = serving().read(gpu(1.0, reasons={"hw_thermal": True, "idle": False}))
    view = views.of(story.state, card())
    assert view.labelled("gpu.throttled") == {"hw_thermal": True, "idle": False}
    assert set(view.labelled("gpu.throttle_seconds")) == {
        *("hw_thermal", "sw_thermal", "hw_power_brake")
    }
    for unknown in ("gpu.state", "gpu.throttle", "gpu.nothing", "xid.class_errors", "none.x"):
        assert view.labelled(unknown) == {}


def test_labelled_of_an_engine_goes_by_rank() -> None:
    """FACT: every rank of an engine is there."""
    ranks = tuple(("waiting", float(n), (("rank", str(n)),)) for n in range(3))
    story = serving().read(reading("engine_metrics", 5.0, *ranks))
    view = views.of_engine(story.state, story.engine)
    assert view.labelled(WAITING) == {"0": 0.0, "1": 1.0, "2": 2.0}


def test_a_label_is_not_mistaken_for_a_longer_name() -> None:
    """FACT: of two samples with the same beginning each has its own values."""
    samples = (
        Sampled(HOST, "count", 1, (("kind", "a"),)),
        Sampled(HOST, "count_all", 2, (("kind", "a"),)),
    )
    story = serving().read(Reading("x", 1.0, 0.0, samples))
    assert views.of(story.state, HOST).labelled("x.count") == {"a": 1}


def test_an_engines_health_is_not_known_in_transition() -> None:
    """FACT: between two lives an engine is neither sick nor well; the verdict says which."""
    story = serving()
    assert seen(story, "engine.health", "engine.wanted") == {
        "engine.health": "ready",
        "engine.wanted": True,
    }
    story.exited(10.0)
    assert story.engine.process is ProcessState.STOPPING
    assert seen(story, "engine.health", "engine.wanted", "engine.action", "engine.verdict") == {
        "engine.action": "restart_engine",
        "engine.verdict": "stopping",
    }


def test_what_is_wanted_is_known_while_an_action_on_the_side_runs() -> None:
    """FACT: what neither starts nor stops takes nothing away: a crash meanwhile is an incident."""
    nudge = rule("odd", Is("custom.odd", (True,)), severity=Severity.INFO, actions=("nudge",))
    story = serving(rule_set=(*DEFAULT_RULES, nudge)).read(reading("custom", 1.0, ("odd", True)))
    assert seen(story, "engine.action", "engine.wanted") == {
        "engine.action": "nudge",
        "engine.wanted": True,
    }
    assert not story.state.incidents
    story.exited(2.0)
    assert [(one.rule, one.opened_at) for one in story.state.incidents] == [("engine-dead", 2.0)]
    assert story.decisions[-1].hold is HoldReason.IN_FLIGHT
    story.finished(3.0, "nudge")
    assert [act.action for act in story.acts] == ["nudge", "restart_engine"]


def test_of_a_card_the_view_has_its_engines() -> None:
    """FACT: whether one is on it, and how many requests wait in those that are."""
    story = serving().read(cards(1.0, {0: {}, 1: {}}), holders(2.0, {NAME: (0,)}))
    story.read(metrics(3.0, 1.0, waiting=4.0))
    mine, free = (views.of(story.state, card(n)) for n in (0, 1))
    assert (mine.get("engines.present"), mine.get("engines.waiting")) == (True, 4.0)
    assert (free.get("engines.present"), free.get("engines.waiting")) == (False, None)


def test_a_window_is_in_the_view_with_its_cover() -> None:
    """FACT: the figure as soon as something was seen, the cover when the whole window was."""
    story = serving(rule_set=(rule("r", Above(CHANGES, 99), SubjectKind.GPU),))
    for at in range(31):
        story.read(gpu(float(at * 2), {"state": "ok" if at % 2 else "lost"}))
        view = views.of(story.state, card())
        assert view.get(CHANGES.name) == min(at, 30)
        assert view.get(CHANGES.covered) is (at * 2 >= 60)


def test_a_window_is_not_known_while_its_sample_is_not() -> None:
    """FACT: a reading without the sample takes the figure out of the view; it comes back whole."""
    story = serving(rule_set=(rule("r", Above(CHANGES, 99), SubjectKind.GPU),))
    story.read(gpu(1.0), gpu(2.0, {"state": "lost"}))
    blind = gpu(3.0)
    story.read(replace(blind, samples=tuple(s for s in blind.samples if s.sample != "state")))
    assert views.of(story.state, card()).get(CHANGES.name) is None
    story.read(gpu(4.0))
    assert views.of(story.state, card()).get(CHANGES.name) == 2.0


def failing(story: Story) -> Value | None:
    """Which probes fail."""
    return host(story, "watchdog.failing_probes")


def bad(probe: str, at: float) -> Reading:
    """A probe of the box that reads nothing."""
    return Reading(probe, at, 0.0, (), (), "cannot read")


def test_probes_that_have_worked_and_fail_are_named() -> None:
    """FACT: in order, those of engines with the engine, and not any more when they work again."""
    story = serving().read(gpu(1.0))
    assert failing(story) == ""
    story.read(bad("gpu", 2.0), reading("engine_http", 3.0, error="cannot connect"))
    assert failing(story) == f"engine_http of {NAME}, gpu"
    story.read(gpu(4.0))
    assert failing(story) == f"engine_http of {NAME}"
    story.read(http(5.0))
    assert failing(story) == ""


def test_a_probe_that_never_worked_is_not_failing() -> None:
    """FACT: a machine without a GPU is no trouble; one that loses its driver is."""
    story = serving().read(bad("gpu", 1.0), bad("gpu", 2.0))
    assert failing(story) == ""
    story.read(gpu(3.0), bad("gpu", 4.0))
    assert failing(story) == "gpu"


def test_the_probes_of_an_engine_that_does_not_run_do_not_fail() -> None:
    """FACT: nobody answers for a stopped or starting engine, and that is as it should be."""
    story = serving()
    story.command(Verb.STOP, 10.0)
    story.finished(11.0, "stop_engine")
    story.read(reading("engine_http", 12.0, error="cannot connect", generation=""))
    assert failing(story) == ""


def test_a_late_failure_of_an_old_generation_is_none_of_the_new_one() -> None:
    """FACT: nor does a late success of it end a failure of the new one."""
    story = serving()
    story.exited(10.0)
    story.restarted(11.0, NEXT)
    story.read(reading("engine_http", 12.5, error="cannot connect"))
    assert failing(story) == ""
    story.read(reading("engine_http", 13.0, error="cannot connect", generation=NEXT))
    assert failing(story) == f"engine_http of {NAME}"
    story.read(http(14.0))
    assert failing(story) == f"engine_http of {NAME}"
    story.read(http(15.0, generation=NEXT))
    assert failing(story) == ""


def test_an_engine_that_stops_takes_its_failures_along() -> None:
    """FACT: what failed while it ran is over when it looks again after the stop."""
    story = serving().read(reading("engine_http", 5.0, error="cannot connect"))
    assert failing(story) == f"engine_http of {NAME}"
    story.command(Verb.STOP, 10.0)
    story.finished(11.0, "stop_engine")
    story.read(reading("engine_http", 12.0, error="cannot connect", generation=""))
    assert failing(story) == ""


def test_a_rule_about_the_host_sees_failing_probes_at_once() -> None:
    """FACT: the step in which a probe begins or ends to fail judges the rule."""
    broken = rule("broken", Is("watchdog.failing_probes", ("gpu",)), SubjectKind.HOST)
    story = serving(rule_set=(broken,)).read(gpu(1.0))
    assert not firing(story.state)
    story.read(bad("gpu", 2.0))
    assert [subject for (_, subject), _ in firing(story.state)] == [HOST]
    story.read(gpu(3.0))
    assert not firing(story.state)


def test_names_carry_labels_of_their_own_only() -> None:
    """FACT: what names the subject is not part of a sample's name."""
    own = Sampled(card(), "throttled", True, (("gpu", "0"), ("uuid", "u"), ("reason", "idle")))  # noqa: FBT003
    engine = Sampled(engine_subject(NAME), "engine_errors", 1, (("engine", NAME), ("class", "x")))
    assert views.name_of("gpu", own) == "gpu.throttled.idle"
    assert views.name_of("xid", engine) == "xid.engine_errors.x"
    assert views.name_of("driver", Sampled(HOST, "nvml", "ok")) == "driver.nvml"
