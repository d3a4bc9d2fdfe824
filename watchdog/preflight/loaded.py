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
_SIXTEEN = frozenset(("F16", "BF16"))
_SMALLEST = {
    **dict.fromkeys(("fp8", "fp8_per_tensor", "fp8_per_block", "fp8_per_channel", "mxfp8"), 2),
    **dict.fromkeys(("experts_int8", "int8_per_channel_weight_only"), 2),
    **dict.fromkeys(("bitsandbytes", "mxfp4", "nvfp4_per_token", "fp_quant", "online"), 4),
    **dict.fromkeys(("torchao", "inc", "humming"), 8),
}
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
    if weights.output and _is_tied(config):
        amount -= weights.output
        told = f"({told} - {size(weights.output)} of an output layer that is tied)"
    quantised = _is_quantised(config, weights)
    wide, narrow = (sum(weights.types[name] for name in names) for names in (_HALF, _SIXTEEN))
    if wishes.dtype not in _WIDE and (wide or _says_32_bits(weights, config)):
        wide = wide or weights.bytes
        amount -= wide / 2
        told = f"({told} - {size(wide)} of 32 bits / 2)"
    elif wishes.dtype in _WIDE and narrow and not quantised:
        amount += narrow
        told = f"({told} + {size(narrow)} of 16 bits that become 32)"
    shrink = 1 if quantised else _SMALLEST.get(wishes.quantization, 1)
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


def _places(config: Mapping[str, Any] | None) -> tuple[Mapping[str, Any], ...]:
    return (config, text_of(config)) if config is not None else ()


def _is_quantised(config: Mapping[str, Any] | None, weights: Weights) -> bool:
    """Whether the files are so already: they say it, or most of them is of no usual type."""
    usual = sum(amount for name, amount in weights.types.items() if name in _HALF | _SIXTEEN)
    odd = usual < sum(weights.types.values()) / 2
    return odd or any(
        place.get("quantization_config") or place.get("compression_config")
        for place in _places(config)
    )


def _is_tied(config: Mapping[str, Any] | None) -> bool:
    """Whether the output layer is the embedding: vLLM then passes over what the files have."""
    return any(place.get("tie_word_embeddings") is True for place in _places(config))


def _says_32_bits(weights: Weights, config: Mapping[str, Any] | None) -> bool:
    """Whether files without types are of 32 bits, by the configuration that lies with them."""
    return not weights.types and any(
        str(place.get("torch_dtype") or place.get("dtype")) == "float32"
        for place in _places(config)
    )


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
