"""What an engine's own command says about it."""

import os
import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchdog.command_line import CommandError, EngineCommand, Form, describe, redacted
from watchdog.config import Config, EngineConfig
from watchdog.daemon.configured import described
from watchdog.daemon.once import OneTarget

EVERYWHERE = "0.0.0.0"  # noqa: S104 - never bound here
API_SERVER = "python -m vllm.entrypoints.openai.api_server"


def read(line: str) -> EngineCommand:
    """Describe a command written as in a shell, with empty environments."""
    return describe(shlex.split(line), {}, {})


@pytest.mark.parametrize(
    ("line", "form"),
    [
        ("vllm serve m --port 9", Form.SERVE),
        ("/opt/venv/bin/vllm serve m --port=9", Form.SERVE),
        ("python3 -m vllm.entrypoints.cli.main serve m --port 9", Form.SERVE),
        (f"{API_SERVER} --model m --port 9", Form.API_SERVER),
        ("python -m watchdog.simulator --model m --port 9", Form.SIMULATOR),
        ("env CUDA_LAUNCH_BLOCKING=1 vllm serve m --port 9", Form.SERVE),
        ("numactl --cpunodebind 0 --port 7 vllm serve m --port 9", Form.SERVE),
        ("my-engine --model m --port 9", Form.OTHER),
    ],
)
def test_the_forms_of_an_engine(line: str, form: Form) -> None:
    """Port, model and name are read from every form, whatever stands in front of it."""
    engine = read(line)
    assert engine.form is form
    assert (engine.endpoint.port, engine.model, engine.endpoint.served_name) == (9, "m", "m")


def test_defaults_are_those_of_vllm() -> None:
    """Without flags vLLM serves on port 8000 of all addresses, under the model's own name."""
    engine = read("vllm serve org/model")
    assert (engine.bind_host, engine.endpoint.base_url) == (EVERYWHERE, "http://127.0.0.1:8000")
    assert (engine.endpoint.served_name, engine.endpoint.api_key) == ("org/model", "")
    assert (engine.tensor_parallel, engine.data_parallel, engine.max_model_len) == (1, 1, None)


def test_every_flag_that_matters() -> None:
    """Underscores, dashes, equal signs, short names and several values are vLLM's own."""
    engine = read(
        "vllm serve m --served_model_name a b --api_key=k --root-path /x/ --shutdown-timeout 30"
        " -tp 2 --data_parallel_size=3 --gpu-memory-utilization .85 --max-model-len 32k"
        " --ssl-certfile c --ssl-keyfile=k --uds /run/e.sock"
    )
    assert engine.served_names == ("a", "b")
    assert (engine.tensor_parallel, engine.data_parallel) == (2, 3)
    assert (engine.gpu_memory_utilization, engine.max_model_len) == (0.85, 32000)
    assert engine.shutdown_timeout == 30.0
    endpoint = engine.endpoint
    assert (endpoint.served_name, endpoint.api_key, endpoint.root_path) == ("a", "k", "/x")
    assert (endpoint.tls, endpoint.uds) == (True, "/run/e.sock")


def test_the_last_of_repeated_flags_wins() -> None:
    """As in argparse."""
    assert read("vllm serve m --port 1 --port=2").endpoint.port == 2


@pytest.mark.parametrize(
    ("host", "connect"),
    [
        (EVERYWHERE, "127.0.0.1"),
        ("::", "::1"),
        ("[::]", "::1"),
        ("localhost", "127.0.0.1"),
        ("10.1.2.3", "10.1.2.3"),
        ("''", "127.0.0.1"),
    ],
)
def test_a_wildcard_is_reached_over_loopback(host: str, connect: str) -> None:
    """One connects to an address that the engine answers on."""
    assert read(f"vllm serve m --host {host}").endpoint.host == connect


@pytest.mark.parametrize(
    "line",
    [
        "vllm serve --port 9 m",
        "vllm serve --enforce-eager m",
        "vllm serve --no-enable-prefix-caching m",
        "vllm serve --max-num-seqs 4 m",
        "vllm serve --lora-modules a=b m",
        "vllm serve --port=9 -- m",
        "vllm serve --model m",
    ],
)
def test_the_model_may_stand_anywhere(line: str) -> None:
    """Vllm takes the model before, between and behind its flags."""
    assert read(line).model == "m"


def test_a_key_is_never_taken_for_the_model() -> None:
    """With two keys and no model, the second key does not become a name in the status."""
    engine = read("vllm serve --api-key first second")
    assert engine.model == engine.endpoint.served_name == ""
    assert engine.notes


@pytest.mark.parametrize(
    ("line", "env", "environ", "key"),
    [
        ("vllm serve m --api-key a", {"VLLM_API_KEY": "b"}, {}, "a"),
        ("vllm serve m", {"VLLM_API_KEY": "b"}, {"VLLM_API_KEY": "c"}, "b"),
        ("vllm serve m", {}, {"VLLM_API_KEY": "c"}, "c"),
        ("env VLLM_API_KEY=d vllm serve m", {"VLLM_API_KEY": "b"}, {}, "d"),
        ("vllm serve m", {}, {}, ""),
    ],
)
def test_where_the_key_comes_from(
    line: str, env: dict[str, str], environ: dict[str, str], key: str
) -> None:
    """The flag wins over the wrapper's, the engine's and the inherited environment."""
    engine = describe(shlex.split(line), env, environ)
    assert engine.endpoint.api_key == key


