"""What every registered probe must do, whoever wrote it."""

import contextlib
import threading
import time

import pytest

from tests.support.engines import Engines, Target, black_hole, raw_server
from tests.support.simulated import free_port
from watchdog import registry
from watchdog.contracts import Endpoint, Probe, ProbeError, ProbeSpec
from watchdog.core.model import Event, ReadingTaken, Subject, SubjectKind, engine_subject
from watchdog.runner import ProbeRun

SPECS = [pytest.param(spec, id=name) for name, spec in registry.probes().items()]
GRACE = 5.0
"""Seconds beyond the deadline that a loaded machine may need; a hang lasts for ever."""


def built(spec: ProbeSpec, port: int) -> Probe:
    """A probe with default settings."""
    engine = spec.subject_kind is SubjectKind.ENGINE
    target = Target(Endpoint("127.0.0.1", port, served_name="m"))
    return spec.build(spec.settings(), target if engine else Engines((target,)))


def run_once(spec: ProbeSpec, probe: Probe, timeout: float) -> ReadingTaken:
    """One run through the runner, which checks what is declared."""
    subject: Subject | None = None
    if spec.subject_kind is SubjectKind.ENGINE:
        subject = engine_subject("main")
    posted: list[Event] = []
    run = ProbeRun(spec, probe, subject, None, posted.append, timeout=timeout)
    try:
        run.run()
    finally:
        run.close()
    (event,) = posted
    assert isinstance(event, ReadingTaken)
    return event


@pytest.mark.parametrize("spec", SPECS)
def test_it_survives_that_there_is_nothing_to_see(spec: ProbeSpec) -> None:
    """FACT: without an engine (or a GPU) it brings declared samples, or one line of words."""
    event = run_once(spec, built(spec, free_port()), timeout=10.0)
    error = event.reading.error or ""
    assert "\n" not in error
    assert not error.startswith(("cannot use", "cannot read:", "timed out"))
    assert error or event.reading.samples or event.reading.unread
    assert all("\n" not in u.error for u in event.reading.unread)


@pytest.mark.parametrize("spec", SPECS)
def test_it_returns_before_its_deadline(spec: ProbeSpec) -> None:
    """FACT: against a server that takes everything and says nothing it returns in time."""
    with raw_server(black_hole) as hole:
        probe = built(spec, hole.port)
        try:
            done = threading.Event()

            def read() -> None:
                try:
                    list(probe.read(time.monotonic() + 1.0))
                except ProbeError:
                    pass
                finally:
                    done.set()

            threading.Thread(target=read, daemon=True).start()
            assert done.wait(1.0 + GRACE)
        finally:
            probe.close()


@pytest.mark.parametrize("spec", SPECS)
def test_it_closes(spec: ProbeSpec) -> None:
    """FACT: a probe can be closed before and after it read."""
    built(spec, free_port()).close()
    probe = built(spec, free_port())
    with contextlib.suppress(ProbeError):
        list(probe.read(time.monotonic() + 10.0))
    probe.close()


@pytest.mark.parametrize("spec", SPECS)
def test_its_settings_refuse_what_they_do_not_know(spec: ProbeSpec) -> None:
    """FACT: an unknown setting is an error, and every known one has a default."""
    spec.settings()
    with pytest.raises(TypeError):
        spec.settings(no_such_setting=1)
