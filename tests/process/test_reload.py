"""``reload`` and SIGHUP: all of a good file is in force, of a bad one nothing; nobody suffers."""

from __future__ import annotations

import concurrent.futures
import json
import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.daemon import Daemon, running, simulated_command
from tests.support.reloads import (
    READY,
    File,
    engines,
    is_locked,
    post,
    ready,
    reload,
    rule,
    watched,
)
from tests.support.simulated import alive, free_port, until
from watchdog.supervisor.lock import lock_port

SECRET = "sk-not-for-the-log"  # noqa: S105 - made up, to be looked for


@pytest.fixture
def file(tmp_path: Path) -> File:
    """A file with one engine, not written yet."""
    file = File(tmp_path / "watchdog.toml")
    file.engine("main", 0, "--startup-time", "0")
    return file


# --- what is in force -----------------------------------------------------------------------------


def test_a_rule_is_judged_by_what_it_says_now(file: File) -> None:
    """Observed, a dead engine stays dead; told to act, the rule finds it anew and restarts it.

    The finding of the changed rule ended with the change, and the log says what changed.
    """
    file.rest = rule("engine-dead", mode="observe")
    with watched(file) as daemon:
        before = daemon.engine()
        os.kill(before["pid"], signal.SIGKILL)
        daemon.wait_event("decision.hold", 20, lambda e: e["reason"] == "observe")
        assert daemon.engine()["starts"] == 1
        file.write(rule("engine-dead", mode="act", **{"for": "1s"}))
        answer = reload(daemon)
        changed = ["rule.engine-dead.for: 0s -> 1s", "rule.engine-dead.mode: observe -> act"]
        assert (answer["changed"], answer["restarts"]) == (changed, [])
        daemon.wait_event("finding.resolved", 5, lambda e: e["rule"] == "engine-dead")
        until(lambda: daemon.engine()["starts"] == 2 and ready(daemon), READY)
        assert not [pid for pid in before["pids"] if alive(pid)]
        assert daemon.wait_event("config.reloaded")["changed"] == changed


def test_a_changed_policy_keeps_the_history(file: File) -> None:
    """A restart on the account stays there under a larger budget, and no engine is restarted."""
    file.rest = "[policy]\nboot_budget = { count = 9 }\nrestart_budget = { count = 5 }"
    with watched(file) as daemon:
        os.kill(daemon.engine()["pid"], signal.SIGKILL)
        until(lambda: daemon.engine()["starts"] == 2 and ready(daemon), READY)
        before = daemon.engine()
        assert before["budget_remaining"] == 4
        file.write("[policy]\nboot_budget = { count = 9 }\nrestart_budget = { count = 8 }")
        assert reload(daemon)["changed"] == ["policy.restart_budget.count: 5 -> 8"]
        after = daemon.engine()
        assert (after["budget_remaining"], after["pids"]) == (7, before["pids"])


def rejected_for(words: str, line: dict[str, Any]) -> bool:
    """Whether that line of the log tells of this mistake first."""
    return words in line["errors"][0]


def results(daemon: Daemon) -> list[str]:
    """How all actions ended that the log tells of so far."""
    return [line["result"] for line in daemon.events("action.finished")]


