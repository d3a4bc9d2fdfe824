"""The page for Prometheus: every promised family, from the start; nothing stale, nothing twice."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from tests.support.core import Story, http, reading, restarting, serving
from tests.support.windows import snapshot
from watchdog import registry
from watchdog.contracts import ProbeSpec, SampleSpec
from watchdog.core.model import (
    Cause,
    EngineSpawned,
    Mode,
    ProcessState,
    Reading,
    ReadingTaken,
    Sampled,
    Subject,
    SubjectKind,
    Tick,
    Verdict,
)
from watchdog.core.state import State
from watchdog.metrics import Exporter
from watchdog.snapshot import ProbeStats, Snapshot

OPENMETRICS = "application/openmetrics-text; version=1.0.0"

PROMISED = {
    "engine_state": "gauge",
    "engine_verdict": "gauge",
    "engine_starts": "counter",
    "engine_ready_seconds": "gauge",
    "restart_budget_remaining": "gauge",
    "breaker_open": "gauge",
    "canary_latency_seconds": "histogram",
    "detection_seconds": "histogram",
    "recovery_seconds": "histogram",
    "rule_firing": "gauge",
    "decisions": "counter",
    "actions": "counter",
    "incidents": "counter",
    "incidents_open": "gauge",
    "paused": "gauge",
    "mode": "gauge",
    "probe_success": "gauge",
    "probe_duration_seconds": "gauge",
    "probe_last_success_timestamp_seconds": "gauge",
    "probe_abandoned": "counter",
    "config_reload_success": "gauge",
    "config_hash_info": "gauge",
    "build_info": "gauge",
    "log_lines_lost": "counter",
    "recording_events_lost": "counter",
    "loop_latency_seconds": "histogram",
}


def exporter(shown: Snapshot, specs: Mapping[str, ProbeSpec] | None = None) -> Exporter:
    """An exporter of ``shown``, with the probes of this tree unless others are given."""
    return Exporter(registry.probes() if specs is None else specs, lambda: shown)


def families(page: Exporter) -> dict[str, Any]:
    """What Prometheus reads, by family."""
    text = page.render("")[0].decode()
    return {one.name: one for one in text_string_to_metric_families(text)}


def series(page: Exporter, name: str) -> dict[tuple[str, ...], float]:
    """The values of one series name by the values of its labels, in the order of their names."""
    found: dict[tuple[str, ...], float] = {}
    for family in families(page).values():
        for sample in family.samples:
            if sample.name == name:
                key = tuple(value for _, value in sorted(sample.labels.items()))
                assert key not in found, f"twice: {sample}"
                found[key] = sample.value
    return found


def toy(kind: SubjectKind, *samples: SampleSpec) -> dict[str, ProbeSpec]:
    """A probe called ``toy`` that is never built."""
    spec = ProbeSpec("toy", kind, object, samples, lambda *_: None, 1.0, 5.0)  # type: ignore[arg-type]
    return {"toy": spec}


def test_every_promised_family_is_there_before_anything_happened() -> None:
    """With no engine and no reading each family has its HELP and its TYPE."""
    text = exporter(snapshot(State())).render("")[0].decode().splitlines()
    for name, kind in PROMISED.items():
        full = f"vllm_watchdog_{name}" + ("_total" if kind == "counter" else "")
        assert f"# TYPE {full} {kind}" in text, full
        assert any(line.startswith(f"# HELP {full} ") for line in text), full
    for spec in registry.probes().values():
        for sample in spec.samples:
            if sample.type is not str and sample.exported:
                name = sample.metric or f"vllm_watchdog_{spec.name}_{sample.name}"
                assert any(line.startswith(f"# TYPE {name}") for line in text), name


def everything() -> Iterator[Exporter]:
    """Pages of an idle, a serving and a broken watchdog."""
    yield exporter(snapshot(State()))
    for story in (serving(), restarting()):
        page = exporter(snapshot(story.state, at=11.0))
        assert story.last is not None
        page.observe(Tick(11.0), story.last)
        yield page


def test_both_formats_are_well_formed() -> None:
    """Text and OpenMetrics parse, are announced as what they are, and carry the same families."""
    for page in everything():
        text, plain = page.render("text/plain")
        strict, kind = page.render(OPENMETRICS)
        assert plain.startswith("text/plain")
        assert kind.startswith("application/openmetrics-text")
        parsed = openmetrics.text_string_to_metric_families(strict.decode())  # type: ignore[no-untyped-call]
        names = {one.name for one in parsed}
        assert {f"vllm_watchdog_{name.removesuffix('_info')}" for name in PROMISED} <= names
        assert list(text_string_to_metric_families(text.decode()))


def full() -> Exporter:
    """A page on which every declared sample of every probe has a series."""
    readings = {}
    for name, spec in registry.probes().items():
        subject = Subject(spec.subject_kind, "main")
        samples = tuple(
            Sampled(subject, one.name, one.type(1), tuple((label, "x") for label in one.labels))
            for one in spec.samples
        )
        readings[name, subject.name] = Reading(name, 10.0, 0.1, samples, subject=subject)
    return exporter(snapshot(replace(serving().state, readings=readings), at=11.0))


def test_promtool_has_no_complaint() -> None:
    """Prometheus' own linter accepts names, units and help texts, of what is rare too."""
    every = full()
    for spec in registry.probes().values():
        for one in spec.samples:
            if one.type is not str and one.exported:
                name = one.metric or f"vllm_watchdog_{spec.name}_{one.name}"
                end = "_total" if one.counter else ""
                assert series(every, name.removesuffix("_total") + end), one
    for page in (*everything(), every):
        done = subprocess.run(
            ["promtool", "check", "metrics"],
            input=page.render("")[0],
            capture_output=True,
            check=False,
            timeout=30,
        )
        assert (done.returncode, done.stderr) == (0, b"")


