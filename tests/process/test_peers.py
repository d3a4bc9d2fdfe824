"""The comparison with other supervisors: it measures, writes its tables, and hurts no stranger."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.perf.peers import bare, cron, ours, scenarios
from tests.perf.peers.idle import Cost
from tests.perf.peers.processes import end, environment, sweep
from tests.perf.peers.report import Results
from tests.perf.peers.scenarios import Sample
from tests.perf.peers.subject import Subject, Worker

BARE, OURS = bare.SUBJECTS[0], ours.SUBJECTS[0]


@pytest.fixture
def run() -> Iterator[Path]:
    """The folder of a run, of which nothing lives afterwards: short, as sockets lie below it."""
    with tempfile.TemporaryDirectory(prefix="peers-") as folder:
        yield Path(folder)
        sweep(Path(folder))


@pytest.mark.parametrize(("subject", "living"), [(BARE, True), (OURS, False)])
def test_a_killed_leader_is_replaced(run: Path, subject: Subject, *, living: bool) -> None:
    """FACT: the floor starts beside the old child, vllm-watchdog only without it; none is left."""
    (sample,) = scenarios.crashes(run, subject, 1)
    assert sample.seconds is not None
    assert sample.alive is living
    assert sweep(run) == 0


def test_only_processes_of_the_run_are_ended(run: Path) -> None:
    """FACT: a process without the run's mark is refused, one with it is ended."""
    stranger = subprocess.Popen(["sleep", "60"])
    marked = subprocess.Popen(["sleep", "60"], env=environment(run / "trial"))
    try:
        assert not end(stranger.pid, run)
        assert sweep(run) == 1
        assert marked.wait() < 0
        assert stranger.poll() is None
    finally:
        for process in (stranger, marked):
            process.kill()
            process.wait()


def test_the_pattern_of_the_cron_script_is_this_workers_own(tmp_path: Path) -> None:
    """FACT: the pattern finds a worker's leader, and no other worker's, even of a like name."""
    first, tenth = Worker.new(tmp_path, 1), Worker.new(tmp_path, 10)
    assert first.pattern in " ".join(first.command)
    assert first.pattern not in " ".join(tenth.command)
    assert str(tmp_path) in first.pattern


def _results(subjects: list[Subject]) -> Results:
    return Results("the command", "the machine", {"monit": "1"}, subjects, {})


def test_the_tables_hold_medians_ranges_and_counts() -> None:
    """FACT: every scenario is a row with its figures; what never came is said so."""
    results = _results([BARE, OURS, cron.SUBJECTS[0]])
    results.crash = {OURS.title: [Sample(0.03), Sample(0.01), Sample(0.02)]}
    results.stop = {OURS.title: [Sample(1.0, count=1), Sample(3.0, alive=True)]}
    results.loop = {OURS.title: [Sample(5.0, count=4, last=25.0)]}
    results.hang = {OURS.title: [Sample(7.0), Sample(None)]}
    results.saturated = {OURS.title: [Sample(None)], cron.SUBJECTS[0].title: [Sample(4.0)]}
    results.idle = {OURS.title: [Cost(8, 0.5, 40.0, 30.0, 2)]}
    results.scrapes = {"node_exporter": [1.0, 2.0, 9.0]}
    text, us = results.markdown(), OURS.title
    assert f"| {us} | 3 of 3 | 20.0 | 10.0 | 30.0 | 30.0 | 0 of 3 |" in text
    assert f"| {us} | 2 of 2 | 2.00 | 1.00 to 3.00 | 1 of 2 | 1 of 2 |" in text
    assert f"| {us} | 4 | 5 | 25.0 | yes |" in text
    assert f"| {us} | {OURS.health} | 1 of 2 | 7.0 | 7.0 to 7.0 | 0 of 1 |" in text
    assert f"| {us} | {OURS.health} | 1 | left alone |" in text
    assert "| 1 | restarted after 4.0 s |" in text
    assert f"| {us} | 8 | 2 | 0.50 | 40.0 | 30.0 |" in text
    assert "| node_exporter | 3 | 2.0 | 1.0 | 9.0 | 9.0 |" in text
    assert json.loads(results.raw())["crash"][us][1]["seconds"] == 0.01


def test_a_missing_peer_is_told_loudly() -> None:
    """FACT: the document names what was not measured, and the package that it needs."""
    results = _results([BARE])
    results.missing = {"monit, tuned": ["monit:monit"]}
    assert "**Missing, so not measured:** monit, tuned needs monit:monit" in results.markdown()
