"""``reload`` at a bad moment: a start, a stall, a backoff, a full disk; and again and again."""

from __future__ import annotations

import concurrent.futures
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from tests.support.daemon import Daemon, running
from tests.support.outages import reads
from tests.support.reloads import READY, File, engines, post, ready, reload, rule, watched
from tests.support.simulated import cmdline, until

LARGER = "[policy]\nrestart_budget = { count = 8 }"


@pytest.fixture
def file(tmp_path: Path) -> File:
    """A file with one engine, not written yet."""
    file = File(tmp_path / "watchdog.toml")
    file.engine("main", 0, "--startup-time", "0")
    return file


def test_a_start_under_way_goes_on(file: File) -> None:
    """A reload while an engine starts changes the rest, also its patience; it becomes ready."""
    file.engine("main", 0, "--startup-time", "4")
    file.write()
    with running(file.path.parent / "s", (), file.port, config=file.path) as daemon:
        started = daemon.wait_event("engine.started")
        file.engines["main"]["start_timeout"] = "7m"
        file.write(LARGER)
        changed = ["engine.main.start_timeout: 30m -> 7m", "policy.restart_budget.count: 5 -> 8"]
        assert reload(daemon)["changed"] == changed
        assert daemon.verdict() == "starting"
        now = daemon.wait_ready(READY)
        assert (now["pid"], now["starts"]) == (started["pid"], 1)


def test_what_it_expects_of_the_log_while_it_starts(file: File) -> None:
    """What the log had shown before is no proof of a pattern that the file brings now."""
    file.engine("main", 0, "--startup-time", "4")
    file.write()
    with running(file.path.parent / "s", (), file.port, config=file.path) as daemon:
        daemon.wait_event("engine.started")
        reads(daemon, "engine_log", 2)
        file.engines["main"]["expect_log"] = ["no such [l]ine"]
        file.write()
        assert reload(daemon)["restarts"] == []
        unshown = ["the log has not shown 'no such [l]ine' yet"]
        until(lambda: daemon.engine()["reasons"] == unshown, READY)
        assert daemon.verdict() == "starting"


def test_its_own_change_while_it_starts(file: File) -> None:
    """The start under way ends by the ladder, and the new one is what the file says."""
    file.engine("main", 0, "--startup-time", "600")
    file.write()
    with running(file.path.parent / "s", (), file.port, config=file.path) as daemon:
        until(lambda: daemon.verdict() == "starting" and daemon.engine()["pids"], READY)
        daemon.remember(daemon.engine()["pids"])
        file.engine("main", 0, "--startup-time", "0")
        file.write()
        assert reload(daemon)["restarts"] == ["main"]
        now = daemon.wait_ready(READY)
        assert (now["port"], now["starts"]) == (file.port, 2)


def test_who_leaves_may_come_back(file: File) -> None:
    """Back in the file while its last request is let finish, it is ended and then started anew."""
    port = file.engine("main", 0, "--startup-time", "0", "--tokens-per-second", "20")
    file.engine("idle", 0, standby=True)
    file.write()
    with (
        running(file.path.parent / "s", (), port, config=file.path) as daemon,
        concurrent.futures.ThreadPoolExecutor(1) as pool,
    ):
        until(lambda: ready(daemon) == {"main"}, READY)
        asked = pool.submit(post, port, "/v1/completions", {"prompt": "a", "max_tokens": 200})
        until(lambda: engines(daemon)["main"]["verdict"] == "busy")
        main = file.engines.pop("main")
        file.write()
        reload(daemon)
        assert engines(daemon)["main"]["state"] == "stopping"
        file.engines["main"] = main
        file.write()
        assert reload(daemon)["restarts"] == ["main"]
        assert asked.result() == 200
        until(lambda: ready(daemon) == {"main"}, READY)
        assert engines(daemon)["main"]["starts"] == 2
        assert engines(daemon)["idle"]["state"] == "stopped"


def test_a_stall_is_found_all_the_same(file: File) -> None:
    """Reloads while a stall shows do not hide it: the unchanged rule finds it, and it is cured."""
    with watched(file) as daemon:
        core = next(pid for pid in daemon.engine()["pids"] if "EngineCore" in cmdline(pid))
        os.kill(core, signal.SIGSTOP)
        for count in (6, 7, 8):
            file.write(f"[policy]\nrestart_budget = {{ count = {count} }}")
            reload(daemon)
        until(lambda: daemon.engine()["starts"] == 2 and ready(daemon), 90)
        assert daemon.wait_event("incident.resolved")["outcome"] == "recovered"


def test_a_backoff_is_waited_for_unless_the_engine_changed(file: File) -> None:
    """Somebody else's change does not shorten a backoff; the engine's own starts it at once."""
    file.engines["main"]["command"] += ["--fault", "exit_code=1"]
    slow = '[policy]\nbackoff = { initial = "5m" }\n'
    file.write(slow + "boot_budget = { count = 2 }\nrestart_budget = { count = 2 }")
    with running(file.path.parent / "s", (), file.port, config=file.path) as daemon:
        until(lambda: daemon.engine().get("retry_at") and starts(daemon) == 2, READY)
        before = daemon.engine()
        file.write(slow + "boot_budget = { count = 2 }\nrestart_budget = { count = 3 }")
        reload(daemon)
        now = daemon.engine()
        assert now["state"] == "backoff"
        assert abs(moment(now["retry_at"]) - moment(before["retry_at"])) < timedelta(seconds=2)
        file.engine("main", file.port, "--startup-time", "0")
        file.write()
        assert reload(daemon)["restarts"] == ["main"]
        daemon.wait_ready(READY)
        assert starts(daemon) == 3


