"""What is published: wheel and sdist, built from a copy of the tree and installed far from it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.daemon import Daemon, finish
from tests.support.simulated import ROOT, free_port, until

PACKAGES = ("watchdog", "probes", "actions")
_TREE = (".gitignore", "CHANGELOG.md", "LICENSE", "README.md", "pyproject.toml", "docs", *PACKAGES)
_RUNBOOKS = "watchdog/web/pages"
READY = 120.0

pytestmark = pytest.mark.xdist_group("wheel")


@dataclass(frozen=True, slots=True)
class Built:
    """What a build made, and the tree that it was made from."""

    tree: Path
    wheel: Path
    sdist: Path


def build(tree: Path, target: str, folder: Path) -> Path:
    """Build one distribution of the tree; where it is."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)]
    subprocess.run(command, cwd=tree, check=True, capture_output=True, timeout=60)
    (made,) = folder.iterdir()
    return made


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Wheel and sdist."""
    place = tmp_path_factory.mktemp("wheel")
    tree = place / "tree"
    tree.mkdir()
    for name in _TREE:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, tree)
    wheel = build(tree, "wheel", place / "dist")
    return Built(tree, wheel, build(tree, "sdist", place / "sdist"))


def files(folder: Path, prefix: str) -> set[str]:
    """The names of all files below a folder, behind a prefix."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return {f"{prefix}/{path.relative_to(folder)}" for path in found}


def test_the_wheel_is_for_every_python_and_every_processor(built: Built) -> None:
    """FACT: nothing in it is compiled: one wheel for Python 3.11 and newer, on any architecture."""
    assert built.wheel.name.endswith("-py3-none-any.whl")
    assert not [n for n in zipfile.ZipFile(built.wheel).namelist() if n.endswith(".so")]


def test_the_wheel_holds_code_and_data_and_nothing_else(built: Built) -> None:
    """FACT: every file of the packages and all runbooks are in it, what is no code too."""
    wanted = {name for one in PACKAGES for name in files(built.tree / one, one)}
    wanted |= files(built.tree / "docs" / "runbooks", _RUNBOOKS)
    with zipfile.ZipFile(built.wheel) as wheel:
        held = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert held == wanted
    named = ("web/page.css", "web/page.js", "supervisor/signatures.toml", "nvidia/floors.toml")
    assert {f"watchdog/{name}" for name in named} < held
    assert {"watchdog/rules/defaults/engine.toml", f"{_RUNBOOKS}/engine-dead.md"} < held


