"""The probe of Xids: two sources, counts by card and engine, and what it says without a source."""

from __future__ import annotations

import fcntl
import time
from pathlib import Path

import pytest

from probes._nvml.client import NvmlHungError, NvmlUnavailableError
from probes.xid import Settings, Surroundings, XidProbe
from tests.support import fake_nvml
from tests.support.engines import Engines, engines
from tests.support.fake_nvml import asking
from tests.support.simulated import until
from tests.support.xids import (
    CLASSES,
    ELSEWHERE,
    ENGINE,
    FAULT,
    GPU0,
    GPU1,
    NO_CARDS,
    NO_DRIVER,
    TWO,
    Found,
    Told,
    classes,
    desk,
)
from watchdog.contracts import Owned, Owner, ProcessInfo
from watchdog.core.model import Sampled, Value

LONG = 200
"""Records that need more than one look at the log."""
SENTENCE = (
    "Xid 31 (application) on GPU 0, process 1796 (oob): MMU Fault: ENGINE GRAPHICS GPC1 faulted"
)


def source(found: Found) -> tuple[Value, Value]:
    """The source and its trouble."""
    return found["host/host", "source"], found["host/host", "source_trouble"]


def test_zeros_from_the_first_reading() -> None:
    """FACT: before any Xid every card and engine has a zero of each class, and nothing else."""
    with desk(fresh=True) as at:
        found = at.read()
        assert classes(found, *GPU0) == classes(found, *GPU1) == classes(found, *ENGINE) == {}
        assert source(found) == ("kmsg+nvml", "")
        assert len(found) == 3 * len(CLASSES) + 2


def test_an_xid_of_an_engine() -> None:
    """FACT: a line is counted by number and class, for its card and its process's engine."""
    box = Engines(owners={1796: Owned(Owner.ENGINE, "main", "oob")})
    with desk(box=box) as at:
        at.says(FAULT)
        for _ in range(2):
            found = at.read()
            assert found["gpu/GPU-0", "errors", "0", "GPU-0", "31"] == 1
            assert classes(found, *GPU0) == classes(found, *ENGINE) == {"application": 1}
            assert classes(found, *GPU1) == {}
            assert found["gpu/GPU-0", "last", "0", "GPU-0"] == SENTENCE
            assert found["engine/main", "engine_last", "main"] == SENTENCE


@pytest.mark.parametrize("owner", [Owner.FOREIGN, Owner.UNKNOWN])
def test_an_xid_of_somebody_else(owner: Owner) -> None:
    """FACT: the process of a stranger is the card's matter and no engine's."""
    with desk(box=Engines(owners={1796: Owned(owner)})) as at:
        at.says(FAULT)
        found = at.read()
        assert classes(found, *GPU0) == {"application": 1}
        assert classes(found, *ENGINE) == {}
        assert ("engine/main", "engine_last", "main") not in found


def test_an_orphan_is_its_engines() -> None:
    """FACT: a process that an earlier start left behind counts for its engine."""
    with desk(box=Engines(owners={1796: Owned(Owner.ORPHAN, "main")})) as at:
        at.says(FAULT)
        assert classes(at.read(), *ENGINE) == {"application": 1}


def test_a_process_that_is_gone_already() -> None:
    """FACT: a process that its Xid ended is still known for a while, and then is not."""
    process = ProcessInfo(1796, 1, 1, 1, "S", "oob", cpu_seconds=0.0, rss_bytes=0)
    with desk() as at:
        (target,) = at.box.targets
        target.living = (process,)
        at.read()
        target.living = ()
        at.says(FAULT)
        assert classes(at.read(), *ENGINE) == {"application": 1}
        at.clock.now += 60
        at.says(FAULT)
        found = at.read()
        assert classes(found, *ENGINE) == {"application": 1}
        assert classes(found, *GPU0) == {"application": 2}


def test_another_pid_namespace() -> None:
    """FACT: in a container the kernel's pid is nobody's here: the only engine is meant, or none."""
    misled = Engines(owners={1796: Owned(Owner.FOREIGN)})
    with desk(box=misled, namespace=ELSEWHERE) as at:
        at.says(FAULT)
        assert classes(at.read(), *ENGINE) == {"application": 1}
    mistaken = Engines(engines("main", "other"), {1796: Owned(Owner.ENGINE, "other")})
    with desk(box=mistaken, namespace=ELSEWHERE) as at:
        at.says(FAULT)
        found = at.read()
        assert classes(found, *ENGINE) == {}
        assert classes(found, "engine/other", "engine_errors", "other") == {}


