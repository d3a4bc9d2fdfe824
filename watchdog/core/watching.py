"""The stage of the rules: what is known is judged, and what changed by it is written down."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from watchdog.core import cards, incidents, ladder, lessons, rules, views
from watchdog.core.conditions import View
from watchdog.core.model import (
    HOST,
    Event,
    Finding,
    Reading,
    ReadingTaken,
    Record,
    Subject,
    Tick,
)
from watchdog.core.rules import Rule
from watchdog.core.state import EngineState, State, Watch
from watchdog.core.views import News
from watchdog.core.work import Work

_LOUD = {"info": "info", "warning": "warning", "critical": "error"}
_OWN = "engine."


def learn(work: Work, event: Event) -> None:
    """Take a reading into the views, and judge what rules about the box say of it.

    A tick judges those that are due: time alone may change what they say.
    """
    match event:
        case ReadingTaken():
            _told(work, event.reading)
            work.state, news = views.reporting(work.state, event.reading)
            if news:
                _watch_box(work, views.SELF, {HOST: None})
        case Tick():
            for rule in work.rules.of_box:
                _watch(work, rule, _due(work, rule))
        case _:
            pass


def _told(work: Work, reading: Reading) -> None:
    work.state, news = views.absorb(work.state, reading, work.rules.windows)
    if reading.subject is not None:
        return
    _forget_renamed(work, reading)
    work.state, records = lessons.taught(work.state, reading)
    work.records.extend(records)
    _watch_box(work, reading.probe, news)


def _watch_box(work: Work, probe: str, news: News) -> None:
    """Ask the rules whose answer may be another one now: the others were asked the same before."""
    found = {subject: views.of(work.state, subject) for subject in news}
    judged = probe in work.state.judged
    running = _running(work.state)
    for rule in work.rules.asking.get(probe, ()):
        _watch(
            work,
            rule,
            [
                (subject, view)
                for subject, view in found.items()
                if subject.kind is rule.subject
                and (
                    not judged
                    or (rule.name, subject) in running
                    or work.rules.may_differ(rule, news[subject])
                )
            ],
        )
    if not judged:
        work.state = replace(work.state, judged=work.state.judged | {probe})


def _running(state: State) -> frozenset[tuple[str, Subject]]:
    """Watches that time changes: something is pending, clearing, or not known while it fires."""
    return frozenset(
        key
        for key, seen in state.watches.items()
        if seen.clear_since is not None
        or seen.unseen_since is not None
        or (seen.pending_since is not None and seen.firing is None)
    )


def _forget_renamed(work: Work, reading: Reading) -> None:
    """A card that has its name now: what was found under its place in the list is over."""
    gone = views.renamed(work.state, reading)
    if not gone:
        return
    for (name, subject), seen in tuple(work.state.watches.items()):
        if subject in gone:
            _note_change(work, seen, Watch())
            kept = {k: v for k, v in work.state.watches.items() if k != (name, subject)}
            work.state = replace(work.state, watches=kept)
    work.state = views.forgotten(work.state, gone)


def _due(work: Work, rule: Rule) -> list[tuple[Subject, View]]:
    moments = {
        subject: rules.next_look(rule, seen)
        for (name, subject), seen in work.state.watches.items()
        if name == rule.name
    }
    due = [one for one, moment in moments.items() if moment is not None and moment <= work.at]
    return [(subject, views.of(work.state, subject)) for subject in due]


def watch_engines(work: Work, before: State, event: Event) -> None:
    """Judge by the rules about engines those of which a reading has told something new, or all."""
    state = work.state
    everybody = work.anew or not isinstance(event, ReadingTaken)
    timed = {subject for _, subject in _running(state)}
    found: list[tuple[Subject, View]] = [
        (engine.subject, views.of_engine(state, engine))
        for engine in state.engines.values()
        if everybody or engine.subject in timed or _is_news(before, state, engine)
    ]
    for rule in work.rules.of_engines:
        _watch(work, rule, found)


def _is_news(before: State, now: State, engine: EngineState) -> bool:
    known = before.engines.get(engine.name) is engine
    return not known or before.views.get(engine.subject) is not now.views.get(engine.subject)


def _watch(work: Work, rule: Rule, found: Iterable[tuple[Subject, View]]) -> None:
    for subject, view in found:
        key = (rule.name, subject)
        before = work.state.watches.get(key, _UNSEEN)
        after = rules.watch(rule, subject, view, before, work.at)
        if after is not before and after != before:
            work.state = replace(work.state, watches={**work.state.watches, key: after})
            _note_change(work, before, after)


_UNSEEN = Watch()


def _note_change(work: Work, before: Watch, after: Watch) -> None:
    if before.firing is None and after.firing is not None:
        one = after.firing
        work.findings.append(one)
        work.records.append(
            Record("finding.firing", _LOUD[one.severity.value], finding_keys(work.state, one))
        )
        after_service = work.settings.reset_after_ready
        work.state = ladder.fired(work.state, (one.rule, one.subject), work.at, after_service)
    elif before.firing is not None and after.firing is None:
        one = before.firing
        work.records.append(Record("finding.resolved", "info", finding_keys(work.state, one)))
        work.state = ladder.healed(work.state, (one.rule, one.subject), work.at)


def finding_keys(state: State, finding: Finding) -> tuple[tuple[str, object], ...]:
    """What the journal says of a finding; an engine's own samples go by their bare names."""
    incident = incidents.open_on(state, finding.subject)
    return (
        ("rule", finding.rule),
        ("severity", finding.severity.value),
        ("subject", str(finding.subject)),
        ("engine", ",".join(cards.concerned(state, finding.subject))),
        ("summary", finding.summary),
        ("incident", incident.id if incident is not None else ""),
        *((name.removeprefix(_OWN), value) for name, value in finding.evidence),
    )


def firing(state: State) -> list[tuple[tuple[str, Subject], Finding]]:
    """Every firing finding with the key of its watch, loudest first."""
    found = [(key, seen.firing) for key, seen in state.watches.items() if seen.firing is not None]
    if len(found) < 2:  # noqa: PLR2004 - nothing to sort
        return found
    order = {"critical": 0, "warning": 1, "info": 2}
    return sorted(found, key=lambda pair: order[pair[1].severity.value])
