"""Scale-out behind the real nginx: engines join and leave under traffic, and no request fails."""

from __future__ import annotations

import contextlib
import json
import signal
import threading
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.daemon import Daemon, running
from tests.support.nginx import Nginx, nginx
from tests.support.reloads import READY, File, engines, ready, rule
from tests.support.simulated import until

pytestmark = pytest.mark.xdist_group("nginx")

MANY, FEW = 14, 3
"""Requests at once: more than one engine is to take by the rules below, and less."""
_CROWDED = "engine.process == 'stopped' && engine.others_running > 6"
NEEDED = rule(
    "standby-needed",
    when=f"engine.standby && (engine.process in ['starting', 'stopping'] ? unknown : {_CROWDED})",
    **{"for": "1s"},
)
IDLE = rule("standby-idle", **{"for": "3s"})
"""The rules with thresholds that a test can reach; a simulated engine takes 256 at once."""


@dataclass
class Traffic:
    """Clients that ask again as soon as they are answered; every second one wants a long stream."""

    url: str
    clients: int = 0
    answers: int = 0
    failures: list[str] = field(default_factory=list)
    _ends: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def of(self, clients: int) -> None:
        """Let so many ask from now on."""
        self.clients = clients
        while len(self._threads) < clients:
            thread = threading.Thread(target=self._ask, args=(len(self._threads),))
            self._threads.append(thread)
            thread.start()

    def end(self) -> None:
        """Let the last answers come."""
        self._ends.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, number: int) -> None:
        while not self._ends.is_set():
            if number >= self.clients:
                self._ends.wait(0.05)
                continue
            try:
                stream = number % 2 == 0
                _whole_answer(self.url, stream=stream, tokens=40 if stream else 10)
                self.answers += 1
            except (OSError, ValueError) as error:
                self.failures.append(f"{type(error).__name__}: {error}")

    def goes_on(self, answers: int = 20) -> None:
        """Wait until so many more were answered."""
        before = self.answers
        until(lambda: self.answers >= before + answers, READY)


def _whole_answer(url: str, *, stream: bool, tokens: int) -> None:
    """Ask for a completion; raises OSError or ValueError unless all of it came."""
    body = {"prompt": "a", "max_tokens": tokens, "stream": stream}
    with urllib.request.urlopen(url, json.dumps(body).encode(), timeout=30) as answer:
        text = answer.read().decode()
    events = [line for line in text.splitlines() if line.startswith("data: ")]
    if stream and (len(events) != tokens + 1 or events[-1] != "data: [DONE]"):
        raise ValueError(f"a stream that ended early: {events[-1:]}")
    if not stream and json.loads(text)["usage"]["completion_tokens"] != tokens:
        raise ValueError(f"an answer that is not whole: {text[:200]}")


@dataclass
class Site:
    """A daemon with engines, an nginx in front of them, and clients of that."""

    daemon: Daemon
    front: Nginx
    traffic: Traffic
    group: Path

    def members(self) -> set[str]:
        """Names of the engines in the group."""
        lines = self.group.read_text().splitlines()
        return {line.rpartition("# ")[2] for line in lines if "max_fails=0; # " in line}

    def waits_for(self, wanted: Callable[[], bool]) -> None:
        """Until it is so; or a request has failed."""
        until(lambda: wanted() or self.traffic.failures, READY)
        assert not self.traffic.failures

    def state(self, name: str) -> str:
        """Of the engine's processes."""
        return str(engines(self.daemon).get(name, {}).get("state", ""))


@contextlib.contextmanager
def site(folder: Path, file: File, *wanted: str, lag: float = 0.0) -> Iterator[Site]:
    """All of it, when ``wanted`` serve behind nginx, which is told ``lag`` seconds late."""
    group = folder / "s" / "vllm.conf"
    with nginx(folder / "nginx", group) as front:
        reload = json.dumps(["sh", "-c", f'sleep {lag}; exec "$@"', "sh", *front.reload])
        file.write(f'{NEEDED}\n{IDLE}\n[nginx]\nupstream_file = "vllm.conf"\nreload = {reload}')
        with running(folder / "s", (), file.port, config=file.path) as daemon:
            until(lambda: ready(daemon) == set(wanted), READY)
            traffic = Traffic(f"http://127.0.0.1:{front.port}/v1/completions")
            one = Site(daemon, front, traffic, group)
            until(lambda: one.members() == set(wanted))
            front.start()  # it has read the group then: what it was told before it ran is lost
            try:
                yield one
            finally:
                traffic.end()


