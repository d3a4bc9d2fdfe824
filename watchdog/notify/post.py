"""One POST with one deadline, of whose answer nothing but the status is looked at."""

from __future__ import annotations

import base64
import socket
import ssl
from collections.abc import Mapping
from urllib.parse import unquote, urlsplit, urlunsplit

import httpcore

from watchdog.core.model import Seconds
from watchdog.notify.deadline import Deadline, DeadlineBackend

_PORTS = {"http": 80, "https": 443}


def post(url: str, headers: Mapping[str, str], body: bytes, timeout: Seconds) -> int | str:
    """The status of the answer, or in one word why there is none. Raises nothing.

    ``timeout`` is for all of it but the look-up of the host's name. No redirect is followed, no
    proxy used, and of the answer's body nothing is read. A certificate is verified against the
    authorities of the system (``SSL_CERT_FILE`` names others). The word holds nothing of the
    request or of the answer.
    """
    try:
        return _posted(url, headers, body, Deadline(timeout))
    except httpcore.TimeoutException:
        return "timeout"
    except (httpcore.ConnectError, httpcore.ReadError, httpcore.WriteError) as error:
        return _word(error)
    except Exception:  # noqa: BLE001 - whatever it is, the words of it may hold a secret
        return "error"


def _posted(url: str, headers: Mapping[str, str], body: bytes, deadline: Deadline) -> int:
    parts = urlsplit(url)
    target = urlunsplit(("", "", parts.path or "/", parts.query, ""))
    port = parts.port or _PORTS[parts.scheme]
    bare = parts.hostname or ""
    host = f"[{bare}]" if ":" in bare else bare
    whole = {
        "host": host if port == _PORTS[parts.scheme] else f"{host}:{port}",
        "content-type": "application/json",
        "user-agent": "vllm-watchdog",
        "connection": "close",
        **_account(parts.username, parts.password),
        **{name.lower(): value for name, value in headers.items()},
    }
    context = ssl.create_default_context() if parts.scheme == "https" else None
    backend = DeadlineBackend(deadline)
    with (
        httpcore.ConnectionPool(ssl_context=context, network_backend=backend) as pool,
        pool.stream(
            "POST",
            httpcore.URL(scheme=parts.scheme, host=bare, port=port, target=target),
            headers=[(k.encode("ascii"), v.encode("latin-1")) for k, v in whole.items()],
            content=body,
        ) as response,
    ):
        return response.status


def _account(user: str | None, password: str | None) -> dict[str, str]:
    """Who the address says that we are."""
    if user is None:
        return {}
    words = f"{unquote(user)}:{unquote(password or '')}"
    return {"authorization": "Basic " + base64.b64encode(words.encode()).decode()}


def _word(error: BaseException) -> str:
    """By what lies below httpcore's own error."""
    seen: BaseException | None = error
    while seen is not None:
        match seen:
            case ConnectionRefusedError():
                return "refused"
            case ssl.SSLError():
                return "tls"
            case socket.gaierror():
                return "host not found"
            case _:
                seen = seen.__cause__ or seen.__context__
    return "error"
