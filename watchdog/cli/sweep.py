"""``sweep``: what dead engines left behind, told, and removed when it is asked for."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import click

from watchdog import config as configuration
from watchdog import procfs
from watchdog.cli.check import load, refusing
from watchdog.cli.doctor import running
from watchdog.cli.root import common, examples
from watchdog.cli.words import shown
from watchdog.config import Config
from watchdog.core.model import Seconds
from watchdog.daemon import box_control
from watchdog.daemon.once import OneTarget
from watchdog.store.ended import ended_tempdirs
from watchdog.supervisor import leftovers
from watchdog.supervisor.leftovers import Sweeper, Swept
from watchdog.supervisor.members import GENERATION_VARIABLE

DONE, UNDONE, BLIND = 0, 1, 3
_UNRECORDED = "the record of ended starts cannot be read: their directories are let be"


@click.command(
    short_help="Remove what dead engines left behind.",
    epilog=examples("sweep", "sweep --yes", "sweep --json | jq '.would_remove'"),
)
@click.option("--yes", is_flag=True, help="Remove it; without this it is only told.")
@common
def sweep(
    yes: bool,  # noqa: FBT001 - click calls by name
    config: Path | None,
    state_dir: Path | None,
    as_json: bool,  # noqa: FBT001 - as above
) -> None:
    """List what dead engines left in shared memory and temporary directories; with --yes remove it.

    Only directories of recorded starts that have ended, and files with names that vLLM gives, which
    no process holds. Nothing that is younger than the oldest engine that lives. Needs no daemon.
    Exit code 0 done or told, 1 something could not be removed, 2 usage or configuration error, 3 it
    cannot be seen who holds what: then it is kept.
    """
    with refusing():
        effective = load(config, ())
    targets = engines(effective, running(state_dir))
    ended = ended_tempdirs(configuration.state_dir(state_dir, os.environ))
    swept = Sweeper(lambda: ended or ()).sweep(
        box_control.folders(targets),
        before=oldest(targets),
        dry_run=not yes,
        limits=leftovers.LONG,
    )
    unknown = _UNRECORDED if ended is None else swept.why
    code = exit_code(swept, unknown, removed=yes)
    told = json.dumps(body(swept, unknown, removed=yes)) if as_json else ""
    click.echo(told or render(swept, unknown, removed=yes))
    sys.exit(code)


def engines(config: Config, living: Mapping[str, Sequence[int]]) -> tuple[OneTarget, ...]:
    """The configured engines, with the processes that a daemon has told; and those it alone has."""
    known = {**dict.fromkeys(living, configuration.EngineConfig()), **config.engine}
    return tuple(
        OneTarget(name, one, tuple(filter(None, map(procfs.stat, living.get(name, ())))))
        for name, one in known.items()
    )


def oldest(targets: Sequence[OneTarget]) -> Seconds | None:
    """When the first engine that lives was started (seconds since the epoch); None: none lives.

    Also those of a daemon that is not asked, or that has left: each leader carries its mark.
    """
    told = box_control.first_start(targets)
    marked = (
        box_control.began(info.start_ticks)
        for info in procfs.scan()
        if procfs.lives(info) and procfs.environ_value(info.pid, GENERATION_VARIABLE)
    )
    return min((*marked, *(() if told is None else (told,))), default=None)


def exit_code(swept: Swept, unknown: str, *, removed: bool) -> int:
    """What is not known goes before what was not done."""
    if unknown:
        return BLIND
    return UNDONE if removed and swept.undone else DONE


def body(swept: Swept, unknown: str, *, removed: bool) -> dict[str, object]:
    """What ``--json`` prints."""
    return {
        "removed": list(swept.removed) if removed else [],
        "would_remove": [] if removed else list(swept.removed),
        "kept": [{"path": path, "why": why} for path, why in (*swept.kept, *swept.spared)],
        "unknown": unknown,
        "exit_code": exit_code(swept, unknown, removed=removed),
    }


def render(swept: Swept, unknown: str, *, removed: bool) -> str:
    """The same for people. Control characters of hostile names are shown, not obeyed."""
    return "\n".join(shown(line) for line in _lines(swept, unknown, removed=removed))


def _lines(swept: Swept, unknown: str, *, removed: bool) -> Iterator[str]:
    kept = (*swept.kept, *swept.spared)
    if not swept.removed and not kept:
        yield "nothing to sweep"
    if swept.removed:
        yield "removed:" if removed else "would be removed:"
        yield from (f"  {path}" for path in swept.removed)
    if kept:
        yield "kept:"
        yield from (f"  {path}: {why}" for path, why in kept)
    if unknown:
        yield f"not known: {unknown}"
    if swept.removed and not removed:
        yield "nothing was removed; `vllm-watchdog sweep --yes` removes it"
