"""The KV cache as vLLM 0.32 lays it out: bytes a token, blocks, and how many requests fit at once.

Layers of one kind share a table of blocks. Where some look through a window, the layers are dealt
into groups of equal size, and every group takes blocks of its own from one pool.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from watchdog.preflight.shape import Layers, Shape, ShapeError
from watchdog.preflight.wishes import Wishes
from watchdog.preflight.words import number, plural, size

_TYPES = {
    **dict.fromkeys(("float16", "bfloat16"), 2),
    **dict.fromkeys(("fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc"), 1),
}
_WIDE = frozenset(("float", "float32"))
_PAD = 1.5
"""From this ratio on the smaller kind of layers gives the size of a group, below it the larger."""


@dataclass(frozen=True, slots=True)
class Defaults:
    """What vLLM takes without ``--max-num-batched-tokens`` and ``--max-num-seqs``.

    ``words`` say of what else it depends, behind a semicolon.
    """

    batched: int
    sequences: int
    words: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """Of one card: ``cell`` bytes of one token in one layer, and in words how it came about.

    ``layers`` are those of one card. ``block`` and ``in_flight`` count tokens: a window keeps what
    is in flight besides.
    """

    cell: int
    cell_words: str
    layers: tuple[Layers, ...]
    layer_words: str
    block: int
    in_flight: int
    in_flight_words: str

    @property
    def per_token(self) -> int:
        """Bytes of one token in all layers of a card, as long as no window has passed it."""
        return self.cell * sum(one.count for one in self.layers)

    @property
    def group(self) -> int:
        """Layers of one group."""
        counts = [one.count for one in self.layers]
        return max(counts) if max(counts) < min(counts) * _PAD else min(counts)

    @property
    def block_bytes(self) -> int:
        """One block of one group."""
        return self.cell * self.block * self.group

    def blocks(self, length: int) -> int:
        """What a request of ``length`` tokens takes."""
        return sum(-(-one.count // self.group) * self._blocks(one, length) for one in self.layers)

    def words(self, length: int) -> str:
        """The same as arithmetic."""
        parts = []
        for one in self.layers:
            groups = -(-one.count // self.group)
            told = f"ceil({number(self._kept(one, length))} / {self.block})"
            told = f"({told} + 1)" if _slides(one) else told
            parts.append(f"{groups} x {told}" if groups > 1 else told)
        return " + ".join(parts)

    def longest(self, pool: int) -> int:
        """The longest request that ``pool`` bytes serve, in tokens; 0 for none."""
        low, high = 0, max(1, pool)
        while low < high:
            middle = (low + high + 1) // 2
            if (self.blocks(middle) + 1) * self.block_bytes <= pool:
                low = middle
            else:
                high = middle - 1
        return low

    def _blocks(self, one: Layers, length: int) -> int:
        return -(-self._kept(one, length) // self.block) + _slides(one)

    def _kept(self, one: Layers, length: int) -> int:
        if one.window is None:
            return length
        return min(one.window - _slides(one) + self.in_flight, length)


def _slides(one: Layers) -> bool:
    """A window that slides begins anywhere in a block, and does not count the newest token."""
    return one.window is not None and not one.chunked


def plan_of(
    shape: Shape,
    config: Mapping[str, Any],
    wishes: Wishes,
    ranks: tuple[int, int],
    defaults: Defaults,
) -> Plan:
    """For ``ranks`` of tensor and pipeline parallelism on such cards. Raises ShapeError."""
    tensor, stages = ranks
    wide, wide_words = _number_bytes(config, wishes)
    if shape.latent:
        cell = shape.key_size * wide
        words = f"{shape.key_size} x {wide_words}, the same on every card"
    else:
        heads = max(1, shape.kv_heads // tensor)
        cell = heads * (shape.key_size + shape.value_size) * wide
        told = plural(heads, "KV head")
        told += f" (of {shape.kv_heads}, {tensor} cards)" if tensor > 1 else ""
        words = f"{told} x ({shape.key_size} + {shape.value_size}) x {wide_words}"
    layers = shape.layers
    if not wishes.hybrid and len(layers) > 1:
        layers = shape.whole
    if stages > 1:
        layers = tuple(Layers(-(-one.count // stages), one.window) for one in layers)
    in_flight, in_flight_words = _in_flight(wishes, stages, defaults)
    return Plan(
        cell=cell,
        cell_words=words,
        layers=layers,
        layer_words=" + ".join(_layer_words(layers, stages)),
        block=wishes.block,
        in_flight=in_flight,
        in_flight_words=in_flight_words,
    )


def _layer_words(layers: tuple[Layers, ...], stages: int) -> Iterator[str]:
    for one in layers:
        told = plural(one.count, "layer")
        if one.window is not None:
            told += f" with {'chunks' if one.chunked else 'a window'} of {number(one.window)}"
        yield told + (f" of the largest of {stages} stages" if stages > 1 else "")


def _number_bytes(config: Mapping[str, Any], wishes: Wishes) -> tuple[int, str]:
    """Of one number in the cache. Without a flag it has the model's type, which is of 16 bits."""
    told = wishes.cache_dtype
    if told == "auto":
        quantised = _cache_scheme(config)
        if quantised:
            return 1, f"1 byte (fp8 by {quantised})"
        wide = 4 if wishes.dtype in _WIDE else 2
        return wide, f"{wide} bytes"
    if told not in _TYPES:
        raise ShapeError(f"the size of --kv-cache-dtype {told[:40]!r} is not known here")
    wide = _TYPES[told]
    return wide, plural(wide, "byte") + f" ({told})"


