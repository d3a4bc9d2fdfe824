"""The service script of deploy/openrc under the real OpenRC, and what all services promise.

OpenRC is Debian's, unpacked over this machine's files in namespaces of its own: it is not
installed, and nothing it starts outlives the namespace.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.reloads import READY
from tests.support.services import (
    Service,
    configured,
    defaults,
    example_has,
    outlives_its_keepers,
    settings,
    went_in_order,
    written,
)
from tests.support.simulated import ROOT, alive, free_port, until
from watchdog.daemon.wiring import longest_stop, outer_limit
from watchdog.supervisor.ladder import StopSettings

DEPLOY = ROOT / "deploy"
WORST_STOP = outer_limit([longest_stop(StopSettings())])
"""Seconds after which a watchdog with default settings gives its own stop up."""

_PACKAGES = ("openrc", "librc1", "libeinfo1")
_STATES = "daemons exclusive failed hotplugged inactive options scheduled started starting stopping"
_MOUNTS = """\
set -eu
mount -t tmpfs tmpfs "$1"
mkdir "$1/upper" "$1/work" "$1/root"
cp -a "$2" "$1/layer" # two layers of an overlay may not lie in one another
mount -t overlay overlay "$1/root" -o "lowerdir=$1/layer:/,upperdir=$1/upper,workdir=$1/work"
cd "$1/root"
for kept in proc dev sys tmp $3; do mount --rbind "/$kept" "$kept"; done
mount -t tmpfs tmpfs run
mkdir -p run/openrc/wasinactive etc/conf.d
touch run/openrc/softlevel etc/insserv.conf
for state in $4; do mkdir "run/openrc/$state"; done
cp "$5" etc/init.d/vllm-watchdog
cp "$6" etc/conf.d/vllm-watchdog
"""
"""OpenRC's files over this machine's, and a /run of its own, for who lives in the namespace."""

_INIT = """\
import json, os, subprocess, sys
from watchdog.supervisor.household import become_reaper
subprocess.run(["sh", "-c", *sys.argv[1:]], check=True)
os.chroot(f"{sys.argv[3]}/root")
os.chdir("/")
become_reaper()
print("up", flush=True)
for line in sys.stdin:
    child = subprocess.Popen(json.loads(line), stdin=subprocess.DEVNULL, stdout=2)
    while (ended := os.waitpid(-1, 0))[0] != child.pid:
        pass
    print(os.waitstatus_to_exitcode(ended[1]), flush=True)
"""
"""Runs what it is told, and reaps whoever was left to it, as an init does."""


@dataclass
class Box(Service):
    """A machine with OpenRC. ``process`` is its init."""

    def says(self) -> str:
        """Its next line."""
        assert self.process.stdout is not None
        assert select.select([self.process.stdout], [], [], READY)[0]
        return self.process.stdout.readline().decode().strip()

    def rc(self, *words: str) -> int:
        """The exit code of ``rc-service vllm-watchdog WORDS``."""
        assert self.process.stdin is not None
        line = json.dumps(["rc-service", "vllm-watchdog", *words])
        self.process.stdin.write(f"{line}\n".encode())
        self.process.stdin.flush()
        return int(self.says())

    def told(self) -> str:
        """What OpenRC has printed so far."""
        return (self.folder / "openrc.log").read_text(errors="replace")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Debian's OpenRC, unpacked as it would be installed."""
    folder = tmp_path_factory.mktemp("openrc")
    if os.geteuid() or not shutil.which("apt-get"):
        pytest.skip("needs root on a Debian system")
    got = subprocess.run(["apt-get", "-qq", "download", *_PACKAGES], cwd=folder, check=False)
    if got.returncode:
        pytest.skip("no package of OpenRC to be had")
    for package in folder.glob("*.deb"):
        subprocess.run(["dpkg", "-x", package, folder / "deb"], check=True)
    (folder / "layer/usr").mkdir(parents=True)
    for name in ("bin", "lib", "sbin"):  # /lib is a link, which a directory would hide
        (folder / "deb" / name).rename(folder / "layer/usr" / name)
    (folder / "deb/etc").rename(folder / "layer/etc")
    return folder / "layer"


@contextlib.contextmanager
def openrc(files: Path, folder: Path, **more: str) -> Iterator[Box]:
    """A machine with the service, not started; everything in it is gone afterwards."""
    values = settings(folder, free_port(), **more)
    written(folder / "conf", values)
    (folder / "box").mkdir()
    script = DEPLOY / "openrc/vllm-watchdog.initd"
    kept = " ".join({ROOT.parts[1]} - {"tmp", "usr"})
    mounts = ["sh", str(folder / "box"), str(files), kept, _STATES, str(script)]
    argv = [
        "unshare",
        "--mount",
        sys.executable,
        "-c",
        _INIT,
        _MOUNTS,
        *mounts,
        str(folder / "conf"),
    ]
    with (folder / "openrc.log").open("wb") as out:
        pipe = subprocess.PIPE
        process = subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=out, cwd=ROOT)
    log = Path(values["log_dir"]) / "watchdog.log"
    state_dir = Path(values["state_dir"])
    one = Box(process, values["listen"], state_dir, log, 0, folder=folder)
    try:
        assert one.says() == "up", one.told()
        yield one
    finally:
        one.end()
        for end in (process.stdin, process.stdout):
            if end is not None:
                end.close()


