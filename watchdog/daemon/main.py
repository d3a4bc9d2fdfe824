"""From a command line to a running watchdog, and to its exit code."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from watchdog import config as configuration
from watchdog import registry
from watchdog.config import Config, ConfigError
from watchdog.daemon.blind import blind_spots
from watchdog.daemon.configured import Source, ports_of
from watchdog.daemon.locks import Locks
from watchdog.daemon.plan import InForce
from watchdog.daemon.service import Service
from watchdog.logs import open_journal
from watchdog.options import RunOptions
from watchdog.rules import RuleError, build_rules
from watchdog.supervisor.lock import LockHeldError, lock_directory
from watchdog.supervisor.tempdirs import NowhereError
from watchdog.web.server import ListenError

USAGE = 2
LOCKED = 69
GAVE_UP = 75
_FLUSH = 2.0
"""Seconds for the last log lines; a blocked destination must not keep us alive."""


def run(options: RunOptions) -> int:
    """Run until told to stop. The exit code is that of the command line."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # what is not read yet needs no second reading
    locks = Locks()
    try:
        source = Source.of(options)
        config = source.read()
        rules = build_rules(
            config.rule, registry.probes(), registry.actions(), config.file, config.actions
        )
        state_dir, trouble = _state_dir(options)
        _lock(locks, config, state_dir, writable=not trouble)
    except (ConfigError, RuleError) as error:
        return _refused("\n".join(error.lines), USAGE)
    except registry.RegistryError as error:
        return _refused(str(error), USAGE)
    except LockHeldError as error:
        locks.release()
        return _refused(str(error), LOCKED)
    try:
        journal = open_journal(config.watchdog.log)
    except OSError as error:
        return _refused(f"cannot open the log {config.watchdog.log}: {error.strerror}", USAGE)
    for text in (*trouble, *config.warnings):
        journal.log("warning", "watchdog.degraded", reason=text)
    if unseen := blind_spots():
        journal.log("warning", "watchdog.blind", reason="; ".join(unseen))
    try:
        now = InForce(config, rules)
        lacks = (*trouble, *unseen)
        service = Service(source, now, locks, state_dir, journal, durable=not trouble, lacks=lacks)
        gave_up = service.run(leave=options.leave_on_exit)
    except (ListenError, NowhereError) as error:
        return _refused(str(error), USAGE)
    finally:
        journal.flush(_FLUSH)
        locks.release()
    return GAVE_UP if gave_up else 0


def _refused(text: str, code: int) -> int:
    print(text, file=sys.stderr)  # noqa: T201 - the answer to a person who typed a command
    return code


def _state_dir(options: RunOptions) -> tuple[Path, tuple[str, ...]]:
    """The directory, and one line of trouble when nothing can be kept in it."""
    path = configuration.state_dir(options.state_dir, os.environ)
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / f".writable-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        text = f"cannot write to {path}: {error.strerror}: budgets and adoption end with us"
        return path, (text,)
    return path, ()


def _lock(locks: Locks, config: Config, state_dir: Path, *, writable: bool) -> None:
    """Everything that keeps a second watchdog away. Raises LockHeldError."""
    if writable:
        locks.hold(lock_directory(state_dir))
    locks.add(locks.taken(ports_of(config)))
