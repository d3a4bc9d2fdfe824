"""What of a worker's answer can be used. Nothing of a wrong type or size gets past here.

The worker may talk nonsense: its memory is shared with the driver's library.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NONSENSE = "the answer makes no sense"
_LIST = {"cards": "gpus", "processes": "gpus", "events": "events"}
_MOST = 1 << 64
"""No number of NVML's has more than 64 bits."""
_WORDS = ("uuid", "bus_id", "name")
_ROW = 4
_MASKS = ("reasons", "reasons_supported")
_NO_NUMBERS = frozenset({*_WORDS, *_MASKS, "index", "errors", "throttle_seconds", "processes"})
"""What is judged by itself."""


def proper(request: str, answer: Mapping[str, Any]) -> dict[str, Any]:
    """The answer to that request, without what is wrong in it; an error is passed on.

    A card that cannot be understood is there with an error. Raises ValueError when the answer
    has not even the list that was asked for.
    """
    if "error" in answer:
        code = answer.get("code")
        return {"error": _line(answer["error"]), "code": code if _whole(code) else 0}
    name = _LIST.get(request, "")
    listed = answer.get(name)
    if not isinstance(listed, list):
        raise ValueError(NONSENSE)  # noqa: TRY004 - as json for what is no JSON
    found = {key: answer[key] for key in ("driver", "cuda") if _is_text(answer.get(key))}
    if name == "events":
        events = [_event(one) for one in listed if isinstance(one, dict)]
        return {"events": events, "supported": answer.get("supported") is True}
    return {**found, "gpus": [_card(place, said) for place, said in enumerate(listed)]}


def finite(value: object) -> bool:
    """Whether it is a number that a sample can have; NaN and what is infinite is none."""
    return isinstance(value, int | float) and -_MOST < value < _MOST


def _whole(value: object) -> bool:
    """Whether it is a whole number from 0 on, of 64 bits at most."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value.isprintable()


def _line(words: object) -> str:
    return words if isinstance(words, str) and words.isprintable() else NONSENSE


def _card(place: int, said: object) -> dict[str, Any]:
    if not isinstance(said, dict) or not _whole(said.get("index")):
        return {"index": place, "errors": {"": NONSENSE}}
    found: dict[str, Any] = {"index": said["index"], "errors": _errors(said.get("errors"))}
    found.update({key: said[key] for key in _WORDS if _is_text(said.get(key))})
    if "throttle_seconds" in said:
        found["throttle_seconds"] = _seconds(said["throttle_seconds"])
    if "processes" in said:
        rows = said["processes"]
        if isinstance(rows, list) and all(_is_row(row) for row in rows):
            found["processes"] = rows
        else:
            found["errors"]["processes"] = NONSENSE
    if all(_whole(said.get(mask)) for mask in _MASKS):
        found.update({mask: said[mask] for mask in _MASKS})
    others = said.keys() - _NO_NUMBERS
    return {**found, **{key: said[key] for key in others if _measured(key, said[key])}}


def _measured(key: str, value: object) -> bool:
    return _whole(value) if key.endswith("_bytes") else finite(value)


def _errors(said: object) -> dict[str, str]:
    if not isinstance(said, dict):
        return {"": NONSENSE}
    return {_line(look): _line(words) for look, words in said.items()}


def _seconds(said: object) -> dict[str, float]:
    if not isinstance(said, dict):
        return {}
    return {key: value for key, value in said.items() if finite(value) and value >= 0}


def _is_row(row: object) -> bool:
    """A pid, and then bytes and instances, each of which may be unknown."""
    if not isinstance(row, list) or len(row) != _ROW or not _whole(row[0]):
        return False
    return all(one is None or _whole(one) for one in row[1:])


def _event(said: dict[str, Any]) -> dict[str, Any]:
    numbers = {key: said[key] if _whole(said.get(key)) else None for key in ("xid", "gi", "ci")}
    words = {key: said[key] if _is_text(said.get(key)) else "" for key in ("uuid", "bus_id")}
    return {**words, **numbers}
