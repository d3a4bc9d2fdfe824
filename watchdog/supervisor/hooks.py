"""The operator's own commands, around an engine's life and else: bounded, and gone when they fail.

A command may leave something running on purpose (a tunnel, a mount). What it left when it ended
well is let be, and no engine's stop may take it for a part of the engine; of one that failed or
took too long nothing is left.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from watchdog import procfs
from watchdog.contracts import ActionError
from watchdog.core.model import Cause, Seconds
from watchdog.supervisor import identity
from watchdog.supervisor.exits import ExitStatus, exit_status
from watchdog.supervisor.household import Household, reap
from watchdog.supervisor.ladder import StopLadder, StopSettings
from watchdog.supervisor.members import GENERATION_VARIABLE, MemberTable
from watchdog.supervisor.spawn import Launch, lasting, spawn

HOOK_VARIABLE = "VLLM_WATCHDOG_HOOK"
_GLANCE: Seconds = 0.1
_LADDER = StopSettings(drain_timeout=0.0, term_timeout=2.0, kill_timeout=5.0)
LONGEST_END: Seconds = _LADDER.term_timeout + _LADDER.kill_timeout + 1.0
"""How long it may take to end a hook that took too long."""


@dataclass(frozen=True, slots=True)
class Hook:
    """A program and its arguments, and how many seconds it may take."""

    command: tuple[str, ...]
    timeout: Seconds


def run(
    hooks: Iterable[Hook],
    key: str,
    launch: Launch,
    household: Household,
    cut: Callable[[], bool] = lambda: False,
) -> str | None:
    """Run them one after the other, with the engine's environment, into the engine's log.

    ``key`` is their name in the configuration, which they find in VLLM_WATCHDOG_HOOK. The first
    that fails ends it: one sentence about it, None when all went well. ``cut`` says that nobody
    wants the rest any more: what runs is ended.
    """
    for number, hook in enumerate(hooks):
        env = lasting(launch) | {HOOK_VARIABLE: key}
        wrong = once(hook, launch, env, household, cut)
        if wrong is not None:
            # The program alone: the arguments may hold a password, in a shell's line for instance.
            return f"{key}[{number}] ({hook.command[0]}) {wrong}"
    return None


def once(
    hook: Hook,
    launch: Launch,
    env: Mapping[str, str],
    household: Household,
    cut: Callable[[], bool] = lambda: False,
) -> str | None:
    """Run one with this environment alone: what is wrong with it in words, None when it went well.

    ``launch`` says where it writes and in which directory it runs; ``cut`` is as for ``run``, and
    asked ten times a second.
    """
    mark = f"hook-{os.urandom(8).hex()}"
    env = {**env, GENERATION_VARIABLE: mark}
    own = Launch(launch.engine, hook.command, launch.log_path, env, launch.cwd)
    household.hook_began(mark)
    try:
        process = spawn(own, env, household)
    except ActionError as error:
        household.hook_ended(mark)
        return f"did not run: {error}"
    process.returncode = 0  # it is waited for here, and Popen must not complain
    info = procfs.stat(process.pid)
    ticks = info.start_ticks if info is not None else 0
    pidfd = identity.open_pidfd(process.pid, ticks)
    table = MemberTable(mark, (process.pid, ticks), household)
    ladder = StopLadder(table, household, _LADDER)
    try:
        if pidfd is None:
            return f"cannot be waited for{_ended(ladder)}"
        return _awaited(hook, process.pid, pidfd, ladder, cut)
    finally:
        if pidfd is not None:
            os.close(pidfd)
        if reap(process.pid):
            household.hook_ended(mark)
        household.forget(process.pid)


def _awaited(
    hook: Hook, pid: int, pidfd: int, ladder: StopLadder, cut: Callable[[], bool]
) -> str | None:
    """Nothing when it ended well in time; else what went wrong, and nobody of it is left."""
    deadline = time.monotonic() + hook.timeout
    while not identity.wait_gone((pidfd,), min(_GLANCE, deadline - time.monotonic())):
        late = time.monotonic() >= deadline
        if late or cut():
            why = f"took more than {hook.timeout:g} s" if late else "was not waited for any more"
            return f"{why}{_ended(ladder)}"
    status = exit_status(pidfd, pid)
    return None if status == ExitStatus(exit_code=0) else f"{status}{_ended(ladder)}"


def _ended(ladder: StopLadder) -> str:
    try:
        ladder.run(drain=False, cause=Cause.CRASH)
    except ActionError as error:
        return f"; {error}"
    return ""
