"""What vLLM's log says of its start: the spellings of 0.8 to 0.32, and of the years before.

Several workers say the same of themselves: kept is what bounds the engine, the longest time, the
largest weights, the smallest cache. After "Application startup complete" nothing is believed: from
there on requests may be quoted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from watchdog.core.model import Value

_GIB = 1 << 30
_SIZE = r"(-?\d{1,9}(?:\.\d{1,9})?)\s?Gi?B"
_NUMBER = r"(\d[\d,]{0,24})"
_TIME = r"(\d{1,9}(?:\.\d{1,9})?)\s?s"


@dataclass(frozen=True, slots=True)
class _Spelling:
    """``words`` are in every line that ``pattern`` matches; each group is one of ``names``."""

    words: str
    pattern: re.Pattern[str]
    names: tuple[str, ...]


def _spelling(words: str, pattern: str, *names: str) -> _Spelling:
    return _Spelling(words, re.compile(pattern), names)


# "GB" of 0.7 and before is 2**30 too. The name of an attention backend counts in the lines of the
# platform's module alone: there are backends of much else.
_SPELLINGS = (
    _spelling(
        " took ",
        rf"(?:Model loading|Loading model weights) took {_SIZE}(?:(?: memory)? and {_TIME})?",
        "weights_bytes",
        "weights_load_seconds",
    ),
    _spelling("Loading weights took", rf"Loading weights took {_TIME}", "weights_load_seconds"),
    _spelling("KV cache memory", rf"\] Available KV cache memory: {_SIZE}", "kv_cache_bytes"),
    _spelling(
        "reserved for KV Cache", rf"memory reserved for KV Cache is {_SIZE}", "kv_cache_bytes"
    ),
    _spelling(
        "for KV cache on node",
        r"(?:Explicitly|Auto) set \((\d{1,9}(?:\.\d{1,9})?)/[\d.]{1,20}\) GiB for KV cache on node",
        "kv_cache_bytes",
    ),
    _spelling("KV cache size", rf"\b[A-Z]+ KV cache size: {_NUMBER} tokens", "kv_cache_tokens"),
    _spelling(
        "Maximum concurrency",
        rf"Maximum concurrency for {_NUMBER} tokens per request: (\d{{1,12}}(?:\.\d{{1,9}})?)x",
        "max_concurrency_tokens",
        "max_concurrency",
    ),
    _spelling(
        "torch.compile", rf"torch\.compile (?:took|takes) {_TIME} in total", "compile_seconds"
    ),
    _spelling("(compilation: ", rf"init engine .{{1,80}}\(compilation: {_TIME}", "compile_seconds"),
    _spelling(
        "Graph capturing", rf"Graph capturing finished in {_TIME}ecs", "graph_capture_seconds"
    ),
    _spelling(
        "ackend",
        r"(?:cuda|rocm|xpu|cpu|hpu|tpu|selector)\.py:\d{1,6}\] Using (?:AttentionBackendEnum\.)?"
        r"([A-Z]\w{0,40}(?: (?!attention\b)[A-Z]\w{0,20}){0,3})(?: attention)? backend"
        r"(?: on V1 engine| out of potential backends\b.{0,400})?\.?$",
        "attention_backend",
    ),
    _spelling("version ", r"(?:[█▀▄] {1,4}| API server )version (\d[\w.+]{0,60})\s*$", "version"),
    _spelling(
        "LLM engine (v", r"Initializing an? (?:V\d )?LLM engine \(v(\w[\w.+]{0,60})\)", "version"
    ),
)
_READY = "Application startup complete"

_Fold = Callable[[float, float], float]
_FOLDS: dict[str, _Fold] = {
    "weights_bytes": max,
    "weights_load_seconds": max,
    "kv_cache_bytes": min,
    "kv_cache_tokens": min,
    "max_concurrency_tokens": min,
    "max_concurrency": min,
    "compile_seconds": max,
    "graph_capture_seconds": max,
}
_WHOLE = frozenset({"weights_bytes", "kv_cache_bytes", "kv_cache_tokens", "max_concurrency_tokens"})


class Milestones:
    """What one start has said of itself so far."""

    def __init__(self) -> None:
        self.complete = False
        """Whether it has said that it serves."""
        self.values: dict[str, Value] = {}
        """By the names of the samples; what was not said is not there."""

    def take(self, lines: Iterable[str]) -> None:
        """Learn from lines of the log, in their order."""
        for line in lines:
            if self.complete:
                return
            self._take(line)

    def _take(self, line: str) -> None:
        self.complete = _READY in line
        for spelling in _SPELLINGS:
            found = spelling.pattern.search(line) if spelling.words in line else None
            if found is None:
                continue
            for name, text in zip(spelling.names, found.groups(), strict=True):
                if text is not None:
                    self._note(name, text)

    def _note(self, name: str, text: str) -> None:
        fold = _FOLDS.get(name)
        if fold is None:
            self.values.setdefault(name, text)
            return
        value = float(text.replace(",", "")) * (_GIB if name.endswith("_bytes") else 1)
        before = self.values.get(name)
        told = value if before is None or isinstance(before, str) else fold(float(before), value)
        self.values[name] = round(told) if name in _WHOLE else told
