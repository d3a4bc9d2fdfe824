"""``incidents`` and ``status --watch``: what broke and what was done, with a daemon and without."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from tests.support.daemon import running, simulated_command
from tests.support.pages import crowded
from tests.support.simulated import ROOT, free_port, until
from tests.support.windows import FakeWindow, broken_window, serving_window
from watchdog.cli.root import root
from watchdog.evidence import bundles
from watchdog.store import Store
from watchdog.web.app import App
from watchdog.web.server import serve_socket

INTERRUPTIBLE = ("env", "--default-signal=INT", sys.executable)
"""What a shell starts in the background ignores SIGINT, and so does what that starts."""
READY = 120.0


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    returncode: int
    stdout: str
    stderr: str


def cli(state_dir: Path, *words: str) -> Done:
    """Run one command to its end, in this process: starting a new one takes longer than it does."""
    done = CliRunner().invoke(root, ["--state-dir", str(state_dir), *words])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return Done(done.exit_code, done.stdout, done.stderr)


def below(text: str) -> str:
    """What stands below the answers about the present."""
    return text.partition("\n\n")[2]


def timeless(text: str) -> str:
    """Without times of day: the wall clock is set a little all the time."""
    return re.sub(r"\d\d:\d\d:\d\d(\.\d+)?", "T", text)


@pytest.fixture(name="window")
def fixture_window(tmp_path: Path) -> Iterator[FakeWindow]:
    """A daemon's control socket in ``tmp_path``, behind which an engine has crashed."""
    window = broken_window()
    server = serve_socket(App(window, control=True), tmp_path / "control.sock")
    server.start()
    yield window
    server.stop()


def test_a_crash_is_told_by_the_daemon_and_later_by_its_store(tmp_path: Path) -> None:
    """FACT: list, words and JSON of an outage are the same when the daemon is gone."""
    port = free_port()
    with running(tmp_path, simulated_command(port), port) as daemon:
        daemon.wait_ready(READY)
        os.kill(daemon.engine()["pid"], signal.SIGKILL)
        daemon.wait_event("incident.resolved", READY)
        assert "4 of 5 left" in cli(tmp_path, "status").stdout
        listed, words = cli(tmp_path, "incidents"), cli(tmp_path, "incidents", "last")
        told = json.loads(cli(tmp_path, "incidents", "inc-000001", "--json").stdout)
    serving, broke, did, duty = listed.stdout.splitlines()[:4]
    assert serving == "SERVING  yes: main is ready"
    assert duty.startswith("TO DO    nothing now; against the next time: look for an OOM kill")
    assert broke.startswith("BROKE    nothing now; the last was engine-dead on main (signal)")
    assert did.startswith("DID      nothing now; inc-000001: restart, recovered ")
    assert words.stdout.startswith("SERVING  yes: main is ready\nTO DO    nothing now; ")
    assert below(listed.stdout).splitlines()[1].split()[0] == "inc-000001"
    assert "to do      nothing: it is over" in words.stdout
    for part in ("engine-dead on engine/main", "SIGKILL", "restart_engine", "engine.ready"):
        assert part in words.stdout, part
    assert told["outcome"] == "recovered"
    assert told["recovered_after_s"] > 0
    for name, said in ((), listed), (("1",), words):
        later = cli(tmp_path, "incidents", *name).stdout
        assert later.startswith("SERVING  not known: no daemon answers\n")
        assert timeless(below(later)) == timeless(below(said.stdout))
    later = cli(tmp_path, "incidents", "1", "--json").stdout
    assert json.loads(timeless(later)) == json.loads(timeless(json.dumps(told)))


def test_the_story_of_an_open_incident(window: FakeWindow, tmp_path: Path) -> None:
    """FACT: an outage that goes on is told as such, with the decision that was made."""
    done = cli(tmp_path, "incidents", "last")
    assert done.returncode == 0
    assert "outcome  it goes on" in done.stdout
    assert "decision.act" in done.stdout
    assert "engine.verdict  dead" in done.stdout
    assert below(cli(tmp_path, "incidents").stdout).splitlines()[1].endswith("open")
    assert window.shown.state.incidents


