"""What a model keeps of each token: layers, heads and windows, out of its configuration.

Of an architecture that is not in the lists nothing is said: its layers may keep anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

_NESTED = ("thinker_config", "text_config", "llm_config", "language_config")
_DEEPEST = 3
_SHOWN = 40
_MOST = 1 << 24
"""No figure of a configuration is larger."""

_PLAIN = frozenset(
    (
        *("apertus", "arcee", "aquila", "baichuan", "chatglm", "cohere", "cohere2", "dots1"),
        *("ernie4_5", "ernie4_5_moe", "exaone", "exaone4", "falcon", "flex_olmo", "gemma"),
        *("gemma2", "gemma3_text", "glm", "glm4", "glm4_moe", "gpt2", "gpt_bigcode", "gpt_neox"),
        *("gpt_oss", "gptj", "granite", "granitemoe", "helium", "hunyuan_v1_dense"),
        *("hunyuan_v1_moe", "internlm2", "internlm3", "llama", "llama4_text", "minimax_m2"),
        *("ministral", "ministral3", "mistral", "mixtral", "nemotron", "olmo", "olmo2", "olmo3"),
        *("olmoe", "opt", "persimmon", "phi", "phi3", "phimoe", "qwen2", "qwen2_moe"),
        *("qwen2_5_vl", "qwen2_5_vl_text", "qwen2_vl", "qwen2_vl_text", "qwen3", "qwen3_moe"),
        *("qwen3_vl_moe_text", "qwen3_vl_text", "seed_oss", "smollm3", "stablelm", "starcoder2"),
    )
)
"""Every layer keeps keys and values of its KV heads."""
_LATENT = frozenset(
    (
        *("deepseek_v2", "deepseek_v3", "glm4_moe_lite", "kimi_k2", "pangu_ultra_moe"),
        *("deepseek_vl_v2",),
    )
)
"""Multi-head latent attention: one vector a layer, the same for all heads."""
_HYBRID = frozenset(
    (
        *("bamba", "falcon_h1", "falcon_mamba", "granitemoehybrid", "jamba", "kimi_linear"),
        *("lfm2", "lfm2_moe", "mamba", "mamba2", "minimax_text_01", "nemotron_h", "plamo2"),
        *("qwen3_5", "qwen3_5_moe", "qwen3_next", "rwkv", "zamba2", "bailing_hybrid"),
    )
)
_RECURRENT = (
    *("layers_block_type", "hybrid_override_pattern", "attn_layer_period", "attn_type_list"),
    *("full_attention_interval", "linear_attn_config", "linear_num_value_heads", "ssm_cfg"),
    *("mamba_d_state", "state_size", "mamba_d_ssm"),
)
_SHARED = ("num_kv_shared_layers", "global_head_dim", "index_topk", "compress_ratios", "use_cla")
"""Layers that keep what others keep, or more than their heads."""
_QWEN = frozenset(("qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "smollm3", "qwen3_vl_moe_text"))
_QWEN_VL = frozenset(("qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text"))
_ALTERNATE = {"gemma2": 2, "gemma3_text": 6, "cohere2": 4, "gpt_oss": 2}
"""Every so many layers one looks at everything, when the configuration does not list them."""
_LISTED_ONLY = frozenset(("olmo3", "exaone4"))
_HEAD_SIZES = {
    **dict.fromkeys(("gemma", "gemma2", "gemma3_text"), 256),
    **dict.fromkeys(("qwen3", "qwen3_vl_text", "qwen3_vl_moe_text", "glm", "glm4"), 128),
    **dict.fromkeys(("seed_oss", "minimax_m2", "helium", "cohere2", "ernie4_5"), 128),
    "gpt_oss": 64,
}
"""Of configurations without one: their classes do not divide the hidden size by the heads."""
DEFAULTS: Mapping[str, Mapping[str, int]] = {
    "gemma3_text": {
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "num_hidden_layers": 26,
        "max_position_embeddings": 131072,
    },
    "llama": {
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "max_position_embeddings": 2048,
    },
    "mistral": {
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "num_hidden_layers": 32,
        "max_position_embeddings": 131072,
    },
}
"""What nested configurations leave out, because the classes of transformers have it."""
_EXPERTS = ("num_experts", "moe_num_experts", "n_routed_experts", "num_local_experts")
_HEADS = ("num_attention_heads", "n_head", "n_heads")
_HIDDEN = ("hidden_size", "n_embd", "d_model")
_DEPTH = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_KV_HEADS = (
    *("n_head_kv", "num_kv_heads", "num_key_value_heads", "multi_query_group_num"),
    "num_attention_groups",
)


@dataclass(frozen=True, slots=True)
class Layers:
    """``count`` layers of one kind. ``window`` counts tokens, None for all of them.

    With ``chunked`` it does not slide: each chunk of so many tokens looks at itself.
    """

    count: int
    window: int | None = None
    chunked: bool = False


@dataclass(frozen=True, slots=True)
class Shape:
    """What is kept. With ``latent`` the one vector has ``key_size`` numbers and no value.

    ``experts`` is their number, 0 without.
    """

    layers: tuple[Layers, ...]
    kv_heads: int
    key_size: int
    value_size: int
    latent: bool = False
    experts: int = 0

    @property
    def whole(self) -> tuple[Layers, ...]:
        """The layers when every one of them keeps everything, whatever it looks at."""
        return (Layers(sum(one.count for one in self.layers)),)

    @property
    def chunked(self) -> bool:
        """Whether some layers look at chunks."""
        return any(one.chunked for one in self.layers)


class ShapeError(ValueError):
    """What is kept cannot be computed. The message is one line and says why."""


def text_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The configuration of the language model, which multimodal ones keep one level down."""
    for _ in range(_DEEPEST):
        below = next((b for n in _NESTED if isinstance(b := config.get(n), dict) and b), None)
        if below is None:
            return config
        config = below
    return config


