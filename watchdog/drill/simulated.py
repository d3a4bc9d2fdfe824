"""Faults of the simulated engine, by its own HTTP, and load on any engine."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Iterator

import httpx

from watchdog import procfs
from watchdog.command_line import CommandError, Form, describe
from watchdog.core.model import Seconds
from watchdog.drill.asking import Engine
from watchdog.drill.results import RefusedError
from watchdog.drill.uninterrupted import uninterrupted

_PATIENCE: Seconds = 10.0
_POLL: Seconds = 0.05
_TOKENS = 20_000


def is_simulated(engine: Engine) -> bool:
    """Whether the engine is the embedded one, by the command line of its leader.

    A real engine that only has the simulator's name among its flags is not.
    """
    words = procfs.cmdline(engine.pid) if engine.pid is not None else ()
    try:
        return describe(words, {}, {}).form is Form.SIMULATOR
    except CommandError:
        return False


def put(engine: Engine, name: str, value: float | None = None) -> None:
    """Switch a fault of the simulated engine on; raises RefusedError."""
    body = {"name": name, "value": value}
    _simulator(engine, "POST", "/simulator/fault", body)


def clear(engine: Engine, name: str) -> None:
    """Switch it off; one that is off, or an engine that is gone, is no error."""
    with contextlib.suppress(RefusedError):
        _simulator(engine, "DELETE", f"/simulator/fault/{name}", None)


@contextlib.contextmanager
def fault(engine: Engine, name: str, value: float | None = None) -> Iterator[None]:
    """The fault is in force, and switched off afterwards."""
    try:
        put(engine, name, value)
        yield
    finally:
        with uninterrupted():
            clear(engine, name)


def _simulator(engine: Engine, method: str, path: str, body: object) -> None:
    try:
        with httpx.Client(timeout=_PATIENCE, trust_env=False) as client:
            answer = client.request(method, f"{_base(engine)}{path}", json=body)
    except httpx.HTTPError as error:
        raise RefusedError("the simulated engine takes no fault") from error
    if answer.status_code not in {200, 404}:
        raise RefusedError(f"the simulated engine answers {answer.status_code} to a fault")


@contextlib.contextmanager
def load(engine: Engine, clients: int) -> Iterator[None]:
    """So many clients that ask for many tokens and wait; raises RefusedError when it takes none.

    ``VLLM_API_KEY`` of our own environment is the key. An engine behind HTTPS or another host than
    loopback is refused.
    """
    with contextlib.ExitStack() as held:
        request = _request(engine)
        for _ in range(clients):
            try:
                address = ("127.0.0.1", engine.port)
                client = held.enter_context(socket.create_connection(address, _PATIENCE))
                client.sendall(request)
            except OSError as error:
                raise RefusedError("the engine takes no load on loopback") from error
        _await_running(engine)
        yield


def _request(engine: Engine) -> bytes:
    """A completion that takes long, in HTTP. What is unknown to an engine it ignores."""
    asked = {"prompt": "a", "max_tokens": _most_tokens(engine), "ignore_eos": True}
    body = json.dumps({**asked, "model": _model(engine)["id"]}).encode()
    lines = ["POST /v1/completions HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json"]
    lines += [f"{name}: {value}" for name, value in _key().items()]
    return "\r\n".join((*lines, f"Content-Length: {len(body)}", "", "")).encode() + body


def _most_tokens(engine: Engine) -> int:
    """As many as the model has room for behind a short prompt."""
    room = _model(engine).get("max_model_len")
    return max(1, min(_TOKENS, int(str(room)) - 16)) if isinstance(room, int) else _TOKENS


def _model(engine: Engine) -> dict[str, object]:
    try:
        answer = httpx.get(
            f"{_base(engine)}/v1/models", headers=_key(), timeout=_PATIENCE, trust_env=False
        )
        found: dict[str, object] = answer.raise_for_status().json()["data"][0]
    except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
        raise RefusedError(
            "the engine shows no model on loopback: load needs plain HTTP, "
            "and VLLM_API_KEY where there is a key"
        ) from error
    return found


def _key() -> dict[str, str]:
    key = os.environ.get("VLLM_API_KEY", "")
    return {"Authorization": f"Bearer {key}"} if key else {}


def _await_running(engine: Engine) -> None:
    """Wait until its own counters show a running request."""
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        with contextlib.suppress(httpx.HTTPError):
            page = httpx.get(f"{_base(engine)}/metrics", timeout=_PATIENCE, trust_env=False).text
            lines = (line for line in page.splitlines() if "num_requests_running{" in line)
            if any(float(line.rpartition(" ")[2]) > 0 for line in lines):
                return
        time.sleep(_POLL)
    raise RefusedError("the engine runs none of the requests that were sent to it")


def _base(engine: Engine) -> str:
    return f"http://127.0.0.1:{engine.port}"
