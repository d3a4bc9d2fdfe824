"""Which GPUs are an engine's own, and what their findings mean for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from watchdog.core.model import SERVING, Finding, HoldReason, Mode, Subject, SubjectKind
from watchdog.core.state import EngineState, State

_PLACE = "pci-"
"""Of a card that nobody has named: it may well be another tenant's."""
_UNNAMED = "index-"
"""Of a card that NVML lists and that does not say who it is: it was lost before we came."""


def own(state: State, engine: EngineState) -> frozenset[Subject]:
    """The cards that the engine computes on, or may: what happens to them holds its restarts.

    Those that it is configured to use, and those on which its processes were seen to hold memory.
    Without a word in the configuration it may be every card before its memory was seen; and of an
    adopted engine a lost card without a name, which lists no process any more.
    """
    if not uses_gpus(state, engine):
        return frozenset()
    if engine.settings.gpus is not None:
        return engine.cards | _configured(state, engine.settings.gpus)
    if not engine.cards:
        return frozenset(card for card in state.cards if not card.name.startswith(_PLACE))
    return engine.cards | _unnamed(state) if engine.adopted else engine.cards


def uses_gpus(state: State, engine: EngineState) -> bool:
    """False when it is known that it computes on none: it sees no card, or wants none."""
    driver = state.views.get(engine.subject, {}).get("driver", {})
    return engine.settings.gpus != () and driver.get("driver.cpu_only") is not True


def _sure(state: State, engine: EngineState) -> frozenset[Subject]:
    """The cards that are certainly its own: another's card must not take it out of service."""
    cards = own(state, engine)
    if engine.settings.gpus is not None or len(cards) <= 1:
        return cards
    return engine.cards


def _unnamed(state: State) -> frozenset[Subject]:
    return frozenset(card for card in state.cards if card.name.startswith(_UNNAMED))


def _configured(state: State, named: tuple[str, ...]) -> frozenset[Subject]:
    """The cards that these words name; one that no card answers to may be one without a name."""
    found = {card for card, index in state.cards.items() if _named(card, index, named)}
    answered = all(any(_named(c, state.cards[c], (one,)) for c in found) for one in named)
    return frozenset(found) if answered else frozenset(found) | _unnamed(state)


def _named(card: Subject, index: str, named: tuple[str, ...]) -> bool:
    """CUDA takes an index, or the beginning of a UUID; a MIG device is not matched to its card."""
    return any(
        one == index or (one.startswith("GPU-") and card.name.startswith(one)) for one in named
    )


def on_card(state: State, card: Subject) -> Iterator[EngineState]:
    """The engines whose card it is."""
    return (engine for engine in state.engines.values() if card in own(state, engine))


def concerned(state: State, subject: Subject) -> tuple[str, ...]:
    """Names of the engines that a finding about ``subject`` concerns."""
    match subject.kind:
        case SubjectKind.ENGINE:
            return (subject.name,)
        case SubjectKind.GPU:
            return tuple(engine.name for engine in on_card(state, subject))
        case _:
            return tuple(state.engines)


def _findings(
    state: State,
    engine: EngineState,
    which: Callable[[State, EngineState], frozenset[Subject]],
) -> Iterator[Finding]:
    """Firing findings with consequences for the engine: its own, its cards', and the machine's.

    ``which`` tells its cards; it is only asked when something fires.

    Those about the machine are about its driver, which an engine without a GPU does not need. A
    rule that only observes has no consequences.
    """
    firing = [
        (subject, seen.firing)
        for (_, subject), seen in state.watches.items()
        if seen.firing is not None and seen.firing.mode is Mode.ACT
    ]
    if not firing:
        return
    cards, driven = which(state, engine), uses_gpus(state, engine)
    for subject, finding in firing:
        machine = subject.kind is SubjectKind.HOST and driven
        if subject in cards or subject == engine.subject or machine:
            yield finding


def faults(state: State, engine: EngineState) -> tuple[str, ...]:
    """Why the engine cannot serve from its cards, in words; empty when it can."""
    return tuple(words(state, one) for one in _findings(state, engine, _sure) if one.fault)


def hold(state: State, engine: EngineState) -> tuple[HoldReason, str] | None:
    """Why no restart of the engine can help now, and in words; None when one can."""
    for finding in _findings(state, engine, own):
        if finding.holds is not None:
            return finding.holds, words(state, finding)
    return None


def spares(state: State, engine: EngineState) -> tuple[HoldReason, str] | None:
    """Why a serving engine is not restarted even when asked: it would not come back."""
    held = hold(state, engine)
    blocked = held is not None and held[0] is HoldReason.BLOCKED
    return held if blocked and engine.verdict in SERVING else None


def words(state: State, finding: Finding) -> str:
    """``GPU 0: …`` or the summary alone."""
    if finding.subject.kind is not SubjectKind.GPU:
        return finding.summary
    return f"GPU {state.cards.get(finding.subject) or finding.subject.name}: {finding.summary}"
