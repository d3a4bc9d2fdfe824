"""``python -m tests.chaos --minutes 30 --seed 1``: exit 0 without a violation, 1 with one."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.chaos import report
from tests.chaos.run import run

_ALONE = "CHAOS_MOUNTS_ARE_OURS"
_UNSHARE = ("unshare", "--mount", "--propagation", "private")


def main(argv: list[str]) -> int:
    """Run in a mount namespace of its own where that can be made, so that no mount outlives us."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("docs/measurements"), metavar="FOLDER")
    given = parser.parse_args(argv)
    if _ALONE not in os.environ and _can_unshare():
        os.environ[_ALONE] = "1"
        words = [*_UNSHARE, sys.executable, "-m", "tests.chaos", *argv]
        os.execvp(_UNSHARE[0], words)  # noqa: S606
    os.environ.pop(_ALONE, None)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    outcome = run(given.seed, given.minutes * 60)
    command = f"python -m tests.chaos --minutes {given.minutes:g} --seed {given.seed}"
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "chaos.md").write_text(report.written(outcome, command))
    violations = len(outcome.journal.violations)
    sys.stdout.write(f"{len(outcome.journal.sequence)} faults, {violations} violations\n")
    return 1 if violations else 0


def _can_unshare() -> bool:
    try:
        return subprocess.run([*_UNSHARE, "true"], check=False, capture_output=True).returncode == 0
    except OSError:
        return False


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
