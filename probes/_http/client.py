"""The engine's HTTP client: httpx over sockets that keep one deadline for a whole exchange."""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field

import httpcore
import httpx

from probes._http.answers import Answer, Trouble
from probes._http.bounded import Allowance, BoundedBackend, OversizeError, RefusedError
from watchdog.contracts import Endpoint
from watchdog.core.model import Seconds

_OVERHEAD = 256 << 10
"""Bytes for headers and framing beside the body; h11 itself gives up on 100 KiB of headers."""


@dataclass(frozen=True, slots=True)
class _Asked:
    method: str
    path: str
    headers: dict[bytes, bytes] = field(repr=False)
    content: bytes | None = None


class EngineHttp:
    """Speaks to one engine over one connection, kept alive between requests.

    One request at a time; ``close`` may come from any other thread. Nothing is verified about the
    other end (it is our own engine, often with a certificate of its own making), no proxy is used
    and no redirect followed.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._allowance = Allowance()
        self._backend = BoundedBackend(self._allowance)
        transport = _Transport(_pool(endpoint, self._backend))
        self._client = httpx.Client(
            base_url=endpoint.base_url,
            transport=transport,
            trust_env=False,
            timeout=None,  # noqa: S113 - the sockets keep the deadline
            headers={"accept-encoding": "identity", "user-agent": "vllm-watchdog"},
        )

    @property
    def endpoint(self) -> Endpoint:
        """Whom this client speaks to."""
        return self._endpoint

    def get(self, path: str, deadline: Seconds, cap: int, *, key: bool = False) -> Answer | Trouble:
        """GET ``path`` until ``deadline`` (CLOCK_MONOTONIC), at most ``cap`` bytes of body.

        ``key`` sends the API key along.
        """
        headers = self._authorization() if key else {}
        return self._exchange(_Asked("GET", path, headers), deadline, cap)

    def post_json(self, path: str, body: object, deadline: Seconds, cap: int) -> Answer | Trouble:
        """POST ``body`` as JSON with the API key; bounds as in ``get``."""
        headers = {b"content-type": b"application/json", **self._authorization()}
        asked = _Asked("POST", path, headers, json.dumps(body).encode())
        return self._exchange(asked, deadline, cap)

    def close(self) -> None:
        """Break a request under way and let go of the connection."""
        self._backend.interrupt()
        self._client.close()

    def _authorization(self) -> dict[bytes, bytes]:
        key = self._endpoint.api_key
        return {b"authorization": b"Bearer " + key.encode()} if key else {}

    def _exchange(self, asked: _Asked, deadline: Seconds, cap: int) -> Answer | Trouble:
        connects = self._backend.connects
        outcome = self._once(asked, deadline, cap)
        reused = self._backend.connects == connects
        # The server may close an idle connection in the very moment in which it is used again.
        if outcome is Trouble.ERROR and reused:
            return self._once(asked, deadline, cap)
        return outcome

    def _once(self, asked: _Asked, deadline: Seconds, cap: int) -> Answer | Trouble:
        self._allowance.deadline, self._allowance.unread = deadline, cap + _OVERHEAD
        began = time.monotonic()
        try:
            request = self._client.build_request(
                asked.method, asked.path, headers=asked.headers, content=asked.content
            )
            with closing(self._client.send(request, stream=True)) as response:
                body = _body(response, cap)
        except httpx.TimeoutException:
            return Trouble.TIMEOUT
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError, RuntimeError) as error:
            return _trouble(error)
        if body is None:
            return Trouble.TOO_LARGE
        return Answer(response.status_code, body, time.monotonic() - began)


def _pool(endpoint: Endpoint, backend: BoundedBackend) -> httpcore.ConnectionPool:
    context = None
    if endpoint.tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return httpcore.ConnectionPool(
        ssl_context=context,
        max_connections=1,
        max_keepalive_connections=1,
        uds=endpoint.uds or None,
        network_backend=backend,
    )


def _body(response: httpx.Response, cap: int) -> bytes | None:
    pieces, size = [], 0
    for piece in response.iter_raw():
        size += len(piece)
        if size > cap:
            return None
        pieces.append(piece)
    return b"".join(pieces)


def _trouble(error: BaseException) -> Trouble:
    cause = error.__cause__
    if isinstance(cause, RefusedError):
        return Trouble.REFUSED
    if isinstance(cause, OversizeError):
        return Trouble.TOO_LARGE
    return Trouble.ERROR


_TRANSLATED: tuple[tuple[type[Exception], type[httpx.TransportError]], ...] = (
    (httpcore.TimeoutException, httpx.ReadTimeout),
    (httpcore.ConnectError, httpx.ConnectError),
    (httpcore.NetworkError, httpx.ReadError),
    (httpcore.ProtocolError, httpx.RemoteProtocolError),
)


def _translated(error: Exception) -> Exception:
    for ours, theirs in _TRANSLATED:
        if isinstance(error, ours):
            return theirs("")
    return error


class _Transport(httpx.BaseTransport):
    """httpx's own transport takes no network backend, so this one hands requests on instead."""

    def __init__(self, pool: httpcore.ConnectionPool) -> None:
        self._pool = pool

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        try:
            response = self._pool.handle_request(
                httpcore.Request(
                    method=request.method,
                    url=httpcore.URL(
                        scheme=request.url.raw_scheme,
                        host=request.url.raw_host,
                        port=request.url.port,
                        target=request.url.raw_path,
                    ),
                    headers=request.headers.raw,
                    content=request.stream,
                )
            )
        except Exception as error:
            raise _translated(error) from error
        return httpx.Response(response.status, headers=response.headers, stream=_Stream(response))

    def close(self) -> None:
        self._pool.close()


class _Stream(httpx.SyncByteStream):
    def __init__(self, response: httpcore.Response) -> None:
        self._response = response

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self._response.iter_stream()
        except Exception as error:
            raise _translated(error) from error

    def close(self) -> None:
        self._response.close()
