"""What a rule does next about a subject: the rung of its ladder, its rest, and who outranks it."""

from __future__ import annotations

from dataclasses import replace

from watchdog.core import cards
from watchdog.core.model import Finding, Mode, Reading, Seconds, Subject, SubjectKind
from watchdog.core.rules import Rule, WatchKey
from watchdog.core.state import EngineState, State, Track

CHARGED = frozenset({"start_engine", "restart_engine"})
"""Actions that lead to a start, and are bounded by the budgets of starts."""
_REST: Seconds = 300.0
_OWN = "engine"
"""What the core knows of an engine by itself; a gap in that is a matter of the policy."""


def action(state: State, key: WatchKey, finding: Finding) -> str:
    """The rung to take next. The last one is taken again: budget and rest end that."""
    track = state.tracks.get(key, Track())
    return finding.actions[min(track.rung, len(finding.actions) - 1)]


def resting_until(state: State, key: WatchKey, rule: Rule) -> Seconds | None:
    """When the rest after its last action ends; None when there is none.

    A last rung that costs no budget rests for some time before it is taken again.
    """
    track = state.tracks.get(key)
    if track is None:
        return None
    free = track.rung >= len(rule.actions) and not CHARGED & set(rule.actions[-1:])
    rest = max(rule.cooldown, _REST) if free else rule.cooldown
    if not rest:
        return None
    return (track.ended_at if track.ended_at is not None else track.acted_at) + rest


def rests(state: State, key: WatchKey, rule: Rule, at: Seconds) -> bool:
    """It is healing, so that only time may still take the finding away, or it just acted."""
    if state.watches[key].clear_since is not None:
        return True
    until = resting_until(state, key, rule)
    return until is not None and at < until


def acted(state: State, key: WatchKey, what: str, at: Seconds) -> State:
    """``state`` after an action of ``key`` was decided: what comes next is the rung above."""
    rung = state.tracks.get(key, Track()).rung + 1
    return _with(state, key, Track(rung, acted_at=at, action=what))


def ended(state: State, target: Subject, action: str, at: Seconds) -> State:
    """``state`` after ``action`` on ``target`` ended, well or not."""
    for key, track in state.tracks.items():
        if key[1] == target and track.action == action and track.ended_at is None:
            state = _with(state, key, replace(track, ended_at=at))
    return state


def healed(state: State, key: WatchKey, at: Seconds) -> State:
    """``state`` after the finding cleared: whether the action helped is known when it stays so."""
    track = state.tracks.get(key)
    return state if track is None else _with(state, key, replace(track, healed_at=at))


def fired(state: State, key: WatchKey, at: Seconds, helped_after: Seconds) -> State:
    """``state`` after the finding fired; healed for ``helped_after``, its ladder begins anew."""
    track = state.tracks.get(key)
    if track is None:
        return state
    known = (track.healed_at, track.ended_at, track.acted_at)  # healed unseen: we began anew since
    healed_at = next(moment for moment in known if moment is not None)
    rung = 0 if at - healed_at >= helped_after else track.rung
    return _with(state, key, replace(track, rung=rung, healed_at=None))


def forgiven(state: State, target: Subject) -> State:
    """``state`` without what was done about ``target``: a person took over."""
    kept = {key: track for key, track in state.tracks.items() if key[1] != target}
    return state if len(kept) == len(state.tracks) else replace(state, tracks=kept)


def _with(state: State, key: WatchKey, track: Track) -> State:
    return replace(state, tracks={**state.tracks, key: track})


def looked(state: State, rule: Rule, engine: EngineState, since: Seconds) -> bool:
    """Whether every probe that the rule asks has told something since then."""
    return all(
        _told(state, root, engine, since)
        for root in {name.partition(".")[0] for name in rule.when.samples}
        if root != _OWN
    )


def looked_at_the_box(state: State, rule: Rule, since: Seconds) -> bool:
    """As ``looked``, of a rule about a GPU or the box; what we know of ourselves needs no look."""
    roots = {name.partition(".")[0] for name in rule.when.samples}
    found = [state.readings.get((root, "")) for root in roots]
    return all(one.at >= since for one in found if one is not None)


def _told(state: State, probe: str, engine: EngineState, since: Seconds) -> bool:
    """A probe that has never told anything is not waited for: nothing was found by it."""
    kept = (state.readings.get((probe, name)) for name in (engine.name, ""))
    found = [one for one in kept if one is not None]
    return not found or any(one.at >= since for one in found if _is_of(engine, one))


def _is_of(engine: EngineState, reading: Reading) -> bool:
    return reading.subject is None or reading.generation == engine.generation


def inhibitor(state: State, finding: Finding, rule: Rule) -> Finding | None:
    """The firing finding that outranks ``finding``: about its subject, its cards, or the host."""
    if not rule.inhibited_by:
        return None
    for (name, subject), seen in state.watches.items():
        one = seen.firing
        if one is None or one.mode is not Mode.ACT or name not in rule.inhibited_by:
            continue
        if _related(state, finding.subject, subject):
            return one
    return None


def _related(state: State, subject: Subject, other: Subject) -> bool:
    if other == subject or other.kind is SubjectKind.HOST:
        return True
    pair = {subject.kind, other.kind}
    if pair != {SubjectKind.ENGINE, SubjectKind.GPU}:
        return False
    engine, card = (subject, other) if subject.kind is SubjectKind.ENGINE else (other, subject)
    return engine.name in cards.concerned(state, card)
