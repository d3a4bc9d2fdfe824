"""``/metrics`` as vLLM writes it, in three generations of names, and as noise."""

import os
import resource
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from watchdog.simulator.counters import Counters, Histogram
from watchdog.simulator.options import Generation, Options

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Sample = tuple[str, float]
"""Further labels (with a leading comma, or empty) and the value."""

_TICKS = os.sysconf("SC_CLK_TCK")
_SLEEP_STATES = ("awake", "weights_offloaded", "discard_all")
_NOISE_LINES = 400


@dataclass(frozen=True, slots=True)
class _Family:
    kind: str
    name: str
    read: Callable[[Counters], list[Sample] | Histogram]


def page(options: Options, engines: Sequence[Counters], *, sleeping: bool) -> str:
    """The whole page: every family once, with a series for each engine."""
    lines: list[str] = []
    name = _escaped(options.served_names[0])
    for family in _families(options.generation, sleeping=sleeping):
        lines += (
            f"# HELP vllm:{family.name} Simulated.",
            f"# TYPE vllm:{family.name} {family.kind}",
        )
        for rank, counters in enumerate(engines):
            labels = f'engine="{rank}",model_name="{name}"'
            with counters.lock:
                lines += _series(family, labels, counters)
        if family.kind != "gauge":
            lines += _created(family, name, engines)
    own = _process() if options.api_servers == 1 else []  # absent with several
    return "\n".join([*lines, *own]) + "\n"


def _escaped(value: str) -> str:
    """A label's value as prometheus_client writes it."""
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _families(generation: Generation, *, sleeping: bool) -> Iterator[_Family]:
    yield from _gauges(generation, sleeping=sleeping)
    yield _Family("counter", "prompt_tokens_total", lambda c: [("", c.prompt_tokens)])
    yield _Family("counter", "generation_tokens_total", lambda c: [("", c.generation_tokens)])
    yield _Family("counter", "num_preemptions_total", lambda _: [("", 0)])
    yield _Family(
        "counter",
        "request_success_total",
        lambda c: [(f',finished_reason="{reason}"', n) for reason, n in c.finished.items()],
    )
    yield _Family("histogram", "iteration_tokens_total", lambda c: c.iteration_tokens)
    yield _Family("histogram", "time_to_first_token_seconds", lambda c: c.first_token)
    yield _Family("histogram", "e2e_request_latency_seconds", lambda c: c.latency)
    if generation is not Generation.V0_32:
        yield _Family("histogram", "time_per_output_token_seconds", lambda c: c.between_tokens)
    if generation is not Generation.V0_8:
        yield _Family("histogram", "inter_token_latency_seconds", lambda c: c.between_tokens)


def _gauges(generation: Generation, *, sleeping: bool) -> Iterator[_Family]:
    yield _Family("gauge", "num_requests_running", lambda c: [("", c.running)])
    yield _Family("gauge", "num_requests_waiting", lambda c: [("", c.waiting)])
    if generation is not Generation.V0_32:
        yield _Family("gauge", "gpu_cache_usage_perc", lambda c: [("", c.usage)])
    if generation is not Generation.V0_8:
        yield _Family("gauge", "kv_cache_usage_perc", lambda c: [("", c.usage)])
    if generation is Generation.V0_32:
        yield _Family("gauge", "engine_sleep_state", lambda _: _sleep_states(sleeping=sleeping))
        yield _Family("gauge", "num_requests_waiting_by_reason", _waiting_by_reason)
    text = ',block_size="16",gpu_memory_utilization="0.92",num_gpu_blocks="4096"'
    yield _Family("gauge", "cache_config_info", lambda _: [(text, 1)])


def _sleep_states(*, sleeping: bool) -> list[Sample]:
    state = "weights_offloaded" if sleeping else "awake"
    return [(f',sleep_state="{name}"', float(name == state)) for name in _SLEEP_STATES]


def _waiting_by_reason(counters: Counters) -> list[Sample]:
    return [(',reason="capacity"', counters.waiting), (',reason="deferred"', 0)]


def _series(family: _Family, labels: str, counters: Counters) -> list[str]:
    value = family.read(counters)
    if isinstance(value, Histogram):
        return _histogram(f"vllm:{family.name}", labels, value)
    return [f"vllm:{family.name}{{{labels}{more}}} {float(number)}" for more, number in value]


def _histogram(name: str, labels: str, histogram: Histogram) -> list[str]:
    lines, total = [], 0
    bounds = [str(float(bound)) for bound in histogram.bounds]
    for bound, count in zip([*bounds, "+Inf"], histogram.counts, strict=True):
        total += count
        lines.append(f'{name}_bucket{{{labels},le="{bound}"}} {float(total)}')
    return [
        *lines,
        f"{name}_count{{{labels}}} {float(total)}",
        f"{name}_sum{{{labels}}} {histogram.sum}",
    ]


def _created(family: _Family, model: str, engines: Sequence[Counters]) -> list[str]:
    name = f"vllm:{family.name}"
    if family.kind == "counter":
        name = name.removesuffix("_total")
    lines = [f"# HELP {name}_created Simulated.", f"# TYPE {name}_created gauge"]
    for rank, counters in enumerate(engines):
        values = family.read(counters)
        more = [""] if isinstance(values, Histogram) else [labels for labels, _ in values]
        lines += [
            f'{name}_created{{engine="{rank}",model_name="{model}"{extra}}} {counters.created}'
            for extra in more
        ]
    return lines


def _process() -> list[str]:
    """The leader's own process_* series; vLLM has none for the engine."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    boot = next(
        int(line.split()[1])
        for line in Path("/proc/stat").read_text().splitlines()
        if line.startswith("btime")
    )
    page_size = resource.getpagesize()
    values = {
        "process_virtual_memory_bytes": float(fields[20]),
        "process_resident_memory_bytes": float(int(fields[21]) * page_size),
        "process_start_time_seconds": boot + int(fields[19]) / _TICKS,
        "process_open_fds": float(sum(1 for _ in Path("/proc/self/fd").iterdir())),
        "process_max_fds": float(resource.getrlimit(resource.RLIMIT_NOFILE)[0]),
        "process_cpu_seconds_total": (int(fields[11]) + int(fields[12])) / _TICKS,
    }
    lines = []
    for name, value in values.items():
        kind = "counter" if name.endswith("_total") else "gauge"
        lines += [f"# HELP {name} Simulated.", f"# TYPE {name} {kind}", f"{name} {value}"]
    return lines


def noise() -> bytes:
    """A page that is no page: broken lines, huge numbers, bytes that are not text."""
    lines = [
        b"vllm:num_requests_running{engine=",
        b'vllm:generation_tokens_total{engine="0" 1e999999',
        b"vllm:prompt_tokens_total{} NaN NaN NaN",
        b"# TYPE vllm:iteration_tokens_total \xff\xfe\x00",
        *(os.urandom(60).replace(b"\n", b"") for _ in range(_NOISE_LINES)),
    ]
    return b"\n".join(lines)


def padding(size: int) -> Iterator[bytes]:
    """So many bytes of well-formed but useless series, in pieces."""
    line = b'vllm:padding_total{engine="0",filler="' + b"x" * 200 + b'"} 1.0\n'
    piece = line * 256
    while size > 0:
        yield piece[:size]
        size -= len(piece)
