"""How EngineCore loads: the workers, the log lines in their order, and loads that never end."""

import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

from watchdog.simulator import litter, log_lines, start_failures, worker
from watchdog.simulator.log_lines import Log
from watchdog.simulator.options import Options
from watchdog.simulator.wire import Channel

_SHARDS = 20
_LONGEST_PAUSE = 5.0
_GROWTH = 1 << 20
_LARGEST_BALLAST = 100


@dataclass(frozen=True, slots=True)
class Workers:
    """The workers of one engine: channels by rank, pids, and our end of their death pipe."""

    channels: dict[int, Channel]
    pids: list[int]
    death_pipe: int
    ballast: list[bytes] = field(default_factory=list)


def load(options: Options, rank: int, log: Log) -> Workers:
    """Everything between the fork and ready; does not return under some faults."""
    faults = options.faults
    if "silent_start" in faults:
        _hang()
    log_lines.core_begin(log, options)
    for fault in start_failures.CORE_LINES:
        if fault in faults:
            start_failures.log_core_failure(log, fault)
            os._exit(1)
    workers = _fork_workers(options, rank)
    if "nccl_hang" in faults:
        _hang()
    log_lines.assigned(log, max(1, options.workers), 0)
    log_lines.loading(log, options)
    seconds = float(faults.get("slow_start", options.startup_time))
    _load_weights(log, seconds, workers.ballast if "slow_start" in faults else None)
    log_lines.loaded(log, seconds)
    if "never_ready" in faults:
        _hang()
    return workers


def _hang() -> None:
    while True:
        signal.pause()


def _load_weights(log: Log, seconds: float, ballast: list[bytes] | None) -> None:
    began = time.monotonic()
    steps = max(_SHARDS if ballast is not None else 2, int(seconds / _LONGEST_PAUSE))
    for done in range(1, steps + 1):
        time.sleep(max(0.0, began + seconds * done / steps - time.monotonic()))
        log_lines.shards(log, done, steps)
        if ballast is not None and len(ballast) < _LARGEST_BALLAST:
            ballast.append(os.urandom(4096) * (_GROWTH // 4096))


def _fork_workers(options: Options, engine: int) -> Workers:
    watched, held = os.pipe()
    if options.workers == 0:
        return Workers({}, [], held)
    listener, path = litter.new_listener()
    pids = [
        _fork_worker(options, worker.Place(engine, rank), path, (watched, held))
        for rank in range(options.workers)
    ]
    os.close(watched)
    channels: dict[int, Channel] = {}
    for _ in pids:
        channel = Channel(listener.accept()[0])
        channels[channel.receive()[0]["rank"]] = channel
    listener.close()
    return Workers(channels, pids, held)


def _fork_worker(options: Options, place: worker.Place, path: Path, pipe: tuple[int, int]) -> int:
    pid = os.fork()
    if pid == 0:
        worker.run(options, place, path, pipe[0])
    return pid
