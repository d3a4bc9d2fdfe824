"""Stands before a simulated engine: ``python engine.py FLAGS_FILE FLAG…`` becomes the simulator.

What the file says at a start comes behind the flags: so a start can be made to fail, as a disk or a
driver makes it fail, with a configuration that nobody touched.
"""

import contextlib
import os
import sys
from pathlib import Path

if __name__ == "__main__":
    file, *flags = sys.argv[1:]
    with contextlib.suppress(OSError):
        flags += Path(file).read_text().split()
    os.execv(sys.executable, [sys.executable, "-m", "watchdog.simulator", *flags])  # noqa: S606
