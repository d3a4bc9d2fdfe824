"""Folds the readings of one engine generation into its vital signs.

A reading only ever adds what it saw. What it could not see stays as it was, with the time at which
it was last seen: absence of a sample is not news.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from watchdog.core import ranks
from watchdog.core.changing import changed
from watchdog.core.model import Reading, Seconds, Value, number
from watchdog.core.state import FusionSettings, Vitals

SERVER_ERROR = 500
"""The first HTTP status that is the server's own fault."""
_MOST = float(1 << 62)
_START_GROWTH_BYTES = 1 << 20
"""Memory noise of an idle interpreter stays far below this; loading weights far above."""


def begin(at: Seconds) -> Vitals:
    """The vitals of a generation that was spawned at ``at``."""
    return Vitals(start_sign_at=at)


def absorb(vitals: Vitals, reading: Reading, settings: FusionSettings) -> Vitals:
    """Fold one reading of an engine probe in; readings of other probes change nothing.

    After a gap a condition begins anew: nobody saw it hold in between.
    """
    match reading.probe:
        case "engine_process":
            return _process(_after_gap(vitals, reading.at, settings), reading, settings)
        case "engine_http":
            vitals = _http(_after_silence(vitals, reading.at, settings), reading)
            return _answered(vitals, reading.at)
        case "engine_metrics":
            return _answered(_metrics(vitals, reading, settings), reading.at)
        case "engine_log":
            return _log(vitals, reading)
        case _:
            return vitals


def _after_gap(vitals: Vitals, at: Seconds, settings: FusionSettings) -> Vitals:
    if not _gap(vitals.process_at, at, settings):
        return vitals
    return changed(
        vitals,
        core_gone_since=None,
        worker_gone_since=None,
        stopped_since=None,
        quiet_since=None,
        cpu_seconds=None,
        start_sign_at=at,
    )


def _after_silence(vitals: Vitals, at: Seconds, settings: FusionSettings) -> Vitals:
    if not _gap(vitals.health_at, at, settings):
        return vitals
    return changed(
        vitals,
        health="",
        health_since=None,
        canary_since=None,
        timeouts=0,
        failing_since=None,
        answered_at=None,
    )


def _gap(seen_at: Seconds | None, at: Seconds, settings: FusionSettings) -> bool:
    return seen_at is not None and at - seen_at > settings.stale_after


def _flat(reading: Reading) -> Mapping[str, Value]:
    return {sample.sample: sample.value for sample in reading.samples if not sample.labels}


def _number(values: Mapping[str, Value], name: str, default: float) -> float:
    value = values.get(name, default)
    return number(value) if not isinstance(value, str) else default


def _count(values: Mapping[str, Value], name: str, default: int = 0) -> int:
    """A whole number; what no machine can count to is the most that it can."""
    value = _number(values, name, default)
    return default if math.isnan(value) else int(min(max(value, -_MOST), _MOST))


def _since(before: Seconds | None, at: Seconds, *, holds: bool) -> Seconds | None:
    if not holds:
        return None
    return at if before is None else before


def _process(vitals: Vitals, reading: Reading, settings: FusionSettings) -> Vitals:
    values = _flat(reading)
    if "members" not in values:
        return vitals
    at = reading.at
    cores = _count(values, "cores")
    stopped = _count(values, "stopped_members")
    compilers = _count(values, "compilers")
    core_seen = vitals.core_seen or cores > 0
    more = {
        **_start_signs(vitals, values, at),
        **_cpu(vitals, values, at, settings),
        **_workers(vitals, cores, _count(values, "workers"), at),
    }
    return changed(
        vitals,
        **more,  # type: ignore[arg-type]  # fields and types as named there
        process_at=at,
        leader_alive=bool(values.get("leader_alive", False)),
        members=_count(values, "members"),
        cores=cores,
        core_seen=core_seen,
        core_gone_since=_since(vitals.core_gone_since, at, holds=core_seen and cores == 0),
        stopped_members=stopped,
        stopped=str(values.get("stopped", "")),
        stopped_since=_since(vitals.stopped_since, at, holds=stopped > 0),
        compilers=compilers,
        compilers_at=at if compilers else vitals.compilers_at,
    )


def _workers(
    vitals: Vitals, cores: int, workers: int, at: Seconds
) -> Mapping[str, int | Seconds | None]:
    """An engine with one rank ends with any of its workers; several ranks come and go in life."""
    cores_most = max(vitals.cores_most, cores)
    workers_most = max(vitals.workers_most, workers)
    missing = cores_most == cores == 1 and workers < workers_most
    return {
        "cores_most": cores_most,
        "workers_most": workers_most,
        "worker_gone_since": _since(vitals.worker_gone_since, at, holds=missing),
    }


def _start_signs(
    vitals: Vitals, values: Mapping[str, Value], at: Seconds
) -> Mapping[str, int | Seconds | None]:
    """Log lines, memory growth and new children are progress of a start; CPU time alone is not."""
    rss = _count(values, "rss_bytes", vitals.rss_bytes)
    log = _count(values, "log_bytes", vitals.log_bytes)
    members = _count(values, "members")
    moved = (
        log > vitals.log_bytes
        or members > vitals.members
        or rss > vitals.rss_bytes + _START_GROWTH_BYTES
    )
    return {
        "log_bytes": log,
        "rss_bytes": rss if moved else vitals.rss_bytes,
        "start_sign_at": at if moved else vitals.start_sign_at,
    }


