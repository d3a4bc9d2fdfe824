"""The KV cache of known models, against figures that the real vLLM 0.32 gave."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchdog.command_line import describe
from watchdog.preflight.cache import Plan, defaults_of, plan_of
from watchdog.preflight.shape import Layers, ShapeError, shape_of
from watchdog.preflight.wishes import wishes_of

GIB = 1 << 30
LARGE = defaults_of(80 * GIB, "NVIDIA H100 80GB HBM3")
RECORDED = Path(__file__).resolve().parents[1] / "recordings" / "vllm-0.32-cpu-start.log"

TINY = {
    "model_type": "qwen3",
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "max_position_embeddings": 4096,
}
"""The model that the recordings were made with."""


def decoder(kind: str, layers: int, heads: int, kv_heads: object, **more: object) -> dict[str, Any]:
    """A configuration as most models have it, with heads of 128."""
    return {
        "model_type": kind,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "hidden_size": heads * 128,
        **more,
    }


LLAMA_8B = decoder("llama", 32, 32, 8)
GEMMA_27B = {
    "model_type": "gemma3",
    "text_config": decoder("gemma3_text", 62, 32, 16, head_dim=128, sliding_window=1024),
    "vision_config": {"num_hidden_layers": 27, "num_attention_heads": 16, "hidden_size": 1152},
}
DEEPSEEK = decoder("deepseek_v3", 61, 128, 128, kv_lora_rank=512, qk_rope_head_dim=64)
UNEVEN = decoder(
    *("llama", 23, 8, 8),
    head_dim=64,
    sliding_window=128,
    layer_types=["full_attention"] * 13 + ["sliding_attention"] * 10,
)
LLAMA_4 = {
    "model_type": "llama4",
    "text_config": decoder("llama4_text", 48, 40, 8, no_rope_layers=[], attention_chunk_size=8192),
}
GPT_OSS = decoder("gpt_oss", 24, 64, 8, head_dim=64, sliding_window=128)


def plan(config: Mapping[str, Any], flags: str = "", ranks: tuple[int, int] = (1, 1)) -> Plan:
    """Of a model that ``vllm serve`` starts with ``flags``."""
    wishes = wishes_of(describe(["vllm", "serve", "m", *flags.split()], {}, {}))
    shape = shape_of(config, windows=wishes.windows)
    return plan_of(shape, config, wishes, ranks, LARGE)


FIGURES = [
    # configuration, flags, ranks, length, bytes of cache, blocks, maximum concurrency
    (TINY, "", (1, 1), 1024, 1, 131072, 2048.0),
    (LLAMA_8B, "", (1, 1), 131072, 50, 25600, 3.125),
    (decoder("llama", 80, 64, 8), "", (4, 1), 131072, 20, 16384, 2.0),
    (decoder("qwen2", 28, 28, 4), "--kv-cache-dtype fp8", (1, 1), 32768, 10, 23405, 11.42822),
    (decoder("mistral", 32, 32, 8, sliding_window=4096), "", (1, 1), 32768, 20, 10240, 7.993754),
    (GEMMA_27B, "", (1, 1), 131072, 40, 32768, 2.22518),
    (GEMMA_27B, "--disable-hybrid-kv-cache-manager", (1, 1), 131072, 40, 5285, 0.645142),
    (
        decoder("gemma2", 42, 16, 8, head_dim=256, sliding_window=4096),
        *("", (1, 1), 8192, 40, 15603, 15.222439),
    ),
    (GPT_OSS, "", (1, 1), 131072, 40, 109226, 11.840217),
    (DEEPSEEK, "", (1, 1), 163840, 30, 28649, 2.797754),
    (UNEVEN, "", (1, 1), 4096, 8, 20164, 39.306043),
    (LLAMA_4, "", (1, 1), 1048576, 60, 81920, 1.167883),
    (LLAMA_4, "--disable-hybrid-kv-cache-manager", (1, 1), 1048576, 60, 20480, 0.3125),
    (
        decoder("mistral", 32, 32, 8, sliding_window=4096),
        *("--disable-hybrid-kv-cache-manager", (1, 1), 32768, 20, 10240, 7.993754),
    ),
]
"""Blocks and concurrency are what vLLM 0.32's own functions say of such layers and that memory."""


@pytest.mark.parametrize(
    ("config", "flags", "ranks", "length", "gib", "blocks", "concurrency"), FIGURES
)
def test_blocks_and_concurrency_are_those_of_vllm(  # noqa: PLR0917 - one column each
    config: dict[str, Any],
    flags: str,
    ranks: tuple[int, int],
    length: int,
    gib: int,
    blocks: int,
    concurrency: float,
) -> None:
    """FACT: windows, latent vectors, shared heads and fp8 come out as in vLLM 0.32, exactly."""
    made = plan(config, flags, ranks)
    found = gib * GIB // made.block_bytes
    assert found == blocks
    assert found / made.blocks(length) == pytest.approx(concurrency, rel=1e-6)


