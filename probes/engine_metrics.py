"""Reads the engine's own ``/metrics``: whether tokens move, what waits, whether it sleeps.

Names as vLLM 0.8 to 0.33 spell them. Only some ten series of a page of hundreds are looked at.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import msgspec

from probes._http.answers import Trouble
from watchdog.contracts import EngineTarget, ProbeSpec, SampleSpec
from watchdog.core.model import Sampled, Seconds, SubjectKind, Unread, engine_subject

if TYPE_CHECKING:
    from probes._http.client import EngineHttp

_CAP = 16 << 20
_MARGIN = 0.2
"""Seconds by which a wait ends before the deadline, so that its outcome is still told."""
_OK = 200
_MOST_RANKS = 1024

_SAMPLES = {
    b"vllm:generation_tokens_total": "progress",
    b"vllm:prompt_tokens_total": "progress",
    b"vllm:iteration_tokens_total_count": "progress",
    b"vllm:num_requests_running": "running",
    b"vllm:num_requests_waiting": "waiting",
    b"vllm:kv_cache_usage_perc": "kv_usage",
    b"vllm:gpu_cache_usage_perc": "old_kv_usage",
    b"vllm:request_success_total": "requests_success",
    b"vllm:engine_sleep_state": "sleep_state",
}
_UNFINISHED = frozenset({b"abort", b"error"})
_PREFIXES = tuple(_SAMPLES)
_SERIES = re.compile(rb"(vllm:\w+)(?:\{(.*)\})?[ \t]+([^\s]+)(?:[ \t]+-?\d+)?[ \t\r]*")
_LABEL = re.compile(rb'\s*([A-Za-z_]\w*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(?:,|$)')

Sums = dict[str, dict[str, float]]
"""Sample name, then rank, then the sum of its series."""


class PageError(ValueError):
    """The page is no page of metrics. The message is one line and starts "cannot parse"."""


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No settings: where the page is follows from the engine's own command."""


class EngineMetrics:
    """One GET of ``/metrics`` each time, over a connection that is kept."""

    def __init__(self, target: EngineTarget, http: EngineHttp) -> None:
        self._http = http
        self._subject = engine_subject(target.name)

    def read(self, deadline: Seconds) -> Iterable[Sampled | Unread]:
        """Samples of the series that the engine has; one ``Unread`` when there is no page."""
        answer = self._http.get("/metrics", deadline - _MARGIN, _CAP)
        if isinstance(answer, Trouble):
            return [Unread(self._subject, f"cannot read /metrics: {_WORDS[answer]}")]
        if answer.status != _OK:
            return [Unread(self._subject, f"cannot read /metrics: status {answer.status}")]
        try:
            sums, sleeping = parse(answer.body)
        except PageError as error:
            return [Unread(self._subject, str(error))]
        return list(self._samples(sums, sleeping))

    def close(self) -> None:
        """Break what is under way."""
        self._http.close()

    def _samples(self, sums: Sums, sleeping: bool | None) -> Iterator[Sampled]:  # noqa: FBT001 - a value
        for name, ranks in sums.items():
            for rank, value in ranks.items():
                yield Sampled(self._subject, name, value, (("rank", rank),))
        if sleeping is not None:
            yield Sampled(self._subject, "sleeping", sleeping)


_WORDS: Mapping[Trouble, str] = {
    Trouble.TIMEOUT: "no whole answer in time",
    Trouble.REFUSED: "connection refused",
    Trouble.ERROR: "the connection broke",
    Trouble.TOO_LARGE: f"more than {_CAP >> 20} MiB",
}


def parse(page: bytes) -> tuple[Sums, bool | None]:
    """Sums per sample and rank, and whether the engine sleeps (None when it does not say).

    Raises ``PageError`` when one of our series is broken, or when there is no metric at all.
    """
    sums: Sums = defaultdict(lambda: defaultdict(float))
    sleeping: bool | None = None
    for line in _our_lines(page):
        name, labels, value = _series(line)
        sample = _SAMPLES.get(name)
        if sample is None or not math.isfinite(value):
            continue
        if sample == "sleep_state":
            sleeping = bool(sleeping) or _sleeps(labels, value)
        elif labels.get(b"finished_reason") not in _UNFINISHED:
            rank = labels.get(b"engine", b"0").decode(errors="replace")
            sums[sample][rank] += value
    if any(len(ranks) > _MOST_RANKS for ranks in sums.values()):
        raise PageError("cannot parse /metrics: too many engines")
    for sample, ranks in sums.items():  # a sum of finite values may be infinite
        sums[sample] = {rank: one for rank, one in ranks.items() if math.isfinite(one)}
    old = sums.pop("old_kv_usage", None)
    if old is not None:
        sums.setdefault("kv_usage", old)
    return sums, sleeping


def _our_lines(page: bytes) -> Iterator[bytes]:
    """The few lines of interest, found without looking at the others one by one in Python."""
    if page.strip() and b"# TYPE " not in page:
        raise PageError("cannot parse /metrics: it holds no metrics")
    for prefix in _PREFIXES:
        at = 0 if page.startswith(prefix) else page.find(b"\n" + prefix)
        while at >= 0:
            end = page.find(b"\n", at + 1)
            yield page[at : end if end >= 0 else None].removeprefix(b"\n")
            at = page.find(b"\n" + prefix, at + 1)


def _series(line: bytes) -> tuple[bytes, Mapping[bytes, bytes], float]:
    found = _SERIES.fullmatch(line)
    if found is None:
        raise _broken(line)
    name, inside, number = found.groups()
    try:
        return name, _labels(inside or b"", line), float(number)
    except ValueError:
        raise _broken(line) from None


def _labels(inside: bytes, line: bytes) -> Mapping[bytes, bytes]:
    labels: dict[bytes, bytes] = {}
    at = 0
    while at < len(inside):
        label = _LABEL.match(inside, at)
        if label is None:
            raise _broken(line)
        labels[label[1]] = label[2]
        at = label.end()
    return labels


def _broken(line: bytes) -> PageError:
    shown = line[:60].decode("ascii", errors="backslashreplace")
    return PageError(f"cannot parse /metrics: broken line {shown!r}")


def _sleeps(labels: Mapping[bytes, bytes], value: float) -> bool:
    return (value == 0) == (labels.get(b"sleep_state") == b"awake")


def _build(_: Settings, target: EngineTarget) -> EngineMetrics:
    from probes._http.client import EngineHttp

    return EngineMetrics(target, EngineHttp(target.endpoint))


_RANK = ("rank",)

PROBE = ProbeSpec(
    name="engine_metrics",
    subject_kind=SubjectKind.ENGINE,
    settings=Settings,
    samples=(
        SampleSpec(
            "progress",
            float,
            "",
            "Tokens and steps so far, of a data-parallel rank: moves when the engine works.",
            counter=True,
            labels=_RANK,
        ),
        SampleSpec("running", float, "", "Requests that are computed, as told.", labels=_RANK),
        SampleSpec("waiting", float, "", "Requests that wait, as told.", labels=_RANK),
        SampleSpec("kv_usage", float, "ratio", "KV cache in use, 0 to 1.", labels=_RANK),
        SampleSpec("sleeping", bool, "", "Whether the engine was put to sleep."),
        SampleSpec(
            "requests_success",
            float,
            "",
            "Requests that ended well, neither aborted nor failed.",
            counter=True,
            labels=_RANK,
        ),
    ),
    build=_build,
    period=2.0,
    timeout=5.0,
)
