"""Incidents: one story per subject, with times that are true."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.core import Of, Story, engine, http, metrics, process, restarting, serving
from watchdog.core import incidents
from watchdog.core.model import Cause, Finding, ProcessState, Severity, Verb, engine_subject
from watchdog.core.state import State

FINDING = Finding("engine-dead", engine_subject("main"), Severity.CRITICAL, "it is dead", 1.0)


def _serve(story: Story, at: float, generation: str = "0000000b") -> Story:
    of = Of(generation=generation)
    story.read(process(at, **of), metrics(at, 0.0, **of))
    return story.read(http(at, canary="ok", status=200, **of))


def test_one_outage_is_one_incident_from_crash_to_serving() -> None:
    """It opens with the crash, holds the restart, and ends with the first token."""
    story = restarting(10.0)
    story.spawned(12.0, "0000000b")
    story.finished(12.1, "restart_engine")
    assert not story.events("incident.resolved")
    _serve(story, 15.0)
    assert len(story.events("incident.opened")) == 1
    told = dict(story.events("incident.resolved")[0].keys)
    assert told["outcome"] == "recovered"
    assert told["detected_after_s"] == 0.0
    assert told["recovered_after_s"] == 5.0
    assert told["actions"] == ["restart_engine"]


def test_lines_carry_what_on_call_greps_for() -> None:
    """Incident lines name incident, rule, severity, subject and engine."""
    keys = dict(restarting().events("incident.opened")[0].keys)
    assert keys["incident"] == "inc-000001"
    assert (keys["rule"], keys["severity"]) == ("engine-dead", "critical")
    assert (keys["subject"], keys["engine"]) == ("engine/main", "main")


def test_trouble_that_went_by_itself_is_cleared() -> None:
    """Paused, stalled and well again: nobody did anything."""
    story = serving()
    story.command(Verb.PAUSE, 1.0)
    story.read(process(2.0, stopped_members=1), process(6.0, stopped_members=1))
    story.read(http(12.0, canary="timeout", took=4.0), process(13.0), metrics(14.0, 5.0))
    assert [i.outcome for i in story.state.incidents] == ["cleared"]


def test_detection_counts_from_the_first_overdue_completion() -> None:
    """The incident of a stall began when the completion was sent, not when it was judged."""
    story = serving().read(process(20.0, stopped_members=1), process(24.0, stopped_members=1))
    story.read(http(26.0, canary="timeout", took=4.0))
    incident = story.state.incidents[0]
    assert (incident.began_at, incident.opened_at, incident.decided_at) == (20.0, 26.0, 26.0)


def test_what_holds_an_action_is_no_part_of_the_detection() -> None:
    """FACT: the time is that of the first decision, a hold too, and no later act changes it."""
    story = serving()
    story.command(Verb.PAUSE, 1.0)
    story.exited(10.0)
    story.tick(11.0)
    (incident,) = story.state.incidents
    assert (incident.opened_at, incident.decided_at, incident.actions) == (10.0, 10.0, ())
    story.command(Verb.RESUME, 500.0)
    story.tick(501.0)
    (incident,) = story.state.incidents
    assert (incident.decided_at, incident.actions) == (10.0, ("restart_engine",))


def test_a_person_who_stops_the_engine_ends_the_incident() -> None:
    """Its outcome is the operator's."""
    story = restarting()
    story.command(Verb.STOP, 11.0)
    story.spawned(12.0, "0000000b")
    story.finished(12.1, "restart_engine")
    story.finished(13.0, "stop_engine")
    assert [i.outcome for i in story.state.incidents] == ["operator"]


def test_a_restart_by_hand_is_the_operators() -> None:
    """Serving again after an operator's restart is not our recovery."""
    story = serving()
    story.command(Verb.PAUSE, 5.0)
    story.exited(10.0)
    story.command(Verb.RESTART, 20.0)
    story.spawned(21.0, "0000000b", Cause.OPERATOR)
    story.finished(21.1, "restart_engine")
    _serve(story, 25.0)
    assert [i.outcome for i in story.state.incidents] == ["operator"]


def test_information_is_no_incident() -> None:
    """A first start opens no incident."""
    story = Story()
    story.tick(1.0)
    assert story.acts
    assert story.state.incidents == ()


def test_an_old_failure_explains_no_new_finding() -> None:
    """What an engine that serves once failed of is no part of a new story; a failure is."""
    old = engine(cause=Cause.CUDA_OOM, explanation="it ran out of memory last week")
    for one, explanation in ((old, ""), (replace(old, failed_at=1.0), old.explanation)):
        state, _ = incidents.opened(State({"main": one}), FINDING, 2.0)
        assert state.incidents[-1].explanation == explanation


def test_an_open_incident_is_not_opened_again() -> None:
    """A second finding on the same subject belongs to the first story."""
    state, first = incidents.opened(State({"main": engine()}), FINDING, 1.0)
    again, second = incidents.opened(state, replace(FINDING, rule="engine-stalled"), 2.0)
    assert (len(first), second) == (1, ())
    assert again == state


def test_resolving_what_is_not_open_is_nothing() -> None:
    """No incident, no line."""
    assert incidents.resolved(State(), FINDING.subject, 1.0) == (State(), ())


def test_an_open_incident_is_never_forgotten() -> None:
    """However many incidents of others come after it."""
    state, _ = incidents.opened(State(), FINDING, 0.0)
    other = replace(FINDING, subject=engine_subject("flapping"))
    for minute in range(60):
        state, _ = incidents.opened(state, other, 60.0 * minute)
        state, _ = incidents.resolved(state, other.subject, 60.0 * minute + 30)
    assert incidents.open_on(state, FINDING.subject) is not None


@pytest.mark.parametrize("pause", [True, False])
def test_a_resume_does_not_end_the_incident_of_a_running_restart(pause: bool) -> None:  # noqa: FBT001
    """The incident lives until the engine serves."""
    story = restarting(10.0)
    story.tick(10.5)
    if pause:
        story.command(Verb.PAUSE, 11.0)
    story.command(Verb.RESUME, 12.0)
    assert not story.events("incident.resolved")


def test_a_resume_does_not_hide_an_unkillable_engine() -> None:
    """What needs a person stays loud."""
    story = restarting(10.0)
    story.finished(40.0, "restart_engine", ok=False, unkillable=True)
    assert story.engine.process is ProcessState.UNKILLABLE
    story.command(Verb.RESUME, 50.0)
    story.tick(60.0)
    assert incidents.open_on(story.state, engine_subject("main")) is not None


def test_an_engine_that_survives_a_stop_is_an_incident() -> None:
    """Something survived SIGKILL: somebody must be told that a reset is needed."""
    story = serving()
    story.command(Verb.STOP, 10.0)
    story.finished(70.0, "stop_engine", ok=False, unkillable=True)
    assert story.events("incident.opened")


def test_who_took_the_part_that_it_lacks_is_the_cause() -> None:
    """FACT (D5): an engine restarted for a lost EngineCore tells that the kernel had ended it."""
    story = serving()
    story.read(process(10.0, cores=1), process(11.0, cores=0))
    story.read(process(13.0, cores=0))
    assert [act.action for act in story.acts] == ["restart_engine"]
    story.exited(13.5, Cause.OOM_KILLED)
    (incident,) = story.state.incidents
    assert (incident.cause, incident.explanation) == (Cause.OOM_KILLED, "it crashed")
    assert story.engine.process is ProcessState.STOPPING
    assert ("engine.explained", "oom_killed: it crashed") in [
        (entry.event, entry.text) for entry in incident.timeline
    ]
