"""``incidents``: what broke, and the story of one outage in plain words."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import msgspec

from watchdog import config as configuration
from watchdog.cli.client import NO_DAEMON, fail, socket_path
from watchdog.cli.root import common, examples
from watchdog.cli.status import answers, known, named
from watchdog.cli.tables import columns, fields, paragraph
from watchdog.cli.words import second, shown
from watchdog.core.model import Incident, Seconds
from watchdog.store import StoredIncident
from watchdog.store.told import UnreadableStoreError, stored_incident, stored_incidents
from watchdog.web import bodies
from watchdog.web.deeds import OUTCOMES
from watchdog.web.pasted import pasted
from watchdog.web.saying import action, word
from watchdog.web.tasks import prevention

UNKNOWN = 1
_PATIENCE: Seconds = 5.0
_LISTED = 50
"""As many as a daemon keeps at hand; the store has more, each by its id."""
_HEAD = ("ID", "BEGAN", "RULE", "SUBJECT", "CAUSE", "OUTCOME")
_ID = re.compile(r"[a-z0-9-]{1,40}")
_OUTCOMES = {
    "": "it goes on",
    "recovered": "recovered: the watchdog's action brought it back",
    "cleared": "cleared: it went away without an action",
    "given_up": "given up: the watchdog stopped trying",
    "operator": "a person ended it",
}

Body = Mapping[str, Any]


@click.command(
    short_help="What broke, and what was done about it.",
    epilog=examples("incidents", "incidents last", "incidents 12 --json | jq .timeline"),
)
@click.argument("id_", metavar="[ID]", required=False)
@common
def incidents(
    id_: str | None,
    config: Path | None,  # noqa: ARG001 - every command takes it
    state_dir: Path | None,
    as_json: bool,  # noqa: FBT001 - click calls by name
) -> None:
    """List the last incidents, or tell one: what was seen, decided and done, and how it ended.

    ID is as in the list, its number, or "last". Asks the daemon; without one the store is read.
    Exit code 1 for an unknown ID, 3 when there is neither a daemon nor a store.
    """
    if id_ is None:
        status = _asked(state_dir, "/api/v1/status")  # one moment: what it says of both
        found = _listed(state_dir) if status is None else list(status.get("incidents", ()))
        told_ = json.dumps({"incidents": found}) if as_json else listed(found)
        click.echo(told_ if as_json else _headed(state_dir, told_, status, whole=True))
        return
    one = _one(state_dir, id_)
    status = None if as_json else _asked(state_dir, "/api/v1/status")
    click.echo(json.dumps(one) if as_json else _headed(state_dir, told(one), status))


def _headed(state_dir: Path | None, text: str, status: Body | None, *, whole: bool = False) -> str:
    """``text`` below what ``status`` says of the present; not ``whole``, what the text says not."""
    lines = ["SERVING  not known: no daemon answers"]
    if status is not None and known(status):
        now = status["answers"] if whole else {**status["answers"], "broke": (), "did": ()}
        lines = [*answers(now, where=named(state_dir))]
    return "\n".join((*lines, "", pasted(text, named(state_dir))))


def listed(found: list[Body]) -> str:
    """One line an incident, the newest first."""
    if not found:
        return "no incidents"
    rows = [
        (
            str(one["id"]),
            second(one.get("began") or one["opened"]),
            str(one["rule"]),
            str(one["subject"]),
            word(str(one["cause"])),
            OUTCOMES.get(one["outcome"], str(one["outcome"])) or "open",
        )
        for one in found
    ]
    return "\n".join(columns(_HEAD, rows))


def told(one: Body) -> str:
    """The whole story. Control characters of hostile names are shown, not obeyed."""
    return "\n".join(_told(one))


def _told(one: Body) -> Iterator[str]:
    yield shown(f"{one['id']}  {one['rule']} on {one['subject']}, {one['severity']}")
    yield paragraph(str(one["summary"]), 2)
    yield ""
    yield from fields(_facts(one))
    yield from ("", "TIMELINE (UTC)")
    yield from _story(one)
    yield from ("", "EVIDENCE")
    seen = [(str(name), str(value)) for name, value in one["evidence"].items() if value != ""]
    yield from fields(seen)
    if not seen:
        yield "  none"


def _facts(one: Body) -> Iterator[tuple[str, str]]:
    yield "began", second(one["began"])
    yield "noticed", f"{one['detected_after_s']} s later"
    cause = word(str(one["cause"]))
    yield "cause", f"{cause}: {one['explanation']}" if one["explanation"] else cause
    yield "actions", ", ".join(map(action, one["actions"])) or "none"
    yield from [("now", str(one["held"]))] if one.get("held") else []
    yield "outcome", _OUTCOMES.get(one["outcome"], str(one["outcome"]))
    if one["recovered_after_s"] is not None:
        yield (
            "over",
            f"{second(one['resolved'])}, {one['recovered_after_s']} s after it was noticed",
        )
    for path in one.get("bundles", ()):
        yield "bundle", str(path)
    yield from _duty(one)


def _duty(one: Body) -> Iterator[tuple[str, str]]:
    """What is over asks for nothing: its fix is what prevents the next one."""
    over = one["resolved"] is not None
    if over or one["repaired"]:
        yield "to do", "nothing: it is over" if over else "nothing yet: the watchdog is at it"
    fix = prevention(one["fix"]) if over else one["fix"]
    if fix and not one["repaired"]:
        yield "next time" if over else "fix", str(fix)


def _story(one: Body) -> Iterator[str]:
    timeline: list[Body] = one["timeline"]
    if not timeline:
        yield "  none"
    for entry in timeline:
        time = str(entry["at"])[11:23]
        yield shown(f"  {time}  {entry['event']:<18}  {entry['text']}")
    if one["omitted"]:
        yield f"  {one['omitted']} more were not kept, between the oldest and the latest"


# Where they come from.


def _listed(state_dir: Path | None) -> list[Body]:
    answer = _asked(state_dir, "/api/v1/incidents")
    if answer is not None and "incidents" in answer:
        return list(answer["incidents"])
    return [bodies.brief(*pair) for pair in map(_kept, _stored(state_dir)) if pair is not None]


def _one(state_dir: Path | None, name: str) -> Body:
    known = _listed(state_dir)
    wanted = _named(name, known)
    answer = _asked(state_dir, f"/api/v1/incidents/{wanted}")
    if answer is not None and "error" not in answer:
        return answer
    kept = _kept(_stored_one(state_dir, wanted))
    if kept is None:
        fail(shown(f"no incident {name!r}"), UNKNOWN)
    return bodies.whole(*kept, _bundles(state_dir, wanted))


def _bundles(state_dir: Path | None, name: str) -> list[str]:
    """The directories with its evidence."""
    from watchdog.evidence.bundles import DIRECTORY
    from watchdog.evidence.bundles import kept as kept_bundles

    found = kept_bundles(configuration.state_dir(state_dir, os.environ) / DIRECTORY)
    return [str(one.path) for one in found if one.incident == name]


def _named(name: str, known: list[Body]) -> str:
    """The id that is meant by ``name``: never a path, whatever that is made of."""
    if name == "last":
        return str(known[0]["id"]) if known else fail("no incidents", UNKNOWN)
    number = name.isascii() and name.isdigit()
    wanted = f"inc-{name.lstrip('0').zfill(6)}" if number else name
    return wanted if _ID.fullmatch(wanted) else fail(shown(f"no incident {name!r}"), UNKNOWN)


def _asked(state_dir: Path | None, path: str) -> dict[str, Any] | None:
    """The daemon's answer; None where no daemon answers in its own words."""
    import httpx

    where = socket_path(state_dir)
    if not where.exists():  # httpx forgets to close a socket that found nobody
        return None
    try:
        transport = httpx.HTTPTransport(uds=str(where))
        with httpx.Client(transport=transport, timeout=_PATIENCE, trust_env=False) as client:
            found: Any = client.get(f"http://daemon{path}").json()
    except (httpx.HTTPError, ValueError, OSError):
        return None
    return found if isinstance(found, dict) else None


