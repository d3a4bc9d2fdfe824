"""deploy/kubernetes: true to the schemas, to one another, and to what the code does."""

from __future__ import annotations

import copy
import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support.manifests import (
    DEPLOY,
    KUBERNETES,
    VERSIONS,
    documents,
    faults,
    instruction,
    overlay,
    overlays,
    ports,
)
from tests.support.simulated import ROOT, free_port
from tests.support.windows import serving_window
from tools.prometheus_rule import RULES, TARGET, wrapped
from watchdog import __version__, registry
from watchdog.config import Config, WatchdogSettings, listen_address, load
from watchdog.config.places import SYSTEM_CONFIG, SYSTEM_STATE
from watchdog.core.state import Attach
from watchdog.daemon.wiring import longest_stop, outer_limit
from watchdog.places import SHM
from watchdog.supervisor.ladder import StopSettings
from watchdog.web.app import App

PODS = ("node", "sidecar", "wrapper")
ENGINES = ("sidecar", "wrapper")
PORT = listen_address(WatchdogSettings().listen)[1]
HOME = "/home/vllm"
"""Of the user of the images: vLLM, Triton and the hub keep their caches below it."""
UNUSED = 60
"""Seconds of a grace period beyond what a stop can take: nobody waits for longer for a node."""


def configured(name: str, command: tuple[str, ...] = ()) -> Config:
    """The configuration of an overlay, judged as the daemon judges it."""
    return load(KUBERNETES / name / "watchdog.toml", registry.plug_ins(), command)


def longest_shutdown(config: Config) -> float:
    """Seconds after which the daemon has left, whatever hangs."""
    stop = config.engine["main"].stop
    ladder = StopSettings(stop.drain_timeout, stop.term_timeout, stop.kill_timeout)
    return outer_limit([longest_stop(ladder)])


