"""supervisord, with httpok of superlance where health is asked."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial

from tests.perf.peers import pip
from tests.perf.peers.processes import called, spawned
from tests.perf.peers.subject import Kept, Purpose, Subject, Trial, Worker

_HEAD = """\
[supervisord]
nodaemon=true
logfile={folder}/supervisord.log
pidfile={folder}/supervisord.pid
[unix_http_server]
file={folder}/sock
[rpcinterface:supervisor]
supervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface
[supervisorctl]
serverurl=unix://{folder}/sock
"""
_TUNED = """\
autorestart=true
startsecs=5
startretries=3
stopwaitsecs=5
stopasgroup=true
killasgroup=true
"""


def _program(worker: Worker, trial: Trial, *, tuned: bool) -> str:
    text = f"[program:{worker.name}]\ncommand={' '.join(worker.command)}\n"
    text += _TUNED if tuned else ""
    if trial.purpose.asks_health or (tuned and trial.purpose is Purpose.IDLE):
        wait, tick = (3, 5) if tuned else (10, 60)
        text += f"[eventlistener:httpok-{worker.name}]\nevents=TICK_{tick}\n"
        text += f"command={pip.program('httpok')} -p {worker.name} -t {wait} {worker.url}\n"
    return text


@contextlib.contextmanager
def _keep(trial: Trial, *, tuned: bool) -> Iterator[Kept]:
    file = trial.folder / "supervisord.conf"
    programs = (_program(worker, trial, tuned=tuned) for worker in trial.workers)
    file.write_text(_HEAD.format(folder=trial.folder) + "".join(programs))

    def stop() -> bool:
        control = [pip.program("supervisorctl"), "-c", str(file), "stop", trial.worker.name]
        return "stopped" in called(control, trial.folder)

    with spawned([pip.program("supervisord"), "-c", str(file)], trial.folder) as root:
        yield Kept(root, stop)


_NEEDS = tuple(
    f"{pip.program(name)}:{package}"
    for name, package in (("supervisord", "supervisor (pip)"), ("httpok", "superlance (pip)"))
)
SUBJECTS = (
    Subject(
        "supervisord",
        "default",
        "startsecs 1, startretries 3, stopwaitsecs 10, no group signals",
        partial(_keep, tuned=False),
        _NEEDS,
        settle=1.5,
        phase=1.0,
        health="httpok TICK_60 -t 10, as documented",
    ),
    Subject(
        "supervisord",
        "tuned",
        _TUNED.replace("\n", " ").strip(),
        partial(_keep, tuned=True),
        _NEEDS,
        settle=5.5,
        phase=1.0,
        health="httpok TICK_5 -t 3",
    ),
)
