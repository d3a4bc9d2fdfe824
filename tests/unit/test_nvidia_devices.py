"""Cards on the bus and device nodes, in trees of files and with real nodes where rights allow."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.simulated import ROOT
from watchdog.nvidia import devices

CHARACTERS = "Character devices:\n  1 mem\n195 nvidia\n195 nvidiactl\n510 nvidia-uvm\n"
LISTING = f"{CHARACTERS}\nBlock devices:\n  7 loop\n"
FRONTEND = 195
CONTROL = 255
UVM = 510
DEVICES = Path("/sys/fs/cgroup/devices")

ENTER = """
import os, sys
from watchdog.nvidia import devices
open(sys.argv[1], "w").write(str(os.getpid()))
"""
LEAVE_ROOT = """
import os
from watchdog.nvidia import devices
os.setgroups([]); os.setgid(65534); os.setuid(65534)
"""
LOOK = """
import errno
print(*devices.node_troubles("."), devices.expected("."), sep="\\n")
try:
    os.open("dev/nvidiactl", os.O_RDWR)
except OSError as error:
    print(errno.errorcode[error.errno])
"""


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A machine with the driver loaded and no card yet."""
    write(tmp_path / "proc/devices", LISTING)
    write(tmp_path / "sys/module/nvidia/version", "580.65.06\n")
    (tmp_path / "sys/bus/pci/devices").mkdir(parents=True)
    (tmp_path / "sys/bus/pci/drivers/nvidia").mkdir(parents=True)
    (tmp_path / "dev").mkdir()
    return tmp_path


def write(file: Path, content: bytes | str) -> None:
    """A file with everything above it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content if isinstance(content, bytes) else content.encode())


def plug(root: Path, bus_id: str, minor: int | None, driver: str = "nvidia") -> Path:
    """A card on the bus, bound to a driver; ``minor`` None: that driver shows no such card."""
    device = root / "sys/bus/pci/devices" / bus_id
    write(device / "vendor", "0x10de\n")
    write(device / "class", "0x030200\n")
    write(device / "config", b"\xde\x10\x35\x23" + bytes(60))
    (device / "driver").symlink_to(f"../../drivers/{driver}")
    if minor is not None:
        told = f"Model: \t\t NVIDIA H200\nDevice Minor: \t {minor}\nGPU Excluded:\t No\n"
        write(root / f"proc/driver/nvidia/gpus/{bus_id}/information", told)
    return device


def node(root: Path, name: str, major: int, minor: int) -> Path:
    """A device node like those that nvidia-modprobe makes. Needs the rights of root."""
    path = root / "dev" / name
    os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(major, minor))
    path.chmod(0o666)
    return path


@pytest.mark.root
def test_cards_with_a_node_here_are_expected(machine: Path) -> None:
    """FACT: a container with the node of one of two cards expects one; audio is no card."""
    plug(machine, "0000:00:06.0", 0)
    plug(machine, "0000:00:07.0", 1)
    audio = plug(machine, "0000:00:06.1", None)
    write(audio / "class", "0x040300\n")
    node(machine, "nvidia1", FRONTEND, 1)
    assert devices.expected(str(machine)) == 1
    node(machine, "nvidia0", FRONTEND, 0)
    assert devices.expected(str(machine)) == 2


@pytest.mark.root
def test_a_card_that_has_fallen_is_not_expected(machine: Path) -> None:
    """FACT: it is told as fallen, and is not missing on top of that."""
    for minor in range(2):
        plug(machine, f"0000:00:0{minor}.0", minor)
        node(machine, f"nvidia{minor}", FRONTEND, minor)
    write(machine / "sys/bus/pci/devices/0000:00:01.0/config", b"\xff" * 64)
    assert devices.expected(str(machine)) == 1
    assert devices.fallen(str(machine)) == ("0000:00:01.0",)


@pytest.mark.root
def test_what_is_no_node_of_the_driver_makes_no_card_expected(machine: Path) -> None:
    """FACT: a folder, a pipe or another's device by a card's name is none, and no trouble."""
    for minor in range(4):
        plug(machine, f"0000:00:0{minor}.0", minor)
    node(machine, "nvidiactl", FRONTEND, CONTROL)
    node(machine, "nvidia-uvm", UVM, 0)
    node(machine, "nvidia0", FRONTEND, 0)
    (machine / "dev/nvidia1").mkdir()
    os.mkfifo(machine / "dev/nvidia2")
    node(machine, "nvidia3", 1, 3)
    assert devices.expected(str(machine)) == 1
    assert devices.node_troubles(str(machine)) == ()


@pytest.mark.root
def test_cards_of_another_driver_and_excluded_ones_are_not_expected(machine: Path) -> None:
    """FACT: passed through to a guest, or excluded by the operator, a card is not NVML's."""
    plug(machine, "0000:00:06.0", 0, driver="vfio-pci")
    plug(machine, "0000:00:07.0", 1)
    plug(machine, "0000:00:08.0", None)
    told = machine / "proc/driver/nvidia/gpus/0000:00:07.0/information"
    told.write_text("Device Minor: \t 1\nGPU Excluded:\t Yes\n")
    for minor in range(3):
        node(machine, f"nvidia{minor}", FRONTEND, minor)
    assert devices.expected(str(machine)) == 0


