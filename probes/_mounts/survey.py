"""The file systems that engines and the watchdog use, each once, as those see them who use them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from probes._mounts.looks import Answers, Look, Looks
from probes._mounts.mountinfo import Mount, Table, is_below, mount_of
from probes._mounts.space import Space, space
from watchdog import places, procfs
from watchdog.contracts import Box, EngineTarget, ProbeError
from watchdog.core.model import Seconds
from watchdog.places import EnginePlaces, Place

STATE = "state"
"""The purpose of the directory where the watchdog keeps what must not be lost."""
SHARED_MEMORY = "shared memory"


@dataclass(frozen=True, slots=True)
class Site:
    """A place of ``engine``, "" for the watchdog's own.

    ``prefix`` leads from our root to that of who uses it, and ``pid`` is whose mounts those are.
    """

    place: Place
    engine: str = ""
    pid: int | str = "self"
    prefix: str = ""

    @property
    def path(self) -> str:
        """Where it is for us."""
        return f"{self.prefix}{self.place.path}"


@dataclass(frozen=True, slots=True)
class Use:
    """A place on a file system. ``is_there`` unless it would only be made there."""

    site: Site
    is_there: bool

    @property
    def place(self) -> Place:
        """What it is."""
        return self.site.place


@dataclass(frozen=True, slots=True)
class FileSystem:
    """One that is used. ``label`` is its mount point, and whose when it is not one of ours."""

    mount: Mount
    space: Space
    label: str
    prefix: str
    uses: tuple[Use, ...]

    @property
    def top(self) -> str:
        """Its mount point for us."""
        return f"{self.prefix}{self.mount.point}"

    @property
    def may_fill(self) -> bool:
        """Whether something is written to it."""
        return not self.space.read_only and any(use.place.grows for use in self.uses)

    def left(self) -> Iterator[tuple[str, int]]:
        """What may run out by name, and how much is left of it: bytes and inodes."""
        if self.space.total_bytes is not None:
            yield self.label, self.space.free_bytes
        if self.space.total_inodes is not None:
            yield f"inodes of {self.label}", self.space.free_inodes


@dataclass(frozen=True, slots=True)
class Survey:
    """What answered, what did not (in words), and what the engines want of shared memory."""

    systems: tuple[FileSystem, ...]
    hung: tuple[str, ...]
    shm_wanted: int


class Surveyor:
    """Looks at all places of a box. ``root`` is where procfs is. Not for several threads at once.

    ``wanted`` leaves places out; ``patience`` is how long a mount may take to answer, in seconds.
    """

    def __init__(
        self,
        box: Box,
        wanted: Callable[[Place], bool],
        root: str = procfs.ROOT,
        patience: Seconds = 1.0,
    ) -> None:
        self._box, self._wanted, self._root = box, wanted, root
        self._table = Table(root)
        self._looks: Looks[Space] = Looks(space, patience)
        self._said: dict[str, tuple[object, EnginePlaces]] = {}

    def __call__(self, deadline: Seconds) -> Survey:
        """All that is known by ``deadline``. Raises ProbeError when our mounts cannot be read."""
        try:
            return self._surveyed(deadline)
        except OSError as error:
            raise ProbeError(f"cannot read the mounts: {error.strerror}") from error

    def _surveyed(self, deadline: Seconds) -> Survey:
        engines = self._box.engines()
        told = [self._places(engine) for engine in engines]
        sites = [site for site in self._sites(engines, told) if self._wanted(site.place)]
        tables = self._tables({site.pid for site in sites})
        known = [site for site in sites if site.pid in tables]
        looks = {site: _look(site, tables[site.pid]) for site in known}
        answers = self._looks(looks.values(), deadline)
        return Survey(
            tuple(_systems(known, answers, tables)),
            tuple(_hung(looks, answers)),
            max((one.shm_bytes for one in told), default=0),
        )

    def _places(self, engine: EngineTarget) -> EnginePlaces:
        """Worked out anew only when something has changed."""
        log = engine.log_place()
        path = "" if log is None else log.path
        key = (engine.command, dict(engine.environment), path)
        known = self._said.get(engine.name)
        if known is None or known[0] != key:
            known = self._said[engine.name] = (key, places.of_engine(*key))
        return known[1]

    def _sites(
        self, engines: Iterable[EngineTarget], told: Iterable[EnginePlaces]
    ) -> Iterator[Site]:
        if self._box.state_dir:
            yield Site(Place(STATE, self._box.state_dir))
        lonely = True
        for engine, found in zip(engines, told, strict=True):
            lonely = False
            pid, prefix, sure = self._view(engine)
            shared = Place(SHARED_MEMORY if sure else "memory", places.SHM)
            for place in (shared, *found.places):
                ours = place.purpose == places.LOG  # which we opened for it
                yield Site(place, engine.name, *(("self", "") if ours else (pid, prefix)))
        if lonely:
            yield Site(Place(SHARED_MEMORY, places.SHM))

    def _view(self, engine: EngineTarget) -> tuple[int | str, str, bool]:
        """Whose mounts the engine sees, how to get there, and whether that is known.

        They are ours unless its leader is known to see others; one that is gone is started by us.
        """
        leader = engine.look().leader
        if leader is None:
            return "self", "", True
        try:
            theirs = Path(self._root, str(leader), "ns/mnt").readlink()
            ours = Path(self._root, "self/ns/mnt").readlink()
        except (FileNotFoundError, ProcessLookupError):
            return "self", "", True
        except OSError:
            return "self", "", False
        if theirs == ours:
            return "self", "", True
        return leader, f"{self._root}/{leader}/root", True

    def _tables(self, pids: set[int | str]) -> dict[int | str, tuple[Mount, ...]]:
        """Those of processes that are gone, or out of sight, are left out."""
        self._table.keep(pids)
        found: dict[int | str, tuple[Mount, ...]] = {"self": self._table("self")}
        for pid in pids - {"self"}:
            try:
                found[pid] = self._table(pid)
            except OSError:
                continue
        return found


def _look(site: Site, table: tuple[Mount, ...]) -> Look:
    mount = mount_of(site.place.path, table)
    point = mount.point if mount is not None else "/"
    return Look(site.path, f"{site.prefix}{point}")


def _systems(
    sites: Iterable[Site], answers: Answers[Space], tables: dict[int | str, tuple[Mount, ...]]
) -> Iterator[FileSystem]:
    """Each device once, named by the first who uses it."""
    by_device: dict[int, list[tuple[Site, Space]]] = {}
    for site in sites:
        found = answers.found.get(site.path)
        if found is not None and is_below(found.folder, site.prefix or "/"):
            by_device.setdefault(found.device, []).append((site, found))
    for pairs in by_device.values():
        site, found = pairs[0]
        mount = _mount(site, found, tables[site.pid])
        if mount is not None:
            uses = tuple(Use(one, where.folder == one.path) for one, where in pairs)
            yield FileSystem(mount, found, _label(mount.point, site), site.prefix, uses)


def _mount(site: Site, found: Space, table: tuple[Mount, ...]) -> Mount | None:
    """By name, unless a link led elsewhere: then the last mount of that device."""
    named = mount_of(found.folder.removeprefix(site.prefix) or "/", table)
    if named is not None and named.device == found.device:
        return named
    linked = [mount for mount in table if mount.device == found.device]
    return linked[-1] if linked else named


def _hung(looks: dict[Site, Look], answers: Answers[Space]) -> Iterator[str]:
    """Mount points; the place itself when its mount answers, and a link leads elsewhere."""
    said: dict[str, None] = {}
    for site, look in looks.items():
        if look.path in answers.hung:
            where = look.point if look.point in answers.hung else look.path
            said[_label(where.removeprefix(site.prefix) or "/", site)] = None
    yield from said


def _label(point: str, site: Site) -> str:
    shown = point.encode(errors="replace").decode()
    return f"{shown} of {site.engine}" if site.prefix else shown
