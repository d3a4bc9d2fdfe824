"""The file that an engine's ``--config`` names: where it is looked for, and one that hangs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.support.daemon import launch, running
from tests.support.mounts import silent
from tests.support.outages import READY
from tests.support.simulated import ROOT, free_port


def test_a_mount_that_hangs_does_not_hang_the_daemon(tmp_path: Path) -> None:
    """FACT: the daemon gives it up within seconds, with exit code 2 and one line that names it."""
    port = free_port()
    command = ["vllm", "serve", "m", "--config", str(tmp_path / "hung" / "c.yaml")]
    with silent(tmp_path / "hung"):
        daemon = launch(tmp_path / "state", command, port)
        try:
            assert daemon.ended() == 2
        finally:
            daemon.process.kill()
            daemon.process.wait()
    (line,) = daemon.log_path.read_text().splitlines()
    assert f"cannot read the engine's --config file '{tmp_path}/hung/c.yaml' within 3 s" in line


def test_a_relative_name_is_where_the_engine_starts(tmp_path: Path) -> None:
    """FACT: the daemon asks the port of the file that the engine reads, and finds it serving."""
    port = free_port()
    place = tmp_path / "place"
    place.mkdir()
    (place / "c.yaml").write_text(f"port: {port}\n")
    program = tmp_path / "vllm"
    words = f'exec "{sys.executable}" -m watchdog.simulator --startup-time 0 --port {port}'
    program.write_text(f"#!/bin/sh\n{words}\n")
    program.chmod(0o755)
    command = json.dumps([str(program), "serve", "simulated/tiny", "--config", "c.yaml"])
    config = tmp_path / "watchdog.toml"
    table = f"[engine.main]\ncwd = {json.dumps(str(place))}\ncommand = {command}\n"
    config.write_text(f"{table}[engine.main.env]\nPYTHONPATH = {json.dumps(str(ROOT))}\n")
    with running(tmp_path / "state", (), port, config=config) as daemon:
        assert daemon.wait_ready(READY)["verdict"] in {"ready", "busy"}