def test_without_a_bus_nothing_is_expected_or_denied(tmp_path: Path) -> None:
    """FACT: no bus to see is not the same as no card."""
    assert devices.cards(str(tmp_path)) is None
    assert devices.expected(str(tmp_path)) is None
    assert devices.fallen(str(tmp_path)) == ()


def test_a_card_whose_config_space_reads_all_ones_has_fallen_off(machine: Path) -> None:
    """FACT: that is bus loss, told by bus id; one in runtime suspend is not woken by asking."""
    plug(machine, "0000:00:06.0", 0)
    write(plug(machine, "0000:00:07.0", 1) / "config", b"\xff" * 64)
    sleeping = plug(machine, "0000:00:08.0", 2)
    write(sleeping / "config", b"\xff" * 64)
    write(sleeping / "power/runtime_status", "suspended\n")
    assert devices.fallen(str(machine)) == ("0000:00:07.0",)


def test_a_place_without_nodes_has_no_trouble(machine: Path) -> None:
    """FACT: a container that was given no GPU misses nothing."""
    assert devices.node_troubles(str(machine)) == ()


def test_a_file_in_the_place_of_a_node_is_said(machine: Path) -> None:
    """FACT: what is no character device cannot be the driver's."""
    write(machine / "dev/nvidiactl", "")
    assert "/dev/nvidiactl is no device" in devices.node_troubles(str(machine))


@pytest.mark.parametrize("listing", ["nvidia² 1\n² nvidia\n", f"{'9' * 5000} nvidia\n", "\xff"])
def test_numbers_that_are_none_are_passed_over(machine: Path, listing: str) -> None:
    """FACT: whatever stands in the files, the looks answer."""
    write(machine / "proc/devices", listing)
    plug(machine, "0000:00:06.0", 0)
    told = machine / "proc/driver/nvidia/gpus/0000:00:06.0/information"
    told.write_text(f"Device Minor: {'7' * 5000}\n")
    write(machine / "dev/nvidia²", "")
    assert devices.expected(str(machine)) == 0
    assert devices.node_troubles(str(machine)) == ()


@pytest.mark.root
def test_missing_nodes_are_named(machine: Path) -> None:
    """FACT: cards without uvm run no CUDA, in a container; a host's nvidia-modprobe makes it."""
    node(machine, "nvidia0", FRONTEND, 0)
    node(machine, "nvidiactl", FRONTEND, CONTROL)
    assert devices.node_troubles(str(machine)) == ("/dev/nvidia-uvm is missing",)
    write(machine / "usr/bin/nvidia-modprobe", "")
    assert devices.node_troubles(str(machine)) == ()


@pytest.mark.root
def test_uvm_that_is_not_loaded_yet_is_not_missed(machine: Path) -> None:
    """FACT: a desktop's first CUDA program loads it; nobody has it and so nobody is denied it."""
    write(machine / "proc/devices", "Character devices:\n195 nvidia\n")
    node(machine, "nvidia0", FRONTEND, 0)
    assert devices.node_troubles(str(machine)) == ("/dev/nvidiactl is missing",)
    node(machine, "nvidiactl", FRONTEND, CONTROL)
    assert devices.node_troubles(str(machine)) == ()