def shape_of(config: Mapping[str, Any], *, windows: bool = True) -> Shape:
    """Of a whole configuration; without ``windows`` every layer looks at all. Raises ShapeError."""
    text = text_of(config)
    kind = str(text.get("model_type") or config.get("model_type") or "")
    _refuse(kind, text)
    if kind in _LATENT:
        return _latent(text)
    told = {**DEFAULTS.get(kind, {}), **{k: v for k, v in text.items() if v is not None}}
    if "attention_chunk_size" in text:
        told["attention_chunk_size"] = text["attention_chunk_size"]
    heads = _count(told, *_HEADS)
    depth = _count(told, *_DEPTH)
    key = _head_size(kind, told, heads)
    value = told.get("v_head_dim")
    return Shape(
        layers=_layers(kind, told, depth) if windows or kind == _CHUNKED else (Layers(depth),),
        kv_heads=_kv_heads(kind, told, heads),
        key_size=key,
        value_size=value if _is_count(value) else key,
        experts=_experts(told),
    )


def attention_heads(config: Mapping[str, Any]) -> int:
    """Of the language model, 0 when its configuration does not tell."""
    text = text_of(config)
    told = {**DEFAULTS.get(str(text.get("model_type")), {}), **text}
    return next((value for name in _HEADS if _is_count(value := told.get(name))), 0)


def absurd(config: Mapping[str, Any]) -> Iterator[str]:
    """One line for every number without which no architecture can be built, and that is none."""
    text = text_of(config)
    if text.get("model_type") in _HYBRID:
        return  # without heads when no layer has attention
    for name in (*_HEADS, *_HIDDEN, *_DEPTH):
        value = text.get(name)
        if not (value is None or isinstance(value, list | dict) or _is_count(value)):
            told = repr(value)[:_SHOWN]
            yield f"{name} is {told} in its configuration: expected a whole number, 1 or more"


def _refuse(kind: str, text: Mapping[str, Any]) -> None:
    shown = repr(kind[:60])
    kinds = text.get("layer_types")
    recurrent = [name for name in _RECURRENT if text.get(name)]
    if kind in _HYBRID or recurrent:
        raise ShapeError(f"{shown} has layers that keep a state instead of keys and values")
    if kind not in _PLAIN | _LATENT:
        raise ShapeError(f"architecture {shown} is not known here")
    if text.get("is_encoder_decoder"):
        raise ShapeError(f"{shown} has an encoder")
    shared = next((name for name in _SHARED if text.get(name)), "")
    if shared:
        raise ShapeError(f"its layers keep different things ({shared})")
    read = kinds if isinstance(kinds, list) and kind != _CHUNKED else []
    odd = [str(k) for k in read if k not in _KINDS]
    if odd:
        raise ShapeError(f"it has layers of a kind not known here ({odd[0][:60]!r})")


