"""Where the configuration and the state lie when nobody says."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

SYSTEM_CONFIG = Path("/etc/vllm-watchdog/watchdog.toml")
SYSTEM_STATE = Path("/var/lib/vllm-watchdog")


def find(explicit: str | Path | None, environ: Mapping[str, str]) -> Path | None:
    """The configuration file; None for built-in defaults.

    A file that was named, by ``explicit`` or ``$VLLM_WATCHDOG_CONFIG``, need not exist: to go on
    without it would be to go on with something else than was asked for.
    """
    named = explicit or environ.get("VLLM_WATCHDOG_CONFIG")
    if named:
        return Path(named)
    return next((p for p in (Path("watchdog.toml"), SYSTEM_CONFIG) if os.path.lexists(p)), None)


def state_dir(explicit: str | Path | None, environ: Mapping[str, str]) -> Path:
    """The state directory; it may not exist yet."""
    named = explicit or environ.get("VLLM_WATCHDOG_STATE_DIR")
    if named:
        return Path(named).absolute()
    if _writable(SYSTEM_STATE):
        return SYSTEM_STATE
    base = _state_home(environ)
    return base / "vllm-watchdog" if base else SYSTEM_STATE


def _state_home(environ: Mapping[str, str]) -> Path | None:
    """$XDG_STATE_HOME, which counts only when absolute, or its default below the home."""
    named = Path(environ.get("XDG_STATE_HOME", ""))
    if named.is_absolute():
        return named
    home = Path(environ.get("HOME", ""))
    return home / ".local" / "state" if home.is_absolute() else None


def _writable(directory: Path) -> bool:
    existing = directory if directory.exists() else directory.parent
    return existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)
