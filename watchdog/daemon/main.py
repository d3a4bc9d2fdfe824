"""From a command line to a running watchdog, and to its exit code."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from watchdog import config as configuration
from watchdog import registry
from watchdog.command_line import describe
from watchdog.config import Config, ConfigError, WatchdogMode
from watchdog.daemon.service import Service
from watchdog.daemon.wiring import RuleError, build_rules, simulated_command
from watchdog.logs import open_journal
from watchdog.options import RunOptions
from watchdog.supervisor.lock import Lock, LockHeldError, lock_directory, lock_port
from watchdog.web.server import ListenError

USAGE = 2
LOCKED = 69
GAVE_UP = 75
_FLUSH = 2.0
"""Seconds for the last log lines; a blocked destination must not keep us alive."""


def run(options: RunOptions) -> int:
    """Run until told to stop. The exit code is that of the command line."""
    try:
        config = _configured(options)
        rules = build_rules(config, registry.actions())
        state_dir, trouble = _state_dir(options)
        locks = _locked(config, state_dir, writable=not trouble)
    except (ConfigError, RuleError, registry.RegistryError) as error:
        return _refused(str(error), USAGE)
    except LockHeldError as error:
        return _refused(str(error), LOCKED)
    try:
        journal = open_journal(config.watchdog.log)
    except OSError as error:
        return _refused(f"cannot open the log {config.watchdog.log}: {error.strerror}", USAGE)
    for text in (*trouble, *config.warnings):
        journal.log("warning", "watchdog.degraded", reason=text)
    try:
        service = Service(config, rules, state_dir, journal, durable=not trouble)
        gave_up = service.run(leave=options.leave_on_exit)
    except ListenError as error:
        return _refused(str(error), USAGE)
    finally:
        journal.flush(_FLUSH)
        locks.release()
    return GAVE_UP if gave_up else 0


def _refused(text: str, code: int) -> int:
    print(text, file=sys.stderr)  # noqa: T201 - the answer to a person who typed a command
    return code


def _configured(options: RunOptions) -> Config:
    kinds = {name: spec.settings for name, spec in registry.probes().items()}
    command = simulated_command() if options.simulate else options.command
    path = configuration.find(options.config, os.environ)
    config = configuration.load(path, kinds, command)
    if not config.engine:
        raise ConfigError(
            ["no engine: give its command after --, or an [engine.NAME] in the configuration"]
        )
    changes: dict[str, object] = {}
    if options.listen is not None:
        try:
            configuration.listen_address(options.listen)
        except ValueError as error:
            raise ConfigError([f"--listen: {error}"]) from error
        changes["listen"] = options.listen
    if options.mode is not None:
        changes["mode"] = WatchdogMode(options.mode)
    watchdog = msgspec.structs.replace(config.watchdog, **changes)
    return msgspec.structs.replace(config, watchdog=watchdog)


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


@dataclass(slots=True)
class _Locks:
    """Everything that keeps a second watchdog away."""

    held: list[Lock] = field(default_factory=list)

    def release(self) -> None:
        for lock in self.held:
            lock.release()


def _locked(config: Config, state_dir: Path, *, writable: bool) -> _Locks:
    locks = _Locks()
    try:
        if writable:
            locks.held.append(lock_directory(state_dir))
        for port in sorted(_ports(config)):
            locks.held.append(lock_port(port))
    except LockHeldError:
        locks.release()
        raise
    return locks


def _ports(config: Config) -> set[int]:
    return {describe(e.command, e.env, os.environ).endpoint.port for e in config.engine.values()}