def probes(container: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The probes of a container that ask by HTTP."""
    return {k: v["httpGet"] for k, v in container.items() if k.endswith("Probe")}


def answer(path: str) -> str:
    """The status line that a watchdog with an engine that serves has for it."""
    environ = {"REQUEST_METHOD": "GET", "PATH_INFO": path, "QUERY_STRING": ""}
    told: list[str] = []
    list(App(serving_window())(environ, lambda status, _headers: told.append(status)))
    return told[0]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", overlays())
def test_objects_are_what_their_schemas_say(name: str, version: str) -> None:
    """Kubernetes, its oldest and its newest, the operator and kustomize know every key."""
    found = overlay(name)
    for one in (found.kustomization, *found.objects):
        assert faults(one, version) == [], one["kind"]


def _spoilt(thing: Any) -> Any:  # noqa: ANN401 - any YAML
    """A copy with a key that nobody knows in the deepest first mapping."""
    copied = copy.deepcopy(thing)
    place = copied
    while inner := [v for v in place.values() if isinstance(v, dict) and v]:
        place = inner[-1]
    place["misspelt"] = 1
    return copied


@pytest.mark.parametrize("name", overlays())
def test_schemas_refuse_a_misspelt_key(name: str) -> None:
    """The schemas are strict: a key that nobody knows is found in every object."""
    found = overlay(name)
    for one in (found.kustomization, *found.objects):
        spoilt = _spoilt({k: v for k, v in one.items() if k != "metadata"})
        assert faults(spoilt | {"metadata": one.get("metadata", {})}, VERSIONS[-1]), one["kind"]


@pytest.mark.parametrize("name", overlays())
def test_kustomizations_name_every_file(name: str) -> None:
    """A folder holds what its kustomization names, and nothing else."""
    found = overlay(name)
    configs = [f for one in found.kustomization.get("configMapGenerator", ()) for f in one["files"]]
    named = {"kustomization.yaml", *found.kustomization["resources"], *configs}
    assert named == {path.name for path in found.folder.iterdir()}


@pytest.mark.parametrize("name", PODS)
def test_images_are_pinned(name: str) -> None:
    """Every image gets a version from the kustomization, ours that of this tree; none is unused."""
    found = overlay(name)
    pinned = {one["name"]: one["newTag"] for one in found.kustomization["images"]}
    assert {one["image"] for one in found.containers()} == set(pinned)
    for image, tag in pinned.items():
        assert re.fullmatch(r"v?\d+\.\d+\.\d+", tag)
        assert tag == __version__ or not image.startswith("vllm-watchdog")


@pytest.mark.parametrize("name", overlays())
def test_objects_leave_the_namespace_to_the_user(name: str) -> None:
    """No object names a namespace or needs a role, and no pod has an account's token."""
    found = overlay(name)
    assert not any("namespace" in one["metadata"] for one in found.objects)
    kinds = {one["kind"] for one in found.objects}
    assert not any("Role" in kind or "Account" in kind for kind in kinds)
    if name in PODS:
        assert found.pod()["automountServiceAccountToken"] is False


@pytest.mark.parametrize("name", PODS)
def test_pods_are_unprivileged(name: str) -> None:
    """No container is root, gains privileges, keeps a capability, or writes to its root."""
    found = overlay(name)
    assert found.pod()["securityContext"]["runAsNonRoot"] is True
    assert found.pod()["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    user = f"{found.pod()['securityContext']['runAsUser']}"
    group = f"{found.pod()['securityContext']['runAsGroup']}"
    assert f"{user}:{group}" == instruction(found.watchdog()["image"], "USER")
    for one in found.containers():
        assert one["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


@pytest.mark.parametrize("name", PODS)
def test_containers_can_write_where_they_must(name: str) -> None:
    """Every mount has its volume and every volume its mount; state, /tmp and shared memory too."""
    found = overlay(name)
    volumes = {one["name"]: one for one in found.pod()["volumes"]}
    mounts = [m for one in found.containers() for m in one["volumeMounts"]]
    assert {m["name"] for m in mounts} == set(volumes)
    for one in found.containers():
        assert "emptyDir" in volumes[mounted(one)["/tmp"]]
        if "engine" in ports(one):
            assert volumes[mounted(one)[SHM]]["emptyDir"]["medium"] == "Memory"
            assert "emptyDir" in volumes[mounted(one)[HOME]]
    assert "emptyDir" in volumes[mounted(found.watchdog())[str(SYSTEM_STATE)]]


def mounted(container: dict[str, Any]) -> dict[str, str]:
    """Which volume is at which path."""
    assert len({m["mountPath"] for m in container["volumeMounts"]}) == len(
        container["volumeMounts"]
    )
    return {m["mountPath"]: m["name"] for m in container["volumeMounts"]}


@pytest.mark.parametrize("name", PODS)
def test_the_configuration_is_mounted_where_it_is_looked_for(name: str) -> None:
    """The generated ConfigMap is the one that is mounted, at the place of the default file."""
    found = overlay(name)
    volumes = {one["name"]: one for one in found.pod()["volumes"]}
    source = volumes[mounted(found.watchdog())[str(SYSTEM_CONFIG.parent)]]
    (generated,) = found.kustomization["configMapGenerator"]
    assert source["configMap"] == {"name": generated["name"]}
    assert generated["files"] == [SYSTEM_CONFIG.name]


@pytest.mark.parametrize("name", PODS)
def test_the_kubelet_finds_the_watchdog(name: str) -> None:
    """It listens on the pod's address and the default port, and answers the paths of the probes."""
    found = overlay(name)
    assert ports(found.watchdog())["watchdog"] == PORT
    asked = probes(found.watchdog())
    assert {probe: one["port"] for probe, one in asked.items()} == dict.fromkeys(asked, "watchdog")
    assert {answer(one["path"]) for one in asked.values()} == {"200 OK"}


def test_probes_do_not_fight_over_what_the_watchdog_repairs() -> None:
    """Liveness is the watchdog's own, readiness the engine's if any; nobody else is probed."""
    for name in PODS:
        found = overlay(name)
        paths = {probe: one["path"] for probe, one in probes(found.watchdog()).items()}
        ready = {"readinessProbe": "/readyz"}
        assert paths == {"startupProbe": "/livez", "livenessProbe": "/livez", **ready}
        assert sum(bool(probes(one)) for one in found.containers()) == 1


def test_the_grace_period_covers_the_longest_stop() -> None:
    """The kubelet waits for the whole ladder and the watchdog's patience, and not much longer."""
    found = overlay("wrapper")
    command = tuple(found.watchdog()["args"])
    needed = longest_shutdown(configured("wrapper", command))
    needed += found.watchdog()["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert needed <= found.pod()["terminationGracePeriodSeconds"] <= needed + UNUSED


@pytest.mark.parametrize("name", ENGINES)
def test_requests_go_to_the_engine(name: str) -> None:
    """The service selects the pods, and its port is the engine's, by name and by command."""
    found = overlay(name)
    (service,) = (one for one in found.objects if one["kind"] == "Service")
    labels = found.workload()["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    assert found.workload()["spec"]["selector"]["matchLabels"].items() <= labels.items()
    (engine,) = (one for one in found.containers() if "engine" in ports(one))
    assert [one["targetPort"] for one in service["spec"]["ports"]] == ["engine"]
    words = engine.get("command") or engine["args"]
    assert words[words.index("--port") + 1] == str(ports(engine)["engine"])


@pytest.mark.parametrize("name", ENGINES)
def test_services_do_not_shadow_a_variable_of_vllm(name: str) -> None:
    """A service called vllm would put its address into VLLM_PORT of every pod near it."""
    found = overlay(name)
    services = [one["metadata"]["name"] for one in found.objects if one["kind"] == "Service"]
    assert not any(one.startswith("vllm") for one in services)
    assert found.pod()["enableServiceLinks"] is False


@pytest.mark.parametrize("name", PODS)
def test_only_engines_take_a_gpu(name: str) -> None:
    """The engine is given cards; who only watches asks for none, and for NVML alone."""
    found = overlay(name)
    for one in found.containers():
        env = {e["name"]: e.get("value") for e in one.get("env", ())}
        takes = "nvidia.com/gpu" in one["resources"]["limits"]
        assert takes is ("engine" in ports(one))
        if not takes:
            assert found.pod()["runtimeClassName"] == "nvidia"
            assert env["NVIDIA_VISIBLE_DEVICES"] == "all"
            assert env["NVIDIA_DRIVER_CAPABILITIES"] == "utility"


def test_a_sidecar_may_signal_its_engine() -> None:
    """Both are one user in one PID namespace: no container has a user of its own."""
    found = overlay("sidecar")
    assert found.pod()["shareProcessNamespace"] is True
    assert not any("runAsUser" in one["securityContext"] for one in found.containers())


def test_a_sidecar_knows_the_command_of_its_engine() -> None:
    """What is attached to is the engine of the pod, and without being asked it is not signalled."""
    found = overlay("sidecar")
    (engine,) = (one for one in found.containers() if "engine" in ports(one))
    main = configured("sidecar").engine["main"]
    assert list(main.command) == engine["command"]
    assert main.attach is Attach.REPORT


@pytest.mark.parametrize("name", PODS)
def test_configurations_are_read(name: str) -> None:
    """The daemon takes each of them, and listens where the kubelet comes to."""
    command = tuple(overlay("wrapper").watchdog()["args"]) if name == "wrapper" else ()
    config = configured(name, command)
    assert listen_address(config.watchdog.listen) == ("0.0.0.0", PORT)  # noqa: S104 - the pod's
    assert len(config.engine) == (name in ENGINES)
    words = overlay(name).watchdog().get("args", ())
    assert ("--no-engine" in words) is (name not in ENGINES)


def test_the_wrappers_configuration_passes_check(tmp_path: Path) -> None:
    """``vllm-watchdog check`` finds no problem in it; the simulator stands in for vLLM."""
    config = KUBERNETES / "wrapper" / "watchdog.toml"
    simulator = [sys.executable, "-m", "watchdog", "simulate-engine", "--port", str(free_port())]
    argv = [sys.executable, "-m", "watchdog", "check", "--config", str(config), "--state-dir",
            str(tmp_path), "--", *simulator]  # fmt: skip
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_prometheus_rule_is_current() -> None:
    """It is what ``python -m tools.prometheus_rule`` makes of the alerts now."""
    assert TARGET.read_text() == wrapped(RULES.read_text())


def test_the_prometheus_rule_holds_the_same_alerts(tmp_path: Path) -> None:
    """Its spec is the rules file, value by value, and promtool takes it."""
    (rule,) = documents(TARGET)
    assert [rule["spec"]] == documents(RULES)
    extracted = tmp_path / "rules.yml"
    extracted.write_text(json.dumps(rule["spec"]))
    argv = ["promtool", "check", "rules", str(extracted)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_finds_every_pod() -> None:
    """The PodMonitor selects all pods by a label that is the alerts' job, and ports that exist."""
    (monitor,) = (o for o in overlay("monitoring").objects if o["kind"] == "PodMonitor")
    (job,) = set(re.findall(r'job="([^"]+)"', RULES.read_text()))
    offered: Counter[str] = Counter()
    for name in PODS:
        found = overlay(name)
        labels = found.workload()["spec"]["template"]["metadata"]["labels"]
        assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
        assert labels[monitor["spec"]["jobLabel"]] == job
        offered.update(port for one in found.containers() for port in ports(one))
    endpoints = {one["port"]: one for one in monitor["spec"]["podMetricsEndpoints"]}
    assert set(endpoints) == set(offered)
    (renamed,) = endpoints["engine"]["relabelings"]
    assert renamed["targetLabel"] == "job"
    (scraped,) = documents(DEPLOY / "prometheus" / "prometheus.yml")
    assert [job, renamed["replacement"]] == [one["job_name"] for one in scraped["scrape_configs"]]


def test_instances_are_called_as_the_watchdog_calls_itself() -> None:
    """HOST:PORT of a pod has the pod's name, of one in the node's network that of the node."""
    (monitor,) = (o for o in overlay("monitoring").objects if o["kind"] == "PodMonitor")
    (watchdog,) = (e for e in monitor["spec"]["podMetricsEndpoints"] if e["port"] == "watchdog")
    pod, node = watchdog["relabelings"]
    assert pod["replacement"] == node["replacement"] == f"$1:{PORT}"
    component = overlay("node").workload()["spec"]["template"]["metadata"]["labels"][
        "app.kubernetes.io/component"
    ]
    assert node["regex"] == f"{component};(.+)"
    assert overlay("node").pod()["hostNetwork"] is True
