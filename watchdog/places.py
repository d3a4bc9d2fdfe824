"""Where an engine writes and reads files, as its command and its environment say it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from watchdog.command_line import CommandError, EngineCommand, Form, describe

SHM = "/dev/shm"  # noqa: S108 - where the kernel's shared memory is
LOG = "log"
"""The purpose of the directory of an engine's log, which is opened for it."""
RING_BYTES = 240 << 20
"""vLLM's ring buffer from the workers to the engine (240 MiB nominal, sparse); that to the workers
is ten chunks of ``VLLM_MQ_MAX_CHUNK_BYTES_MB``. In the 64 MB that a container has by default the
engine dies of SIGBUS under load, not at its start."""
_CHUNKS = 10
_CHUNK_MIB = 16
_MIB = 1 << 20
_VLLM = frozenset({Form.SERVE, Form.API_SERVER})
_TEMPORARY = ("TMPDIR", "TEMP", "TMP")
_TMP = "/tmp"  # noqa: S108 - where everybody's temporary files are
_WRAPPED = 12
"""Words in front of the engine that are looked through for an ``env``."""


@dataclass(frozen=True, slots=True)
class Place:
    """A directory, or a file, of an engine.

    ``vital`` when it cannot start without, ``written`` when it must be able to write there,
    ``grows`` when it may write there: what is downloaded may be there already.
    """

    purpose: str
    path: str
    vital: bool = False
    written: bool = True
    grows: bool = True


@dataclass(frozen=True, slots=True)
class EnginePlaces:
    """What one engine uses. ``shm_bytes`` is what its workers want of shared memory, 0 for none."""

    places: tuple[Place, ...]
    shm_bytes: int = 0


def of_engine(
    command: Sequence[str], environment: Mapping[str, str], log: str = ""
) -> EnginePlaces:
    """Of an engine that is started so; ``log`` is the path of its log, "" when nobody knows.

    A command that cannot be read says nothing, and its environment still does.
    """
    around = {**environment, **assigned(command)}
    try:
        said = describe(command, around, {})
    except CommandError:
        return EnginePlaces(tuple(_usual(around, log)))
    if said.form not in _VLLM:
        return EnginePlaces((*_usual(around, log), *_model(said)))
    ranks = said.tensor_parallel * said.pipeline_parallel
    found = (*_usual(around, log), *_caches(around), *_model(said))
    return EnginePlaces(found, shm_bytes_wanted(around) if ranks > 1 else 0)


def shm_bytes_wanted(environment: Mapping[str, str]) -> int:
    """Bytes of shared memory for an engine with several workers: both ring buffers."""
    told = environment.get("VLLM_MQ_MAX_CHUNK_BYTES_MB", "")
    chunk = int(told) if told.isdecimal() and len(told) < 6 else _CHUNK_MIB  # noqa: PLR2004
    return RING_BYTES + _CHUNKS * chunk * _MIB


def assigned(command: Sequence[str]) -> dict[str, str]:
    """The variables that an ``env`` in front of the engine sets: ``env A=b vllm serve``."""
    found: dict[str, str] = {}
    inside = False
    for word in command[:_WRAPPED]:
        name, equals, value = word.partition("=")
        if Path(word).name == "env":
            inside = True
        elif inside and equals and name.isidentifier():
            found[name] = value
        elif not word.startswith("-"):
            inside = False
    return found


def _usual(environment: Mapping[str, str], log: str) -> Iterator[Place]:
    """Of any engine."""
    yield Place("temporary files", _temporary(environment), vital=True)
    if log:
        yield Place(LOG, str(Path(log).parent))


def _caches(environment: Mapping[str, str]) -> Iterator[Place]:
    """Of vLLM."""
    told = environment.get
    home = told("HOME") or os.path.expanduser("~")  # noqa: PTH111 - a Path raises for who has none
    cache = told("XDG_CACHE_HOME") or f"{home}/.cache"
    temporary = _temporary(environment)
    hub = told("HF_HUB_CACHE") or told("HF_HOME") or f"{cache}/huggingface"
    yield Place("models", hub, written=False)
    yield Place("compile cache", told("VLLM_CACHE_ROOT") or f"{cache}/vllm")
    yield Place("compiled kernels", told("TORCHINDUCTOR_CACHE_DIR") or temporary)
    yield Place("Triton cache", told("TRITON_CACHE_DIR") or f"{home}/.triton")
    sockets = told("VLLM_RPC_BASE_PATH")
    if sockets:
        yield Place("sockets", sockets, vital=True)


def _model(said: EngineCommand) -> Iterator[Place]:
    """Where the model is, when the command names a directory and no repository."""
    if said.model.startswith("/"):
        yield Place("model", said.model, written=False, grows=False)


def _temporary(environment: Mapping[str, str]) -> str:
    """Not asked of tempfile, which tries to write: with that full it goes elsewhere, or fails."""
    named = (around.get(name) for around in (environment, os.environ) for name in _TEMPORARY)
    return next(filter(None, named), _TMP)
