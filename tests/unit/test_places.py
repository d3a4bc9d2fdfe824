"""Where an engine writes and reads, as its command and its environment say it."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from watchdog import places

SERVE = ("vllm", "serve", "org/model")


def paths(command: Sequence[str], environment: Mapping[str, str], log: str = "") -> dict[str, str]:
    """Paths by purpose."""
    return {one.purpose: one.path for one in places.of_engine(command, environment, log).places}


def test_the_environment_decides() -> None:
    """FACT: what is told is where it is, and an ``env`` in front of the engine tells too."""
    told = {"HOME": "/h", "HF_HOME": "/hf", "TRITON_CACHE_DIR": "/tr", "VLLM_RPC_BASE_PATH": "/s"}
    assert paths(("env", "TMPDIR=/t", "-u", *SERVE), told, "/log/x.log") == {
        "temporary files": "/t",
        "log": "/log",
        "models": "/hf",
        "compile cache": "/h/.cache/vllm",
        "compiled kernels": "/t",
        "Triton cache": "/tr",
        "sockets": "/s",
    }


def test_what_is_not_told_is_where_vllm_puts_it() -> None:
    """FACT: below the home directory, or the directory for caches."""
    found = paths(SERVE, {"HOME": "/h", "XDG_CACHE_HOME": "/c"})
    assert found["temporary files"] == tempfile.gettempdir()
    assert found["models"] == "/c/huggingface"
    assert found["compile cache"] == "/c/vllm"
    assert found["Triton cache"] == "/h/.triton"
    assert "log" not in found
    assert "sockets" not in found


@pytest.mark.root
def test_where_nothing_can_be_written(tmp_path: Path) -> None:
    """FACT: temporary files are looked for where they belong when it is full, or read-only.

    Nor does it matter that somebody has no home: he has no name in many a container.
    """
    code = (
        "import os, resource, sys\n"
        "from watchdog import places\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
        "os.setuid(1_234_567)\n"
        "for one in places.of_engine(('vllm', 'serve', 'm'), {}).places: print(one.path)\n"
    )
    for around, temporary in (({}, "/tmp"), ({"TMPDIR": str(tmp_path)}, str(tmp_path))):
        command = [sys.executable, "-W", "error", "-c", code]
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=around)
        assert done.stdout.splitlines()[0] == temporary


def test_a_model_in_a_directory_is_only_read() -> None:
    """FACT: nothing grows there; a repository's name is no place."""
    found = places.of_engine(("vllm", "serve", "/models/m"), {"HOME": "/h"}).places
    (model,) = [one for one in found if one.purpose == "model"]
    assert (model.path, model.written, model.grows) == ("/models/m", False, False)
    assert "model" not in paths(SERVE, {})


@pytest.mark.parametrize("command", [("sh", "-c", "x"), (), ("vllm", "serve", "--port", "x")])
def test_any_other_engine_has_temporary_files(command: tuple[str, ...]) -> None:
    """FACT: of what is no vLLM, or no command at all, the caches are not known."""
    assert paths(command, {"TMPDIR": "/t"}) == {"temporary files": "/t"}


@pytest.mark.parametrize(
    ("words", "around", "wanted"),
    [
        ((), {}, 0),
        (("--tensor-parallel-size", "2"), {}, 400),
        (("-tp=1", "-pp", "4"), {"VLLM_MQ_MAX_CHUNK_BYTES_MB": "32"}, 560),
        (("-tp", "2"), {"VLLM_MQ_MAX_CHUNK_BYTES_MB": "much"}, 400),
    ],
)
def test_only_workers_want_shared_memory(
    words: tuple[str, ...], around: dict[str, str], wanted: int
) -> None:
    """FACT: one worker is the engine's own process; several have two ring buffers between them."""
    assert places.of_engine((*SERVE, *words), around).shm_bytes == wanted << 20
