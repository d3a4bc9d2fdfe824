"""``python -m watchdog.simulator``: the entry that the daemon spawns."""

import sys

from watchdog.simulator.cli import main

sys.exit(main(sys.argv[1:]))
