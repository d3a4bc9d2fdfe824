"""The files of deploy/compose and deploy/kubernetes as values, and the schemas that they keep."""

from __future__ import annotations

import importlib.resources
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import yaml

from tests.support.simulated import ROOT

DEPLOY = ROOT / "deploy"
COMPOSE = DEPLOY / "compose"
KUBERNETES = DEPLOY / "kubernetes"
IMAGES = {
    "vllm-watchdog": DEPLOY / "container" / "Dockerfile",
    "vllm-watchdog-sidecar": DEPLOY / "container" / "Dockerfile.sidecar",
}
"""What our images are built from."""
VERSIONS = ("1.30", "1.37")
"""The oldest Kubernetes that knows all fields without a gate, and the newest with a schema."""

Object = dict[str, Any]
_UNITS = {"s": 1, "m": 60, "h": 3600}

_TEXT = {"type": "string", "minLength": 1}
_LABELS = {"type": "object", "additionalProperties": _TEXT}


def _closed(required: Mapping[str, Any], optional: Mapping[str, Any] | None = None) -> Object:
    """An object of these keys and no other."""
    return {
        "type": "object",
        "properties": {**required, **(optional or {})},
        "required": list(required),
        "additionalProperties": False,
    }


def _list(of: object) -> Object:
    return {"type": "array", "items": of, "minItems": 1}


_METADATA = _closed({"name": _TEXT}, {"labels": _LABELS, "annotations": _LABELS})
_DURATION = {"type": "string", "pattern": r"^([0-9]+(ms|s|m|h|d))+$"}
_RELABELING = _closed(
    {},
    {
        "sourceLabels": _list({"type": "string", "pattern": "^[a-zA-Z_][a-zA-Z0-9_]*$"}),
        "targetLabel": _TEXT,
        "replacement": _TEXT,
        "regex": _TEXT,
    },
)
_RULE = _closed({"expr": _TEXT}, {"record": _TEXT, "alert": _TEXT, "for": _DURATION,
                                  "keep_firing_for": _DURATION, "labels": _LABELS,
                                  "annotations": _LABELS})  # fmt: skip
_ENDPOINT = _closed(
    {"port": _TEXT},
    {"interval": _DURATION, "scrapeTimeout": _DURATION, "path": _TEXT,
     "relabelings": _list(_RELABELING)},
)  # fmt: skip
_KINDS: dict[tuple[str, str], Object] = {
    ("monitoring.coreos.com/v1", "PodMonitor"): _closed(
        {"selector": _closed({"matchLabels": _LABELS}), "podMetricsEndpoints": _list(_ENDPOINT)},
        {"jobLabel": _TEXT, "namespaceSelector": {"type": "object"}},
    ),
    ("monitoring.coreos.com/v1", "PrometheusRule"): _closed(
        {"groups": _list(_closed({"name": _TEXT, "rules": _list(_RULE)},
                                 {"interval": _DURATION}))}
    ),
}  # fmt: skip
"""What we use of kinds for which no package has a strict schema, as their operator documents it."""

_KUSTOMIZATION = _closed(
    {
        "apiVersion": {"const": "kustomize.config.k8s.io/v1beta1"},
        "kind": {"const": "Kustomization"},
        "resources": _list(_TEXT),
    },
    {
        "images": _list(_closed({"name": _TEXT, "newTag": _TEXT}, {"newName": _TEXT})),
        "configMapGenerator": _list(_closed({"name": _TEXT, "files": _list(_TEXT)})),
        "generatorOptions": _closed({"disableNameSuffixHash": {"type": "boolean"}}),
        "labels": _list(_closed({"pairs": _LABELS})),
    },
)


@dataclass(frozen=True, slots=True)
class Overlay:
    """One folder that ``kubectl apply -k`` takes."""

    folder: Path
    kustomization: Object
    objects: tuple[Object, ...]

    def workload(self) -> Object:
        """Its Deployment or DaemonSet."""
        return next(o for o in self.objects if o["kind"] in {"Deployment", "DaemonSet"})

    def pod(self) -> Object:
        """The spec of the pods of its workload."""
        spec: Object = self.workload()["spec"]["template"]["spec"]
        return spec

    def containers(self) -> list[Object]:
        """Of its pods."""
        found: list[Object] = self.pod()["containers"]
        return found

    def watchdog(self) -> Object:
        """The container that the watchdog is in."""
        return next(c for c in self.containers() if "watchdog" in ports(c))


