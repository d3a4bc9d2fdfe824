"""The probe of GPU memory by owner: sums, gaps in them, and names; real processes as holders."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from probes._nvml.client import CardIdentity, NvmlHungError
from probes._nvml.namespaces import FIRST_PID_NAMESPACE
from probes.gpu_processes import PROBE, GpuProcesses
from tests.support import fake_nvml
from tests.support.fake_nvml import LOST, asking
from watchdog import procfs
from watchdog.contracts import EngineTarget, Owned, Owner, ProbeError
from watchdog.core.model import Event, ReadingTaken, Sampled, Unread, Value
from watchdog.daemon.box import EngineBox
from watchdog.runner import ProbeRun
from watchdog.supervisor.memory_ledger import MemoryLedger

GIB = 1 << 30
UUID = "GPU-0"


@dataclass
class Said:
    """A client whose answer is given; counts what it was asked."""

    said: list[dict[str, Any]]
    asked: list[str] = field(default_factory=list)
    closed: bool = False
    silent: bool = False
    driver: str | None = "580.159.04"
    trouble: str = ""
    unanswered_since: float | None = None
    cards: tuple[CardIdentity, ...] = ()

    def ask(self, request: str, deadline: float) -> dict[str, Any]:
        """The answer, when there is time for one."""
        assert deadline > time.monotonic()
        if self.silent:
            raise NvmlHungError("cannot read any GPU: no answer in time")
        self.asked.append(request)
        versions = {} if self.driver is None else {"driver": self.driver}
        return {**versions, "gpus": self.said}

    def close(self) -> None:
        """Given back."""
        self.closed = True


@dataclass
class Owners:
    """A box that knows the owners by pid, and nobody else."""

    state_dir = ""

    of: Mapping[int, Owned] = field(default_factory=dict)
    asked: list[int] = field(default_factory=list)

    @staticmethod
    def engines() -> tuple[EngineTarget, ...]:
        """None is asked for."""
        return ()

    def owner(self, pid: int) -> Owned:
        """As given."""
        self.asked.append(pid)
        return self.of.get(pid, Owned(Owner.UNKNOWN))


def card(
    processes: Sequence[Sequence[int | None]] | None, used: int | None = 100 * GIB, **more: object
) -> dict[str, Any]:
    """One card's answer; processes are pid and bytes, or with instance ids."""
    said: dict[str, Any] = {"index": 0, "uuid": UUID, "bus_id": "", "errors": {}, "mig": False}
    if used is not None:
        said |= {"memory_used_bytes": used, "memory_total_bytes": 140 * GIB}
    if processes is not None:
        said["processes"] = [[*one, None, None][:4] for one in processes]
    return said | more


Found = dict[tuple[str, ...], Value]


def read(said: dict[str, Any], owners: Mapping[int, Owned] | None = None) -> Found:
    """The samples by name and labels behind the card's own; checked against the declaration."""
    return samples(GpuProcesses(Said([said]), Owners(owners or {})))


def samples(probe: GpuProcesses) -> Found:
    """One read through the runner, which refuses what is not declared."""
    posted: list[Event] = []
    run = ProbeRun(PROBE, probe, None, None, posted.append)
    run.run()
    run.close()
    (event,) = posted
    assert isinstance(event, ReadingTaken)
    assert event.reading.error is None
    assert not event.reading.unread
    assert {str(one.subject) for one in event.reading.samples} == {f"gpu/{UUID}"}
    return {
        (one.sample, *(value for _, value in one.labels[2:])): one.value
        for one in event.reading.samples
    }


OWNERS = {
    1: Owned(Owner.ENGINE, "main", "VLLM::Worker"),
    2: Owned(Owner.ENGINE, "main", "VLLM::Worker"),
    3: Owned(Owner.ENGINE, "other", "VLLM::Worker"),
    4: Owned(Owner.ORPHAN, "main", "python3"),
    5: Owned(Owner.FOREIGN, "", "train"),
}


def test_memory_is_summed_by_owner() -> None:
    """FACT: every owner has its sum, every engine its own, and the rest is unaccounted."""
    listed = [(1, 10 * GIB), (2, 20 * GIB), (3, 5 * GIB), (4, 8 * GIB), (5, 2 * GIB), (6, GIB)]
    found = read(card(listed), OWNERS)
    assert found["memory_bytes", "engine"] == 35 * GIB
    assert found["memory_bytes", "orphan"] == 8 * GIB
    assert found["memory_bytes", "foreign"] == 2 * GIB
    assert found["memory_bytes", "unknown"] == GIB
    assert found["engine_memory_bytes", "main"] == 30 * GIB
    assert found["engine_memory_bytes", "other"] == 5 * GIB
    assert found["processes",] == 6
    assert found["complete",] is True
    assert found["unaccounted_bytes",] == 54 * GIB
    assert found["strangers",] == "pid 5 (train) 2.0 GiB"
    assert found["orphans",] == "pid 4 (python3) 8.0 GiB"