_KINDS = ("full_attention", "sliding_attention")
_CHUNKED = "llama4_text"
_CHUNK, _CHUNKS_UNTIL = 8192, 4
"""Tokens of a chunk, and every so many layers one looks at everything, by default."""


def _latent(text: Mapping[str, Any]) -> Shape:
    rank = _count(text, "kv_lora_rank")
    rope = _count(text, "qk_rope_head_dim")
    depth = _count(text, "num_hidden_layers")
    return Shape((Layers(depth),), 1, rank + rope, 0, latent=True, experts=_experts(text))


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < _MOST


def _count(text: Mapping[str, Any], *names: str) -> int:
    for name in names:
        value = text.get(name)
        if _is_count(value):
            return value
        if value is not None:
            raise ShapeError(f"{name} in its configuration is no sensible number")
    raise ShapeError(f"its configuration lacks {names[0]}")


def _head_size(kind: str, text: Mapping[str, Any], heads: int) -> int:
    told = text.get("head_dim")
    if _is_count(told):
        return told
    if kind in _HEAD_SIZES:
        return _HEAD_SIZES[kind]
    found = _count(text, *_HIDDEN) // heads
    if not found:
        raise ShapeError("its heads have no size")
    return found


def _kv_heads(kind: str, text: Mapping[str, Any], heads: int) -> int:
    if kind == "gpt_bigcode" or (kind == "falcon" and not text.get("new_decoder_architecture")):
        return 1 if text.get("multi_query", True) else heads
    for name in _KV_HEADS:
        value = text.get(name)
        if isinstance(value, list):
            if len(set(map(str, value))) != 1:
                raise ShapeError(f"its layers have different numbers of KV heads ({name})")
            value = value[0]
        if _is_count(value):
            return value
    return heads


def _experts(text: Mapping[str, Any]) -> int:
    return next((v for name in _EXPERTS if _is_count(v := text.get(name))), 0)


def _layers(kind: str, text: Mapping[str, Any], depth: int) -> tuple[Layers, ...]:
    """The layers by window."""
    if kind == _CHUNKED:
        return _chunked(text, depth)
    kinds = text.get("layer_types")
    window = text.get("sliding_window")
    listed: Sequence[Any] = kinds if isinstance(kinds, list) else ()
    if kind in _QWEN | _QWEN_VL and not text.get("use_sliding_window"):
        return (Layers(depth),)
    if not _is_count(window):
        if "sliding_attention" in listed:
            raise ShapeError("it has sliding layers and no sliding_window")
        return (Layers(depth),)
    size = window + (kind == "cohere2")
    if listed:
        if len(listed) != depth:
            raise ShapeError(f"layer_types lists {len(listed)} of {depth} layers")
        sliding = sum(one == "sliding_attention" for one in listed)
    elif kind in _ALTERNATE:
        sliding = depth - _wide(kind, text, depth)
    elif kind in _LISTED_ONLY | _QWEN | _QWEN_VL:
        raise ShapeError("its configuration does not say which layers have the sliding window")
    else:
        sliding = depth
    return _present(Layers(depth - sliding), Layers(sliding, size))


def _present(*layers: Layers) -> tuple[Layers, ...]:
    return tuple(one for one in layers if one.count)


def _chunked(text: Mapping[str, Any], depth: int) -> tuple[Layers, ...]:
    """Layers without rope look at everything; ``layer_types`` is not what vLLM goes by."""
    chunk = text.get("attention_chunk_size", _CHUNK)
    if not _is_count(chunk):
        return (Layers(depth),)
    ropes = text.get("no_rope_layers")
    if isinstance(ropes, list) and ropes:
        if len(ropes) != depth:
            raise ShapeError(f"no_rope_layers lists {len(ropes)} of {depth} layers")
        whole = sum(one == 0 for one in ropes)
    else:
        every = text.get("no_rope_layer_interval")
        whole = depth // (every if _is_count(every) else _CHUNKS_UNTIL)
    return _present(Layers(whole), Layers(depth - whole, chunk, chunked=True))


def _wide(kind: str, text: Mapping[str, Any], depth: int) -> int:
    """How many layers look at everything."""
    told = text.get("sliding_window_pattern", text.get("_sliding_window_pattern"))
    every = told if _is_count(told) else _ALTERNATE[kind]
    return depth // every
