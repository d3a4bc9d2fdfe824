"""Serves a WSGI application with bounded threads, connections, sizes and times."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from waitress import wasyncore
from waitress.server import BaseWSGIServer, MultiSocketServer, create_server

from watchdog.web.app import App
from watchdog.web.channel import Channel
from watchdog.web.doorway import Doorway

_THREADS = 4
_CONTROL_THREADS = 8
"""A command waits in its thread until the engine has stopped."""
CONNECTIONS = 128
"""At a time on one address; a scraper and a few checks of health need a dozen."""
_NEVER = 1 << 40
"""Seconds. Our channels close silent connections themselves, by a clock that nobody sets."""
_HEADER_LIMIT = 16 * 1024
_BODY_LIMIT = 64 * 1024
_SOCKET_PATH_LIMIT = 107
_CALL_LIMIT = 1.0
_STOP_LIMIT = 2.0


class ListenError(Exception):
    """An address that cannot be served on. One line."""


class Server:
    """One listening application in a thread of its own."""

    def __init__(
        self,
        server: MultiSocketServer | BaseWSGIServer,
        sockets: dict[int, Any],
        name: str,
        path: Path | None = None,
    ) -> None:
        self._server = server
        self._sockets = sockets
        self._path = path
        self._listeners: list[Any] = [
            one for one in sockets.values() if isinstance(one, BaseWSGIServer)
        ]
        self._doorways = [Doorway(listener) for listener in self._listeners]
        for listener, doorway in zip(self._listeners, self._doorways, strict=True):
            listener.channel_class = Channel
            listener.accept = doorway.accept
        self._triggers: list[Any] = [listener.trigger for listener in self._listeners]
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)

    @property
    def port(self) -> int:
        """The TCP port that was bound, also when 0 was asked for."""
        return int(self._listeners[0].effective_port)

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def stop(self) -> None:
        """Listen no more, within a few seconds. What is being answered is not waited for."""
        if self._thread.ident is None:
            self._close()
        else:
            self._triggers[0].pull_trigger(self._close)
            self._thread.join(_STOP_LIMIT)
        self._server.task_dispatcher.shutdown(timeout=1)
        for one in (*self._triggers, *self._doorways):
            one.close()
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def _close(self) -> None:
        """Runs in the server's own thread: closing under a poll that waits is undefined."""
        for trigger in self._triggers:
            # A thread that still answers would write to whatever file takes the pipe's number.
            trigger.pull_trigger = lambda *_: None
        for one in tuple(self._sockets.values()):
            with contextlib.suppress(OSError):
                if isinstance(one, BaseWSGIServer):
                    wasyncore.dispatcher.close(one)
                elif isinstance(one, Channel):
                    one.handle_close()
        self._sockets.clear()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            self._server.run()


def serve_tcp(app: App, host: str, port: int, connections: int = CONNECTIONS) -> Server:
    """Serve on HOST:PORT. Raises ListenError when it is taken or not ours to bind.

    Of more than so many connections at a time those that have waited longest are ended.
    """
    sockets: dict[int, Any] = {}
    try:
        server = create_server(
            app, map=sockets, host=host, port=port, threads=_THREADS, **_bounds(connections)
        )
    except (OSError, ValueError) as error:
        _quiet_close(sockets)
        raise ListenError(f"cannot listen on {host}:{port}: {_reason(error)}") from error
    return Server(server, sockets, "web")


def serve_socket(app: App, path: Path, connections: int = CONNECTIONS) -> Server:
    """Serve on a Unix socket of mode 0600. Raises ListenError.

    A socket that nobody answers on is a leftover and replaced.
    """
    if len(os.fsencode(path)) > _SOCKET_PATH_LIMIT:
        raise ListenError(
            f"cannot listen on {path}: longer than {_SOCKET_PATH_LIMIT} bytes; "
            "choose a shorter --state-dir"
        )
    sockets: dict[int, Any] = {}
    try:
        _clear(path)
        with _private():
            server = create_server(
                app,
                map=sockets,
                unix_socket=str(path),
                unix_socket_perms="600",
                threads=_CONTROL_THREADS,
                **_bounds(connections),
            )
    except OSError as error:
        _quiet_close(sockets)
        raise ListenError(f"cannot listen on {path}: {_reason(error)}") from error
    return Server(server, sockets, "control", path)


@contextlib.contextmanager
def _private() -> Iterator[None]:
    """Between bind and chmod, too, nobody else can connect."""
    before = os.umask(0o177)
    try:
        yield
    finally:
        os.umask(before)


def _quiet_close(sockets: dict[int, Any]) -> None:
    with contextlib.suppress(OSError):
        wasyncore.close_all(sockets, ignore_all=True)


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or "timed out"


def _bounds(connections: int) -> dict[str, Any]:
    return {
        "asyncore_use_poll": True,
        "connection_limit": connections,
        "channel_timeout": _NEVER,
        "max_request_header_size": _HEADER_LIMIT,
        "log_socket_errors": False,
        "max_request_body_size": _BODY_LIMIT,
        "ident": "",
        "clear_untrusted_proxy_headers": True,
    }


def _clear(path: Path) -> None:
    try:
        kind = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(kind):
        raise OSError(errno.EEXIST, "something that is no socket is in the way")
    with socket.socket(socket.AF_UNIX) as caller:
        caller.settimeout(_CALL_LIMIT)
        try:
            caller.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
        else:
            raise OSError(errno.EADDRINUSE, "somebody answers there")


# The log is for lines of JSON: what waitress thinks of its clients is not for stderr.
logging.getLogger("waitress").addHandler(logging.NullHandler())
logging.getLogger("waitress").propagate = False
