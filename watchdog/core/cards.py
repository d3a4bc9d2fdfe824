"""Which GPUs are an engine's own, and what their findings mean for it."""

from __future__ import annotations

from collections.abc import Iterator

from watchdog.core.model import SERVING, Finding, HoldReason, Subject, SubjectKind
from watchdog.core.state import EngineState, State


def own(state: State, engine: EngineState) -> frozenset[Subject]:
    """The cards that the engine computes on, as well as that is known.

    Where its processes were seen to hold memory is certain; next is what it is configured to use;
    without either every card may be its.
    """
    if engine.cards:
        return engine.cards
    named = engine.settings.gpus
    if named is None:
        return frozenset(state.cards)
    return frozenset(card for card, index in state.cards.items() if _named(card, index, named))


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


def findings(state: State, engine: EngineState) -> Iterator[Finding]:
    """Firing findings about the machine and the engine's own cards."""
    cards = own(state, engine)
    for (_, subject), seen in state.watches.items():
        if seen.firing is None or subject.kind is SubjectKind.ENGINE:
            continue
        if subject.kind is not SubjectKind.GPU or subject in cards:
            yield seen.firing


def faults(state: State, engine: EngineState) -> tuple[str, ...]:
    """Why the engine cannot serve from its cards, in words; empty when it can."""
    return tuple(words(state, one) for one in findings(state, engine) if one.fault)


def hold(state: State, engine: EngineState) -> tuple[HoldReason, str] | None:
    """Why no restart of the engine can help now, and in words; None when one can."""
    for finding in findings(state, engine):
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
