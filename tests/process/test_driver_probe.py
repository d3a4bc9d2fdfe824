"""The driver probe on trees of files, on a real process with a deleted library, and on workers."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from probes._nvml.client import NvmlClient
from probes.driver import PROBE, Driver, Settings
from tests.support import fake_nvml
from tests.support.daemon import simulated_command
from tests.support.engines import Target
from tests.support.fake_nvml import asking, sweep
from tests.support.simulated import until
from watchdog import procfs
from watchdog.contracts import (
    Endpoint,
    EngineTarget,
    Owned,
    Owner,
    ProcessInfo,
)
from watchdog.core.model import Sampled, Unread, Value

PATIENCE = 30.0
SOON = 0.6
"""Seconds given to a read whose worker says nothing anyway."""

TWO_CARDS = '{"driver": "580.65.06", "cuda": "13.0", "gpus": [{"index": 0}, {"index": 1}]}'
NO_DRIVER = '{"error": "the driver is not loaded", "code": 9}'
ANSWERING = """
import json, sys
for line in sys.stdin:
    print(json.dumps({"request": int(line.split()[0]), **json.loads(sys.argv[1])}), flush=True)
"""
SILENT = "import sys\nsys.stdin.read()\n"
MAPPING = (
    "import ctypes, sys\nctypes.CDLL(sys.argv[1])\nprint('mapped', flush=True)\nsys.stdin.read()\n"
)
TORCH = "cuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n"


def shown(
    command: tuple[str, ...] = (),
    environment: Mapping[str, str] | None = None,
    living: tuple[ProcessInfo, ...] = (),
) -> Target:
    """An engine as the daemon would show it."""
    where = Endpoint("127.0.0.1", 1)
    return Target(where, command=command, environment=environment or {}, living=living)


@dataclass
class Machine:
    """A box with engines."""

    state_dir = ""

    all: tuple[EngineTarget, ...] = ()

    def engines(self) -> tuple[EngineTarget, ...]:
        """All of them."""
        return self.all

    def owner(self, _pid: int) -> Owned:
        """Nobody's."""
        return Owned(Owner.UNKNOWN)


@contextlib.contextmanager
def worker(script: str, *arguments: str) -> Iterator[NvmlClient]:
    """A client of a worker of our own making."""
    client = NvmlClient((sys.executable, "-c", script, *arguments), retry=0.0)
    try:
        yield client
    finally:
        client.close()


@pytest.fixture
def answering() -> Iterator[NvmlClient]:
    """NVML with two cards."""
    with worker(ANSWERING, TWO_CARDS) as client:
        yield client


def put(root: Path, path: str, content: bytes | str = "") -> None:
    """A file with everything above it."""
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content if isinstance(content, bytes) else content.encode())


def install(root: Path, module: str, library: str) -> None:
    """A driver of which a package has just replaced the library, or has not."""
    put(root, "sys/module/nvidia/version", f"{module}\n")
    put(root, f"usr/lib/libnvidia-ml.so.{library}", b"\x7fELF\x02")
    (root / "usr/lib/libnvidia-ml.so.1").symlink_to(f"libnvidia-ml.so.{library}")


def read(
    client: NvmlClient,
    root: Path,
    *engines: Target,
    patience: float = PATIENCE,
    floors: Mapping[str, str] | None = None,
) -> dict[str, Value]:
    """One reading by name; every sample is declared, and of its type."""
    probe = Driver(Settings(dict(floors or {})), client, Machine(engines), str(root))
    seen = list(probe.read(time.monotonic() + patience))
    assert not [item for item in seen if isinstance(item, Unread)]
    samples = [item for item in seen if isinstance(item, Sampled)]
    declared = {spec.name: spec for spec in PROBE.samples}
    for sample in samples:
        assert type(sample.value) is declared[sample.sample].type
        assert tuple(key for key, _ in sample.labels) == declared[sample.sample].labels
    found = {s.sample: s.value for s in samples}
    assert len(found) == len(samples)
    return found


def nodes(root: Path) -> None:
    """The nodes of two cards, with their majors. Needs the rights of root."""
    put(root, "proc/devices", "Character devices:\n195 nvidia\n195 nvidiactl\n510 nvidia-uvm\n")
    (root / "dev").mkdir()
    for name, major, minor in (
        ("nvidia0", 195, 0),
        ("nvidia1", 195, 1),
        ("nvidiactl", 195, 255),
        ("nvidia-uvm", 510, 0),
    ):
        os.mknod(root / "dev" / name, stat.S_IFCHR | 0o666, os.makedev(major, minor))


