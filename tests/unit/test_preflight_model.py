"""What lies in a model's folder: weights by index, by header or by file, and what is wrong."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.models import FIRST, GB, snapshot, weights
from watchdog.command_line import describe
from watchdog.preflight import gguf, safetensors
from watchdog.preflight.model import Model, model_of
from watchdog.preflight.weights import of_folder
from watchdog.preflight.wishes import wishes_of

CONFIG = {"model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 2}


def tensors(path: Path, dtype: str = "BF16", size: int = 1 << 20, *, whole: bool = True) -> None:
    """A safetensors file with one tensor of ``size`` bytes, which take no room."""
    head = json.dumps({"__metadata__": {"format": "pt"}, "w": _tensor(dtype, size)}).encode()
    path.write_bytes(len(head).to_bytes(8, "little") + head)
    if whole:
        os.truncate(path, 8 + len(head) + size)


def _tensor(dtype: str, size: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": [size], "data_offsets": [0, size]}


def folder(path: Path, config: Mapping[str, Any] | None = None) -> Path:
    """A folder with a configuration."""
    path.mkdir()
    (path / "config.json").write_text(json.dumps(CONFIG if config is None else config))
    return path


def indexed(path: Path, names: tuple[str, ...], total: int) -> None:
    """An index that names those files."""
    mapped = {f"layer.{number}": name for number, name in enumerate(names)}
    content = {"metadata": {"total_size": total}, "weight_map": mapped}
    (path / "model.safetensors.index.json").write_text(json.dumps(content))


def model(name: object, *flags: str, **environment: str) -> Model:
    """What ``vllm serve NAME`` finds."""
    said = describe(["vllm", "serve", str(name), *flags], {}, {})
    return model_of(said, wishes_of(said), environment, None)


def test_an_index_says_which_files_count(tmp_path: Path) -> None:
    """FACT: files that the index does not name are not loaded, so they do not count."""
    path = folder(tmp_path / "m")
    for name in ("a.safetensors", "b.safetensors", "other.safetensors"):
        tensors(path / name)
    indexed(path, ("a.safetensors", "b.safetensors"), 2 << 20)
    found = model(path)
    assert found.weights is not None
    assert (found.weights.bytes, found.weights.files, found.problems) == (2 << 20, 2, ())
    assert found.weights.how == "2 files of model.safetensors.index.json"


def test_files_that_the_index_names_and_are_missing(tmp_path: Path) -> None:
    """FACT: they are a problem by name, and the size is that of the index."""
    path = folder(tmp_path / "m")
    tensors(path / "a.safetensors")
    indexed(path, ("a.safetensors", *(f"{n}.safetensors" for n in range(5))), 6 << 20)
    found = model(path)
    assert found.weights is not None
    assert found.weights.bytes == 6 << 20
    (line,) = found.problems
    expected = "5 files of weights missing: 0.safetensors, 1.safetensors, 2.safetensors and 2 more"
    assert line == expected


@pytest.mark.parametrize("text", ['{"weight_map": {"a": "model-00001', "[]", ""])
def test_an_index_that_is_cut_off_is_a_problem(tmp_path: Path, text: str) -> None:
    """FACT: the files that lie beside it may be some of them only."""
    (tmp_path / "model.safetensors.index.json").write_text(text)
    weights(tmp_path / "model-00001-of-00001.bin", 1000)
    found = of_folder(tmp_path)
    assert found is not None
    assert found.problems == ("model.safetensors.index.json is no whole index of weights",)
    assert not found.whole


@pytest.mark.parametrize("kind", ["bin", "gguf", "safetensors"])
def test_parts_that_are_not_there_are_missing(tmp_path: Path, kind: str) -> None:
    """FACT: also without an index: the names of the others say how many there are."""
    for number in (1, 3):
        (tmp_path / f"model-{number:05d}-of-00003.{kind}").write_bytes(b"x" * 100)
    found = of_folder(tmp_path)
    assert found is not None
    assert found.missing == f"1 file of weights missing: model-00002-of-00003.{kind}"


def test_a_file_that_is_cut_off_is_a_problem(tmp_path: Path) -> None:
    """FACT: a half-written file is known by its header, before vLLM dies of it."""
    path = folder(tmp_path / "m")
    tensors(path / "model.safetensors", whole=False)
    (line,) = model(path).problems
    assert line.startswith("model.safetensors is cut off: ")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"1234",
        b"version https://git-lfs.github.com/spec/v1\n",
        b"\xff" * 8,
        (1 << 20).to_bytes(8, "little"),
        b"\x02\0\0\0\0\0\0\0[]",
    ],
)
def test_what_is_no_safetensors_file(tmp_path: Path, content: bytes) -> None:
    """FACT: garbage under that name is told as such."""
    path = folder(tmp_path / "m")
    (path / "model.safetensors").write_bytes(content)
    (line,) = model(path).problems
    assert line.startswith("model.safetensors is no whole safetensors file: ")


def test_without_an_index_the_first_family_counts(tmp_path: Path) -> None:
    """FACT: safetensors go before .bin files, Mistral's own before both; training files never."""
    path = folder(tmp_path / "m")
    weights(path / "optimizer.bin", 9 * GB)
    weights(path / "pytorch_model.bin", 3 * GB)
    bins = of_folder(path)
    assert bins is not None
    assert bins.bytes == 3 * GB
    tensors(path / "model.safetensors", size=2 << 20)
    plain = of_folder(path)
    assert plain is not None
    assert plain.bytes == 2 << 20
    tensors(path / "consolidated.safetensors", size=1 << 20)
    own = of_folder(path)
    assert own is not None
    assert own.bytes == 1 << 20