def test_the_sdist_builds_the_same_wheel(built: Built, tmp_path: Path) -> None:
    """FACT: byte for byte: who builds from the sdist gets what we tested."""
    with tarfile.open(built.sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (tree,) = tmp_path.iterdir()
    again = build(tree, "wheel", tmp_path / "dist")
    assert again.name == built.wheel.name
    assert again.read_bytes() == built.wheel.read_bytes()


def test_the_extras_are_those_that_are_promised(built: Built) -> None:
    """FACT: ``vllm`` and ``dev``; without them neither vLLM nor a tool of ours is required."""
    with zipfile.ZipFile(built.wheel) as wheel:
        (name,) = (one for one in wheel.namelist() if one.endswith("/METADATA"))
        text = wheel.read(name).decode()
    assert re.findall(r"^Provides-Extra: (.+)$", text, re.MULTILINE) == ["dev", "vllm"]
    required = re.findall(r"^Requires-Dist: ([\w-]+)((?:.*; )?.*)$", text, re.MULTILINE)
    always = {name for name, rest in required if "extra ==" not in rest}
    assert {"click", "httpx", "nvidia-ml-py"} < always
    assert not {"vllm", "torch", "pytest", "hatchling"} & always


# --- installed ------------------------------------------------------------------------------------


def interpreters() -> dict[str, Path]:
    """This Python, and the newest other one that is installed beside it, as pyenv does."""
    here = Path(sys.base_prefix)
    found = {"this": Path(sys.executable)}
    others = {
        (3, int(match[1])): folder / "bin" / "python3"
        for folder in here.parent.glob("3.*")
        if folder != here and (match := re.match(r"3\.(\d+)", folder.name))
    }
    newer = {version: path for version, path in others.items() if version >= (3, 11)}
    return found | ({"newest": newer[max(newer)]} if newer else {})


def around() -> dict[str, str]:
    """How pip is told where packages are; nothing else of our environment."""
    wanted = re.compile(r"PIP_|SSL_|(https?|no|all)_proxy$", re.IGNORECASE)
    kept = {name: value for name, value in os.environ.items() if wanted.match(name)}
    home = os.environ.get("XDG_CACHE_HOME") or f"{Path.home()}/.cache"
    return {"PATH": os.defpath, "PIP_CACHE_DIR": f"{home}/pip", **kept}


def install(python: Path, wheel: Path, environment: Path) -> Path:
    """Install the wheel, with the tested versions of what it needs; the folder of its commands."""
    pins = re.findall(r"^[\w.-]+==[\w.]+", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    constraints = environment.with_suffix(".pins")
    constraints.write_text("\n".join(pins))
    make = [str(python), "-m", "venv", "--without-pip", str(environment)]
    subprocess.run(make, check=True, env={}, capture_output=True, timeout=60)
    pip = [sys.executable, "-m", "pip", "--python", str(environment / "bin" / "python"), "install"]
    words = ["--quiet", "--only-binary", ":all:", "--constraint", str(constraints), str(wheel)]
    done = subprocess.run(
        [*pip, *words], env=around(), capture_output=True, text=True, check=False, timeout=180
    )
    assert done.returncode == 0, done.stderr
    return environment / "bin"


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder whose path leaves room for the names of sockets, far from the tree."""
    with tempfile.TemporaryDirectory(prefix="vi-", dir="/tmp") as made:
        yield Path(made)


def told(commands: Path, *words: str) -> str:
    """What the installed command prints, with nothing in its environment."""
    done = subprocess.run(
        [str(commands / "vllm-watchdog"), *words],
        cwd="/",
        env={},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def started(commands: Path, place: Path) -> Daemon:
    """The main job, with nothing in its environment."""
    listen, log, port = f"127.0.0.1:{free_port()}", place / "log", free_port()
    program = str(commands / "vllm-watchdog")
    words = ["run", "--state-dir", str(place / "state"), "--listen", listen]
    engine = [program, "simulate-engine", "--port", str(port)]  # 8000 may be another test's
    with log.open("wb") as out:
        process = subprocess.Popen(
            [program, *words, "--", *engine],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            cwd=place,
            env={},
        )
    return Daemon(process, listen, place / "state", log, port)


def does_its_job(daemon: Daemon) -> None:
    """Ready, ready again after the engine is killed, gone with all of it on SIGTERM."""
    try:
        until(lambda: daemon.get("/healthz")[0] == 200, READY)
    except AssertionError as error:
        raise AssertionError(daemon.log_path.read_text()[-4000:]) from error
    first = daemon.wait_ready(READY)
    daemon.remember(first["pids"])
    os.kill(first["pid"], signal.SIGKILL)
    until(lambda: daemon.is_another(first), READY)
    daemon.remember(daemon.wait_ready(READY)["pids"])
    until(lambda: daemon.get("/healthz")[0] == 200, READY)
    assert "stylesheet" in daemon.get("/")[1] or "<style" in daemon.get("/")[1]
    assert daemon.get("/runbooks/engine-dead")[0] == 200
    daemon.send(signal.SIGTERM)
    assert daemon.ended() == 0
    assert not daemon.survivors()


@pytest.mark.parametrize("which", interpreters())
def test_what_is_installed_does_the_main_job(built: Built, place: Path, which: str) -> None:
    """FACT: in an empty environment, with none of the tree in sight, the wheel is all it takes."""
    commands = install(interpreters()[which], built.wheel, place / "installed")
    version = re.search(
        r"^version = \"(.+)\"$", (ROOT / "pyproject.toml").read_text(), re.MULTILINE
    )
    assert version is not None
    assert told(commands, "--version") == f"vllm-watchdog, version {version[1]}\n"
    assert {"engine", "rule", "watchdog"} < json.loads(told(commands, "schema"))[
        "properties"
    ].keys()
    daemon = started(commands, place)
    try:
        does_its_job(daemon)
    finally:
        finish(daemon)
