"""Bugs to be planted in the core, one at a time: each must be seen by the law that is named.

A law that stays green over a planted bug proves nothing. ``python -m tests.laws.bugs`` plants
them all and prints which law saw which.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.laws.lawful import HASTY

ROOT = Path(__file__).parents[2]
PACKAGE = "watchdog"
RED = 1
"""What pytest exits with when a test failed, as against an error of its own."""
_PATIENCE = 300.0


class PatchError(Exception):
    """The text to be replaced is not there exactly once: the bug cannot be planted."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One planted bug: in ``file`` of the core, ``old`` becomes ``new``.

    ``why`` is what a watchdog with it would do; ``law`` the law that must see it.
    """

    name: str
    file: str
    old: str
    new: str
    why: str
    law: str


def planted(text: str, mutant: Mutant) -> str:
    """``text`` with the bug; raises PatchError when it does not fit exactly once."""
    found = text.count(mutant.old)
    if found != 1:
        raise PatchError(f"{mutant.name}: {found} times in {mutant.file}: {mutant.old!r}")
    return text.replace(mutant.old, mutant.new)


@contextmanager
def copied(mutant: Mutant | None = None) -> Iterator[Path]:
    """A folder with a copy of the package, the bug planted in it."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as name:
        folder = Path(name)
        shutil.copytree(ROOT / PACKAGE, folder / PACKAGE)
        if mutant is not None:
            file = folder / PACKAGE / "core" / mutant.file
            file.write_text(planted(file.read_text(), mutant))
        yield folder


def judged(folder: Path, laws: Iterable[str]) -> subprocess.CompletedProcess[str]:
    """Run ``laws`` over the package in ``folder``, to the first that is broken."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider"]
    command += ["-p", "no:randomly", "-o", "required_plugins="]
    command += ["-o", f"pythonpath={folder} {ROOT}", "--tb=line", *laws]
    return subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, HASTY: "1", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        timeout=_PATIENCE,
        check=False,
    )


def main(mutants: Iterable[Mutant]) -> int:
    """Plant them all; 1 when one survives."""
    survivors = 0
    for mutant in mutants:
        with copied(mutant) as folder:
            seen = judged(folder, [mutant.law])
        survivors += seen.returncode != RED
        fate = "killed" if seen.returncode == RED else f"SURVIVED ({seen.returncode})"
        sys.stdout.write(f"{fate}: {mutant.name} ({mutant.file}) by {mutant.law}\n")
        sys.stdout.flush()
    return int(survivors > 0)
