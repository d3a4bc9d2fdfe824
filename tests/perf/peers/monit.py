"""monit, with start-stop-daemon, as its packages do, and its own test of HTTP."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial

from tests.perf.peers.processes import called, spawned, waited
from tests.perf.peers.subject import Kept, Purpose, Subject, Trial, Worker

_HEAD = """\
set daemon 1
set log {folder}/monit.log
set pidfile {folder}/monit.pid
set idfile {folder}/monit.id
set statefile {folder}/monit.state
set httpd unixsocket {folder}/sock
  allow peers:peers
"""
_DAEMON = "/sbin/start-stop-daemon"


def _check(worker: Worker, trial: Trial, *, tuned: bool) -> str:
    pid, (program, *words) = worker.folder / "pid", worker.command
    start = f"{_DAEMON} --start --background --make-pidfile --pidfile {pid} --startas {program}"
    stop = f"{_DAEMON} --stop --pidfile {pid} --retry TERM/5/KILL/5 --remove-pidfile"
    test = f"if failed host 127.0.0.1 port {worker.port} protocol http request /health"
    test += " with timeout 2 seconds for 3 cycles" if tuned else ""
    text = f"check process {worker.name} with pidfile {pid}\n"
    text += f'  start program = "{start} -- {" ".join(words)}"\n  stop program = "{stop}"\n'
    text += f"  {test} then restart\n"
    limits = tuned and trial.purpose is not Purpose.CRASH
    return text + ("  if 3 restarts within 60 cycles then unmonitor\n" if limits else "")


@contextlib.contextmanager
def _keep(trial: Trial, *, tuned: bool) -> Iterator[Kept]:
    file = trial.folder / "monitrc"
    checks = (_check(worker, trial, tuned=tuned) for worker in trial.workers)
    file.write_text(_HEAD.format(folder=trial.folder) + "".join(checks))
    file.chmod(0o600)
    control = ["monit", "-c", str(file)]
    summary = [*control, "-B", "summary"]

    def stop() -> bool:
        called([*control, "stop", trial.worker.name], trial.folder)
        return waited(lambda: "Not monitored" in called(summary, trial.folder), 15)

    with spawned([*control, "-I"], trial.folder) as root:
        yield Kept(root, stop)


_NEEDS = ("monit:monit", f"{_DAEMON}:dpkg")
SUBJECTS = (
    Subject(
        "monit",
        "default",
        "cycle 1 s, start-stop-daemon --retry TERM/5/KILL/5, `if failed http then restart`",
        partial(_keep, tuned=False),
        _NEEDS,
        settle=1.0,
        phase=1.0,
        health="http, timeout 5 s (default), 1 failure",
        grace=32.0,
    ),
    Subject(
        "monit",
        "tuned",
        "timeout 2 s for 3 cycles, `if 3 restarts within 60 cycles then unmonitor` (not for crash)",
        partial(_keep, tuned=True),
        _NEEDS,
        settle=1.0,
        phase=1.0,
        health="http, timeout 2 s, 3 failures",
        grace=32.0,
    ),
)
