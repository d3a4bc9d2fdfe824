"""What a drill promises, what ends it, and whom it takes for simulated."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from tests.support.simulated import cmdline, until
from watchdog.drill import DRILLS, Engine, is_simulated
from watchdog.drill.results import SkippedError
from watchdog.drill.uninterrupted import taken, uninterrupted

WAIT = "import sys; sys.stdin.read()"
ENGINE = Engine(
    "main", "ready", "ready", (), 1, "g", (), 8000, 1, 5, breaker_open=False, ready_seconds=None
)


def test_a_stopped_worker_is_promised_like_a_stopped_core() -> None:
    """FACT: the fault table has H2 "as H1": a member that stands still is noticed in 10 s."""
    assert DRILLS["H2"].within == DRILLS["H1"].within == 10


@contextmanager
def obeyed(number: signal.Signals, how: signal.Handlers) -> Iterator[None]:
    """The signal is at its default, or ignored, meanwhile."""
    before = signal.signal(number, how)
    try:
        yield
    finally:
        signal.signal(number, before)


def test_a_signal_is_obeyed_also_when_the_piece_fails() -> None:
    """FACT: ^C during a mount that is refused ends the drills; the refusal does not hide it."""
    with pytest.raises(KeyboardInterrupt) as caught, uninterrupted():  # noqa: PT012
        os.kill(os.getpid(), signal.SIGTERM)
        raise SkippedError("cannot mount a tmpfs here")
    assert isinstance(caught.value.__context__, SkippedError)


def test_what_is_ignored_from_the_start_stays_ignored() -> None:
    """FACT: under nohup, or in the background of a script, HUP or INT end nothing, anywhere."""
    with obeyed(signal.SIGHUP, signal.SIG_IGN):
        assert signal.SIGHUP not in taken()
        try:
            with uninterrupted():
                os.kill(os.getpid(), signal.SIGHUP)
        except KeyboardInterrupt:
            pytest.fail("an ignored signal was obeyed")
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    with obeyed(signal.SIGHUP, signal.SIG_DFL):
        assert signal.SIGHUP in taken()


def test_handlers_are_as_they_were() -> None:
    """FACT: afterwards every signal has the handler that it had, and none is held back."""
    before = {one: signal.getsignal(one) for one in taken()}
    with uninterrupted():
        assert all(signal.getsignal(one) is not before[one] for one in before)
    assert {one: signal.getsignal(one) for one in before} == before
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ()) & set(before)


@pytest.mark.parametrize(
    ("words", "simulated"),
    [
        (("-m", "watchdog.simulator"), True),
        (("-m", "watchdog", "simulate-engine"), True),
        (("vllm", "serve", "m", "--served-model-name", "simulate-engine"), False),
        (("vllm", "serve", "watchdog.simulator"), False),
        (("serve.py",), False),
    ],
)
def test_a_real_engine_is_no_simulated_one(words: tuple[str, ...], *, simulated: bool) -> None:
    """FACT: a name among the flags of a real engine does not spare anybody the --yes."""
    command = [sys.executable, "-I", "-S", "-c", WAIT, *words]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        until(lambda: words[-1] in cmdline(process.pid))  # a program that begins has no words
        assert is_simulated(replace(ENGINE, pid=process.pid)) is simulated
    assert not is_simulated(replace(ENGINE, pid=None))
