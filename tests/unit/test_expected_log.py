"""What a log must show before its engine is ready: what the core makes of the readings of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.core import GENERATION, NAME, Story, http, metrics, process, reading
from watchdog.core import reload, rule_set
from watchdog.core.model import Cause, EngineSpawned, ProcessState, Reading, Verdict
from watchdog.core.reload import NewOrder
from watchdog.core.state import EngineSettings, EngineState, State, Vitals
from watchdog.core.verdict import is_first_ready, judge

WANTED = "Using FlashAttention"
REASON = f"the log has not shown '{WANTED}' yet"
ANSWERS = Vitals(health="ok", canary="ok")
TIMEOUT = 60.0


def log(at: float, missing: str = WANTED) -> Reading:
    """What ``engine_log`` reads of a start that still lacks ``missing``."""
    return reading("engine_log", at, ("startup_complete", True), ("expected_missing", missing))


def started(*, expects: bool = True) -> Story:
    """An engine that was spawned at 0 and has shown nothing yet."""
    settings = EngineSettings(NAME, start_timeout=TIMEOUT, expects_log=expects)
    story = Story(state=State(engines={NAME: EngineState(settings)}))
    story.tick(0.0)
    story.spawned(0.0, cause=Cause.OPERATOR)
    story.finished(0.0, "start_engine")
    return story


def answering(story: Story, at: float, *, lines: int = 100) -> Story:
    """It answers at ``at``, and its log has grown to ``lines`` bytes."""
    story.read(process(at, log_bytes=lines), metrics(at, at), http(at, canary="ok", status=200))
    return story


@pytest.mark.parametrize(
    ("missing", "expects", "ready"),
    [
        (None, False, True),
        (WANTED, False, True),
        (None, True, False),
        (WANTED, True, False),
        ("", True, True),
    ],
)
def test_an_answer_is_enough_only_where_nothing_is_expected(
    missing: str | None,
    expects: bool,  # noqa: FBT001 - a value
    ready: bool,  # noqa: FBT001 - a value
) -> None:
    """FACT: with expect_log an engine that answers is ready when its log was read and has all."""
    vitals = replace(ANSWERS, expected_missing=missing)
    assert is_first_ready(vitals, expects_log=expects) is ready
    assert not is_first_ready(replace(vitals, health="timeout"), expects_log=expects)


def test_without_expect_log_nothing_is_different() -> None:
    """FACT: an engine that expects nothing is ready with its first token, whatever its log says."""
    story = started(expects=False).read(log(0.5))
    assert answering(story, 1.0).engine.process is ProcessState.RUNNING


def test_it_stays_starting_and_says_why() -> None:
    """FACT: the reason names the pattern; it is ready at the look that finds it in the log."""
    story = started()
    assert story.engine.reasons == ("waiting for the first token",)
    answering(story, 1.0)
    assert story.engine.reasons == ("its log has not been read yet",)
    story.read(log(2.0))
    assert (story.engine.verdict, story.engine.reasons) == (Verdict.STARTING, (REASON,))
    story.read(log(3.0, ""))
    assert (story.engine.process, story.engine.ready_at) == (ProcessState.RUNNING, 3.0)
    assert story.engine.verdict is Verdict.READY


def test_the_log_alone_is_not_readiness() -> None:
    """FACT: a log that has shown everything before the engine answers changes nothing yet."""
    story = started().read(log(1.0, ""))
    assert story.engine.reasons == ("waiting for the first token",)
    assert answering(story, 2.0).engine.process is ProcessState.RUNNING


def served(until: int) -> Story:
    """It answers from 1 s on and writes its log, where the wanted line does not come."""
    story = started()
    for at in range(1, until + 1):
        answering(story, float(at), lines=100 * at).read(log(at + 0.5))
    return story


def test_what_never_comes_fails_although_the_log_grows() -> None:
    """FACT: start_timeout after the first answer it is dead: not_expected, naming the pattern.

    Every request that it answers is a line in its log: growth is no progress any more.
    """
    assert served(60).engine.verdict is Verdict.STARTING
    story = served(61)
    assert (story.engine.cause, story.engine.began_at) == (Cause.NOT_EXPECTED, 1.0)
    assert REASON in story.engine.explanation
    assert [act.action for act in story.acts][-1:] == ["restart_engine"]


def test_no_progress_names_the_pattern_too() -> None:
    """FACT: an engine that answers and stands still for start_timeout fails with that reason."""
    story = answering(started(), 1.0).read(log(1.5))
    state = replace(
        story.engine, vitals=replace(story.engine.vitals, process_at=1.0 + TIMEOUT, members=3)
    )
    told = judge(state, 1.0 + TIMEOUT)
    assert (told.verdict, told.cause, told.reasons[1:]) == (
        Verdict.DEAD,
        Cause.NOT_EXPECTED,
        (REASON,),
    )


def test_a_log_that_nobody_can_read_condemns_nobody() -> None:
    """FACT: looks at the log that end say nothing: the time counts up to the last one."""
    story = served(30)
    for at in range(31, 200):
        answering(story, float(at), lines=100 * at)
    assert (story.engine.verdict, story.engine.reasons) == (Verdict.STARTING, (REASON,))


def test_a_gap_starts_the_time_anew() -> None:
    """FACT: after a time in which nobody looked the engine has start_timeout again."""
    story = served(30)
    story.asleep(500.0)
    answering(story, 501.0, lines=90_000).read(log(501.5))
    assert story.engine.vitals.answered_at == 501.0
    assert story.engine.verdict is Verdict.STARTING


def test_an_adopted_engine_that_was_ready_stays_ready() -> None:
    """FACT: what was ready under the watchdog before needs no line of its log again."""
    story = started()
    story.take(EngineSpawned(5.0, NAME, GENERATION, 1, Cause.OPERATOR, adopted=True, ready=True))
    answering(story, 6.0).read(log(7.0))
    assert (story.engine.process, story.engine.verdict) == (ProcessState.RUNNING, Verdict.READY)


def test_what_a_log_has_shown_it_has_shown() -> None:
    """FACT: a later look that finds less takes nothing back; one of another start counts not."""
    story = started().read(log(1.0, ""), log(2.0))
    assert story.engine.vitals.expected_missing == ""
    story = started().read(reading("engine_log", 1.0, ("expected_missing", ""), generation="0b"))
    assert story.engine.vitals.expected_missing is None


def expecting_more(story: Story, at: float) -> Story:
    """A reload at ``at`` that changes what is expected of the log."""
    rules = rule_set.of(story.rule_set)
    engine = replace(story.engine.settings, expects_log=True)
    order = NewOrder((rules, rules), (engine,), {}, story.state.mode, reread=frozenset({NAME}))
    story.state, _ = reload.reloaded(story.state, at, order)
    return story


def test_what_was_found_before_a_reload_is_no_proof_of_what_it_expects() -> None:
    """FACT: the log is read anew, also for a look that was under way when the file changed."""
    story = expecting_more(started(expects=False).read(log(1.0, "")), 2.0)
    assert (story.engine.vitals.expected_missing, story.engine.vitals.expected_at) == (None, 2.0)
    story.read(replace(log(2.5, ""), took=1.0))
    assert answering(story, 3.0).engine.reasons == ("its log has not been read yet",)
    assert story.read(log(3.5)).engine.reasons == (REASON,)
    assert story.read(log(4.0, "")).engine.process is ProcessState.RUNNING


def test_a_reload_alone_ends_no_start() -> None:
    """FACT: an answer of long ago and a new pattern are no failure before the log was read."""
    story = answering(started().read(log(1.0)), 2.0)
    expecting_more(story, TIMEOUT + 1.0).read(process(TIMEOUT + 1.5, log_bytes=200))
    story.tick(TIMEOUT + 2.5)
    assert story.engine.verdict is Verdict.STARTING