def test_it_agrees_with_a_recorded_start() -> None:
    """FACT: 1 GiB of cache for the tiny model are the tokens that a real vLLM 0.32 logged."""
    line = next(x for x in RECORDED.read_text().splitlines() if "KV cache size" in x)
    found = re.search(r"size: ([\d,]+) tokens.* ([\d,.]+) tokens per request: ([\d.]+)x", line)
    assert found is not None
    tokens, length = (int(found[n].replace(",", "")) for n in (1, 2))
    made = plan(TINY)
    assert GIB / made.per_token == pytest.approx(tokens, rel=0.01)
    assert GIB // made.block_bytes / made.blocks(length) == pytest.approx(float(found[3]))


def test_it_agrees_with_an_h200() -> None:
    """FACT: 83.6 GiB were 175,330,016 tokens on a real GPU (vLLM 0.24, the same model)."""
    assert 83.6 * GIB / plan(TINY).per_token == pytest.approx(175_330_016, rel=0.01)


def test_bytes_of_a_token_are_layers_heads_and_sizes() -> None:
    """FACT: Llama 8B keeps 128 KiB a token; DeepSeek one vector a layer, on every card."""
    assert plan(LLAMA_8B).per_token == 32 * 8 * (128 + 128) * 2
    assert plan(LLAMA_8B, ranks=(4, 1)).per_token == 32 * 2 * 256 * 2
    assert plan(LLAMA_8B, ranks=(16, 1)).per_token == 32 * 1 * 256 * 2
    assert plan(DEEPSEEK, ranks=(8, 1)).per_token == 61 * (512 + 64) * 2
    assert plan(LLAMA_8B, ranks=(1, 3)).per_token == 11 * 8 * 256 * 2


def test_experts_keep_nothing_of_a_token() -> None:
    """FACT: a mixture of experts has the cache of its attention; it knows that it has experts."""
    config = decoder("qwen3_moe", 48, 32, 4, head_dim=128, num_experts=128)
    assert plan(config).per_token == 48 * 4 * 256 * 2
    assert shape_of(config).experts == 128


@pytest.mark.parametrize(
    ("more", "cell"),
    [
        ({}, 4096),
        ({"kv_cache_scheme": {"num_bits": 8, "type": "float"}}, 2048),
        ({"kv_cache_quant_algo": "FP8"}, 2048),
        ({"kv_cache_scheme": None}, 4096),
    ],
)
def test_a_checkpoint_with_an_fp8_cache(more: dict[str, Any], cell: int) -> None:
    """FACT: without a flag a quantised checkpoint says itself whether its cache is of 8 bits."""
    config = {**LLAMA_8B, "quantization_config": {"quant_method": "compressed-tensors", **more}}
    assert plan(config).cell == cell


@pytest.mark.parametrize(
    ("flags", "cell"),
    [
        ("--dtype float32", 8192),
        ("--dtype float16", 4096),
        ("--kv-cache-dtype bfloat16 --dtype float32", 4096),
        ("--kv-cache-dtype fp8_e5m2", 2048),
    ],
)
def test_flags_that_change_the_size_of_a_number(flags: str, cell: int) -> None:
    """FACT: the cache has the model's type unless a flag says another."""
    assert plan(LLAMA_8B, flags).cell == cell


def test_windows_by_layer_or_by_list() -> None:
    """FACT: a list of layers goes before a pattern; without a window all layers are whole."""
    kinds = ["sliding_attention", "full_attention"] * 2
    listed = decoder("llama", 4, 8, 8, layer_types=kinds, sliding_window=512)
    assert shape_of(listed).layers == (Layers(2), Layers(2, 512))
    unused = decoder("qwen2", 4, 8, 8, sliding_window=512, use_sliding_window=False)
    assert shape_of(unused).layers == (Layers(4),)
    assert shape_of(decoder("mistral", 4, 8, 8, sliding_window=None)).layers == (Layers(4),)
    assert shape_of(listed, windows=False).layers == (Layers(4),)
    cohere = decoder("cohere2", 8, 8, 8, sliding_window=4096)
    assert shape_of(cohere).layers == (Layers(2), Layers(6, 4097))


@pytest.mark.parametrize(
    ("more", "layers"),
    [
        ({}, (Layers(2), Layers(6, 8192, chunked=True))),
        ({"no_rope_layer_interval": 2}, (Layers(4), Layers(4, 8192, chunked=True))),
        ({"no_rope_layers": [1] * 7 + [0]}, (Layers(1), Layers(7, 8192, chunked=True))),
        ({"attention_chunk_size": None}, (Layers(8),)),
        ({"layer_types": ["chunked_attention"] * 8}, (Layers(2), Layers(6, 8192, chunked=True))),
    ],
)
def test_layers_with_chunks(more: dict[str, Any], layers: tuple[Layers, ...]) -> None:
    """FACT: which layers of Llama 4 look at chunks is said by those without rope, as in vLLM."""
    config = decoder("llama4_text", 8, 8, 8, **more)
    assert shape_of(config).layers == layers
    assert shape_of(config, windows=False).layers == layers


