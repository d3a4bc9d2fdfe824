"""Data parallel ranks: one that hangs is found by its own counters, one that is idle never is."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from tests.support.core import Story, engine, http, process, reading, serving
from watchdog.core.model import Cause, Labels, Reading, Value, Verdict
from watchdog.core.ranks import proven_at
from watchdog.core.verdict import judge


@dataclass
class Box:
    """An engine with several ranks, looked at every two seconds, asked every four."""

    running: dict[str, float]
    moving: set[str]
    story: Story = field(default_factory=serving)
    tokens: dict[str, float] = field(default_factory=dict)
    at: float = 0.0
    sleeping: bool = False

    def page(self) -> Reading:
        """What ``engine_metrics`` reads."""
        samples: list[tuple[str, Value, Labels]] = []
        for rank, load in self.running.items():
            label: Labels = (("rank", rank),)
            self.tokens[rank] = self.tokens.get(rank, 5.0) + (rank in self.moving)
            samples += [("progress", self.tokens[rank], label), ("running", load, label)]
        return reading("engine_metrics", self.at, *samples, ("sleeping", self.sleeping))

    def go(
        self,
        seconds: float,
        canary: str = "ok",
        stopped: int = 0,
    ) -> Box:
        """Let ``seconds`` pass; ``stopped`` members are in state T."""
        until = self.at + seconds
        while self.at < until:
            self.at += 2.0
            told = canary if self.at % 4 == 0 else "skipped"
            status = 200 if told == "ok" else 0
            self.story.read(
                process(self.at, cpu_seconds=self.at * 2, stopped_members=stopped), self.page()
            )
            self.story.read(http(self.at + 0.5, canary=told, status=status))
        return self

    @property
    def verdict(self) -> Verdict:
        """Of the engine."""
        return self.story.engine.verdict


def two(one: float = 1.0, other: float = 1.0) -> Box:
    """Two ranks with so many requests, of which the first moves."""
    return Box({"0": one, "1": other}, {"0"})


def test_a_rank_that_stands_still_with_requests_is_a_stall() -> None:
    """FACT: long enough for the longest prefill, while another one moves; and it is restarted."""
    box = two().go(118.0)
    assert box.verdict is Verdict.BUSY
    box.go(8.0)
    assert [(act.rule, act.cause) for act in box.story.acts] == [("engine-stalled", Cause.STALLED)]
    assert "rank 1" in box.story.acts[0].detail


def test_a_stopped_member_corroborates() -> None:
    """FACT: with one in state T ten seconds are enough, and less than ten are not."""
    box = two().go(4.0).go(6.0, stopped=1)
    assert not box.story.acts
    box.go(8.0, stopped=1)
    assert [act.cause for act in box.story.acts] == [Cause.STALLED]


@pytest.mark.parametrize(
    ("sign", "limit"), [("metrics_at", 120.0), ("gpu_busy_at", 300.0), ("compilers_at", 1800.0)]
)
def test_it_has_as_long_as_a_whole_engine_has(sign: str, limit: float) -> None:
    """FACT: what may keep an engine from a token may keep a rank: a GPU at work, and compilers."""
    seen = two().go(100.0).story.engine.vitals
    for at, verdict in ((limit + 1.0, Verdict.BUSY), (limit + 3.0, Verdict.STALLED)):
        fresh = replace(seen, process_at=at, health_at=at, metrics_at=at, progressed_at=at)
        one = replace(fresh, canary_at=at, **{sign: at})  # type: ignore[arg-type]  # a time each
        assert judge(engine(vitals=one), at).verdict is verdict


@pytest.mark.parametrize("stopped", [0, 1])
def test_an_idle_rank_is_never_a_stall(stopped: int) -> None:
    """FACT: without requests of its own a rank has nothing to move for, whoever is stopped."""
    assert two(other=0.0).go(340.0, stopped=stopped).verdict is Verdict.BUSY


@pytest.mark.parametrize("canary", ["skipped", "unauthorized", "rejected", "refused"])
def test_what_a_rank_says_of_its_requests_may_be_old(canary: str) -> None:
    """FACT: a cancelled request stays in the gauge; only a completion shows that nothing moves."""
    box = two().go(340.0, canary)
    assert not box.story.acts


def test_a_completion_that_an_idle_rank_may_take_proves_nothing() -> None:
    """FACT: with an idle rank beside it, nobody has asked the one that seems to stand still."""
    box = Box({"0": 1.0, "1": 1.0, "2": 0.0}, {"0"}).go(340.0)
    assert not box.story.acts


def test_every_rank_that_moves_begins_the_count_anew() -> None:
    """FACT: as long as completions find idle ranks, those that are left are not known to hang."""
    box = Box({str(rank): 1.0 for rank in range(4)}, {"0"}).go(100.0)
    box.moving.add("1")
    box.go(2.0)
    assert box.story.engine.vitals.asked <= 1
    box.go(22.0)
    assert not box.story.acts
    box.go(40.0)
    assert [act.cause for act in box.story.acts] == [Cause.STALLED]


def test_slow_steps_of_another_rank_hide_nothing() -> None:
    """FACT: one that takes six seconds for a step is not blamed, and ends nobody's count."""
    box = Box({"0": 1.0, "1": 1.0, "2": 1.0}, {"0"})
    for _ in range(50):
        box.go(4.0)
        box.tokens["2"] += 1
        box.go(2.0)
    assert [act.cause for act in box.story.acts] == [Cause.STALLED]
    assert "rank 1" in box.story.acts[0].detail


@pytest.mark.parametrize("change", ["tokens", "running"])
def test_a_rank_that_reports_anything_is_alive(change: str) -> None:
    """FACT: a counter or a count of requests that changes ends its stand, once a minute too."""
    box = two()
    for turn in range(10):
        box.go(60.0)
        if change == "tokens":
            box.tokens["1"] += 1
        else:
            box.running["1"] = 2.0 + turn % 2
    assert not box.story.acts


def test_nobody_knows_what_happened_in_a_gap() -> None:
    """FACT: after a page that was not read for a while the stand begins anew."""
    box = two().go(100.0)
    box.at += 30.0
    box.go(100.0)
    assert not box.story.acts


def test_a_whole_engine_that_stands_still_is_a_matter_of_the_canary() -> None:
    """FACT: where no rank moves there is no one to compare with; an answered canary is proof."""
    box = two()
    box.moving.clear()
    assert not box.go(340.0).story.acts


def test_a_sleeping_engine_stands_still_in_peace() -> None:
    """FACT: the verdict says that it sleeps, and nothing is done."""
    box = two().go(100.0)
    box.sleeping = True
    assert not box.go(100.0).story.acts
    assert box.story.engine.reasons == ("the engine sleeps",)


def test_a_rank_that_stands_still_asks_for_a_completion() -> None:
    """FACT: the tokens of the others do not prove it, so a canary is due although they move."""
    box = two().go(20.0)
    vitals = box.story.engine.vitals
    assert vitals.progressed_at is not None
    assert vitals.progressed_at >= 20.0
    assert proven_at(vitals) == 2.0
    assert proven_at(two(other=0.0).go(20.0).story.engine.vitals) == 20.5
