"""The configuration of this run: the same file and the same words of the command line each time."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from watchdog import config as configuration
from watchdog import registry
from watchdog.command_line import CommandError, EngineCommand, describe
from watchdog.config import Config, ConfigError, EngineConfig, WatchdogMode
from watchdog.config.reading import join
from watchdog.core.state import Attach
from watchdog.options import RunOptions

SIMULATED_PORT = 8000
"""vLLM's own default, so that whoever knows vLLM finds the simulator where it would be."""


_NO_ENGINE = "no engine: give its command after --, or an [engine.NAME] in the configuration"
_BESIDE = "--attach: expected attach of every other [engine.NAME] in the configuration too"
_OTHERWISE = "--no-engine: expected no [engine.NAME] in the configuration"


def simulated_command() -> tuple[str, ...]:
    """The embedded engine's command line."""
    return (sys.executable, "-m", "watchdog.simulator", "--port", str(SIMULATED_PORT))


@dataclass(frozen=True, slots=True)
class Source:
    """What is read at the start and by every reload. ``path`` None: built-in defaults."""

    path: Path | None
    options: RunOptions

    @classmethod
    def of(cls, options: RunOptions) -> Source:
        """The file that counts now counts for as long as this process lives."""
        return cls(configuration.find(options.config, os.environ), options)

    def read(self) -> Config:
        """The effective configuration, judged. Raises ConfigError."""
        command = simulated_command() if self.options.simulate else self.options.command
        attach = None if self.options.attach is None else Attach(self.options.attach)
        config = configuration.load(self.path, registry.plug_ins(), command, attach)
        if attach is not None and any(one.attach is None for one in config.engine.values()):
            raise ConfigError([_BESIDE])
        if bool(config.engine) is self.options.no_engine:
            raise ConfigError([_OTHERWISE if self.options.no_engine else _NO_ENGINE])
        return self._overridden(config)

    def _overridden(self, config: Config) -> Config:
        changes: dict[str, object] = {}
        if self.options.listen is not None:
            try:
                configuration.listen_address(self.options.listen)
            except ValueError as error:
                raise ConfigError([f"--listen: {error}"]) from error
            changes["listen"] = self.options.listen
        if self.options.mode is not None:
            changes["mode"] = WatchdogMode(self.options.mode)
        watchdog = msgspec.structs.replace(config.watchdog, **changes)
        return msgspec.structs.replace(config, watchdog=watchdog)


def described(config: Config) -> Mapping[str, EngineCommand]:
    """What the commands of all engines say. Raises ConfigError."""
    said, lines = {}, []
    for name, engine in config.engine.items():
        try:
            said[name] = describe(engine.command, engine.env, os.environ, cwd=Path(engine.cwd))
        except CommandError as error:
            lines.append(f"{config.file}: {join('engine', name)}.command: {error}")
    if lines:
        raise ConfigError(lines)
    return said


def ports_of(config: Config) -> frozenset[int]:
    """The ports of all engines. Raises ConfigError."""
    return frozenset(said.endpoint.port for said in described(config).values())


def is_another_process(old: EngineConfig, new: EngineConfig) -> bool:
    """Whether a running engine would have to be restarted to become what is configured."""

    def process(config: EngineConfig) -> tuple[object, ...]:
        return config.command, config.env, config.gpus, config.cwd

    return process(old) != process(new)
