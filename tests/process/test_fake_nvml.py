"""The fake library is honest: through the real pynvml it answers as the recorded card did."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import fake_nvml
from tests.support.fake_nvml import LONG_PROCESSES, OLD_LIBRARY, RECORDINGS, FakeNvml

# What every script below begins with. `told` is a value or the code of an error.
PRELUDE = """
import json, sys
import pynvml as N

def plain(value):
    if isinstance(value, bytes): return value.decode()
    if isinstance(value, (list, tuple)): return [plain(one) for one in value]
    names = [one[0] for one in getattr(value, "_fields_", ())]
    names = names or list(getattr(value, "__dict__", ()))
    return {name: plain(getattr(value, name)) for name in names} if names else value

def told(function, *more):
    try: return plain(getattr(N, "nvml" + function)(*more))
    except N.NVMLError as error: return {"code": int(error.value)}

def field(card, one):
    found = N.nvmlDeviceGetFieldValues(card, [one])[0]
    value = found.value
    return {"ret": found.nvmlReturn, "type": found.valueType, "ui": value.uiVal,
            "ull": value.ullVal, "si": value.siVal, "d": value.dVal, "timed": found.timestamp > 0}

N.nvmlInit()
card = N.nvmlDeviceGetHandleByIndex(0)
"""

# Asks again what the recording has, under the names that it has there.
AGAIN = """
found = {"driver": told("SystemGetDriverVersion"), "count": told("DeviceGetCount"),
         "cuda": told("SystemGetCudaDriverVersion_v2")}
for name in ('Name UUID PciInfo UtilizationRates PowerUsage EnforcedPowerLimit PerformanceState '
    'CurrentClocksEventReasons SupportedClocksEventReasons CurrPcieLinkGeneration '
    'CurrPcieLinkWidth MaxPcieLinkGeneration MaxPcieLinkWidth MigMode EccMode RemappedRows '
    'ComputeRunningProcesses ComputeRunningProcesses_v3 MemoryInfo TotalEnergyConsumption '
    'PcieReplayCounter MarginTemperature').split():
    found[name] = told("DeviceGet" + name, card)
found["MemoryInfo_v2"] = told("DeviceGetMemoryInfo", card, N.nvmlMemory_v2)
found["Temperature"] = told("DeviceGetTemperature", card, 0)
for name in ("SHUTDOWN", "SLOWDOWN", "MEM_MAX", "GPU_MAX", "ACOUSTIC_CURR"):
    threshold = getattr(N, "NVML_TEMPERATURE_THRESHOLD_" + name)
    found["TempThreshold_" + name] = told("DeviceGetTemperatureThreshold", card, threshold)
for number, name in enumerate(("graphics", "sm", "mem", "video")):
    found["clock_" + name] = told("DeviceGetClockInfo", card, number)
    found["maxclock_" + name] = told("DeviceGetMaxClockInfo", card, number)
for policy in range(12):
    found[f"violation_{policy}"] = told("DeviceGetViolationStatus", card, policy)
for link in range(4):
    found[f"nvlink_{link}"] = told("DeviceGetNvLinkState", card, link)
for name in sys.argv[1].split():
    found["field_" + name] = field(card, int(name))
