"""The stage of the rules: what is known is judged, and what changed by it is written down."""

from __future__ import annotations

import math
from collections.abc import Iterable

from watchdog.core import absence, cards, incidents, ladder, lessons, policy, rules, views
from watchdog.core.changing import changed
from watchdog.core.conditions import View
from watchdog.core.model import (
    HOST,
    Event,
    Finding,
    Reading,
    ReadingTaken,
    Record,
    Subject,
    SubjectKind,
)
from watchdog.core.rules import Rule
from watchdog.core.state import EngineState, State, Watch
from watchdog.core.views import News
from watchdog.core.work import Work

_LOUD = {"info": "info", "warning": "warning", "critical": "error"}
_OWN = "engine."


def learn(work: Work, event: Event) -> None:
    """Take a reading into the views, and judge what rules about the box say of it.

    Their durations end at a look. Only that nobody could tell for an hour is a matter of time.
    """
    news = False
    if isinstance(event, ReadingTaken):
        _told(work, event.reading)
        work.state, news = views.reporting(work.state, event.reading)
    if views.SELF in work.state.views.get(HOST, {}):  # what we know of ourselves needs no look
        _watch_box(work, views.SELF, {HOST: None if news else frozenset()})
    _end_the_unseen(work)


def _told(work: Work, reading: Reading) -> None:
    work.state, news = views.absorb(work.state, reading, work.rules.windows)
    if reading.subject is not None:
        return
    renamed = views.renamed(work.state, reading)
    _forget(work, renamed)
    work.state, absent = absence.noticed(work.state, news.keys() - renamed, work.at)
    _forget(work, absent)
    work.state, records = lessons.taught(work.state, reading)
    work.records.extend(records)
    gone = renamed | absent
    _watch_box(work, reading.probe, {one: names for one, names in news.items() if one not in gone})


def _watch_box(work: Work, probe: str, news: News) -> None:
    """Ask the rules whose answer may be another one now: the others were asked the same before."""
    found = {subject: views.of(work.state, subject) for subject in news}
    judged = probe in work.state.judged
    running = _running(work.state)
    for rule in work.rules.asked_by(probe):
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
        work.state = changed(work.state, judged=work.state.judged | {probe})


def _running(state: State) -> frozenset[tuple[str, Subject]]:
    """Watches that time changes: something is pending, clearing, or not known while it fires."""
    return frozenset(
        key
        for key, seen in state.watches.items()
        if seen.clear_since is not None
        or seen.unseen_since is not None
        or (seen.pending_since is not None and seen.firing is None)
    )


def _forget(work: Work, gone: frozenset[Subject]) -> None:
    """Cards that have another name now, or that nobody tells of: what was found of them is over."""
    if not gone:
        return
    for (name, subject), seen in tuple(work.state.watches.items()):
        if subject in gone:
            _note_change(work, seen, Watch())
            kept = {k: v for k, v in work.state.watches.items() if k != (name, subject)}
            work.state = changed(work.state, watches=kept)
    work.state = views.forgotten(work.state, gone)


def _end_the_unseen(work: Work) -> None:
    for (name, subject), seen in tuple(work.state.watches.items()):
        rule = work.rules.by_name.get(name)
        if rule is None or rule.subject is SubjectKind.ENGINE or seen.unseen_since is None:
            continue
        if work.at >= seen.unseen_since + rules.FORGOTTEN:
            _watch(work, rule, [(subject, views.of(work.state, subject))])


def watch_engines(work: Work, before: State, event: Event) -> None:
    """Judge by the rules about engines those of which a reading has told something new, or all."""
    state = work.state
    everybody = work.anew or not isinstance(event, ReadingTaken)
    timed = {subject for _, subject in _running(state)}
    asked = [
        engine
        for engine in state.engines.values()
        if (everybody or engine.subject in timed or _is_news(before, state, engine))
        and not policy.is_stale(state, engine)
    ]
    found: list[tuple[Subject, View]] = [
        (engine.subject, views.of_engine(state, engine)) for engine in asked
    ]
    for rule in work.rules.of_engines:
        _watch(work, rule, found)
    work.judged = {engine.name: engine for engine in asked}


def _is_news(before: State, now: State, engine: EngineState) -> bool:
    if engine.name in now.restless or before.engines.get(engine.name) is not engine:
        return True
    if engine.settings.standby and before.engines is not now.engines:
        return True  # its view has what the others do
    return before.views.get(engine.subject) is not now.views.get(engine.subject)


def _watch(work: Work, rule: Rule, found: Iterable[tuple[Subject, View]]) -> None:
    for subject, view in found:
        key = (rule.name, subject)
        before = work.state.watches.get(key, _UNSEEN)
        after = rules.watch(rule, subject, view, before, work.at)
        if after is before or after == before:
            continue
        if (
            after.firing is not None
            and before.firing is None
            and not _looked(work, rule, subject, after)
        ):
            continue
        watches = {**work.state.watches, key: after}
        if after == _UNSEEN:
            del watches[key]
        work.state = changed(work.state, watches=watches)
        _note_change(work, before, after)


_UNSEEN = Watch()


def _looked(work: Work, rule: Rule, subject: Subject, seen: Watch) -> bool:
    """Whether a duration that ends now ends at a look, and not by time alone."""
    engine = work.state.engines.get(subject.name)
    if not rule.hold_for or engine is None or engine.subject != subject:
        return True
    since = seen.pending_since if seen.pending_since is not None else work.at
    return ladder.looked(work.state, rule, engine, math.nextafter(since, math.inf))


def _note_change(work: Work, before: Watch, after: Watch) -> None:
    if before.firing is None and after.firing is not None:
        one = after.firing
        work.findings.append(one)
        work.records.append(
            Record(
                "finding.firing",
                _LOUD[one.severity.value],
                (*finding_keys(work.state, one), *((("fix", one.fix),) if one.fix else ())),
            )
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
