"""Reads /proc. Every function answers None or nothing when a process went away meanwhile.

``root`` is where procfs is mounted; tests point it at a tree of files.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from watchdog.contracts import ProcessInfo

ROOT = "/proc"
TICKS = os.sysconf("SC_CLK_TCK")
"""Of ``start_ticks`` a second."""
_PAGE = os.sysconf("SC_PAGE_SIZE")
_STAT_FIELDS = 22
_STAT_BYTES = 2048
"""Longer than any stat, so that one read has it all: scans are on the way from crash to start."""
_LISTEN = "0A"
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_DEAD = "ZX"
_MOST_ANCESTORS = 16
"""An engine's worker is two or three below its leader; a shell and ``env`` may stand above it."""


def stat(pid: int, root: str = ROOT) -> ProcessInfo | None:
    """The process, zombies included; None when there is none."""
    text = _read(f"{root}/{pid}/stat", _STAT_BYTES, more=False)
    return _parsed(pid, text, root) if text else None


def scan(root: str = ROOT) -> tuple[ProcessInfo, ...]:
    """All processes, zombies included. One directory listing and one small file a process."""
    try:
        names = os.listdir(root)  # noqa: PTH208 - a tenth of the cost of Path objects
    except OSError:
        return ()
    found = (stat(int(name), root) for name in names if name.isdigit())
    return tuple(info for info in found if info is not None)


def lives(info: ProcessInfo) -> bool:
    """Whether anything of it can run or hold memory: a dead leader with a living task can."""
    return info.state not in _DEAD or info.threads > 0


def children(pid: int, root: str = ROOT) -> tuple[int, ...]:
    """Direct children, zombies included, whichever thread forked them."""
    tasks = _names(f"{root}/{pid}/task")
    lists = [_read(f"{root}/{pid}/task/{task}/children") for task in tasks]
    if tasks and all(one is None for one in lists):  # CONFIG_PROC_CHILDREN is off, or it left
        return tuple(info.pid for info in scan(root) if info.ppid == pid)
    return tuple(int(child) for one in lists if one for child in one.split())


def ancestors(info: ProcessInfo, root: str = ROOT) -> Iterator[ProcessInfo]:
    """The processes above it, nearest first, below init; at most a few, and none that is younger.

    A parent that is younger has the pid of the real one, which is gone.
    """
    for _ in range(_MOST_ANCESTORS):
        above = stat(info.ppid, root) if info.ppid > 1 else None
        if above is None or above.start_ticks > info.start_ticks:
            return
        yield above
        info = above


def living_tasks(pid: int, root: str = ROOT) -> int:
    """Tasks that are neither zombie nor dead; 0 when the process is gone."""
    texts = (_read(f"{root}/{pid}/task/{task}/stat") for task in _names(f"{root}/{pid}/task"))
    return sum(1 for text in texts if text and _behind_name(text)[:1] not in (b"Z", b"X"))


@dataclass(frozen=True, slots=True)
class Task:
    """One thread: its id, its state letter, and the kernel function that it sleeps in, if any."""

    tid: int
    state: str
    wchan: str


def tasks(pid: int, root: str = ROOT) -> tuple[Task, ...]:
    """All threads of a process, dead ones included, the leader first."""
    found = []
    for name in sorted(_names(f"{root}/{pid}/task"), key=int):
        text = _read(f"{root}/{pid}/task/{name}/stat")
        if text:
            state = _behind_name(text)[:1].decode(errors="replace")
            found.append(Task(int(name), state, wchan(int(name), f"{root}/{pid}/task")))
    return tuple(found)


def kernel_stack(pid: int, tid: int, root: str = ROOT) -> tuple[str, ...]:
    """Names of the kernel's functions that a thread is in, innermost first.

    Empty when it runs, and for who may not see them: only root may.
    """
    lines = _text(f"{root}/{pid}/task/{tid}/stack").splitlines()
    names = (line.rpartition(" ")[2].partition("+")[0] for line in lines)
    return tuple(name for name in names if name)


def cgroups(pid: int, root: str = ROOT) -> dict[str, str]:
    """The path of its cgroup by controller; that of version 2 under the empty name.

    Paths are as the reader's cgroup namespace shows them. Empty when the process is gone.
    """
    rows = (line.split(":", 2) for line in _text(f"{root}/{pid}/cgroup").splitlines())
    pairs = ((row[1].split(","), row[2]) for row in rows if len(row) == 3)  # noqa: PLR2004
    return {controller: path for names, path in pairs for controller in names}


