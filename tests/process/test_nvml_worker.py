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

import pytest

from probes._nvml.client import WORKER, NvmlClient
from probes.gpu import Gpu
from tests.support import fake_nvml
from tests.support.fake_nvml import IDLE, LOST, FakeNvml, asking, sweep, trouble
from tests.support.simulated import PATIENCE, ROOT, alive, stat_fields, until
from watchdog.core.model import Sampled, Unread

SOON = 0.3
"""Seconds given to a sweep that will hang anyway."""

# A parent of a worker that tells its pid and dies without a word when its stdin ends.
PARENT = """
import os, sys, time
from probes._nvml.client import NvmlClient
client = NvmlClient()
client.sweep(time.monotonic() + 60)
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


def read(client: NvmlClient) -> list[Sampled | Unread]:
    """What the probe makes of one sweep."""
    return list(Gpu(client).read(time.monotonic() + 30))


def test_the_recorded_card_reads_as_it_was(client: NvmlClient) -> None:
    """FACT: the H200's recording comes out as it went in, in base units."""
    (card,) = sweep(client)["gpus"]
    assert card == {
        "index": 0,
        "errors": {},
        "uuid": fake_nvml.uuid(0),
        "name": "NVIDIA H200",
        "utilization_percent": 99,
        "memory_utilization_percent": 24,
        "memory_used_bytes": 21060452352,
        "memory_total_bytes": 150754820096,
        "temperature_celsius": 53,
        "power_watts": 218.921,
        "sm_clock_hertz": 1_545_000_000,
        "processes": [[460, 21051211776]],
    }


def test_every_sweep_looks_again(nvml: FakeNvml, client: NvmlClient) -> None:
    """FACT: what changed since the last sweep is in the next."""
    assert sweep(client)["gpus"][0]["utilization_percent"] == 99
    nvml.set(IDLE)
    (card,) = sweep(client)["gpus"]
    assert card["utilization_percent"] == 0
    assert card["processes"] == []


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


def test_no_third_worker_is_started_while_two_hang(nvml: FakeNvml, client: NvmlClient) -> None:
    """FACT: two workers that do not go away are all that a dead driver gets, until they do."""
    sweep(client)
    gone = "cannot read any GPU: the driver does not respond"
    nvml.do("stuck")
    try:
        until(lambda: trouble(client, SOON) == gone)
        both = client.pids
        assert [state(pid) for pid in both] == ["D", "D"]
        assert trouble(client) == gone
        assert client.pids == both
    finally:
        nvml.heal()
    until(lambda: not client.pids)
    assert len(sweep(client)["gpus"]) == 1


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


def counted(folder: Path) -> tuple[tuple[str, ...], Path]:
    """A worker's command that leaves a line in the file for every start."""
    starts = folder / "starts"
    starts.touch()
    return ("/bin/sh", "-c", f'echo >> "{starts}"; exec "$@"', "sh", *WORKER), starts


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
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


def test_a_lost_card_hides_no_other(nvml: FakeNvml, client: NvmlClient) -> None:
    """FACT: the card that fell off the bus is unread, by index, and the others are sampled."""
    nvml.cards = 3
    nvml.set({"1.lost": LOST})
    found = read(client)
    unread = [one for one in found if isinstance(one, Unread)]
    assert [one.error for one in unread] == ["cannot read GPU 1: GPU is lost"]
    sampled = {dict(one.labels)["gpu"] for one in found if isinstance(one, Sampled)}
    assert sampled == {"0", "2"}


def test_a_lost_card_is_who_it_was(nvml: FakeNvml, client: NvmlClient) -> None:
    """FACT: a card that is lost between two sweeps is unread under its UUID."""
    sweep(client)
    nvml.set(lost=LOST)
    (unread,) = read(client)
    assert isinstance(unread, Unread)
    assert str(unread.subject) == f"gpu/{fake_nvml.uuid(0)}"


def test_a_card_without_a_handle_hides_no_other(nvml: FakeNvml, client: NvmlClient) -> None:
    """FACT: a card that may not be opened is unread, the other is sampled."""
    nvml.cards = 2
    nvml.set({"0.error.nvmlDeviceGetHandleByIndex": 4})
    unread, *others = read(client)
    assert isinstance(unread, Unread)
    assert unread.error == "cannot read GPU 0: no permission"
    assert {dict(one.labels)["gpu"] for one in others if isinstance(one, Sampled)} == {"1"}


FUNCTIONS = {
    "nvmlDeviceGetUtilizationRates": "utilization_percent",
    "nvmlDeviceGetMemoryInfo": "memory_used_bytes",
    "nvmlDeviceGetTemperature": "temperature_celsius",
    "nvmlDeviceGetPowerUsage": "power_watts",
    "nvmlDeviceGetClockInfo": "sm_clock_hertz",
}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_what_a_card_cannot_do_is_absent(nvml: FakeNvml, client: NvmlClient, function: str) -> None:
    """FACT: "not supported" is no error: that sample is missing, and all others are there."""
    nvml.set({f"error.{function}": fake_nvml.NOT_SUPPORTED})
    for _ in range(2):
        found = read(client)
        assert all(isinstance(one, Sampled) for one in found)
        names = {one.sample for one in found if isinstance(one, Sampled)}
        assert FUNCTIONS[function] not in names
        assert len(names & set(FUNCTIONS.values())) == len(FUNCTIONS) - 1


def test_a_failing_reading_is_unread_until_it_works(nvml: FakeNvml, client: NvmlClient) -> None:
    """FACT: another error than "not supported" is said, and asked again at the next sweep."""
    nvml.set({"error.nvmlDeviceGetPowerUsage": 999})
    errors = [one.error for one in read(client) if isinstance(one, Unread)]
    assert errors == ["cannot read GPU 0: unknown error"]
    nvml.heal()
    assert sweep(client)["gpus"][0]["power_watts"] == 218.921


def test_versions_are_no_condition(nvml: FakeNvml, client: NvmlClient) -> None:
    """FACT: a driver that does not tell its versions is read all the same."""
    nvml.set({"error.nvmlSystemGetDriverVersion": 999, "error.nvmlSystemGetCudaDriverVersion": 13})
    answer = sweep(client)
    assert "driver" not in answer
    assert len(answer["gpus"]) == 1


def test_odd_processes_are_told_as_they_are(nvml: FakeNvml, client: NvmlClient) -> None:
    """FACT: pids of other namespaces come through, and unknown memory is None, not a number."""
    nvml.set(process=["0 1024", "4294967295 2048", "7 -", "7 -", *["8 4096"] * 20])
    (card,) = sweep(client)["gpus"]
    assert card["processes"] == [[0, 1024], [4294967295, 2048], [7, None], [8, 4096]]


def test_no_cards_is_no_error(nvml: FakeNvml, client: NvmlClient) -> None:
    """FACT: a driver without a card is an empty sweep."""
    nvml.cards = 0
    nvml.write()
    assert sweep(client)["gpus"] == []


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
