"""The floor, not a peer: wait for the exit and spawn again, nothing else."""

from __future__ import annotations

import contextlib
import subprocess
import threading
from collections.abc import Iterator

from tests.perf.peers.processes import end, environment
from tests.perf.peers.subject import Kept, Subject, Trial


@contextlib.contextmanager
def _keep(trial: Trial) -> Iterator[Kept]:
    over, worker = threading.Event(), trial.worker

    def loop() -> None:
        while not over.is_set():
            subprocess.Popen(
                worker.command,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env=environment(trial.folder),
            ).wait()

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    try:
        yield Kept(0)
    finally:
        over.set()
        while thread.is_alive():
            for pid in worker.living():
                end(pid, trial.folder)
            thread.join(0.05)


SUBJECTS = (Subject("bare respawn", "the floor", "a thread: wait, spawn again", _keep),)
