"""``check`` beside the daemon that runs the engine: what it holds itself is no obstacle."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support import cuda_engine, fake_nvml
from tests.support.daemon import Daemon, running
from tests.support.fake_nvml import IDLE, FakeNvml
from tests.support.models import weights
from tests.support.reloads import READY
from tests.support.simulated import ROOT, free_port

GIB = 1 << 30
UNSEEN = "".join(f"[probes.{name}]\nenabled = false\n" for name in ("conntrack", "files", "tmpfs"))
"""What ails the machine that the tests run on is its own affair."""


def shaped(folder: Path) -> Path:
    """A model of 16 GiB, 128 KiB a token."""
    folder.mkdir()
    config = {
        "model_type": "llama",
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 8192,
    }
    (folder / "config.json").write_text(json.dumps(config))
    weights(folder / "0.bin", 16 * GIB)
    return folder


def checked(daemon: Daemon, nvml: FakeNvml, *command: str) -> dict[str, Any]:
    """What ``check`` says of that command, with the socket of the daemon at hand."""
    own = {key: value for key, value in os.environ.items() if not key.startswith("VLLM_WATCHDOG")}
    own |= {"PYTHONPATH": str(ROOT), "VLLM_WATCHDOG_STATE_DIR": str(daemon.state_dir)}
    config = daemon.state_dir / "check.toml"
    config.write_text(UNSEEN)
    done = subprocess.run(
        [sys.executable, "-m", "watchdog", "check", "--config", config, "--json", "--", *command],
        env={**own, **nvml.environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["ok"] is (done.returncode == 0)
    return found


def test_its_own_engine_is_in_nobodys_way(tmp_path: Path) -> None:
    """FACT: port and GPU memory of the running engine are free for it, and for no other engine."""
    nvml = fake_nvml.idle(tmp_path / "nvml", 1)
    port, model = free_port(), shaped(tmp_path / "model")
    command = (str(cuda_engine.installed(tmp_path / "venv")), "serve", str(model))
    engine = (*command, "--port", str(port))
    state = tmp_path / "state"
    with running(state, engine, port, environment=nvml.environment) as daemon:
        pid = daemon.wait_ready(READY)["pid"]
        nvml.set(IDLE)
        nvml.set({"0.process": f"{pid} {120 * GIB}", "0.memory_used": 120 * GIB})
        same = checked(daemon, nvml, *engine)
        assert (same["problems"], same["running"]) == ([], {"main": pid})
        assert same["engines"][0]["verdict"] == "fits"
        other = checked(daemon, nvml, *command, "--port", str(free_port()))
        assert other["running"] == {}
        assert any("held by an engine of ours 120 GiB" in line for line in other["problems"])
    gone = checked(daemon, nvml, *engine)
    assert gone["running"] == {}
