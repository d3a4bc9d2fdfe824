"""Fingerprints of models: real folders and snapshots, and folders that mean harm."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.models import FIRST, GB, SECOND, folder, shard, snapshot, weights
from watchdog.model_files import Fingerprint, Reader, asked_of, differences


def look(
    model: str, *flags: str, env: Mapping[str, str] | None = None, cwd: str | None = None
) -> Fingerprint | None:
    """The fingerprint of what ``vllm serve MODEL FLAGS`` would load."""
    around = dict(env or {})
    return Reader().read(asked_of(("vllm", "serve", model, *flags), around, cwd), around, cwd)


def key(*command: str) -> str:
    """What the command asks for."""
    return asked_of(command, {}, None).key


def test_a_folder_is_read_by_names_sizes_and_small_files(tmp_path: Path) -> None:
    """FACT: 20 GB of weights are told by name and size, small files by their hash."""
    found = look(str(folder(tmp_path / "m")))
    assert found is not None
    assert found.parts[shard(2)].size == 5 * GB
    assert found.parts[shard(2)].digest == ""
    assert len(found.parts["config.json"].digest) == 64
    assert set(found.parts) == {
        *("config.json", "tokenizer.json", "model.safetensors.index.json"),
        *(shard(number) for number in range(1, 5)),
    }


def test_a_relative_folder_is_below_the_engines_own(tmp_path: Path) -> None:
    """FACT: the path counts from where the engine starts, not from where we do."""
    folder(tmp_path / "m")
    assert look("m", cwd=str(tmp_path)) == look("./m", cwd=str(tmp_path))
    assert look("m", cwd=str(tmp_path / "elsewhere")) is None


def test_what_differs_is_told_in_words(tmp_path: Path) -> None:
    """FACT: the sentence names the files, and both sizes of weights."""
    path = folder(tmp_path / "m")
    before = look(str(path))
    assert differences(before, look(str(path))) == ""
    (path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "b"}}')
    weights(path / shard(2), 4_700_000_000)
    (path / shard(3)).unlink()
    (path / "generation_config.json").write_text("{}")
    assert differences(before, look(str(path))) == (
        f"{shard(2)} 4.7 GB, was 5.0 GB; {shard(3)} is gone; "
        "model.safetensors.index.json differs; generation_config.json is new"
    )


def test_sizes_that_look_alike_are_told_in_bytes(tmp_path: Path) -> None:
    """FACT: one byte more is a difference that can be read."""
    path = folder(tmp_path / "m", shards=1)
    before = look(str(path))
    weights(path / shard(1, 1), 5 * GB + 1)
    assert differences(before, look(str(path))) == (
        f"{shard(1, 1)} 5000000001 bytes, was 5000000000 bytes"
    )


def test_many_differences_are_counted(tmp_path: Path) -> None:
    """FACT: a line stays a line, whatever was replaced."""
    path = folder(tmp_path / "m", shards=60)
    before = look(str(path))
    for number in range(1, 61):
        weights(path / shard(number, 60), 1)
    assert differences(before, look(str(path))).endswith("; and 56 more")


def test_what_training_leaves_is_no_model(tmp_path: Path) -> None:
    """FACT: an optimizer's state, a README and logs change without changing the model."""
    path = folder(tmp_path / "m")
    before = look(str(path))
    for name in ("README.md", "optimizer.pt", "training_args.bin", "pytorch_model.bin", "log.txt"):
        weights(path / name, 100)
    assert differences(before, look(str(path))) == ""


def test_a_change_is_seen_by_who_looked_before(tmp_path: Path) -> None:
    """FACT: a hash is remembered for a file as it was, and taken anew of one that changed."""
    path, reader = folder(tmp_path / "m"), Reader()
    asked = asked_of(("vllm", "serve", str(path)), {}, None)
    before = reader.read(asked, {})
    (path / "config.json").write_text('{"model_type": "other"}')
    assert differences(before, reader.read(asked, {})) == "config.json differs"


def test_weights_of_the_older_sort(tmp_path: Path) -> None:
    """FACT: without safetensors the pickled weights are the model, what training left is not."""
    path = folder(tmp_path / "m", shards=0)
    for name in ("pytorch_model.bin", "training_args.bin", "optimizer.pt"):
        weights(path / name, 100)
    found = look(str(path))
    assert found is not None
    assert [name for name in found.parts if not name.endswith(".json")] == ["pytorch_model.bin"]


