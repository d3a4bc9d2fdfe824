"""Whether a model fits, with the arithmetic of every number."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.models import weights
from watchdog.command_line import describe
from watchdog.preflight import Card, Figure, Report, Verdict, memory_of, preflight

GIB = 1 << 30
LLAMA_8B = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
}


def model(path: Path, size: int = 15 * GIB, **more: object) -> Path:
    """A folder with Llama's configuration and weights of that many bytes, as holes."""
    path.mkdir()
    (path / "config.json").write_text(json.dumps({**LLAMA_8B, **more}))
    weights(path / "pytorch_model.bin", size)
    return path


def card(total: int = 80 * GIB, used: int | None = None, holders: str = "") -> Card:
    """One card."""
    return Card("GPU 0", total, used, holders=holders)


def report(path: Path, flags: str = "", *cards: Card, **environment: str) -> Report:
    """What a preflight of ``vllm serve PATH FLAGS`` says."""
    said = describe(["vllm", "serve", str(path), *flags.split()], {}, {})
    return preflight(said, environment, None, cards)


def tensors(path: Path, **types: str) -> int:
    """Put into the folder 1 MiB of every one of these tensors; the bytes of one."""
    (path / "pytorch_model.bin").unlink()
    size = 1 << 20
    head = json.dumps(
        {
            name: {"dtype": kind, "shape": [1], "data_offsets": [at * size, (at + 1) * size]}
            for at, (name, kind) in enumerate(types.items())
        }
    ).encode()
    file = path / "model.safetensors"
    file.write_bytes(len(head).to_bytes(8, "little") + head + bytes(len(types) * size))
    return size


def figure(found: Report, name: str) -> Figure:
    """The number of that name."""
    return next(one for one in found.figures if one.name == name)


def value(found: Report, name: str) -> Any:  # noqa: ANN401 - a number of any kind
    """The same, as a number."""
    return figure(found, name).value


def test_a_model_that_fits(tmp_path: Path) -> None:
    """FACT: share, weights, room, blocks and concurrency follow from each other."""
    found = report(model(tmp_path / "m"), "--gpu-memory-utilization 0.9", card())
    assert (found.verdict, found.problems, found.warnings) == (Verdict.FITS, (), ())
    assert value(found, "vLLM's share") == 72 * GIB
    assert value(found, "room for the KV cache") == 57 * GIB
    assert value(found, "KV cache a token") == 128 << 10
    assert value(found, "blocks") == 57 * GIB // (2 << 20)
    assert value(found, "a request of full length") == 16 * GIB
    assert value(found, "maximum concurrency") == pytest.approx(57 / 16)
    assert figure(found, "maximum concurrency").at_most
    assert value(found, "KV cache size") == 57 * GIB // (128 << 10)


def test_every_number_has_its_arithmetic(tmp_path: Path) -> None:
    """FACT: no figure is without words, and what they multiply is the number."""
    found = report(model(tmp_path / "m"), "", card())
    assert all(one.arithmetic for one in found.figures)
    for name in ("KV cache a token", "vLLM's share"):
        one = figure(found, name)
        product = re.sub(r"\(--.*", "", one.arithmetic).replace("GiB", f"* {GIB}")
        product = re.sub(r"[a-zA-Z]{2,}", "", product).replace(" x ", " * ")
        (factors,) = [re.sub(r"[^\d.*+() ]", "", product)]
        assert eval(factors) == pytest.approx(one.value)  # noqa: S307 - digits and signs alone


def test_a_context_that_does_not_fit(tmp_path: Path) -> None:
    """FACT: it is a problem, with what it takes, what there is, and the longest that fits."""
    found = report(model(tmp_path / "m"), "--gpu-memory-utilization 0.9", card(24 * GIB))
    assert found.verdict is Verdict.TOO_LARGE
    (line,) = found.problems
    assert line.startswith("a request of 131,072 tokens takes 16 GiB of KV cache, and there are 6.")
    longest = int(re.findall(r"at best ([\d,]+) tokens", line)[0].replace(",", ""))
    shorter = report(
        tmp_path / "m", f"--gpu-memory-utilization 0.9 --max-model-len {longest}", card(24 * GIB)
    )
    assert shorter.verdict is Verdict.TIGHT
    longer = report(
        tmp_path / "m",
        f"--gpu-memory-utilization 0.9 --max-model-len {longest + 16}",
        card(24 * GIB),
    )
    assert longer.verdict is Verdict.TOO_LARGE


def test_weights_that_do_not_fit(tmp_path: Path) -> None:
    """FACT: weights over the share are a problem of their own."""
    found = report(model(tmp_path / "m", 140 * GIB), "", card())
    assert found.verdict is Verdict.TOO_LARGE
    assert found.problems[0].startswith("the weights alone take 140 GiB (140 GiB) of vLLM's share")