@pytest.mark.parametrize(
    ("size", "model", "concurrency", "sequences"),
    [
        (80, "NVIDIA H100 80GB HBM3", 2.22518, 1024),
        (80, "NVIDIA A100-SXM4-80GB", 3.238585, 256),
        (180, "NVIDIA B200", 1.570101, 1024),
    ],
)
def test_what_is_in_flight_by_default_depends_on_the_card(
    size: int, model: str, concurrency: float, sequences: int
) -> None:
    """FACT: batches are larger on large cards, an A100 aside; windows keep them, as in vLLM."""
    defaults = defaults_of(size * GIB, model)
    wishes = wishes_of(describe(["vllm", "serve", "m"], {}, {}))
    made = plan_of(shape_of(GEMMA_27B), GEMMA_27B, wishes, (1, 1), defaults)
    found = 40 * GIB // made.block_bytes / made.blocks(131072)
    assert found == pytest.approx(concurrency, rel=1e-6)
    assert defaults.sequences == sequences


def test_a_card_of_unknown_make_is_said() -> None:
    """FACT: --memory names no product, so that the figure says of what it depends."""
    assert defaults_of(80 * GIB, "").words == "; less on an A100"
    assert not defaults_of(40 * GIB, "").words


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (decoder("brand_new", 4, 8, 8), "architecture 'brand_new' is not known here"),
        ({}, "architecture '' is not known here"),
        (decoder("jamba", 4, 8, 8), "keep a state instead of keys and values"),
        (decoder("llama", 4, 8, 8, mamba_d_state=16), "keep a state"),
        (decoder("qwen3_next", 4, 8, 8), "keep a state"),
        (decoder("llama", 4, 8, 8, layer_types=["linear_attention"] * 4), "not known here"),
        (decoder("deepseek_v3", 4, 8, 8, index_topk=2048, kv_lora_rank=1), "different things"),
        (decoder("llama", 4, 8, 8, num_hidden_layers="four"), "no sensible number"),
        (decoder("llama", 4, 8, 8, num_hidden_layers=10**30), "no sensible number"),
        (decoder("llama", 4, 8, [8, 4]), "different numbers of KV heads"),
        (decoder("hunyuan_v1_moe", 4, 8, 8, use_cla=True), "different things (use_cla)"),
        (decoder("llama4_text", 4, 8, 8, no_rope_layers=[1]), "lists 1 of 4 layers"),
        ({"model_type": "qwen3", "num_hidden_layers": 4}, "lacks num_attention_heads"),
        (decoder("olmo3", 4, 8, 8, sliding_window=64), "which layers have the sliding window"),
        (
            decoder("llama", 4, 8, 8, sliding_window=64, layer_types=["sliding_attention"]),
            "lists 1 of 4 layers",
        ),
        (decoder("\x1b[31m", 4, 8, 8), r"'\x1b[31m'"),
    ],
)
def test_what_is_not_known_is_said(config: dict[str, Any], why: str) -> None:
    """FACT: of another architecture, or of nonsense, nothing is computed, and it is said why."""
    with pytest.raises(ShapeError) as caught:
        shape_of(config)
    assert why in str(caught.value)


@pytest.mark.parametrize("dtype", ["nvfp4", "turboquant_k8v4", "\x1b"])
def test_a_cache_type_of_unknown_size_is_said(dtype: str) -> None:
    """FACT: packed types are not guessed at."""
    with pytest.raises(ShapeError, match="is not known here"):
        plan(LLAMA_8B, f"--kv-cache-dtype {dtype}")


def test_the_longest_request_is_found() -> None:
    """FACT: one token more than the longest needs more than there is; one block is kept back."""
    made = plan(GEMMA_27B)
    pool = 12 * GIB
    longest = made.longest(pool)
    assert (made.blocks(longest) + 1) * made.block_bytes <= pool
    assert (made.blocks(longest + 1) + 1) * made.block_bytes > pool
    assert made.longest(made.block_bytes) == 0


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
KEYS = st.sampled_from(
    [
        *("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim"),
        *("hidden_size", "sliding_window", "layer_types", "text_config", "model_type"),
        *("quantization_config", "kv_lora_rank", "qk_rope_head_dim", "use_sliding_window"),
        *("num_experts", "v_head_dim", "sliding_window_pattern"),
    ]
)


@given(st.dictionaries(KEYS, JSON), st.sampled_from(["llama", "gemma2", "deepseek_v3", "falcon"]))
def test_no_configuration_breaks_it(config: dict[str, Any], kind: str) -> None:
    """FACT: whatever a configuration holds, there is a plan or one line that says why not."""
    try:
        made = plan({"model_type": kind, **config})
    except ShapeError as error:
        assert "\n" not in str(error)  # noqa: PT017 - that there may be one is the fact
        return
    assert made.blocks(1000) >= 1
    assert json.dumps(made.words(1000))
