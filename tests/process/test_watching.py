"""``status --watch`` on terminals of several kinds, and how it leaves them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.core import engine
from tests.support.simulated import ROOT, until
from tests.support.windows import FakeWindow, broken_window, serving_window, snapshot
from watchdog.core.model import Cause, ProcessState
from watchdog.core.state import RestartHistory, State
from watchdog.web.app import App
from watchdog.web.server import serve_socket

OWN_SCREEN, SCREEN_BACK, CURSOR_BACK = b"\x1b[?1049h", b"\x1b[?1049l", b"\x1b[?25h"
Saw = Callable[[bytes], bool]


@pytest.fixture
def window(tmp_path: Path) -> Iterator[FakeWindow]:
    """A daemon's control socket in ``tmp_path``, without a daemon behind it."""
    window = serving_window()
    server = serve_socket(App(window, control=True), tmp_path / "control.sock")
    server.start()
    yield window
    server.stop()


@contextlib.contextmanager
def watching(
    folder: Path, term: str = "xterm", size: tuple[int, int] = (24, 80)
) -> Iterator[tuple[subprocess.Popen[bytes], Saw, int]]:
    """A watch on a terminal of so many lines and columns, what was seen on it, and the terminal."""
    ours, theirs = pty.openpty()
    resize(ours, size)
    process = subprocess.Popen(
        [
            *("env", "-u", "COLUMNS", "-u", "LINES", "--default-signal=INT", f"TERM={term}"),
            *(sys.executable, "-m", "watchdog", "status", "--watch", "--state-dir", str(folder)),
        ],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=ROOT,
    )
    os.close(theirs)
    seen = bytearray()

    def saw(word: bytes) -> bool:
        while select.select([ours], [], [], 0)[0]:
            try:
                seen.extend(os.read(ours, 65536))
            except OSError:  # nobody has the other end any more
                break
        return word in seen

    try:
        yield process, saw, ours
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def resize(terminal: int, size: tuple[int, int]) -> None:
    """Give it so many lines and columns."""
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))


@pytest.mark.usefixtures("window")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
def test_the_terminal_is_given_back(tmp_path: Path, number: signal.Signals, code: int) -> None:
    """FACT: after ^C and after SIGTERM it has its own screen and its cursor again."""
    with watching(tmp_path) as (process, saw, _):
        until(lambda: saw(b"SERVING  yes"))
        assert saw(OWN_SCREEN)
        process.send_signal(number)
        assert process.wait(10) == code
        assert saw(SCREEN_BACK)
        assert saw(CURSOR_BACK)
        assert not saw(b"Traceback")


def test_where_nothing_can_be_drawn_again_it_is_told_in_text(
    window: FakeWindow, tmp_path: Path
) -> None:
    """FACT: a dumb terminal gets a text for each change, and no escape."""
    with watching(tmp_path, "dumb") as (process, saw, _):
        until(lambda: saw(b"SERVING  yes"))
        window.shown = broken_window().shown
        until(lambda: saw(b"SERVING  no"))
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0
        assert not saw(b"\x1b")


def test_a_small_terminal_that_is_resized(window: FakeWindow, tmp_path: Path) -> None:
    """FACT: what has no place is cut off, and drawn when there is place."""
    with watching(tmp_path, size=(3, 12)) as (process, saw, terminal):
        until(lambda: saw(b"SERVING  ye"))
        assert not saw(b"main is ready")
        resize(terminal, (40, 120))
        until(lambda: saw(b"main is ready"))
        window.shown = broken_window().shown
        until(lambda: saw(b"inc-000001: opened"))
        assert process.poll() is None


def test_what_must_be_done_is_never_cut(window: FakeWindow, tmp_path: Path) -> None:
    """FACT: an answer that is longer than the line goes on below, with its command whole."""
    history = RestartHistory(breaker_open=True)
    dead = engine(ProcessState.GIVEN_UP, history=history, cause=Cause.CRASH, explanation="x " * 60)
    window.shown = snapshot(State(engines={dead.name: dead}))
    with watching(tmp_path, size=(40, 70)) as (_, saw, _terminal):
        until(lambda: saw(b"reset-breaker main"))
        assert saw(b"BROKE")
