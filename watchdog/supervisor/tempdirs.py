"""One private temporary directory a generation, so that vLLM's litter goes with it.

vLLM leaves six sockets and a rendezvous file in TMPDIR at every start, for ever.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path

PREFIX = "vw-"
_DIGITS = 12
_NAME = re.compile(rf"{PREFIX}[0-9a-f]{{{_DIGITS}}}")
_LONGEST_BASE = 107 - len("/") - len(PREFIX) - _DIGITS - len("/") - 36
"""A Unix socket's path has 107 bytes; vLLM names its sockets by UUID, 36 characters."""


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
    """Where the private directories are."""
    folder = tempfile.gettempdir()
    if len(os.fsencode(folder)) > _LONGEST_BASE:
        return Path("/tmp")  # noqa: S108 - the name below it cannot be guessed, and its mode is 0700
    return Path(folder)


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
