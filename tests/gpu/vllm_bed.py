"""What a measurement of real engines stands on: how they are started, the cards, and the report."""

from __future__ import annotations

import contextlib
import json
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.daemon import Daemon, launch
from tests.support.simulated import until

START = 300.0
"""Seconds that a real engine may take to start; 45 to 80 were seen."""
POLICY = """
[policy]
backoff = { initial = "50ms", max = "100ms" }
restart_budget = { count = 100, window = "1h" }
"""
"""A quarter of an hour of faults is no crash loop; all else is as by default."""
SERVING = frozenset({"ready", "busy"})


@dataclass(frozen=True, slots=True)
class Bed:
    """How engines are started: the words before the model, its directory, flags, environment."""

    vllm: tuple[str, ...]
    model: str
    flags: tuple[str, ...]
    env: Mapping[str, str]
    out: Path
    simulated: bool = False

    def command(self, port: int, *more: str) -> list[str]:
        """The engine's own command."""
        if self.simulated:
            words = ("--port", str(port), "--served-model-name", "tiny")
            return [sys.executable, "-m", "watchdog.simulator", *words]
        by_flag = self.vllm[-1].endswith("api_server")
        model = ["--model", self.model] if by_flag else ["serve", self.model]
        named = ["--served-model-name", "tiny", "--host", "127.0.0.1", "--port", str(port)]
        return [*self.vllm, *model, *named, *self.flags, *more]

    def table(self, name: str, port: int, gpus: Sequence[int], *more: str) -> str:
        """The engine's table of a configuration."""
        env = ", ".join(f"{key} = {json.dumps(value)}" for key, value in self.env.items())
        lines = (
            f"[engine.{name}]",
            f"command = {json.dumps(self.command(port, *more))}",
            f"gpus = {json.dumps([] if self.simulated else list(gpus))}",
            f"env = {{ {env} }}",
        )
        return "\n".join(lines) + "\n"


@dataclass(slots=True)
class Box:
    """One configuration with its state directory, and the daemons that ran it one by one."""

    bed: Bed
    name: str
    text: str
    port: int
    daemons: list[Daemon] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        """Where its configuration and its state are."""
        return self.bed.out / self.name

    @property
    def config(self) -> Path:
        """The configuration's file."""
        return self.folder / "watchdog.toml"

    @property
    def daemon(self) -> Daemon:
        """The last one that was launched."""
        return self.daemons[-1]

    def launch(self) -> Daemon:
        """The next daemon on the same state directory."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.config.write_text(self.text)
        self.daemons.append(launch(self.folder / "state", (), self.port, config=self.config))
        return self.daemon

    def engine(self, name: str = "main") -> dict[str, Any]:
        """What the status says of one engine; empty when the daemon does not answer."""
        code, body = self.daemon.get("/api/v1/status")
        engines = json.loads(body)["engines"] if code == 200 else ()
        found = next((dict(one) for one in engines if one["name"] == name), {})
        self.daemon.remember(found.get("pids", ()))
        return found

    def ready(self, name: str = "main", patience: float = START) -> dict[str, Any]:
        """The engine's status once it serves."""
        until(lambda: self.engine(name).get("verdict") in SERVING, patience)
        return self.engine(name)

    def timed(self, *words: str, patience: float = 300.0) -> dict[str, Any]:
        """Run one of the commands: exit code, seconds, and both outputs."""
        began = time.monotonic()
        done = self.daemon.command(*words, "--config", str(self.config), patience=patience)
        took = round(time.monotonic() - began, 2)
        return {
            "command": " ".join(words),
            "exit_code": done.returncode,
            "seconds": took,
            "stdout": done.stdout,
            "stderr": done.stderr,
        }

    def lines(self) -> list[dict[str, Any]]:
        """The log lines of all its daemons, the last one's at the end."""
        return [line for daemon in self.daemons for line in daemon.lines()]


class Report:
    """Writes what is found as it comes: progress on stdout, and one JSON file."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._began = time.monotonic()
        self.found: dict[str, Any] = {}

    @property
    def age(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._began

    def say(self, line: str) -> None:
        """A line of progress."""
        sys.stdout.write(f"{self.age:6.1f} s  {line}\n")
        sys.stdout.flush()

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[dict[str, Any]]:
        """One part: what it finds is kept also when it fails, and the next part goes on."""
        found: dict[str, Any] = {}
        self.found[name] = found
        began = self.age
        self.say(f"{name} …")
        try:
            yield found
        except Exception as error:  # noqa: BLE001 - a part that fails costs no other part
            found["failed"] = f"{type(error).__name__}: {error}"
            found["traceback"] = traceback.format_exc()
            self.say(f"{name} FAILED: {found['traceback']}")
        found["took_s"] = round(self.age - began, 1)
        self._file.write_text(json.dumps(self.found, indent=1, default=str) + "\n")
        self.say(f"{name}: {brief(found)}")


def brief(found: Mapping[str, Any]) -> str:
    """A part in one line of progress."""
    text = json.dumps({k: v for k, v in found.items() if k != "traceback"}, default=str)
    return text if len(text) < 900 else f"{text[:900]}…"


class Cards:
    """The cards as NVML tells them; none where there is no driver."""

    def __init__(self) -> None:
        self._cards: list[Any] = []
        self.facts: dict[str, Any] = {}
        with contextlib.suppress(Exception):
            self._open()

    def _open(self) -> None:
        import pynvml

        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
        self._cards = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
        cuda = pynvml.nvmlSystemGetCudaDriverVersion()
        self.facts = {
            "cards": [pynvml.nvmlDeviceGetName(card) for card in self._cards],
            "driver": pynvml.nvmlSystemGetDriverVersion(),
            "cuda_of_driver": f"{cuda // 1000}.{cuda % 1000 // 10}",
            "memory_bytes": [self._memory(card).total for card in self._cards],
        }

    @staticmethod
    def _memory(card: object) -> Any:  # noqa: ANN401 - pynvml has no types
        import pynvml

        return pynvml.nvmlDeviceGetMemoryInfo(card, version=pynvml.nvmlMemory_v2)

    def __len__(self) -> int:
        return len(self._cards)

    def used(self) -> list[int]:
        """Bytes used of every card, without what the driver reserves."""
        return [int(self._memory(card).used) for card in self._cards]

    def holders(self) -> list[dict[int, int]]:
        """Bytes by pid, of every card."""
        import pynvml

        asked = map(pynvml.nvmlDeviceGetComputeRunningProcesses, self._cards)
        return [{int(one.pid): int(one.usedGpuMemory or 0) for one in rows} for rows in asked]
