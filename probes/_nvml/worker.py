"""The child that talks to the driver, and may hang there without harm to anybody else.

A line on stdin is a number and a request (``7 cards``), a line on stdout the answer: a JSON object
with that number as ``request``. It ends when stdin does. It creates no CUDA context and costs no
GPU memory.
"""

from __future__ import annotations

import json
import signal
import sys

if __name__ == "__main__":  # started as a file, with no other path than where it is installed
    sys.path.insert(0, __file__.rsplit("/", 3)[0])

from probes._nvml.session import Session


def main(session: Session | None = None) -> None:
    """Answer until stdin ends. Ctrl-C in a terminal is meant for the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    session = session or Session()
    for line in sys.stdin:
        number, request = line.split()
        answer = {"request": int(number), **session.answer(request)}
        sys.stdout.write(json.dumps(answer, separators=(",", ":")) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
