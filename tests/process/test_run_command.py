"""A command of the operator's, run by a rule: real programs, bounded, with nothing left of them."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from actions.run_command import Command, RunCommand, RunCommandSettings
from tests.support.simulated import alive, until
from tests.support.trees import script
from watchdog.contracts import ActionError, Order
from watchdog.core.model import Cause, engine_subject
from watchdog.daemon.box_control import Hands
from watchdog.supervisor.household import Household, become_reaper
from watchdog.supervisor.leftovers import Sweeper
from watchdog.supervisor.said import Said

LONG = 60.0
STUBBORN = (
    "import signal, subprocess\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "child = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
    "open(sys.argv[-1], 'w').write(f'{os.getpid()} {child.pid}')\n"
    "print('still at it', flush=True)\n"
    "time.sleep(600)\n"
)
TOLD = "print(*(f'{k}={v}' for k, v in sorted(os.environ.items()) if k.startswith('VLLM_')))\n"


@pytest.fixture
def hands(tmp_path: Path) -> Iterator[Hands]:
    """What the daemon lends; orphans come to this process."""
    assert become_reaper()
    hands = Hands(Sweeper(shm=tmp_path), Household(), tuple)
    yield hands
    hands.household.reap_orphans()


def run(hands: Hands, command: tuple[str, ...], timeout: float = LONG, **order: float) -> str:
    """What the action says of it, as a rule orders it."""
    settings = RunCommandSettings(commands={"page": Command(command=command, timeout=timeout)})
    wanted = Order(
        "run_command",
        engine_subject("main"),
        Cause.RULE,
        incident="20261130-1",
        rule="full",
        choice="page",
    )
    return RunCommand(settings).run(replace(wanted, **order), hands)  # type: ignore[arg-type]


def refused(hands: Hands, command: tuple[str, ...], timeout: float = LONG, **order: float) -> str:
    """Why it failed, in one line."""
    with pytest.raises(ActionError) as caught:
        run(hands, command, timeout, **order)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_it_knows_what_it_is_run_for(hands: Hands, monkeypatch: pytest.MonkeyPatch) -> None:
    """FACT: rule, subject, incident and cause are in its environment, and no key of an engine."""
    for name in [name for name in os.environ if name.startswith("VLLM_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("VLLM_API_KEY", "sesame")
    monkeypatch.setenv("VLLM_WATCHDOG_ENGINE", "another")
    said = run(hands, script(TOLD))
    words = dict(word.split("=", 1) for word in said.removeprefix("ran page: ").split(" VLLM_"))
    words = {name.removeprefix("VLLM_"): value for name, value in words.items()}
    assert words.pop("WATCHDOG_GENERATION").startswith("hook-")
    assert words == {
        "WATCHDOG_RULE": "full",
        "WATCHDOG_SUBJECT": "engine/main",
        "WATCHDOG_INCIDENT": "20261130-1",
        "WATCHDOG_CAUSE": "rule",
    }


def test_no_shell_reads_its_arguments(hands: Hands) -> None:
    """FACT: what a shell would expand or run reaches the program as it is."""
    assert run(hands, ("echo", "$HOME; `id` > /tmp/x &")) == "ran page: $HOME; `id` > /tmp/x &"


def test_one_that_says_nothing(hands: Hands) -> None:
    """FACT: silence and exit status 0 are a success."""
    assert run(hands, ("true",)) == "ran page"


def test_how_it_failed_is_told_and_no_argument(hands: Hands) -> None:
    """FACT: program, status and last line; the arguments may hold a password."""
    failing = ("sh", "-c", "echo first; echo no route >&2; echo; : TOKEN=sesame; exit 3")
    assert refused(hands, failing) == "cannot run page: sh exited with status 3: no route"
    assert refused(hands, ("/no/such/program",)) == (
        "cannot run page: /no/such/program did not run:"
        " cannot start '/no/such/program': no such file or directory"
    )


def test_nothing_is_left_of_one_that_is_late(hands: Hands, tmp_path: Path) -> None:
    """FACT: it ignores TERM and has a child in a session of its own: both are gone."""
    note = tmp_path / "pids"
    wrong = refused(hands, (*script(STUBBORN), str(note)), 1.0)
    assert wrong.endswith(" took more than 1 s: still at it")
    pids = [int(pid) for pid in note.read_text().split()]
    until(lambda: not any(map(alive, pids)))


def test_what_it_left_is_nobodys_any_more_when_it_is_gone(hands: Hands, tmp_path: Path) -> None:
    """FACT: while it lives it is not taken for an engine's; afterwards orphans are the engine's."""
    note, home = tmp_path / "pid", hands.household
    leaves = "child = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
    told = "open(sys.argv[-1], 'w').write(str(child.pid))\nos._exit(0)\n"
    run(hands, (*script(f"import subprocess\n{leaves}{told}"), str(note)))
    pid = int(note.read_text())
    try:
        home.generation_began("first")
        until(lambda: pid in [info.pid for info in home.orphans()])
        assert not home.comes_from("first", 1 << 60)
    finally:
        os.kill(pid, signal.SIGKILL)
    until(lambda: home.reap_orphans() or not alive(pid))
    assert home.comes_from("first", 1 << 60)


def test_the_orders_deadline_goes_before_its_own(hands: Hands) -> None:
    """FACT: time to end it is kept back, so it is not begun when nothing else is left."""
    wrong = refused(hands, ("true",), deadline=time.monotonic() + 5.0)
    assert wrong == "cannot run page: no time is left"


def test_a_flood_of_output_is_bounded(hands: Hands) -> None:
    """FACT: of 64 MiB in lines that do not end only the end is known, shortened and printable."""
    flood = (
        "for _ in range(64): sys.stdout.write('\\x1b[31m' + 'x' * (1 << 20))\nprint('y' * 900)\n"
    )
    said = run(hands, script(flood))
    assert len(said) <= len("ran page: ") + 300
    assert said.isprintable()


def test_what_is_said_is_kept_only_while_somebody_listens() -> None:
    """FACT: what a command left running fills no memory: its output is refused afterwards."""
    with Said() as said:
        writer = os.open(said.path, os.O_WRONLY | os.O_APPEND)
        os.write(writer, b"one\ntwo\n\n")
        assert said.last_line() == "two"
        os.write(writer, b"z" * (2 << 20))
        said.trim()
        assert os.fstat(writer).st_size == 0
        assert said.last_line() == "z" * 300
    try:
        with pytest.raises(PermissionError):
            os.write(writer, b"more")
    finally:
        os.close(writer)


def test_the_end_of_the_daemon_ends_it(hands: Hands, tmp_path: Path) -> None:
    """FACT: when the daemon closes what runs is ended and waited for, and nothing more begins."""
    note = tmp_path / "pids"
    found: list[str] = []
    work = threading.Thread(
        target=lambda: found.append(refused(hands, (*script(STUBBORN), str(note))))
    )
    work.start()
    until(lambda: note.exists() and len(note.read_text().split()) == 2)
    hands.close()
    pids = [int(pid) for pid in note.read_text().split()]
    until(lambda: not any(map(alive, pids)))
    work.join()
    assert "was not waited for any more" in found[0]
    assert refused(hands, ("true",)).endswith("the watchdog is stopping")


def test_only_what_is_listed_is_ever_run(hands: Hands) -> None:
    """FACT: a name that the configuration no longer has runs nothing."""
    order = Order("run_command", engine_subject("main"), Cause.RULE, choice="other")
    with pytest.raises(ActionError, match="no command of that name any more"):
        RunCommand(RunCommandSettings()).run(order, hands)
