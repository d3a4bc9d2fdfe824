"""What was given up holds nothing: neither what outlives a leader nor a start that hangs."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.support.outages import FAST, engine, given_up, recovered
from tests.support.simulated import alive, until

STOP = 'stop = { drain_timeout = "1s", term_timeout = "3s" }'


def test_nobody_lives_on_of_an_engine_that_was_given_up(tmp_path: Path) -> None:
    """FACT: the breaker opens at a killed leader; EngineCore and workers are ended all the same."""
    config = FAST + "restart_budget = { count = 1 }\n"
    with engine(tmp_path, config=config) as daemon:
        before = daemon.engine()
        os.kill(before["pid"], signal.SIGKILL)
        recovered(daemon, before)
        daemon.verdict()
        last = daemon.engine()
        os.kill(last["pid"], signal.SIGKILL)
        act = daemon.wait_event("decision.act", 30, lambda e: e["rule"] == "given-up")
        assert (act["action"], act["cause"]) == ("stop_engine", "signal")
        now = given_up(daemon)
        assert not [pid for pid in last["pids"] if alive(pid)]
        assert (now["pids"], now["verdict"]) == ([], "given_up")
        assert daemon.command("reset-breaker").returncode == 0
        daemon.wait_ready(30)


def test_a_start_that_hangs_when_the_budget_is_spent_is_ended(tmp_path: Path) -> None:
    """FACT: it does not stay ``starting`` with what it holds: killed, and given up."""
    config = f'[engine.main]\nstart_timeout = "2s"\n{STOP}\n{FAST}boot_budget = {{ count = 1 }}\n'
    with engine(tmp_path, "--fault", "nccl_hang", config=config, ready=False) as daemon:
        until(lambda: len(daemon.events("engine.started")) == 2, 60)
        daemon.verdict()
        given_up(daemon)
        assert daemon.engine()["pids"] == []
        assert not daemon.survivors()
        causes = [line["cause"] for line in daemon.events("engine.exited")]
        assert causes == ["start_timeout", "start_timeout"]
        assert len(daemon.events("engine.started")) == 2