def test_one_file_is_a_model(tmp_path: Path) -> None:
    """FACT: a GGUF file is its name and size."""
    weights(tmp_path / "m.gguf", 3 * GB)
    before = look(str(tmp_path / "m.gguf"))
    weights(tmp_path / "m.gguf", 4 * GB)
    after = look(str(tmp_path / "m.gguf"))
    assert differences(before, after) == "m.gguf 4.0 GB, was 3.0 GB"


def test_the_tokenizer_may_be_elsewhere(tmp_path: Path) -> None:
    """FACT: --tokenizer is part of the model, under a name of its own."""
    path, other = folder(tmp_path / "m"), folder(tmp_path / "t")
    before = look(str(path), "--tokenizer", str(other))
    (other / "tokenizer.json").write_text('{"other": 1}')
    after = look(str(path), "--tokenizer", str(other))
    assert differences(before, after) == "tokenizer: tokenizer.json differs"


# --- hubs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variable", "below"),
    [
        ("HF_HUB_CACHE", ""),
        ("HUGGINGFACE_HUB_CACHE", ""),
        ("HF_HOME", "hub"),
        ("XDG_CACHE_HOME", "huggingface/hub"),
        ("HOME", ".cache/huggingface/hub"),
    ],
)
def test_the_cache_is_where_the_environment_says(tmp_path: Path, variable: str, below: str) -> None:
    """FACT: a hub's model is found in every place where its library keeps it."""
    made = snapshot(tmp_path / below, FIRST, "a")
    found = look("org/model", env={variable: str(tmp_path)})
    assert found is not None
    assert (found.place, found.commit) == (str(made), FIRST)
    assert found.parts["model.safetensors"].size == GB


def test_a_hub_that_moved_on(tmp_path: Path) -> None:
    """FACT: weights of the same size and another content are told by the names of their blobs."""
    env = {"HF_HUB_CACHE": str(tmp_path)}
    snapshot(tmp_path, FIRST, "a")
    before = look("org/model", env=env)
    snapshot(tmp_path, SECOND, "b")
    assert differences(before, look("org/model", env=env)) == (
        "commit 222222222222, was 111111111111; model.safetensors has other contents"
    )
    assert differences(before, look("org/model", "--revision", FIRST, env=env)) == ""


def test_another_commit_of_the_same_files_is_no_difference(tmp_path: Path) -> None:
    """FACT: a new README on the hub changes no model."""
    env = {"HF_HUB_CACHE": str(tmp_path)}
    snapshot(tmp_path, FIRST, "a")
    before = look("org/model", env=env)
    snapshot(tmp_path, SECOND, "a")
    assert differences(before, look("org/model", env=env)) == ""


def test_a_snapshot_only_grows(tmp_path: Path) -> None:
    """FACT: files of a commit that are fetched when they are needed are no difference."""
    env = {"HF_HUB_CACHE": str(tmp_path)}
    made = snapshot(tmp_path, FIRST, "a")
    before = look("org/model", env=env)
    (made / "generation_config.json").write_text("{}")
    assert differences(before, look("org/model", env=env)) == ""


def test_weights_in_a_download_dir(tmp_path: Path) -> None:
    """FACT: with --download-dir both caches are looked at; a --config file may say so."""
    snapshot(tmp_path / "d", FIRST, "b", ref="v2")
    flags = ("--download-dir", str(tmp_path / "d"), "--revision", "v2")
    found = look("org/model", *flags)
    assert found is not None
    hub = snapshot(tmp_path / "h", FIRST, "a", ref="v2")
    (hub / "generation_config.json").write_text("{}")
    both = look("org/model", *flags, env={"HF_HUB_CACHE": str(tmp_path / "h")})
    assert both is not None
    assert both.parts.keys() - found.parts.keys() == {"generation_config.json"}
    assert both.parts["model.safetensors"].blob == "b" * 64
    (tmp_path / "c.yaml").write_text(f"download-dir: {tmp_path / 'd'}  # big\nrevision: 'v2'\n")
    assert look("org/model", "--config", str(tmp_path / "c.yaml")) == found


@pytest.mark.parametrize(
    "model", ["org/model", "s3://bucket/model", "org/model:Q4_K_M", "../../etc", "a\0b", "x" * 5000]
)
def test_what_cannot_be_found_is_unknown(tmp_path: Path, model: str) -> None:
    """FACT: no file, no object store and no nonsense makes a claim."""
    found = look(model, env={"HF_HUB_CACHE": str(tmp_path)}, cwd=str(tmp_path / "none"))
    assert found is None
    assert differences(look(str(folder(tmp_path / "m"))), found) == ""
    assert differences(found, look(str(folder(tmp_path / "m")))) == ""