def test_little_beside_one_request_is_tight(tmp_path: Path) -> None:
    """FACT: what fits only if vLLM needs nothing else is a warning and no problem."""
    found = report(model(tmp_path / "m"), "--gpu-memory-utilization 0.9", card(36 * GIB))
    assert (found.verdict, found.problems) == (Verdict.TIGHT, ())
    assert found.warnings[0].startswith("tight: ")


def test_ranks_share_the_weights(tmp_path: Path) -> None:
    """FACT: tensor and pipeline ranks divide the weights, data ranks only those of experts."""
    path, flags = model(tmp_path / "m", 120 * GIB), "-tp 4 -pp 2 -dp 2"
    cards = (card(),) * 16
    assert value(report(path, flags, *cards), "weights on a card") == 15 * GIB
    experts = model(tmp_path / "moe", 120 * GIB, num_local_experts=8)
    assert value(report(experts, flags, *cards), "weights on a card") == 7.5 * GIB
    assert value(report(path, flags, *cards), "cards") == 16


def test_more_cards_wanted_than_there_are(tmp_path: Path) -> None:
    """FACT: an engine of four ranks does not start on two cards."""
    found = report(model(tmp_path / "m"), "-tp 4", card(), card())
    assert found.problems == ("it needs 4 GPUs (4 tensor parallel), and may use 2 here",)
    assert report(tmp_path / "m", "-tp 4 --nnodes 2", card(), card()).problems == ()


def test_a_card_that_others_use(tmp_path: Path) -> None:
    """FACT: with less free than the share vLLM does not start; who holds it is named."""
    used = card(80 * GIB, 10 * GIB, "pid 7 (python) 10.0 GiB")
    found = report(model(tmp_path / "m"), "--gpu-memory-utilization 0.9", used)
    (line,) = found.problems
    assert line.startswith("GPU 0 has 70 GiB free (80 GiB - 10 GiB held by pid 7 (python) 10.0 GiB")
    assert line.endswith("refuses to start with less than 72 GiB (0.9 x 80 GiB)")
    assert report(tmp_path / "m", "--gpu-memory-utilization 0.8", used).problems == ()


def test_the_smallest_card_decides(tmp_path: Path) -> None:
    """FACT: every rank has the same share of work, so the smallest card has to hold it."""
    found = report(model(tmp_path / "m"), "-tp 2", card(80 * GIB), card(40 * GIB))
    assert value(found, "memory of a card") == 40 * GIB


def test_flags_that_set_the_cache(tmp_path: Path) -> None:
    """FACT: bytes or blocks that the command sets are no "at most"."""
    path = model(tmp_path / "m")
    told = report(path, f"--kv-cache-memory-bytes {32 * GIB}", card())
    assert (value(told, "room for the KV cache"), value(told, "blocks")) == (32 * GIB, 16384)
    assert not figure(told, "maximum concurrency").at_most
    blocks = report(path, "--num-gpu-blocks-override 100", card())
    assert value(blocks, "blocks") == 100
    assert blocks.verdict is Verdict.TOO_LARGE


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (f"--kv-cache-memory-bytes {70 * GIB}", "--kv-cache-memory-bytes 70 GiB"),
        ("--num-gpu-blocks-override 35840", "--num-gpu-blocks-override 70 GiB"),
    ],
)
def test_a_cache_that_the_card_cannot_hold(tmp_path: Path, flags: str, words: str) -> None:
    """FACT: what the command sets has no share to stay in, and still has to fit on the card."""
    found = report(model(tmp_path / "m"), flags, card())
    assert found.verdict is Verdict.TOO_LARGE
    assert found.problems == (f"the weights take 15 GiB and {words}, and a card has 80 GiB",)


def test_blocks_that_are_set_need_no_share(tmp_path: Path) -> None:
    """FACT: with --num-gpu-blocks-override vLLM does not compare the weights with its share."""
    path = model(tmp_path / "m", 30 * GIB)
    flags = "--gpu-memory-utilization 0.3 --max-model-len 4K"
    assert report(path, flags, card()).verdict is Verdict.TOO_LARGE
    found = report(path, f"{flags} --num-gpu-blocks-override 1000", card())
    assert (found.verdict, found.problems) == (Verdict.FITS, ())


def test_a_fitted_length_is_told(tmp_path: Path) -> None:
    """FACT: with ``auto`` it starts, and the length that it comes to is a figure."""
    flags = "--gpu-memory-utilization 0.9 --max-model-len auto"
    found = report(model(tmp_path / "m"), flags, card(24 * GIB))
    assert (found.verdict, found.problems) == (Verdict.FITS, ())
    longest = value(found, "length that fits")
    assert figure(found, "length that fits").at_most
    assert value(found, "room for the KV cache") - longest * (128 << 10) < 2 * (2 << 20)
    whole = [one.name for one in report(tmp_path / "m", flags, card()).figures]
    assert "length that fits" not in whole


