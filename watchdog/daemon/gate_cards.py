"""Which cards an engine may use, and how much of them it wants: as its command says it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import inf
from pathlib import Path

from watchdog.command_line import EngineCommand
from watchdog.supervisor.gpu_gate import CardMemory

_DEFAULT_SHARE = 0.9
"""``--gpu-memory-utilization`` of a vLLM that is not told another: 0.9 up to 0.18, later 0.92. The
smaller one, because a start that might work is not refused."""
_WRAPPED = 12
"""Words in front of the engine that are looked through for an ``env``."""


def visible(environment: Mapping[str, str]) -> tuple[str, ...] | None:
    """The cards that an engine of this environment may use; None for all, () for none.

    CUDA ends the list at the first entry that names no device, so "-1" and "" are none at all.
    """
    value = environment.get("CUDA_VISIBLE_DEVICES")
    if value is None:
        return None
    cards: list[str] = []
    for entry in value.split(","):
        name = entry.strip()
        if not name or name.startswith("-"):
            break
        cards.append(name)
    return tuple(cards)


def unsets(command: Sequence[str]) -> bool:
    """Whether an ``env`` takes variables away: then what we know of them may be wrong."""
    return any(word.startswith("-") for word in _of_env(command))


def _of_env(command: Sequence[str]) -> Iterator[str]:
    """Options and assignments of every ``env`` in front of the engine."""
    inside = False
    for word in command[:_WRAPPED]:
        if Path(word).name == "env":
            inside = True
        elif inside and ("=" in word or word.startswith("-")):
            yield word
        else:
            inside = False


def first_cards(
    said: EngineCommand, cards: tuple[str, ...] | None, found: Sequence[CardMemory]
) -> tuple[str, ...]:
    """CUDA takes the first cards; without a list, which those are is sure among equal ones only.

    Where it is not, those with most room: what does not fit there fits nowhere.
    """
    count = said.tensor_parallel * said.pipeline_parallel * said.data_parallel
    if cards is not None:
        return cards[:count]
    ordered = sorted(found, key=lambda card: card.index)
    if len({card.total_bytes for card in found}) > 1:
        ordered = sorted(found, key=_room, reverse=True)
    return tuple(str(card.index) for card in ordered[:count])


def _room(card: CardMemory) -> float:
    """Free bytes; a card that does not tell may have any number of them."""
    if card.total_bytes is None or card.used_bytes is None:
        return inf
    return card.total_bytes - card.used_bytes


def share(said: EngineCommand) -> float:
    """The share of a card that the engine wants for itself."""
    told = said.gpu_memory_utilization
    return _DEFAULT_SHARE if told is None else told
