"""What the next watchdog has to know of how a generation was started, kept with its record.

Its command and environment may hold keys: of them only a hash is kept, salted with the generation.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from watchdog import procfs
from watchdog.contracts import Endpoint
from watchdog.ledger import GenerationRecord
from watchdog.supervisor import tempdirs
from watchdog.supervisor.ladder import StopSettings
from watchdog.supervisor.spawn import Launch, lasting, without_secrets

_CARDS = "CUDA_VISIBLE_DEVICES"
_PLACE = ("host", "port", "tls", "uds", "root_path", "served_name")


@dataclass(frozen=True, slots=True)
class Launched:
    """``cards`` is CUDA_VISIBLE_DEVICES as the engine got it, None when it had none.

    ``cgroup`` is the path of its own cgroup, "" when it has none.
    """

    fingerprint: str
    endpoint: Endpoint
    stop: StopSettings
    cards: str | None = None
    cgroup: str = ""


def new_id() -> str:
    """What tells a generation from all others."""
    return os.urandom(8).hex()


def planned(
    launch: Launch,
    endpoint: Endpoint,
    stop: StopSettings,
    *,
    name: str = "",
    cgroup: str = "",
) -> GenerationRecord:
    """The record of a start that is about to happen, of the generation ``name``."""
    name = name or new_id()
    return GenerationRecord(
        id=name,
        engine=launch.engine,
        tempdir=str(tempdirs.name()),
        log_path=str(launch.log_path),
        log_offset=_size(launch.log_path),
        port=endpoint.port,
        command=without_secrets(launch.command),
        boot_id=procfs.boot_id(),
        planned_at=time.monotonic(),
        planned_wall=time.time(),
        launched=written(name, launch, endpoint, stop, cgroup),
    )


def written(
    generation: str, launch: Launch, endpoint: Endpoint, stop: StopSettings, cgroup: str = ""
) -> str:
    """All of it as a text without secrets."""
    return json.dumps(
        {
            "fingerprint": fingerprint(generation, launch),
            "endpoint": {name: getattr(endpoint, name) for name in _PLACE},
            "stop": asdict(stop),
            "cards": lasting(launch).get(_CARDS),
            "cgroup": cgroup,
        }
    )


def read(record: GenerationRecord) -> Launched | None:
    """What ``written`` wrote; None for what another version wrote, or nobody."""
    try:
        told: dict[str, Any] = json.loads(record.launched)
        return Launched(
            fingerprint=str(told["fingerprint"]),
            endpoint=Endpoint(**told["endpoint"]),
            stop=StopSettings(
                **{f.name: float(told["stop"][f.name]) for f in fields(StopSettings)}
            ),
            cards=None if told["cards"] is None else str(told["cards"]),
            cgroup=str(told.get("cgroup", "")),
        )
    except (ValueError, TypeError, KeyError):
        return None


def fingerprint(generation: str, launch: Launch) -> str:
    """Equal for two launches of one generation exactly when they make the same process."""
    parts = (generation, launch.command, sorted(launch.env.items()), launch.gpus, launch.cwd)
    return hashlib.sha256(json.dumps(parts).encode(errors="surrogateescape")).hexdigest()


def differs(record: GenerationRecord, launch: Launch, endpoint: Endpoint) -> bool:
    """Whether ``launch`` would make another process than the one that is recorded.

    Of a record without a word about it only the port tells.
    """
    told = read(record)
    if told is None:
        return record.port != endpoint.port
    return told.fingerprint != fingerprint(record.id, launch)


def of_record(
    record: GenerationRecord, launch: Launch, endpoint: Endpoint, stop: StopSettings
) -> tuple[Launch, Endpoint, StopSettings]:
    """How the recorded generation was started, where it differs from what is configured.

    A key is that of the configuration: none is kept.
    """
    told = read(record)
    patience = stop if told is None else told.stop
    if not differs(record, launch, endpoint):
        at = endpoint if told is None else told.endpoint
        place = replace(endpoint, host=at.host, port=at.port, uds=at.uds)
        return launch, place, patience
    log = Path(record.log_path)
    if told is None:
        return replace(launch, log_path=log), replace(endpoint, port=record.port), patience
    env = {} if told.cards is None else {_CARDS: told.cards}
    was = Launch(record.engine, record.command, log, env)
    return was, replace(told.endpoint, api_key=endpoint.api_key), patience


def stray(record: GenerationRecord) -> tuple[Launch, Endpoint, StopSettings]:
    """As ``of_record``, of an engine that is not configured."""
    launch = Launch(record.engine, record.command, Path(record.log_path))
    return of_record(record, launch, Endpoint("127.0.0.1", record.port), StopSettings())


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