def test_heads_that_cannot_be_dealt(tmp_path: Path) -> None:
    """FACT: vLLM refuses ranks that do not divide the heads, also of what is not known here."""
    line = "its 32 attention heads cannot be dealt to 3 tensor ranks"
    known = model(tmp_path / "m")
    other = model(tmp_path / "o", model_type="brand_new")
    assert report(known, "-tp 3", *[card()] * 3).problems == (line,)
    assert report(other, "-tp 3", *[card()] * 3).problems == (line,)
    assert report(known, "-tp 4", *[card()] * 4).problems == ()


def test_the_environment_changes_what_is_kept(tmp_path: Path) -> None:
    """FACT: whole heads instead of latent vectors are not guessed at; chunks may count as whole."""
    latent = {"kv_lora_rank": 512, "qk_rope_head_dim": 64}
    path = model(tmp_path / "m", model_type="deepseek_v3", **latent)
    assert value(report(path, "", card()), "KV cache a token") == 32 * 576 * 2
    found = report(path, "", card(), VLLM_MLA_DISABLE="1")
    assert value(found, "KV cache a token") is None
    chunked = model(tmp_path / "c", model_type="llama4_text", head_dim=128)
    off = {"VLLM_ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE": "0"}
    most, least = (value(report(chunked, "", card(), **e), "blocks") for e in ({}, off))
    assert most == pytest.approx(4 * least, rel=1e-3)


def test_a_file_may_say_no(tmp_path: Path) -> None:
    """FACT: switches that a --config file has as false are off."""
    path = model(tmp_path / "m", model_type="mistral", sliding_window=4096)
    file = tmp_path / "vllm.yaml"
    lines = ("disable-sliding-window", "enable-lora", "async-scheduling")
    file.write_text("".join(f"{line}: false\n" for line in lines))
    plain, synchronous = report(path, "", card()), report(path, "--no-async-scheduling", card())
    found = report(path, f"--config {file}", card())
    assert found.warnings == plain.warnings
    assert value(found, "tokens in flight") == value(synchronous, "tokens in flight")
    assert value(found, "tokens in flight") < value(plain, "tokens in flight")


def test_weights_that_shrink_while_they_load(tmp_path: Path) -> None:
    """FACT: 32 bits become 16, --quantization at best so much; quantised files stay as they are."""
    path = model(tmp_path / "m", 16 * GIB)
    assert value(report(path, "--quantization fp8", card()), "weights on a card") == 8 * GIB
    online = report(path, "--quantization fp8_per_tensor", card())
    assert value(online, "weights on a card") == 8 * GIB
    assert value(report(path, "-q bitsandbytes", card()), "weights on a card") == 4 * GIB
    done = model(tmp_path / "q", 16 * GIB, quantization_config={"quant_method": "fp8"})
    names = [one.name for one in report(done, "--quantization fp8", card()).figures]
    assert "weights on a card" not in names
    assert value(report(path, "--cpu-offload-gb 10", card()), "weights on a card") == 6 * GIB


def test_32_bits_are_loaded_as_16(tmp_path: Path) -> None:
    """FACT: a checkpoint of 32-bit numbers takes half its size, unless the flag keeps them."""
    path = model(tmp_path / "m")
    size = tensors(path, w="F32")
    assert value(report(path, "", card()), "weights on a card") == size // 2
    names = [one.name for one in report(path, "--dtype float32", card()).figures]
    assert "weights on a card" not in names
    old = model(tmp_path / "old", 16 * GIB, torch_dtype="float32")
    assert value(report(old, "", card()), "weights on a card") == 8 * GIB


def test_16_bits_become_32(tmp_path: Path) -> None:
    """FACT: --dtype float32 doubles what is of 16 bits, but not what is quantised."""
    path = model(tmp_path / "m")
    size = tensors(path, v="BF16", w="F32")
    assert value(report(path, "--dtype float32", card()), "weights on a card") == 3 * size
    packed = model(tmp_path / "q")
    tensors(packed, v="I32", w="U8", scales="BF16")
    names = [one.name for one in report(packed, "--dtype float32 -q fp8", card()).figures]
    assert "weights on a card" not in names


def test_an_output_layer_that_is_tied_is_not_loaded(tmp_path: Path) -> None:
    """FACT: where it is the embedding vLLM passes over the copy that some files have."""
    path = model(tmp_path / "m", tie_word_embeddings=True)
    names = {"model.embed_tokens.weight": "BF16", "lm_head.weight": "BF16"}
    size = tensors(path, **names)
    assert value(report(path, "", card()), "weights on a card") == size
    own = model(tmp_path / "own", tie_word_embeddings=False)
    tensors(own, **names)
    assert "weights on a card" not in [one.name for one in report(own, "", card()).figures]


