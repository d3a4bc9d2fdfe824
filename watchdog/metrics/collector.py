"""Turns one published snapshot into metric families. Stale or failed readings have no series."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from watchdog.contracts import ProbeSpec, SampleSpec
from watchdog.core.engine import firing
from watchdog.core.model import (
    Labels,
    Mode,
    ProcessState,
    Reading,
    Sampled,
    SubjectKind,
    Verdict,
)
from watchdog.core.state import EngineState
from watchdog.snapshot import ProbeStats, Snapshot

_P = "vllm_watchdog"


class SnapshotCollector(Collector):
    """``take`` gives the snapshot that one rendering works on."""

    def __init__(self, specs: Mapping[str, ProbeSpec], take: Callable[[], Snapshot]) -> None:
        self._take = take
        self._specs = specs

    def collect(self) -> Iterable[Metric]:
        """Every family that does not need a GPU is there from the start, if only as HELP."""
        snapshot = self._take()
        yield from _engines(snapshot)
        yield from _judgement(snapshot)
        yield from _probes(snapshot.probes)
        yield from _daemon(snapshot)
        for name, spec in self._specs.items():
            yield from _samples(snapshot, name, spec)


def _gauge(name: str, text: str, labels: tuple[str, ...] = ()) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"{_P}_{name}", text, labels=labels)


def _engines(snapshot: Snapshot) -> Iterator[Metric]:
    engines = tuple(snapshot.state.engines.values())
    state = _gauge("engine_state", "Process state.", ("engine", "state"))
    verdict = _gauge("engine_verdict", "Fused health.", ("engine", "verdict"))
    for one in engines:
        for s in ProcessState:
            state.add_metric([one.name, s.value], float(s is one.process))
        for v in Verdict:
            verdict.add_metric([one.name, v.value], float(v is one.verdict))
    yield state
    yield verdict
    yield _ready(engines)
    budget = _gauge("restart_budget_remaining", "Restarts left in the window.", ("engine",))
    breaker = _gauge("breaker_open", "1 when only a person can start it again.", ("engine",))
    for one in engines:
        budget.add_metric([one.name], snapshot.budget.get(one.name, 0))
        breaker.add_metric([one.name], float(one.history.breaker_open))
    yield budget
    yield breaker


def _ready(engines: tuple[EngineState, ...]) -> Metric:
    ready = _gauge("engine_ready_seconds", "Start to first token, last start.", ("engine",))
    for one in engines:
        if one.ready_seconds is not None:
            ready.add_metric([one.name], one.ready_seconds)
    return ready


def _judgement(snapshot: Snapshot) -> Iterator[Metric]:
    fires = _gauge("rule_firing", "1 for every firing finding.", ("rule", "subject"))
    for (rule, subject), _ in firing(snapshot.state):
        fires.add_metric([rule, str(subject)], 1)
    yield fires
    opened = sum(i.resolved_at is None for i in snapshot.state.incidents)
    count = _gauge("incidents_open", "Incidents that are open.")
    count.add_metric([], opened)
    yield count
    paused = _gauge("paused", "1 while nothing is acted upon.")
    paused.add_metric([], float(snapshot.state.pause is not None))
    yield paused
    mode = _gauge("mode", "What the watchdog may do.", ("mode",))
    for one in (Mode.OBSERVE, Mode.ACT):
        mode.add_metric([one.value], float(one is snapshot.state.mode))
    yield mode


def _probes(probes: Mapping[str, ProbeStats]) -> Iterator[Metric]:
    labels = ("probe",)
    success = _gauge("probe_success", "1 when the last read worked.", labels)
    took = _gauge("probe_duration_seconds", "Duration of the last read.", labels)
    last = _gauge("probe_last_success_timestamp_seconds", "When a read last worked.", labels)
    abandoned = CounterMetricFamily(
        f"{_P}_probe_abandoned", "Reads that did not return by their deadline.", labels=labels
    )
    for name, stats in probes.items():
        success.add_metric([name], float(stats.success))
        if stats.took is not None:
            took.add_metric([name], stats.took)
        if stats.last_success is not None:
            last.add_metric([name], stats.last_success)
        abandoned.add_metric([name], stats.abandoned)
    yield from (success, took, last, abandoned)


def _daemon(snapshot: Snapshot) -> Iterator[Metric]:
    yield InfoMetricFamily(
        f"{_P}_config_hash", "The effective configuration.", {"sha256": snapshot.config_hash}
    )
    yield InfoMetricFamily(f"{_P}_build", "This program.", {"version": snapshot.version})
    for name, words, count in (
        ("log_lines_lost", "Log lines that could not be written.", snapshot.lines_lost),
        ("recording_events_lost", "Events that could not be recorded.", snapshot.events_lost),
    ):
        lost = CounterMetricFamily(f"{_P}_{name}", words)
        if count is not None:
            lost.add_metric((), count)
        yield lost
    depth = _gauge("inbox_depth", "Events that wait for the main loop.")
    if snapshot.inbox_depth is not None:
        depth.add_metric((), snapshot.inbox_depth)
    yield depth


def _samples(snapshot: Snapshot, name: str, spec: ProbeSpec) -> Iterator[Metric]:
    readings = [r for (probe, _), r in snapshot.state.readings.items() if probe == name]
    fresh = [r for r in readings if _fresh(r, snapshot, spec)]
    for declared in spec.samples:
        if declared.type is not str and declared.exported:
            yield _family(spec, declared, fresh)
    words = tuple(s for s in spec.samples if s.type is str and s.metric)
    for metric in {declared.metric: None for declared in words}:
        yield _info(metric, {s.name: s.help for s in words if s.metric == metric}, fresh)


def _fresh(reading: Reading, snapshot: Snapshot, spec: ProbeSpec) -> bool:
    stats = snapshot.probes.get(spec.name)
    period, timeout = (
        (spec.period, spec.timeout) if stats is None else (stats.period, stats.timeout)
    )
    return reading.error is None and snapshot.at - reading.at <= 3 * period + timeout


def _family(spec: ProbeSpec, declared: SampleSpec, fresh: list[Reading]) -> Metric:
    metric = declared.metric or f"{_P}_{spec.name}_{declared.name}"
    engine = spec.subject_kind is SubjectKind.ENGINE
    labels = ("engine", *declared.labels) if engine else declared.labels
    kind = CounterMetricFamily if declared.counter else GaugeMetricFamily
    metric = metric.removesuffix("_total") if declared.counter else metric
    family = kind(metric, declared.help, labels=labels)
    # One series a set of labels: a page with two of the same is refused as a whole.
    values = {
        _values(sample, declared, engine=engine): float(sample.value)
        for reading in fresh
        for sample in reading.samples
        if sample.sample == declared.name and not isinstance(sample.value, str)
    }
    for key, value in values.items():
        family.add_metric(key, value)
    return family


def _values(sample: Sampled, declared: SampleSpec, *, engine: bool) -> tuple[str, ...]:
    labels = dict(sample.labels)
    values = tuple(labels.get(name, "") for name in declared.labels)
    return (sample.subject.name, *values) if engine else values


def _info(metric: str, words: Mapping[str, str], fresh: list[Reading]) -> Metric:
    """What is text about a GPU or an engine, as labels of one info series each.

    ``words`` are the samples with what they are.
    """
    found: dict[Labels, dict[str, str]] = {}
    for reading in fresh:
        for sample in reading.samples:
            if sample.sample in words:
                subject = sample.subject
                named = (("engine", subject.name),) if subject.kind is SubjectKind.ENGINE else ()
                key = (*named, *sample.labels)
                found.setdefault(key, dict(key))[sample.sample] = str(sample.value)
    texts = " ".join(dict.fromkeys(words.values()))
    info = InfoMetricFamily(metric.removesuffix("_info"), texts, labels=())
    for labels in found.values():
        info.add_metric((), labels)
    return info
