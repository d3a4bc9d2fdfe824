"""What /proc shows of an engine's processes: who lives, who stands still, who computes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from watchdog.contracts import EngineTarget, ProbeSpec, ProcessInfo, SampleSpec
from watchdog.core.model import (
    ProcessState,
    Sampled,
    Seconds,
    SubjectKind,
    Unread,
    Value,
    engine_subject,
)

_LIVE = frozenset({ProcessState.STARTING, ProcessState.RUNNING})
_STANDS = "Tt"
"""States of a process that a signal or a tracer has stopped."""
_COMM_LENGTH = 15
"""The kernel cuts the name of a process there: ``VLLM::EngineCore`` reads ``VLLM::EngineCor``."""

# fmt: off
_COMPILERS = frozenset((
    "ptxas", "nvcc", "ninja", "cc1", "cc1plus", "cicc", "nvlink", "cudafe++", "fatbinary", "gcc",
    "g++", "c++", "cc", "clang", "clang++", "ld", "as", "ar", "collect2", "lto1",
    "lto-wrapper", "ld.gold", "ld.bfd", "ld.lld", "lld", "cmake", "hipcc", "ccache",
))
# fmt: on


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No settings: what is to be seen does not depend on who looks."""


class EngineProcess:
    """Counts the living set of the current generation."""

    def __init__(self, target: EngineTarget) -> None:
        self._target = target
        self._subject = engine_subject(target.name)
        self._generation = ""
        self._seen: dict[tuple[int, int], Seconds] = {}
        self._spent = {True: 0.0, False: 0.0}

    def read(self, deadline: Seconds) -> Iterable[Sampled | Unread]:  # noqa: ARG002 - /proc does not wait
        """Zeros when nothing lives: that is a fact about the engine, no trouble of the probe.

        Nothing of an attached engine that is there and out of sight.
        """
        look = self._target.look()
        if look.attached and look.leader is None and look.state in _LIVE:
            return []
        living = [p for p in self._target.processes() if _lives(p)]
        if look.generation != self._generation:
            self._generation, self._seen, self._spent = look.generation, {}, {True: 0.0, False: 0.0}
        self._add_cpu(living, look.leader)
        values: dict[str, Value] = {
            "leader_alive": any(p.pid == look.leader and p.state not in "ZX" for p in living),
            "cpu_seconds": self._spent[True] + self._spent[False],
            "core_cpu_seconds": self._spent[False],
            **_counts(living),
        }
        if values["stopped_members"]:
            values["stopped"] = _named(living)
        log_bytes = self._target.log_bytes()
        if log_bytes is not None:
            values["log_bytes"] = log_bytes
        return [Sampled(self._subject, name, value) for name, value in values.items()]

    def close(self) -> None:
        """Nothing is held."""

    def _add_cpu(self, living: Sequence[ProcessInfo], leader: int | None) -> None:
        """Add what each process used since it was last seen.

        A sum over the living would fall whenever one of them ends, and look like rest.
        """
        seen = {}
        for process in living:
            identity = (process.pid, process.start_ticks)
            used = process.cpu_seconds - self._seen.get(identity, 0.0)
            self._spent[process.pid == leader] += max(used, 0.0)
            seen[identity] = process.cpu_seconds
        self._seen = seen


def _lives(process: ProcessInfo) -> bool:
    return process.state not in "ZX" or process.threads > 1


def _named(living: Sequence[ProcessInfo]) -> str:
    """The first of those that stand still."""
    first = next(p for p in living if p.state in _STANDS)
    return f"{first.comm} (pid {first.pid})"


def _counts(living: Sequence[ProcessInfo]) -> dict[str, int]:
    cores = {p.pid for p in living if _is_core(p.comm)}
    return {
        "members": len(living),
        "cores": len(cores),
        # What a worker forks bears its title until it is another program, and comes and goes.
        "workers": sum(_titled(p.comm, "Worker") and p.ppid in cores for p in living),
        "stopped_members": sum(p.state in _STANDS for p in living),
        "uninterruptible_members": sum(p.state == "D" for p in living),
        "compilers": sum(_is_compiler(p.comm) for p in living),
        "rss_bytes": sum(p.rss_bytes for p in living),
    }


def _is_core(comm: str) -> bool:
    return _titled(comm, "EngineCore") or comm.startswith("EngineCore")


def _titled(comm: str, title: str) -> bool:
    """Whether ``comm`` is ``PREFIX::title…``, perhaps cut; the prefix is the user's to choose."""
    _, colons, rest = comm.rpartition("::")
    if rest.startswith(title):
        return bool(colons)
    cut = len(comm.encode()) >= _COMM_LENGTH and bool(rest)
    return bool(colons) and cut and title.startswith(rest)


def _is_compiler(comm: str) -> bool:
    """With or without a version or a target in the name: ``gcc-12``, ``x86_64-linux-gnu-g++``."""
    name = comm.rstrip("0123456789.-") or comm
    return name in _COMPILERS or name.rpartition("-")[2] in _COMPILERS


def _build(_: Settings, target: EngineTarget) -> EngineProcess:
    return EngineProcess(target)


PROBE = ProbeSpec(
    name="engine_process",
    subject_kind=SubjectKind.ENGINE,
    settings=Settings,
    samples=(
        SampleSpec("leader_alive", bool, "", "Whether the engine's first process lives."),
        SampleSpec("members", int, "", "Living processes of the engine."),
        SampleSpec("cores", int, "", "Living EngineCore processes, known by their titles."),
        SampleSpec("workers", int, "", "Living Worker processes that an EngineCore started."),
        SampleSpec("stopped_members", int, "", "Processes that a signal or a tracer stopped."),
        SampleSpec("stopped", str, "", "The name and pid of the first of them."),
        SampleSpec("uninterruptible_members", int, "", "Processes in uninterruptible sleep."),
        SampleSpec("compilers", int, "", "Compilers and linkers that run below the engine."),
        SampleSpec(
            "cpu_seconds",
            float,
            "seconds",
            "CPU time of all processes of this start, those that ended included.",
            counter=True,
        ),
        SampleSpec(
            "core_cpu_seconds",
            float,
            "seconds",
            "CPU time of all processes of this start but the first.",
            counter=True,
        ),
        SampleSpec("rss_bytes", int, "bytes", "Resident memory, shared pages counted each time."),
        SampleSpec("log_bytes", int, "bytes", "What this start has written to its log."),
    ),
    build=_build,
    period=1.0,
    timeout=5.0,
)
