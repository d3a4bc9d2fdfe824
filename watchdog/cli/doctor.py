"""``doctor``: what is wrong with this box, what fixes it, and where more of that is written."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import click
import msgspec

from watchdog import registry
from watchdog.cli import attachment
from watchdog.cli.check import built, load, refusing
from watchdog.cli.client import socket_path
from watchdog.cli.root import common, examples
from watchdog.cli.words import UNKNOWN, gpu_line, shown
from watchdog.core.engine import firing
from watchdog.core.ladder import inhibitor
from watchdog.core.model import HOST, Finding, Severity, Subject, SubjectKind, Value
from watchdog.core.rules import Rule
from watchdog.core.state import State
from watchdog.daemon.once import Look, Unreadable, look
from watchdog.web import bodies

HEALTHY, WARNING, CRITICAL, BLIND = 0, 1, 2, 3
_PATIENCE = 2.0
"""Seconds for a daemon to say which processes are its engines'; without it they are guessed."""


@click.command(
    short_help="What is wrong with this box?",
    epilog=examples(
        "doctor",
        "doctor -- vllm serve Qwen/Qwen3-0.6B",
        "doctor --json | jq '.findings[].rule'",
    ),
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@common
def doctor(
    command: tuple[str, ...],
    config: Path | None,
    state_dir: Path | None,
    as_json: bool,  # noqa: FBT001 - click calls by name
) -> None:
    """Look at GPUs, driver and host once, and say what is wrong and what fixes it.

    With COMMAND or a configuration also whether the driver can run its engines. Needs no daemon.
    Exit code 0 healthy, 1 warning, 2 critical (or usage error), 3 something could not be read.
    """
    with refusing():
        effective = load(config, command)
        rules = built(effective)
    attached = attachment.attached_of(effective)
    known = {**attachment.pids_of(attached), **running(state_dir)}
    seen = look(attachment.own(effective), registry.probes(), rules, known)
    if as_json:
        click.echo(json.dumps({**body(seen, rules), "attached": [asdict(one) for one in attached]}))
    else:
        click.echo(render(seen, rules, attached))
    sys.exit(exit_code(seen))


class _Engine(msgspec.Struct, frozen=True):
    name: str
    pids: tuple[int, ...]


class _Status(msgspec.Struct, frozen=True):
    engines: tuple[_Engine, ...]


def running(state_dir: Path | None) -> Mapping[str, Sequence[int]]:
    """The processes of each engine as a daemon tells; none where no daemon answers."""
    import httpx

    try:
        transport = httpx.HTTPTransport(uds=str(socket_path(state_dir)))
        with httpx.Client(transport=transport, timeout=_PATIENCE, trust_env=False) as client:
            answer = client.get("http://daemon/api/v1/status")
        found = msgspec.json.decode(answer.content, type=_Status)
    except (httpx.HTTPError, msgspec.MsgspecError, OSError, ValueError):
        return {}
    return {engine.name: engine.pids for engine in found.engines}


def exit_code(seen: Look) -> int:
    """What is wrong goes before what could not be read."""
    severities = {finding.severity for _, finding in firing(seen.snapshot.state)}
    if Severity.CRITICAL in severities:
        return CRITICAL
    if Severity.WARNING in severities:
        return WARNING
    return BLIND if seen.unread else HEALTHY


def body(seen: Look, rules: Sequence[Rule]) -> dict[str, object]:
    """What ``--json`` prints; findings and GPUs are those of ``/api/v1/status``.

    ``inhibited_by`` is the rule that outranks a finding, null for none.
    """
    above = outranked(seen.snapshot.state, rules)
    told = [
        {**one, "inhibited_by": above[finding].rule if finding in above else None}
        for one, (_, finding) in zip(
            bodies.findings(seen.snapshot), firing(seen.snapshot.state), strict=True
        )
    ]
    return {
        "findings": told,
        "gpus": bodies.gpus(seen.snapshot),
        "driver": _driver_values(seen.snapshot.state),
        "unread": [msgspec.to_builtins(one) for one in seen.unread],
        "exit_code": exit_code(seen),
    }


def outranked(state: State, rules: Sequence[Rule]) -> dict[Finding, Finding]:
    """Findings that say the same as another one, less urgently, each with that other one."""
    by_name = {rule.name: rule for rule in rules}
    pairs = (
        (finding, inhibitor(state, finding, by_name[finding.rule]))
        for _, finding in firing(state)
        if finding.rule in by_name
    )
    return {finding: above for finding, above in pairs if above is not None}


def render(seen: Look, rules: Sequence[Rule], attached: Sequence[attachment.Attached] = ()) -> str:
    """The same for people. Control characters of hostile names are shown, not obeyed."""
    state = seen.snapshot.state
    findings = [finding for _, finding in firing(state)]
    above = outranked(state, rules)
    lines = [line for one in findings for line in _finding(one, state, above.get(one))]
    if not findings:
        lines = ["no findings in what could be read" if seen.unread else "no findings", ""]
    lines += [gpu_line(card) for card in bodies.gpus(seen.snapshot)]
    lines.append(_driver(_driver_values(state)))
    lines += [f"{one.name}: {one.words}" for one in attached]
    if seen.unread:
        lines += ["", "could not be read:", *_unread(seen.unread)]
    return "\n".join(shown(line) for line in lines)


def _finding(finding: Finding, state: State, above: Finding | None) -> Iterator[str]:
    yield f"{finding.severity.upper():<9} {finding.rule} on {_words(finding.subject, state)}"
    yield f"  {finding.summary}"
    for name, value in finding.evidence:
        yield f"  {name} = {_told(value)}"
    if above is not None:
        yield f"  fix: that of {above.rule} on {_words(above.subject, state)}, which outranks it"
    elif finding.fix:
        yield f"  fix: {finding.fix}"
    if finding.runbook and above is None:
        yield f"  what to do: docs/runbooks/{finding.runbook}.md"
    yield ""


def _words(subject: Subject, state: State) -> str:
    match subject.kind:
        case SubjectKind.GPU:
            index = state.cards.get(subject, UNKNOWN)
            return f"GPU {index}" + (f" ({subject.name})" if "GPU-" in subject.name else "")
        case SubjectKind.HOST:
            return "this host"
        case _:
            return str(subject)


def _told(value: Value) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value) if isinstance(value, int | str) else f"{value:.12g}"


def _driver_values(state: State) -> dict[str, Value]:
    """Samples of the probe ``driver`` about the host, and the CUDA that the cards name."""
    known = state.views.get(HOST, {}).get("driver", {})
    values = {name.removeprefix("driver."): value for name, value in known.items()}
    for parts in state.views.values():
        of_card = parts.get("gpu", {})
        for name in ("driver_version", "cuda_version"):
            if f"gpu.{name}" in of_card:
                values.setdefault(name, of_card[f"gpu.{name}"])
    return values


def _driver(values: Mapping[str, Value]) -> str:
    module = values.get("module_version", values.get("driver_version"))
    parts = [
        f"driver {module or 'not found'}",
        f"library {values.get('library_version') or 'not found'}",
        f"CUDA up to {values.get('cuda_version', UNKNOWN)}",
        f"NVML {values.get('nvml', UNKNOWN)}",
    ]
    return "  ".join(parts)


def _unread(unread: Sequence[Unreadable]) -> Iterator[str]:
    """What several probes say in the same words is said once."""
    probes: dict[str, list[str]] = {}
    for one in unread:
        who = probes.setdefault(one.error, [])
        if one.probe not in who:
            who.append(one.probe)
    for error, names in probes.items():
        yield f"  {', '.join(names)}: {error}"