def test_nobody_is_zero_and_not_nothing() -> None:
    """FACT: an idle card has all four owners at 0, and no engine."""
    found = read(card([], used=0))
    assert {key: found[key] for key in found if key[0].endswith("memory_bytes")} == {
        ("memory_bytes", owner.value): 0 for owner in Owner
    }
    assert found["unaccounted_bytes",] == 0
    assert found["strangers",] == found["orphans",] == ""


def test_a_process_listed_twice_counts_once() -> None:
    """FACT: the same pid in the same instance is one process, with the memory that is known."""
    found = read(card([(5, GIB), (5, GIB), (5, None)]), OWNERS)
    assert found["memory_bytes", "foreign"] == GIB
    assert found["processes",] == 1
    assert found["complete",] is True


def test_instances_of_a_card_add_up() -> None:
    """FACT: G14: with MIG a process in two instances has the memory of both."""
    listed = [(1, GIB, 1, 0), (1, 2 * GIB, 2, 0), (1, GIB, 1, 0)]
    found = read(card(listed, mig=True), OWNERS)
    assert found["engine_memory_bytes", "main"] == 3 * GIB
    assert found["processes",] == 1
    assert found["mig",] is True


def test_garbage_pids_are_counted_and_nothing_else() -> None:
    """FACT: G10: pids 0 and 4294967295 are nobody's: never asked about, never summed."""
    owners = Owners()
    garbage = card([(0, GIB), (0xFFFFFFFF, GIB)])
    found = samples(GpuProcesses(Said([garbage]), owners))
    assert found["invalid_pids",] == 2
    assert found["processes",] == 0
    assert found["memory_bytes", "unknown"] == 0
    assert found["unaccounted_bytes",] == 100 * GIB
    assert owners.asked == []


def test_one_unknown_size_makes_sums_partial() -> None:
    """FACT: what is known is exported, marked incomplete, and the rest is no number at all."""
    found = read(card([(1, GIB), (2, None), (5, None)]), OWNERS)
    assert found["complete",] is False
    assert found["memory_bytes", "engine"] == GIB
    assert ("memory_bytes", "foreign") not in found
    assert found["memory_bytes", "orphan"] == 0
    assert ("unaccounted_bytes",) not in found
    assert found["strangers",] == "pid 5 (train)"
    assert found["holder_unmeasured", "5", "train", "foreign", ""] is True


def test_an_engine_of_unknown_size_has_no_series() -> None:
    """FACT: not one known byte of an engine is absent, not 0."""
    found = read(card([(3, None)]), OWNERS)
    assert ("engine_memory_bytes", "other") not in found


def test_unknown_use_leaves_nothing_unaccounted() -> None:
    """FACT: a card that does not tell its use still tells whose processes are there."""
    found = read(card([(1, GIB)], used=None), OWNERS)
    assert ("unaccounted_bytes",) not in found
    assert found["memory_bytes", "engine"] == GIB


def test_shared_memory_is_not_less_than_nothing() -> None:
    """FACT: memory counted for two processes does not make the rest negative."""
    assert read(card([(1, 80 * GIB), (2, 80 * GIB)]), OWNERS)["unaccounted_bytes",] == 0


def test_many_strangers_are_named_by_size_and_counted() -> None:
    """FACT: the five largest are named, the others counted."""
    owners = {pid: Owned(Owner.FOREIGN, "", "a\nb") for pid in range(10, 17)}
    found = read(card([(pid, pid * GIB) for pid in owners]), owners)
    words = str(found["strangers",]).split("; ")
    assert words[0] == "pid 16 (a?b) 16.0 GiB"
    assert words[4:] == ["pid 12 (a?b) 12.0 GiB", "and 2 more"]


def test_every_holder_is_told_for_the_gate() -> None:
    """FACT: each process is there by itself, and no such sample becomes a metric."""
    found = read(card([(4, 8 * GIB)]), OWNERS)
    assert found["holder_bytes", "4", "python3", "orphan", "main"] == 8 * GIB
    inner = {spec.name for spec in PROBE.samples if not spec.exported}
    assert {"holder_bytes", "holder_unmeasured", "memory_used_bytes"} <= inner


def test_a_card_that_fails_hides_no_other() -> None:
    """FACT: a lost card is unread under its uuid, or its index, and the others are there."""
    lost = {"index": 1, "uuid": "GPU-1", "errors": {"": "GPU is lost"}}
    never = {"index": 2, "errors": {"": "no permission"}}
    probe = GpuProcesses(Said([lost, never, card([])]), Owners())
    found = list(probe.read(time.monotonic() + 5))
    unread = {str(one.subject): one.error for one in found if isinstance(one, Unread)}
    assert unread == {
        "gpu/GPU-1": "cannot read the processes of GPU 1: GPU is lost",
        "gpu/index-2": "cannot read the processes of GPU 2: no permission",
    }
    assert {str(one.subject) for one in found if isinstance(one, Sampled)} == {f"gpu/{UUID}"}


