"""runit: a folder of services; tuned with a clean-up script that kills the process group."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tests.perf.peers.processes import called, spawned
from tests.perf.peers.s6 import script
from tests.perf.peers.subject import Kept, Subject, Trial, Worker

_FINISH = '#!/bin/sh\nread pgid < pgid && kill -KILL "-$pgid" 2>/dev/null\nexit 0\n'


def _service(worker: Worker, trial: Trial, *, tuned: bool) -> Path:
    folder = trial.folder / "scan" / worker.name
    folder.mkdir(parents=True)
    group = "echo $$ > pgid\nexec chpst -P" if tuned else "exec"
    script(folder / "run", f"#!/bin/sh\n{group} {' '.join(worker.command)}\n")
    if tuned:
        script(folder / "finish", _FINISH)
    return folder


@contextlib.contextmanager
def _keep(trial: Trial, *, tuned: bool) -> Iterator[Kept]:
    folders = [_service(worker, trial, tuned=tuned) for worker in trial.workers]
    words = ["sv", "-w", "5", "force-stop"] if tuned else ["sv", "stop"]

    def stop() -> bool:
        return "ok: down" in called([*words, str(folders[0])], trial.folder)

    with spawned(["runsvdir", str(trial.folder / "scan")], trial.folder) as root:
        try:
            yield Kept(root, stop)
        finally:  # runsvdir leaves its runsv behind
            for folder in folders:
                called(["sv", "-w", "1", "force-shutdown", str(folder)], trial.folder)


SUBJECTS = (
    Subject(
        "runit",
        "default",
        "`run` only, `sv stop`",
        partial(_keep, tuned=False),
        ("runsvdir:runit", "sv:runit"),
        settle=1.2,
    ),
    Subject(
        "runit",
        "tuned",
        "`chpst -P`, `finish` kills the stored process group, `sv -w 5 force-stop`",
        partial(_keep, tuned=True),
        ("runsvdir:runit", "sv:runit", "chpst:runit"),
        settle=1.2,
    ),
)
