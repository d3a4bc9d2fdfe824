"""The script that people put into cron: pgrep, curl, pkill; here every 5 s, in a loop.

Its pattern holds the folder of this run and the port of this worker: no stranger can match it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tests.perf.peers.processes import called, end, spawned, waited
from tests.perf.peers.s6 import script
from tests.perf.peers.subject import Kept, Subject, Trial, Worker

PERIOD = 5
_DEFAULT = """\
#!/bin/bash
pattern='{pattern}'
if pgrep -f "$pattern" >/dev/null && curl --silent --head --fail {url} >/dev/null; then exit 0; fi
pkill -f "$pattern"
nohup {command} >/dev/null 2>&1 &
"""
_TUNED = """\
#!/bin/bash
exec 9>{folder}/lock
flock --nonblock 9 || exit 0
pattern='{pattern}'
if pgrep -f "$pattern" >/dev/null && curl --silent --head --fail --max-time 3 {url} >/dev/null
then exit 0; fi
pkill -KILL -f "$pattern"
nohup {command} >/dev/null 2>&1 9>&- &
"""


def _script(worker: Worker, *, tuned: bool) -> Path:
    path = worker.folder / "check.sh"
    text = (_TUNED if tuned else _DEFAULT).format(
        pattern=worker.pattern,
        url=worker.url,
        folder=worker.folder,
        command=" ".join(worker.command),
    )
    script(path, text)
    return path


@contextlib.contextmanager
def _keep(trial: Trial, *, tuned: bool) -> Iterator[Kept]:
    paths = [str(_script(worker, tuned=tuned)) for worker in trial.workers]
    loop = trial.folder / "cron.sh"
    every = "\n".join(f"{path} &" for path in paths)
    script(loop, f"#!/bin/bash\nwhile :; do\n{every}\nsleep {PERIOD}\ndone\n")
    pattern = trial.worker.pattern
    kill = ["pkill", *(["-KILL"] if tuned else []), "-f", pattern]

    with spawned([str(loop)], trial.folder) as root:

        def stop() -> bool:
            end(root, trial.folder)
            called(kill, trial.folder)
            return waited(lambda: not called(["pgrep", "-f", pattern], trial.folder).strip(), 15)

        yield Kept(root, stop)


_NEEDS = ("bash:bash", "pgrep:procps", "pkill:procps", "curl:curl", "flock:util-linux")
SUBJECTS = (
    Subject(
        "cron script",
        "default",
        "every 5 s: `pgrep -f && curl --head --fail`, else `pkill -f; nohup`",
        partial(_keep, tuned=False),
        _NEEDS,
        settle=0.6,
        phase=5.0,
        health="curl without --max-time, pkill -TERM",
    ),
    Subject(
        "cron script",
        "tuned",
        "every 5 s: flock, curl --max-time 3, pkill -KILL",
        partial(_keep, tuned=True),
        _NEEDS,
        settle=0.6,
        phase=5.0,
        health="curl --max-time 3, pkill -KILL",
    ),
)
