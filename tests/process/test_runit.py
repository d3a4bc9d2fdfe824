"""The service directory of deploy/runit under the real runsv, in front of the simulated engine."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.reloads import READY
from tests.support.services import (
    Service,
    as_games,
    became_games,
    configured,
    defaults,
    example_has,
    open_tmp,
    outlives_its_keepers,
    settings,
    went_in_order,
    written,
)
from tests.support.simulated import ROOT, free_port, until
from watchdog.supervisor.lock import lock_directory

__all__ = ["open_tmp"]


@contextlib.contextmanager
def runit(folder: Path, **more: str) -> Iterator[Service]:
    """The service below ``folder``, whose watchdog.toml is there; gone afterwards."""
    place, port = folder / "vllm-watchdog", free_port()
    shutil.copytree(ROOT / "deploy/runit/vllm-watchdog", place)
    values = settings(folder, port, **more)
    written(place / "conf", values)
    out = (folder / "runsv.log").open("wb")
    with out:
        process = subprocess.Popen(["runsv", str(place)], stdout=out, stderr=out)
    log = Path(values["log_dir"]) / "current"
    state_dir = Path(values["state_dir"])
    one = Service(process, values["listen"], state_dir, log, 0, folder=place)
    try:
        until(lambda: (place / "supervise/ok").exists() and log.exists())
        yield one
    finally:
        one.end()


def sv(one: Service, *words: str) -> subprocess.CompletedProcess[str]:
    """Tell runsv, as an operator does."""
    argv = ["sv", *words, str(one.folder)]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=READY)


def is_down(one: Service) -> bool:
    """Whether it is down, and is to stay so."""
    text = sv(one, "status").stdout.partition(";")[0]
    return text.startswith("down:") and "want up" not in text


def test_one_engine_under_many_watchdogs(tmp_path: Path) -> None:
    """FACT: killed or upgraded, a watchdog leaves the engine to the next one; down ends both.

    An engine that dies is the watchdog's: runsv sees nothing of it.
    """
    configured(tmp_path)
    with runit(tmp_path) as one:
        outlives_its_keepers(one, lambda: sv(one, "kill"), lambda: sv(one, "quit"))
        pid = one.watchdog()
        assert sv(one, "-w", "60", "check").returncode == 0

        assert sv(one, "-w", str(int(READY)), "stop").returncode == 0

        assert is_down(one)
        went_in_order(one, pid)


def test_what_cannot_run_does_not_run_hot(tmp_path: Path) -> None:
    """FACT: a wrong configuration is said once, then down; a lock that is held is waited for."""
    (tmp_path / "watchdog.toml").write_text("[watchdog]\nnonsense = 1\n")
    with runit(tmp_path) as one:
        until(lambda: "sv up" in one.log())
        until(lambda: is_down(one))
        assert one.log().count("watchdog.nonsense: unknown key") == 1
        assert one.log().count("exit code 2") == 1

        configured(tmp_path, standby=True)
        lock = lock_directory(one.state_dir)
        sv(one, "up")
        until(lambda: "another watchdog is at work" in one.log())
        assert not is_down(one)
        lock.release()

        until(lambda: one.get("/livez")[0] == 200, READY)


def test_it_becomes_who_it_is_told(open_tmp: Path) -> None:
    """FACT: user, home, directory and limits are the service's; exit code 75 is final as well."""
    with runit(open_tmp, **as_games(open_tmp)) as one:
        until(lambda: "sv up" in one.log())
        until(lambda: is_down(one))
        became_games(one)


@pytest.mark.parametrize("name", ["run", "finish", "check", "log/run"])
def test_defaults_are_those_of_the_example(name: str) -> None:
    """FACT: the example names every setting that the scripts have, with the same value."""
    folder = ROOT / "deploy/runit/vllm-watchdog"
    example_has(defaults(folder / "conf.example", "#"), defaults(folder / name))
