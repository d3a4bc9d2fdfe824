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


def report(path: Path, flags: str = "", *cards: Card) -> Report:
    """What a preflight of ``vllm serve PATH FLAGS`` says."""
    said = describe(["vllm", "serve", str(path), *flags.split()], {}, {})
    return preflight(said, {}, None, cards)


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


def test_weights_that_shrink_while_they_load(tmp_path: Path) -> None:
    """FACT: 32 bits become 16, --quantization at best so much; quantised files stay as they are."""
    path = model(tmp_path / "m", 16 * GIB)
    assert value(report(path, "--quantization fp8", card()), "weights on a card") == 8 * GIB
    assert value(report(path, "-q bitsandbytes", card()), "weights on a card") == 4 * GIB
    done = model(tmp_path / "q", 16 * GIB, quantization_config={"quant_method": "fp8"})
    names = [one.name for one in report(done, "--quantization fp8", card()).figures]
    assert "weights on a card" not in names
    assert value(report(path, "--cpu-offload-gb 10", card()), "weights on a card") == 6 * GIB


def test_32_bits_are_loaded_as_16(tmp_path: Path) -> None:
    """FACT: a checkpoint of 32-bit numbers takes half its size, unless the flag keeps them."""
    path = model(tmp_path / "m")
    (path / "pytorch_model.bin").unlink()
    size = 8 << 20
    tensor = {"dtype": "F32", "shape": [1], "data_offsets": [0, size]}
    head = json.dumps({"w": tensor}).encode()
    file = path / "model.safetensors"
    file.write_bytes(len(head).to_bytes(8, "little") + head + bytes(size))
    assert value(report(path, "", card()), "weights on a card") == size // 2
    names = [one.name for one in report(path, "--dtype float32", card()).figures]
    assert "weights on a card" not in names


def test_layers_for_drafts_are_left_on_the_disk(tmp_path: Path) -> None:
    """FACT: what lies behind the last layer is loaded with --speculative-config only."""
    path = model(tmp_path / "m", num_nextn_predict_layers=1)
    (path / "pytorch_model.bin").unlink()
    size = 1 << 20
    names = {f"model.layers.{n}.w": n for n in (0, 31, 32)}
    tensors = {
        name: {"dtype": "BF16", "shape": [1], "data_offsets": [at * size, (at + 1) * size]}
        for at, name in enumerate(names)
    }
    head = json.dumps(tensors).encode()
    file = path / "model.safetensors"
    file.write_bytes(len(head).to_bytes(8, "little") + head + bytes(3 * size))
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
