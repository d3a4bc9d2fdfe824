"""Records of the kernel's log that no kernel writes, through the device's own door."""

from __future__ import annotations

import os

from hypothesis import given
from hypothesis import strategies as st

from probes.oom import PROBE as OOM
from probes.oom import Oom
from probes.oom import Settings as OomSettings
from tests.fuzz.budget import mutated, times
from tests.support.engines import Engines
from tests.support.xids import CLASSES, FAULT, desk, packets
from watchdog.core.model import Event, ReadingTaken
from watchdog.runner import ProbeRun

XIDS = tuple(
    f"3,{number},5,-;{text}\n SUBSYSTEM=pci\n DEVICE=+pci:0000:00:06.0\n".encode()
    for number, text in enumerate(
        (
            FAULT,
            "NVRM: Xid (PCI:0000:00:06 GPU-I:05 GPU-CI:01): 43, pid='<unknown>', name=<unknown>",
            "NVRM: Xid (PCI:00000001:0a:1f.0): 154, GPU recovery action changed from 0x0 to 0x2",
            "NVRM: GPU 0000:00:06.0: GPU has fallen off the bus.",
            "NVRM: The NVIDIA GPU 0000:41:00.0",
            "NVRM: (PCI ID: 10de:2335) installed in this system has",
            "NVRM: fallen off the bus and is not responding to commands.",
        )
    )
)
KILLS = tuple(
    f"6,{number},5,-;{text}".encode()
    for number, text in enumerate(
        (
            "memory: usage 1048576kB, limit 1048576kB, failcnt 30",
            (
                "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,"
                "oom_memcg=/box,task_memcg=/box,task=python3,pid=4242,uid=0"
            ),
            (
                "Memory cgroup out of memory: Killed process 4242 (python3) total-vm:9kB, "
                "anon-rss:7kB, file-rss:0kB, shmem-rss:1kB, UID:0 pgtables:1kB oom_score_adj:0"
            ),
            "Out of memory: Killed process 1 ((sd-pam)) total-vm:9kB, anon-rss:7kB, file-rss:0kB",
        )
    )
)
RECORD = 4096
"""Bytes that a pipe hands out in one piece."""


def records(seeds: tuple[bytes, ...]) -> st.SearchStrategy[list[bytes]]:
    """Some, each with what a kernel's record has at least: a byte, and no more than it can."""
    one = (mutated(seeds) | st.binary(max_size=60)).filter(bool).map(lambda data: data[:RECORD])
    return st.lists(one, max_size=6)


@times(250)
@given(noise=records(XIDS + KILLS), after=st.integers(1, 1 << 20))
def test_fuzz_xids(noise: list[bytes], after: int) -> None:
    """FACT: no record ends the probe or hides the Xid that comes after it."""
    with desk() as at:
        for record in noise:
            os.write(at.sink, record)
        before = at.read()
        at.clock.now += 100
        at.says(f"NVRM: Xid (PCI:0000:00:07): 48, pid={after}, name=x, DBE")
        found = at.read()
    key = ("gpu/GPU-1", "errors", "1", "GPU-1", "48")
    assert found[key] == int(str(before.get(key, 0))) + 1
    for (_, sample, *_labels), value in found.items():
        if sample in {"last", "engine_last"}:
            assert str(value).isprintable()
            assert len(str(value)) <= 200
        if sample in {"errors", "class_errors"}:
            assert 0 <= int(str(value)) <= len(noise) + 1
    assert {key[-1] for key in found if key[1] == "class_errors"} == set(CLASSES)


@times(200)
@given(noise=records(KILLS + XIDS))
def test_fuzz_kills(noise: list[bytes]) -> None:
    """FACT: no record ends the probe or hides the kill that comes after it."""
    posted: list[Event] = []
    with packets() as (path, sink):
        probe = Oom(OomSettings(path), Engines())
        try:
            for record in (*noise, *KILLS[1:3]):
                os.write(sink, record)
            ProbeRun(OOM, probe, None, None, posted.append).run()
        finally:
            probe.close()
    (event,) = posted
    assert isinstance(event, ReadingTaken)
    assert event.reading.error is None
    (last,) = [one.value for one in event.reading.samples if one.sample == "last"]
    assert str(last).startswith("python3 (pid 4242) in ")
