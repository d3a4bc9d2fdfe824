"""A reload that changes what surrounds an engine: nothing that runs is stopped for it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.support.daemon import running
from tests.support.reloads import READY, File, engines, ready, reload, watched
from tests.support.simulated import until

SECRET = "sk-not-for-the-log"  # noqa: S105 - made up, to be looked for
NOTE = "import pathlib, sys; pathlib.Path(sys.argv[1]).open('a').write(sys.argv[2] + chr(10))"


@pytest.fixture
def file(tmp_path: Path) -> File:
    """A file with one engine, not written yet."""
    file = File(tmp_path / "watchdog.toml")
    file.engine("main", 0, "--startup-time", "0")
    return file


def hook(note: Path, word: str) -> dict[str, object]:
    """A hook that writes ``word`` down; its last argument is told to nobody."""
    return {"command": [sys.executable, "-c", NOTE, str(note), word, SECRET]}


def lines(note: Path) -> list[str]:
    """What hooks wrote."""
    return note.read_text().split() if note.exists() else []


def test_what_surrounds_an_engine_is_for_the_next_start(file: File, tmp_path: Path) -> None:
    """FACT: new hooks, limits, log lines and words on the model leave what runs alone.

    The next start has them. What it leaves behind is cleared up as it was started, and no line of
    the journal tells what a hook runs.
    """
    note = tmp_path / "note"
    file.engines["main"]["post_stop"] = [hook(note, "old-after")]
    with watched(file) as daemon:
        before = daemon.engine()
        file.engines["main"] |= {
            "pre_start": [hook(note, "new-before")],
            "post_stop": [hook(note, "new-after")],
            "expect_log": ["Using FlashAttention version"],
            "limits": {"pids_max": 5000},
            "model_change": "warn",
        }
        file.write()
        answer = reload(daemon)
        assert answer["restarts"] == answer["held"] == []
        assert answer["changed"] == [
            "engine.main.pre_start",
            "engine.main.post_stop",
            "engine.main.model_change: refuse -> warn",
            'engine.main.expect_log: [] -> ["Using FlashAttention version"]',
            "engine.main.limits.pids_max: unset -> 5000",
        ]
        assert daemon.engine()["pids"] == before["pids"]
        assert ready(daemon) == {"main"}
        assert lines(note) == []
        assert daemon.command("restart").returncode == 0
        until(lambda: daemon.engine()["starts"] == 2 and ready(daemon), READY)
        assert lines(note) == ["old-after", "new-before"]
        assert daemon.command("stop").returncode == 0
        assert lines(note) == ["old-after", "new-before", "new-after"]
    assert SECRET not in daemon.log_path.read_text()


def test_an_expectation_that_is_taken_back_lets_a_start_be_ready(file: File) -> None:
    """FACT: who mistyped an expression corrects it, and the engine that starts need not again."""
    file.engines["main"]["expect_log"] = ["no such line"]
    file.write()
    with running(file.path.parent / "s", (), file.port, config=file.path) as daemon:
        until(lambda: "has not shown" in "".join(daemon.engine().get("reasons", [])), READY)
        before = daemon.engine()
        assert before["reasons"] == ["the log has not shown 'no such line' yet"]
        file.engines["main"]["expect_log"] = ["Using FlashAttention version"]
        file.write()
        assert reload(daemon)["restarts"] == []
        until(lambda: ready(daemon) == {"main"}, READY)
        assert daemon.engine()["pid"] == before["pid"]


def test_an_upstream_comes_changes_its_name_and_goes(file: File, tmp_path: Path) -> None:
    """FACT: from the reload on the file is kept, under the new name, and by no word of ours gone.

    No engine is restarted, and what reloads nginx is told to nobody.
    """
    upstream, note = tmp_path / "up.conf", tmp_path / "note"
    reloading = [sys.executable, "-c", NOTE, str(note), "reloaded", SECRET]
    keys = f'[nginx]\nupstream_file = "{upstream}"\nreload = {json.dumps(reloading)}\n'
    with watched(file) as daemon:
        before = engines(daemon)["main"]["pids"]
        file.write(keys)
        assert reload(daemon)["changed"] == ["nginx: new"]
        until(lambda: upstream.exists() and "upstream vllm {" in upstream.read_text(), READY)
        until(lambda: lines(note) == ["reloaded"], READY)
        file.write(keys + 'upstream = "other"\n')
        assert reload(daemon)["changed"] == ['nginx.upstream: "vllm" -> "other"']
        until(lambda: "upstream other {" in upstream.read_text(), READY)
        until(lambda: len(lines(note)) == 2, READY)
        file.write("")
        assert reload(daemon)["changed"] == ["nginx: gone"]
        assert engines(daemon)["main"]["pids"] == before
    assert "upstream other {" in upstream.read_text()
    assert SECRET not in daemon.log_path.read_text()