@dataclass(frozen=True, slots=True)
class CgroupMount:
    """Where a cgroup hierarchy is mounted: which part of it, and its controllers.

    ``controllers`` holds the empty name alone for version 2.
    """

    path: str
    root: str
    controllers: tuple[str, ...]


def cgroup_mounts(root: str = ROOT) -> tuple[CgroupMount, ...]:
    """The mounted hierarchies that this process sees, in the order in which they were mounted."""
    found = []
    for line in _text(f"{root}/self/mountinfo").splitlines():
        before, _, behind = line.partition(" - ")
        left, right = before.split(), behind.split()
        if len(left) > 4 and len(right) > 2 and right[0] in ("cgroup", "cgroup2"):  # noqa: PLR2004
            names = ("",) if right[0] == "cgroup2" else tuple(right[2].split(","))
            found.append(CgroupMount(_unescaped(left[4]), _unescaped(left[3]), names))
    return tuple(found)


def cgroup_folder(pid: int, controller: str, root: str = ROOT) -> str | None:
    """The directory of the cgroup that the process is in; None when it is out of our sight.

    ``controller`` is one of version 1, or empty for version 2.
    """
    path = cgroups(pid, root).get(controller)
    if path is None or path.startswith("/.."):
        return None
    for mount in cgroup_mounts(root):
        if controller in mount.controllers:
            below = _below(path, mount.root)
            if below is not None:
                return mount.path.rstrip("/") + below or "/"
    return None


def _below(path: str, top: str) -> str | None:
    """What to add to ``top`` to get ``path``; None when it is not below."""
    top = top.rstrip("/")
    if path != top and not path.startswith(f"{top}/"):
        return None
    return path[len(top) :].rstrip("/")


def _unescaped(word: str) -> str:
    """A path of mountinfo: blanks and the like are written as octal numbers."""
    head, *rest = word.split("\\")
    return head + "".join(chr(int(one[:3], 8)) + one[3:] for one in rest)


def boot_id(root: str = ROOT) -> str:
    """The random name of this boot; empty when unknown."""
    return _text(f"{root}/sys/kernel/random/boot_id")


def cmdline(pid: int, root: str = ROOT) -> tuple[str, ...]:
    """The arguments, or the title that replaced them; empty for zombies and kernel threads."""
    raw = _read(f"{root}/{pid}/cmdline") or b""
    return tuple(part.decode(errors="replace") for part in raw.rstrip(b"\0").split(b"\0") if part)


def environ_value(pid: int, key: str, root: str = ROOT) -> str | None:
    """A variable of the environment that the process was started with; None is no proof.

    A process that writes its title over the environment block shows none of it.
    """
    prefix = key.encode() + b"="
    for entry in (_read(f"{root}/{pid}/environ") or b"").split(b"\0"):
        if entry.startswith(prefix):
            return entry[len(prefix) :].decode(errors="replace")
    return None


def wchan(pid: int, root: str = ROOT) -> str:
    """The kernel function that the process sleeps in; empty when it runs or is unknown."""
    name = _text(f"{root}/{pid}/wchan")
    return "" if name == "0" else name


def is_listened_on(port: int, root: str = ROOT, *, host: str = "") -> bool:
    """Whether anybody listens on the TCP port in our network namespace, visible or not.

    With ``host`` (an address or a name) only who is reached there: a listener on that very address,
    or on all addresses where there is none. Without it any address counts.
    """
    return bool(_listening_inodes(port, root, host))


def listening_owners(port: int, root: str = ROOT, *, host: str = "") -> tuple[tuple[int, str], ...]:
    """Pid and comm of every visible process that holds a socket as ``is_listened_on`` means it.

    Several may share one: whoever was forked after it was opened holds it too.
    """
    inodes = _listening_inodes(port, root, host)
    if not inodes:
        return ()
    wanted = {f"socket:[{inode}]" for inode in inodes}
    return tuple(
        (info.pid, info.comm) for info in scan(root) if wanted & _open_files(info.pid, root)
    )


def listening_owner(port: int, root: str = ROOT, *, host: str = "") -> tuple[int, str] | None:
    """The first of ``listening_owners``.

    None when nobody listens or the owner is out of sight (another user, another pid namespace).
    """
    return next(iter(listening_owners(port, root, host=host)), None)


def listening_ports(pid: int, root: str = ROOT) -> frozenset[int]:
    """The TCP ports of our network namespace that the process listens on, as far as it is seen."""
    files = _open_files(pid, root)
    rows = (row for row in _listeners(root) if f"socket:[{row[1]}]" in files)
    return frozenset(int(local.rpartition(":")[2], 16) for local, _ in rows)


