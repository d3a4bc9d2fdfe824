"""Clients that keep an engine busy, in a process of their own, which prints JSON at its end.

``python tests/gpu/vllm_load.py PORT CLIENTS SECONDS TOKENS REST``: greedy completions of exactly
TOKENS tokens, each client one after the other with REST seconds between them, until SECONDS are
over or the input ends.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_PATIENCE = 60.0
_REST = 0.02
"""After an error: an engine that is gone is asked again soon, not at once."""


@dataclass(slots=True)
class Clients:
    """What the clients have seen; times are wall-clock seconds."""

    port: int
    tokens: int
    rest: float
    over: threading.Event = field(default_factory=threading.Event)
    done: list[tuple[float, float, int]] = field(default_factory=list)
    errors: list[tuple[float, str]] = field(default_factory=list)

    def run(self) -> None:
        """One client."""
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_PATIENCE)
        while not self.over.is_set():
            began = time.time()
            try:
                tokens = self._complete(link)
                self.done.append((began, time.time(), tokens))
                self.over.wait(self.rest)
            except (OSError, http.client.HTTPException, ValueError, LookupError) as error:
                self.errors.append((time.time(), f"{type(error).__name__}: {error}"))
                link.close()
                time.sleep(_REST)
        link.close()

    def _complete(self, link: http.client.HTTPConnection) -> int:
        asked = {"model": "tiny", "prompt": "a small engine", "max_tokens": self.tokens}
        body = json.dumps({**asked, "ignore_eos": True, "temperature": 0})
        link.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        answer = link.getresponse()
        text = answer.read()
        if answer.status != 200:
            raise ValueError(f"{answer.status} {text[:200]!r}")
        return int(json.loads(text)["usage"]["completion_tokens"])

    def told(self, seconds: float) -> dict[str, Any]:
        """The result."""
        spans = sorted(end - begin for begin, end, _ in self.done) or [0.0]
        ends = sorted(end for _, end, _ in self.done)
        pauses = [later - earlier for earlier, later in itertools.pairwise(ends)]
        return {
            "seconds": round(seconds, 3),
            "completions": len(self.done),
            "tokens": sum(tokens for _, _, tokens in self.done),
            "latency_s": {
                "median": round(spans[len(spans) // 2], 4),
                "p99": round(spans[int(0.99 * (len(spans) - 1))], 4),
                "max": round(spans[-1], 4),
            },
            "longest_pause_s": round(max(pauses, default=0.0), 4),
            "errors": len(self.errors),
            "refused": sum("ConnectionRefused" in error for _, error in self.errors),
            "first_errors": self.errors[:5],
            "first_end": ends[0] if ends else None,
            "last_end": ends[-1] if ends else None,
        }


def main() -> None:
    """Run the clients and print what they saw."""
    port, count, seconds, tokens = (int(word) for word in sys.argv[1:5])
    clients = Clients(port, tokens, float(sys.argv[5]))
    threads = [threading.Thread(target=clients.run, daemon=True) for _ in range(count)]
    threading.Thread(target=_await_end_of_input, args=(clients,), daemon=True).start()
    began = time.monotonic()
    for thread in threads:
        thread.start()
    clients.over.wait(seconds)
    clients.over.set()
    took = time.monotonic() - began
    for thread in threads:
        thread.join(_PATIENCE)
    json.dump(clients.told(took), sys.stdout)


def _await_end_of_input(clients: Clients) -> None:
    sys.stdin.read()
    clients.over.set()


class Load:
    """Clients that run in the background until they are asked what they saw."""

    def __init__(
        self, port: int, clients: int, tokens: int, seconds: int = 600, rest: float = 0
    ) -> None:
        words = (port, clients, seconds, tokens, rest)
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve()), *map(str, words)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def wait(self) -> dict[str, Any]:
        """What they saw, after their time."""
        assert self._process.stdout is not None
        out = self._process.stdout.read()
        self._process.wait()
        return dict(json.loads(out))

    def end(self) -> dict[str, Any]:
        """What they saw until now; each finishes its last completion."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self.wait()

    def kill(self) -> None:
        """End them, whatever they do."""
        self._process.kill()
        self._process.communicate()


@contextlib.contextmanager
def loading(port: int, clients: int, tokens: int, rest: float = 0) -> Iterator[Load]:
    """Clients that are surely gone afterwards."""
    load = Load(port, clients, tokens, rest=rest)
    try:
        yield load
    finally:
        with contextlib.suppress(ValueError, OSError):
            load.kill()


def generated(port: int) -> float:
    """Tokens that the engine says it has generated since its start."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        page = answer.read().decode()
    name = "vllm:generation_tokens_total{"
    return sum(float(x.rpartition(" ")[2]) for x in page.splitlines() if x.startswith(name))


if __name__ == "__main__":
    main()