def test_one_engine_under_many_watchdogs(files: Path, tmp_path: Path) -> None:
    """FACT: killed or upgraded, a watchdog leaves the engine to the next one; stop ends both."""
    configured(tmp_path)
    with openrc(files, tmp_path) as one:
        assert one.rc("start") == 0, one.told()
        outlives_its_keepers(
            one, lambda: os.kill(one.watchdog(), signal.SIGKILL), lambda: one.rc("upgrade")
        )
        assert one.rc("reload") == 0
        one.wait_event("config.reloaded")
        pid = one.watchdog()

        assert one.rc("stop") == 0

        went_in_order(one, pid)
        assert one.rc("status") == 3


def test_what_cannot_run_does_not_run_hot(files: Path, tmp_path: Path) -> None:
    """FACT: a wrong configuration starts nothing; one that gets wrong later ends no engine."""
    wrong = tmp_path / "watchdog.toml"
    wrong.write_text("[watchdog]\nnonsense = 1\n")
    with openrc(files, tmp_path, respawn_max="1") as one:
        assert one.rc("start") != 0
        assert "watchdog.nonsense: unknown key" in one.told()
        assert one.watchdog() == 0

        file = configured(tmp_path)
        assert one.rc("start") == 0
        before = one.wait_ready(READY)
        wrong.write_text("[watchdog]\nnonsense = 1\n")
        assert one.rc("upgrade") != 0
        os.kill(one.watchdog(), signal.SIGKILL)
        until(lambda: one.rc("status") not in {0, 8})
        assert alive(before["pid"])
        assert one.log().count("watchdog.nonsense") == 1

        file.write()
        assert one.rc("start") == 0
        assert one.wait_ready(READY)["pid"] == before["pid"]
        assert one.rc("stop") == 0


def test_the_defaults_are_those_of_the_example() -> None:
    """FACT: conf.d names every setting of the script, with the same value."""
    text = (DEPLOY / "openrc/vllm-watchdog.initd").read_text()
    pairs = [line[5:-2].partition(":=") for line in text.splitlines() if line.startswith(': "${')]
    example = defaults(DEPLOY / "openrc/vllm-watchdog.confd", "#")
    assert len(pairs) > 9
    example_has(example, {name: value for name, _, value in pairs})


def test_no_supervisor_ends_a_stop_early() -> None:
    """FACT: every time-out is longer than a stop with default settings, or there is none."""
    script = (DEPLOY / "openrc/vllm-watchdog.initd").read_text()
    unit = (DEPLOY / "systemd/vllm-watchdog.service").read_text()
    patience = [
        int(script.partition("SIGTERM/")[2].partition("}")[0]),
        int(unit.partition("TimeoutStopSec=")[2].partition("\n")[0]),
    ]
    assert min(patience) > WORST_STOP + 60
    assert int((DEPLOY / "s6/vllm-watchdog/timeout-kill").read_text()) == 0


def test_systemd_waits_for_the_mounts_of_what_it_names() -> None:
    """FACT: a configuration that is not there yet is exit 2, for good: no place is missed."""
    unit = (DEPLOY / "systemd/vllm-watchdog.service").read_text().splitlines()
    (waits,) = (line.partition("=")[2].split() for line in unit if "RequiresMountsFor=" in line)
    (start,) = (line.partition("=")[2].split() for line in unit if "ExecStart=" in line)
    places = [Path(word) for word in start if word.startswith("/")]
    assert len(places) == 3
    assert all(any(place.is_relative_to(one) for one in waits) for place in places)


def scripts() -> list[Path]:
    """Everything in the service directories that a shell reads."""
    found = [p for p in DEPLOY.rglob("*") if p.is_file() and p.read_bytes()[:2] == b"#!"]
    return sorted(p for p in found if p.relative_to(DEPLOY).parts[0] in {"runit", "s6", "openrc"})


@pytest.mark.parametrize("path", scripts(), ids=lambda path: str(path.relative_to(DEPLOY)))
def test_every_script_can_be_run_and_read(path: Path) -> None:
    """FACT: it is executable, and a POSIX shell takes it."""
    assert os.access(path, os.X_OK)
    done = subprocess.run(["sh", "-n", path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not there")
@pytest.mark.parametrize("path", scripts(), ids=lambda path: str(path.relative_to(DEPLOY)))
def test_shellcheck_has_nothing_to_say(path: Path) -> None:
    """FACT: no script has a finding that is not named and excused in it."""
    done = subprocess.run(["shellcheck", path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