@pytest.mark.root
def test_a_node_with_the_major_of_yesterday_is_told(machine: Path) -> None:
    """FACT: after a reload uvm has another major, and an old container's node is dead."""
    node(machine, "nvidiactl", FRONTEND, CONTROL)
    stale = node(machine, "nvidia-uvm", UVM - 1, 0)
    assert devices.node_troubles(str(machine)) == (
        "/dev/nvidia-uvm has major 509, and the driver has 510",
    )
    write(machine / "usr/bin/nvidia-modprobe", "")
    assert devices.node_troubles(str(machine)) == ()
    (machine / "usr/bin/nvidia-modprobe").unlink()
    stale.unlink()
    node(machine, "nvidia-uvm", UVM, 0)
    assert devices.node_troubles(str(machine)) == ()


@pytest.mark.root
def test_left_over_nodes_without_a_driver_are_no_trouble(machine: Path) -> None:
    """FACT: a machine without the module has no driver: its nodes are nobody's."""
    node(machine, "nvidia0", 1, 3)
    node(machine, "nvidiactl", 1, 3)
    assert len(devices.node_troubles(str(machine))) == 3
    (machine / "sys/module/nvidia/version").unlink()
    assert devices.node_troubles(str(machine)) == ()


@pytest.mark.root
def test_the_older_driver_registers_under_another_name(machine: Path) -> None:
    """FACT: nvidia-frontend, of earlier branches, is as good."""
    write(machine / "proc/devices", LISTING.replace("nvidia\n195 nvidiactl", "nvidia-frontend"))
    node(machine, "nvidiactl", FRONTEND, CONTROL)
    node(machine, "nvidia-uvm", UVM, 0)
    assert devices.node_troubles(str(machine)) == ()


@pytest.fixture
def cgroup() -> Iterator[Path]:
    """A device cgroup of version 1 that lets nobody at the driver's nodes; else skips."""
    group = DEVICES / f"nodes-{os.getpid()}"
    try:
        group.mkdir()
    except OSError:
        pytest.skip("no device cgroup of version 1 can be made here")
    try:
        (group / "devices.deny").write_text(f"c {FRONTEND}:* rwm")
        yield group
    finally:
        group.rmdir()


def told_to(prelude: str, *arguments: object, folder: Path) -> str:
    """What a process says of the nodes of the machine in ``folder``, after ``prelude``."""
    words = (sys.executable, "-c", f"{prelude}\n{LOOK}", *map(str, arguments))
    done = subprocess.run(
        words, cwd=folder, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True
    )
    return done.stdout


@pytest.mark.root
def test_access_taken_away_by_the_cgroup_is_seen_without_opening(
    machine: Path, cgroup: Path
) -> None:
    """FACT: a process that open() would refuse with EPERM learns it from access(2) alone."""
    plug(machine, "0000:00:06.0", 0)
    node(machine, "nvidiactl", FRONTEND, CONTROL)
    node(machine, "nvidia-uvm", UVM, 0)
    assert told_to(ENTER, cgroup / "cgroup.procs", folder=machine) == (
        "/dev/nvidiactl cannot be opened: access was taken away from this container\n0\nEPERM\n"
    )
    assert devices.node_troubles(str(machine)) == ()


@pytest.mark.root
def test_a_mode_that_shuts_the_user_out_is_told_apart(machine: Path) -> None:
    """FACT: for another user than root, the mode's refusal is not the container's."""
    node(machine, "nvidiactl", FRONTEND, CONTROL).chmod(0o600)
    node(machine, "nvidia-uvm", UVM, 0)
    machine.chmod(0o755)
    assert told_to(LEAVE_ROOT, folder=machine) == (
        "/dev/nvidiactl cannot be opened: its mode does not let this user\n0\nEACCES\n"
    )


@pytest.mark.root
def test_cards_of_others_are_neither_expected_nor_a_trouble_unless_all_are(machine: Path) -> None:
    """FACT: a job that may open one of three cards has one; one that may open none has trouble."""
    node(machine, "nvidiactl", FRONTEND, CONTROL)
    node(machine, "nvidia-uvm", UVM, 0)
    for minor in range(3):
        plug(machine, f"0000:00:0{minor}.0", minor)
        node(machine, f"nvidia{minor}", FRONTEND, minor).chmod(0o666 if minor == 1 else 0o600)
    machine.chmod(0o755)
    assert told_to(LEAVE_ROOT, folder=machine).startswith("1\n")
    (machine / "dev/nvidia1").chmod(0o600)
    *troubles, count, _ = told_to(LEAVE_ROOT, folder=machine).splitlines()
    assert troubles == [
        f"/dev/nvidia{minor} cannot be opened: its mode does not let this user"
        for minor in range(3)
    ]
    assert count == "0"
