"""The NVML worker and its client when the driver is ill: real processes, a library of our own."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from probes._nvml.client import WORKER, NvmlClient
from tests.support import fake_nvml
from tests.support.fake_nvml import IDLE, FakeNvml, asking, sweep, trouble
from tests.support.simulated import PATIENCE, ROOT, alive, stat_fields, until

SOON = 0.3
"""Seconds given to a sweep that will hang anyway."""

# A parent of a worker that tells its pid and dies without a word when its stdin ends.
PARENT = """
import os, sys, time
from probes._nvml.client import NvmlClient
client = NvmlClient()
client.ask("cards", time.monotonic() + 60)
print(*client.pids, flush=True)
sys.stdin.read()
os._exit(0)
"""


@pytest.fixture
def nvml(tmp_path: Path) -> FakeNvml:
    """A loaded H200."""
    return fake_nvml.build(tmp_path)


@pytest.fixture
def client(nvml: FakeNvml) -> Iterator[NvmlClient]:
    """A client of that card."""
    with asking(nvml.environment) as asked:
        yield asked


def test_every_sweep_looks_again(nvml: FakeNvml, client: NvmlClient) -> None:
    """FACT: what changed since the last sweep is in the next."""
    assert sweep(client)["gpus"][0]["memory_utilization_percent"] == 24
    nvml.set(IDLE)
    (card,) = sweep(client)["gpus"]
    assert card["memory_utilization_percent"] == 0
    assert card["power_watts"] < 100


def test_a_hang_is_left_at_the_deadline(nvml: FakeNvml, client: NvmlClient) -> None:
    """FACT: a sweep that hangs ends, and the next one works when the driver answers again."""
    sweep(client)
    before = client.pids
    nvml.do("hang", "nvmlDeviceGetPowerUsage")
    assert trouble(client, SOON) == "cannot read any GPU: no answer in time"
    nvml.heal()
    assert len(sweep(client)["gpus"]) == 1
    assert not set(client.pids) & set(before)


def test_a_slow_driver_is_waited_for(nvml: FakeNvml, client: NvmlClient) -> None:
    """FACT: slowness within the deadline costs no worker."""
    sweep(client)
    before = client.pids
    nvml.do("slow", "nvmlDeviceGetTemperature")
    assert len(sweep(client)["gpus"]) == 1
    assert client.pids == before


def state(pid: int) -> str:
    """The kernel's letter."""
    return stat_fields(pid)[0]


def test_a_worker_inside_the_driver_is_not_killed(nvml: FakeNvml, client: NvmlClient) -> None:
    """FACT: in state D it gets no signal, and ends by itself when the driver lets go of it."""
    sweep(client)
    (first,) = client.pids
    nvml.do("stuck")
    try:
        assert trouble(client, SOON) == "cannot read any GPU: no answer in time"
        assert client.pids == (first,)
        client.close()
        assert client.pids == (first,)
        assert state(first) == "D"
    finally:
        nvml.heal()
    until(lambda: not client.pids)


def test_two_hangs_in_a_row_are_two_processes(nvml: FakeNvml, client: NvmlClient) -> None:
    """FACT: one worker is left behind, the second is kept, and there is never a third."""
    sweep(client)
    gone = "cannot read any GPU: the driver does not respond"
    nvml.do("stuck")
    try:
        until(lambda: trouble(client, SOON) == gone)
        both = client.pids
        assert [state(pid) for pid in both] == ["D", "D"]
        for _ in range(3):
            assert trouble(client, SOON) == gone
            assert client.pids == both
    finally:
        nvml.heal()
    until(lambda: len(client.pids) < 2)
    assert len(sweep(client)["gpus"]) == 1
    assert len(client.pids) == 1


def test_a_late_answer_is_nobodys(nvml: FakeNvml, client: NvmlClient) -> None:
    """FACT: what the kept worker says at last is dropped, and the next request gets its own."""
    sweep(client)
    nvml.do("stuck")
    try:
        until(lambda: trouble(client, SOON).endswith("does not respond"))
        kept = client.pids[0]
        nvml.set(IDLE)
    finally:
        nvml.heal()
    assert ask(client, "events") == {"events": [], "supported": True}
    assert sweep(client)["gpus"][0]["utilization_percent"] == 0
    assert kept in client.pids


def test_a_hang_at_the_start_is_one_process(nvml: FakeNvml, client: NvmlClient) -> None:
    """FACT: however often one asks, a library that does not start has one process."""
    nvml.do("hang", "nvmlInit")
    for _ in range(3):
        assert trouble(client, SOON) == "cannot read any GPU: no answer in time"
    assert len(client.pids) == 1


def test_a_hang_after_some_calls_is_a_hang(nvml: FakeNvml, client: NvmlClient) -> None:
    """FACT: a driver that hangs at the second of two cards takes the request with it."""
    nvml.cards = 2
    nvml.set({"1.do.nvmlDeviceGetPowerUsage": "hang", "1.after.nvmlDeviceGetPowerUsage": 1})
    assert len(sweep(client)["gpus"]) == 2
    assert trouble(client, SOON) == "cannot read any GPU: no answer in time"


