"""An exit is noticed with its status, whoever reaps whom, and its cause has a name."""

import os
import signal
import subprocess

import pytest

from tests.support.simulated import until
from tests.support.trees import script, simulator, supervision
from watchdog.core.model import Cause, EngineExited, EngineSpawned
from watchdog.supervisor.exits import ExitStatus, ExitWatch

SLEEP = "time.sleep(600)\n"


def test_status_seven_is_seven_while_orphans_are_reaped() -> None:
    """FACT: reaping orphans steals neither the leader's exit status nor that of other children."""
    text = (
        "for _ in range(20):\n"
        "    if os.fork() == 0:\n"
        "        os.setsid()\n"
        "        if os.fork(): os._exit(0)\n"
        "        os._exit(5)\n"
        "    os.wait()\n"
        "os._exit(7)\n"
    )
    with supervision(script(text)) as supervised:
        supervised.engine.start(Cause.OPERATOR)
        other = subprocess.Popen(script("os._exit(9)"))
        reaped = 0

        def reap() -> bool:
            nonlocal reaped
            reaped += supervised.household.reap_orphans()
            return reaped == 20

        until(reap)
        assert supervised.exited().exit_code == 7
        supervised.household.reap_orphans()

        assert other.wait() == 9
        assert supervised.exited().cause is Cause.CRASH


def test_an_exit_nobody_asked_for_is_a_crash_even_with_status_zero() -> None:
    """FACT: exit 0 is reported with its code and cause crash, once, after the spawn."""
    with supervision(script("")) as supervised:
        supervised.engine.start(Cause.OPERATOR)
        event = supervised.exited()

        assert (event.exit_code, event.signal, event.cause) == (0, None, Cause.CRASH)
        assert [type(one) for one in supervised.events] == [EngineSpawned, EngineExited]
        assert event.generation == supervised.events[0].generation  # type: ignore[union-attr]


def test_the_death_of_the_engine_core_is_the_cause_of_the_exit() -> None:
    """FACT: D2: EngineCore is killed, the leader exits 0: the cause is engine_core_died."""
    with supervision(simulator(0, "--engine-death-delay", "0.1")) as supervised:
        supervised.engine.start(Cause.OPERATOR)
        until(lambda: "Application startup complete" in supervised.log())
        core = next(p for p, n in supervised.pids().items() if n.startswith("VLLM::EngineCor"))
        os.kill(core, signal.SIGKILL)

        event = supervised.exited()

        assert (event.exit_code, event.cause) == (0, Cause.ENGINE_CORE_DIED)


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        ("port_in_use", Cause.PORT_IN_USE),
        ("model_missing", Cause.MODEL_MISSING),
        ("bad_argument", Cause.BAD_ARGUMENTS),
        ("driver_803", Cause.DRIVER_MISMATCH),
        ("compat_804", Cause.CUDA_COMPAT_UNSUPPORTED),
        ("memory_short", Cause.GPU_MEMORY_SHORT),
        ("cuda_oom", Cause.CUDA_OOM),
    ],
)
def test_a_failed_start_has_its_cause(fault: str, cause: Cause) -> None:
    """FACT: D7: vLLM's own lines name the cause, and the explanation is one sentence."""
    with supervision(simulator(0, "--fault", fault)) as supervised:
        supervised.engine.start(Cause.OPERATOR)
        event = supervised.exited()

        assert event.cause is cause
        assert event.explanation
        assert "\n" not in event.explanation


def test_only_this_generations_log_counts() -> None:
    """FACT: the log is appended to, and a line of an earlier generation explains nothing."""
    with supervision(script("os._exit(1)")) as supervised:
        old = "OSError: [Errno 98] Address already in use\n"
        (supervised.directory / "log").write_text(old)
        supervised.engine.start(Cause.OPERATOR)

        assert supervised.exited().cause is Cause.CRASH
        assert supervised.engine.log_bytes() == 0
        assert supervised.log() == old


def test_the_exit_of_somebody_elses_child_has_its_status() -> None:
    """FACT: the exit of a process that is not our child has its status, or none, never a wrong one.

    The kernel keeps it for the holder of a pidfd since 6.15.
    """
    text = (
        "child = os.fork()\n"
        "if child == 0: time.sleep(600)\n"
        "print(child, flush=True)\n"
        "os.waitpid(child, 0)\n"
    )
    watch = ExitWatch()
    seen: list[ExitStatus] = []
    with subprocess.Popen(script(text), stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        pidfd = os.pidfd_open(child)
        watch.watch(pidfd, child, seen.append)
        os.kill(child, signal.SIGKILL)
        until(lambda: seen)
        os.close(pidfd)
    watch.close()

    kernel = tuple(int(part) for part in os.uname().release.split(".")[:2])
    known = ExitStatus(signal=signal.SIGKILL)
    assert seen[0] in ([known] if kernel >= (6, 15) else [known, ExitStatus()])


def test_an_unwatched_process_is_not_reported() -> None:
    """FACT: after unwatch no exit is reported; after close the thread is gone."""
    watch = ExitWatch()
    seen: list[ExitStatus] = []
    with subprocess.Popen(script(SLEEP)) as child:
        pidfd = os.pidfd_open(child.pid)
        token = watch.watch(pidfd, child.pid, seen.append)
        watch.unwatch(token)
        os.close(pidfd)
        child.kill()
    watch.close()

    assert seen == []
