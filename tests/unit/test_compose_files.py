"""deploy/compose: true to the schema, to the files beside it, and to what the code does."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.manifests import (
    COMPOSE,
    DEPLOY,
    IMAGES,
    compose,
    compose_faults,
    documents,
    filled,
    instruction,
    overlay,
    seconds,
    strings,
)
from watchdog import __version__, registry
from watchdog.command_line import describe
from watchdog.config import WatchdogSettings, load
from watchdog.config.places import SYSTEM_CONFIG, SYSTEM_STATE
from watchdog.core.state import Attach
from watchdog.daemon.wiring import longest_stop, outer_limit
from watchdog.supervisor.ladder import StopSettings

CONFIG = COMPOSE / "watchdog.toml"
FILES = ("compose.yaml", "compose.sidecar.yaml")
HOME = "/home/vllm"
UNUSED = 60
"""Seconds of a grace period beyond what a stop can take: nobody waits for longer for a box."""
LOOPBACK = "127.0.0.1"


def services(name: str) -> dict[str, dict[str, Any]]:
    """Of a file, those that are somewhere else's left out."""
    found: dict[str, dict[str, Any]] = compose(name)["services"]
    return {key: one for key, one in found.items() if "extends" not in one}


def mounts(service: dict[str, Any]) -> dict[str, str]:
    """What is mounted at which path."""
    pairs = [one.split(":") for one in service.get("volumes", ())]
    return {pair[1]: pair[0] for pair in pairs}


def engine_command(words: list[str]) -> list[str]:
    """With all variables at their defaults, from the engine's program on."""
    told = [filled(word) for word in words]
    return told[told.index("vllm") :]


@pytest.mark.parametrize("name", FILES)
def test_files_are_what_the_schema_says(name: str) -> None:
    """The Compose Specification knows every key."""
    assert compose_faults(compose(name)) == []


@pytest.mark.parametrize("key", ["", "engine", "engine healthcheck"])
def test_the_schema_refuses_a_misspelt_key(key: str) -> None:
    """It is strict: a key that nobody knows is found at every depth."""
    file = compose("compose.yaml")
    place = file
    for word in (["services"] if key else []) + key.split():
        place = place[word]
    place["misspelt"] = 1
    assert compose_faults(file)


@pytest.mark.parametrize("name", FILES)
def test_images_are_pinned(name: str) -> None:
    """Every image has a version that can be changed, ours that of this tree."""
    for one in services(name).values():
        assert re.fullmatch(r"[a-z/-]+:v?\$\{[A-Z]+_VERSION:-[^}]+\}", one["image"])
        image, _, tag = filled(one["image"]).partition(":")
        assert re.fullmatch(r"v?\d+\.\d+\.\d+", tag)
        assert tag == __version__ or not image.startswith("vllm-watchdog")


def test_all_ways_to_deploy_have_the_same_engine() -> None:
    """Compose, its sidecar, the image and Kubernetes name one version of vLLM."""
    pinned = {one["name"]: one["newTag"] for one in overlay("sidecar").kustomization["images"]}
    wanted = pinned["vllm/vllm-openai"]
    sidecar = filled(services("compose.sidecar.yaml")["engine"]["image"])
    wrapped = filled(services("compose.yaml")["engine"]["build"]["args"]["VLLM_VERSION"])
    assert sidecar == f"vllm/vllm-openai:{wanted}"
    assert f"v{wrapped}" == wanted
    assert f"VLLM_VERSION={wrapped}" == instruction("vllm-watchdog", "ARG")