def test_user_space_is_not_believed() -> None:
    """FACT: the same words of any facility but the kernel's change nothing."""
    with desk() as at:
        before = at.read()
        at.says(FAULT, facility=1)
        at.says(FAULT, facility=3)
        assert at.read() == before


def test_both_sources_count_once() -> None:
    """FACT: one fault that the log and NVML both tell is one, whichever comes first."""
    with desk() as at:
        at.says(FAULT)
        at.client.happens(31)
        at.read()
        at.read()
        assert classes(at.read(), *GPU0) == {"application": 1}
        at.clock.now += 60
        at.client.happens(31)
        at.read()
        at.says(FAULT)
        at.read()
        assert classes(at.read(), *GPU0) == {"application": 2}


def test_nvml_alone_is_counted_at_the_next_look() -> None:
    """FACT: an event that the log does not tell of counts all the same, with its instance."""
    with desk() as at:
        at.client.happens(94, gi=5, ci=1)
        assert classes(at.read(), *GPU0) == {}
        found = at.read()
        assert classes(found, *GPU0) == {"application": 1}
        assert classes(found, *ENGINE) == {}
        assert found["gpu/GPU-0", "last", "0", "GPU-0"] == (
            "Xid 94 (application) on GPU 0 (MIG 5/1)"
        )


@pytest.mark.parametrize("xid", [0, -1, None, "31"])
def test_events_that_are_none(xid: object) -> None:
    """FACT: an event without a number is no Xid."""
    with desk() as at:
        before = at.read()
        at.client.happens(xid)
        assert at.read() == at.read() == before


def test_a_lost_card() -> None:
    """FACT: a loss told in lines without an Xid, its Xid 79 and its event are one 79."""
    with desk() as at:
        at.says("NVRM: The NVIDIA GPU 0000:00:07.0")
        at.says("NVRM: (PCI ID: 10de:2335) installed in this system has")
        at.says("NVRM: fallen off the bus and is not responding to commands.")
        at.says("NVRM: Xid (PCI:0000:00:07): 79, pid='<unknown>', name=<unknown>, GPU has fallen")
        at.says("NVRM: GPU 0000:00:07.0: GPU has fallen off the bus.")
        at.client.happens(79, bus_id="0000:00:07.0")
        at.read()
        at.client.cards = TWO[:1]
        found = at.read()
        assert found["gpu/GPU-1", "errors", "1", "GPU-1", "79"] == 1
        assert classes(found, *GPU1) == {"reboot": 1}
        assert classes(found, *GPU0) == {}


@pytest.mark.parametrize(
    ("xid", "kind"),
    [
        *((xid, "reset") for xid in (48, 62, 64, 95, 119, 120, 140)),
        *((xid, "application") for xid in (13, 31, 43, 94)),
        *((79, "reboot"), (45, "ignored"), (74, "hardware"), (777, "hardware")),
    ],
)
def test_classes(xid: int, kind: str) -> None:
    """FACT: every Xid counts in the class of its number, an unknown one where somebody looks."""
    with desk() as at:
        at.says(f"NVRM: Xid (PCI:0000:00:06): {xid}, pid=1, name=x, words")
        assert classes(at.read(), *GPU0) == {kind: 1}


def test_a_storm() -> None:
    """FACT: thousands of lines of an ordinary end are drained at once and are one of a kind."""
    with desk() as at:
        for number in range(300):
            at.says(f"NVRM: Xid (PCI:0000:00:06): 45, pid=7, name=x, Ch {number:08x}")
            if number % 10 == 9:
                at.read()
                at.clock.now -= 1
        assert classes(at.read(), *GPU0) == {"ignored": 1}


def test_more_lines_than_one_batch() -> None:
    """FACT: one reading drains the whole log, whatever else stands in it."""
    with desk() as at:
        fcntl.fcntl(at.sink, fcntl.F_SETPIPE_SZ, 1 << 20)  # a page holds one record
        for _ in range(LONG):
            at.says("eth0: link up")
        at.says(FAULT)
        assert classes(at.read(), *GPU0) == {"application": 1}


