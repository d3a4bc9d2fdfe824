"""One private temporary directory a generation, so that vLLM's litter goes with it.

vLLM leaves six sockets and a rendezvous file in TMPDIR at every start, for ever.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path

from watchdog.places import SHM

PREFIX = "vw-"
_DIGITS = 12
_NAME = re.compile(rf"{PREFIX}[0-9a-f]{{{_DIGITS}}}")
_LONGEST_BASE = 107 - len("/") - len(PREFIX) - _DIGITS - len("/") - 36
"""A Unix socket's path has 107 bytes; vLLM names its sockets by UUID, 36 characters."""


class NowhereError(OSError):
    """Not one place for temporary files can be written to. The message is one line."""


def make() -> Path:
    """A new directory, mode 0700. Its path is short: socket paths end at about 107 bytes.

    Raises OSError.
    """
    path = name()
    path.mkdir(mode=0o700)
    return path


def name() -> Path:
    """The path of a directory that does not exist yet.

    Below TMPDIR, unless that is so deep that vLLM could not bind its sockets there.
    """
    return base() / f"{PREFIX}{os.urandom(_DIGITS // 2).hex()}"


def base() -> Path:
    """Where the private directories are. Raises NowhereError."""
    folder = temporary()
    if len(os.fsencode(folder)) > _LONGEST_BASE:
        return Path("/tmp")  # noqa: S108 - the name below it cannot be guessed, and its mode is 0700
    return Path(folder)


def temporary() -> str:
    """Where temporary files are: below a read-only root only shared memory is left for them.

    Raises NowhereError.
    """
    try:
        return tempfile.gettempdir()
    except FileNotFoundError:
        if os.access(SHM, os.W_OK | os.X_OK):
            return SHM
        raise NowhereError(f"cannot write to any of TMPDIR, /tmp and {SHM}") from None


def for_logs() -> Path:
    """A new directory for the logs of engines of whom nothing else is kept. Raises OSError."""
    return Path(tempfile.mkdtemp(prefix=f"{PREFIX}log-", dir=temporary()))


def is_private(path: str | Path) -> bool:
    """Whether the path is one that ``name`` may have made."""
    return Path(path).is_absolute() and _NAME.fullmatch(Path(path).name) is not None


def remove(path: str | Path) -> bool:
    """Remove a recorded private directory; False when its name shows that it is none of ours."""
    folder = Path(path)
    if not folder.name.startswith(PREFIX) or folder.is_symlink():
        return False
    shutil.rmtree(folder, ignore_errors=True)
    return True