found["samples_gpu"] = len(told("DeviceGetSamples", card, 1, 0)[1])
events = N.nvmlEventSetCreate()
N.nvmlDeviceRegisterEvents(card, N.nvmlEventTypeXidCriticalError, events)
found["eventset"] = told("EventSetWait_v2", events, 5)
N.nvmlEventSetFree(events)
print(json.dumps(found))
"""

UNASKED = (
    "init_ms nvml_version GpuMaxPcieLinkGeneration PersistenceMode ComputeMode procutil "
    "GraphicsRunningProcesses RetiredPagesPendingStatus BAR1MemoryInfo Serial VbiosVersion "
    "IrqNum NumGpuCores CudaComputeCapability GpuFabricInfo GpmSupport getgpurecovery self_pid"
)
"""Recorded calls that nobody makes, so that the fake lacks them."""


@pytest.fixture
def nvml(tmp_path: Path) -> FakeNvml:
    """A loaded H200."""
    return fake_nvml.build(tmp_path)


def spoken(fake: FakeNvml, script: str, *argv: str) -> subprocess.Popen[str]:
    """A process that loads the fake and runs the script. Leaving its ``with`` waits for it."""
    return subprocess.Popen(
        [sys.executable, "-c", PRELUDE + script, *argv],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **fake.environment},
        text=True,
    )


def answer(fake: FakeNvml, script: str, *argv: str) -> Any:  # noqa: ANN401 - whatever it prints
    """What the script printed, which is JSON."""
    with spoken(fake, script, *argv) as process:
        out, _ = process.communicate()
    assert process.returncode == 0
    return json.loads(out)


def expected(recorded: dict[str, Any]) -> object:
    """A recorded call as ``told`` and ``field`` give it."""
    if "error" in recorded:
        return {"code": int(recorded["error"].rstrip(")").rpartition("(")[2])}
    value = recorded["value"]
    if isinstance(value, str) and value.startswith("{"):
        told = json.loads(value.replace("'", '"'))
        timed = told["ts"] > 0
        return {key: told[key] for key in ("ret", "type", "ui", "ull", "si", "d")} | {
            "timed": timed
        }
    return value


@pytest.mark.parametrize("load", RECORDINGS)
@pytest.mark.parametrize("latencies", [False, True])
def test_it_answers_as_recorded(nvml: FakeNvml, load: str, *, latencies: bool) -> None:
    """FACT: every call, field and error of the recording comes back through pynvml."""
    nvml.lines = {
        **fake_nvml.UNRECORDED,
        **fake_nvml.from_recording(RECORDINGS[load], latencies=latencies),
    }
    nvml.write()
    recording = json.loads(RECORDINGS[load].read_text())
    fields = [name.removeprefix("field_") for name in recording if name.startswith("field_")]
    found = answer(nvml, AGAIN, " ".join(fields))
    asked = {name: value for name, value in recording.items() if name not in UNASKED.split()}
    assert len(fields) > 30
    assert found == {name: expected(value) for name, value in asked.items()}


def test_the_idle_card_is_the_loaded_one_changed(nvml: FakeNvml) -> None:
    """FACT: LOADED with the changes of IDLE is the idle recording."""
    nvml.set(fake_nvml.IDLE)
    idle = fake_nvml.from_recording(RECORDINGS["idle"])
    assert "process" not in idle
    left = {key: value for key, value in nvml.lines.items() if value is not None}
    assert idle.items() <= left.items()
    assert "process" not in left


def test_a_latency_is_added_when_asked() -> None:
    """FACT: the recorded medians are lines of their own, and only on request."""
    slow = fake_nvml.from_recording(RECORDINGS["load"], latencies=True)
    quick = fake_nvml.from_recording(RECORDINGS["load"])
    assert slow["latency.nvmlDeviceGetTotalEnergyConsumption"] == 3581.7
    assert slow["latency.field.83"] == 5396.6
    assert not [key for key in quick if key.startswith("latency.")]
    assert quick.items() <= slow.items()


def test_an_old_library_lacks_what_is_new(tmp_path: Path) -> None:
    """FACT: the newer calls are not found (13), their older names answer."""
    found = answer(
        fake_nvml.build(tmp_path, OLD_LIBRARY),
        """
