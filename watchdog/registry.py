"""Finds plug-ins: name → module → ``PROBE`` or ``ACTION``.

Modules of the packages ``probes`` and ``actions`` without a leading underscore, and what other
distributions offer in the entry point group ``vllm_watchdog.probes``. Imported on first use.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from importlib.metadata import entry_points
from typing import TypeVar

import msgspec

from watchdog.config import PlugIns
from watchdog.contracts import ActionSpec, ProbeSpec, SampleSpec

PROBE_GROUP = "vllm_watchdog.probes"
_TYPES = (bool, int, float, str)
_TAKEN = frozenset({"engine", "engines", "watchdog"})

SpecT = TypeVar("SpecT", ProbeSpec, ActionSpec)


class RegistryError(Exception):
    """A plug-in is broken. The message is one line, starts "cannot load" and names it."""


@cache
def probes() -> Mapping[str, ProbeSpec]:
    """Every probe by name, checked. Raises ``RegistryError``."""
    found = dict(in_package("probes", "PROBE", ProbeSpec))
    for place, spec in _offered():
        check_probe(place, spec)
        if spec.name in found:
            raise RegistryError(f"cannot load {place}: the name {spec.name} is taken")
        found[spec.name] = spec
    check_metrics(found)
    return found


@cache
def actions() -> Mapping[str, ActionSpec]:
    """Every action by name, checked. Raises ``RegistryError``."""
    return in_package("actions", "ACTION", ActionSpec)


def plug_ins() -> PlugIns:
    """The settings types of all of them, to read a configuration with. Raises ``RegistryError``."""
    return PlugIns(
        {name: spec.settings for name, spec in probes().items()},
        {name: spec.settings for name, spec in actions().items()},
    )


def in_package(package: str, attribute: str, kind: type[SpecT]) -> dict[str, SpecT]:
    """The specs that the modules of ``package`` export as ``attribute``; raises as above."""
    found: dict[str, SpecT] = {}
    for name in _modules(package):
        place = f"{package}.{name}"
        spec = _exported(place, partial(importlib.import_module, place), attribute)
        if not isinstance(spec, kind):
            raise RegistryError(f"cannot load {place}: it exports no {kind.__name__} {attribute}")
        if spec.name != name:
            raise RegistryError(f"cannot load {place}: it calls itself {spec.name!r}")
        if isinstance(spec, ProbeSpec):
            check_probe(place, spec)
        found[name] = spec
    return found


def check_probe(place: str, spec: ProbeSpec) -> None:
    """Raises ``RegistryError`` that names ``place`` when the spec contradicts itself."""
    for trouble in _probe_troubles(spec):
        raise RegistryError(f"cannot load {place}: {trouble}")


def check_metrics(specs: Mapping[str, ProbeSpec]) -> None:
    """Raises ``RegistryError`` when two samples would be exported under one name."""
    owners: dict[str, str] = {}
    for spec in specs.values():
        for sample in filter(_exported_sample, spec.samples):
            metric = sample.metric or f"vllm_watchdog_{spec.name}_{sample.name}"
            owner = owners.setdefault(metric, spec.name)
            if owner != spec.name:
                raise RegistryError(f"cannot load {spec.name}: {owner} has the metric {metric} too")


def _exported_sample(sample: SampleSpec) -> bool:
    return sample.exported and (sample.type is not str or bool(sample.metric))


def _modules(package: str) -> list[str]:
    paths = importlib.import_module(package).__path__
    return sorted(m.name for m in pkgutil.iter_modules(paths) if not m.name.startswith("_"))


def _offered() -> Iterator[tuple[str, ProbeSpec]]:
    for entry in entry_points(group=PROBE_GROUP):
        place = f"{entry.name} ({entry.value})"
        spec = _exported(place, entry.load, "")
        spec = getattr(spec, "PROBE", spec)
        if not isinstance(spec, ProbeSpec) or spec.name != entry.name:
            raise RegistryError(f"cannot load {place}: it is no ProbeSpec of that name")
        yield place, spec


def _exported(place: str, load: Callable[[], object], attribute: str) -> object:
    try:
        loaded = load()
    except Exception as error:
        text = " ".join(str(error).split())
        raise RegistryError(f"cannot load {place}: {type(error).__name__}: {text}") from error
    return getattr(loaded, attribute, None) if attribute else loaded


def _probe_troubles(spec: ProbeSpec) -> Iterator[str]:
    if not spec.name.isidentifier():
        yield f"{spec.name!r} is no name"
    if spec.name in _TAKEN:
        yield "rules know the core's own samples by that name"
    if not spec.samples:
        yield "it declares no sample"
    names = [sample.name for sample in spec.samples]
    for name in names:
        if names.count(name) > 1:
            yield f"it declares the sample {name} twice"
    for sample in spec.samples:
        yield from _sample_troubles(sample)
    if spec.period <= 0 or spec.timeout <= 0:
        yield "period and timeout must be above zero"
    yield from _settings_troubles(spec.settings)


def _sample_troubles(sample: SampleSpec) -> Iterator[str]:
    if not sample.name.isidentifier():
        yield f"{sample.name!r} is no name of a sample"
    if sample.type not in _TYPES:
        yield f"the sample {sample.name} has no type that can be declared"
    if sample.counter and sample.type not in {int, float}:
        yield f"the counter {sample.name} is no number"


def _settings_troubles(settings: object) -> Iterator[str]:
    if not (isinstance(settings, type) and issubclass(settings, msgspec.Struct)):
        yield "its settings are no msgspec.Struct"
        return
    try:
        settings()
    except TypeError as error:
        yield f"its settings have no defaults: {error}"
