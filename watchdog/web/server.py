"""Serves a WSGI application with bounded threads, connections, sizes and times."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
from pathlib import Path
from typing import Any

from waitress.server import BaseWSGIServer, MultiSocketServer, create_server

from watchdog.web.app import App

_THREADS = 4
_CONTROL_THREADS = 8
"""A command waits in its thread until the engine has stopped."""
_CONNECTIONS = 200
_IDLE_LIMIT = 20
"""Seconds after which a silent connection is closed."""
_HEADER_LIMIT = 16 * 1024
_BODY_LIMIT = 64 * 1024
_SOCKET_PATH_LIMIT = 107


class ListenError(Exception):
    """An address that cannot be served on. One line."""


class Server:
    """One listening application in a thread of its own."""

    def __init__(self, server: MultiSocketServer | BaseWSGIServer, name: str) -> None:
        self._server = server
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def stop(self) -> None:
        """Listen no more. What is being answered is not waited for."""
        with contextlib.suppress(OSError):
            self._server.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):  # the sockets were closed under it: that is how it ends
            self._server.run()


def serve_tcp(app: App, host: str, port: int) -> Server:
    """Serve on HOST:PORT. Raises ListenError when it is taken or not ours to bind."""
    try:
        server = create_server(app, host=host, port=port, threads=_THREADS, **_bounds())
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ListenError(f"cannot listen on {host}:{port}: {reason}") from error
    return Server(server, "web")


def serve_socket(app: App, path: Path) -> Server:
    """Serve on a Unix socket of mode 0600. Raises ListenError.

    A socket that nobody answers on is a leftover and replaced.
    """
    if len(os.fsencode(path)) > _SOCKET_PATH_LIMIT:
        raise ListenError(
            f"cannot listen on {path}: longer than {_SOCKET_PATH_LIMIT} bytes; "
            "choose a shorter --state-dir"
        )
    try:
        _clear(path)
        server = create_server(
            app,
            unix_socket=str(path),
            unix_socket_perms="600",
            threads=_CONTROL_THREADS,
            **_bounds(),
        )
    except OSError as error:
        raise ListenError(f"cannot listen on {path}: {error.strerror}") from error
    return Server(server, "control")


def _bounds() -> dict[str, Any]:
    return {
        "connection_limit": _CONNECTIONS,
        "channel_timeout": _IDLE_LIMIT,
        "cleanup_interval": 5,
        "max_request_header_size": _HEADER_LIMIT,
        "max_request_body_size": _BODY_LIMIT,
        "ident": "",
        "clear_untrusted_proxy_headers": True,
    }


def _clear(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as caller:
        caller.settimeout(1.0)
        try:
            caller.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
        except FileNotFoundError:
            return
        else:
            raise OSError(errno.EADDRINUSE, "somebody answers there")