@pytest.mark.root
def test_a_machine_in_order(tmp_path: Path, answering: NvmlClient) -> None:
    """FACT: one version, both cards found where two are expected, no trouble."""
    install(tmp_path, "580.65.06", "580.65.06")
    (tmp_path / "sys/bus/pci/drivers/nvidia").mkdir(parents=True)
    for minor in range(2):
        bus_id = f"0000:00:0{minor}.0"
        device = f"sys/bus/pci/devices/{bus_id}"
        put(tmp_path, f"{device}/vendor", "0x10de\n")
        put(tmp_path, f"{device}/class", "0x030200\n")
        (tmp_path / device / "driver").symlink_to("../../drivers/nvidia")
        put(tmp_path, f"proc/driver/nvidia/gpus/{bus_id}/information", f"Device Minor: \t {minor}")
    nodes(tmp_path)
    assert read(answering, tmp_path) == {
        "module_version": "580.65.06",
        "library_version": "580.65.06",
        "versions_match": True,
        "device_trouble": "",
        "fallen_cards": "",
        "gpus_expected": 2,
        "nvml": "ok",
        "unresponsive_seconds": 0.0,
        "gpus_found": 2,
    }


def test_an_upgrade_under_a_loaded_module(tmp_path: Path, answering: NvmlClient) -> None:
    """FACT: module and library are told apart, each with its version."""
    install(tmp_path, "580.65.06", "580.82.07")
    seen = read(answering, tmp_path)
    assert (seen["module_version"], seen["library_version"]) == ("580.65.06", "580.82.07")
    assert seen["versions_match"] is False


def simulated_command_here() -> tuple[str, ...]:
    """The command of the embedded engine."""
    return tuple(simulated_command(8000))


def test_no_driver_at_all(tmp_path: Path) -> None:
    """FACT: only NVML's own words are there; no version, count or device is invented."""
    (tmp_path / "sys/bus/pci/devices").mkdir(parents=True)
    engine = shown(simulated_command_here())
    with worker(ANSWERING, NO_DRIVER) as client:
        seen = read(client, tmp_path, engine)
    assert "the driver is not loaded" in str(seen.pop("nvml"))
    nothing_wrong = {"device_trouble": "", "fallen_cards": ""}
    assert seen == {"unresponsive_seconds": 0.0, **nothing_wrong, "cpu_only": True}


def test_cards_that_nvml_does_not_count_any_more_are_not_found(tmp_path: Path) -> None:
    """FACT: NVML's worker goes on telling them; one that is lost is still counted."""
    cards = [
        {"index": 0, "errors": {}},
        {"index": 1, "errors": {"": "GPU not found"}},
        {"index": 2, "errors": {"": "GPU is lost"}},
    ]
    with worker(ANSWERING, json.dumps({"gpus": cards})) as client:
        assert read(client, tmp_path)["gpus_found"] == 2


def test_a_card_out_of_the_real_workers_count_is_not_found(tmp_path: Path) -> None:
    """FACT: the worker's own words for such a card are those that the probe looks for."""
    nvml = fake_nvml.build(tmp_path)
    nvml.cards = 2
    nvml.write()
    with asking(nvml.environment) as client:
        assert read(client, tmp_path)["gpus_found"] == 2
        nvml.cards = 1
        nvml.write()
        until(lambda: read(client, tmp_path).get("gpus_found") == 1, PATIENCE)
        assert len(sweep(client)["gpus"]) == 2


def test_nvml_that_says_nothing(tmp_path: Path) -> None:
    """FACT: it is unresponsive for as long as requests go unanswered, and files still speak."""
    install(tmp_path, "580.65.06", "580.65.06")
    with worker(SILENT) as client:
        first = read(client, tmp_path, patience=SOON)
        second = read(client, tmp_path, patience=SOON)
    assert first["nvml"] == second["nvml"] == "unresponsive"
    assert 0 < float(first["unresponsive_seconds"]) < float(second["unresponsive_seconds"])
    assert "gpus_found" not in first
    assert first["versions_match"] is True


def test_a_card_off_the_bus_is_named(tmp_path: Path, answering: NvmlClient) -> None:
    """FACT: a config space of all ones is told by bus id until it is over; others may go on."""
    install(tmp_path, "580.65.06", "580.65.06")
    (tmp_path / "sys/bus/pci/drivers/nvidia").mkdir(parents=True)
    device = "sys/bus/pci/devices/0000:00:06.0"
    put(tmp_path, f"{device}/vendor", "0x10de\n")
    put(tmp_path, f"{device}/class", "0x030000\n")
    put(tmp_path, f"{device}/config", b"\xff" * 64)
    (tmp_path / device / "driver").symlink_to("../../drivers/nvidia")
    seen = read(answering, tmp_path)
    assert (seen["fallen_cards"], seen["device_trouble"]) == ("0000:00:06.0", "")
    put(tmp_path, f"{device}/config", b"\xde\x10\x35\x23")
    assert read(answering, tmp_path)["fallen_cards"] == ""