def _cpu(
    vitals: Vitals, values: Mapping[str, Value], at: Seconds, settings: FusionSettings
) -> Mapping[str, Seconds | None]:
    told = values.get("cpu_seconds")
    if told is None or isinstance(told, str):
        return {"cpu_seconds": None, "quiet_since": None}
    quiet, cpu = False, number(told)
    if vitals.cpu_seconds is not None and vitals.process_at is not None:
        elapsed = max(at - vitals.process_at, 1e-3)
        quiet = (cpu - vitals.cpu_seconds) / elapsed < settings.quiet_cores
    began = vitals.process_at if vitals.quiet_since is None else vitals.quiet_since
    return {"cpu_seconds": cpu, "quiet_since": began if quiet else None}


def _http(vitals: Vitals, reading: Reading) -> Vitals:
    values = _flat(reading)
    health = values.get("health")
    if isinstance(health, str):
        since = vitals.health_since if health == vitals.health else reading.at
        vitals = changed(vitals, health=health, health_at=reading.at, health_since=since)
    canary = values.get("canary")
    if isinstance(canary, str) and canary != "skipped":
        vitals = _canary(vitals, canary, _count(values, "canary_status"), reading)
    return vitals


def _canary(vitals: Vitals, canary: str, status: int, reading: Reading) -> Vitals:
    at, sent = reading.at, reading.at - reading.took
    same = (canary, is_fault(status)) == (vitals.canary, is_fault(vitals.canary_status))
    since = vitals.canary_since if same and vitals.canary_since is not None else sent
    vitals = changed(vitals, canary=canary, canary_at=at, canary_status=status, canary_since=since)
    if vitals.still and canary in {"ok", "timeout"} and ranks.is_asked(vitals):
        vitals = changed(vitals, asked=vitals.asked + 1)
    match canary:
        case "ok":
            return progressed(vitals, at)
        case "timeout" if (vitals.progressed_at or 0.0) > sent:
            return vitals  # tokens moved after it was sent: they speak louder
        case "timeout":
            failing = vitals.failing_since if vitals.failing_since is not None else sent
            return changed(vitals, timeouts=vitals.timeouts + 1, failing_since=failing)
        case _:
            return changed(vitals, timeouts=0, failing_since=None)


def is_fault(status: int) -> bool:
    """A server's own error or no whole answer (0), as against a request that it refuses."""
    return status >= SERVER_ERROR or status == 0


def answers(vitals: Vitals) -> bool:
    """Whether a starting engine has shown what it can: a token, or the named lack of one.

    An engine that asks for a key we do not have, sleeps, or answers every completion with an
    error has finished starting too.
    """
    if vitals.health != "ok":
        return False
    answered = vitals.canary == "failed" and vitals.canary_status > 0
    return vitals.sleeping or answered or vitals.canary in {"ok", "unauthorized"}


def _answered(vitals: Vitals, at: Seconds) -> Vitals:
    if vitals.answered_at is not None or not answers(vitals):
        return vitals
    return changed(vitals, answered_at=at)


def unread(vitals: Vitals, at: Seconds) -> Vitals:
    """From ``at`` on its log has to show something else: only a look that begins later tells."""
    return changed(vitals, expected_missing=None, expected_at=at)


def _log(vitals: Vitals, reading: Reading) -> Vitals:
    """What has appeared in a log stays in it."""
    missing = _flat(reading).get("expected_missing")
    if not isinstance(missing, str) or vitals.expected_missing == "":
        return vitals
    began, since = reading.at - reading.took, vitals.expected_at
    if vitals.expected_missing is None and since is not None and began < since:
        return vitals  # it looked for what was expected before
    return changed(vitals, expected_missing=missing, expected_at=reading.at)


def progressed(vitals: Vitals, at: Seconds) -> Vitals:
    """Tokens moved at ``at``: whatever looked like a stall before then was none."""
    return changed(vitals, progressed_at=at, **_PROGRESSED)  # type: ignore[arg-type]  # as named


_PROGRESSED: Mapping[str, int | None] = {
    "timeouts": 0,
    "failing_since": None,
    "canary_since": None,
}


def _metrics(vitals: Vitals, reading: Reading, settings: FusionSettings) -> Vitals:
    """Counters that rose are progress; that fell, a restart of the page. First sight is neither."""
    progress = _by_rank(reading, "progress")
    if not progress:
        return vitals
    before = dict(vitals.progress)
    rose = any(value > before.get(rank, value) for rank, value in progress.items())
    proof = {"progressed_at": reading.at, **_PROGRESSED} if rose else {}
    running, waiting = _by_rank(reading, "running"), _by_rank(reading, "waiting")
    return changed(
        vitals,
        **proof,  # type: ignore[arg-type]  # fields and types as named there
        **ranks.looked(vitals, reading.at, progress, (running, waiting), settings),
        metrics_at=reading.at,
        progress=tuple(sorted(progress.items())),
        running=_total(running),
        waiting=_total(waiting),
        sleeping=any(s.sample == "sleeping" and bool(s.value) for s in reading.samples),
    )


def _by_rank(reading: Reading, name: str) -> dict[str, float]:
    return {
        dict(s.labels).get("rank", "0"): number(s.value)
        for s in reading.samples
        if s.sample == name and not isinstance(s.value, str)
    }


def _total(values: Mapping[str, float]) -> float | None:
    return sum(values.values()) if values else None