def asked(port: int) -> float:
    """Completions that an engine has answered, as its own counters tell."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return sum(
        float(line.rpartition(" ")[2])
        for line in lines
        if line.startswith("vllm:request_success_total")
    )


def test_a_standby_joins_and_leaves_under_traffic(tmp_path: Path) -> None:
    """FACT: started and stopped by its rules, in the group only while it serves: nothing fails."""
    file = File(tmp_path / "watchdog.toml")
    flags = ("--startup-time", "0.5", "--tokens-per-second", "20")
    file.engine("main", 0, *flags)
    port = file.engine("spare", 0, *flags, standby=True)
    with site(tmp_path, file, "main") as one:
        one.traffic.of(MANY)
        one.waits_for(lambda: one.members() == {"main", "spare"})
        before = asked(port)
        until(lambda: asked(port) >= before + 5, READY)
        one.traffic.of(FEW)
        one.waits_for(lambda: one.members() == {"main"})
        one.waits_for(lambda: one.state("spare") == "stopped")
        one.traffic.goes_on()
        one.traffic.end()
        assert not one.traffic.failures
        rules = [(e["rule"], e["action"]) for e in one.daemon.events("decision.act")]
        wanted = [("standby-needed", "start_engine"), ("standby-idle", "stop_engine")]
        assert [act for act in rules if act[0].startswith("standby")] == wanted
        (exited,) = [e for e in one.daemon.events("engine.exited") if e["engine"] == "spare"]
        assert exited["expected"]


def test_an_operator_takes_engines_out_one_by_one(tmp_path: Path) -> None:
    """FACT: stop, start and restart cost no request: no drain begins before nginx has let go.

    A request takes 2 s, and the drain waits 4 s: one that came 2.5 s after its beginning is cut.
    """
    file = File(tmp_path / "watchdog.toml")
    stop = {"drain_timeout": "4s", "term_timeout": "5s"}
    for name in ("a", "b"):
        file.engine(name, 0, "--startup-time", "0.2", "--tokens-per-second", "20", stop=stop)
    with site(tmp_path, file, "a", "b", lag=2.5) as one:
        one.traffic.of(6)
        one.traffic.goes_on()
        for words in (("stop", "a"), ("start", "a"), ("restart", "b")):
            done = one.daemon.command(*words)
            assert done.returncode == 0, (words, done.stdout, done.stderr)
            one.traffic.goes_on(10)
            here = {"b"} if words[0] == "stop" else {"a", "b"}
            one.waits_for(lambda here=here: one.members() == here)  # type: ignore[misc]
        one.traffic.end()
        assert not one.traffic.failures


def test_a_leaving_watchdog_leaves_the_group_as_it_is(tmp_path: Path) -> None:
    """FACT: nginx sends on to an engine that is left serving; the next watchdog takes both over."""
    file = File(tmp_path / "watchdog.toml")
    file.engine("main", 0, "--startup-time", "0", "--tokens-per-second", "20")
    with site(tmp_path, file, "main") as one:
        pid = engines(one.daemon)["main"]["pid"]
        one.traffic.of(FEW)
        one.traffic.goes_on(5)
        one.daemon.send(signal.SIGQUIT)
        assert one.daemon.ended() == 0
        assert one.members() == {"main"}
        one.traffic.goes_on(5)
        with running(tmp_path / "s", (), file.port, config=file.path) as heir:
            until(lambda: ready(heir) == {"main"}, READY)
            assert engines(heir)["main"]["pid"] == pid
            one.traffic.goes_on(5)
            one.traffic.end()
            assert [e["engines"] for e in heir.events("upstream.written")] == [["main"]]
        assert one.members() == set()
        assert not one.traffic.failures
