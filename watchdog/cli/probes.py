"""``probes``: what is looked at, how often, and the names that rules may use."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import msgspec

from watchdog import registry
from watchdog.cli.check import load, refusing, unknown
from watchdog.cli.root import common, examples
from watchdog.cli.tables import columns, fields, paragraph
from watchdog.config import Config, ProbeConfig
from watchdog.config.durations import duration_text
from watchdog.contracts import ProbeSpec
from watchdog.core.model import SubjectKind
from watchdog.names import without_secrets
from watchdog.rules.own import OWN
from watchdog.rules.vocabulary import Declared, Vocabulary

_HEAD = ("NAME", "SUBJECT", "ENABLED", "PERIOD", "TIMEOUT", "SAMPLES")
_OWN_HEAD = ("KNOWN WITHOUT A PROBE", "SUBJECT", "SAMPLES")
_TYPES = {bool: "bool", int: "int", float: "float", str: "text"}
_UNSET = ProbeConfig()


@dataclass(frozen=True, slots=True)
class Source:
    """Where samples come from: a probe with its configuration, or the watchdog itself."""

    name: str
    subject: SubjectKind
    samples: tuple[Declared, ...]
    spec: ProbeSpec | None = None
    config: ProbeConfig = _UNSET

    @property
    def period(self) -> float:
        """Seconds between two looks."""
        return self.config.period or (self.spec.period if self.spec else 0.0)

    @property
    def timeout(self) -> float:
        """Seconds for a look."""
        return self.config.timeout or (self.spec.timeout if self.spec else 0.0)


@click.command(
    short_help="The effective probes and their samples.",
    epilog=examples("probes", "probes gpu", "probes --json | jq '.[].samples[].name'"),
)
@click.argument("name", required=False)
@common
def probes(
    name: str | None,
    config: Path | None,
    state_dir: Path | None,  # noqa: ARG001 - every command takes it
    as_json: bool,  # noqa: FBT001 - click calls by name
) -> None:
    """Show the probes in effect, and what the watchdog itself knows.

    With NAME its settings and its samples, by the names that rules use. Needs no daemon.
    """
    with refusing():
        found = sources(load(config, ()), registry.probes())
    if name is None:
        shown = json.dumps([body(one) for one in found.values()]) if as_json else listed(found)
    elif name not in found:
        unknown("probe", name, found)
    else:
        shown = json.dumps(body(found[name])) if as_json else told(found[name])
    click.echo(shown)


def sources(config: Config, specs: Mapping[str, ProbeSpec]) -> dict[str, Source]:
    """Every source by the first part of its samples' names."""
    known = Vocabulary(specs)
    found = {}
    for name, spec in sorted(specs.items()):
        samples = [
            known.find(f"{name}.{s.name}", s.subject or spec.subject_kind) for s in spec.samples
        ]
        found[name] = Source(name, spec.subject_kind, tuple(samples), spec, config.probes[name])
    for subject, parts in OWN.items():
        for root, own in parts.items():
            samples = [known.find(f"{root}.{sample.name}", subject) for sample in own]
            found[root] = Source(root, subject, tuple(samples))
    return found


def listed(found: Mapping[str, Source]) -> str:
    """One line a source."""
    looking = [
        (
            one.name,
            one.subject.value,
            "yes" if one.config.enabled else "no",
            duration_text(one.period),
            duration_text(one.timeout),
            str(len(one.samples)),
        )
        for one in found.values()
        if one.spec
    ]
    own = [(s.name, s.subject.value, str(len(s.samples))) for s in found.values() if not s.spec]
    return "\n".join((*columns(_HEAD, looking), "", *columns(_OWN_HEAD, own)))


def told(one: Source) -> str:
    """Settings and samples of one source."""
    lines = [f"{one.name} ({'probe' if one.spec else 'known without a probe'})"]
    lines += fields([("subject", one.subject.value), *_settings(one)])
    for sample in one.samples:
        lines += ["", _heading(one, sample), paragraph(sample.spec.help, 4), *_details(one, sample)]
    return "\n".join(lines)


def _settings(one: Source) -> Iterator[tuple[str, str]]:
    if one.spec is None:
        return
    yield "enabled", _against(one.config.enabled, _UNSET.enabled)
    yield "period", _against(one.period, one.spec.period, duration=True)
    yield "timeout", _against(one.timeout, one.spec.timeout, duration=True)
    defaults = one.spec.settings()
    for field in msgspec.structs.fields(one.spec.settings):
        name = field.encode_name
        value, default = (
            msgspec.to_builtins(getattr(each, field.name))
            for each in (one.config.settings, defaults)
        )
        yield name, _against(without_secrets(value, name), without_secrets(default, name))


def _against(value: object, default: object, *, duration: bool = False) -> str:
    texts = [_written(each, duration=duration) for each in (value, default)]
    return texts[0] if value == default else f"{texts[0]} (default: {texts[1]})"


def _written(value: object, *, duration: bool) -> str:
    if duration and isinstance(value, float | int):
        return duration_text(value)
    return json.dumps(msgspec.to_builtins(value), ensure_ascii=False)


def _heading(one: Source, sample: Declared) -> str:
    spec = sample.spec
    words = [f"  {sample.name}", _TYPES[spec.type], spec.unit, "counter" if spec.counter else ""]
    about = "" if sample.subject is one.subject else f"of {sample.subject.value}"
    return "  ".join(word for word in (*words, about) if word)


def _details(one: Source, sample: Declared) -> Iterator[str]:
    for label in sample.labels:
        values = ", ".join(sample.spec.label_values) or "any value"
        yield paragraph(f"by {label}: {values}", 4)
    if metric := _metric(one, sample):
        yield f"    metric {metric}"


def _metric(one: Source, sample: Declared) -> str:
    """The name of its metric, as it is exported; "" when it has none."""
    spec = sample.spec
    if one.spec is None or not spec.exported or (spec.type is str and not spec.metric):
        return ""
    metric = spec.metric or f"vllm_watchdog_{one.name}_{spec.name}"
    return f"{metric.removesuffix('_total')}_total" if spec.counter else metric


def body(one: Source) -> dict[str, Any]:
    """The source for scripts; durations are seconds."""
    found: dict[str, Any] = {"name": one.name, "subject": one.subject, "probe": bool(one.spec)}
    if one.spec:
        found |= {
            "enabled": one.config.enabled,
            "period_s": one.period,
            "timeout_s": one.timeout,
            "settings": without_secrets(msgspec.to_builtins(one.config.settings)),
        }
    return {**found, "samples": [_sample(one, sample) for sample in one.samples]}


def _sample(one: Source, sample: Declared) -> dict[str, Any]:
    spec = sample.spec
    return {
        "name": sample.name,
        "subject": sample.subject,
        "type": _TYPES[spec.type],
        "unit": spec.unit,
        "counter": spec.counter,
        "labels": sample.labels,
        "label_values": spec.label_values,
        "help": spec.help,
        "metric": _metric(one, sample) or None,
    }