def test_settings_move_a_number() -> None:
    """FACT: an Xid that the operator moved counts in its new class."""
    with desk(settings=Settings(classes={"31": "reset"})) as at:
        at.says(FAULT)
        assert classes(at.read(), *GPU0) == {"reset": 1}


def test_an_unreadable_log_is_not_a_log_without_xids(tmp_path: Path) -> None:
    """FACT: without the log NVML's events count at once, and the trouble is told."""
    trouble = "cannot read the kernel log: No such file or directory"
    with desk(settings=Settings(kmsg=str(tmp_path / "kmsg"))) as at:
        at.client.happens(31)
        found = at.read()
        assert source(found) == ("nvml", trouble)
        assert classes(found, *GPU0) == {"application": 1}


@pytest.mark.parametrize("hung", [False, True])
def test_without_nvml_the_log_is_enough(hung: bool) -> None:  # noqa: FBT001 - a parameter
    """FACT: a driver that is missing or hangs is no trouble while the log is read."""
    kind = NvmlHungError if hung else NvmlUnavailableError
    with desk(Told(error=kind("cannot read any GPU: no"))) as at:
        at.says(FAULT)
        found = at.read()
        assert source(found) == ("kmsg", "")
        assert classes(found, *GPU0) == {"application": 1}


def test_a_driver_without_events() -> None:
    """FACT: a driver that cannot tell of Xids is no source."""
    with desk(Told(supported=False)) as at:
        assert source(at.read()) == ("kmsg", "")


def test_neither_source(tmp_path: Path) -> None:
    """FACT: with no source at all there is one sentence for both, and not one count."""
    client = Told(error=NO_DRIVER)
    with desk(client, settings=Settings(kmsg=str(tmp_path / "kmsg"))) as at:
        found = at.read()
        assert source(found) == (
            "none",
            (
                "cannot read the kernel log: No such file or directory; "
                "cannot read any GPU: no driver"
            ),
        )
        assert len(found) == 2


def test_a_gap_in_the_log_is_told_once() -> None:
    """FACT: lines that were lost may have been Xids: the reading that finds the gap says so."""
    with desk() as at:
        at.says("one")
        at.read()
        at.says("two", skipped=3)
        words = "cannot read 3 lines of the kernel log: they are gone"
        assert source(at.read()) == ("kmsg+nvml", words)
        assert source(at.read()) == ("kmsg+nvml", "")


def test_nvml_gets_half_of_the_time() -> None:
    """FACT: a driver that hangs cannot use up the time of the reading."""
    with desk() as at:
        list(at.probe.read(time.monotonic() + 10))
        assert 0 < at.client.given <= 5


def test_it_gives_the_client_back() -> None:
    """FACT: closing gives the client back once."""
    with desk() as at:
        client = at.client
    assert client.closed == 1


def test_events_of_a_real_library(tmp_path: Path) -> None:
    """FACT: an event goes from the library through the worker into the counts of its card."""
    nvml = fake_nvml.build(tmp_path)
    nvml.cards = 2
    nvml.write()
    bare = Surroundings(gpus=NO_CARDS)
    with asking(nvml.environment) as client:
        client.ask("cards", time.monotonic() + 30)
        probe = XidProbe(Settings(kmsg=str(tmp_path / "kmsg")), Engines(), client, bare)

        def reset_errors() -> dict[str, Value]:
            seen = [s for s in probe.read(time.monotonic() + 30) if isinstance(s, Sampled)]
            told = [s for s in seen if ("class", "reset") in s.labels and s.value]
            return {str(s.subject): s.value for s in told}

        assert reset_errors() == {}
        nvml.xid(48, card=1)
        assert until(reset_errors) == {f"gpu/{fake_nvml.uuid(1)}": 1}
        probe.close()


def test_two_engines() -> None:
    """FACT: the fault of one engine's process is not the other's."""
    owners = {1796: Owned(Owner.ENGINE, "other")}
    with desk(box=Engines(engines("main", "other"), owners)) as at:
        at.says(FAULT)
        found = at.read()
        assert classes(found, *ENGINE) == {}
        assert classes(found, "engine/other", "engine_errors", "other") == {"application": 1}