def test_an_empty_folder_has_no_weights(tmp_path: Path) -> None:
    """FACT: without weights and configuration both are named; dummy weights need no files."""
    path = tmp_path / "m"
    path.mkdir()
    assert model(path).problems == (f"no config.json in {path}", f"no weights in {path}")
    assert model(path, "--load-format", "dummy").problems == (f"no config.json in {path}",)


@pytest.mark.parametrize(
    "text", ["", "[]", "{", "null", "[" * 100_000, '{"a": ' * 5000, "\xff", "9" * 5000]
)
def test_a_broken_configuration_is_a_problem(tmp_path: Path, text: str) -> None:
    """FACT: what is no JSON object, however deep, is told in one line."""
    path = folder(tmp_path / "m")
    tensors(path / "model.safetensors")
    (path / "config.json").write_bytes(text.encode("latin-1"))
    (line,) = model(path).problems
    assert line.endswith("config.json cannot be read: expected a JSON object of at most 4 MiB")


def test_a_pipe_hangs_nobody(tmp_path: Path) -> None:
    """FACT: files that are none are not opened for long."""
    path = tmp_path / "m"
    path.mkdir()
    os.mkfifo(path / "model.safetensors")
    os.mkfifo(path / "config.json")
    os.mkfifo(path / "model.safetensors.index.json")
    assert len(model(path).problems) == 3


@pytest.mark.parametrize("name", ["../../../etc/passwd", "/etc/passwd", "a/../../b"])
def test_a_path_that_leaves_the_folder_is_a_problem(tmp_path: Path, name: str) -> None:
    """FACT: it is named, not followed, and with it nothing is known of the weights."""
    path = folder(tmp_path / "m")
    tensors(path / "model.safetensors")
    indexed(path, (name, "model.safetensors"), 1)
    found = model(path)
    outside = "model.safetensors.index.json names weights outside of the model's folder"
    assert (found.problems, found.incomplete) == ((f"{outside}: {name}",), True)


def test_files_without_weights_are_a_problem(tmp_path: Path) -> None:
    """FACT: files of no bytes, and safetensors of no tensors, are no weights."""
    path = folder(tmp_path / "m")
    (path / "pytorch_model.bin").touch()
    assert model(path).problems == ("pytorch_model.bin is empty",)
    (path / "model.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{}")
    found = model(path)
    assert found.problems == ("there are no weights in model.safetensors",)
    assert found.incomplete


def test_a_name_is_looked_up_in_the_cache(tmp_path: Path) -> None:
    """FACT: a hub's name is where refs and snapshots of the cache lead, with its commit."""
    made = snapshot(tmp_path / "hub", FIRST, "a")
    (made / "config.json").unlink()
    (made / "config.json").write_text(json.dumps(CONFIG))
    found = model("org/model", HF_HOME=str(tmp_path))
    assert found.place == f"{made}, commit {FIRST[:12]}"
    assert found.config is not None


def test_what_a_cache_lacks_is_downloaded(tmp_path: Path) -> None:
    """FACT: a snapshot without its weights is no problem, unless nothing may be downloaded."""
    made = snapshot(tmp_path / "hub", FIRST, "a")
    (made / "config.json").unlink()
    (made / "config.json").write_text(json.dumps(CONFIG))
    (made / "model.safetensors").unlink()
    found = model("org/model", HF_HOME=str(tmp_path))
    assert (found.problems, found.notes) == ((), (f"no weights in {made}: vLLM would download it",))
    indexed(made, ("a.safetensors",), GB)
    found = model("org/model", HF_HOME=str(tmp_path))
    expected = "1 file of weights missing: a.safetensors"
    assert (found.problems, found.notes) == ((), (f"{expected}: vLLM would download it",))
    assert found.weights is not None
    assert (found.weights.bytes, found.incomplete) == (GB, False)
    offline = model("org/model", HF_HOME=str(tmp_path), HF_HUB_OFFLINE="1")
    assert (offline.problems, offline.notes, offline.incomplete) == ((expected,), (), True)


def test_a_name_that_is_not_here_is_said(tmp_path: Path) -> None:
    """FACT: it would be downloaded, which is no problem; offline it is one."""
    found = model("org/gated", HF_HOME=str(tmp_path))
    assert (found.problems, found.weights) == ((), None)
    assert "org/gated is not here: it would be downloaded" in found.notes[0]
    offline = model("org/gated", HF_HOME=str(tmp_path), HF_HUB_OFFLINE="1")
    assert "HF_HUB_OFFLINE forbids to download it" in offline.problems[0]
    assert "cannot find the model directory" in model(tmp_path / "nowhere").problems[0]