def test_what_is_wrong_changes_nothing(file: File) -> None:
    """A bad rule, key or type, half a file, none, and a port that is locked: exit 2, with lines.

    The old configuration stays in force, the metric says so, and the next good file heals it.
    """
    locked = free_port()
    lock = lock_port(locked)
    with watched(file) as daemon:
        leader = daemon.engine()["pid"]
        good = file.path.read_text()
        command = json.dumps(simulated_command(locked))
        for text, words in (
            (
                good + rule("engine-dead", when="engine.process =="),
                "rule.engine-dead.when: column ",
            ),
            (
                good + rule("engine-dead", mode="off", actions=["reboot"]),
                "rule.engine-dead.actions",
            ),
            (good + "[policy]\nrestart_bugdet = 1\n", "policy.restart_bugdet: unknown key"),
            (good[: len(good) // 2], "line "),
            ("", "no engine"),
            (good + f"[engine.other]\ncommand = {command}\n", f"cannot lock port {locked}"),
            (None, "cannot be read"),
        ):
            file.path.unlink() if text is None else file.path.write_text(text)
            done = daemon.command("reload")
            assert (done.returncode, done.stdout) == (2, ""), words
            assert words in done.stderr
            daemon.wait_event("config.rejected", wanted=partial(rejected_for, words))
            assert daemon.metric("vllm_watchdog_config_reload_success") == 0
        file.path.write_text(good)
        done = daemon.command("reload")
        assert (done.returncode, done.stdout) == (0, "nothing changed\n"), done.stderr
        assert daemon.metric("vllm_watchdog_config_reload_success") == 1
        assert daemon.engine()["pid"] == leader
        assert [e["name"] for e in daemon.status()["engines"]] == ["main"]
    lock.release()


def test_what_needs_a_new_daemon_is_said(file: File, tmp_path: Path) -> None:
    """Address and log stay as they were; the rest of the same file is applied."""
    with watched(file) as daemon:
        table = f'[watchdog]\nlog = "{tmp_path}/other.log"\n[notify.webhook]\nurl = "http://a/{SECRET}"\n'
        file.write(table + '[probes.driver]\nperiod = "7s"')
        answer = reload(daemon)
        assert answer["needs_restart"] == ["watchdog.log"]
        assert answer["changed"] == ["probes.driver.period: 10s -> 7s", "notify.webhook: new"]
        assert not (tmp_path / "other.log").exists()
        assert SECRET not in daemon.log_path.read_text()


def test_sighup_reloads(file: File) -> None:
    """SIGHUP does what the command does; at the start and at the end it does no harm."""
    file.write()
    with running(file.path.parent / "s", (), file.port, config=file.path) as daemon:
        daemon.wait_event("watchdog.started")
        daemon.send(signal.SIGHUP)
        daemon.wait_ready(READY)
        file.write('[policy]\non_give_up = "exit"')
        daemon.send(signal.SIGHUP)
        line = daemon.wait_event("config.reloaded", 20, lambda e: e["changed"])
        assert line["changed"] == ["policy.on_give_up: hold -> exit"]
        assert daemon.engine()["starts"] == 1
        daemon.send(signal.SIGTERM)
        daemon.send(signal.SIGHUP)
        assert daemon.ended() == 0
        assert not daemon.survivors()


def test_sighup_begins_a_new_log_file(file: File, tmp_path: Path) -> None:
    """After a rotation by renaming, what happens from SIGHUP on is in a new file of the name."""
    log = tmp_path / "watchdog.log"
    file.rest = f'[watchdog]\nlog = "{log}"'
    with watched(file) as daemon:
        log.rename(tmp_path / "watchdog.log.1")
        daemon.send(signal.SIGHUP)
        until(lambda: log.exists() and "config.reloaded" in log.read_text())
    assert "watchdog.started" in (tmp_path / "watchdog.log.1").read_text()
    assert "watchdog.stopping" in log.read_text()


# --- engines --------------------------------------------------------------------------------------


def test_its_own_change_restarts_an_engine_and_no_other(file: File) -> None:
    """The one whose environment changed is drained, its request finishes; the other is untouched.

    The value of the variable is told to nobody.
    """
    port = file.engine("main", 0, "--startup-time", "0", "--tokens-per-second", "20")
    file.engine("other", 0, "--startup-time", "0")
    with watched(file) as daemon, concurrent.futures.ThreadPoolExecutor(1) as pool:
        before = engines(daemon)
        asked = pool.submit(post, port, "/v1/completions", {"prompt": "a", "max_tokens": 60})
        until(lambda: engines(daemon)["main"]["verdict"] == "busy")
        file.engines["main"]["env"] = {"EXTRA": SECRET}
        file.write()
        answer = reload(daemon)
        assert (answer["changed"], answer["restarts"]) == (["engine.main.env.EXTRA"], ["main"])
        assert asked.result() == 200
        until(lambda: engines(daemon)["main"]["starts"] == 2 and len(ready(daemon)) == 2, READY)
        after = engines(daemon)
        assert after["other"]["pids"] == before["other"]["pids"]
        assert not [pid for pid in before["main"]["pids"] if alive(pid)]
        environ = Path(f"/proc/{after['main']['pid']}/environ").read_bytes()
        assert f"EXTRA={SECRET}".encode() in environ
        assert SECRET not in daemon.log_path.read_text()


def test_engines_come_and_go(file: File) -> None:
    """A new engine is started, one that left is gone to the last process, the first never noticed.

    The port of the one that left is free again for another watchdog.
    """
    with watched(file) as daemon:
        first = daemon.engine()
        port = file.engine("second", 0, "--startup-time", "0")
        file.write()
        assert reload(daemon)["changed"] == ["engine.second: new"]
        until(lambda: ready(daemon) == {"main", "second"}, READY)
        second = engines(daemon)["second"]
        assert is_locked(port)
        del file.engines["second"]
        file.write()
        assert reload(daemon)["changed"] == ["engine.second: gone"]
        until(lambda: set(engines(daemon)) == {"main"})
        assert not [pid for pid in second["pids"] if alive(pid)]
        until(lambda: not is_locked(port))
        assert daemon.engine()["pids"] == first["pids"]
        assert daemon.get("/healthz")[0] == 200
        file.engine("second", port, "--startup-time", "0")
        file.write()
        reload(daemon)  # that it was ended by a reload is not an operator's stop
        until(lambda: ready(daemon) == {"main", "second"}, READY)
        assert engines(daemon)["second"]["starts"] == 2


def test_a_renamed_engine_does_not_start_on_top(file: File) -> None:
    """The new name waits for the old one's port: its start comes after, and is not refused."""
    with watched(file) as daemon:
        before = daemon.engine()
        file.engines = {"renamed": file.engines["main"]}
        file.write()
        reload(daemon)
        until(lambda: ready(daemon) == {"renamed"}, READY)
        assert not [pid for pid in before["pids"] if alive(pid)]
        until(lambda: results(daemon) == ["ok"] * 3)
        names = [(e["event"], e.get("engine")) for e in daemon.events()]
        assert names.index(("engine.stopped", "main")) < names.index(("engine.started", "renamed"))
        assert engines(daemon)["renamed"]["starts"] == 1


def test_engines_may_change_places(file: File) -> None:
    """Two that swap their ports each wait for the other; probes look where each one is."""
    file.engine("other", 0, "--startup-time", "0")
    with watched(file) as daemon:
        ports = {name: one["port"] for name, one in engines(daemon).items()}
        main, other = file.engines["main"], file.engines["other"]
        file.engines = {"main": other, "other": main}
        file.write()
        assert reload(daemon)["restarts"] == ["main", "other"]
        until(lambda: all(one["starts"] == 2 for one in engines(daemon).values()), READY)
        until(lambda: len(ready(daemon)) == 2 and daemon.get("/healthz")[0] == 200, READY)
        now = {name: one["port"] for name, one in engines(daemon).items()}
        assert now == {"main": ports["other"], "other": ports["main"]}
        until(lambda: results(daemon) == ["ok"] * 4)


def test_who_may_not_be_restarted_gets_it_with_the_next_start(file: File) -> None:
    """An engine that its operator stopped stays down; started again, it is what the file says."""
    with watched(file) as daemon:
        assert daemon.command("stop").returncode == 0
        old = file.port
        port = file.engine("main", 0, "--startup-time", "0")
        file.write()
        answer = reload(daemon)
        assert (answer["changed"], answer["restarts"]) == (["engine.main.command"], [])
        assert daemon.engine()["state"] == "stopped"
        assert daemon.command("start").returncode == 0
        assert daemon.wait_ready(READY)["port"] == port
        until(lambda: (is_locked(old), is_locked(port)) == (False, True))


def test_observing_nothing_is_touched(file: File) -> None:
    """Told to observe, we restart nothing and end nothing; what runs is looked at where it runs."""
    file.engine("other", 0, "--startup-time", "0")
    with watched(file) as daemon:
        before = engines(daemon)
        file.engine("main", 0, "--startup-time", "0")
        del file.engines["other"]
        file.write('[watchdog]\nmode = "observe"')
        assert reload(daemon)["restarts"] == []
        until(lambda: set(engines(daemon)) == {"main"})
        assert daemon.engine()["port"] == before["main"]["port"]
        assert all(alive(pid) for one in before.values() for pid in one["pids"])
        until(lambda: ready(daemon) == {"main"})
        ports = (before["main"]["port"], file.port, before["other"]["port"])
        until(lambda: [is_locked(port) for port in ports] == [True, True, False])
