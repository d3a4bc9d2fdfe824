"""NVIDIA's cards on the PCI bus and their device nodes. No device is ever opened.

Opening /dev/nvidiaN starts up a card (seconds without persistence), and opening any node enters
the driver, whose locks can hold the caller in the kernel for ever. access(2) asks the same mode
bits and the same device cgroup as open(2) and stops in front of the driver; whether a driver is
behind the node stands in /proc/devices.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from watchdog.nvidia.files import entries, head, text, under

_VENDOR = "0x10de"
_CLASSES = ("0x0300", "0x0302")
"""VGA and 3D controllers."""
_NO_ANSWER = b"\xff\xff\xff\xff"
_MINOR = re.compile(r"^Device Minor:\s*(\d+)", re.MULTILINE)
_EXCLUDED = re.compile(r"^GPU Excluded:\s*Yes", re.MULTILINE)
_CARD = re.compile(r"nvidia\d+")
_CONTROL = "nvidiactl"
_UVM = "nvidia-uvm"
_MAKER = "/usr/bin/nvidia-modprobe"


@dataclass(frozen=True, slots=True)
class Card:
    """A card on the bus. ``minor`` is the N of /dev/nvidiaN, None when the driver shows none.

    ``excluded`` is set by the operator of the driver: NVML does not count it.
    """

    bus_id: str
    minor: int | None
    excluded: bool = False


def cards(root: str = "/") -> tuple[Card, ...] | None:
    """NVIDIA's display devices that the nvidia driver has taken; None without a PCI bus to see."""
    bus = under(root, "/sys/bus/pci/devices")
    if not bus.is_dir():
        return None
    return tuple(_card(device.name, root) for device in entries(bus) if _taken(device))


def expected(root: str = "/") -> int | None:
    """How many cards NVML should find here: taken by the driver, not excluded, with a node here.

    A container sees the whole bus and the nodes of its own cards only. None without a bus.
    """
    known = cards(root)
    if known is None:
        return None
    digits = (node.name.removeprefix("nvidia") for node in _nodes(root))
    minors = {int(minor) for minor in digits if minor.isdigit()}
    return sum(card.minor in minors and not card.excluded for card in known)


def fallen(root: str = "/") -> tuple[str, ...]:
    """Cards that no longer answer on the bus, by bus id: their config space reads all ones.

    One that sleeps is not asked, which would wake it.
    """
    bus = under(root, "/sys/bus/pci/devices")
    return tuple(
        device.name
        for device in entries(bus)
        if _taken(device)
        and text(device / "power" / "runtime_status") != "suspended"
        and head(device / "config", len(_NO_ANSWER)) == _NO_ANSWER
    )


def node_troubles(root: str = "/") -> tuple[str, ...]:
    """What keeps a process like this one from using the nodes, a line each.

    A place without any node of NVIDIA is one without GPUs: nothing is missing there. Nor is what
    CUDA makes for itself by ``nvidia-modprobe``, which hosts have and containers do not.
    """
    nodes = _nodes(root)
    if not nodes:
        return ()
    majors = _majors(root)
    names = {node.name for node in nodes}
    made = under(root, _MAKER).exists()
    absent = [f"/dev/{name} is missing" for name in (_CONTROL, _UVM) if name not in names]
    checked = [node for node in nodes if not (made and node.name == _UVM and _UVM not in majors)]
    found = (words for node in checked if (words := _trouble(node, majors)))
    return (*(() if made else absent), *found)


def _taken(device: Path) -> bool:
    return (
        text(device / "vendor") == _VENDOR
        and text(device / "class").startswith(_CLASSES)
        and Path(os.path.realpath(device / "driver")).name == "nvidia"
    )


def _card(bus_id: str, root: str) -> Card:
    told = text(under(root, f"/proc/driver/nvidia/gpus/{bus_id}/information"))
    minor = _MINOR.search(told)
    return Card(bus_id, int(minor[1]) if minor else None, bool(_EXCLUDED.search(told)))


def _nodes(root: str) -> tuple[Path, ...]:
    return tuple(
        node
        for node in entries(under(root, "/dev"))
        if node.name in (_CONTROL, _UVM) or _CARD.fullmatch(node.name)
    )


def _majors(root: str) -> dict[str, set[int]]:
    """The registered majors of character devices by the name of who registered them."""
    found: dict[str, set[int]] = {}
    for line in _character_devices(text(under(root, "/proc/devices"))):
        number, _, name = line.strip().partition(" ")
        if number.isdigit():
            found.setdefault(name, set()).add(int(number))
    return found


def _character_devices(listing: str) -> Iterator[str]:
    yield from listing.partition("Block devices:")[0].splitlines()


def _trouble(node: Path, majors: dict[str, set[int]]) -> str:
    path = f"/dev/{node.name}"
    try:
        found = node.stat()
    except OSError as error:
        return f"cannot look at {path}: {error.strerror}"
    if not stat.S_ISCHR(found.st_mode):
        return f"{path} is no device"
    major, right = os.major(found.st_rdev), _right(node.name, majors)
    if majors and not right:
        return f"{path} has no driver behind it"
    if majors and major not in right:
        return f"{path} has major {major}, and the driver has {_listed(right)}"
    return _denied(node, found, path)


def _right(name: str, majors: dict[str, set[int]]) -> set[int]:
    """The majors that the node may have. The driver's own name differs from branch to branch."""
    if name == _UVM:
        return majors.get(_UVM, set())
    owners = ("nvidia", "nvidia-frontend", _CONTROL)
    return {major for owner in owners for major in majors.get(owner, ())}


def _listed(majors: set[int]) -> str:
    return " or ".join(str(major) for major in sorted(majors))


def _denied(node: Path, found: os.stat_result, path: str) -> str:
    if os.access(node, os.R_OK | os.W_OK, effective_ids=True):
        return ""
    if _mode_allows(found):
        return f"{path} cannot be opened: access was taken away from this container"
    return f"{path} cannot be opened: its mode does not let this user"


def _mode_allows(found: os.stat_result) -> bool:
    """Whether the mode bits alone let this process read and write."""
    if os.geteuid() == 0:
        return True
    if found.st_uid == os.geteuid():
        wanted = stat.S_IRUSR | stat.S_IWUSR
    elif found.st_gid in {os.getegid(), *os.getgroups()}:
        wanted = stat.S_IRGRP | stat.S_IWGRP
    else:
        wanted = stat.S_IROTH | stat.S_IWOTH
    return found.st_mode & wanted == wanted