def moment(text: str) -> datetime:
    """A time of the status."""
    return datetime.fromisoformat(text)


def starts(daemon: Daemon) -> int:
    """Spawns of the first engine."""
    return int(daemon.engine().get("starts", 0))


def test_reloads_leave_nothing_behind(file: File) -> None:
    """20 more reloads of rules, probes and engines cost no thread and no file each."""
    with watched(file) as daemon:
        for turn in range(4):
            churn(daemon, file, turn)
        until(lambda: len(daemon.status()["engines"]) == 1)
        until(lambda: list((daemon.state_dir / "recording").glob("*")))
        until(lambda: all(looked(daemon, probe) for probe in SLOW))  # each has its thread then
        before = until(lambda: at_rest(daemon)) or usage(daemon)
        for turn in range(20):
            churn(daemon, file, turn)
        until(lambda: len(daemon.status()["engines"]) == 1)
        until(lambda: all(a <= b + LATE for a, b in zip(usage(daemon), before[:2], strict=False)))
        assert usage(daemon)[2] < before[2] + 12 * 1024  # flat after forty: 30 kB a reload
        assert starts(daemon) == 1


LATE = 5
"""Threads and connections of probes that are built anew and have not looked yet."""
SLOW = ("driver", "disk", "tmpfs", "files", "conntrack", "sockets", "memory", "oom", "cpu")
"""Probes that look seldom, unless told otherwise."""


def looked(daemon: Daemon, probe: str) -> float | None:
    """Whether the probe has looked yet."""
    return daemon.metric(f'vllm_watchdog_probe_duration_seconds{{probe="{probe}"')


def churn(daemon: Daemon, file: File, turn: int) -> None:
    """Change a rule, a probe, and whether there is a second engine that never starts."""
    if turn % 2:
        file.engines.pop("second", None)
    else:
        file.engine("second", 0, "--startup-time", "0", standby=True)
    changed = rule("engine-stalled", **{"for": f"{turn + 1}s"})
    often = "\n".join(f'[probes.{probe}]\nperiod = "1s"' for probe in SLOW)
    file.write(f'{changed}\n{often}\n[probes.engine_http]\ntimeout = "{turn + 5}s"')
    reload(daemon)


def usage(daemon: Daemon) -> tuple[int, int, int]:
    """Threads, descriptors and kB of memory of the daemon."""
    proc = Path(f"/proc/{daemon.process.pid}")
    lines = (line.split() for line in (proc / "status").read_text().splitlines())
    values = {words[0]: words[1] for words in lines if len(words) > 1}
    return int(values["Threads:"]), len(list((proc / "fd").iterdir())), int(values["VmRSS:"])


def at_rest(daemon: Daemon) -> tuple[int, int, int] | None:
    """The usage, once it is twice the same."""
    first, second = usage(daemon), usage(daemon)
    return second if first[:2] == second[:2] else None


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with room for very little."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"cannot mount: {done.stderr.strip()}")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_full_disk_is_no_reason_not_to(file: File, tiny_disk: Path) -> None:
    """With a full state directory a reload is in force all the same, and an engine restarts."""
    file.write()
    with running(tiny_disk / "s", (), file.port, config=file.path) as daemon:
        daemon.wait_ready(READY)
        with (tiny_disk / "ballast").open("wb", buffering=0) as ballast:
            with_room = True
            while with_room:
                try:
                    ballast.write(bytes(4096))
                except OSError:
                    with_room = False
        file.engine("main", 0, "--startup-time", "0")
        file.write(LARGER)
        assert reload(daemon)["restarts"] == ["main"]
        until(lambda: starts(daemon) == 2 and ready(daemon), READY)
        assert daemon.engine()["port"] == file.port
        assert daemon.metric("vllm_watchdog_config_reload_success") == 1


def test_many_at_once_are_done_one_after_the_other(file: File) -> None:
    """Commands and signals that come together all end well, and the last file is in force."""
    with watched(file) as daemon:
        before = engines(daemon)
        file.write(LARGER)
        words = ["-m", "watchdog", "reload", "--state-dir", str(daemon.state_dir)]
        commands = [subprocess.Popen([sys.executable, *words]) for _ in range(4)]
        for _ in range(20):
            daemon.send(signal.SIGHUP)
        assert [command.wait(60) for command in commands] == [0] * 4
        assert engines(daemon)["main"]["pids"] == before["main"]["pids"]
        daemon.wait_event("config.reloaded", wanted=lambda line: bool(line["changed"]))
        changed = [line["changed"] for line in daemon.events("config.reloaded")]
        assert [lines for lines in changed if lines] == [["policy.restart_budget.count: 5 -> 8"]]