print(json.dumps([
    told("DeviceGetComputeRunningProcesses_v3", card),
    told("DeviceGetMemoryInfo", card, N.nvmlMemory_v2),
    told("DeviceGetCurrentClocksEventReasons", card),
    told("DeviceGetMarginTemperature", card),
    len(told("DeviceGetComputeRunningProcesses_v2", card)),
    told("DeviceGetMemoryInfo", card)["total"],
    told("DeviceGetCurrentClocksThrottleReasons", card),
    field(card, 230)["ret"],
]))""",
    )
    assert found == [{"code": 13}] * 4 + [1, 150754820096, 4, 0]


ROWS = """
print(json.dumps([
    [one["pid"] for one in told("DeviceGetComputeRunningProcesses_v3", card)],
    told("DeviceGetConfComputeMemSizeInfo", card) == {"code": 13},
    told("DeviceGetRunningProcessDetailList", card, N.nvmlProcessDetailList_v1, 0) == {"code": 13},
]))"""


def test_long_rows_are_told_by_what_is_missing(tmp_path: Path) -> None:
    """FACT: read as short rows the second process is garbage, as with an early R535."""
    fake = fake_nvml.build(tmp_path, LONG_PROCESSES)
    fake.set(process=["11 1024", "12 2048"])
    (first, second), *missing = answer(fake, ROWS)
    assert first == 11
    assert second != 12
    assert missing == [False, True]


def test_today_s_rows_are_short(nvml: FakeNvml) -> None:
    """FACT: a driver that has the list of details has the short rows."""
    nvml.set(process=["11 1024", "12 2048"])
    assert answer(nvml, ROWS) == [[11, 12], False, False]


def test_processes_may_be_odd(nvml: FakeNvml) -> None:
    """FACT: unknown memory, pids of nobody and MIG instances come as they were written."""
    nvml.set(process=["0 1", "4294967295 2", "7 -", "8 4 1 0"])
    found = answer(nvml, 'print(json.dumps(told("DeviceGetComputeRunningProcesses_v3", card)))')
    none = 0xFFFFFFFF
    assert [tuple(one.values()) for one in found] == [
        (0, 1, none, none),
        (none, 2, none, none),
        (7, None, none, none),
        (8, 4, 1, 0),
    ]


def test_an_error_can_begin_later(nvml: FakeNvml) -> None:
    """FACT: after N calls that go well the error comes, for that card and function alone."""
    nvml.set({"0.error.nvmlDeviceGetPowerUsage": 15, "after.nvmlDeviceGetPowerUsage": 2})
    script = 'print(json.dumps([told("DeviceGetPowerUsage", card) for _ in range(4)]))'
    assert answer(nvml, script) == [218921, 218921, {"code": 15}, {"code": 15}]


def test_one_card_can_differ(nvml: FakeNvml) -> None:
    """FACT: a line of one card goes before the line for all, also to say "not available"."""
    nvml.cards = 3
    nvml.set({"1.temperature": 90, "2.temperature": "-", "2.field.230": "0 1 2"})
    script = """
cards = [N.nvmlDeviceGetHandleByIndex(index) for index in range(3)]
print(json.dumps([[told("DeviceGetTemperature", card, 0), told("DeviceGetUUID", card),
    field(card, 230)["ui"], told("DeviceGetPciInfo", card)["busId"]] for card in cards]))"""
    assert answer(nvml, script) == [
        [53, fake_nvml.uuid(0), 0, "00000000:00:06.0"],
        [90, fake_nvml.uuid(1), 0, "00000000:00:07.0"],
        [{"code": 3}, fake_nvml.uuid(2), 2, "00000000:00:08.0"],
    ]


def test_mig_slots_are_empty_until_filled(nvml: FakeNvml) -> None:
    """FACT: an empty slot is "not found", a filled one is a handle with its own lines."""
    nvml.set({"0.mig_device.1": 40, "40.uuid": "MIG-1"})
    script = """
slots = range(told("DeviceGetMaxMigDeviceCount", card))
found = [told("DeviceGetMigDeviceHandleByIndex", card, slot) for slot in slots]
handle = N.nvmlDeviceGetMigDeviceHandleByIndex(card, 1)
print(json.dumps([len(slots), found[0], told("DeviceGetUUID", handle)]))"""
    assert answer(nvml, script) == [7, {"code": 6}, "MIG-1"]


LISTEN = """
events = N.nvmlEventSetCreate()
N.nvmlDeviceRegisterEvents(card, 8, events)
for line in sys.stdin:
    found = told("EventSetWait_v2", events, int(line))
    found.pop("device", None)
    print(json.dumps(found), flush=True)
"""


def test_an_event_is_told_once_to_who_listens(nvml: FakeNvml) -> None:
    """FACT: an Xid before the registration is lost, a later one comes once, and then nothing."""
    nvml.xid(13)
    with spoken(nvml, LISTEN) as listener:
        assert listener.stdin is not None
        assert listener.stdout is not None

        def wait(milliseconds: int) -> Any:  # noqa: ANN401 - whatever it prints
            print(milliseconds, file=listener.stdin, flush=True)
            return json.loads(listener.stdout.readline())  # type: ignore[union-attr]

        assert wait(0) == {"code": 10}
        nvml.xid(31)
        nvml.xid(94, gi=1, ci=0)
        common = {"eventType": 8}
        none = 0xFFFFFFFF
        assert wait(60_000) == common | {
            "eventData": 31,
            "gpuInstanceId": none,
            "computeInstanceId": none,
        }
        assert wait(60_000) == common | {
            "eventData": 94,
            "gpuInstanceId": 1,
            "computeInstanceId": 0,
        }
        assert wait(0) == {"code": 10}
