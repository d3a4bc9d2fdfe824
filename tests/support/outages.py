"""Breaks a supervised engine, simulated or real, and tells how its daemon got over it."""

from __future__ import annotations

import contextlib
import json
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.daemon import Daemon, running, simulated_command
from tests.support.simulated import alive, cmdline, free_port, until

READY = 120.0
FAST = """
[policy]
backoff = { initial = "50ms", max = "100ms" }
"""
"""Wait less between restarts; the budgets stay as they are: five an hour, three of them boots."""


@contextlib.contextmanager
def engine(folder: Path, *flags: str, config: str = "", ready: bool = True) -> Iterator[Daemon]:
    """A daemon below ``folder`` in front of a simulated engine with ``flags``."""
    port = free_port()
    file = folder / "watchdog.toml"
    file.write_text(config)
    with running(folder / "state", simulated_command(port, *flags), port, config=file) as daemon:
        if ready:
            daemon.wait_ready(READY)
        yield daemon


def fault(daemon: Daemon, name: str, value: object = None) -> None:
    """Switch a fault of the simulated engine on."""
    body = json.dumps({"name": name, "value": value}).encode()
    _simulator(daemon, urllib.request.Request(f"{_base(daemon)}/simulator/fault", body))


def clear(daemon: Daemon, name: str) -> None:
    """Switch it off again."""
    url = f"{_base(daemon)}/simulator/fault/{name}"
    _simulator(daemon, urllib.request.Request(url, method="DELETE"))


def _base(daemon: Daemon) -> str:
    return f"http://127.0.0.1:{daemon.engine_port}"


def _simulator(daemon: Daemon, request: urllib.request.Request) -> None:
    daemon.verdict()  # notes who lives, to prove later that they are gone
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert answer.status == 200


def member(daemon: Daemon, title: str) -> int:
    """The pid of the engine's process whose command line has ``title``, waiting for it."""

    def look() -> int:
        pids = daemon.engine().get("pids", ())
        return next((int(pid) for pid in pids if title in cmdline(pid)), 0)

    return until(look)


def recovered(daemon: Daemon, before: dict[str, Any], patience: float = 60.0) -> dict[str, Any]:
    """The closing line of the incident, once a new generation serves and the old one is gone."""
    until(lambda: daemon.is_another(before), patience)
    assert not [pid for pid in before["pids"] if alive(pid)]
    daemon.wait_ready(patience)
    return daemon.wait_event("incident.resolved")


def given_up(daemon: Daemon, patience: float = READY) -> dict[str, Any]:
    """The engine's status once nobody starts it any more."""
    until(lambda: daemon.engine().get("state") == "given_up", patience)
    return daemon.engine()


def causes(daemon: Daemon) -> list[str]:
    """The causes of all exits so far."""
    return [str(line["cause"]) for line in daemon.events("engine.exited")]


def starts(daemon: Daemon) -> int:
    """How many engines the daemon has spawned, by its log."""
    return len(daemon.events("engine.started"))


def untouched(daemon: Daemon, before: dict[str, Any]) -> bool:
    """Whether the very engine lives that lived ``before``, and nothing was done to it."""
    now = daemon.engine()
    return (now["generation"], now["pid"]) == (before["generation"], before["pid"]) and not [
        act for act in daemon.events("decision.act") if act.get("rule") != "engine-down"
    ]


# --- the engine itself ----------------------------------------------------------------------------


def series(daemon: Daemon, name: str, label: str = "") -> float:
    """The sum of the engine's own series of that name, of all its ranks."""
    with urllib.request.urlopen(f"{_base(daemon)}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    ours = (line for line in lines if line.startswith(f"vllm:{name}{{") and label in line)
    return sum(float(line.rpartition(" ")[2]) for line in ours)


@contextlib.contextmanager
def open_completion(daemon: Daemon, tokens: int) -> Iterator[socket.socket]:
    """A client that asks for so many tokens and stays."""
    body = json.dumps({"prompt": "a", "max_tokens": tokens}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", daemon.engine_port)) as client:
        client.sendall(head.encode() + body)
        yield client


def reads(daemon: Daemon, probe: str, count: int, patience: float = 90.0) -> None:
    """Wait until the probe has looked so many more times, with success or without."""
    name = f'vllm_watchdog_probe_duration_seconds{{probe="{probe}"'
    seen: list[float | None] = [daemon.metric(name)]

    def enough() -> bool:
        now = daemon.metric(name)
        if now != seen[-1]:  # no two looks take the same time
            seen.append(now)
        return len(seen) > count

    until(enough, patience)
