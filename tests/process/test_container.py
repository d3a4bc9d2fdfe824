"""The container images, without a container engine: their files, and what they do when they run."""

from __future__ import annotations

import os
import re
import signal
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.images import Stage, build, inside, mounted, sources, stages
from tests.support.namespaces import Box, boxed, folder
from tests.support.simulated import ROOT

FOLDER = ROOT / "deploy" / "container"
FILES = {name: stages(FOLDER / name) for name in ("Dockerfile", "Dockerfile.sidecar")}
MEBIBYTE = 1 << 20
OURS = re.compile(
    r"\./(opt/vllm-watchdog|etc/vllm-watchdog|usr/local/bin/vllm-watchdog$|var/lib/vllm-watchdog$"
    r"|home/vllm|tree$|(etc/(passwd|shadow|group|gshadow|subuid|subgid)-?$)|etc/.pwd.lock$|var/log/(fail|last)log$)"
)
"""What our layer may hold besides directories; who adds a user also writes of it."""
_ENGINE = ("/opt/vllm-watchdog/bin/python", "-m", "watchdog.simulator", "--startup-time", "0")

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
both = pytest.mark.parametrize("name", FILES)


# --- what is written in them ----------------------------------------------------------------------


@both
def test_everything_that_is_copied_is_there(name: str) -> None:
    """FACT: each COPY names files of the tree, or an earlier stage; nothing comes from a URL."""
    found = FILES[name]
    assert not [step for stage in found for step in stage.all("ADD")]
    for stage in found:
        for step in stage.all("COPY"):
            names, _, earlier = sources(step)
            assert not earlier or earlier in {one.name for one in found}
            assert earlier or all((ROOT / one).exists() for one in names)


@both
def test_what_is_copied_is_not_ignored(name: str) -> None:
    """FACT: what the build context leaves out is not what a COPY wants."""
    lines = (FOLDER / f"{name}.dockerignore").read_text().splitlines()
    assert [line for line in lines if not line.startswith(("#", "!"))] == ["*", "**/__pycache__"]
    kept = tuple(line.removeprefix("!") for line in lines if line.startswith("!"))
    wanted = {one for stage in FILES[name] for step in stage.all("COPY") for one in _own(step)}
    assert wanted
    assert all(one.startswith(kept) for one in wanted)


def _own(step: object) -> list[str]:
    names, _, earlier = sources(step)  # type: ignore[arg-type]
    return [] if earlier else names


@both
def test_it_runs_as_somebody_without_rights(name: str) -> None:
    """FACT: the user is a number that is not 0, as a pod that must not be root wants it."""
    assert re.fullmatch(r"[1-9]\d*:0", FILES[name][-1].last("USER").text)


@both
def test_signals_reach_it(name: str) -> None:
    """FACT: entrypoint and health check are in exec form, with no shell before PID 1."""
    last = FILES[name][-1]
    assert last.last("ENTRYPOINT").words()[:2] == ["vllm-watchdog", "run"]
    assert last.last("HEALTHCHECK").words()[0].startswith("/opt/vllm-watchdog/bin/")
    assert last.last("STOPSIGNAL").text == "SIGTERM"
    assert not last.all("CMD")


@both
def test_state_outlives_the_container(name: str) -> None:
    """FACT: the state directory is a volume, and the one that is used."""
    last = FILES[name][-1]
    (place,) = last.last("VOLUME").words()
    assert last.environment()["VLLM_WATCHDOG_STATE_DIR"] == place


def test_both_are_built_alike() -> None:
    """FACT: only what they stand on differs in the first stage."""
    first, second = (found[0] for found in FILES.values())
    assert first.steps == second.steps
    assert "vllm/vllm-openai:v${VLLM_VERSION}" in {found[0].base for found in FILES.values()}


@pytest.mark.parametrize("lock", ["requirements.lock", "build.lock"])
def test_pins_are_those_that_are_tested(lock: str) -> None:
    """FACT: versions and hashes in an image are those of the lock that the tests run with."""
    tested = _pins(ROOT / "requirements.lock")
    pinned = _pins(FOLDER / lock)
    assert len(pinned) > 5
    assert pinned.items() <= tested.items()


def _pins(lock: Path) -> dict[str, frozenset[str]]:
    """Hashes by ``name==version``; for which Python one is needed is left out."""
    found: dict[str, frozenset[str]] = {}
    for block in re.split(r"\n(?=\S)", lock.read_text()):
        if match := re.match(r"[\w.-]+==[\w.]+", block):
            found[match[0]] = frozenset(re.findall(r"sha256:[0-9a-f]{64}", block))
    return found


# --- what they do ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The layer of the first stage, which both have in common."""
    (stage, _) = FILES["Dockerfile"]
    layer = tmp_path_factory.mktemp("layers") / "built.tar"
    build(stage, layer, {})
    return {stage.name: layer}


@pytest.fixture
def layer(name: str, built: dict[str, Path], tmp_path: Path) -> Path:
    """What an image adds to the one it stands on."""
    made = tmp_path / "layer.tar"
    build(FILES[name][-1], made, built)
    return made


@pytest.fixture
def running(name: str, layer: Path) -> Iterator[tuple[Box, Stage]]:
    """A container of the image, with the embedded engine for vLLM."""
    last = FILES[name][-1]
    words = last.last("ENTRYPOINT").words()
    words += [] if words[-1] == "--" else ["--"]
    with (
        folder() as state,
        boxed(inside(last, [*words, *_ENGINE]), state, before=mounted(layer)) as box,
    ):
        yield box, last


@needs_root
@pytest.mark.root
@pytest.mark.xdist_group("container")
@both
def test_the_image_does_its_job(running: tuple[Box, Stage], layer: Path) -> None:
    """FACT: our layer is under 60 MB and changes nothing of the image below; and it works.

    The entrypoint as PID 1 with no rights: ready, again after a kill, healthy, and gone in order.
    """
    assert layer.stat().st_size < 60 * MEBIBYTE
    with tarfile.open(layer) as content:
        names = [one.name for one in content if not one.isdir()]
    assert not [one for one in names if not OURS.match(one)]
    box, stage = running
    first = box.ready()
    os.kill(box.outer(first["pid"]), signal.SIGKILL)
    box.ready(other_than=first["generation"])
    assert not box.lines("watchdog.degraded")
    check = stage.last("HEALTHCHECK").words()
    assert box.spawn(*inside(stage, check)).wait() == 0
    box.send(signal.SIGTERM)
    assert box.ended() == 0


@needs_root
@pytest.mark.root
@pytest.mark.xdist_group("container")
@pytest.mark.parametrize("name", ["Dockerfile"])
def test_the_health_check_says_why(running: tuple[Box, Stage], tmp_path: Path) -> None:
    """FACT: a watchdog that does not answer is unhealthy, in one line that Docker shows."""
    box, stage = running
    box.ready()
    log = tmp_path / "log"
    check = [*stage.last("HEALTHCHECK").words(), "127.0.0.1:1"]
    assert box.spawn(*inside(stage, check), log=log).wait() == 1
    assert log.read_text() == "127.0.0.1:1 does not answer: [Errno 111] Connection refused\n"
