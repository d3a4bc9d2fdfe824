"""The peers that come from pip, in an environment of their own, built below a temporary folder."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import venv
from pathlib import Path

PACKAGES = ("supervisor==4.3.0", "circus==0.19.0", "superlance==2.0.0", "setuptools<81")
"""supervisor and superlance ask pkg_resources, which newer setuptools have no more."""
HOME = Path(tempfile.gettempdir()) / f"vllm-watchdog-peers-python3.{sys.version_info.minor}"
_DONE = HOME / "installed"


def program(name: str) -> str:
    """Where a program of it lies, or will lie."""
    return str(HOME / "bin" / name)


def build() -> str:
    """Build it unless it is there. Returns why that failed, in one line, or ""."""
    if _DONE.exists() and _DONE.read_text() == " ".join(PACKAGES):
        return ""
    venv.create(HOME, with_pip=True, clear=True)
    command = [program("python"), "-m", "pip", "install", "--quiet", *PACKAGES]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        return (result.stderr.strip().splitlines() or ["pip failed"])[-1]
    _DONE.write_text(" ".join(PACKAGES))
    return ""