def exit_status_of_zombie(pid: int, root: str = ROOT) -> int | None:
    """The wait status of a zombie that somebody else will reap; None when it cannot be had.

    Field 52 of stat, which the kernel shows only to who may trace the process (else it is 0,
    which we cannot tell from a clean exit: hence None for 0 unless we are root or its user).
    """
    text = _read(f"{root}/{pid}/stat")
    fields = _behind_name(text).split() if text else []
    if len(fields) <= 49 or fields[0] != b"Z":  # noqa: PLR2004 - exit_code is the 50th behind comm
        return None
    status = int(fields[49])
    return status if status or _ours(pid, root) else None


def _ours(pid: int, root: str) -> bool:
    try:
        return os.geteuid() in (0, os.stat(f"{root}/{pid}").st_uid)  # noqa: PTH116 - as scan
    except OSError:
        return False


def _listening_inodes(port: int, root: str, host: str) -> set[str]:
    suffix = f":{port:04X}"
    found: dict[_Address, set[str]] = {}
    for local, inode in _listeners(root):
        if local.endswith(suffix):
            found.setdefault(_address(local), set()).add(inode)
    if not host:
        return set().union(*found.values())
    wanted = _addresses(host)
    exact = [inodes for one, inodes in found.items() if one in wanted]
    # A wildcard of version 6 is reached with version 4 too.
    versions = {version for one in wanted for version in (one.version, 6)}
    every = [i for one, i in found.items() if one.is_unspecified and one.version in versions]
    return set().union(*(exact or every))


def _listeners(root: str) -> Iterator[tuple[str, str]]:
    """The local address as the kernel writes it, and the inode, of every TCP listener."""
    for table in ("tcp", "tcp6"):
        for line in _text(f"{root}/net/{table}").splitlines()[1:]:
            fields = line.split()
            if len(fields) > 9 and fields[3] == _LISTEN:  # noqa: PLR2004
                yield fields[1], fields[9]


def _address(local: str) -> _Address:
    """The address of a row: words of 32 bits, each in the order of bytes of this machine."""
    raw = bytes.fromhex(local.partition(":")[0])
    words = (raw[at : at + 4] for at in range(0, len(raw), 4))
    turned = b"".join(word[::-1] if sys.byteorder == "little" else word for word in words)
    return _plain(ipaddress.ip_address(turned))


def _addresses(host: str) -> set[_Address]:
    """Those of an address or a name; none of a name that nobody knows."""
    try:
        return {_plain(ipaddress.ip_address(host))}
    except ValueError:
        pass
    try:
        known = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        return {_plain(ipaddress.ip_address(one[4][0])) for one in known}
    except (OSError, ValueError):
        return set()


def _plain(address: _Address) -> _Address:
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def _open_files(pid: int, root: str) -> set[str]:
    found = set()
    for name in _names(f"{root}/{pid}/fd"):
        try:
            found.add(os.readlink(f"{root}/{pid}/fd/{name}"))  # noqa: PTH115 - as scan
        except OSError:
            continue
    return found


def _parsed(pid: int, text: bytes, root: str) -> ProcessInfo | None:
    fields = _behind_name(text).split()
    if len(fields) < _STAT_FIELDS:
        return None
    state = fields[0].decode()
    return ProcessInfo(
        pid=pid,
        start_ticks=int(fields[19]),
        ppid=int(fields[1]),
        session=int(fields[3]),
        state=state,
        comm=text[text.find(b"(") + 1 : text.rfind(b")")].decode(errors="replace"),
        cpu_seconds=(int(fields[11]) + int(fields[12])) / TICKS,
        rss_bytes=int(fields[21]) * _PAGE,
        threads=living_tasks(pid, root) if state in _DEAD else int(fields[17]),
    )


def _behind_name(text: bytes) -> bytes:
    """What follows the name; the name itself may hold blanks and parentheses."""
    return text[text.rfind(b")") + 2 :]


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208 - as scan
    except OSError:
        return []


def _text(path: str) -> str:
    return (_read(path) or b"").decode(errors="replace").strip()


def _read(path: str, size: int = 1 << 16, *, more: bool = True) -> bytes | None:
    """The whole file, or its first ``size`` bytes; None when it cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return _drained(descriptor, size, more=more)
    except OSError:
        return None
    finally:
        os.close(descriptor)


def _drained(descriptor: int, size: int, *, more: bool) -> bytes:
    text = os.read(descriptor, size)
    while more and (chunk := os.read(descriptor, size)):
        text += chunk
    return text