def test_a_ref_leads_nowhere(tmp_path: Path) -> None:
    """FACT: a ref that names no commit, or one that is not there, is unknown."""
    made = snapshot(tmp_path, FIRST, "a")
    for text in ("../../../etc", "0" * 40, "", "\n" * 10_000):
        (tmp_path / "models--org--model/refs/main").write_text(text)
        assert look("org/model", env={"HF_HUB_CACHE": str(tmp_path)}) is None
    shutil.rmtree(made)


# --- what means harm ------------------------------------------------------------------------------


def test_a_folder_that_means_harm(tmp_path: Path) -> None:
    """FACT: pipes, loops, folders and huge files by the names of small ones tell nothing."""
    path = folder(tmp_path / "m")
    before = look(str(path))
    for name in ("config.json", "tokenizer.json", "model.safetensors.index.json", shard(1)):
        (path / name).unlink()
    os.mkfifo(path / "config.json")
    (path / "tokenizer.json").symlink_to("tokenizer.json")
    (path / "model.safetensors.index.json").mkdir()
    (path / shard(1)).symlink_to("nowhere")
    found: list[Fingerprint | None] = []
    thread = threading.Thread(target=lambda: found.append(look(str(path))), daemon=True)
    thread.start()
    thread.join(10.0)
    assert len(found) == 1
    assert differences(before, found[0]) == ""


def test_a_huge_configuration_is_only_weighed(tmp_path: Path) -> None:
    """FACT: nobody reads a terabyte because it is called config.json."""
    path = folder(tmp_path / "m")
    weights(path / "config.json", 10**12)
    found = look(str(path))
    assert found is not None
    assert (found.parts["config.json"].size, found.parts["config.json"].digest) == (10**12, "")


def test_a_folder_with_too_much_in_it_is_unknown(tmp_path: Path) -> None:
    """FACT: the look ends at ten thousand entries."""
    path = folder(tmp_path / "m")
    for number in range(10_000):
        (path / f"{number}.safetensors").symlink_to("x")
    assert look(str(path)) is None


def test_a_name_that_is_no_text(tmp_path: Path) -> None:
    """FACT: a name that is not UTF-8, or has two lines, is told on one line that can be written."""
    path = folder(tmp_path / "m")
    before = look(str(path))
    weights(Path(os.fsdecode(os.fsencode(path) + b"/\xff\n.safetensors")), 1)
    words = differences(before, look(str(path)))
    assert words == "\\udcff\\n.safetensors is new"


# --- what is asked for ----------------------------------------------------------------------------


def test_other_flags_ask_for_the_same() -> None:
    """FACT: the port, the memory and a key change no model; spelling does not either."""
    asked = key("vllm", "serve", "m", "--served-model-name", "a")
    same = ("--served_model_name=a", "--port", "9", "--api-key", "s3cret", "-tp", "2")
    assert key("vllm", "serve", "m", *same) == asked
    assert key("/opt/bin/vllm", "serve", "m", "--served-model-name", "a") == asked


@pytest.mark.parametrize(
    "flags",
    [
        ("--served-model-name", "b"),
        ("--revision", "v2"),
        ("--max-model-len", "100"),
        ("--tokenizer", "t"),
        ("-q", "fp8"),
    ],
)
def test_a_flag_about_the_model_is_the_operators_word(flags: tuple[str, ...]) -> None:
    """FACT: what decides what is served asks for something else."""
    assert key("vllm", "serve", "m", *flags) != key("vllm", "serve", "m")


def test_every_word_counts_where_nothing_is_understood() -> None:
    """FACT: of a script all words count, but for keys."""
    assert key("sh", "run.sh", "a") != key("sh", "run.sh", "b")
    assert key("sh", "run.sh", "--api-key", "a") == key("sh", "run.sh", "--api-key", "b")
    assert key("") == key("")


def test_a_length_that_is_fitted_is_known_as_such() -> None:
    """FACT: with auto the length depends on the memory that is free."""
    for words in (("--max-model-len", "auto"), ("--max-model-len=-1",), ("--max-model-len", "-1")):
        assert asked_of(("vllm", "serve", "m", *words), {}, None).fitted
    assert not asked_of(("vllm", "serve", "m", "--max-model-len", "4k"), {}, None).fitted
