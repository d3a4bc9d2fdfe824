"""The service directory of deploy/s6 under the real s6-svscan, in front of the simulated engine."""

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
def s6(folder: Path, **more: str) -> Iterator[Service]:
    """The service below ``folder``, whose watchdog.toml is there; gone afterwards."""
    place, port = folder / "scan/vllm-watchdog", free_port()
    shutil.copytree(ROOT / "deploy/s6/vllm-watchdog", place)
    values = settings(folder, port, **more)
    written(place / "data/conf", values)
    with (folder / "svscan.log").open("wb") as out:
        argv = ["s6-svscan", str(place.parent)]
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    log = Path(values["log_dir"]) / "current"
    state_dir = Path(values["state_dir"])
    one = Service(process, values["listen"], state_dir, log, 0, folder=place)
    try:
        until(log.exists)
        yield one
    finally:
        one.end()


def svc(one: Service, *words: str) -> None:
    """Tell s6-supervise, as an operator does, and wait if the words say so."""
    argv = ["s6-svc", "-T", str(int(READY * 1000)), *words, str(one.folder)]
    subprocess.run(argv, check=True, timeout=READY)


def state(one: Service, *fields: str) -> list[str]:
    """What s6 says of the service."""
    argv = ["s6-svstat", "-o", ",".join(fields), str(one.folder)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_one_engine_under_many_watchdogs(tmp_path: Path) -> None:
    """FACT: killed or upgraded, a watchdog leaves the engine to the next one; down ends both.

    An engine that dies is the watchdog's: s6 sees nothing of it. Ready is when an engine serves.
    """
    configured(tmp_path)
    with s6(tmp_path) as one:
        outlives_its_keepers(one, lambda: svc(one, "-k"), lambda: svc(one, "-q"))
        pid = one.watchdog()
        until(lambda: state(one, "pid", "ready") == [str(pid), "true"])

        svc(one, "-wD", "-d")

        assert state(one, "up", "wantedup") == ["false", "false"]
        went_in_order(one, pid)


def test_what_cannot_run_does_not_run_hot(tmp_path: Path) -> None:
    """FACT: a wrong configuration is said once and fails for good; a lock is waited for."""
    (tmp_path / "watchdog.toml").write_text("[watchdog]\nnonsense = 1\n")
    with s6(tmp_path) as one:
        until(
            lambda: state(one, "up", "wantedup") == ["false", "false"] and "s6-svc -u" in one.log()
        )
        assert one.log().count("watchdog.nonsense: unknown key") == 1
        assert one.log().count("exit code 2") == 1

        configured(tmp_path, standby=True)
        lock = lock_directory(one.state_dir)
        svc(one, "-u")
        until(lambda: "another watchdog is at work" in one.log())
        until(lambda: state(one, "up", "wantedup") == ["false", "true"])
        lock.release()

        until(lambda: one.get("/livez")[0] == 200, READY)
        assert "readyz" not in (tmp_path / "svscan.log").read_text()


def test_it_becomes_who_it_is_told(open_tmp: Path) -> None:
    """FACT: user, home, directory and limits are the service's; exit code 75 is final as well."""
    with s6(open_tmp, **as_games(open_tmp)) as one:
        until(lambda: "s6-svc -u" in one.log())
        until(lambda: state(one, "up", "wantedup") == ["false", "false"])
        became_games(one)


@pytest.mark.parametrize("name", ["run", "finish", "data/check", "log/run"])
def test_defaults_are_those_of_the_example(name: str) -> None:
    """FACT: the example names every setting that the scripts have, with the same value."""
    folder = ROOT / "deploy/s6/vllm-watchdog"
    example_has(defaults(folder / "data/conf.example", "#"), defaults(folder / name))