def test_mistrals_own_configuration_counts(tmp_path: Path) -> None:
    """FACT: params.json stands in for config.json; one with experts is not guessed at."""
    path = tmp_path / "m"
    path.mkdir()
    tensors(path / "consolidated.safetensors")
    params = {"dim": 4096, "n_layers": 32, "n_heads": 32, "n_kv_heads": 8, "head_dim": 128}
    (path / "params.json").write_text(json.dumps(params))
    found = model(path)
    assert found.config is not None
    assert (found.config["model_type"], found.config["num_key_value_heads"]) == ("mistral", 8)
    (path / "params.json").write_text(json.dumps({**params, "moe": {"num_experts": 8}}))
    odd = model(path)
    assert odd.config is not None
    assert odd.config["model_type"] != "mistral"


def pair(key: str, kind: int, value: bytes) -> bytes:
    """One entry of a GGUF file."""
    return text(key) + struct.pack("<I", kind) + value


def text(value: str) -> bytes:
    """A string of a GGUF file."""
    return struct.pack("<Q", len(value)) + value.encode()


def gguf_file(path: Path, size: int = GB) -> None:
    """A Llama with a list of tags before its numbers and a vocabulary after them."""
    numbers = {"block_count": 32, "embedding_length": 4096, "context_length": 8192}
    heads = {"attention.head_count": 32, "attention.head_count_kv": 8}
    pairs = [
        pair("general.architecture", 8, text("llama")),
        pair("general.tags", 9, struct.pack("<IQ", 8, 2) + text("a") + text("b")),
        *(pair(f"llama.{k}", 4, struct.pack("<I", v)) for k, v in {**numbers, **heads}.items()),
        pair("tokenizer.ggml.tokens", 9, struct.pack("<IQ", 8, 1 << 40)),
    ]
    head = b"GGUF" + struct.pack("<IQQ", 3, 291, len(pairs))
    path.write_bytes(head + b"".join(pairs))
    os.truncate(path, size)


def test_a_gguf_file_tells_its_shape(tmp_path: Path) -> None:
    """FACT: one file is a model: its size are the weights, its table the configuration."""
    path = tmp_path / "m.gguf"
    gguf_file(path)
    found = model(path)
    assert found.weights is not None
    assert (found.weights.bytes, found.problems) == (GB, ())
    assert found.config is not None
    assert found.config["num_key_value_heads"] == 8
    assert found.config["max_position_embeddings"] == 8192
    assert "only with a plug-in" in found.notes[0]


def test_a_folder_of_gguf_files_needs_the_plug_in_too(tmp_path: Path) -> None:
    """FACT: the note is the same as of a single file; other weights have none."""
    path = folder(tmp_path / "m")
    gguf_file(path / "m.gguf")
    assert model(path).notes == model(path / "m.gguf").notes
    tensors(path / "model.safetensors")
    assert model(path).notes == ()


def test_parts_of_a_gguf_model_belong_together(tmp_path: Path) -> None:
    """FACT: the first of three files stands for all, and a missing one is a problem."""
    for number in (1, 3):
        gguf_file(tmp_path / f"m-0000{number}-of-00003.gguf")
    found = model(tmp_path / "m-00001-of-00003.gguf")
    assert found.weights is not None
    assert found.weights.bytes == 2 * GB
    assert found.problems == ("1 file of weights missing: m-00002-of-00003.gguf",)


def test_a_file_that_is_no_gguf_is_a_problem(tmp_path: Path) -> None:
    """FACT: vLLM loads folders and repositories, and a single file only as GGUF."""
    path = tmp_path / "m.bin"
    weights(path, GB)
    assert model(path).problems[0].endswith("and vLLM loads a folder or a repository")


@given(st.binary(max_size=200))
def test_no_gguf_table_breaks_it(tmp_path_factory: pytest.TempPathFactory, tail: bytes) -> None:
    """FACT: whatever follows the magic is read to an end."""
    path = tmp_path_factory.getbasetemp() / f"fuzz-{os.getpid()}.gguf"
    path.write_bytes(b"GGUF\x03\0\0\0" + tail)
    found = gguf.metadata(path)
    assert found is None or isinstance(found, dict)


@given(st.binary(max_size=200))
def test_no_header_breaks_it(tmp_path_factory: pytest.TempPathFactory, head: bytes) -> None:
    """FACT: whatever stands for a header, it is a header or broken."""
    path = tmp_path_factory.getbasetemp() / f"fuzz-{os.getpid()}.safetensors"
    path.write_bytes(len(head).to_bytes(8, "little") + head)
    found = safetensors.header(path)
    assert found is not None
    assert found.broken or found.length >= 8


def test_a_header_over_the_limit_is_not_read(tmp_path: Path) -> None:
    """FACT: of a file whose header has no place in the rest of the bounds only the size counts."""
    tensors(tmp_path / "m.safetensors")
    assert safetensors.header(tmp_path / "m.safetensors", limit=4) is None
