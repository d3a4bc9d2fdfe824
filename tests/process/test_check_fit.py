"""``check`` as a person or a script runs it, for models and cards that are not there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support import fake_nvml
from tests.support.fake_nvml import IDLE, LIBRARY, FakeNvml
from tests.support.models import weights
from tests.support.mounts import silent
from tests.support.simulated import ROOT, free_port
from watchdog.cli import fit
from watchdog.command_line import describe
from watchdog.config import EngineConfig
from watchdog.core.state import State

GIB = 1 << 30
UNSEEN = "".join(f"[probes.{name}]\nenabled = false\n" for name in ("conntrack", "files", "tmpfs"))
"""What ails the machine that the tests run on is its own affair."""
CUDA_SEES = 150_754_820_096 - 644_939_776
"""Bytes of an H200, less what its driver keeps: 139.8 GiB, as vLLM logs it."""


@pytest.fixture
def nvml(tmp_path: Path) -> FakeNvml:
    """Two idle cards."""
    return fake_nvml.idle(tmp_path / "nvml", 2)


@pytest.fixture
def no_gpu(tmp_path: Path) -> Mapping[str, str]:
    """An environment in which there is no library for any GPU."""
    (tmp_path / LIBRARY).write_text("no library\n")
    return {"LD_LIBRARY_PATH": str(tmp_path)}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model with Llama 8B's shape: 16 GiB of weights that take no room, 128 KiB a token."""
    path = tmp_path / "llama"
    path.mkdir()
    config = {
        "model_type": "llama",
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
    }
    (path / "config.json").write_text(json.dumps(config))
    names = [f"{number}.bin" for number in range(2)]
    for name in names:
        weights(path / name, 8 * GIB)
    return path


