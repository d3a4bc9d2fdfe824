"""What the web side sees of the daemon: a published snapshot, and a way to ask for something."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping

from watchdog.core.model import Commanded, Seconds, Verb
from watchdog.daemon.loop import Loop
from watchdog.daemon.reload import Reloaded, Wish
from watchdog.inbox import Inbox, Request, Task
from watchdog.metrics import Exporter
from watchdog.snapshot import Snapshot
from watchdog.web.window import CommandResult

_PATIENCE: Seconds = 300.0
"""Seconds a command may take before its sender is told that it still runs."""

_STARTS = frozenset({Verb.START, Verb.RESTART, Verb.RESET_BREAKER})

_VERBS: Mapping[str, Verb] = {
    "start": Verb.START,
    "stop": Verb.STOP,
    "restart": Verb.RESTART,
    "pause": Verb.PAUSE,
    "resume": Verb.RESUME,
    "reset-breaker": Verb.RESET_BREAKER,
}


class Front:
    """Implements ``web.window.Window``. Every method is called from the web server's threads."""

    def __init__(  # noqa: PLR0913, PLR0917 - all that the web side may see
        self,
        loop: Loop,
        inbox: Inbox,
        exporter: Exporter,
        snapshot: Callable[[], Snapshot],
        ask: Callable[[Wish], None],
        leaving: Callable[[], Collection[str]],
    ) -> None:
        self._loop = loop
        self._inbox = inbox
        self._ask = ask
        self._leaving = leaving
        self._exporter = exporter
        self._snapshot = snapshot

    def snapshot(self) -> Snapshot:
        """The state after the last step."""
        return self._snapshot()

    def loop_age(self) -> Seconds:
        """Seconds since the main loop last turned."""
        return time.monotonic() - self._loop.turned_at

    def metrics(self, accept: str) -> tuple[bytes, str]:
        """The page for Prometheus and its content type."""
        return self._exporter.render(accept)

    def command(
        self, verb: str, engine: str, reason: str, owner: str, seconds: Seconds | None
    ) -> CommandResult:
        """Ask the loop and wait until it is done; bad input is refused at once."""
        if verb == "reload":
            return self._reload(owner)
        known = _VERBS.get(verb)
        if known is None:
            return CommandResult(ok=False, message=f"unknown command {verb!r}", exit_code=2)
        if engine and engine not in self._loop.state.engines:
            text = (
                f"unknown engine {engine!r}, expected one of: {', '.join(self._loop.state.engines)}"
            )
            return CommandResult(ok=False, message=text, exit_code=2)
        leaving = self._leaving() if known in _STARTS else ()
        if engine and engine in leaving:
            text = f"cannot {verb} {engine}: it is not configured any more and is about to end"
            return CommandResult(ok=False, message=text, exit_code=1)
        targets = [engine]
        if leaving and not engine:
            targets = [name for name in self._loop.state.engines if name not in leaving]
        now = time.monotonic()
        until = None if seconds is None else now + seconds
        requests = [Request(Commanded(now, known, name, reason, owner, until)) for name in targets]
        if known in {Verb.PAUSE, Verb.RESUME}:
            return self._done(verb, requests)
        names = [one for one in self._loop.state.engines if one not in leaving]
        return self._done(f"{verb} {engine or ', '.join(names)}", requests)

    def _done(self, verb: str, requests: list[Request]) -> CommandResult:
        for request in requests:
            self._inbox.post(request)
        deadline = time.monotonic() + _PATIENCE
        if not all(one.done.wait(max(deadline - time.monotonic(), 0.0)) for one in requests):
            return CommandResult(ok=False, message=f"{verb} still runs", exit_code=1)
        errors = [one.error for one in requests if one.error is not None]
        if errors:
            return CommandResult(ok=False, message="\n".join(errors), exit_code=1)
        return CommandResult(ok=True, message=f"{verb}: done", exit_code=0)

    def _reload(self, owner: str) -> CommandResult:
        wish = Wish(owner)
        self._inbox.post(Task(lambda: self._ask(wish)))
        if not wish.done.wait(_PATIENCE):
            return CommandResult(ok=False, message="reload still runs", exit_code=1)
        return told(wish.result)


def told(result: Reloaded) -> CommandResult:
    """What a reload answers: the lines for a person, and the same apart."""
    if result.errors:
        code = 1 if result.stopping else 2
        details = {"errors": list(result.errors)}
        return CommandResult(
            ok=False, message="\n".join(result.errors), exit_code=code, details=details
        )
    lines = (
        *(result.changed or ("nothing changed",)),
        *(f"{name} restarts: its configuration changed" for name in result.restarts),
        *(f"{name} does not restart yet: {reason}" for name, reason in result.held),
        *(f"{key}: needs a new daemon, the old value stays" for key in result.needs_restart),
    )
    details = {
        "changed": list(result.changed),
        "needs_restart": list(result.needs_restart),
        "restarts": list(result.restarts),
        "held": [f"{name}: {reason}" for name, reason in result.held],
    }
    return CommandResult(ok=True, message="\n".join(lines), exit_code=0, details=details)
