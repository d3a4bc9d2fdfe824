"""Runs a command of the operator's, one of those that the configuration names."""

from __future__ import annotations

import time
from typing import Annotated

from msgspec import Meta, Struct

from watchdog.contracts import ActionError, ActionSpec, BoxControl, Order, SideAction
from watchdog.core.model import Seconds, SubjectKind

_LONGEST: Seconds = 600.0
_TO_END_IT: Seconds = 15.0
"""What does not end by itself is ended by TERM and KILL, and gone, within this."""


class Command(Struct, frozen=True, kw_only=True):
    """A command that rules may run."""

    command: tuple[str, ...]
    """Program and arguments, no shell."""
    timeout: Annotated[float, Meta(gt=0.0, le=_LONGEST)] = 30.0
    """Then the whole set of its processes is ended. Ten minutes at most."""

    def __post_init__(self) -> None:
        """Raises ValueError without a program."""
        if not self.command or not self.command[0]:
            raise ValueError("expected a program in command")


class RunCommandSettings(Struct, frozen=True, kw_only=True):
    """What rules may run; nothing else ever is."""

    commands: dict[Annotated[str, Meta(pattern="^[A-Za-z0-9_-]{1,40}$")], Command] = {}
    """By the name that a rule writes behind the colon: ``run_command:NAME``."""


class RunCommand:
    """Beside everything else, without a shell; it is told what it is run for."""

    def __init__(self, settings: RunCommandSettings) -> None:
        self._commands = settings.commands

    def run(self, order: Order, box: BoxControl) -> str:
        """Run it; in words what it said last. Raises ``ActionError`` when it fails or is late."""
        command = self._commands.get(order.choice)
        if command is None:
            raise ActionError(f"cannot run {order.choice!r}: no command of that name any more")
        left = order.deadline - time.monotonic() - _TO_END_IT
        timeout = min(command.timeout, left) if order.deadline else command.timeout
        if timeout <= 0.0:
            raise ActionError(f"cannot run {order.choice}: no time is left")
        try:
            said = box.run(command.command, _environment(order), timeout)
        except ActionError as error:
            raise ActionError(f"cannot run {order.choice}: {error}", error.cause) from error
        return f"ran {order.choice}: {said}" if said else f"ran {order.choice}"


def _environment(order: Order) -> dict[str, str]:
    return {
        "VLLM_WATCHDOG_RULE": order.rule,
        "VLLM_WATCHDOG_SUBJECT": str(order.target),
        "VLLM_WATCHDOG_INCIDENT": order.incident,
        "VLLM_WATCHDOG_CAUSE": order.cause.value,
    }


def _choices(settings: RunCommandSettings) -> tuple[str, ...]:
    return tuple(settings.commands)


def _build(settings: RunCommandSettings) -> SideAction:
    return RunCommand(settings)


ACTION = ActionSpec(
    "run_command",
    "run one of the commands in [actions.run_command]",
    _build,
    subjects=frozenset({SubjectKind.ENGINE, SubjectKind.GPU, SubjectKind.HOST}),
    timeout=_LONGEST + _TO_END_IT + 5.0,
    settings=RunCommandSettings,
    choices=_choices,
)
