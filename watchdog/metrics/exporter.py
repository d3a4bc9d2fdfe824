"""Keeps what must be counted when it happens, and renders the page."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import choose_encoder

from watchdog.contracts import ProbeSpec
from watchdog.core.model import (
    ActionFinished,
    EngineSpawned,
    Event,
    Incident,
    Reading,
    ReadingTaken,
)
from watchdog.core.state import Step
from watchdog.metrics.collector import SnapshotCollector
from watchdog.snapshot import Snapshot

_PREFIX = "vllm_watchdog"
_LOOP_BUCKETS = (0.001, 0.005, 0.025, 0.1, 0.5, 2.0, 10.0)
_CANARY_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0)
_OUTAGE_BUCKETS = (0.01, 0.1, 1.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0, 1800.0, 3600.0)


class Exporter:
    """``observe`` is called by the loop after each step, ``render`` by the web threads."""

    def __init__(self, specs: Mapping[str, ProbeSpec], take: Callable[[], Snapshot]) -> None:
        self._registry = registry = CollectorRegistry(auto_describe=False)
        registry.register(SnapshotCollector(specs, take))
        ProcessCollector(registry=registry)
        self._starts = self._counter(
            "engine_starts", "Spawns of the engine since this watchdog began.", "engine", "cause"
        )
        self._decisions = self._counter(
            "decisions",
            "Decisions; holds are counted when their reason changes.",
            *("rule", "verdict", "reason"),
        )
        self._actions = self._counter("actions", "Actions that ended.", "action", "result")
        self._incidents = self._counter("incidents", "Incidents opened.", "rule", "severity")
        self._notified = self._counter(
            "notifications", "Requests to receivers of notices.", "receiver", "result"
        )
        self._notices_dropped = self._counter(
            "notifications_dropped", "Notices that will never be delivered.", "receiver"
        )
        self._canary = self._histogram(
            "canary_latency_seconds",
            "Duration of one-token completions that came back.",
            _CANARY_BUCKETS,
            "engine",
        )
        self._detection = self._histogram(
            "detection_seconds", "From the fault to the decision.", _OUTAGE_BUCKETS
        )
        self._recovery = self._histogram(
            "recovery_seconds", "From the decision to serving.", _OUTAGE_BUCKETS
        )
        self._latency = self._histogram(
            "loop_latency_seconds", "From an event to the end of its step.", _LOOP_BUCKETS
        )
        self._reload = self._gauge(
            "config_reload_success", "1 when the last configuration was accepted."
        )
        self._reloaded_at = self._gauge(
            "config_last_reload_success_timestamp_seconds",
            "When a configuration was last put in force.",
        )
        self.reloaded(ok=True)
        self._known: dict[str, Incident] = {}
        self._seen: tuple[Incident, ...] = ()

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"{_PREFIX}_{name}", text, labels, registry=self._registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"{_PREFIX}_{name}", text, registry=self._registry)

    def _histogram(
        self, name: str, text: str, buckets: tuple[float, ...], *labels: str
    ) -> Histogram:
        return Histogram(
            f"{_PREFIX}_{name}", text, labels, buckets=buckets, registry=self._registry
        )

    def observe(self, event: Event, step: Step) -> None:
        """Count what ``event`` and the step it led to brought."""
        match event:
            case EngineSpawned(adopted=False):
                self._starts.labels(event.engine, event.cause.value).inc()
            case ActionFinished():
                result = "ok" if event.outcome.ok else "failed"
                self._actions.labels(event.outcome.action, result).inc()
            case ReadingTaken(reading=Reading(probe="engine_http", error=None)):
                self._canaries(event.reading)
            case _:
                pass
        for decision in step.decisions:
            held = decision.hold
            verdict, reason = ("act", "") if held is None else ("hold", held.value)
            self._decisions.labels(decision.rule, verdict, reason).inc()
        if step.state.incidents is not self._seen:
            self._look_at(step.state.incidents)
        self._latency.observe(max(time.monotonic() - event.at, 0.0))

    def reloaded(self, *, ok: bool) -> None:
        """A configuration was put in force just now, or refused."""
        self._reload.set(float(ok))
        if ok:
            self._reloaded_at.set(time.time())

    def recall(self, incidents: tuple[Incident, ...]) -> None:
        """Incidents of an earlier watchdog: known, and not counted again."""
        self._known = {incident.id: incident for incident in incidents}

    def notified(self, receiver: str, result: str) -> None:
        """A receiver of notices was asked, from any thread: ``ok`` or ``failed``."""
        self._notified.labels(receiver, result).inc()

    def notices_dropped(self, receiver: str, count: int) -> None:
        """So many notices will never reach it; 0 makes the series known."""
        self._notices_dropped.labels(receiver).inc(count)

    def render(self, accept: str) -> tuple[bytes, str]:
        """The page in the format that ``accept`` prefers, and its content type."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type

    def _canaries(self, reading: Reading) -> None:
        for sample in reading.samples:
            if sample.sample == "canary_seconds" and not isinstance(sample.value, str):
                self._canary.labels(sample.subject.name).observe(sample.value)

    def _look_at(self, incidents: tuple[Incident, ...]) -> None:
        for incident in incidents:
            self._incident(incident)
        self._known = {incident.id: incident for incident in incidents}
        self._seen = incidents

    def _incident(self, incident: Incident) -> None:
        before = self._known.get(incident.id)
        if before is incident:
            return
        if before is None:
            self._incidents.labels(incident.rule, incident.severity.value).inc()
        decided = incident.decided_at
        if decided is not None and (before is None or before.decided_at is None):
            self._detection.observe(max(decided - incident.began_at, 0.0))
        resolved = incident.resolved_at
        fresh = before is None or before.resolved_at is None
        if resolved is not None and decided is not None and fresh:
            self._recovery.observe(max(resolved - decided, 0.0))