@pytest.mark.parametrize("name", FILES)
def test_files_that_are_named_exist(name: str) -> None:
    """What is mounted, built or extended from this tree is there; every other mount is a volume."""
    file = compose(name)
    inherited = {key for key, one in file["services"].items() if "extends" in one}
    used = set[str]()
    for one in file["services"].values():
        if "extends" in one:
            other = compose(one["extends"]["file"])["services"][one["extends"]["service"]]
            used.update(mounts(other).values())
        if "build" in one:
            context = (COMPOSE / one["build"]["context"]).resolve()
            image = one["image"].partition(":")[0]
            assert context / one["build"]["dockerfile"] == IMAGES[image]
            assert IMAGES[image].is_file()
        used.update(mounts(one).values())
    assert {source for source in used if not source.startswith(".")} == set(file["volumes"])
    assert all((COMPOSE / source).exists() for source in used if source.startswith("."))
    assert len(inherited) == (3 if name == "compose.sidecar.yaml" else 0)


def test_the_grace_period_covers_the_longest_stop() -> None:
    """Docker waits for the whole ladder and the watchdog's patience, and not much longer."""
    engine = services("compose.yaml")["engine"]
    config = load(CONFIG, registry.plug_ins(), engine_command(engine["command"]))
    stop = config.engine["main"].stop
    ladder = StopSettings(stop.drain_timeout, stop.term_timeout, stop.kill_timeout)
    needed = outer_limit([longest_stop(ladder)])
    assert needed <= seconds(engine["stop_grace_period"]) <= needed + UNUSED


@pytest.mark.parametrize("name", FILES)
def test_everything_listens_on_loopback(name: str) -> None:
    """All share the box's network, so nobody but loopback is let in, and nothing is published."""
    for one in services(name).values():
        assert one["network_mode"] == "host" or "entrypoint" in one
        assert "ports" not in one
        addresses = [word for word in strings(one) if re.search(r"listen-address=.", word)]
        assert all(f"={LOOPBACK}:" in word for word in addresses)
    engine = services(name)["engine"]
    words = engine.get("entrypoint") or engine["command"]
    assert describe(engine_command(words), {}, {}).bind_host == LOOPBACK


def test_those_who_ask_find_those_who_answer() -> None:
    """The files of Prometheus and Grafana name the addresses on which the others listen."""
    found = services("compose.yaml")
    said = {key: set(re.findall(r"127\.0\.0\.1:\d+", "\n".join(strings(one))))
            for key, one in found.items()}  # fmt: skip
    (scraping,) = documents(DEPLOY / "prometheus" / "prometheus.yml")
    (managers,) = scraping["alerting"]["alertmanagers"]
    assert set(managers["static_configs"][0]["targets"]) <= said["alertmanager"]
    (datasources,) = documents(DEPLOY / "grafana/provisioning/datasources/prometheus.yml")
    asked = datasources["datasources"][0]["url"].removeprefix("http://")
    assert asked in said["prometheus"]
    targets = [t for job in scraping["scrape_configs"] for t in job["static_configs"][0]["targets"]]
    port = describe(engine_command(found["engine"]["command"]), {}, {}).endpoint.port
    assert targets == [WatchdogSettings().listen, f"{LOOPBACK}:{port}"]
    config = load(CONFIG, registry.plug_ins(), engine_command(found["engine"]["command"]))
    assert config.watchdog.listen == WatchdogSettings().listen
    told = config.notify["alertmanager"].url.removeprefix("http://")
    assert told in said["alertmanager"]


