"""Asks a ready engine which models it serves, and tells how they differ from its first good start.

A wrong model answers with 200 and sounds well; only its name, its length and its files tell.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import msgspec

from probes._http.answers import Answer, Trouble
from watchdog.contracts import EngineTarget, FirstGood, ProbeSpec, SampleSpec
from watchdog.core.model import Sampled, Seconds, SubjectKind, Unread, Value, engine_subject

if TYPE_CHECKING:
    from probes._http.client import EngineHttp

_CAP = 1 << 20
"""Bytes: a card of a model has a few hundred, and adapters may be many."""
_MARGIN = 0.2
_LONGEST = 1000
"""Characters of all names together."""
_MOST_TOKENS = 1 << 53
_OK = 200


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """None: what to do about a change is ``model_change`` of the engine."""


class _Card(msgspec.Struct):
    id: str
    parent: str | None = None
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[_Card]


class EngineModelProbe:
    """One ``/v1/models`` each time, and only of an engine that is ready."""

    def __init__(self, target: EngineTarget, http: EngineHttp) -> None:
        self._target = target
        self._http = http
        self._subject = engine_subject(target.name)

    def read(self, deadline: Seconds) -> Iterable[Sampled | Unread]:
        """What is known of the first good start, and what the engine says now."""
        good = self._target.first_good()
        values: dict[str, Value] = {"known": good is not None}
        if good is not None:
            values["files_changed"] = good.on_disk
        unread = []
        if self._target.look().ready:
            said = self._asked(deadline - _MARGIN)
            if isinstance(said, str):
                unread.append(Unread(self._subject, said, "served_names"))
            else:
                values |= _told(said, good or FirstGood())
        return [*(Sampled(self._subject, name, value) for name, value in values.items()), *unread]

    def close(self) -> None:
        """Break what is under way."""
        self._http.close()

    def _asked(self, deadline: Seconds) -> list[_Card] | str:
        """Its own models, adapters left out, or why it does not tell."""
        answer = self._http.get("/v1/models", deadline, _CAP, key=True)
        if isinstance(answer, Trouble):
            return f"cannot ask for the models: {answer.value}"
        return _cards(answer)


def _cards(answer: Answer) -> list[_Card] | str:
    if answer.status != _OK:
        return f"cannot ask for the models: HTTP status {answer.status}"
    try:
        cards = msgspec.json.decode(answer.body, type=_Models).data
    except msgspec.MsgspecError:
        return "cannot ask for the models: the answer is no list of them"
    # An adapter is loaded and unloaded while the engine runs: that changes no model.
    own = [card for card in cards if card.parent is None and card.id.strip()]
    return own or "cannot ask for the models: the list is empty"


def _told(cards: list[_Card], good: FirstGood) -> dict[str, Value]:
    names = ", ".join(sorted(" ".join(card.id.split()) for card in cards))[:_LONGEST]
    length = cards[0].max_model_len
    if length is not None and not 0 < length < _MOST_TOKENS:
        length = None
    changed = "; ".join(_differences(names, length, good))
    values: dict[str, Value] = {"served_names": names, "changed": changed}
    values["refused"] = bool(changed) and good.refuses
    if length is not None:
        values["max_model_len"] = length
    return values


def _differences(names: str, length: int | None, good: FirstGood) -> Iterator[str]:
    if good.served_names and names != good.served_names:
        yield f"serves {names}, was {good.served_names}"
    if None not in {length, good.max_model_len} and length != good.max_model_len:
        yield f"max_model_len {length}, was {good.max_model_len}"
    if good.loaded:
        yield good.loaded


def _build(_: Settings, target: EngineTarget) -> EngineModelProbe:
    from probes._http.client import EngineHttp

    return EngineModelProbe(target, EngineHttp(target.endpoint))


PROBE = ProbeSpec(
    name="engine_model",
    subject_kind=SubjectKind.ENGINE,
    settings=Settings,
    samples=(
        SampleSpec("known", bool, "", "Whether a first good start is known to compare with."),
        SampleSpec("served_names", str, "", "The names under which it serves its model."),
        SampleSpec("max_model_len", int, "tokens", "The longest context that it says it takes."),
        SampleSpec("changed", str, "", "How the model differs from the first good start's."),
        SampleSpec("refused", bool, "", "Whether it differs and the configuration refuses that."),
        SampleSpec("files_changed", str, "", "How the files of the next start would differ."),
    ),
    build=_build,
    period=30.0,
    timeout=12.0,
)
