"""What ``check`` and ``doctor`` tell of an engine that somebody else starts: is it there."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from watchdog.cli import fit
from watchdog.config import Config, EngineConfig
from watchdog.contracts import ProcessInfo
from watchdog.core.state import Attach
from watchdog.supervisor import identity, presence


@dataclass(frozen=True, slots=True)
class Attached:
    """An engine that somebody else starts, at one look; ``words`` are one line about it.

    ``pid`` is its first process, None when that cannot be seen. ``odd``: the watchdog could not do
    with it what it is told to.
    """

    name: str
    attach: Attach
    serves: bool
    pid: int | None
    may_signal: bool
    words: str
    odd: bool


def attached_of(config: Config) -> tuple[Attached, ...]:
    """Every engine that is attached to. Reads nothing but processes and sockets."""
    return tuple(
        _attached(name, engine, engine.attach)
        for name, engine in config.engine.items()
        if engine.attach is not None
    )


def own(config: Config) -> Config:
    """``config`` without the engines that somebody else starts."""
    engines = {name: one for name, one in config.engine.items() if one.attach is None}
    return msgspec.structs.replace(config, engine=engines)


def pids_of(attached: Sequence[Attached]) -> dict[str, Sequence[int]]:
    """The first process of each that is there: what descends from it is no stranger."""
    return {one.name: (one.pid,) for one in attached if one.pid is not None}


def _attached(name: str, engine: EngineConfig, attach: Attach) -> Attached:
    seen = fit.attempt(lambda: _present(engine))
    if not isinstance(seen, tuple):
        words = f"attached to {attach}: cannot be looked at{fit.failure(seen)}"
        return Attached(
            name, attach, serves=False, pid=None, may_signal=False, words=words, odd=True
        )
    port, found = seen
    pid = None if found.leader is None else found.leader.pid
    may = found.leader is not None and _may_signal(found.leader)
    words = found.why or f"nobody listens on port {port} yet"
    if found.leader is not None:
        how = "it may be signalled" if may else "it may not be signalled by this user"
        words = f"process {pid} ({found.leader.comm}) serves on port {port}; {how}"
    elif found.serves:
        words = f"somebody serves on port {port}; {words}; it cannot be signalled"
    return Attached(
        name=name,
        attach=attach,
        serves=found.serves,
        pid=pid,
        may_signal=may,
        words=f"attached to {attach}: {words}",
        odd=not may and attach is Attach.SIGNAL if found.serves else bool(found.why),
    )


def _present(engine: EngineConfig) -> tuple[int, presence.Presence]:
    said = fit.said_of(engine)
    return said.endpoint.port, presence.look(said.endpoint, engine.command)


def _may_signal(leader: ProcessInfo) -> bool:
    pidfd = identity.open_pidfd(leader.pid, leader.start_ticks)
    if pidfd is None:
        return True  # gone: nobody is in the way
    try:
        return identity.may_signal(pidfd)
    finally:
        os.close(pidfd)
