"""What is remembered of a model's files, and how two such memories differ, in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

_SHOWN = 4
"""Differences that are spelt out; of more only the number is told."""
_KILO = 1000


@dataclass(frozen=True, slots=True)
class Part:
    """One file. ``size`` is in bytes, None when nothing is known but that it is there.

    ``digest`` is the SHA-256 of a small file. ``blob`` is the name under which a hub's cache keeps
    the content, which tells contents apart without reading them. Both "" when not known.
    """

    size: int | None = None
    digest: str = ""
    blob: str = ""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """A model's files by name. ``place`` is where they are, ``commit`` that of a hub's snapshot."""

    place: str
    commit: str = ""
    parts: Mapping[str, Part] = field(default_factory=dict)


def differences(was: Fingerprint | None, now: Fingerprint | None) -> str:
    """What differs, in words of one line; "" when nothing does, or when nobody can know."""
    if was is None or now is None:
        return ""
    found = list(_found(was, now))
    if not found:
        return ""
    if was.commit and now.commit and was.commit != now.commit:
        found.insert(0, f"commit {now.commit[:12]}, was {was.commit[:12]}")
    more = len(found) - _SHOWN
    return "; ".join(found[:_SHOWN]) + (f"; and {more} more" if more > 0 else "")


def only_grew(was: Fingerprint, now: Fingerprint) -> bool:
    """Whether files only came: a download was under way."""
    return not any(_other(name, part, now.parts.get(name)) for name, part in was.parts.items())


def _found(was: Fingerprint, now: Fingerprint) -> Iterator[str]:
    for name, part in was.parts.items():
        if words := _other(name, part, now.parts.get(name)):
            yield words
    if was.commit and was.commit == now.commit:
        return  # a snapshot never changes: what came was fetched when it was needed
    yield from (f"{name} is new" for name in now.parts if name not in was.parts)


def _other(name: str, was: Part, now: Part | None) -> str:
    if now is None:
        return f"{name} is gone" if was.size is not None else ""
    if was.size is None or now.size is None:
        return ""
    if was.digest and now.digest:
        return f"{name} differs" if was.digest != now.digest else ""
    if was.size != now.size:
        before, after = _sized(was.size), _sized(now.size)
        if before == after:
            before, after = f"{was.size} bytes", f"{now.size} bytes"
        return f"{name} {after}, was {before}"
    if was.blob and now.blob and was.blob != now.blob:
        return f"{name} has other contents"
    return ""


def _sized(size: int) -> str:
    if size < _KILO:
        return f"{size} bytes"
    amount = float(size)
    for unit in ("kB", "MB", "GB"):
        amount /= _KILO
        if amount < _KILO:
            return f"{amount:.1f} {unit}"
    return f"{amount / _KILO:.1f} TB"
