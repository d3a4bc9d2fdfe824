"""What a daemon begins with: its store, what that remembers, and its doors."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from watchdog import config as configuration
from watchdog.config import Config
from watchdog.core.model import Mode
from watchdog.core.state import State
from watchdog.daemon.front import Front
from watchdog.daemon.lookout import in_background
from watchdog.daemon.memory import Memory
from watchdog.daemon.wiring import core_settings
from watchdog.store import Store
from watchdog.supervisor import descriptors
from watchdog.supervisor.signatures import signatures
from watchdog.web.app import App
from watchdog.web.server import CONNECTIONS, Server, serve_socket, serve_tcp

_SHARE = 6
"""One in so many of our descriptors may be a connection to one door: most are for our work."""


def opened(state_dir: Path, warn: Callable[[str], None], *, durable: bool) -> Store:
    """The store; one in memory where nothing can be written."""
    store = Store.open(state_dir, warn) if durable else Store.in_memory()
    for text in store.warnings:
        warn(text)
    return store


def recalled(config: Config, state_dir: Path, memory: Memory) -> State:
    """The state of the engines that are configured, with what is remembered of them."""
    settings = core_settings(config, state_dir)
    standby = frozenset(name for name, engine in config.engine.items() if engine.standby)
    state = memory.recall(settings, standby)
    return replace(state, mode=Mode(config.watchdog.mode.value))


def doors(front: Front, host: str, port: int, state_dir: Path | None) -> list[Server]:
    """The HTTP server, and the control socket in ``state_dir``; none of them serves yet.

    However many connect, they leave us the descriptors to look, to restart and to answer with.
    """
    most = min(CONNECTIONS, descriptors.allow_more() // _SHARE)
    servers = [serve_tcp(App(front), host, port, most)]
    if state_dir is not None:
        path = state_dir / "control.sock"
        servers.append(serve_socket(App(front, control=True), path, most))
    return servers


def address(config: Config) -> tuple[str, int]:
    """Host and port of the HTTP server."""
    return configuration.listen_address(config.watchdog.listen)


def read_ahead(
    warn: Callable[[str], None], load: Callable[[], object] = signatures
) -> threading.Thread:
    """Read what the first exit of an engine would else wait for, beside the loop.

    A table that cannot be read is told; the exit is, too, and has no explanation then.
    """

    def work() -> None:
        try:
            load()
        except Exception as error:  # noqa: BLE001 - engines are kept all the same
            warn(" ".join(f"cannot read the table of exit causes: {error}".split()))

    return in_background(work, "read-ahead")
