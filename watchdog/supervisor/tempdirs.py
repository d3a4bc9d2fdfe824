"""One private temporary directory a generation, so that vLLM's litter goes with it.

vLLM leaves six sockets and a rendezvous file in TMPDIR at every start, for ever.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

PREFIX = "vw-"
_DIGITS = 12


def make() -> Path:
    """A new directory, mode 0700. Its path is short: socket paths end at about 107 bytes.

    Raises OSError.
    """
    path = name()
    path.mkdir(mode=0o700)
    return path


def name() -> Path:
    """The path of a directory that does not exist yet."""
    return Path(tempfile.gettempdir()) / f"{PREFIX}{os.urandom(_DIGITS // 2).hex()}"


def remove(path: str | Path) -> bool:
    """Remove a recorded private directory; False when its name shows that it is none of ours."""
    folder = Path(path)
    if not folder.name.startswith(PREFIX) or folder.is_symlink():
        return False
    shutil.rmtree(folder, ignore_errors=True)
    return True
