"""Speaks to the daemon's control socket."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, NoReturn

from watchdog import config

_PATIENCE = 330.0
"""Seconds; a stop ladder with all its rungs is far shorter."""
NO_DAEMON = 3
_HINT = "; engines serve on without it, and run adopts them (another place: --state-dir)"


def socket_path(state_dir: Path | None) -> Path:
    """Where the daemon of this state directory listens."""
    return config.state_dir(state_dir, os.environ) / "control.sock"


def request(
    state_dir: Path | None, method: str, path: str, body: dict[str, Any] | None = None
) -> dict[str, Any]:
    """The daemon's answer. Ends the process with exit code 3 when there is no daemon."""
    import httpx

    where = socket_path(state_dir)
    try:
        transport = httpx.HTTPTransport(uds=str(where))
        with httpx.Client(transport=transport, timeout=_PATIENCE, trust_env=False) as client:
            answer = client.request(method, f"http://daemon{path}", json=body)
            found: Any = answer.json()
    except httpx.ReadTimeout:
        fail(f"the daemon at {where} has not answered for {_PATIENCE:.0f} s", 1)
    except (httpx.HTTPError, ValueError, OSError) as error:
        why = ": permission denied" if "[Errno 13]" in str(error) else ""
        fail(f"no daemon answers at {where}{why}{_HINT}", NO_DAEMON)
    if not isinstance(found, dict) or "error" in found:
        fail(f"the daemon at {where} cannot answer: {_told(found)}", 1)
    return found


def _told(found: Any) -> str:  # noqa: ANN401 - whatever was answered
    return str(found["error"]) if isinstance(found, dict) else "not in its own words"


def fail(text: str, code: int) -> NoReturn:
    """One line on stderr, and the end."""
    print(text, file=sys.stderr)  # noqa: T201 - this is the command line
    sys.exit(code)
