"""The nginx group on disk: whole, only when it changes, never in the loop's way; its failures."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.core import engine
from tests.support.nginx import nginx
from tests.support.simulated import ROOT, alive, free_port, until
from watchdog.config.settings import NginxSettings
from watchdog.contracts import Endpoint
from watchdog.core.model import Mode, Tick, Verdict
from watchdog.core.state import State, Step
from watchdog.daemon.nginx import reloading
from watchdog.logs import Journal, open_journal
from watchdog.supervisor.household import Household
from watchdog.upstream import Upstream
from watchdog.upstream.file import replace_text

BRIEF = 0.2
"""Seconds between two attempts, in tests that wait for the second."""


@dataclass
class Group:
    """A folder with the file of a group, and what keeps it. Engines answer at made up ports."""

    folder: Path
    journal: Journal
    household: Household = field(default_factory=Household)
    serve: dict[str, Verdict] = field(default_factory=dict)
    mode: Mode = Mode.ACT
    upstream: Upstream = field(init=False)

    def __post_init__(self) -> None:
        """Begin, with nothing configured."""
        run = reloading(self.folder, self.household)
        self.upstream = Upstream(self.folder, self.endpoints, run, self.journal, BRIEF)

    @property
    def file(self) -> Path:
        """Where the group is."""
        return self.folder / "vllm.conf"

    def endpoints(self) -> dict[str, Endpoint]:
        """Port 8000 and so on."""
        return {name: Endpoint("127.0.0.1", 8000 + n) for n, name in enumerate(self.serve)}

    def use(self, *reload: str, timeout: float = 10.0) -> None:
        """Configure it with this reload command."""
        self.upstream.use(NginxSettings(upstream_file="vllm.conf", reload=reload, timeout=timeout))

    def serves(self, **verdicts: Verdict) -> None:
        """Say what the engines are, as a step of the loop does."""
        self.serve |= verdicts
        engines = {name: engine(name=name, verdict=one) for name, one in self.serve.items()}
        self.upstream.observe(Tick(1.0), Step(State(engines, mode=self.mode)))

    def servers(self) -> list[str]:
        """Names of the engines in the file."""
        lines = self.file.read_text().splitlines() if self.file.exists() else ["nothing"]
        return [
            line.rpartition("# ")[2] for line in lines if "max_fails" in line and "server" in line
        ]

    def waits_for(self, *names: str) -> None:
        """Until the file has these."""
        until(lambda: self.file.exists() and self.servers() == list(names))

    def told(self, event: str) -> list[dict[str, Any]]:
        """The lines of the journal with that event."""
        self.journal.flush(5.0)
        lines = [json.loads(line) for line in (self.folder / "log").read_text().splitlines()]
        return [line for line in lines if line["event"] == event]

    def runs(self) -> int:
        """How often the counting command ran."""
        path = self.folder / "runs"
        return len(path.read_text()) if path.exists() else 0

    @property
    def counting(self) -> tuple[str, ...]:
        """A reload command that counts how often it runs."""
        return ("sh", "-c", f"printf x >> {self.folder}/runs")


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    """A group that nothing is configured for yet."""
    one = Group(tmp_path, open_journal(str(tmp_path / "log")))
    yield one
    one.upstream.close()


READY, BUSY, DEAD = Verdict.READY, Verdict.BUSY, Verdict.DEAD


def test_the_file_follows_who_serves(group: Group) -> None:
    """FACT: written with the first step, and anew whenever another set of engines serves."""
    group.use()
    group.serves(a=DEAD)
    group.waits_for()
    assert "down;" in group.file.read_text()
    group.serves(a=READY, b=BUSY)
    group.waits_for("a", "b")
    group.serves(a=DEAD)
    group.waits_for("b")


def test_what_did_not_change_is_neither_written_nor_reloaded(group: Group) -> None:
    """FACT: a thousand steps with the same engines are one file and one reload."""
    group.use(*group.counting)
    group.serves(a=READY)
    group.waits_for("a")
    until(lambda: group.runs() == 1)
    before = group.file.stat()
    for verdict in (READY, BUSY) * 500:
        group.serves(a=verdict)
    assert group.upstream.withdraw("nobody", 5.0)
    assert group.file.stat().st_ino == before.st_ino
    assert (group.runs(), len(group.told("upstream.written"))) == (1, 1)


def test_without_a_configuration_nothing_is_written(group: Group) -> None:
    """FACT: and a stop is not held up."""
    group.serves(a=READY)
    assert group.upstream.withdraw("a", 5.0)
    assert not group.file.exists()
    group.use()
    group.waits_for("a")


def test_who_only_observes_writes_nothing(group: Group) -> None:
    """FACT: the file of another watchdog, and its nginx, are not touched."""
    group.mode = Mode.OBSERVE
    group.use(*group.counting)
    group.serves(a=READY)
    assert group.upstream.withdraw("a", 5.0)
    assert (group.file.exists(), group.runs()) == (False, 0)


def test_a_reader_sees_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    """FACT: at no moment is there half a file, or none."""
    path = tmp_path / "vllm.conf"
    texts = {letter * 200_000 for letter in "ab"}
    replace_text(path, "a" * 200_000)
    done = threading.Event()

    def write() -> None:
        for _ in range(30):
            for text in sorted(texts):
                replace_text(path, text)
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    seen = set()
    while not done.is_set():
        seen.add(path.read_text())
    writer.join()
    assert seen <= texts
    assert [one.name for one in tmp_path.iterdir()] == ["vllm.conf"]


def test_what_a_link_points_to_is_replaced(tmp_path: Path) -> None:
    """FACT: the link itself stays."""
    (tmp_path / "link").symlink_to(tmp_path / "real")
    replace_text(tmp_path / "link", "x")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "x"
    assert (tmp_path / "real").stat().st_mode & 0o777 == 0o644


# --- taken out before a stop --------------------------------------------------------------------


def test_an_engine_is_out_when_its_stop_may_begin(group: Group) -> None:
    """FACT: withdraw returns after the reload; it is in again when it serves anew."""
    group.use(*group.counting)
    group.serves(a=READY, b=READY)
    group.waits_for("a", "b")
    assert group.upstream.withdraw("a", 10.0)
    assert (group.servers(), group.runs()) == (["b"], 2)
    group.serves(a=READY)  # a step from before the decision
    assert group.upstream.withdraw("a", 10.0)
    assert group.servers() == ["b"]
    group.serves(a=Verdict.STOPPING)
    group.serves(a=READY)
    group.waits_for("a", "b")


def test_a_stop_waits_for_nginx_no_longer_than_it_may(group: Group) -> None:
    """FACT: a reload that hangs costs the stop its deadline, and the loop nothing."""
    group.use("sleep", "60", timeout=30.0)
    began = time.monotonic()
    group.serves(a=READY)
    assert not group.upstream.withdraw("a", 0.3)
    group.serves(a=Verdict.STOPPING)
    assert time.monotonic() - began < 20.0
    group.use()


def test_the_newest_wish_wins(group: Group) -> None:
    """FACT: what was wished during a slow reload is one more reload, not one for each."""
    group.use("sh", "-c", f"printf x >> {group.folder}/runs; sleep 0.5")
    group.serves(a=READY)
    until(lambda: group.runs() == 1)
    for _ in range(20):
        group.serves(b=READY)
        group.serves(b=DEAD)
    group.serves(b=READY)
    assert group.upstream.withdraw("nobody", 10.0)
    assert group.servers() == ["a", "b"]
    assert group.runs() == 2


def test_who_serves_on_after_us_is_put_back(group: Group) -> None:
    """FACT: a restart that was let be leaves its engine in the file; close ends the thread."""
    group.use()
    group.serves(a=READY)
    assert group.upstream.withdraw("a", 10.0)
    group.serves(a=Verdict.STOPPING)
    assert group.servers() == []
    group.upstream.close(left=["a"])
    assert group.servers() == ["a"]
    assert "upstream" not in {thread.name for thread in threading.enumerate() if not thread.daemon}


# --- what can go wrong --------------------------------------------------------------------------


def failure(group: Group) -> str:
    """The one trouble that is told, however often it is met."""
    until(lambda: group.told("upstream.failed"))
    time.sleep(2 * BRIEF)
    (one,) = group.told("upstream.failed")
    assert one["level"] == "warning"
    assert "\n" not in one["reason"]
    return str(one["reason"])


def test_nginx_that_is_missing_is_told_once(group: Group) -> None:
    """FACT: the file is there for when it comes; the command is named."""
    group.use("no-such-nginx", "-s", "reload")
    group.serves(a=READY)
    assert "no-such-nginx" in failure(group)
    assert group.servers() == ["a"]
    assert not group.upstream.withdraw("a", 5.0)
    assert group.servers() == []


def test_what_nginx_says_against_it_is_told(group: Group) -> None:
    """FACT: the exit code and the last line of what it printed."""
    group.use("sh", "-c", "echo first; echo nginx: [emerg] bad thing >&2; exit 3")
    group.serves(a=READY)
    told = failure(group)
    assert "3" in told
    assert told.endswith("nginx: [emerg] bad thing")


def test_a_reload_that_hangs_is_ended(group: Group) -> None:
    """FACT: with its children, at its deadline, which is told."""
    group.use("sh", "-c", f"sleep 300 & echo $! > {group.folder}/pid; wait", timeout=0.5)
    group.serves(a=READY)
    assert "took more than 0.5 s" in failure(group)
    group.use()
    until(lambda: not alive(int((group.folder / "pid").read_text())))


def test_a_failure_is_tried_again_and_a_new_one_told(group: Group) -> None:
    """FACT: the folder that was missing is used when it is there, without any other news."""
    settings = NginxSettings(upstream_file="sub/vllm.conf", reload=())
    group.upstream.use(settings)
    group.serves(a=READY)
    assert failure(group) == f"cannot write {group.folder}/sub/vllm.conf: No such file or directory"
    (group.folder / "sub").mkdir()
    until((group.folder / "sub" / "vllm.conf").exists)
    group.upstream.use(NginxSettings(upstream_file="log/vllm.conf", reload=()))
    until(lambda: len(group.told("upstream.failed")) == 2)
    assert group.told("upstream.failed")[1]["reason"].endswith("log/vllm.conf: Not a directory")


def test_a_folder_that_cannot_be_written_is_told(group: Group) -> None:
    """FACT: nothing is lost by it: the old file stays, whole."""
    place = Path("/proc/self")
    group.upstream.use(NginxSettings(upstream_file=str(place / "vllm.conf"), reload=()))
    group.serves(a=READY)
    assert failure(group).startswith(f"cannot write {place}/vllm.conf: ")


def test_the_real_nginx_takes_what_is_written(group: Group) -> None:
    """FACT: with nobody, one, and several of all kinds of addresses; and refuses a broken file."""
    with nginx(group.folder / "nginx", group.file) as real:
        group.use()
        group.serves(a=DEAD)
        group.waits_for()
        assert real.check()[0] == 0
        real.start()
        group.use(*real.reload)
        for verdict, names in ((READY, ["a"]), (DEAD, [])):
            group.serves(a=verdict)
            group.waits_for(*names)
            assert group.upstream.withdraw("nobody", 10.0)
        assert not group.told("upstream.failed")
        with (real.folder / "nginx.conf").open("a") as config:
            config.write("nonsense;\n")
        group.serves(a=READY)
        assert 'unknown directive "nonsense"' in failure(group)
        assert real.process is not None
        assert real.process.poll() is None


def test_the_example_goes_with_what_is_written(group: Group) -> None:
    """FACT: deploy/nginx includes the group by the name that is its default."""
    text = (ROOT / "deploy" / "nginx" / "vllm.conf").read_text()
    text = text.replace("/etc/nginx/vllm-upstream.conf", str(group.file))
    example = group.folder / "example.conf"
    example.write_text(text.replace("listen 8080", f"listen 127.0.0.1:{free_port()}"))
    group.use()
    group.serves(a=READY)
    group.waits_for("a")
    with nginx(group.folder / "nginx", example) as real:
        assert real.check()[0] == 0, real.check()[1]
