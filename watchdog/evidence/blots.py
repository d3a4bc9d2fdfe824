"""Makes what goes into a bundle fit to be shown: no secrets, no control characters.

``Clean`` is made nowhere else, and nothing else is written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NewType
from urllib.parse import quote

import msgspec

from watchdog import procfs
from watchdog.contracts import EngineTarget
from watchdog.names import BLOT, is_secret
from watchdog.supervisor.spawn import without_secrets

Clean = NewType("Clean", bytes)
"""Bytes in UTF-8 that may be written and shown."""

_KEY_VARIABLE = "VLLM_API_KEY"
_SHORTEST = 6
"""Characters of a variable's value below which it is no secret but a switch."""
_WORD = 4
"""A key that is shorter is only blotted out where it stands alone."""
_PIECE = 1 << 13
"""Characters that are looked through at once, so that other threads get their turn."""
_PLAIN = re.compile(r"(?:none|null|true|false|[\d.]+)$", re.IGNORECASE)
_ASSIGNED = re.compile(
    r"(?<![\w.-])([\w.-]{0,48}(?:key|token|secret|passw(?:or)?d|passphrase|credential)s?)"
    r"(=|[\"'] ?: ?|: | (?!-))([\[(]?[\"']?)([^\s\"',;&\])}]+)",
    re.IGNORECASE,
)
"""``hf_token='…'``, ``"api_key": "…"``, ``X-Api-Key: …``, ``--api-key …``."""
_ANYWAY = re.compile(
    r"(?i:\b(bearer )[^\s\"',]{6,})|\b(hf_)\w{20,}|\b(sk-)[\w-]{16,}|(://)[^/\s?#@]{1,200}@"
)
"""What looks like a secret whatever it is called. Each alternative is linear: a log is hostile."""
_MARKS = ("bearer ", "hf_", "sk-", "://")
"""What all of these begin with, in small letters."""
_SHOWN = {ord("\t"), ord("\n")}
_UNSHOWN = (
    *(code for code in range(0x20) if code not in _SHOWN),
    *range(0x7F, 0xA0),
    0xAD,
    0x061C,
    *range(0x200B, 0x2010),
    *range(0x2028, 0x202F),
    *range(0x2060, 0x2070),
    0xFEFF,
)
_SPELLED = {code: f"\\x{code:02x}" if code < 1 << 8 else f"\\u{code:04x}" for code in _UNSHOWN}
_IN_JSON = {code: f"\\u{code:04x}" for code in _UNSHOWN if code >= 0x7F}  # noqa: PLR2004 - ASCII's end
_COLOR = re.compile(r"\x1b\[[\d;]{0,12}m")


class Blots:
    """Blots out these values, and what looks like a secret, wherever it stands."""

    def __init__(self, values: Iterable[str]) -> None:
        forms = {form for value in values if value for form in _forms(value)}
        self._longest = max(map(len, forms), default=0)
        ordered = sorted(forms, key=len, reverse=True)
        self._known = re.compile("|".join(map(_pattern, ordered))) if ordered else None
        self._begun = sorted(
            {form[:n] for form in forms for n in range(_SHORTEST, len(form))}, key=len, reverse=True
        )

    @property
    def longest(self) -> int:
        """Characters of the longest value: so much more has to be read where a text is cut."""
        return self._longest

    def text(self, raw: bytes | str, limit: int) -> Clean:
        """Lines for people: at most the last ``limit`` bytes, with control characters spelled."""
        told = raw if isinstance(raw, str) else raw.decode(errors="backslashreplace")
        told = self._without(_COLOR.sub("", told.replace("\r\n", "\n").replace("\r", "\n")))
        told = self._untorn(told)
        told = self._looked_through(told).translate(_SPELLED)
        data = self._without(told).encode(errors="backslashreplace")
        return Clean(data if len(data) <= limit else _last_lines(data, limit))

    def json(self, value: object) -> Clean:
        """One value as JSON on one line. Raises what msgspec does for what JSON lacks."""
        told = _encoded(value).decode()
        if (self._known is not None and self._known.search(told)) or _is_suspect(told):
            told = _encoded(self._walked(value)).decode()
        if told.isascii() and "\x7f" not in told:  # else it takes ten times as long
            return Clean(told.encode())
        return Clean(told.translate(_IN_JSON).encode())

    def word(self, text: str) -> str:
        """A short text, without secrets."""
        return self._looked_through(self._without(text))

    def _without(self, text: str) -> str:
        return text if self._known is None else self._known.sub(BLOT, text)

    def _untorn(self, text: str) -> str:
        """Without a value at its end that had only begun to be written."""
        torn = next((begun for begun in self._begun if text.endswith(begun)), "")
        return text[: len(text) - len(torn)] + BLOT if torn else text

    def _looked_through(self, text: str) -> str:
        return "".join(
            _ANYWAY.sub(_kept_head, _ASSIGNED.sub(_assigned, piece)) for piece in _pieces(text)
        )

    def _walked(self, value: Any) -> Any:  # noqa: ANN401 - the same again
        if isinstance(value, str):
            return self.word(value)
        if isinstance(value, Mapping):
            return {self._walked(key): self._walked(one) for key, one in value.items()}
        if isinstance(value, list | tuple):
            return [self._walked(one) for one in value]
        return value