def test_statesets_name_every_state_and_hold_exactly_one() -> None:
    """State, verdict and mode have a series for each value: one is 1 and all others are 0."""
    page = exporter(snapshot(serving().state))
    state = series(page, "vllm_watchdog_engine_state")
    assert state == {("main", s.value): float(s is ProcessState.RUNNING) for s in ProcessState}
    verdict = series(page, "vllm_watchdog_engine_verdict")
    assert verdict == {("main", v.value): float(v is Verdict.READY) for v in Verdict}
    assert series(page, "vllm_watchdog_mode") == {("observe",): 0.0, ("act",): 1.0}
    observing = exporter(snapshot(State(mode=Mode.OBSERVE)))
    assert series(observing, "vllm_watchdog_mode") == {("observe",): 1.0, ("act",): 0.0}


def test_what_happened_is_counted_once() -> None:
    """A crash counts one start, decision and incident, however many steps go by afterwards."""
    story = serving()
    page = exporter(snapshot(story.state))
    spawned = EngineSpawned(10.5, "main", "0000000b", 2, Cause.CRASH)
    page.observe(Tick(10.0), story.exited(10.0))
    page.observe(spawned, story.take(spawned))
    page.observe(Tick(11.0), story.tick(11.0))
    assert series(page, "vllm_watchdog_engine_starts_total") == {("crash", "main"): 1.0}
    assert sum(series(page, "vllm_watchdog_incidents_total").values()) == 1.0
    decided = series(page, "vllm_watchdog_decisions_total")
    assert sum(v for key, v in decided.items() if "act" in key) == 1.0
    assert series(page, "vllm_watchdog_detection_seconds_count") == {(): 1.0}
    page.observe(Tick(12.0), story.tick(12.0))
    assert sum(series(page, "vllm_watchdog_incidents_total").values()) == 1.0
    assert series(page, "vllm_watchdog_detection_seconds_count") == {(): 1.0}


def test_an_adoption_is_no_start() -> None:
    """Taking over a living engine counts nowhere as a start."""
    page = exporter(snapshot(State()))
    story = Story()
    event = EngineSpawned(1.0, "main", "0000000a", 1, Cause.UNKNOWN, adopted=True, ready=True)
    page.observe(event, story.take(event))
    assert series(page, "vllm_watchdog_engine_starts_total") == {}


def test_recalled_incidents_are_not_counted_again() -> None:
    """Incidents of an earlier watchdog are no incidents of this one."""
    story = restarting()
    page = exporter(snapshot(story.state))
    page.recall(story.state.incidents)
    assert story.last is not None
    page.observe(Tick(11.0), story.last)
    assert series(page, "vllm_watchdog_incidents_total") == {}


def test_canaries_that_came_back_are_in_the_histogram() -> None:
    """The duration of a canary is observed when there was one, per engine."""
    page = exporter(snapshot(State()))
    story = serving()
    with_canary = reading("engine_http", 5.0, ("canary", "ok"), ("canary_seconds", 0.3))
    for one in (with_canary, http(6.0)):
        page.observe(ReadingTaken(one.at, one), story.take(ReadingTaken(one.at, one)))
    assert series(page, "vllm_watchdog_canary_latency_seconds_count") == {("main",): 1.0}
    assert series(page, "vllm_watchdog_canary_latency_seconds_sum") == {("main",): 0.3}


def shown(reading: Reading, at: float, stats: ProbeStats | None = None) -> Snapshot:
    """A snapshot at ``at`` in which ``toy`` last brought ``reading``."""
    name = "" if reading.subject is None else reading.subject.name
    state = State(readings={("toy", name): reading})
    return replace(snapshot(state, at=at), probes={} if stats is None else {"toy": stats})


