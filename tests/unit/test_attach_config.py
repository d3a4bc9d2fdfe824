"""What cannot be attached to is refused in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.configurations import accepted
from watchdog import config as configuration
from watchdog.daemon.configured import Source
from watchdog.options import RunOptions

UDS = "expected a command without --uds: it is found by its port"
SHELL = "expected a command that names the engine's program, not its shell's"


def written(folder: Path, name: str, command: list[str], attach: str = "signal") -> Path:
    """A configuration with one engine that is attached to, or not."""
    file = folder / "watchdog.toml"
    how = f'attach = "{attach}"\n' if attach else ""
    file.write_text(f"[engine.{name}]\ncommand = {json.dumps(command)}\n{how}")
    return file


@pytest.mark.parametrize(
    ("command", "line"),
    [
        (["vllm", "serve", "m", "--uds", "/run/engine.sock"], UDS),
        (["bash", "/opt/start.sh"], SHELL),
        (["env", "A=b", "sh", "-c", 'exec "$ENGINE"'], SHELL),
    ],
)
def test_what_cannot_be_found_is_refused(tmp_path: Path, command: list[str], line: str) -> None:
    """FACT: a Unix socket, and a command that hides its program, are no engine to attach to."""
    file = written(tmp_path, "main", command)
    with pytest.raises(configuration.ConfigError) as raised:
        accepted(file)
    assert raised.value.lines == (f"{file}: engine.main.attach: {line}",)
    accepted(written(tmp_path, "main", command, attach=""))


def test_attach_on_the_command_line_starts_no_other_engine(tmp_path: Path) -> None:
    """FACT: beside an engine that the watchdog would start itself it is refused, in one line."""
    command = ["vllm", "serve", "m", "--port", "8001"]
    options = RunOptions(command=("vllm", "serve", "m"), attach="signal")
    own = Source(written(tmp_path, "other", command, attach=""), options)
    with pytest.raises(configuration.ConfigError) as raised:
        own.read()
    line = "--attach: expected attach of every other [engine.NAME] in the configuration too"
    assert raised.value.lines == (line,)
    both = Source(written(tmp_path, "other", command, attach="report"), options).read()
    assert set(both.engine) == {"main", "other"}
