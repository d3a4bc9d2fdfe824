"""The text that nginx reads: one ``upstream`` with the engines that serve."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from watchdog.contracts import Endpoint

_HEAD = """\
# The engines that serve, written by vllm-watchdog: changes made here are lost.
# least_conn: requests differ by orders of magnitude in length, so turns say nothing of load.
# zone: all workers of nginx count the connections of an engine together.
# max_fails=0: who serves is proven with completions. nginx would take an engine out for ten
# seconds because of one request that took too long, which is often the last one that is left.
# No keepalive: a connection to a neighbour costs nothing, and one that an engine closes just as
# it is used again is a request that nginx may not repeat.
"""
_NOBODY = """\
    # Nobody serves. A group must have a server to be valid: this one is never asked.
    server 127.0.0.1:9 down;
"""
_SPECIAL = re.compile(r'(["\\])')
_ESCAPED = r"\\\1"
_UNFIT = re.compile(r"[\x00-\x1f\x7f]")


def text(upstream: str, servers: Mapping[str, Endpoint]) -> str:
    """The whole file: the group ``upstream`` of ``servers`` by the names of their engines.

    Two that answer at one address are one server; who is ``unfit`` is left out.
    """
    lines: dict[str, str] = {}
    for name, endpoint in sorted(servers.items()):
        at = address(endpoint)
        if at is not None:
            lines.setdefault(at, name)
    inside = "".join(f"    server {at} max_fails=0; # {name}\n" for at, name in lines.items())
    top = f"upstream {upstream} {{\n    zone {upstream} 64k;\n    least_conn;\n"
    return f"{_HEAD}{top}{inside or _NOBODY}}}\n"


def unfit(servers: Mapping[str, Endpoint]) -> Iterator[str]:
    """Of each engine whose address no configuration of nginx can name, a sentence."""
    for name, endpoint in sorted(servers.items()):
        if address(endpoint) is None:
            yield f"cannot tell nginx of {name}: its address has characters that cannot be written"


def address(endpoint: Endpoint) -> str | None:
    """``127.0.0.1:8000``, ``[::1]:8000`` or ``"unix:/path"``, as nginx takes it."""
    if _UNFIT.search(endpoint.uds or endpoint.host):
        return None
    if endpoint.uds:
        return f'"unix:{_SPECIAL.sub(_ESCAPED, endpoint.uds)}"'
    host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
    return f"{host}:{endpoint.port}"