def test_an_unreadable_list_is_not_an_empty_one() -> None:
    """FACT: without a list there is no sum, no count and no claim."""
    said = card(None, errors={"processes": "unknown error"})
    (one,) = GpuProcesses(Said([said]), Owners()).read(time.monotonic() + 5)
    assert isinstance(one, Unread)


def test_a_silent_driver_is_one_error() -> None:
    """FACT: the words of the client are the probe's, and closing gives the client back."""
    client = Said([], silent=True)
    probe = GpuProcesses(client, Owners())
    with pytest.raises(ProbeError, match="no answer in time"):
        list(probe.read(time.monotonic() + 5))
    probe.close()
    assert client.closed


def test_owners_are_asked_once_a_look() -> None:
    """FACT: a process on eight cards costs one question."""
    owners = Owners()
    client = Said([card([(7, GIB)]) | {"index": index} for index in range(8)])
    list(GpuProcesses(client, owners).read(time.monotonic() + 5))
    assert owners.asked == [7]
    assert client.asked == ["processes"]


@contextlib.contextmanager
def holder() -> Iterator[int]:
    """A process that the card will list; gone afterwards."""
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as process:
        try:
            yield process.pid
        finally:
            process.kill()


def test_a_real_process_is_named_while_it_lives() -> None:
    """FACT: G2, G16: a foreign holder is named from /proc; one out of sight is unknown."""
    box = EngineBox({}, MemoryLedger())
    with holder() as pid:
        comm = procfs.stat(pid)
        assert comm is not None
        client = Said([card([(pid, 3 * GIB)])])
        found = samples(GpuProcesses(client, box))
        assert str(found["strangers",]).startswith(f"pid {pid} (")
        assert found["memory_bytes", "foreign"] == 3 * GIB
    found = samples(GpuProcesses(client, box))
    assert found["memory_bytes", "unknown"] == 3 * GIB
    assert found["strangers",] == found["orphans",] == ""


@pytest.mark.parametrize(
    ("driver", "namespace", "ours"),
    [
        ("535.104.05", "pid:[4026532000]", False),
        ("470.256.02", "pid:[4026532000]", False),
        (None, "pid:[4026532000]", False),
        ("what", "pid:[4026532000]", False),
        ("535.104.05", "", False),
        ("535.113.01", "pid:[4026532000]", True),
        ("580.159.04", "", True),
        ("535.104.05", FIRST_PID_NAMESPACE, True),
        (None, FIRST_PID_NAMESPACE, True),
    ],
)
def test_a_pid_of_elsewhere_is_nobody(driver: str | None, namespace: str, *, ours: bool) -> None:
    """FACT: in a container an old driver lists the host's pids, which mean nobody here."""
    owners = Owners(OWNERS)
    listed = card([(1, GIB), (4, GIB), (5, GIB)])
    found = samples(GpuProcesses(Said([listed], driver=driver), owners, lambda: namespace))
    assert found["memory_bytes", "unknown"] == (0 if ours else 3 * GIB)
    assert bool(found["strangers",]) is bool(found["orphans",]) is ours
    assert ("engine_memory_bytes", "main") in found if ours else owners.asked == []


def test_it_reads_through_the_real_worker(tmp_path: Path) -> None:
    """FACT: G10, G14: garbage, gaps and instances come through NVML as they come from a list."""
    nvml = fake_nvml.build(tmp_path)
    with holder() as pid, asking(nvml.environment) as client:
        listed = [f"{pid} {GIB} 1 0", f"{pid} {GIB} 2 0", f"{pid} {GIB} 1 0"]
        nvml.set(process=[*listed, "0 1024", "4294967295 2048"], memory_used=5 * GIB)
        probe = GpuProcesses(client, EngineBox({}, MemoryLedger()))
        found = real(probe)
        assert found["memory_bytes", "foreign"] == 2 * GIB
        assert found["processes",] == 1
        assert found["invalid_pids",] == 2
        assert found["complete",] is True
        assert found["unaccounted_bytes",] == 3 * GIB
        assert found["memory_total_bytes",] == nvml.lines["memory_total"]
        nvml.set(process=[f"{pid} -"])
        assert real(probe)["complete",] is False
        nvml.set(lost=LOST)
        (one,) = probe.read(time.monotonic() + 30)
        assert isinstance(one, Unread)
        assert one.error.startswith("cannot read the processes of GPU 0: GPU is lost")


def real(probe: GpuProcesses) -> Found:
    """One read of one card that answers."""
    return {
        (one.sample, *(value for _, value in one.labels[2:])): one.value
        for one in probe.read(time.monotonic() + 30)
        if isinstance(one, Sampled)
    }
