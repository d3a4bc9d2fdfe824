"""Faults of one real engine under one daemon: each is caused, watched and timed from outside."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.gpu.cuda_programs import FAULTY, HOLDER
from tests.gpu.vllm_bed import START, Box, Cards
from tests.gpu.vllm_load import loading
from tests.gpu.vllm_watch import Watch, complete, first, timeline, when
from tests.support.simulated import alive, cmdline, until

_SETTLES = 1.0
"""From the first token to what the daemon says of it, polled."""


def titled(pids: Sequence[int], title: str) -> int:
    """The process with ``title`` in its command line. Raises LookupError."""
    for pid in pids:
        if title in cmdline(pid):
            return pid
    raise LookupError(f"no {title} among {[cmdline(pid)[:80] for pid in pids]}")


def tree(pids: Sequence[int]) -> list[str]:
    """Who the processes are."""
    return [f"{pid} {cmdline(pid)[:100]}" for pid in pids]


@contextlib.contextmanager
def watched(
    box: Box, cards: Cards, baseline: Mapping[int, int], found: dict[str, Any], name: str = "main"
) -> Iterator[tuple[Watch, dict[str, Any]]]:
    """The engine as it is before the fault; afterwards the timeline of its recovery."""
    before = box.engine(name)
    found["before"] = {"pid": before["pid"], "tree": tree(before["pids"])}
    with Watch(before["pids"], before["port"], cards, baseline) as watch:
        yield watch, before
        watch.until("first_token", START)
        box.ready(name)
        until(lambda: _quiet(box, before, name), 30)
        time.sleep(_SETTLES)
    found.update(timeline(watch, box, name))
    after = box.engine(name)
    found["starts"] = after["starts"] - before["starts"]
    found["old_alive"] = [pid for pid in before["pids"] if alive(pid)]


def _quiet(box: Box, before: dict[str, Any], name: str) -> bool:
    """Whether another generation serves, and no incident of it is open."""
    engine = box.engine(name)
    body = json.loads(box.daemon.get("/api/v1/incidents")[1] or "{}")
    incidents = [one for one in body.get("incidents", ()) if one["subject"] == f"engine/{name}"]
    critical = [i for i in incidents if i["resolved"] is None and i["rule"].startswith("engine-")]
    return engine.get("generation") != before["generation"] and not critical


def drill(  # noqa: PLR0917 - what a drill is made of
    box: Box,
    cards: Cards,
    baseline: Mapping[int, int],
    found: dict[str, Any],
    fault: str,
    name: str = "main",
) -> None:
    """One drill by the command, as an operator would do it."""
    before = box.engine(name)
    found["before"] = {"pid": before["pid"], "tree": tree(before["pids"])}
    with Watch(before["pids"], before["port"], cards, baseline) as watch:
        done = box.daemon.command("drill", fault, "--yes", "--json", "--engine", name, patience=400)
        found["command"] = {"exit_code": done.returncode, "stderr": done.stderr[-4000:]}
        found["command"]["stdout"] = json.loads(done.stdout) if done.stdout else None
        if "fault" in watch.marks:
            watch.until("first_token", 60)
            time.sleep(_SETTLES)
    if "fault" in watch.marks:
        found.update(timeline(watch, box, name))
        found["old_alive"] = [pid for pid in before["pids"] if alive(pid)]


def orphan_stopped(
    box: Box, cards: Cards, baseline: Mapping[int, int], found: dict[str, Any]
) -> None:
    """G1: EngineCore is stopped and holds the memory, the leader is killed."""
    with watched(box, cards, baseline, found) as (watch, before):
        os.kill(titled(before["pids"], "EngineCore"), signal.SIGSTOP)
        time.sleep(0.1)
        watch.marks["fault"] = time.time()
        os.kill(before["pid"], signal.SIGKILL)


def orphan_at_start(
    box: Box, cards: Cards, baseline: Mapping[int, int], found: dict[str, Any]
) -> None:
    """G3: the watchdog dies, then the leader; the next watchdog finds EngineCore and its memory."""
    with watched(box, cards, baseline, found) as (watch, before):
        box.daemon.send(signal.SIGKILL)
        box.daemon.ended()
        os.kill(before["pid"], signal.SIGKILL)
        time.sleep(3)
        core = titled([p for p in before["pids"] if p != before["pid"]], "EngineCore")
        found["orphan"] = {"pid": core, "holds": [rows.get(core) for rows in _holders(cards)]}
        watch.marks["fault"] = time.time()
        box.launch()


def _holders(cards: Cards) -> list[dict[int, int]]:
    return cards.holders() if cards else []


def watchdog_killed(box: Box, found: dict[str, Any]) -> None:
    """W1: SIGKILL to the watchdog under load; the next one adopts the engine as it is."""
    before = box.engine()
    with loading(before["port"], 2, 32) as load:
        time.sleep(2)
        killed = time.time()
        box.daemon.send(signal.SIGKILL)
        box.daemon.ended()
        time.sleep(3)
        launched = time.time()
        box.launch()
        after = box.ready()
        ready = time.time()
        time.sleep(3)
        found["clients"] = load.end()
    adopted = first(box.daemon.lines(), "engine.adopted")
    found["unwatched_s"] = round(launched - killed, 3)
    found["launch_to_adopted_s"] = round(when(adopted) - launched, 3)
    found["launch_to_ready_s"] = round(ready - launched, 3)
    found["same"] = {key: before[key] == after[key] for key in ("pid", "generation", "starts")}
    found["processes_alive"] = [alive(pid) for pid in before["pids"]]
    found["log"] = box.daemon.lines()


def holder(size: int) -> subprocess.Popen[str]:
    """A stranger that holds so many bytes of the first card, once it does."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(size)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline().strip() == str(process.pid)
    return process


