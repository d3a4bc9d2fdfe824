"""The configuration: TOML into settings; all errors at once, each with file and key."""

from watchdog.config.durations import parse_duration
from watchdog.config.judgement import listen_address
from watchdog.config.loading import ConfigError, load, with_command
from watchdog.config.places import find, state_dir
from watchdog.config.settings import (
    BackoffSettings,
    BudgetSettings,
    Config,
    EngineConfig,
    EngineLimits,
    Hook,
    ModelChange,
    NotifySettings,
    OnGiveUp,
    PlugIns,
    PolicyConfig,
    ProbeConfig,
    RuleConfig,
    StopSettings,
    WatchdogMode,
    WatchdogSettings,
    size_of,
)

__all__ = [
    "BackoffSettings",
    "BudgetSettings",
    "Config",
    "ConfigError",
    "EngineConfig",
    "EngineLimits",
    "Hook",
    "ModelChange",
    "NotifySettings",
    "OnGiveUp",
    "PlugIns",
    "PolicyConfig",
    "ProbeConfig",
    "RuleConfig",
    "StopSettings",
    "WatchdogMode",
    "WatchdogSettings",
    "find",
    "listen_address",
    "load",
    "parse_duration",
    "size_of",
    "state_dir",
    "with_command",
]
