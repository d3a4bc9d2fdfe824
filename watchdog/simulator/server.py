"""The HTTP side of the leader: a socket that is bound early and listens late, and the routes."""

import contextlib
import hmac
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import Any, cast

from watchdog.simulator import metrics_page
from watchdog.simulator.answers import Answer, ClientGoneError
from watchdog.simulator.completions import answer_completion, error_body
from watchdog.simulator.faults import FAULTS, FaultError
from watchdog.simulator.frontend import Frontend
from watchdog.simulator.options import VERSION

_BACKLOG = 2048
_KEEP_ALIVE_SECONDS = 5
_LARGEST_BODY = 64 << 20
_GUARDED = ("/v1", "/v2", "/inference", "/cohere")
_GENERATIONS = {"/v1/completions": False, "/v1/chat/completions": True}
_METHODS = {"/ping": ("GET", "POST"), **dict.fromkeys(_GENERATIONS, ("POST",))}


def bind(host: str, port: int) -> socket.socket:
    """Bind without listening, as vLLM does before it loads; raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError:
        listener.close()
        raise
    return listener


class Server:
    """Accepts connections in a thread of its own, and answers each in another."""

    def __init__(self, listener: socket.socket, frontend: Frontend) -> None:
        self._listener, self.frontend = listener, frontend
        self._context: ssl.SSLContext | None = None
        options = frontend.options
        if options.ssl_certfile:
            self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._context.load_cert_chain(options.ssl_certfile, options.ssl_keyfile)

    def start(self) -> None:
        """Listen; raises OSError when another socket of the port listens already."""
        self._listener.listen(_BACKLOG)
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Stop listening; open connections go on."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, address = self._listener.accept()
            except OSError:
                if self._listener.fileno() < 0:
                    return
                time.sleep(0.05)  # out of descriptors: vLLM's loop survives that too
                continue
            threading.Thread(target=self._talk, args=(connection, address), daemon=True).start()

    def _talk(self, connection: socket.socket, address: Any) -> None:  # noqa: ANN401 - by family
        with contextlib.suppress(OSError, ClientGoneError), connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._context:
                connection.settimeout(_KEEP_ALIVE_SECONDS)
                connection = self._context.wrap_socket(connection, server_side=True)
            _Handler(connection, address, cast("Any", self))


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = _KEEP_ALIVE_SECONDS

    def do_GET(self) -> None:
        """Answer any request; the method is checked with the route."""
        self._frontend = cast("Server", self.server).frontend
        self._answer = Answer(self.connection, lambda: self._frontend.board.has("slow_answers"))
        self._path = self._local_path()
        body = self._body()
        if self._path.startswith("/simulator/"):
            self._answer = Answer(self.connection, lambda: False)
            self._control(body)
            return
        generation = self._path in _GENERATIONS
        with self._frontend.open_request(generation=generation):
            status = self._route(body)
        if self._frontend.options.access_log:
            host, port = self.client_address[:2]
            self._frontend.log.server(f'{host}:{port} - "{self.requestline}" {status}')

    do_POST = do_DELETE = do_HEAD = do_GET  # noqa: N815 - the names of http.server

    def log_message(self, *_: object) -> None:
        """Nothing: the access log is written above."""

    def _local_path(self) -> str:
        path, root = self.path.partition("?")[0], self._frontend.options.root_path
        return path.removeprefix(root) if path.startswith(root + "/") else path

    def _body(self) -> bytes:
        size = self.headers.get("content-length") or "0"
        if not size.isdigit() or int(size) > _LARGEST_BODY:
            self.close_connection = True
            return b""
        return self.rfile.read(int(size))

    # --- routes -------------------------------------------------------------------------------

    def _route(self, body: bytes) -> int:
        board = self._frontend.board
        self._answer.hold(lambda: board.has("no_answer"))
        if board.has("endless_answers"):
            self._answer.endless()
        if not self._authorized():
            return self._json(401, {"error": "Unauthorized"})
        if self._path in _GENERATIONS and self.command == "POST":
            chat = _GENERATIONS[self._path]
            return answer_completion(self._frontend, self._answer, body, chat=chat)
        routes: dict[str, Callable[[], int]] = {
            "/health": self._health,
            "/ping": self._health,
            "/metrics": self._metrics,
            "/v1/models": self._models,
            "/version": lambda: self._json(200, {"version": VERSION}),
            "/load": lambda: self._json(200, {"server_load": self._frontend.load}),
            "/is_sleeping": lambda: self._json(200, {"is_sleeping": board.has("sleeping")}),
        }
        route = routes.get(self._path)
        if route is None and self._path not in _GENERATIONS:
            return self._json(404, {"detail": "Not Found"})
        if route is None or self.command not in _METHODS.get(self._path, ("GET",)):
            return self._json(405, {"detail": "Method Not Allowed"})
        return route()

    def _authorized(self) -> bool:
        keys = self._frontend.options.api_keys
        if not keys or not self._path.startswith(_GUARDED):
            return True
        scheme, _, given = (self.headers.get("authorization") or "").partition(" ")
        return scheme.lower() == "bearer" and any(
            hmac.compare_digest(key.encode(), given.encode()) for key in keys
        )

    def _json(self, status: int, value: object) -> int:
        self._answer.json(status, value)
        return status

    def _health(self) -> int:
        board = self._frontend.board
        self._answer.hold(lambda: board.has("saturate"))
        status = 503 if self._frontend.dead or board.has("health_503") else 200
        self._answer.whole(status, b"", "text/plain")
        return status

    def _models(self) -> int:
        options = self._frontend.options
        card = {"object": "model", "created": int(time.time()), "owned_by": "vllm"}
        card |= {"root": options.model, "parent": None, "max_model_len": options.max_model_len}
        models = [{"id": name, **card} for name in options.served_names]
        return self._json(200, {"object": "list", "data": models})

    def _metrics(self) -> int:
        frontend, kind = self._frontend, metrics_page.CONTENT_TYPE
        if frontend.board.has("bad_metrics"):
            self._answer.whole(200, metrics_page.noise(), kind)
            return 200
        counters = [engine.counters for engine in frontend.engines]
        asleep = frontend.board.has("sleeping")
        page = metrics_page.page(frontend.options, counters, sleeping=asleep).encode()
        extra = int(frontend.board.value("huge_metrics") or 0)
        self._answer.begin_sized(len(page) + extra, kind)
        self._answer.write(page)
        for piece in metrics_page.padding(extra):
            self._answer.write(piece)
        return 200

    # --- faults -------------------------------------------------------------------------------

    def _control(self, body: bytes) -> None:
        if self._path == "/simulator/faults" and self.command == "GET":
            self._json(200, {"active": self._frontend.board.active(), "known": list(FAULTS)})
        elif self._path == "/simulator/fault" and self.command == "POST":
            self._put_fault(body)
        elif self._path.startswith("/simulator/fault/") and self.command == "DELETE":
            name = self._path.rpartition("/")[2]
            found = self._frontend.drop_fault(name)
            self._json(200 if found else 404, {"cleared": name if found else None})
        else:
            self._json(404, {"detail": "Not Found"})

    def _put_fault(self, body: bytes) -> None:
        try:
            data = json.loads(body)
            name, value = str(data["name"]), data.get("value")
            self._frontend.put_fault(name, value)
        except FaultError as error:
            self._json(400, error_body(400, str(error), "BadRequestError", "name"))
        except (ValueError, KeyError, TypeError, AttributeError):
            self._json(400, error_body(400, "cannot read a fault", "BadRequestError"))
        else:
            self._json(200, {"active": self._frontend.board.active()})
