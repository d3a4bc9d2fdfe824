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
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from watchdog.nvidia.files import entries, head, is_folder, real, text, under
from watchdog.nvidia.versions import loaded_module

_VENDOR = "0x10de"
_CLASSES = ("0x0300", "0x0302")
"""VGA and 3D controllers."""
_NO_ANSWER = b"\xff\xff\xff\xff"
_MINOR = re.compile(r"^Device Minor:\s*([0-9]{1,9})\b", re.MULTILINE)
_EXCLUDED = re.compile(r"^GPU Excluded:\s*Yes", re.MULTILINE)
_CARD = re.compile(r"nvidia[0-9]{1,9}")
_MAJOR = re.compile(r"[0-9]{1,9}")
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
    if not is_folder(bus):
        return None
    return tuple(_card(device.name, root) for device in entries(bus) if _taken(device))


def expected(root: str = "/") -> int | None:
    """How many cards NVML should find here; None without a bus.

    Those that the driver has taken, that are not excluded, that answer, and whose node is here
    and may be opened: a container or a job sees the whole bus, and has its own cards only.
    """
    known = cards(root)
    if known is None:
        return None
    majors, lost = _majors(root), fallen(root)
    usable = (node for node in _nodes(root) if not _trouble(node, majors))
    minors = {int(node.name.removeprefix("nvidia")) for node in usable if _is_card(node)}
    return sum(
        card.minor in minors and not card.excluded and card.bus_id not in lost for card in known
    )


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
    """What keeps a process like this one from starting CUDA on any card, a line each.

    Without a module there is no driver, and left-over nodes are nobody's; without a card's node
    nothing is missing. One card that may not be opened is another's: only all of them are trouble.
    Nodes that are missing or have an old major are made anew for CUDA by ``nvidia-modprobe``, which
    hosts have and containers do not.
    """
    nodes = _nodes(root)
    if not nodes or not loaded_module(root):
        return ()
    made = os.path.lexists(under(root, _MAKER))
    majors = {} if made else _majors(root)
    own = [node for node in nodes if _is_card(node)]
    shared = [node for node in nodes if not _is_card(node)]
    found = [words for node in shared if (words := _trouble(node, majors))]
    refused = [words for node in own if (words := _trouble(node, majors))]
    missing = () if made or not own else _missing({node.name for node in shared}, majors)
    return (*missing, *found, *(refused if len(refused) == len(own) else ()))


def _missing(present: Iterable[str], majors: dict[str, set[int]]) -> Iterator[str]:
    """It is not sure that uvm is missed while its module is not loaded: root's CUDA loads it."""
    if _CONTROL not in present:
        yield f"/dev/{_CONTROL} is missing"
    if _UVM not in present and _UVM in majors:
        yield f"/dev/{_UVM} is missing"


def _is_card(node: Path) -> bool:
    return bool(_CARD.fullmatch(node.name))


def _taken(device: Path) -> bool:
    return (
        text(device / "vendor") == _VENDOR
        and text(device / "class").startswith(_CLASSES)
        and real(device / "driver").name == "nvidia"
    )


def _card(bus_id: str, root: str) -> Card:
    told = text(under(root, f"/proc/driver/nvidia/gpus/{bus_id}/information"))
    minor = _MINOR.search(told)
    return Card(bus_id, int(minor[1]) if minor else None, bool(_EXCLUDED.search(told)))


def _nodes(root: str) -> tuple[Path, ...]:
    return tuple(
        node
        for node in entries(under(root, "/dev"))
        if node.name in (_CONTROL, _UVM) or _is_card(node)
    )


def _majors(root: str) -> dict[str, set[int]]:
    """The registered majors of character devices by the name of who registered them."""
    found: dict[str, set[int]] = {}
    for line in _character_devices(text(under(root, "/proc/devices"))):
        number, _, name = line.strip().partition(" ")
        if _MAJOR.fullmatch(number):
            found.setdefault(name, set()).add(int(number))
    return found


def _character_devices(listing: str) -> Iterator[str]:
    yield from listing.partition("Block devices:")[0].splitlines()


def _trouble(node: Path, majors: dict[str, set[int]]) -> str:
    """Why it cannot be opened; "" when it can, or when /proc/devices does not list its driver."""
    path = f"/dev/{node.name}"
    try:
        found = node.stat()
    except OSError as error:
        return f"{path} cannot be looked at: {error.strerror}"
    if not stat.S_ISCHR(found.st_mode):
        return f"{path} is no device"
    major, right = os.major(found.st_rdev), _right(node.name, majors)
    if right and major not in right:
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