def check(
    folder: Path, environment: Mapping[str, str], *words: str, wrapper: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """Run ``vllm-watchdog check WORDS`` to its end, where a program ``vllm`` is on PATH."""
    bin_ = folder / "bin"
    bin_.mkdir(exist_ok=True)
    (bin_ / "vllm").write_text("#!/bin/sh\n")
    (bin_ / "vllm").chmod(0o755)
    config = folder / "watchdog.toml"
    if not config.exists():
        config.write_text(UNSEEN)
    own = {key: value for key, value in os.environ.items() if not key.startswith("VLLM_WATCHDOG")}
    own |= {"PYTHONPATH": str(ROOT), "VLLM_WATCHDOG_STATE_DIR": str(folder / "state")}
    own |= {"PATH": f"{bin_}:{own['PATH']}", "HF_HOME": str(folder / "hf")}
    return subprocess.run(
        [*wrapper, sys.executable, "-m", "watchdog", "check", *words],
        cwd=folder,
        env={**own, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def serve(model: object, *flags: str) -> tuple[str, ...]:
    """The command of an engine on a free port."""
    return ("--", "vllm", "serve", str(model), "--port", str(free_port()), *flags)


def told(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """What was printed as JSON; ``ok`` and the exit code say the same."""
    assert all("enabled: false" in line for line in done.stderr.splitlines())
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["ok"] is (done.returncode == 0)
    assert bool(found["problems"]) is (done.returncode == 1)
    return found


def figures(found: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers of the one engine by name."""
    (engine,) = found["engines"]
    return {one["name"]: one["value"] for one in engine["figures"]}


def test_a_model_that_fits_on_the_cards_here(tmp_path: Path, nvml: FakeNvml, model: Path) -> None:
    """FACT: the cards that the driver tells are counted with, less what the driver keeps."""
    flags = ("-tp", "2", "--gpu-memory-utilization", "0.5", "--max-model-len", "128K")
    found = told(check(tmp_path, nvml.environment, "--json", *serve(model, *flags)))
    numbers = figures(found)
    assert found["engines"][0]["verdict"] == "fits"
    assert numbers["memory of a card"] == CUDA_SEES
    assert numbers["vLLM's share"] == CUDA_SEES / 2
    assert (numbers["cards"], numbers["weights on a card"]) == (2, 8 * GIB)
    assert numbers["KV cache a token"] == 64 << 10
    room = CUDA_SEES // 2 - 8 * GIB
    assert numbers["maximum concurrency"] == room // (1 << 20) / 8192
    assert "cpu" not in found["engines"][0]["model"]


def test_the_text_is_for_people(tmp_path: Path, no_gpu: Mapping[str, str], model: Path) -> None:
    """FACT: what is wrong comes first, then each number with its arithmetic."""
    done = check(tmp_path, no_gpu, "--memory", "38GiB", *serve(model))
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert lines[0] == "no problems found"
    assert any(line.startswith("warning: main: tight: ") for line in lines)
    assert f"main: tight, {model}" in lines
    (token,) = [line for line in lines if line.startswith("  KV cache a token")]
    assert token.endswith("128 KiB = 32 layers x 8 KV heads x (128 + 128) x 2 bytes")
    (most,) = [line for line in lines if line.startswith("  maximum concurrency")]
    assert "at most 1.18 requests" in most


def test_a_model_that_does_not_fit_is_exit_1(
    tmp_path: Path, no_gpu: Mapping[str, str], model: Path
) -> None:
    """FACT: the first line says what is missing, and how long requests could be instead."""
    done = check(tmp_path, no_gpu, "--memory", "24GiB", *serve(model))
    assert done.returncode == 1
    line = done.stdout.splitlines()[0]
    assert line.startswith("main: a request of 131,072 tokens takes 16 GiB of KV cache, and there")
    assert "tokens fit" in line


def test_the_example_of_the_documentation(
    tmp_path: Path, no_gpu: Mapping[str, str], model: Path
) -> None:
    """FACT: docs/preflight.md shows what the command prints."""
    for file in model.glob("*.bin"):
        file.unlink()
    names = [f"model-{number:05d}-of-00004.safetensors" for number in range(1, 5)]
    size = 16_060_522_496 // 4
    for number, name in enumerate(names):
        tensor = {"dtype": "BF16", "shape": [size // 2], "data_offsets": [0, size]}
        head = json.dumps({f"w{number}": tensor}).encode()
        (model / name).write_bytes(len(head).to_bytes(8, "little") + head)
        os.truncate(model / name, 8 + len(head) + size)
    index = {"weight_map": {f"w{number}": name for number, name in enumerate(names)}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    done = check(tmp_path, no_gpu, "--memory", "24GiB", *serve(model))
    printed = done.stdout.replace(str(model), "/models/llama-3.1-8b").splitlines()
    shown = (ROOT / "docs" / "preflight.md").read_text().split("```")[1].splitlines()[2:]
    assert [line for line in shown if line not in printed] == []


def test_sizes_for_each_card(tmp_path: Path, no_gpu: Mapping[str, str], model: Path) -> None:
    """FACT: --memory may be told once for all cards, or once for each; too few are a problem."""
    short = ("--max-model-len", "8K")
    one = check(tmp_path, no_gpu, "--json", "--memory", "40GiB", *serve(model, "-tp", "4", *short))
    assert figures(told(one))["memory of a card"] == 40 * GIB
    both = ("--memory", "40GiB", "--memory", "80GiB")
    four = told(check(tmp_path, no_gpu, "--json", *both, *serve(model, "-tp", "4", *short)))
    assert four["problems"] == ["main: it needs 4 GPUs (4 tensor parallel), and may use 2 here"]


def test_without_a_gpu_the_missing_is_named(
    tmp_path: Path, no_gpu: Mapping[str, str], model: Path
) -> None:
    """FACT: what is known is told, and of the rest why it is not; that alone is no problem."""
    done = check(tmp_path, no_gpu, *serve(model, "--max-model-len", "32K"))
    assert done.returncode == 0
    words = [" ".join(line.split()) for line in done.stdout.splitlines()]
    missing = (
        "memory of a card not computed: no GPU is known here; --memory 80GiB stands in for one"
    )
    assert missing in words
    assert any(line.startswith("a request of full length 4 GiB = ") for line in words)


def test_another_process_on_the_card(tmp_path: Path, nvml: FakeNvml, model: Path) -> None:
    """FACT (G10): who holds the memory that vLLM wants is a problem, with its pid."""
    with subprocess.Popen(["sleep", "60"], env={"PATH": os.environ["PATH"]}) as stranger:
        try:
            nvml.set(IDLE)
            nvml.set({"0.process": f"{stranger.pid} {100 * GIB}", "0.memory_used": 100 * GIB})
            done = check(tmp_path, nvml.environment, *serve(model, "--max-model-len", "8K"))
        finally:
            stranger.kill()
    assert f"pid {stranger.pid} (sleep) 100.0 GiB" in done.stdout


def test_more_cards_than_there_are(tmp_path: Path, nvml: FakeNvml, model: Path) -> None:
    """FACT: cards that CUDA_VISIBLE_DEVICES hides do not count."""
    hidden = {**nvml.environment, "CUDA_VISIBLE_DEVICES": "1"}
    found = told(check(tmp_path, hidden, "--json", *serve(model, "-tp", "2")))
    assert found["problems"] == ["main: it needs 2 GPUs (2 tensor parallel), and may use 1 here"]


def test_two_engines_that_want_one_card(tmp_path: Path, nvml: FakeNvml, model: Path) -> None:
    """FACT: shares that add up to more than a card are a warning, of a standby they are not."""
    engine = '[engine.{}]\ncommand = ["vllm", "serve", "{}", "--port", "{}"]\n'
    two = "".join(engine.format(name, model, free_port()) for name in ("one", "two"))
    (tmp_path / "watchdog.toml").write_text(UNSEEN + two)
    words = ("--json", "--config", "watchdog.toml")
    found = told(check(tmp_path, nvml.environment, *words))
    line = "GPU 0: its engines want 1.80 of it together = 0.9 (one) + 0.9 (two)"
    assert f"this box: {line}" in found["warnings"]
    (tmp_path / "watchdog.toml").write_text(UNSEEN + two + "standby = true\n")
    found = told(check(tmp_path, nvml.environment, *words))
    assert not any("together" in warning for warning in found["warnings"])


def test_a_gated_model_is_said(tmp_path: Path, no_gpu: Mapping[str, str]) -> None:
    """FACT: a name that the cache has not is no problem, and nothing is claimed of it."""
    found = told(check(tmp_path, no_gpu, "--json", *serve("meta-llama/Llama-3.1-8B")))
    assert found["engines"][0]["verdict"] == "not_computed"
    assert any("would be downloaded" in line for line in found["warnings"])


def test_a_half_written_model_is_exit_1(
    tmp_path: Path, no_gpu: Mapping[str, str], model: Path
) -> None:
    """FACT: files that the index names and that are not there are told by name."""
    index = {"metadata": {"total_size": 16 * GIB}, "weight_map": {"w": "a.safetensors"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    found = told(check(tmp_path, no_gpu, "--json", *serve(model)))
    assert found["problems"] == ["main: 1 file of weights missing: a.safetensors"]


def test_of_incomplete_weights_nothing_is_claimed(
    tmp_path: Path, no_gpu: Mapping[str, str], model: Path
) -> None:
    """FACT: the headline says why nothing is computed, and no number stands for the weights."""
    index = {"metadata": {"total_size": "lots"}, "weight_map": {"w": "../../../etc/passwd"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    done = check(tmp_path, no_gpu, "--memory", "80GiB", *serve(model))
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert f"main: not computed: the weights are incomplete, {model}" in lines
    assert "names weights outside of the model's folder: ../../../etc/passwd" in lines[0]
    (told,) = [line for line in lines if line.startswith("  weights ")]
    assert " ".join(told.split()) == "weights not computed: the weights are incomplete"
    again = check(tmp_path, no_gpu, "--json", "--memory", "80GiB", *serve(model))
    found = json.loads(again.stdout)
    assert found["engines"][0]["why"] == "the weights are incomplete"
    assert figures(found)["room for the KV cache"] is None


def test_an_unexpected_failure_is_told_as_what_it_is(model: Path) -> None:
    """FACT: what goes wrong at once is not told as a mount that does not answer."""
    command = ("vllm", "serve", str(model))
    broken: Any = (("a",),)
    said = replace(describe(command, {}, {}), flags=broken)
    box = fit.Box(State(), (), (), ())
    report = fit.report_of(EngineConfig(command=command), said, box, (80 * GIB,), {})
    assert report is not None
    (line,) = report.warnings
    assert line.startswith(f"the model {model} could not be looked at: ValueError: ")
    assert "within" not in line


def test_what_is_not_understood_of_a_config_file_is_said(
    tmp_path: Path, no_gpu: Mapping[str, str], model: Path
) -> None:
    """FACT: a nested mapping, which vLLM would take, is a warning by its key."""
    (tmp_path / "c.yaml").write_text("hf-overrides:\n  max_position_embeddings: 9\n")
    found = told(check(tmp_path, no_gpu, "--json", *serve(model, "--config", "c.yaml")))
    line = "not understood in the engine's --config file, so not counted: hf-overrides"
    assert f"main: {line}" in found["warnings"]


def test_hostile_names_are_shown_and_not_obeyed(
    tmp_path: Path, no_gpu: Mapping[str, str], model: Path
) -> None:
    """FACT: no control character of a configuration or a folder reaches a terminal."""
    hostile = model.rename(tmp_path / "a\x1b[31mb")
    (hostile / "config.json").write_text(json.dumps({"model_type": "\x1b[2J\n\x07"}))
    (hostile / "0.bin").unlink()
    done = check(tmp_path, no_gpu, *serve(hostile))
    assert all(c.isprintable() or c == "\n" for c in done.stdout + done.stderr)
    assert "not known here" in done.stdout


@pytest.mark.parametrize("size", ["", "\x1b[31m"])
def test_a_size_that_is_none_is_exit_2(
    tmp_path: Path, no_gpu: Mapping[str, str], size: str
) -> None:
    """FACT: a usage error, on stderr alone."""
    done = check(tmp_path, no_gpu, f"--memory={size}", *serve("m"))
    assert (done.returncode, done.stdout) == (2, "")
    assert "expected a size as 80GiB" in done.stderr
    assert "\x1b" not in done.stderr


def test_few_descriptors_are_a_warning(
    tmp_path: Path, no_gpu: Mapping[str, str], model: Path
) -> None:
    """FACT: a hard limit below what vLLM raises its own to is told with both numbers."""
    wrapper = ("sh", "-c", 'ulimit -n 1024; exec "$@"', "sh")
    done = check(tmp_path, no_gpu, "--json", *serve(model), wrapper=wrapper)
    (line,) = [line for line in told(done)["warnings"] if "ulimit -Hn" in line]
    assert "may open 1,024 files here" in line
    assert "65,535" in line


def test_the_box_is_told_in_numbers(tmp_path: Path, no_gpu: Mapping[str, str], model: Path) -> None:
    """FACT: shared memory, files and connections have a number with its arithmetic each."""
    (tmp_path / "watchdog.toml").write_text("")
    done = check(tmp_path, no_gpu, "--json", *serve(model, "-tp", "2"))
    box = {one["name"]: one for one in json.loads(done.stdout)["box"]}
    assert box["shared memory wanted"]["value"] == (240 + 10 * 16) << 20
    assert box["room for open files"]["value"] > 0
    assert all(one["arithmetic"] for one in box.values())


@pytest.mark.parametrize(
    ("words", "code", "told_of"),
    [
        (("vllm", "serve", "hung/m"), 0, "the model hung/m could not be looked at within 3 s"),
        (("hung/vllm", "serve", "/m"), 1, "the program 'hung/vllm' cannot be looked at within 3 s"),
        (
            ("vllm", "serve", "m", "--config", "hung/c"),
            2,
            "--config file 'hung/c' within 3 s: does",
        ),
    ],
)
def test_a_mount_that_hangs_does_not_hang_it(
    tmp_path: Path, no_gpu: Mapping[str, str], words: tuple[str, ...], code: int, told_of: str
) -> None:
    """FACT: what lies on it is given up after some seconds, by name; the rest is still told."""
    (tmp_path / "watchdog.toml").write_text(f"{UNSEEN}[probes.driver]\nenabled = false\n")
    program = tmp_path / "vllm"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    command = [str(program) if word == "vllm" else word for word in words]
    with silent(tmp_path / "hung"):
        done = check(tmp_path, no_gpu, "--config", "watchdog.toml", "--", *command)
    assert done.returncode == code, done.stderr
    assert told_of in done.stdout + done.stderr
    assert ("this box" in done.stdout) is (code == 0)


def test_a_config_file_is_as_the_engine_finds_it(
    tmp_path: Path, no_gpu: Mapping[str, str], model: Path
) -> None:
    """FACT: a relative --config is looked for where the engine starts, not where we do."""
    (model / "vllm.yaml").write_text("max-model-len: 8K\n")
    command = json.dumps([*serve(".")[1:], "--config", "vllm.yaml"])
    engine = f"[engine.main]\ncwd = {json.dumps(str(model))}\ncommand = {command}\n"
    (tmp_path / "watchdog.toml").write_text(UNSEEN + engine)
    found = told(check(tmp_path, no_gpu, "--json", "--config", "watchdog.toml"))
    assert figures(found)["length of a request"] == 8192


def test_a_program_that_is_no_vllm_has_no_numbers(
    tmp_path: Path, no_gpu: Mapping[str, str]
) -> None:
    """FACT: of another program nothing is computed."""
    done = check(tmp_path, no_gpu, "--json", "--", sys.executable, "--port", str(free_port()))
    assert told(done)["engines"] == []
