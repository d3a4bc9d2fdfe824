"""What a command asks of memory: flags of vLLM 0.32 and their defaults. Nothing here raises."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from watchdog.command_line import EngineCommand

BLOCK = 16
"""Tokens of a block of the KV cache without ``--block-size``."""
DEFAULT_SHARE = 0.92
"""``--gpu-memory-utilization`` without a flag since vLLM 0.25; 0.9 up to 0.18."""
_GIB = 1 << 30
_AUTO = frozenset({"auto", "-1"})
_FALSE = frozenset({"false", "no", "off"})
"""How YAML writes it."""
_INTEGER = re.compile(r"([0-9]{1,15})(\.[0-9]{1,6})?([kKmMgGtT]?)")
_JSON_LIMIT = 1 << 16


@dataclass(frozen=True, slots=True)
class Wishes:
    """``length`` counts tokens, None without the flag; ``fitted`` when the engine chooses it.

    ``cache_bytes`` and ``blocks`` replace the share of the card. ``offload`` is in bytes a card.
    ``overrides`` go over the model's configuration. ``unread`` are flags that vLLM will not take,
    one line each; ``notes`` are ones whose effect is not counted.
    """

    length: int | None = None
    fitted: bool = False
    share: float | None = None
    dtype: str = "auto"
    cache_dtype: str = "auto"
    quantization: str = ""
    load_format: str = "auto"
    block: int = BLOCK
    offload: int = 0
    cache_bytes: int | None = None
    blocks: int | None = None
    sequences: int | None = None
    batched: int | None = None
    hybrid: bool = True
    windows: bool = True
    synchronous: bool = False
    drafts: bool = False
    overrides: Mapping[str, Any] = field(default_factory=dict)
    unread: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def wishes_of(said: EngineCommand) -> Wishes:
    """What ``said`` asks for."""
    flags = dict(said.flags)
    read = _Flags(flags)
    length = read.one("max-model-len")
    fitted = length.lower() in _AUTO
    overrides = read.overrides()
    return Wishes(
        length=None if fitted else read.integer("max-model-len"),
        fitted=fitted,
        share=read.share(said.gpu_memory_utilization),
        dtype=read.one("dtype") or "auto",
        cache_dtype=read.one("kv-cache-dtype") or "auto",
        quantization=read.one("quantization"),
        load_format=read.one("load-format") or "auto",
        block=read.integer("block-size") or BLOCK,
        offload=int(read.decimal("cpu-offload-gb") * _GIB),
        cache_bytes=read.integer("kv-cache-memory-bytes") or None,
        blocks=read.integer("num-gpu-blocks-override") or None,
        sequences=read.integer("max-num-seqs") or None,
        batched=read.integer("max-num-batched-tokens") or None,
        hybrid=not read.on("disable-hybrid-kv-cache-manager"),
        windows=not read.on("disable-sliding-window"),
        drafts=any(map(_is_draft, flags)),
        synchronous=read.on("no-async-scheduling") or read.off("async-scheduling"),
        overrides=overrides,
        unread=tuple(read.unread),
        notes=tuple(_notes(flags, read)),
    )


class _Flags:
    def __init__(self, flags: Mapping[str, tuple[str, ...]]) -> None:
        self._flags = flags
        self.unread: list[str] = []

    def one(self, name: str) -> str:
        return (self._flags.get(name) or ("",))[0].strip()

    def on(self, name: str) -> bool:
        """Whether it is given; a ``--config`` file may have it as false."""
        return name in self._flags and not self.off(name)

    def off(self, name: str) -> bool:
        """Whether a ``--config`` file has it as false."""
        return self.one(name).lower() in _FALSE

    def integer(self, name: str) -> int | None:
        """``k`` is 1000 and ``K`` 1024; the latter takes no decimals."""
        text = self.one(name)
        match = _INTEGER.fullmatch(text)
        if match is None or (match[2] and (match[3].isupper() or not match[3])):
            if text:
                self.unread.append(f"vLLM will not take --{name} {_short(text)}")
            return None
        power = " kmgt".index(match[3].lower() or " ")
        if match[3].isupper():
            return int(match[1]) * int(1024**power)
        return int(float(match[1] + (match[2] or "")) * 1000**power)

    def decimal(self, name: str) -> float:
        text = self.one(name)
        if re.fullmatch(r"[0-9]{1,6}(\.[0-9]{0,6})?", text):
            return float(text)
        if text:
            self.unread.append(f"vLLM will not take --{name} {_short(text)}")
        return 0.0

    def share(self, read: float | None) -> float | None:
        text = self.one("gpu-memory-utilization")
        if text and read is None:
            self.unread.append(
                f"vLLM will not take --gpu-memory-utilization {_short(text)}: over 0, at most 1"
            )
        return read

    def overrides(self) -> dict[str, Any]:
        """``--hf-overrides JSON``, ``--hf-overrides.key value``, the older ``--rope-scaling``."""
        found = self._json("hf-overrides")
        for name, values in self._flags.items():
            first, *path = name.split(".")
            if first == "hf-overrides" and path and values:
                _put(found, [part.replace("-", "_") for part in path], _value(values[0]))
        scaling = self._json("rope-scaling")
        return {**found, "rope_scaling": scaling} if scaling else found

    def _json(self, name: str) -> dict[str, Any]:
        text = self.one(name)
        if not text:
            return {}
        found = _value(text) if len(text) <= _JSON_LIMIT else None
        if not isinstance(found, dict):
            self.unread.append(f"vLLM will not take --{name} {_short(text)}: expected JSON")
            return {}
        return found


def _put(into: dict[str, Any], path: list[str], value: object) -> None:
    for part in path[:-1]:
        deeper = into.get(part)
        if not isinstance(deeper, dict):
            deeper = into[part] = {}
        into = deeper
    into[path[-1]] = value


def _value(text: str) -> Any:  # noqa: ANN401 - whatever JSON holds
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:40] + "…")  # noqa: PLR2004


def _is_draft(name: str) -> bool:
    return name.partition(".")[0] == "speculative-config"


def _notes(flags: Mapping[str, object], read: _Flags) -> Iterator[str]:
    if any(map(_is_draft, flags)):
        yield "the draft model of --speculative-config is not counted"
    if read.on("enable-lora"):
        yield "the adapters of --enable-lora are not counted"
    if any(name in flags for name in ("decode-context-parallel-size", "-dcp")):
        yield "--decode-context-parallel-size is not counted: more tokens fit than said here"
    if "rope-scaling" in flags:
        yield "vLLM 0.32 has no --rope-scaling any more: --hf-overrides takes it"