def stranger(box: Box, size: int, found: dict[str, Any], *, serves: bool = True) -> None:
    """G2: a stranger holds the memory at the first start, is named, left alone, and leaves.

    The daemon is launched here; at the end its engine serves, or has only been started.
    """
    process = holder(size)
    try:
        found["stranger"] = {"pid": process.pid, "bytes": size}
        launched = time.time()
        box.launch()
        with contextlib.suppress(AssertionError):
            until(lambda: _naming(box, f"process {process.pid}"), 20)
        refusal = _naming(box, f"process {process.pid}")
        if refusal:
            found["refused_after_s"] = round(when(refusal) - launched, 3)
        found["refusal"] = refusal
        time.sleep(6)
        found["status"] = box.engine()
        found["stranger_alive"] = process.poll() is None
        name = "nvidia_gpu_compute_apps_memory_bytes{"
        page = box.daemon.get("/metrics")[1].splitlines()
        found["metrics"] = [line for line in page if line.startswith(name)]
        found["status_page"] = box.timed("status")["stdout"]
    finally:
        process.kill()
        process.communicate()
    left = time.time()
    try:
        until(lambda: first(box.lines(), "engine.started"), 60)
        found["started_by"] = "itself"
    except AssertionError:
        found["started_by"] = box.timed("start")
        until(lambda: first(box.lines(), "engine.started"), 60)
    started = first(box.lines(), "engine.started")
    found["left_to_started_s"] = round(when(started) - left, 3)
    if not serves:
        found["log"] = box.lines()
        return
    until(lambda: _answers(box.port), START)
    token = time.time()
    box.ready()
    found.update(_start_times(box, token))
    found["log"] = box.lines()


def _naming(box: Box, word: str) -> dict[str, Any] | None:
    return next((line for line in box.lines() if word in json.dumps(line)), None)


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError, ValueError, LookupError):
        return complete(port) > 0
    return False


def plain_start(box: Box, found: dict[str, Any]) -> None:
    """Launch the daemon; at the end its engine serves."""
    launched = time.time()
    box.launch()
    until(lambda: _answers(box.port), START)
    token = time.time()
    box.ready()
    found.update(_start_times(box, token))
    started = first(box.lines(), "engine.started")
    found["launch_to_started_s"] = round(when(started) - launched, 3)
    found["log"] = box.lines()


def _start_times(box: Box, token: float) -> dict[str, Any]:
    until(lambda: first(box.lines(), "engine.ready"), 10)
    started = when(first(box.lines(), "engine.started"))
    ready = first(box.lines(), "engine.ready")
    return {
        "started_to_first_token_s": round(token - started, 3),
        "started_to_ready_s": round(when(ready) - started, 3),
        "ready_line": ready,
    }


def xid(box: Box, found: dict[str, Any], make: Callable[[], tuple[int, str]]) -> None:
    """G8: a process of somebody else causes an Xid 31 on the engine's card, under load."""
    before = box.engine()
    name = "nvidia_gpu_xid_errors_total{"
    with loading(before["port"], 2, 32) as load:
        time.sleep(1)
        began = time.time()
        pid, said = make()
        found["culprit"] = {"pid": pid, "said": said, "ran_s": round(time.time() - began, 3)}
        until(lambda: (box.daemon.metric(name) or 0) > 0, 15)
        found["counted_after_start_of_culprit_s"] = round(time.time() - began, 3)
        rule = "gpu-xid-application"
        wanted = until(
            lambda: first(box.lines(), "finding.firing", lambda x: x.get("rule") == rule), 15
        )
        found["finding_after_start_of_culprit_s"] = round(when(wanted) - began, 3)
        found["finding"] = wanted
        time.sleep(5)
        found["clients"] = load.end()
    after = box.engine()
    page = box.daemon.get("/metrics")[1].splitlines()
    found["metrics"] = [line for line in page if "xid" in line and not line.startswith("#")]
    found["same"] = {key: before[key] == after[key] for key in ("pid", "generation", "starts")}
    found["verdict"] = after["verdict"]
    found["log"] = [line for line in box.lines() if when(line) > began]


def faulty() -> tuple[int, str]:
    """Runs a kernel that writes to nobody's address; its pid and what it said."""
    process = subprocess.Popen(
        [sys.executable, "-c", FAULTY], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    said, _ = process.communicate(timeout=120)
    return process.pid, f"exit {process.returncode}: {said.strip()}"


def ended(box: Box, cards: Cards, baseline: Mapping[int, int], found: dict[str, Any]) -> None:
    """The end: SIGTERM to the watchdog, and what is left of its engine."""
    pids = box.engine().get("pids", [])
    began = time.time()
    with Watch(pids, 1, cards, baseline) as watch:
        box.daemon.send(signal.SIGTERM)
        found["exit_code"] = box.daemon.ended(120)
        found["ended_after_s"] = round(time.time() - began, 3)
        time.sleep(1)
    found["gone_after_s"] = round(watch.marks.get("gone", began) - began, 3)
    found["memory_back"] = "released" in watch.marks
    if "released" in watch.marks:
        found["released_after_s"] = round(watch.marks["released"] - began, 3)
    found["alive"] = [pid for pid in pids if alive(pid)]
    found["shared_memory"] = sorted(entry.name for entry in Path("/dev/shm").iterdir())[:20]
    found["log"] = box.daemon.lines()[-30:]
