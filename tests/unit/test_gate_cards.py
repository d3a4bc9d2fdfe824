"""Which cards a start is about: those that CUDA would take."""

from __future__ import annotations

import pytest

from watchdog.command_line import describe
from watchdog.daemon.gate_cards import first_cards, visible
from watchdog.supervisor.gpu_gate import CardMemory


@pytest.mark.parametrize(
    ("environment", "cards"),
    [
        ({}, None),
        ({"CUDA_VISIBLE_DEVICES": "0, 2"}, ("0", "2")),
        ({"CUDA_VISIBLE_DEVICES": "GPU-1"}, ("GPU-1",)),
        ({"CUDA_VISIBLE_DEVICES": ""}, ()),
        ({"CUDA_VISIBLE_DEVICES": "1,-1,0"}, ("1",)),
    ],
)
def test_cards_are_visible_as_cuda_reads_it(
    environment: dict[str, str], cards: tuple[str, ...] | None
) -> None:
    """FACT: the list ends where an entry names no device; without one all cards are visible."""
    assert visible(environment) == cards


@pytest.mark.parametrize(
    ("used", "chosen"),
    [((130, 0), ("1",)), ((130, 95), ("0",)), ((None, 0), ("0",))],
)
def test_among_unequal_cards_those_with_most_room_are_looked_at(
    used: tuple[int | None, int], chosen: tuple[str, ...]
) -> None:
    """FACT (G2): where the first card is not sure, what does not fit on the best fits nowhere."""
    said = describe(("vllm", "serve", "m"), {}, {})
    sizes = [None if one is None else one << 30 for one in used]
    found = (
        CardMemory(0, "GPU-0", sizes[0], 140 << 30),
        CardMemory(1, "GPU-1", sizes[1], 100 << 30),
    )
    assert first_cards(said, None, found) == chosen
