"""What of a model's weights ends up on one card."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from watchdog.command_line import EngineCommand
from watchdog.preflight.shape import text_of
from watchdog.preflight.weights import Weights
from watchdog.preflight.wishes import Wishes
from watchdog.preflight.words import size

_HALF = frozenset(("F32", "F64"))
_SMALLEST = {"bitsandbytes": 4, "fp8": 2, "experts_int8": 2, "torchao": 8, "mxfp8": 2, "mxfp4": 4}
"""Of checkpoints that are quantised while they load: they shrink by this factor at most."""
_WIDE = frozenset(("float", "float32"))


@dataclass(frozen=True, slots=True)
class Loaded:
    """``least`` bytes of weights that one card certainly holds; ``words`` is the arithmetic."""

    least: int
    words: str


def loaded_of(
    weights: Weights, config: Mapping[str, Any] | None, wishes: Wishes, said: EngineCommand
) -> Loaded:
    """Of the weights of a model that is spread over the cards as ``said`` has it."""
    amount, told = float(weights.bytes), size(weights.bytes)
    unused = 0 if wishes.drafts else _unused(weights, config)
    if unused:
        amount -= unused
        told = f"({told} - {size(unused)} of layers for drafts)"
    wide = sum(weights.types[name] for name in _HALF)
    if wide and wishes.dtype not in _WIDE:
        amount -= wide / 2
        told = f"({told} - {size(wide)} of 32 bits / 2)"
    shrink = 1 if _is_quantised(config) else _SMALLEST.get(wishes.quantization, 1)
    if shrink > 1:
        amount /= shrink
        told = f"{told} / {shrink} at best, --quantization {wishes.quantization} while loading"
    for count, why in _split(said, config):
        if count > 1:
            amount /= count
            told = f"{told} / {count} ({why})"
    if wishes.offload:
        amount = max(0.0, amount - wishes.offload)
        told = f"{told} - {size(wishes.offload)} (--cpu-offload-gb)"
    return Loaded(int(amount), told)


def _unused(weights: Weights, config: Mapping[str, Any] | None) -> int:
    """Bytes of the layers behind the last, which only ``--speculative-config`` loads."""
    text = text_of(config) if config is not None else {}
    depth = text.get("num_hidden_layers")
    if not text.get("num_nextn_predict_layers") or not isinstance(depth, int):
        return 0
    return sum(amount for layer, amount in weights.layers.items() if layer >= depth)


def _is_quantised(config: Mapping[str, Any] | None) -> bool:
    """Whether the files are so already."""
    places = (config, text_of(config)) if config is not None else ()
    return any(p.get("quantization_config") or p.get("compression_config") for p in places)


def _split(said: EngineCommand, config: Mapping[str, Any] | None) -> list[tuple[int, str]]:
    found = [
        (said.tensor_parallel, "tensor parallel, what is copied to all not counted"),
        (said.pipeline_parallel, "pipeline stages, taken as equal"),
    ]
    names = ("num_experts", "moe_num_experts", "n_routed_experts", "num_local_experts")
    text = text_of(config) if config is not None else {}
    if said.data_parallel > 1 and any(text.get(name) for name in names):
        found.append((said.data_parallel, "experts over data parallel ranks, at best"))
    return found
