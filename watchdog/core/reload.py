"""What a new configuration does to the state: what it does not change goes on as it was.

What was merely pending must hold anew, and so must everything that a changed rule had found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from watchdog.core import incidents, ladder, views, vitals
from watchdog.core.model import HOST, Mode, ProcessState, Record, Seconds
from watchdog.core.rule_set import RuleSet
from watchdog.core.rules import WatchKey
from watchdog.core.state import EngineSettings, EngineState, Parts, RestartHistory, State, Watch
from watchdog.core.watching import finding_keys

_Done = tuple[State, tuple[Record, ...]]

_HAS_PROCESSES = frozenset(
    {
        ProcessState.STARTING,
        ProcessState.RUNNING,
        ProcessState.STOPPING,
        ProcessState.UNKILLABLE,
    }
)


@dataclass(frozen=True, slots=True)
class NewOrder:
    """What holds from now on. ``rules`` are the old and the new ones.

    ``engines`` are all that are configured, in their order; ``comers`` the states of engines that
    the state does not know: of those, and of others that are about to go. ``dropped`` are probes
    that do not look any more. ``histories`` take the place of what is known of these engines.
    ``reread`` are engines of whose log something else is expected than before.
    """

    rules: tuple[RuleSet, RuleSet]
    engines: tuple[EngineSettings, ...]
    comers: Mapping[str, EngineState]
    mode: Mode
    dropped: frozenset[str] = frozenset()
    histories: Mapping[str, RestartHistory] = field(default_factory=dict)
    reread: frozenset[str] = frozenset()


def reloaded(state: State, at: Seconds, order: NewOrder) -> _Done:
    """``state`` under the new order, and the journal lines of findings that ended by it.

    Engines that are not configured any more stay, last, until they are forgotten. Histories,
    tracks, incidents and the pause are what they were.
    """
    ended = _changed(*order.rules) | _blinded(state, order)
    engines = _engines(state, at, order)
    same = (order.rules[0].rules, order.mode, engines)
    if not ended and same == (order.rules[1].rules, state.mode, state.engines):
        return state, ()  # a reload that changes nothing takes nothing back
    state, records = _without_findings(state, at, lambda key, _: key[0] in ended)
    acts = order.mode is Mode.ACT and state.mode is not Mode.ACT
    watches = {
        key: replace(seen, pending_since=None, held=None) if acts else seen
        for key, seen in state.watches.items()
        if seen.firing is not None
    }
    names = order.rules[1].by_name
    tracks = {key: track for key, track in state.tracks.items() if key[0] in names}
    state = replace(
        state,
        watches=watches,
        tracks=tracks if len(tracks) < len(state.tracks) else state.tracks,
        judged=frozenset(),
        mode=order.mode,
        engines=engines,
    )
    return _without_probes(_with_windows_of(state, order.rules[1]), order), records


def settled(state: State, settings: EngineSettings) -> State:
    """``state`` with ``settings`` for the generation that was just started with them."""
    engine = state.engines.get(settings.name)
    if engine is None or engine.settings == settings:
        return state
    return state.with_engine(replace(engine, settings=settings))


def forgotten(state: State, name: str, at: Seconds) -> _Done:
    """``state`` without the engine ``name``, of which nothing lives; its incidents stay."""
    engine = state.engines.get(name)
    if engine is None:
        return state, ()
    subject = engine.subject
    state, records = _without_findings(state, at, lambda key, _: key[1] == subject)
    state, more = incidents.resolved(state, subject, at)
    state = _without_reports(
        ladder.forgiven(state, subject), lambda one: one.endswith(f" of {name}")
    )
    return (
        replace(
            state,
            engines={one: kept for one, kept in state.engines.items() if one != name},
            readings={key: kept for key, kept in state.readings.items() if key[1] != name},
            views={one: parts for one, parts in state.views.items() if one != subject},
            series={key: kept for key, kept in state.series.items() if key[0] != subject},
        ),
        (*records, *more),
    )


def _changed(old: RuleSet, new: RuleSet) -> frozenset[str]:
    """Names of the rules that are not what they were, the gone ones included."""
    return frozenset(name for name, rule in old.by_name.items() if new.by_name.get(name) != rule)


def _blinded(state: State, order: NewOrder) -> frozenset[str]:
    """Rules about samples of a probe that looks no more: nobody would ever ask them again."""
    gone = order.dropped & {probe for probe, _ in state.readings}
    return frozenset(
        rule.name
        for rule in order.rules[1]
        if gone & {name.partition(".")[0] for name in rule.when.samples}
    )


def _without_findings(state: State, at: Seconds, ends: Callable[[WatchKey, Watch], bool]) -> _Done:
    """Drop the watches that end; a finding that fired resolves."""
    records: list[Record] = []
    for key, seen in tuple(state.watches.items()):
        if not ends(key, seen):
            continue
        if seen.firing is not None:
            keys = finding_keys(state, seen.firing)
            records.append(Record("finding.resolved", "info", keys))
            state = ladder.healed(state, key, at)
        kept = {other: watch for other, watch in state.watches.items() if other != key}
        state = replace(state, watches=kept)
    return state, tuple(records)


def _engines(state: State, at: Seconds, order: NewOrder) -> dict[str, EngineState]:
    """Those that are configured, in their order, then those that are about to go."""
    engines: dict[str, EngineState] = {}
    for settings in order.engines:
        known = state.engines.get(settings.name)
        if known is not None:
            engines[settings.name] = replace(known, settings=_until_restart(known, settings))
        elif settings.name in order.comers:
            engines[settings.name] = order.comers[settings.name]
    others = {**order.comers, **state.engines}
    engines |= {name: engine for name, engine in others.items() if name not in engines}
    return {name: _reread(at, order, _under(order, engine)) for name, engine in engines.items()}


def _reread(at: Seconds, order: NewOrder, engine: EngineState) -> EngineState:
    """That its log had shown all that was expected before says nothing of what is expected now."""
    if engine.name not in order.reread:
        return engine
    return replace(engine, vitals=vitals.unread(engine.vitals, at))


def _under(order: NewOrder, engine: EngineState) -> EngineState:
    """Its account under the new order.

    What waits is not carried out by who observes, nor what was to end one that has come back.
    """
    history = order.histories.get(engine.name, engine.history)
    waits = order.mode is Mode.ACT and engine.name not in order.histories
    pending = engine.pending if waits else None
    if history is engine.history and pending is engine.pending:
        return engine
    return replace(engine, history=history, pending=pending)


def _until_restart(engine: EngineState, settings: EngineSettings) -> EngineSettings:
    """What runs keeps the cards that it was started on."""
    if engine.process not in _HAS_PROCESSES:
        return settings
    return replace(settings, gpus=engine.settings.gpus)


def _with_windows_of(state: State, rules: RuleSet) -> State:
    """Nothing is kept for windows that nobody looks through any more."""
    wanted = {window.name for kept in rules.windows.values() for window in kept}
    return replace(state, series={k: kept for k, kept in state.series.items() if k[1] in wanted})


def _without_probes(state: State, order: NewOrder) -> State:
    """What a probe saw that does not look any more is not known any more."""
    if not order.dropped:
        return state
    dropped = order.dropped
    blind = {
        window.name
        for sample, kept in order.rules[1].windows.items()
        for window in kept
        if sample.partition(".")[0] in dropped
    }
    state = _without_reports(state, lambda one: one.partition(" of ")[0] in dropped)
    return replace(
        state,
        readings={key: kept for key, kept in state.readings.items() if key[0] not in dropped},
        views={one: _parts(parts, dropped) for one, parts in state.views.items()},
        series={key: kept for key, kept in state.series.items() if key[1] not in blind},
    )


def _without_reports(state: State, gone: Callable[[str], bool]) -> State:
    """Forget that these probes worked or failed; the next reading tells the rules."""
    kept = frozenset(one for one in state.proven if not gone(one))
    if kept == state.proven:
        return state
    host = _parts(state.views.get(HOST, {}), {views.SELF})
    return replace(
        state, proven=kept, failing=state.failing & kept, views={**state.views, HOST: host}
    )


def _parts(parts: Parts, without: Iterable[str]) -> Parts:
    return {probe: part for probe, part in parts.items() if probe not in without}
