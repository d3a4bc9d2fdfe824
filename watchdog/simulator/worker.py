"""``VLLM::Worker``: the child of EngineCore that makes the tokens, step by step."""

import os
import select
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from watchdog.simulator import litter, log_lines
from watchdog.simulator.offspring import close_all_but
from watchdog.simulator.options import Options
from watchdog.simulator.titles import set_title
from watchdog.simulator.wire import Channel


@dataclass(frozen=True, slots=True)
class Place:
    """Which worker of which engine."""

    engine: int
    rank: int


def run(options: Options, place: Place, path: Path, death_pipe: int) -> NoReturn:
    """Serve steps until EngineCore dies: the death pipe's other end closes with it."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    close_all_but(death_pipe)
    name = log_lines.worker_name(place.engine, place.rank, options)
    log = log_lines.Log(name)
    set_title(f"VLLM::{name}")
    log_lines.world(log, options.workers, place.rank)
    channel = Channel(litter.connect(path))
    channel.send({"rank": place.rank})
    _serve(channel, death_pipe)
    log.note("multiproc_executor.py:750", "Parent process exited, terminating worker queues")
    os._exit(0)


def _serve(channel: Channel, death_pipe: int) -> None:
    while True:
        readable, _, _ = select.select([channel.fileno(), death_pipe], [], [])
        if death_pipe in readable:
            return
        try:
            messages = channel.receive()
        except EOFError:
            return
        for message in messages:
            if message["do"] == "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            else:
                channel.send({"done": message["step"]})
