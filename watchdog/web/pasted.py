"""Commands that work when they are pasted: with the state directory where that is not found."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

from watchdog import config

_NAME = "VLLM_WATCHDOG_STATE_DIR"
_COMMAND = re.compile(
    r"\bvllm-watchdog (?=(?:start|stop|restart|pause|resume|reset-breaker|reload|status|incidents"
    r"|sweep|doctor|drill)\b)"
)
COMMAND = re.compile(
    r"\bvllm-watchdog (?:--state-dir (?:'[^']*'|&#x27;.*?&#x27;|\S+) )?"
    r"(?:(?:start|stop|restart|reset-breaker|incidents)(?: (?!when\b|and\b|or\b)[\w.-]*\w)?"
    r"|resume|reload|status|sweep|doctor|drill)\b"
)
"""One of our commands in a sentence, whole; the sentence may be HTML."""


def unusual(state_dir: Path | None) -> str:
    """``state_dir`` as text; "" when a command that is not told of it finds it."""
    if state_dir is None:
        return ""
    usual = config.state_dir(None, {k: v for k, v in os.environ.items() if k != _NAME})
    return "" if usual.resolve() == state_dir.resolve() else str(state_dir.absolute())


def pasted(text: str, state_dir: str) -> str:
    """``text`` with ``--state-dir`` in each of our commands that has none; none for ""."""
    if not state_dir:
        return text
    told = f"vllm-watchdog --state-dir {shlex.quote(state_dir)} "
    return _COMMAND.sub(lambda _: told, text)