def test_each_program_finds_its_files() -> None:
    """What a program is told to read is below what is mounted."""
    found = services("compose.yaml")
    for name in ("prometheus", "alertmanager"):
        told = next(word for word in found[name]["command"] if word.startswith("--config.file="))
        path = Path(told.partition("=")[2])
        source = mounts(found[name])[str(path.parent)]
        assert (COMPOSE / source / path.name).is_file()
    (boards,) = documents(DEPLOY / "grafana/provisioning/dashboards/vllm-watchdog.yml")
    folder = boards["providers"][0]["options"]["path"]
    board = found["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert str(Path(board).parent) == folder
    assert board in mounts(found["grafana"])


@pytest.mark.parametrize("name", FILES)
def test_containers_are_unprivileged(name: str) -> None:
    """No service keeps a capability or gains privileges; those of ours write to no root."""
    for key, one in services(name).items():
        assert one["cap_drop"] == ["ALL"]
        assert one["security_opt"] == ["no-new-privileges:true"]
        assert not {"privileged", "cap_add", "pid_host"} & set(one)
        if key in {"engine", "watchdog", "pids"}:
            assert one["read_only"] is True


@pytest.mark.parametrize(("name", "keeper"), [(FILES[0], "engine"), (FILES[1], "watchdog")])
def test_the_state_outlives_the_container(name: str, keeper: str) -> None:
    """Budgets and incidents are on a volume, at the place where the watchdog looks for them."""
    mounted = mounts(services(name)[keeper])
    assert mounted[str(SYSTEM_STATE)] == "state"
    assert mounted[str(SYSTEM_CONFIG)] == f"./{CONFIG.name}"


@pytest.mark.parametrize("name", FILES)
def test_engines_have_shared_memory_of_their_own(name: str) -> None:
    """More than a container's 64 MB, and not the box's; and a /tmp that libraries load from."""
    engine = services(name)["engine"]
    assert "ipc" not in engine
    assert re.fullmatch(r"\d+gb", filled(engine["shm_size"]))
    assert any(one.startswith("/tmp:exec,") for one in engine["tmpfs"])


@pytest.mark.parametrize("name", FILES)
def test_everything_comes_back_after_a_boot(name: str) -> None:
    """And after a crash, but not after a stop that somebody asked for."""
    assert {one["restart"] for one in services(name).values()} == {"unless-stopped"}


def test_a_sidecar_may_signal_its_engine() -> None:
    """One user in one PID namespace, which is neither's own: it outlives both."""
    found = services("compose.sidecar.yaml")
    engine, watchdog, owner = found["engine"], found["watchdog"], found["pids"]
    assert engine["pid"] == watchdog["pid"] == "service:pids"
    assert engine["user"] == watchdog["user"] == owner["user"]
    assert engine["user"] == instruction("vllm-watchdog-sidecar", "USER") == "2000:0"
    assert owner["init"] is True


def test_a_sidecar_knows_the_command_of_its_engine() -> None:
    """What is attached to is the engine beside it, and without being asked it is not signalled."""
    found = services("compose.sidecar.yaml")
    words = [filled(word) for word in found["watchdog"]["command"]]
    flag, attach, dashes, *command = words
    assert (flag, dashes) == ("--attach", "--")
    assert json.loads(instruction("vllm-watchdog-sidecar", "ENTRYPOINT")) == [
        "vllm-watchdog",
        "run",
    ]
    assert Attach(attach) is Attach.REPORT
    assert command == engine_command(found["engine"]["entrypoint"])


def test_watchers_take_no_part_of_a_gpu() -> None:
    """The watchdog beside an engine is given NVML alone; the engine computes."""
    found = services("compose.sidecar.yaml")
    given = {
        key: one["deploy"]["resources"]["reservations"]["devices"][0]["capabilities"]
        for key, one in found.items()
        if "deploy" in one
    }
    assert given == {"engine": ["gpu", "compute", "utility"], "watchdog": ["gpu", "utility"]}


def test_health_is_what_the_image_asks() -> None:
    """No file asks anything else, and the image asks at the default address of the watchdog."""
    for name in FILES:
        found = services(name)
        assert not any("test" in one.get("healthcheck", ()) for one in found.values())
        for one in found.values():
            image = one["image"].partition(":")[0]
            if image in IMAGES and not one["healthcheck"].get("disable"):
                assert "HEALTHCHECK" in IMAGES[image].read_text()
    asked = (DEPLOY / "container" / "alive.py").read_text()
    assert f'"{WatchdogSettings().listen}"' in asked


def test_caches_are_below_the_home_of_the_image() -> None:
    """A root that is read-only leaves the engine its HOME, on a volume."""
    for name in FILES:
        home = services(name)["engine"].get("environment", {}).get("HOME", HOME)
        assert home == HOME
        assert mounts(services(name)["engine"])[home] == "cache"
