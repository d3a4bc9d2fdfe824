"""Stands for a watchdog that is killed: starts an engine, tells what it recorded, and sleeps.

``python left_behind.py ROOT DIRECTORY PORT MODE COMMAND…`` prints one JSON line. With MODE
``planned`` it keeps the spawn to itself, as when death comes between the spawn and its record.
"""

import dataclasses
import json
import signal
import sys
from pathlib import Path

if __name__ == "__main__":
    root, directory, port, mode, *command = sys.argv[1:]
    sys.path.insert(0, root)

    from tests.support.simulated import until
    from watchdog.contracts import Endpoint
    from watchdog.core.model import Cause
    from watchdog.supervisor.engine import EngineSettings, SupervisedEngine, Surroundings
    from watchdog.supervisor.exits import ExitWatch
    from watchdog.supervisor.household import Household, become_reaper
    from watchdog.supervisor.memory_ledger import MemoryLedger
    from watchdog.supervisor.spawn import Launch

    become_reaper()
    ledger = MemoryLedger()
    log = Path(directory) / "log"
    engine = SupervisedEngine(
        EngineSettings(Launch("main", tuple(command), log), Endpoint("127.0.0.1", int(port))),
        Surroundings(Household(), ExitWatch(), ledger, lambda _: None),
    )
    engine.start(Cause.OPERATOR)
    until(lambda: log.exists() and "ready=" in log.read_text())
    found = [info.pid for info in engine.processes()]
    (record,) = ledger.living("main")
    members = ledger.members_of(record.id)
    if mode == "planned":
        record = dataclasses.replace(record, pid=None, start_ticks=None, spawned_at=None)
        members = ()
    answer = {"record": dataclasses.asdict(record), "members": members, "pids": found}
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
    signal.pause()
