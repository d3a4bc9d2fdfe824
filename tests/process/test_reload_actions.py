"""``reload`` of what actions are set to: all of it is in force, and no secret of it is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.daemon import Daemon
from tests.support.reloads import File, reload, rule, watched
from tests.support.simulated import until

SECRET = "hunter2-not-for-the-log"  # noqa: S105 - made up, to be looked for
PAGES = rule(
    "pages",
    subject="engine",
    when='engine.process == "running"',
    summary="it runs",
    actions=["run_command:page", "run_command:page"],
)


@pytest.fixture
def file(tmp_path: Path) -> File:
    """A file with one engine, not written yet."""
    file = File(tmp_path / "watchdog.toml")
    file.engine("main", 0, "--startup-time", "0")
    return file


def command(name: str, line: str, timeout: str) -> str:
    """The table of a command that is a line for a shell, and has a password among its words."""
    table = f"[actions.run_command.commands.{name}]"
    return f'{table}\ncommand = {json.dumps(["sh", "-c", line, SECRET])}\ntimeout = "{timeout}"\n'


def ran(daemon: Daemon) -> list[tuple[str, str]]:
    """The actions beside that ended, and what they say."""
    ends = daemon.events("action.finished")
    return [(e["action"], e["explanation"]) for e in ends if "command" in e["action"]]


def test_another_command_of_the_same_name(file: File, tmp_path: Path) -> None:
    """FACT: what runs goes on as it was, the next one is the new one, and its rule fires on.

    The difference says which command changed and how long it may take, and not what it is.
    """
    begun, go = tmp_path / "begun", tmp_path / "go"
    waits = f"touch {begun}; until test -e {go}; do sleep 0.05; done; echo first"
    file.rest = command("page", waits, "60s") + PAGES
    with watched(file) as daemon:
        until(begun.exists)
        file.write(command("page", "echo second", "20s") + PAGES)
        changed = reload(daemon)["changed"]
        page = "actions.run_command.commands.page"
        assert changed == [f"{page}.command", f"{page}.timeout: 60.0 -> 20.0"]
        assert ran(daemon) == []
        go.touch()
        both = [("run_command:page", "ran page: first"), ("run_command:page", "ran page: second")]
        until(lambda: ran(daemon) == both)
        assert not [e for e in daemon.events("finding.resolved") if e["rule"] == "pages"]
        assert SECRET not in daemon.log_path.read_text()


def test_rules_may_only_choose_what_is_left(file: File) -> None:
    """FACT: a command that a rule runs cannot go, and that the rule did not change helps nothing.

    A new one may be chosen by the same reload that brings it.
    """
    observing = PAGES + '\nmode = "observe"\n'
    file.rest = command("page", "true", "60s") + observing
    with watched(file) as daemon:
        file.write(command("call", "true", "60s") + observing)
        done = daemon.command("reload")
        assert done.returncode == 2
        assert "rule.pages.actions: expected run_command:NAME" in done.stderr
        assert SECRET not in done.stderr
        assert daemon.get("/healthz")[0] == 200
        file.write(command("call", "true", "60s") + observing.replace(":page", ":call"))
        changed = reload(daemon)["changed"]
        names = ["actions.run_command.commands.page", "actions.run_command.commands.call"]
        assert changed[:2] == names
        assert changed[2].startswith("rule.pages.actions")
        assert SECRET not in daemon.log_path.read_text()