def test_hostile_words_are_shown_and_not_obeyed(window: FakeWindow, tmp_path: Path) -> None:
    """FACT: no control character of a name or a log line reaches the terminal."""
    window.shown = crowded("\x1b[2J\x07\u202e\nx").shown
    for words in (["incidents"], ["incidents", "0"], ["status"]):
        done = cli(tmp_path, *words)
        assert done.returncode == 0, done.stderr
        assert "\\x1b[2J" in done.stdout
        assert not any(c in done.stdout for c in "\x1b\x07\u202e"), words


@pytest.mark.parametrize(
    "name",
    [
        *("inc-000099", "99", "../status", "?", "a/b", "%00", "-1x", "💥", "", ".", "..", "²"),
        pytest.param("9" * 5000, id="no number"),
        pytest.param("\udc80", id="no text"),
    ],
)
def test_an_unknown_id_is_one_line(window: FakeWindow, tmp_path: Path, name: str) -> None:
    """FACT: exit 1, and no other path of the daemon is asked, whatever the id is made of."""
    done = cli(tmp_path, "incidents", "--", name)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert done.stderr.startswith("no incident ")
    assert window.asked == []


def test_the_evidence_of_an_incident_is_named(tmp_path: Path) -> None:
    """FACT: also without a daemon: the directories of whole bundles of that one incident."""
    folder = tmp_path / "state"
    store = Store.open(folder)
    (one,) = broken_window().shown.state.incidents
    store.save_incident(one.id, msgspec.json.encode(one).decode(), 1.0)
    store.close()
    for incident in (one.id, "inc-000077"):
        making = bundles.begin(folder / bundles.DIRECTORY, incident)
        (making.path.with_name(f"{making.path.name}.part") / bundles.META).write_text(
            '{"taken_at_s": 1.0, "files": {}}'
        )
        making.done()
    assert f"bundle   {folder}/evidence/inc-000001-001" in cli(folder, "incidents", "1").stdout
    told = json.loads(cli(folder, "incidents", "1", "--json").stdout)
    assert told["bundles"] == [f"{folder}/evidence/inc-000001-001"]


def test_a_quiet_box_says_so(window: FakeWindow, tmp_path: Path) -> None:
    """FACT: an empty list is words for a person and an empty list for a script."""
    window.shown = serving_window().shown
    assert below(cli(tmp_path, "incidents").stdout) == "no incidents\n"
    assert json.loads(cli(tmp_path, "incidents", "--json").stdout) == {"incidents": []}
    assert cli(tmp_path, "incidents", "last").returncode == 1


def test_without_daemon_and_store_it_is_exit_3(tmp_path: Path) -> None:
    """FACT: it says where it looked, and makes no store of its own."""
    done = cli(tmp_path, "incidents")
    expected = f"no daemon answers at {tmp_path}/control.sock, and no store is there\n"
    assert (done.returncode, done.stdout, done.stderr) == (3, "", expected)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"this is no database" * 100])
def test_a_damaged_store_is_one_line(tmp_path: Path, content: bytes) -> None:
    """FACT: a file that is no store is told and left as it is."""
    file = tmp_path / "store.sqlite3"
    file.write_bytes(content)
    done = cli(tmp_path, "incidents")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (3, "", 1)
    assert done.stderr.startswith(f"cannot read {file}: ")
    assert file.read_bytes() == content


def test_what_another_version_wrote_is_left_out(tmp_path: Path) -> None:
    """FACT: an incident that is not understood is not half told, and the others are."""
    store = Store.open(tmp_path)
    store.save_incident("inc-000001", '{"id": "inc-000001", "strange": 1}', 1.0)
    store.close()
    assert below(cli(tmp_path, "incidents").stdout) == "no incidents\n"
    assert cli(tmp_path, "incidents", "1").returncode == 1


def test_the_store_is_not_written_to(tmp_path: Path) -> None:
    """FACT: reading beside a daemon, or without one, changes nothing in the store."""
    Store.open(tmp_path).close()
    with sqlite3.connect(tmp_path / "store.sqlite3") as store:
        before = store.execute("PRAGMA data_version").fetchone()
        assert cli(tmp_path, "incidents").returncode == 0
        assert store.execute("PRAGMA data_version").fetchone() == before
    store.close()