def _cache_scheme(config: Mapping[str, Any]) -> str:
    """Where a quantised checkpoint brings scales for an fp8 cache. Raises ShapeError for others."""
    quantised = config.get("quantization_config") or config.get("compression_config")
    if not isinstance(quantised, dict):
        return ""
    inner = quantised.get("quantization")
    for place in (quantised, inner if isinstance(inner, dict) else {}):
        for name in ("kv_cache_scheme", "kv_cache_quant_algo"):
            scheme = place.get(name)
            if not scheme:
                continue
            bits = scheme.get("num_bits") if isinstance(scheme, dict) else None
            if bits == 8 or (isinstance(scheme, str) and scheme.lower() == "fp8"):  # noqa: PLR2004
                return name
            raise ShapeError(f"the size of its {name} is not known here")
    return ""


def _in_flight(wishes: Wishes, stages: int, defaults: Defaults) -> tuple[int, str]:
    """Tokens that are scheduled and not yet settled."""
    batches = stages if wishes.synchronous else stages + 1
    batched, why = wishes.batched, "--max-num-batched-tokens"
    if batched is None:
        batched, why = defaults.batched, f"vLLM's default{defaults.words}"
    return batches * batched, f"{batches} batches x {number(batched)} ({why})"


def defaults_of(card_bytes: int | None, model: str) -> Defaults:
    """Of a card that large (unknown is large) and of that name, "" when it has none."""
    gib = (80 << 30 if card_bytes is None else card_bytes) >> 30
    if gib >= 160:  # noqa: PLR2004
        return Defaults(16384, 1024)
    if gib < 70 or "a100" in model.lower():  # noqa: PLR2004
        return Defaults(2048, 256)
    return Defaults(8192, 1024, "" if model else "; less on an A100")


def per_token_words(plan: Plan) -> str:
    """Layers, heads, sizes and type, multiplied."""
    layers = f"({plan.layer_words})" if len(plan.layers) > 1 else plan.layer_words
    return f"{layers} x {plan.cell_words}"


def block_words(plan: Plan) -> str:
    """The bytes of one block, multiplied."""
    told = f"{plan.block} tokens x {plural(plan.group, 'layer')} x {size(plan.cell)}"
    return f"{told} a token and layer"
