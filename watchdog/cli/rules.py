"""``rules``: what is judged, and what follows: defaults with what the configuration changed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import msgspec

from watchdog.cli.check import built, load, refusing, unknown
from watchdog.cli.root import common, examples
from watchdog.cli.tables import NOTHING, columns, fields
from watchdog.config import RuleConfig
from watchdog.config.durations import duration_text
from watchdog.core.model import Mode, Severity
from watchdog.core.rules import Rule
from watchdog.rules import default_rules

_HEAD = ("NAME", "ABOUT", "SEVERITY", "MODE", "FOR", "FROM", "ACTIONS")
_UNSAID = {
    "severity": Severity.WARNING.value,
    "mode": Mode.ACT.value,
    "for": "0s",
    "clear_for": "0s",
    "cooldown": "0s",
    "fault": "false",
}
"""What holds where neither file nor default says anything."""
_PAGES = "docs/runbooks"


@dataclass(frozen=True, slots=True)
class Effective:
    """A rule as it is judged, and where it is from."""

    rule: Rule
    default: RuleConfig | None
    configured: RuleConfig | None

    @property
    def origin(self) -> str:
        """``default``, ``overridden`` or ``configured``."""
        if self.default is None:
            return "configured"
        return "overridden" if self.changed else "default"

    @property
    def changed(self) -> tuple[str, ...]:
        """The keys of the file that override the default."""
        return tuple(_given(self.configured)) if self.default and self.configured else ()

    @property
    def condition(self) -> str:
        """The text of the condition, in one line."""
        texts = (each.when for each in (self.configured, self.default) if each)
        return " ".join(next(filter(None, texts), "").split())

    @property
    def runbook(self) -> str:
        """The page for on-call: a file of the documentation, or what the rule itself names."""
        page = self.rule.runbook or self.rule.name
        own = self.default is None or "runbook" in self.changed
        return page if own else f"{_PAGES}/{page}.md"


@click.command(
    short_help="The effective rules.",
    epilog=examples("rules", "rules engine-stalled", "rules --json | jq '.[].name'"),
)
@click.argument("name", required=False)
@common
def rules(
    name: str | None,
    config: Path | None,
    state_dir: Path | None,  # noqa: ARG001 - every command takes it
    as_json: bool,  # noqa: FBT001 - click calls by name
) -> None:
    """Show the rules in effect: the defaults with what the configuration changed, and its own.

    With NAME everything about that rule. Needs no daemon.
    """
    with refusing():
        loaded = load(config, ())
        found = effective(loaded.rule, built(loaded))
    if name is None:
        shown = json.dumps([body(one) for one in found.values()]) if as_json else listed(found)
    elif name not in found:
        unknown("rule", name, found)
    else:
        shown = json.dumps(body(found[name])) if as_json else told(found[name])
    click.echo(shown)


def effective(configured: tuple[RuleConfig, ...], rules: tuple[Rule, ...]) -> dict[str, Effective]:
    """Every rule by name, with its default and what the file says."""
    defaults = {each.name: each for each in default_rules()}
    given = {each.name: each for each in configured}
    return {r.name: Effective(r, defaults.get(r.name), given.get(r.name)) for r in rules}


def listed(found: Mapping[str, Effective]) -> str:
    """One line a rule."""
    rows = [
        (
            one.rule.name,
            one.rule.subject.value,
            one.rule.severity.value,
            one.rule.mode.value,
            duration_text(one.rule.hold_for),
            one.origin,
            ", ".join(one.rule.actions),
        )
        for one in found.values()
    ]
    return "\n".join(columns(_HEAD, rows))


def told(one: Effective) -> str:
    """Everything of one rule; what the file changed, with what it was."""
    notes = dict(_notes(one))
    rule = one.rule
    lines = fields((key, text + notes.get(key, "")) for key, text in _texts(one))
    return "\n".join((f"{rule.name} ({one.origin})", *lines))


def _texts(one: Effective) -> Iterator[tuple[str, str]]:
    rule = one.rule
    yield "subject", rule.subject.value
    yield "severity", rule.severity.value
    yield "mode", rule.mode.value
    yield "when", one.condition
    yield "for", duration_text(rule.hold_for)
    yield "clear_for", duration_text(rule.clear_for)
    yield "cooldown", duration_text(rule.cooldown)
    yield "actions", ", then ".join(rule.actions)
    yield "inhibited_by", ", ".join(rule.inhibited_by)
    yield "holds", f"restarts, as {rule.holds.value}" if rule.holds else ""
    yield "fault", "true" if rule.fault else "false"
    yield "evidence", ", ".join(rule.evidence)
    yield "runbook", one.runbook
    yield "summary", rule.summary
    yield "reason", rule.reason


def _notes(one: Effective) -> Iterator[tuple[str, str]]:
    """`` (default: X)`` for each key that the file overrides."""
    if one.default is None:
        return
    before = _given(one.default)
    for key in one.changed:
        yield key, f" (default: {before.get(key) or _UNSAID.get(key, NOTHING)})"


def _given(rule: RuleConfig | None) -> dict[str, str]:
    """What is given, by its key in the file, as texts; without the name."""
    if rule is None:
        return {}
    return {
        field.encode_name: _text(field.encode_name, value)
        for field in msgspec.structs.fields(rule)
        if field.name != "name" and (value := getattr(rule, field.name)) is not None
    }


def _text(key: str, value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case float() | int():
            return duration_text(value)
        case tuple():
            return (", then " if key == "actions" else ", ").join(value)
        case _:
            return " ".join(str(value).split())


def body(one: Effective) -> dict[str, Any]:
    """The rule for scripts; durations are seconds."""
    rule = one.rule
    return {
        "name": rule.name,
        "from": one.origin,
        "overridden": list(one.changed),
        "subject": rule.subject,
        "severity": rule.severity,
        "mode": rule.mode,
        "when": one.condition,
        "for_s": rule.hold_for,
        "clear_for_s": rule.clear_for,
        "cooldown_s": rule.cooldown,
        "actions": rule.actions,
        "inhibited_by": rule.inhibited_by,
        "holds": rule.holds,
        "fault": rule.fault,
        "evidence": rule.evidence,
        "samples": sorted(rule.when.samples),
        "runbook": one.runbook,
        "summary": rule.summary,
        "reason": rule.reason,
    }
