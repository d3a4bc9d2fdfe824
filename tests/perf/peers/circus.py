"""circus, with its Flapping plugin when tuned, and HttpObserver where health is asked."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial

from tests.perf.peers import pip
from tests.perf.peers.processes import called, spawned
from tests.perf.peers.subject import Kept, Purpose, Subject, Trial, Worker
from tests.support.simulated import free_port

_FLAPPING = """\
[plugin:flapping]
use = circus.plugins.flapping.Flapping
attempts = 3
window = 30
retry_in = 5
max_retry = 3
"""


def _watcher(worker: Worker, trial: Trial, *, tuned: bool) -> str:
    text = f"[watcher:{worker.name}]\ncmd = {' '.join(worker.command)}\nnumprocesses = 1\n"
    text += "graceful_timeout = 5\nstop_children = true\n" if tuned else ""
    if trial.purpose.asks_health:
        rate, wait = (5, 3) if tuned else (60, 10)
        text += f"[plugin:http-{worker.name}]\nuse = circus.plugins.http_observer.HttpObserver\n"
        text += f"watcher = {worker.name}\ncheck_url = {worker.url}\n"
        text += f"loop_rate = {rate}\ntimeout = {wait}\nrestart_on_error = {worker.name}\n"
    return text


@contextlib.contextmanager
def _keep(trial: Trial, *, tuned: bool) -> Iterator[Kept]:
    file, endpoint = trial.folder / "circus.ini", f"tcp://127.0.0.1:{free_port()}"
    text = f"[circus]\nendpoint = {endpoint}\npubsub_endpoint = tcp://127.0.0.1:{free_port()}\n"
    text += "check_delay = 1\n" if tuned else ""
    limits = tuned and trial.purpose in {Purpose.LOOP, Purpose.IDLE, Purpose.STOP}
    text += _FLAPPING if limits else ""
    file.write_text(text + "".join(_watcher(w, trial, tuned=tuned) for w in trial.workers))

    def stop() -> bool:
        control = [pip.program("circusctl"), "--endpoint", endpoint, "--timeout", "40"]
        words = [*control, "stop", "--waiting", trial.worker.name]
        return "ok" in called(words, trial.folder, 45)

    with spawned([pip.program("circusd"), str(file)], trial.folder) as root:
        yield Kept(root, stop)


_NEEDS = (f"{pip.program('circusd')}:circus (pip)",)
SUBJECTS = (
    Subject(
        "circus",
        "default",
        "check_delay 5, graceful_timeout 30, no plugins",
        partial(_keep, tuned=False),
        _NEEDS,
        settle=1.0,
        phase=5.0,
        health="HttpObserver loop_rate 60, timeout 10, its defaults",
    ),
    Subject(
        "circus",
        "tuned",
        "check_delay=1 graceful_timeout=5 stop_children=true, Flapping 3 in 30 s (not for crash)",
        partial(_keep, tuned=True),
        _NEEDS,
        settle=1.0,
        phase=1.0,
        health="HttpObserver loop_rate 5, timeout 3",
    ),
)