def test_keys_do_not_show() -> None:
    """Neither the redacted command nor the repr of what was read holds a key."""
    line = (
        "env VLLM_API_KEY=s3cret1 HF_TOKEN=s3cret2 vllm serve m --api-key s3cret3 s3cret4"
        " --api_key=s3cret5 --hf-token s3cret6 --max-num-batched-tokens=8192 --api-key='s3 cret'"
    )
    words = shlex.split(line)
    shown = " ".join(redacted(words))
    assert "s3" not in shown
    assert "s3" not in repr(describe(words, {}, {}))
    assert "--max-num-batched-tokens=8192" in shown
    script = "VLLM_API_KEY=s3cret vllm serve m --api-key 's3 cret' --port 9"
    assert "s3" not in " ".join(redacted(["bash", "-c", script]))


def test_a_shell_is_opaque() -> None:
    """Nothing is guessed from inside a shell's script; a note says so."""
    engine = read("bash -c 'vllm serve m --port 9'")
    assert (engine.form, engine.endpoint.port) == (Form.OTHER, 8000)
    assert "shell" in engine.notes[0]


def test_the_config_file_of_vllm(tmp_path: Path) -> None:
    """Simple keys count where the command line is silent."""
    (tmp_path / "c.yaml").write_text(
        'model: "org/m"  # comment\nport: 9\nserved_model_name:\n  - a\n  - b\nhost: 10.0.0.1\n'
        "compilation-config:\n  level: 3\n"
    )
    engine = describe(["vllm", "serve", "--config", "c.yaml", "--port=7"], {}, {}, cwd=tmp_path)
    assert (engine.model, engine.served_names) == ("org/m", ("a", "b"))
    assert (engine.endpoint.host, engine.endpoint.port) == ("10.0.0.1", 7)


@pytest.mark.parametrize(
    "text",
    [
        "hf-overrides:\n  rope_scaling:\n    factor: 4\n",
        "hf-overrides: {rope_theta: 1}\n",
        "hf_overrides: |\n  {}\n",
        "hf-overrides:\n  - a: 1\n    b: 2\n",
        "hf-overrides: &all\n",
    ],
)
def test_what_is_nested_in_a_config_file_is_noted(tmp_path: Path, text: str) -> None:
    """What is deeper than a list is named and not counted; JSON and the rest still count."""
    (tmp_path / "c.yaml").write_text(f"{text}# a comment\n\nport: 9\ndtype: half\n")
    engine = describe(["vllm", "serve", "m", "--config", "c.yaml"], {}, {}, cwd=tmp_path)
    (note,) = engine.notes
    assert note == "not understood in the engine's --config file, so not counted: hf-overrides"
    assert (engine.endpoint.port, dict(engine.flags)["dtype"]) == (9, ("half",))
    assert "hf-overrides" not in dict(engine.flags)


def test_json_in_a_config_file_is_understood(tmp_path: Path) -> None:
    """It is what the flag itself would take; and a flag that is given needs no file."""
    (tmp_path / "c.yaml").write_text('hf-overrides: {"a": 1}\ncompilation-config:\n  level: 3\n')
    command = ["vllm", "serve", "m", "--config", "c.yaml", "--compilation-config", "3"]
    engine = describe(command, {}, {}, cwd=tmp_path)
    assert (engine.notes, dict(engine.flags)["hf-overrides"]) == ((), ('{"a": 1}',))


def test_a_pipe_for_a_config_file_hangs_nobody(tmp_path: Path) -> None:
    """A pipe without a writer is no file, and is not waited for."""
    os.mkfifo(tmp_path / "c.yaml")
    engine = describe(["vllm", "serve", "m", "--config", "c.yaml"], {}, {}, cwd=tmp_path)
    assert "could not be read" in engine.notes[0]


def test_a_relative_config_file_is_where_the_engine_starts(tmp_path: Path) -> None:
    """Whoever asks what the configured engines say looks in the same directory."""
    (tmp_path / "c.yaml").write_text("port: 9\n")
    command = ("vllm", "serve", "m", "--config", "c.yaml")
    engine = EngineConfig(command=command, cwd=str(tmp_path))
    assert OneTarget("main", engine).endpoint.port == 9
    assert described(Config(engine={"main": engine}))["main"].endpoint.port == 9


def test_a_missing_config_file_is_noted(tmp_path: Path) -> None:
    """It is vLLM's to complain about; we say what we do not know."""
    engine = describe(["vllm", "serve", "m", "--config", "none.yaml"], {}, {}, cwd=tmp_path)
    assert "--config" in engine.notes[0]


@pytest.mark.parametrize(
    "line",
    [
        "''",
        "vllm serve",
        "vllm serve --port 9",
        "vllm serve m --port x",
        "vllm serve m --port 0",
        "vllm serve m --port -1",
        "vllm serve m --port 65536",
        "vllm serve m --port",
        "vllm serve m --port --host 1.2.3.4",
        "vllm serve m --port " + "9" * 5000,
        "vllm serve m -tp zero",
        "other --port x",
    ],
)
def test_bad_commands_get_one_line(line: str) -> None:
    """Usage errors are one short line."""
    with pytest.raises(CommandError, match=r"^cannot .{10,100}$"):
        read(line)


def test_no_command_at_all() -> None:
    """An empty list is an error like any other."""
    with pytest.raises(CommandError):
        describe([], {}, {})


WORDS = st.sampled_from(
    ["vllm", "serve", "-m", "--port", "--api-key", "-tp", "--", "m", "=", "-", "--port=9", "-1"]
)


@given(st.lists(WORDS | st.text(max_size=8), max_size=12))
def test_nothing_but_command_errors(words: list[str]) -> None:
    """Any list of words is described, or refused with CommandError; redaction keeps its length."""
    assert len(redacted(words)) == len(words)
    try:
        engine = describe(words, {}, {})
    except CommandError as error:
        told = str(error)
    else:
        told = "a command"
        assert 1 <= engine.endpoint.port <= 65535
    assert "\n" not in told
