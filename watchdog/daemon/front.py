"""What the web side sees of the daemon: a published snapshot, and a way to ask for something."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from watchdog.core.model import Commanded, Seconds, Verb
from watchdog.daemon.loop import Loop
from watchdog.daemon.reload import Reloaded, Wish
from watchdog.inbox import Inbox, Request, Task
from watchdog.metrics import Exporter
from watchdog.snapshot import Snapshot
from watchdog.web.window import CommandResult

_PATIENCE: Seconds = 300.0
"""Seconds a command may take before its sender is told that it still runs."""

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

    def __init__(
        self,
        loop: Loop,
        inbox: Inbox,
        exporter: Exporter,
        snapshot: Callable[[], Snapshot],
        ask: Callable[[Wish], None],
    ) -> None:
        self._loop = loop
        self._inbox = inbox
        self._ask = ask
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
            names = ", ".join(self._loop.state.engines)
            text = f"unknown engine {engine!r}, expected one of: {names}"
            return CommandResult(ok=False, message=text, exit_code=2)
        now = time.monotonic()
        until = None if seconds is None else now + seconds
        request = Request(Commanded(now, known, engine, reason, owner, until))
        self._inbox.post(request)
        if not request.done.wait(_PATIENCE):
            return CommandResult(ok=False, message=f"{verb} still runs", exit_code=1)
        if request.error is not None:
            return CommandResult(ok=False, message=request.error, exit_code=1)
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
        *(f"{key}: needs a new daemon, the old value stays" for key in result.needs_restart),
    )
    details = {
        "changed": list(result.changed),
        "needs_restart": list(result.needs_restart),
        "restarts": list(result.restarts),
    }
    return CommandResult(ok=True, message="\n".join(lines), exit_code=0, details=details)
