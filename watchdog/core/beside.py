"""What is decided about a GPU or the box: one action at a time, beside all engines.

Such an action starts and stops nothing, so it has no budget: its rule's rest bounds it.
"""

from __future__ import annotations

from dataclasses import replace

from watchdog.core import cards, incidents, ladder, rules
from watchdog.core.changing import changed
from watchdog.core.model import Cause, Decision, Finding, HoldReason, Mode, Seconds
from watchdog.core.rules import WatchKey
from watchdog.core.work import Work


def decide(work: Work, key: WatchKey, finding: Finding) -> None:
    """Act upon ``finding`` or hold. A hold is told when its reason is new."""
    before = work.state.watches[key]
    action = ladder.action(work.state, key, finding)
    hold, words = _restraint(work, key, finding)
    if hold is None:
        work.state = ladder.acted(work.state, key, action, work.at)
        work.state = changed(work.state, beside=(action, finding.subject))
    if hold is None or hold is not before.held:
        work.note(_decision(work, finding, action, hold, words))
    if hold is not before.held:
        watches = {**work.state.watches, key: replace(before, held=hold)}
        work.state = changed(work.state, watches=watches)


def _restraint(work: Work, key: WatchKey, finding: Finding) -> tuple[HoldReason | None, str]:
    """Why nothing is done now, and in words where it is not told by the name."""
    state, rule = work.state, work.rules.by_name[finding.rule]
    if state.shutting_down or state.beside is not None:
        return HoldReason.IN_FLIGHT, ""
    if state.mode is not Mode.ACT or finding.mode is not Mode.ACT:
        return HoldReason.OBSERVE, ""
    if state.pause is not None:
        return HoldReason.PAUSED, ""
    inhibitor = ladder.inhibitor(state, finding, rule)
    if inhibitor is not None:
        return HoldReason.INHIBITED, f"{inhibitor.rule}: {cards.words(state, inhibitor)}"
    if ladder.rests(state, key, rule, work.at):
        return HoldReason.COOLDOWN, ""
    return None if _seen(work, key) else HoldReason.STALE, ""


def _seen(work: Work, key: WatchKey) -> bool:
    """Whether it is known now, for as long as it must be, and was looked at since what was done."""
    seen, rule = work.state.watches[key], work.rules.by_name[key[0]]
    held = rules.holds_since(rule, seen)
    if seen.unseen_since is not None or held is None or work.at < held:
        return False
    track = work.state.tracks.get(key)
    since: tuple[Seconds | None, ...] = (work.state.gap_at, track.ended_at if track else None)
    moments = [at for at in since if at is not None]
    return not moments or ladder.looked_at_the_box(work.state, rule, max(moments))


def _decision(
    work: Work, finding: Finding, action: str, hold: HoldReason | None, words: str
) -> Decision:
    incident = incidents.open_on(work.state, finding.subject)
    return Decision(
        at=work.at,
        rule=finding.rule,
        target=finding.subject,
        action=action,
        cause=Cause.RULE,
        hold=hold,
        detail=words or finding.summary,
        incident=incident.id if incident is not None else "",
    )