def joined(lines: Iterable[Clean]) -> Clean:
    """Each on a line of its own."""
    return Clean(b"".join(line + b"\n" for line in lines))


def secrets(engines: Collection[EngineTarget]) -> set[str]:
    """What nobody may be shown of these engines: keys, and values of variables and flags."""
    found: set[str] = set()
    for engine in engines:
        found |= _of_command(engine.command)
        found |= {
            value
            for name, value in engine.environment.items()
            if name == _KEY_VARIABLE or (is_secret(name) and len(value) >= _SHORTEST)
        }
        living = engine.processes()[:1]
        for leader in (one for one in living if one.state != "D"):  # who is stuck is not asked
            found |= _of_command(procfs.cmdline(leader.pid))
            found.add(procfs.environ_value(leader.pid, _KEY_VARIABLE) or "")
    return {value for value in found if value and not _PLAIN.match(value)} | _keys(engines)


def _keys(engines: Collection[EngineTarget]) -> set[str]:
    """An engine's own key is one whatever it looks like."""
    return {key for engine in engines if (key := engine.endpoint.api_key)}


def _of_command(command: Iterable[str]) -> set[str]:
    words = tuple(command)
    pairs = zip(words, without_secrets(words), strict=True)
    return {
        word.partition("=")[2] if blotted != BLOT else word
        for word, blotted in pairs
        if word != blotted
    }


def _forms(value: str) -> set[str]:
    """A value as it may stand in a text, in JSON, in a URL and in what Python prints."""
    return {
        value,
        value.translate(_SPELLED),
        json.dumps(value)[1:-1],
        json.dumps(value, ensure_ascii=False)[1:-1],
        quote(value, safe="", errors="replace"),
        repr(value)[1:-1],
    }


def _pattern(form: str) -> str:
    word = re.escape(form)
    return word if len(form) >= _WORD else rf"(?<![A-Za-z0-9]){word}(?![A-Za-z0-9])"


def _is_suspect(text: str) -> bool:
    low = text.lower()
    return any(mark in low for mark in _MARKS) and _ANYWAY.search(text) is not None


def _assigned(found: re.Match[str]) -> str:
    name, value = found[1], found[4]
    flag, header = name.startswith("--"), "-" in name or "_" in name
    loose = (found[2] == " " and not flag) or (found[2] == ": " and not header)
    if loose or not is_secret(name) or _PLAIN.match(value):
        return found[0]
    return f"{name}{found[2]}{found[3]}{BLOT}"


def _kept_head(found: re.Match[str]) -> str:
    head = next(group for group in found.groups() if group)
    return f"{head}{BLOT}" + ("@" if found[0].endswith("@") else "")


def _pieces(text: str) -> Iterable[str]:
    """Lines put together into pieces; a line that is longer than one is cut."""
    start = 0
    while start < len(text):
        end = min(start + _PIECE, len(text))
        if end < len(text):
            line = text.rfind("\n", start, end)
            end = line + 1 if line >= start else end
        yield text[start:end]
        start = end


def _encoded(value: object) -> bytes:
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        text = json.dumps(value, ensure_ascii=True, default=str)
        return text.encode()


def _last_lines(data: bytes, limit: int) -> bytes:
    tail = data[len(data) - limit :]
    _, newline, rest = tail.partition(b"\n")
    return rest if newline and rest else tail.decode(errors="ignore").encode()
