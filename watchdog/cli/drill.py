"""``drill``: break the engine as the fault table says, and see whether what it promises happens."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

import click

from watchdog.cli.client import NO_DAEMON, fail, socket_path
from watchdog.cli.root import common, examples
from watchdog.cli.tables import columns, fields
from watchdog.cli.words import shown
from watchdog.drill import (
    DRILLS,
    AskError,
    Daemon,
    Drill,
    Engine,
    Result,
    Verdict,
    Where,
    is_simulated,
    on_daemon,
    on_own,
    taken,
)

_MISSED, _USAGE, _INTERRUPTED = 1, 2, 130
_HEAD = ("DRILL", "VERDICT", "DETECTED", "WITHIN", "RELEASED", "SERVING", "INCIDENT", "")
_RESERVE = 1
"""Restarts that a real engine keeps for a real fault."""
_GOOD = frozenset({Verdict.OK, Verdict.SKIPPED})


@click.command(
    short_help="Break the engine on purpose, and see whether all goes as promised.",
    epilog=examples("drill --list", "drill D1 H1", "drill --simulate"),
)
@click.argument("faults", nargs=-1, metavar="[FAULT]...")
@click.option("--list", "listing", is_flag=True, help="What can be drilled, and what must happen.")
@click.option("--simulate", is_flag=True, help="On a daemon and a simulated engine of its own.")
@click.option("--yes", is_flag=True, help="Disturb an engine that is not simulated.")
@click.option("--engine", default="", metavar="NAME", help="Which one; default: the only one.")
@common
def drill(  # noqa: PLR0913, PLR0917 - one parameter an option, all given by name
    faults: tuple[str, ...],
    listing: bool,  # noqa: FBT001 - click calls by name
    simulate: bool,  # noqa: FBT001 - as above
    yes: bool,  # noqa: FBT001 - as above
    engine: str,
    config: Path | None,  # noqa: ARG001 - every command takes it
    state_dir: Path | None,
    as_json: bool,  # noqa: FBT001 - as above
) -> None:
    """Inject each FAULT, measure what the daemon does, and compare it with the fault table.

    Without FAULT: all that can be run. Without a daemon and without FAULT, or with --simulate, it
    starts a daemon of its own, on the simulated engine, and ends it. Progress is told on stderr.
    Exit code 0 all as promised, 1 not, 2 usage, 3 no daemon.
    """
    chosen = _chosen(faults)
    if listing:
        click.echo(json.dumps(_catalogue(chosen)) if as_json else "\n".join(_listed(chosen)))
        return
    with _interruptible():
        daemon = None if simulate else _daemon(state_dir, needed=bool(faults))
        if daemon is None:
            results = _on_own(chosen)
        else:
            results = _on_daemon(daemon, chosen, engine, named=bool(faults), yes=yes)
    code = exit_code(results)
    click.echo(json.dumps(body(results, code)) if as_json else "\n".join(rendered(results)))
    sys.exit(code)


def exit_code(results: Sequence[Result]) -> int:
    """0 only when something was proven and nothing was missed."""
    proven = any(one.verdict is Verdict.OK for one in results)
    return 0 if proven and all(one.verdict in _GOOD for one in results) else _MISSED


def body(results: Sequence[Result], code: int) -> dict[str, object]:
    """What ``--json`` prints."""
    return {"drills": [_told(one) for one in results], "exit_code": code}


def rendered(results: Sequence[Result]) -> Iterator[str]:
    """The table, and below it why something is not ok."""
    rows = [
        (
            one.drill.id,
            one.verdict.value,
            _seconds(one.times.detected),
            f"{one.drill.within:.0f} s",
            _seconds(one.times.released),
            _seconds(one.times.serving),
            one.incident,
            one.drill.fault,
        )
        for one in results
    ]
    yield from columns(_HEAD, rows)
    for one in results:
        if one.reason:
            yield shown(f"{one.drill.id} {one.verdict.value}: {one.reason}")


def _told(one: Result) -> dict[str, object]:
    return {
        **_row(one.drill),
        "verdict": one.verdict.value,
        "reason": one.reason,
        "detected_after_s": one.times.detected,
        "released_after_s": one.times.released,
        "serving_after_s": one.times.serving,
        "incident": one.incident or None,
    }


def _catalogue(drills: Sequence[Drill]) -> dict[str, object]:
    return {"drills": [_row(one) for one in drills]}


def _row(one: Drill) -> dict[str, object]:
    return {
        "id": one.id,
        "fault": one.fault,
        "must": one.must,
        "within_s": one.within,
        "where": one.where.value,
        "restarts": one.restarts,
    }


def _listed(drills: Sequence[Drill]) -> Iterator[str]:
    for one in drills:
        yield f"{one.id}  {one.fault}"
        within = f"{one.within:.0f} s"
        watched = within if one.restarts or one.where is Where.OWN else f"watched for {within}"
        pairs = (("must", one.must), ("within", watched), ("on", _where(one)))
        yield from fields(pairs)


def _where(one: Drill) -> str:
    if one.where is not Where.ANY:
        return one.where.value
    harm = "restarts it" if one.restarts else "loads it"
    return f"{one.where.value}; {harm}, a real one with --yes"


def _chosen(faults: Sequence[str]) -> tuple[Drill, ...]:
    unknown = [fault for fault in faults if fault.upper() not in DRILLS]
    if unknown:
        known = ", ".join(DRILLS)
        fail(shown(f"unknown fault {unknown[0]}: expected one or more of {known}"), _USAGE)
    return tuple(DRILLS[name] for name in dict.fromkeys(f.upper() for f in faults or DRILLS))


def _daemon(state_dir: Path | None, *, needed: bool) -> Daemon | None:
    """The daemon that runs; None when there is none and none is needed."""
    daemon = Daemon(socket_path(state_dir))
    try:
        daemon.status()
    except AskError as error:
        daemon.close()
        if needed:
            fail(shown(f"{error}; --simulate starts one of its own"), NO_DAEMON)
        _say("no daemon runs here: all is done on one of its own, with the simulated engine")
        return None
    return daemon


def _on_own(chosen: Sequence[Drill]) -> list[Result]:
    try:
        return list(on_own(chosen, _say))
    except AskError as error:
        fail(shown(str(error)), NO_DAEMON)


def _on_daemon(
    daemon: Daemon, chosen: Sequence[Drill], name: str, *, named: bool, yes: bool
) -> list[Result]:
    try:
        engine = _living(daemon, name)
        simulated = is_simulated(engine)
    except AskError as error:
        fail(shown(str(error)), _USAGE)
    fitting = [one for one in chosen if _fits(one, simulated=simulated)]
    if named and len(fitting) < len(chosen):
        odd = next(one for one in chosen if one not in fitting)
        fail(f"{odd.id} {_needs(odd)}", _USAGE)
    if not simulated:
        _ask_for_yes(engine, fitting, yes=yes)
    reserve = 0 if simulated else _RESERVE
    results = list(on_daemon(fitting, daemon, engine.name, _say, reserve))
    rest = (one for one in chosen if one not in fitting)
    return results + [Result(one, Verdict.SKIPPED, _needs(one)) for one in rest]


def _living(daemon: Daemon, name: str) -> Engine:
    engine = _engine(daemon, name)
    if engine.pid is None:
        raise AskError(f"{engine.words}: there is nothing to break")
    return engine


def _engine(daemon: Daemon, name: str) -> Engine:
    engines = daemon.status().get("engines", ())
    if not name and len(engines) > 1:
        names = ", ".join(str(one["name"]) for one in engines)
        raise AskError(f"--engine: expected one of {names}")
    return daemon.engine(name)


def _fits(one: Drill, *, simulated: bool) -> bool:
    return one.where is Where.ANY or (one.where is Where.SIMULATOR and simulated)


def _needs(one: Drill) -> str:
    return f"needs {one.where.value}: add --simulate"


def _ask_for_yes(engine: Engine, drills: Sequence[Drill], *, yes: bool) -> None:
    spends = sum(one.restarts for one in drills)
    what = ", ".join(one.id for one in drills)
    left = f"{engine.budget} restarts that are left in its budget"
    costs = f"it costs {spends} of the {left}" if spends else "it costs no restart"
    line = f"{what} on {engine.name}, which is no simulated engine: clients notice, {costs}"
    if not yes:
        fail(shown(f"{line}; add --yes to do it, or --simulate to try it elsewhere"), _USAGE)
    _say(line)


@contextmanager
def _interruptible() -> Iterator[None]:
    """TERM and HUP as ^C: what was stopped goes on, what was started is ended."""
    for number in taken():
        signal.signal(number, _interrupt)
    try:
        yield
    except KeyboardInterrupt:
        _say("interrupted")
        sys.exit(_INTERRUPTED)


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _say(line: str) -> None:
    click.echo(shown(line), err=True)


def _seconds(value: float | None) -> str:
    """Milliseconds where they count; a look takes about fifty."""
    if value is None:
        return ""
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s"
