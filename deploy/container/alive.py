#!/usr/bin/env python3
"""For HEALTHCHECK: can the watchdog still help? Prints what /livez says; exit code 0 or 1."""

import http.client
import sys

_ADDRESS = "127.0.0.1:9909"
_PATIENCE = 4.0
_LONGEST = 4096
"""Bytes: what Docker keeps of it."""


def main(address: str) -> int:
    """The exit code. ``address`` is HOST:PORT; no proxy is asked, whatever the environment says."""
    try:
        connection = http.client.HTTPConnection(address, timeout=_PATIENCE)
        connection.request("GET", "/livez")
        answer = connection.getresponse()
        sys.stdout.write(answer.read(_LONGEST).decode(errors="replace"))
    except (OSError, http.client.HTTPException) as error:
        sys.stdout.write(f"{address} does not answer: {error}\n")
        return 1
    return 0 if answer.status == http.HTTPStatus.OK else 1


if __name__ == "__main__":
    sys.exit(main(*(sys.argv[1:] or [_ADDRESS])))
