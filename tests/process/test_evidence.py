"""Evidence bundles: whole or not there, without secrets, and never in the way of an action."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from pathlib import Path

import pytest

from tests.support import mounts
from tests.support.daemon import Daemon, running, simulated_command
from tests.support.evidence import (
    KEY,
    Control,
    contents,
    evidence_threads,
    order,
    program,
    stage,
)
from tests.support.outages import READY, member
from tests.support.simulated import free_port, until
from watchdog.config.settings import EvidenceSettings
from watchdog.evidence import Bundle, kept

HUSH = "sk-hush-hush-hush"
HASTY = '[engine.main]\nstop = { drain_timeout = "1s", term_timeout = "1s" }\n'
FILES = {
    "meta.json",
    "readings.jsonl",
    "engine.log",
    "kernel.log",
    "processes.txt",
    "gpus.json",
    "status.json",
}


def hasty(folder: Path) -> Path:
    """A configuration with which a loading engine is not waited for at the end of a test."""
    path = folder / "watchdog.toml"
    path.write_text(HASTY)
    return path


def restarted(daemon: Daemon) -> None:
    """Wait for the second start."""
    daemon.wait_event("engine.started", wanted=lambda line: line["starts"] == 2)


def test_a_start_that_is_refused_again_and_again_is_one_bundle(tmp_path: Path) -> None:
    """FACT: of a dead engine there is nothing new to see at each retry; the first bundle stays."""
    port, state = free_port(), tmp_path / "s"
    file = tmp_path / "watchdog.toml"
    file.write_text('[policy]\nbackoff = { initial = "1s", max = "1s" }\n')
    with running(state, simulated_command(port), port, config=file) as daemon:
        os.kill(daemon.wait_ready(READY)["pid"], signal.SIGKILL)
        restarted(daemon)  # the first time at once, the second after a second
        os.kill(daemon.wait_ready(READY)["pid"], signal.SIGKILL)
        with socket.socket() as stranger:
            stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            until(lambda: bound(stranger, port))
            until(lambda: len(refusals(daemon)) > 2)
            found = [one.incident for one in kept(state / "evidence")]
            assert sorted(found) == ["inc-000001", "inc-000002"]
        daemon.wait_ready(READY)


def bound(listener: socket.socket, port: int) -> bool:
    """Whether it listens on the port by now."""
    try:
        listener.bind(("127.0.0.1", port))
    except OSError:
        return False
    listener.listen()
    return True


def refusals(daemon: Daemon) -> list[dict[str, object]]:
    """The starts that were refused so far."""
    return [line for line in daemon.events("action.finished") if line["result"] != "ok"]


def only(directory: Path) -> Bundle:
    """The only bundle that is believed."""
    (bundle,) = kept(directory)
    return bundle


def newest(directory: Path, count: int) -> Path:
    """The last one made, once there are so many."""
    until(lambda: len(kept(directory)) == count)
    return kept(directory)[-1].path


# --- the real daemon ------------------------------------------------------------------------------


def test_of_a_stalled_engine_all_is_there_before_it_is_ended(tmp_path: Path) -> None:
    """FACT: the bundle is complete before the first signal, has stacks, and shows no key."""
    py_spy = program(tmp_path / "bin/py-spy", "tr '\\0' ' ' < /proc/$4/cmdline")
    port, state = free_port(), tmp_path / "state"
    env = {"PATH": f"{py_spy.parent}:{os.environ['PATH']}"}
    command = simulated_command(port, "--api-key", HUSH)
    with running(state, command, port, config=hasty(tmp_path), environment=env) as daemon:
        before = daemon.wait_ready(READY)
        with (state / "engine-main.log").open("a") as log:
            log.write(f"the key is {HUSH} \x1b]0;owned\x07<script>\x1b[31mred\n")
        core = member(daemon, "VLLM::EngineCore")
        os.kill(core, signal.SIGSTOP)
        restarted(daemon)
        names = [line["event"] for line in daemon.events()]
        told = daemon.wait_event("evidence.taken")
        assert names.index("evidence.taken") < names.index("engine.exited")
        bundle = only(state / "evidence")
        assert (str(bundle.path), bundle.incident) == (told["path"], "inc-000001")
        files = contents(bundle.path)
        assert set(files) >= FILES | {f"stacks-{before['pid']}.txt", f"stacks-{core}.txt"}
        assert not [name for name, text in files.items() if HUSH in text]
        assert "\x1b" not in files["engine.log"]
        assert "the key is *** \\x1b]0;owned\\x07<script>red" in files["engine.log"]
        assert f"{core} T VLLM::EngineCor" in files["processes.txt"]
        lines = [json.loads(line) for line in files["readings.jsonl"].splitlines()]
        assert {"engine_http", "engine_process"} <= {line.get("probe") for line in lines}
        assert json.loads(files["meta.json"])["why"]


def test_a_restart_after_a_crash_does_not_wait_and_its_orphans_are_told(tmp_path: Path) -> None:
    """FACT: the bundle is taken beside it, and has the orphans that are gone by then."""
    port, state = free_port(), tmp_path / "state"
    with running(state, simulated_command(port), port, config=hasty(tmp_path)) as daemon:
        before = daemon.wait_ready(READY)
        core = member(daemon, "VLLM::EngineCore")
        os.kill(before["pid"], signal.SIGKILL)
        taken = daemon.wait_event("evidence.taken")
        assert taken["beside"]
        restarted(daemon)
        files = contents(only(state / "evidence").path)
        assert f"{core} S VLLM::EngineCor" in files["processes.txt"]
        assert set(files) | set(json.loads(files["meta.json"])["missing"]) >= FILES


def test_a_full_disk_costs_the_bundle_and_one_line(tmp_path: Path) -> None:
    """FACT: the engine is restarted all the same, and nothing is left of a bundle."""
    port = free_port()
    with (
        mounts.tmpfs(tmp_path / "state", "size=24m") as state,
        running(state, simulated_command(port), port, config=hasty(tmp_path)) as daemon,
    ):
        before = daemon.wait_ready(READY)
        os.kill(before["pid"], signal.SIGKILL)
        restarted(daemon)
        assert "no room" in daemon.wait_event("evidence.failed")["reason"]
        assert len(daemon.events("evidence.failed")) == 1
        assert not list((state / "evidence").iterdir())


# --- the collector alone --------------------------------------------------------------------------


def test_a_part_that_hangs_is_left_behind_and_the_rest_is_kept(tmp_path: Path) -> None:
    """FACT: the bundle is complete without it and says so; the next one does not wait again."""
    over = threading.Event()
    with stage(tmp_path) as set_up:
        set_up.at_snapshot = over.wait
        collector = set_up.collector(limit=1.5)
        try:
            for number in (1, 2):
                collector.take(order(), Control())
                path = newest(set_up.directory, number)
                until(lambda: set(evidence_threads()) <= {"evidence-status.json"})
                assert path.name == f"inc-000007-00{number}"
                files = contents(path)
                assert set(files) == FILES - {"status.json", "gpus.json", "readings.jsonl"}
                told = json.loads(files["meta.json"])["missing"]["status.json"]
                assert ("hangs from an earlier" in told) == (number == 2)
        finally:
            over.set()
        until(lambda: not evidence_threads())


def test_py_spy_that_never_ends_is_ended(tmp_path: Path) -> None:
    """FACT: what it said is kept without the key, and nobody of it lives afterwards."""
    script = f"trap '' TERM; echo 'stack of {KEY}'; echo $$ > {tmp_path}/pid; exec sleep 600"
    program(tmp_path / "bin/py-spy", script)
    with stage(tmp_path / "state") as set_up:
        set_up.path = f"{tmp_path}/bin:{os.environ['PATH']}"
        set_up.collector(limit=2.0).take(order(), Control())
        until(lambda: kept(set_up.directory))
        files = contents(only(set_up.directory).path)
        assert "stacks" in json.loads(files["meta.json"])["missing"]
        assert files.get(f"stacks-{set_up.pid}.txt", "stack of ***\n") == "stack of ***\n"
        pid = int((tmp_path / "pid").read_text())
        until(lambda: not Path(f"/proc/{pid}").exists())
        until(lambda: not evidence_threads())


def test_py_spy_is_found_beside_the_interpreter_of_the_command(tmp_path: Path) -> None:
    """FACT: an engine in an environment of its own is dumped; when switched off it is not."""
    program(tmp_path / "venv/bin/py-spy", f"echo 'idle {KEY} thread'")
    vllm = program(tmp_path / "venv/bin/vllm", "exit 0")
    with stage(tmp_path / "state") as set_up:
        set_up.program = str(vllm)
        name = f"stacks-{set_up.pid}.txt"
        path = set_up.collector().take(order(), Control())
        assert path is not None
        assert contents(path)[name] == "idle *** thread\n"
        set_up.settings = EvidenceSettings(py_spy=False)
        path = set_up.collector().take(order(), Control())
        assert path is not None
        assert name not in contents(path)


def test_a_log_on_a_disk_that_hangs_holds_nobody_up(tmp_path: Path) -> None:
    """FACT: the action goes on after its limit; the next one takes nothing as long as it hangs."""
    with mounts.silent(tmp_path / "mount") as fuse, stage(tmp_path / "state") as set_up:
        set_up.log = tmp_path / "mount" / "engine.log"
        collector = set_up.collector(limit=0.3)
        assert collector.take(order(), Control()) is None
        assert collector.take(order(), Control()) is None
        assert set_up.failures() == ["an earlier bundle is still being taken"]
        fuse.end()
        until(lambda: not evidence_threads())


def test_a_disk_that_fills_up_meanwhile_leaves_nothing(tmp_path: Path) -> None:
    """FACT: ENOSPC in the middle of a bundle: its beginning is removed, and it is told once."""
    with mounts.tmpfs(tmp_path / "state", "size=100m") as folder, stage(folder) as set_up:
        set_up.log.write_bytes(b"x" * (1 << 20))
        set_up.at_snapshot = lambda: _fill(folder / "others")
        assert set_up.collector().take(order(), Control()) is None
        assert [reason.partition(":")[0] for reason in set_up.failures()] == ["cannot write"]
        assert not list(set_up.directory.iterdir())


@pytest.mark.parametrize(
    ("action", "rule"), [("start_engine", "engine-down"), ("clean_up", "engine-stalled")]
)
def test_what_ends_no_engine_leaves_no_bundle(tmp_path: Path, action: str, rule: str) -> None:
    """FACT: only a stop and a restart are disruptive."""
    with stage(tmp_path) as set_up:
        assert set_up.collector().take(order(action, rule), Control()) is None
        assert not set_up.said


def test_an_operator_who_ends_what_does_not_serve_leaves_a_bundle(tmp_path: Path) -> None:
    """FACT: it is of no incident, and called so; switched off there is none."""
    with stage(tmp_path) as set_up:
        path = set_up.collector().take(order(rule="operator"), Control())
        assert path is not None
        assert path.name == "no-incident-001"
        set_up.settings = EvidenceSettings(enabled=False)
        assert set_up.collector().take(order(), Control()) is None


def test_no_form_of_a_key_reaches_the_disk(tmp_path: Path) -> None:
    """FACT: as it is, in JSON, in a URL, in Python's words, cut in two by the tail's beginning."""
    with stage(tmp_path) as set_up:
        forms = (KEY, json.dumps(KEY), repr(KEY), "sk-%22hush%5C%20123", "hf-quiet-please")
        set_up.log.write_text("".join(f"a line with {form} in it\n" for form in forms) * 9000)
        path = set_up.collector().take(order(), Control())
        assert path is not None
        text = "".join(contents(path).values())
        assert "hush" not in text
        assert "quiet" not in text
        assert "somebody" not in text
        assert text.count("a line with *** in it\n") > 1000


def test_a_dead_leader_is_not_waited_for(tmp_path: Path) -> None:
    """FACT: the order goes on at once, while the bundle is still to be written."""
    over = threading.Event()
    with stage(tmp_path) as set_up:
        set_up.dead()
        set_up.at_snapshot = over.wait
        collector = set_up.collector()
        assert collector.take(order(), Control()) is None
        assert not set_up.said
        over.set()
        until(lambda: kept(set_up.directory))
        assert until(lambda: list(collector.paths)) == ["inc-000007"]
        until(lambda: not evidence_threads())


def test_a_crash_while_the_last_bundle_is_taken_has_one_of_its_own(tmp_path: Path) -> None:
    """FACT: one more waits for its turn, with the log as it was; a third is told as lost."""
    over = threading.Event()
    with stage(tmp_path) as set_up:
        set_up.dead()
        set_up.at_snapshot = over.wait
        set_up.log.write_text("first words\n")
        collector = set_up.collector()
        try:
            collector.take(order(), Control())
            with set_up.log.open("a") as log:
                log.write("last words\n")
            set_up.dead("g2")
            collector.take(order(), Control())
            assert not set_up.failures()
            set_up.dead("g3")
            collector.take(order(), Control())
            assert set_up.failures() == ["an earlier bundle is still being taken"]
        finally:
            over.set()
        second = newest(set_up.directory, 2)
        files = contents(second)
        assert set(files) == FILES - {"readings.jsonl"}
        assert files["engine.log"] == "first words\nlast words\n"
        until(lambda: not evidence_threads())
        assert len(set_up.failures()) == 1


def test_where_no_thread_can_be_started_there_is_one_line(tmp_path: Path) -> None:
    """FACT: at the limit of tasks the action goes on, and so does the end of the watchdog."""
    with stage(tmp_path) as set_up:
        collector = set_up.collector()
        before = threading.stack_size(1 << 46)  # more than there are addresses
        try:
            assert collector.take(order(), Control()) is None
        finally:
            threading.stack_size(before)
        assert set_up.failures() == ["can't start new thread"]
        collector.close()


def _fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 20))
        except OSError:
            return