def _stored(state_dir: Path | None) -> tuple[StoredIncident, ...]:
    where = configuration.state_dir(state_dir, os.environ)
    try:
        found = stored_incidents(where, _LISTED)
    except UnreadableStoreError as error:
        fail(shown(str(error)), NO_DAEMON)
    if found is None:
        fail(f"no daemon answers at {socket_path(state_dir)}, and no store is there", NO_DAEMON)
    return found


def _stored_one(state_dir: Path | None, name: str) -> StoredIncident | None:
    try:
        return stored_incident(configuration.state_dir(state_dir, os.environ), name)
    except (UnreadableStoreError, UnicodeError):
        return None


def _kept(stored: StoredIncident | None) -> tuple[bodies.Stamp, Incident] | None:
    """What was stored, with its own clock; None for what another version wrote."""
    try:
        incident = None if stored is None else msgspec.json.decode(stored.body, type=Incident)
    except (msgspec.MsgspecError, RecursionError):
        return None
    if stored is None or incident is None:
        return None
    began = stored.opened - incident.opened_at

    def stamp(at: Seconds | None) -> str | None:
        if at is None:
            return None
        try:
            moment = datetime.fromtimestamp(began + at, UTC)
        except (OverflowError, ValueError, OSError):  # a time that no calendar has
            return None
        return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")

    return stamp, incident