def test_layers_for_drafts_are_left_on_the_disk(tmp_path: Path) -> None:
    """FACT: what lies behind the last layer is loaded with --speculative-config only."""
    path = model(tmp_path / "m", num_nextn_predict_layers=1)
    size = tensors(path, **{f"model.layers.{n}.w": "BF16" for n in (0, 31, 32)})
    assert value(report(path, "", card()), "weights") == 3 * size
    assert value(report(path, "", card()), "weights on a card") == 2 * size
    drafts = report(path, "--speculative-config.method mtp", card())
    assert "weights on a card" not in [one.name for one in drafts.figures]


def test_without_a_card_the_rest_is_still_told(tmp_path: Path) -> None:
    """FACT: what needs a GPU is named as missing; nothing is claimed."""
    found = report(model(tmp_path / "m"))
    assert (found.verdict, found.problems) == (Verdict.NOT_COMPUTED, ())
    assert value(found, "memory of a card") is None
    assert "--memory 80GiB stands in for one" in figure(found, "memory of a card").arithmetic
    assert value(found, "a request of full length") == 16 * GIB


@pytest.mark.parametrize("kind", ["jamba", "brand_new"])
def test_an_unknown_architecture_is_not_guessed_at(tmp_path: Path, kind: str) -> None:
    """FACT: the weights are counted, the cache is not, and there is no verdict."""
    found = report(model(tmp_path / "m", model_type=kind), "", card())
    assert (found.verdict, found.problems) == (Verdict.NOT_COMPUTED, ())
    assert value(found, "weights") == 15 * GIB
    assert value(found, "KV cache a token") is None
    assert kind in figure(found, "KV cache a token").arithmetic


def test_a_draft_model_is_not_counted_and_that_is_said(tmp_path: Path) -> None:
    """FACT: what is left out of the arithmetic is a warning."""
    found = report(model(tmp_path / "m"), "--speculative-config {}", card())
    assert any("draft model of --speculative-config is not counted" in w for w in found.warnings)


@pytest.mark.parametrize(
    ("text", "size"),
    [("80GiB", 80 * GIB), ("80G", 80 * GIB), ("80GB", 80 * 10**9), ("1.5 TiB", 1536 * GIB)],
)
def test_sizes_of_cards(text: str, size: int) -> None:
    """FACT: binary and decimal units are told apart."""
    assert memory_of(text) == size


@pytest.mark.parametrize("text", ["", "80", "GiB", "0GiB", "-1GiB", "1e3GiB", "\x1b", "80GiBs"])
def test_sizes_that_are_none(text: str) -> None:
    """FACT: anything else is refused in one line."""
    with pytest.raises(ValueError, match=r"^expected a size") as caught:
        memory_of(text)
    assert str(caught.value).isprintable()


def test_of_incomplete_weights_nothing_is_computed(tmp_path: Path) -> None:
    """FACT: neither a verdict nor a number comes from weights that are not there, or broken."""
    path = model(tmp_path / "m")
    file = path / "model.safetensors"
    for content in (b"123456789", bytes(100_000)):
        file.write_bytes(content)
        _nothing(report(path, "", card()))
    file.unlink()
    index = path / "model.safetensors.index.json"
    for name in ("a.safetensors", "../../../etc/passwd"):
        named = {"metadata": {"total_size": "lots"}, "weight_map": {"w": name}}
        index.write_text(json.dumps(named))
        _nothing(report(path, "", card()))
        _nothing(report(path, "--kv-cache-memory-bytes 40G", card()))


def _nothing(found: Report) -> None:
    assert (found.verdict, found.why) == (Verdict.NOT_COMPUTED, "the weights are incomplete")
    assert found.problems
    (told,) = [figure for figure in found.figures if figure.name == "weights"]
    assert (told.value, told.arithmetic) == (None, "the weights are incomplete")
    assert not {"weights on a card"} & {figure.name for figure in found.figures}


def test_numbers_that_are_none_are_named(tmp_path: Path) -> None:
    """FACT: whatever the architecture, a model without heads and size is a problem by its keys."""
    told = {"num_attention_heads": 0, "hidden_size": -5, "num_hidden_layers": "x" * 99}
    for kind in ("llama", "nobody-knows-it"):
        found = report(model(tmp_path / kind, GIB, **{**told, "model_type": kind}), "", card())
        assert [line.partition(" in its")[0] for line in found.problems] == [
            "num_attention_heads is 0",
            "hidden_size is -5",
            f"num_hidden_layers is '{'x' * 39}",
        ]
        assert found.verdict is Verdict.NOT_COMPUTED
    hybrid = model(tmp_path / "h", model_type="mamba", num_attention_heads=0)
    assert report(hybrid, "", card()).problems == ()