def overlays() -> list[str]:
    """The names of all overlays."""
    return sorted(path.parent.name for path in KUBERNETES.glob("*/kustomization.yaml"))


def overlay(name: str) -> Overlay:
    """One of them, read."""
    folder = KUBERNETES / name
    kustomization = documents(folder / "kustomization.yaml")[0]
    files = [folder / one for one in kustomization["resources"]]
    return Overlay(folder, kustomization, tuple(o for file in files for o in documents(file)))


def documents(path: Path) -> list[Object]:
    """What a YAML file holds. Raises ValueError for a key that stands twice in one mapping."""
    text = path.read_text()
    for document in yaml.compose_all(text, yaml.SafeLoader):
        _twice(path, document)
    return list(yaml.safe_load_all(text))


def _twice(path: Path, node: yaml.Node) -> None:
    if isinstance(node, yaml.MappingNode):
        keys = [key.value for key, _ in node.value]
        again = {key for key in keys if keys.count(key) > 1}
        if again:
            raise ValueError(f"{path}: {again} stand twice in one mapping")
    for child in node.value if isinstance(node, yaml.CollectionNode) else ():
        for one in child if isinstance(child, tuple) else (child,):
            _twice(path, one)


def ports(container: Object) -> dict[str, int]:
    """The named ports of a container."""
    return {one["name"]: one["containerPort"] for one in container.get("ports", ())}


def instruction(image: str, word: str) -> str:
    """What follows the last ``word`` of the Dockerfile of one of our images."""
    lines = IMAGES[image].read_text().splitlines()
    return next(line for line in reversed(lines) if line.startswith(f"{word} "))[len(word) + 1 :]


def compose(name: str) -> Object:
    """A compose file."""
    return documents(COMPOSE / name)[0]


def filled(text: str) -> str:
    """A value of a compose file with every variable at its default."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)


def seconds(text: str) -> int:
    """Of a duration as compose writes it: ``3m``, ``1m30s``."""
    parts = re.findall(r"(\d+)([smh])", text)
    assert "".join(map("".join, parts)) == text
    return sum(int(number) * _UNITS[unit] for number, unit in parts)


def faults(thing: Object, version: str) -> list[str]:
    """What a schema says against an object of Kubernetes, of its operator, or of kustomize."""
    if thing["kind"] == "Kustomization":
        return _against(_KUSTOMIZATION, thing)
    spec = _KINDS.get((thing["apiVersion"], thing["kind"]))
    if spec is not None:
        kind = {"apiVersion": _TEXT, "kind": _TEXT, "metadata": _METADATA, "spec": spec}
        return _against(_closed(kind), thing)
    try:
        kubernetes_validate.validate(thing, version, strict=True)
    except kubernetes_validate.ValidationError as error:
        return [f"{'.'.join(map(str, error.path))}: {error.message}"]
    return []


def compose_faults(thing: Object) -> list[str]:
    """What the schema of the Compose Specification says against a file."""
    return _against(_compose_schema(), thing)


@cache
def _compose_schema() -> Object:
    file = importlib.resources.files("check_jsonschema.builtin_schemas.vendor")
    schema: Object = json.loads(file.joinpath("compose-spec.json").read_text())
    return schema


def _against(schema: Object, thing: Object) -> list[str]:
    kind = jsonschema.validators.validator_for(schema)
    found = kind(schema).iter_errors(thing)
    return [f"{'.'.join(map(str, error.path))}: {error.message}" for error in found]


def strings(thing: object) -> Iterator[str]:
    """Every text in a value, keys left out."""
    if isinstance(thing, str):
        yield thing
    elif isinstance(thing, dict | list):
        for one in thing.values() if isinstance(thing, dict) else thing:
            yield from strings(one)