def test_samples_become_series_until_they_are_stale() -> None:
    """Bools are 0 and 1, counters end in _total, text is left out.

    After three periods and the timeout, or with an error, the series are gone; the families stay.
    """
    specs = toy(
        SubjectKind.ENGINE,
        SampleSpec("up", bool, "", "Up."),
        SampleSpec("done", float, "", "Done.", counter=True, labels=("rank", "role")),
        SampleSpec("said", str, "", "Said."),
    )
    labels = (("role", "b"), ("rank", "0"))
    good = reading("toy", 10.0, ("up", True), ("done", 3, labels), ("said", "x"), ("odd", 1))
    page = exporter(shown(good, 18.0), specs)
    assert series(page, "vllm_watchdog_toy_up") == {("main",): 1.0}
    assert series(page, "vllm_watchdog_toy_done_total") == {("main", "0", "b"): 3.0}
    assert "vllm_watchdog_toy_said" not in families(page)
    for gone in (
        exporter(shown(good, 18.1), specs),
        exporter(shown(replace(good, error="cannot read it"), 10.0), specs),
    ):
        assert series(gone, "vllm_watchdog_toy_up") == {}
        assert "vllm_watchdog_toy_up" in families(gone)
    slow = ProbeStats(60.0, 10.0, success=True, took=0.1, last_success=1.0, abandoned=0)
    assert series(exporter(shown(good, 190.0, slow), specs), "vllm_watchdog_toy_up")


def test_a_probe_that_says_a_thing_twice_does_not_spoil_the_page() -> None:
    """Two samples with the same labels are one series, the last: two would refuse the scrape."""
    specs = toy(SubjectKind.ENGINE, SampleSpec("x", int, "", "X."))
    twice = reading("toy", 1.0, ("x", 1), ("x", 2))
    assert series(exporter(shown(twice, 1.0), specs), "vllm_watchdog_toy_x") == {("main",): 2.0}


def test_gpu_samples_carry_their_own_names_and_labels() -> None:
    """A GPU sample has its own metric name with gpu and uuid; text samples are one info series."""
    specs = toy(
        SubjectKind.GPU,
        SampleSpec(
            "power", float, "", "P.", labels=("gpu", "uuid"), metric="nvidia_gpu_power_watts"
        ),
        SampleSpec("name", str, "", "N.", labels=("gpu", "uuid"), metric="nvidia_gpu_info"),
        SampleSpec("state", str, "", "S.", labels=("gpu", "uuid")),
        SampleSpec("pid", int, "", "I.", labels=("gpu", "uuid"), exported=False),
    )
    labels = (("gpu", "0"), ("uuid", "GPU-1"))
    card = Subject(SubjectKind.GPU, "GPU-1")
    pairs = (("power", 70.5), ("name", 'H"\\\n'), ("state", "ok"), ("pid", 7))
    samples = tuple(Sampled(card, name, value, labels) for name, value in pairs)
    page = exporter(shown(Reading("toy", 1.0, 0.1, samples), 1.0), specs)
    assert series(page, "nvidia_gpu_power_watts") == {("0", "GPU-1"): 70.5}
    assert series(page, "nvidia_gpu_info") == {("0", 'H"\\\n', "GPU-1"): 1.0}
    assert not series(page, "vllm_watchdog_toy_")


def test_probes_show_how_they_fare() -> None:
    """Success, duration, time of the last success and abandoned reads are told for each probe."""
    stats = ProbeStats(1.0, 5.0, success=False, took=0.25, last_success=1e9, abandoned=2)
    page = exporter(replace(snapshot(State()), probes={"gpu": stats}))
    assert series(page, "vllm_watchdog_probe_success") == {("gpu",): 0.0}
    assert series(page, "vllm_watchdog_probe_duration_seconds") == {("gpu",): 0.25}
    last = series(page, "vllm_watchdog_probe_last_success_timestamp_seconds")
    assert last == {("gpu",): 1e9}
    assert series(page, "vllm_watchdog_probe_abandoned_total") == {("gpu",): 2.0}


def test_two_exporters_do_not_share_anything() -> None:
    """Nothing is registered process-wide: counters of one page do not show on another."""
    one, other = exporter(snapshot(State())), exporter(snapshot(State()))
    story = Story()
    event = EngineSpawned(1.0, "main", "0000000a", 1, Cause.OPERATOR)
    one.observe(event, story.take(event))
    assert series(one, "vllm_watchdog_engine_starts_total")
    assert series(other, "vllm_watchdog_engine_starts_total") == {}