@pytest.mark.root
def test_a_trouble_is_told_to_be_over_when_the_driver_goes(
    tmp_path: Path, answering: NvmlClient
) -> None:
    """FACT: a finding about nodes ends with the module, whose left-over nodes are nobody's."""
    install(tmp_path, "580.65.06", "580.65.06")
    nodes(tmp_path)
    (tmp_path / "dev/nvidiactl").unlink()
    assert read(answering, tmp_path)["device_trouble"] == "/dev/nvidiactl is missing"
    (tmp_path / "sys/module/nvidia/version").unlink()
    assert read(answering, tmp_path)["device_trouble"] == ""


def engine_with_torch(root: Path) -> Target:
    """An engine whose torch wants CUDA 13.0."""
    put(root, "opt/env/pyvenv.cfg", "home = /usr/bin\n")
    put(root, "opt/env/bin/python3.12")
    put(root, "opt/env/lib/python3.12/site-packages/torch/version.py", TORCH)
    return shown(("/opt/env/bin/python3.12", "-m", "vllm", "serve", "m"))


def test_an_engine_that_the_driver_cannot_run(tmp_path: Path, answering: NvmlClient) -> None:
    """FACT: what it wants, that it does not fit, and why, before any start."""
    install(tmp_path, "550.54.14", "550.54.14")
    seen = read(answering, tmp_path, engine_with_torch(tmp_path))
    assert seen["cuda_wanted"] == "13.0"
    assert seen["cpu_only"] is False
    assert seen["fits"] is False
    assert "driver 550.54.14 supports CUDA 12.4" in str(seen["misfit"])
    assert "stale_libraries" not in seen


def test_settings_move_a_floor(tmp_path: Path, answering: NvmlClient) -> None:
    """FACT: the table can be mended where it is wrong, and says nothing of what is no version."""
    install(tmp_path, "580.65.06", "580.65.06")
    engine = engine_with_torch(tmp_path)
    assert read(answering, tmp_path, engine)["misfit"] == ""
    limited = read(answering, tmp_path, engine, floors={"13.0": "581.1"})
    assert limited["fits"] is True
    assert "581.1" in str(limited["misfit"])
    assert msgspec.convert({"floors": {"13.5": "620.10"}}, Settings).floors == {"13.5": "620.10"}
    for bad in ({"new": "620.10"}, {"13.5": "soon"}, {"13.5": 620}):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert({"floors": bad}, Settings)


def test_an_engine_is_judged_without_a_driver_by_nobody(
    tmp_path: Path, answering: NvmlClient
) -> None:
    """FACT: without a version of the driver only the wish is known."""
    seen = read(answering, tmp_path, engine_with_torch(tmp_path))
    assert seen["cuda_wanted"] == "13.0"
    assert not {"fits", "misfit", "versions_match", "gpus_expected"} & set(seen)


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A real shared object by the name of CUDA's."""
    path = tmp_path / "libcuda.so.1"
    source = tmp_path / "cuda.c"
    source.write_text("int one(void) { return 1; }\n")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(path), str(source)], check=True)
    return path


@pytest.fixture
def mapping(library: Path) -> Iterator[int]:
    """The pid of a process that maps it."""
    child = subprocess.Popen(
        [sys.executable, "-c", MAPPING, str(library)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"mapped\n"
        yield child.pid
    finally:
        child.kill()
        child.communicate()


def living(*pids: int) -> tuple[ProcessInfo, ...]:
    """The processes as /proc shows them."""
    return tuple(info for pid in pids if (info := procfs.stat(pid)) is not None)


def test_a_library_deleted_under_a_running_engine(
    library: Path, mapping: int, answering: NvmlClient
) -> None:
    """FACT: a real process runs on what it mapped, and the file's removal is seen from its maps."""
    engine = shown(simulated_command_here(), living=living(os.getpid(), mapping))
    before = read(answering, Path("/"), engine)
    assert before["stale_libraries"] is False
    assert before["stale_library_names"] == ""
    library.unlink()
    after = read(answering, Path("/"), engine)
    assert after["stale_libraries"] is True
    assert after["stale_library_names"] == "libcuda.so.1"
    assert not {"fits", "cuda_wanted"} & set(after)
    assert after["cpu_only"] is True


def test_processes_that_are_gone_or_stuck_tell_nothing(mapping: int, answering: NvmlClient) -> None:
    """FACT: without a readable map nothing is claimed; one stuck in the kernel is let be."""
    gone = ProcessInfo(2**22 + 1, 1, 1, 1, "S", "gone", cpu_seconds=0.0, rss_bytes=0)
    blocked = ProcessInfo(mapping, 1, 1, 1, "D", "stuck", cpu_seconds=0.0, rss_bytes=0)
    found = read(answering, Path("/"), shown(living=(gone, blocked)))
    assert not {"stale_libraries", "stale_library_names", "cpu_only"} & set(found)
