"""Who has an engine's port while it has no leader of ours: perhaps somebody else who runs it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

import msgspec

from watchdog import procfs
from watchdog.contracts import Box, EngineTarget, Owner, ProbeSpec, ProcessInfo, SampleSpec
from watchdog.core.model import Sampled, Seconds, SubjectKind, Unread, engine_subject
from watchdog.programs import runs

_MARK = "VLLM_WATCHDOG_GENERATION"
"""In the environment of whatever a watchdog has started."""


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No settings: it is so, or it is not."""


class EnginePort:
    """Looks at the listeners of all engines. ``root`` is where procfs is."""

    def __init__(self, box: Box, root: str = procfs.ROOT) -> None:
        self._box = box
        self._root = root

    def read(self, deadline: Seconds) -> Iterable[Sampled | Unread]:  # noqa: ARG002 - /proc does not wait
        """One text an engine, none of an engine of which it cannot be told.

        Nobody is looked for while the leader lives: then the port is its own.
        """
        return list(self._told())

    def close(self) -> None:
        """Nothing is held."""

    def _told(self) -> Iterator[Sampled]:
        for target in self._box.engines():
            found = "" if _has_port(target) else self._foreigner(target)
            if found and _has_port(target):  # a start came while we looked
                found = ""
            if found is not None:
                subject, labels = engine_subject(target.name), (("engine", target.name),)
                yield Sampled(subject, "foreign", found, labels)

    def _foreigner(self, target: EngineTarget) -> str | None:
        """In words, "" for nobody; None when it cannot be told: nobody is blamed unseen."""
        endpoint = target.endpoint
        if endpoint.uds or not endpoint.port:
            return None
        if not procfs.is_listened_on(endpoint.port, self._root, host=endpoint.host):
            return ""
        owner = procfs.listening_owner(endpoint.port, self._root, host=endpoint.host)
        info = None if owner is None else procfs.stat(owner[0], self._root)
        if info is None:
            return None
        if not runs(procfs.cmdline(info.pid, self._root), target.command) or self._below_us(info):
            return ""
        whose = self._box.owner(info.pid).owner
        if whose is Owner.UNKNOWN:
            return None
        return self._described(info) if whose is Owner.FOREIGN else ""

    def _below_us(self, info: ProcessInfo) -> bool:
        above = (one.pid for one in procfs.ancestors(info, self._root))
        return os.getpid() in {info.pid, info.ppid, *above}

    def _described(self, info: ProcessInfo) -> str:
        what = f"process {info.pid} ({info.comm}) runs the engine's command and listens on its port"
        if procfs.environ_value(info.pid, _MARK, self._root) is not None:
            return f"{what}; a watchdog started it that is not this one, or has lost its state"
        above = procfs.stat(info.ppid, self._root)
        who = f"{above.comm} ({above.pid})" if above else "not visible"
        return f"{what}; its parent is {who}"


def _has_port(target: EngineTarget) -> bool:
    """Whether the port is its own: it has a leader, or somebody else is meant to start it."""
    look = target.look()
    return look.attached or look.leader is not None


def _build(_: Settings, box: Box) -> EnginePort:
    return EnginePort(box)


PROBE = ProbeSpec(
    name="engine_port",
    subject_kind=SubjectKind.HOST,
    settings=Settings,
    samples=(
        SampleSpec(
            "foreign",
            str,
            "",
            "Who else runs the engine's program on its port while we have none; empty: nobody.",
            labels=("engine",),
            subject=SubjectKind.ENGINE,
        ),
    ),
    build=_build,
    period=1.0,
    timeout=5.0,
)