def test_status_answers_four_questions_first(window: FakeWindow, tmp_path: Path) -> None:
    """FACT: serving, what broke, what was done, what to do: the first lines, and in the JSON."""
    lines = cli(tmp_path, "status").stdout.splitlines()
    heads = [line[:9].strip() for line in lines[: lines.index("")]]
    assert [head for head in heads if head] == ["SERVING", "BROKE", "DID", "TO DO"]
    assert lines[0].startswith("SERVING  no")
    told = json.loads(cli(tmp_path, "status", "--json").stdout)["answers"]
    assert told["level"] in {"warning", "bad"}
    assert window.shown.state.incidents


def test_commands_of_another_state_directory_can_be_pasted(
    window: FakeWindow, tmp_path: Path
) -> None:
    """FACT: ``status`` and ``incidents`` name the directory in each command that they show."""
    window.shown = replace(crowded("x").shown, outranked={})
    for words in (["status"], ["incidents"]):
        done = cli(tmp_path, *words)
        assert f"vllm-watchdog --state-dir {tmp_path} resume" in done.stdout
        assert "vllm-watchdog resume" not in done.stdout


def test_what_is_outranked_is_marked(window: FakeWindow, tmp_path: Path) -> None:
    """FACT: as ``doctor`` does: by whom, and without a fix of its own; in the JSON as well."""
    shown = crowded("x", findings=2, paused=False).shown
    low, high = shown.state.watches
    above = shown.state.watches[high].firing
    assert above is not None
    window.shown = replace(shown, outranked={low: above})
    lines = cli(tmp_path, "status").stdout.splitlines()
    at = next(number for number, line in enumerate(lines) if " x0 on " in line)
    assert lines[at].endswith("(outranked by x1)")
    assert not lines[at + 1].lstrip().startswith("fix:")
    told = json.loads(cli(tmp_path, "status", "--json").stdout)["findings"]
    assert {one["rule"]: one["inhibited_by"] for one in told} == {"x0": "x1", "x1": None}


def test_a_pause_needs_words(window: FakeWindow, tmp_path: Path) -> None:
    """FACT: an empty reason is refused in a line, and nothing is asked of the daemon."""
    done = cli(tmp_path, "pause", "--reason", " ")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert window.asked == []


def test_an_open_incident_at_which_the_watchdog_is_has_no_task(
    window: FakeWindow, tmp_path: Path
) -> None:
    """FACT: neither ``incidents`` nor ``status`` prints the fix of what is being repaired."""
    told = cli(tmp_path, "incidents", "last").stdout
    assert "nothing yet: the watchdog is at it" in told
    assert "correct what its cause" not in told + cli(tmp_path, "status").stdout
    assert window.shown.state.incidents


def test_watch_tells_what_changes_on_one_screen(window: FakeWindow, tmp_path: Path) -> None:
    """FACT: on a terminal it draws in place, lists what changed, and leaves with exit code 0."""
    window.shown = serving_window().shown
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*INTERRUPTIBLE, "-m", "watchdog", "status", "--watch", "--state-dir", str(tmp_path)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=ROOT,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"},
    )
    os.close(theirs)
    seen = bytearray()

    def saw(word: bytes) -> bool:
        if select.select([ours], [], [], 0)[0]:
            seen.extend(os.read(ours, 65536))
        return word in seen

    try:
        until(lambda: saw(b"SERVING  yes: main is ready"))
        until(lambda: saw(b"\x1b[?1049h"))
        window.shown = broken_window().shown
        until(lambda: saw(b"inc-000001: opened"))
        assert b"main: ready -> " in seen
        process.send_signal(signal.SIGINT)
        until(lambda: saw(b"\x1b[?1049l"))
        assert process.wait(10) == 0
        assert b"Traceback" not in seen
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def test_watch_in_a_pipe_speaks_only_when_something_changed(
    window: FakeWindow, tmp_path: Path
) -> None:
    """FACT: no escapes; a text for each change; a daemon that is gone is told, not the end."""
    process = subprocess.Popen(
        [*INTERRUPTIBLE, "-m", "watchdog", "status", "--watch", "--state-dir", str(tmp_path)],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)
    seen = bytearray()

    def saw(word: bytes) -> bool:
        assert process.stdout is not None
        seen.extend(process.stdout.read() or b"")
        return word in seen

    try:
        until(lambda: saw(b"SERVING  no"))
        window.shown = replace(serving_window().shown, budget={"main": 2})
        until(lambda: saw(b"SERVING  yes"))
        assert seen.count(b"SERVING") == 2
        assert b"\x1b" not in seen
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()