def test_threads_take_turns(client: NvmlClient) -> None:
    """FACT: requests of many threads are answered by one worker, each with its own answer."""
    found: list[set[str]] = []

    def many(request: str) -> None:
        found.extend(set(ask(client, request)) for _ in range(10))

    kinds = {
        "cards": {"gpus", "driver", "cuda"},
        "processes": {"gpus", "driver"},
        "events": {"events"},
    }
    threads = [threading.Thread(target=many, args=(kind,)) for kind in kinds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    kinds["events"].add("supported")
    assert [found.count(keys) for keys in kinds.values()] == [10, 10, 10]
    assert len(client.pids) == 1


def test_a_crash_costs_one_sweep(nvml: FakeNvml, client: NvmlClient) -> None:
    """FACT: after the library took the worker down, the next sweep has a new one."""
    sweep(client)
    nvml.do("crash", "nvmlDeviceGetUUID")
    assert trouble(client) == "cannot read any GPU: the NVML worker died"
    assert client.pids == ()
    nvml.heal()
    assert len(sweep(client)["gpus"]) == 1


def test_a_killed_worker_is_replaced(client: NvmlClient) -> None:
    """FACT: a worker that somebody killed between two sweeps costs at most one of them."""
    sweep(client)
    os.kill(client.pids[0], signal.SIGKILL)
    until(lambda: not client.pids)
    assert len(sweep(client)["gpus"]) == 1


def ask(client: NvmlClient, request: str, patience: float = PATIENCE) -> dict[str, Any]:
    """The answer to a request that must be answered."""
    return client.ask(request, time.monotonic() + patience)


def counted(folder: Path) -> tuple[tuple[str, ...], Path]:
    """A worker's command that leaves a line in the file for every start."""
    starts = folder / "starts"
    starts.touch()
    return ("/bin/sh", "-c", f'echo >> "{starts}"; exec "$@"', "sh", *WORKER), starts


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        ("error.nvmlInit", 12, "library not found"),
        ("error.nvmlInit", fake_nvml.NOT_LOADED, "driver not loaded"),
        ("error.nvmlInit", fake_nvml.VERSIONS_DIFFER, "library and driver versions differ"),
        ("error.nvmlDeviceGetCount", 999, "unknown error"),
        ("error.nvmlInit", 77, "error 77"),
        ("do.nvmlInit", "crash", "the NVML worker dies at once"),
    ],
)
def test_without_a_driver_it_rests(nvml: FakeNvml, line: str, code: object, words: str) -> None:
    """FACT: one clear error, no process, and no new start while the rest lasts."""
    command, starts = counted(nvml.folder)
    nvml.set({line: code})
    with asking(nvml.environment, command) as client:
        for _ in range(3):
            assert trouble(client) == f"cannot read any GPU: {words}"
            assert client.pids == ()
        assert len(starts.read_text()) == 1


def test_without_a_library_it_rests(tmp_path: Path) -> None:
    """FACT: a machine that never had a GPU pays for one start of the worker."""
    with contextlib.suppress(OSError):
        ctypes.CDLL(fake_nvml.LIBRARY)
        pytest.skip("this machine has the library")
    command, starts = counted(tmp_path)
    with asking({}, command) as client:
        for _ in range(2):
            assert trouble(client) == "cannot read any GPU: library not found"
            assert client.pids == ()
        assert len(starts.read_text()) == 1


def test_a_driver_that_appears_is_found(nvml: FakeNvml) -> None:
    """FACT: after the rest it looks again."""
    nvml.set({"error.nvmlInit": fake_nvml.NOT_LOADED})
    with asking(nvml.environment, retry=0.0) as client:
        trouble(client)
        nvml.heal()
        assert len(sweep(client)["gpus"]) == 1


def test_a_worker_that_cannot_start_is_one_line(tmp_path: Path) -> None:
    """FACT: a missing interpreter is words, not a traceback."""
    with asking({}, (str(tmp_path / "none"),)) as client:
        assert trouble(client) == "cannot start the NVML worker: No such file or directory"


@pytest.mark.parametrize("noise", ["echo []", "echo {", "printf x", "yes | tr -d '\\n'", "exit 3"])
def test_a_worker_that_talks_nonsense_is_ended(noise: str) -> None:
    """FACT: what is no JSON object in a line of bounded length counts as death."""
    with asking({}, ("/bin/sh", "-c", f"read line; {noise}")) as client:
        assert trouble(client) == "cannot read any GPU: the NVML worker dies at once"
        assert client.pids == ()


def test_files_where_it_is_started_do_not_matter(tmp_path: Path, nvml: FakeNvml) -> None:
    """FACT: a module in the working directory is not taken for one of the standard library."""
    for name in ("json", "pynvml", "probes"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(1)")
    command = ("/bin/sh", "-c", 'cd "$0" && exec "$@"', str(tmp_path), *WORKER)
    with asking(nvml.environment, command) as client:
        assert len(sweep(client)["gpus"]) == 1


def test_the_worker_ends_with_its_parent(nvml: FakeNvml) -> None:
    """FACT: nobody has to end the worker of a parent that died without a word."""
    environment = {**os.environ, **nvml.environment}
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        cwd=ROOT,
    )
    try:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        assert alive(worker)
    finally:
        parent.communicate()
    until(lambda: not alive(worker))


def test_ctrl_c_is_for_the_parent(client: NvmlClient) -> None:
    """FACT: SIGINT, which a terminal sends to all, does not end the worker."""
    sweep(client)
    before = client.pids
    os.kill(before[0], signal.SIGINT)
    sweep(client)
    assert client.pids == before


def test_closing_is_for_good(client: NvmlClient) -> None:
    """FACT: after close the worker is gone and nothing is started any more."""
    sweep(client)
    client.close()
    assert client.pids == ()
    assert trouble(client) == "cannot read any GPU: there is no time left"
    assert client.pids == ()


def test_closing_ends_a_sweep_under_way(nvml: FakeNvml, client: NvmlClient) -> None:
    """FACT: a thread that waits for a hanging driver is free when the client closes."""
    sweep(client)
    nvml.do("hang")
    found: list[str] = []
    waiting = threading.Thread(target=lambda: found.append(trouble(client, 600)))
    waiting.start()
    client.close()
    waiting.join(PATIENCE)
    assert not waiting.is_alive()
    assert len(found) == 1
    until(lambda: not client.pids)
