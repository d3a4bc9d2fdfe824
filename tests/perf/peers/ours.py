"""vllm-watchdog in front of the same worker: no configuration, but where a trial needs one."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

from tests.perf.peers.processes import environment
from tests.perf.peers.subject import Kept, Purpose, Subject, Trial
from tests.support.daemon import finish, launch

UNLIMITED = """\
[policy]
backoff = { initial = "1ms", max = "1ms", jitter = 0.0 }
restart_budget = { count = 1000, window = "1h" }
boot_budget = { count = 1000, window = "1h" }
"""


def _configuration(trial: Trial) -> Path | None:
    """Limits lifted for crashes, eight engines when there are eight, else nothing."""
    file = trial.folder / "watchdog.toml"
    if trial.purpose is Purpose.CRASH:
        file.write_text(UNLIMITED)
        return file
    if len(trial.workers) > 1:
        file.write_text(
            "".join(
                f"[engine.{w.name}]\ncommand = {json.dumps(w.command)}\n" for w in trial.workers
            )
        )
        return file
    return None


@contextlib.contextmanager
def _keep(trial: Trial) -> Iterator[Kept]:
    command = trial.worker.command if len(trial.workers) == 1 else []
    daemon = launch(
        trial.folder / "state",
        command,
        trial.worker.port,
        config=_configuration(trial),
        environment=environment(trial.folder),
    )

    def stop() -> bool:
        return daemon.command("stop").returncode == 0

    try:
        yield Kept(daemon.process.pid, stop, int(daemon.listen.rpartition(":")[2]))
    finally:
        finish(daemon)


SUBJECTS = (
    Subject(
        "vllm-watchdog",
        "default",
        "`run -- COMMAND`, no configuration (crash: budgets lifted, backoff 1 ms)",
        _keep,
        health="its probes; no setting",
    ),
)
