"""What ``check`` tells of an engine's model and of the box it would start on, in numbers."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TypeVar

from watchdog import registry
from watchdog.cli.words import shown
from watchdog.command_line import EngineCommand, Form, describe
from watchdog.config import Config, EngineConfig
from watchdog.core.engine import firing
from watchdog.core.model import HOST, Finding, Severity, Subject, SubjectKind, Value
from watchdog.core.rules import Rule
from watchdog.core.state import State
from watchdog.daemon.gate_cards import first_cards, share, visible
from watchdog.daemon.once import look
from watchdog.nvidia import versions
from watchdog.nvidia.engine_cuda import wish
from watchdog.nvidia.fit import engine_fit
from watchdog.nvidia.floors import judge
from watchdog.places import assigned, of_engine
from watchdog.preflight import Card, Figure, Report, preflight
from watchdog.preflight.words import number, size
from watchdog.supervisor.bounded import Bounded
from watchdog.supervisor.gpu_gate import CardMemory

PROBES = ("conntrack", "driver", "files", "gpu", "gpu_processes", "tmpfs")
"""What is looked at of the box: what a start runs into."""
_VLLM = frozenset({Form.SERVE, Form.API_SERVER})
PATIENCE = 3.0
"""Seconds for a model's folder, or a program: a mount that hangs must not hang the check."""
_DESCRIPTORS = 65_535
"""vLLM raises its own limit so far where it may."""
_UNKNOWN = "not computed"
_UNITS = frozenset({"tokens", "requests", "GPUs", "blocks"})
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Box:
    """The box at one look: what rules find, as lines, and numbers with where they come from."""

    state: State
    problems: tuple[str, ...]
    warnings: tuple[str, ...]
    figures: tuple[Figure, ...]


def box_of(config: Config, rules: Sequence[Rule], running: Mapping[str, Sequence[int]]) -> Box:
    """Look once. ``running`` are the processes of engines that a daemon looks after."""
    specs = {name: spec for name, spec in registry.probes().items() if name in PROBES}
    state = look(config, specs, rules, running).snapshot.state
    found = [finding for _, finding in firing(state)]
    told = [(one.severity, _line(one, state)) for one in found if one.rule not in _ELSEWHERE]
    return Box(
        state,
        tuple(line for severity, line in told if severity is Severity.CRITICAL),
        tuple(line for severity, line in told if severity is Severity.WARNING),
        tuple(_figures(config, state)),
    )


_ELSEWHERE = frozenset({"engine-driver-too-old", "driver-mismatch"})
"""Rules about what ``check`` says itself, with the engine's name."""


def said_of(engine: EngineConfig) -> EngineCommand:
    """What its command says; a ``--config`` file is as the engine finds it. Raises CommandError."""
    return describe(engine.command, engine.env, os.environ, cwd=Path(engine.cwd))


def report_of(  # noqa: PLR0913 - all that a start is judged by
    engine: EngineConfig,
    said: EngineCommand,
    box: Box,
    memory: Sequence[int],
    floors: Mapping[str, str],
    *,
    runs: bool = False,
) -> Report | None:
    """Whether the model fits on the engine's cards, or on cards of ``memory`` bytes each.

    ``floors`` are what the settings say of drivers. What an engine that ``runs`` already holds is
    no obstacle to its next start. None for a program that is not vLLM.
    """
    if said.form not in _VLLM:
        return None
    around = {**os.environ, **engine.env, **assigned(engine.command)}
    cards = _stand_ins(said, memory) if memory else tuple(_cards(said, around, box.state, runs))
    found = attempt(lambda: preflight(said, around, engine.cwd or None, cards))
    if not isinstance(found, Report):
        line = f"the model {said.model} could not be looked at{failure(found)}"
        return Report(warnings=(*said.notes, line))
    driver = _driver(said, around, floors)
    return replace(
        found,
        figures=(*driver, *found.figures),
        warnings=(*said.notes, *found.warnings, *_few_files()),
    )


def attempt(work: Callable[[], T], patience: float = PATIENCE) -> T | Exception | None:
    """What ``work`` returned or raised; None when it has not come back in ``patience`` seconds."""

    def caught() -> T | Exception:
        try:
            return work()
        except Exception as error:  # noqa: BLE001 - who waits for it says what becomes of it
            return error

    return Bounded(patience)(caught)


def failure(found: Exception | None, patience: float = PATIENCE) -> str:
    """What ``attempt`` came to, behind "cannot be looked at"."""
    if found is None:
        return f" within {patience:g} s"
    return f": {type(found).__name__}: {found}"


def _driver(
    said: EngineCommand, around: Mapping[str, str], floors: Mapping[str, str]
) -> Iterator[Figure]:
    """The driver that is loaded, and what the engine's CUDA needs."""
    wanted, driver = wish(said.argv, around), versions.loaded_module()
    if wanted.cpu_only:
        return
    words = "the CUDA that the engine wants cannot be read from its files"
    if wanted.cuda:
        told = engine_fit(wanted.cuda, around, floors=floors).words
        words = told or _needed(wanted.cuda, floors)
    yield Figure("driver", driver or None, "version", words if driver else "none is loaded here")


def _needed(cuda: str, floors: Mapping[str, str]) -> str:
    """The floor, in the words that a driver older than any gets."""
    words = judge("1.0", cuda, floors).words.rpartition("; ")[2]
    return words or f"the engine's torch wants CUDA {cuda}, which nothing is known of here"


def crowded(engines: Mapping[str, tuple[EngineConfig, EngineCommand]], box: Box) -> Iterator[str]:
    """One line for each card of which several engines want more than there is, standbys aside."""
    wishes: dict[str, list[tuple[str, float]]] = {}
    for name, (engine, said) in engines.items():
        if engine.standby or said.form not in _VLLM:
            continue
        around = {**os.environ, **engine.env, **assigned(engine.command)}
        for card in _cards(said, around, box.state):
            wishes.setdefault(card.name, []).append((name, share(said)))
    for card_name, wanted in wishes.items():
        total = sum(part for _, part in wanted)
        if len(wanted) > 1 and total > 1:
            words = " + ".join(f"{part} ({name})" for name, part in wanted)
            yield f"{card_name}: its engines want {total:.2f} of it together = {words}"


def _stand_ins(said: EngineCommand, memory: Sequence[int]) -> tuple[Card, ...]:
    """One size stands for all the cards that the engine needs."""
    count = said.tensor_parallel * said.pipeline_parallel * said.data_parallel
    sizes = list(memory) if len(memory) > 1 else [*memory] * min(count, 1024)
    return tuple(Card(f"card {n}", amount, words="--memory") for n, amount in enumerate(sizes))


def _cards(
    said: EngineCommand,
    around: Mapping[str, str],
    state: State,
    runs: bool = False,  # noqa: FBT001, FBT002 - as in report_of
) -> Iterator[Card]:
    """Those that it would use, as far as that is known."""
    if wish(said.argv, around).cpu_only:
        return
    found = {subject: _memory(subject, index, state) for subject, index in state.cards.items()}
    names = first_cards(said, visible(around), list(found.values()))
    for name in names:
        for subject, card in found.items():
            if name in {str(card.index), card.uuid} or (
                name.startswith("GPU-") and card.uuid.startswith(name)
            ):
                yield _card(card, state.views.get(subject, {}), runs)


def _memory(subject: Subject, index: str, state: State) -> CardMemory:
    values = state.views.get(subject, {}).get("gpu_processes", {})

    def amount(name: str) -> int | None:
        value = values.get(f"gpu_processes.{name}")
        return None if value is None else int(value)

    return CardMemory(
        int(index) if index.isdecimal() else 0,
        subject.name,
        amount("memory_used_bytes"),
        amount("memory_total_bytes"),
        mig=bool(values.get("gpu_processes.mig")),
    )


def _card(card: CardMemory, parts: Mapping[str, Mapping[str, Value]], runs: bool) -> Card:  # noqa: FBT001
    """What the driver keeps for itself is no memory to CUDA."""
    name = f"GPU {card.index}"
    if card.mig or card.total_bytes is None:
        return Card(name, None)
    reserved = int(parts.get("gpu", {}).get("gpu.memory_reserved_bytes", 0))
    words = f"{name}: {size(card.total_bytes)} - {size(reserved)} that the driver keeps"
    values = parts.get("gpu_processes", {})
    told = [str(values.get(f"gpu_processes.{who}") or "") for who in ("strangers", "orphans")]
    ours = int(values.get("gpu_processes.memory_bytes.engine") or 0)
    told.append(f"an engine of ours {size(ours)}" if ours and not runs else "")
    holders = ", ".join(filter(None, told))
    used = card.used_bytes
    used = max(used - ours, 0) if runs and used is not None else used
    model = str(parts.get("gpu", {}).get("gpu.name", ""))
    return Card(name, card.total_bytes - reserved, used, words, holders, model)


def _line(finding: Finding, state: State) -> str:
    match finding.subject.kind:
        case SubjectKind.GPU:
            where = f"GPU {state.cards.get(finding.subject, finding.subject.name)}: "
        case SubjectKind.HOST:
            where = ""
        case _:
            where = f"{finding.subject}: "
    fix = f"; {finding.fix}" if finding.fix else ""
    return f"{where}{finding.summary}{fix} ({finding.rule})"


def _few_files() -> Iterator[str]:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < _DESCRIPTORS:
        yield (
            f"an engine may open {number(hard)} files here (ulimit -Hn), and vLLM wants"
            f" {number(_DESCRIPTORS)}: each connection takes one"
        )


def _figures(config: Config, state: State) -> Iterator[Figure]:
    parts = state.views.get(HOST, {})
    values = {name: value for part in parts.values() for name, value in part.items()}
    yield from _shared_memory(config)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = _DESCRIPTORS if hard == resource.RLIM_INFINITY else hard
    yield Figure("files of an engine", limit, "files", f"ulimit -Hn; vLLM wants {_DESCRIPTORS:,}")
    for name, limit_name, unit, title in (
        ("files.open", "files.limit", "files", "room for open files"),
        ("conntrack.entries", "conntrack.limit", "connections", "room for connections"),
    ):
        used, most = values.get(name), values.get(limit_name)
        if isinstance(used, int) and isinstance(most, int):
            words = f"{number(most)} - {number(used)}"
            yield Figure(title, most - used, unit, f"{words} ({limit_name.replace('.', ' ')})")
    prefix = "tmpfs.size_bytes."
    for name, total in values.items():
        used = values.get(name.replace(prefix, "tmpfs.bytes_used.", 1))
        if name.startswith(prefix) and isinstance(total, int) and isinstance(used, int):
            words = f"{size(total)} - {size(used)}"
            yield Figure(f"free on {name.removeprefix(prefix)}", total - used, "bytes", words)


def _shared_memory(config: Config) -> Iterator[Figure]:
    wanted = 0
    for engine in config.engine.values():
        wanted = max(wanted, of_engine(engine.command, {**os.environ, **engine.env}).shm_bytes)
    if wanted:
        words = "two ring buffers between the engine and its workers, in /dev/shm"
        yield Figure("shared memory wanted", wanted, "bytes", words)


def render(name: str, report: Report) -> Iterator[str]:
    """A heading and a line for each number."""
    where = f", {report.place}" if report.place else ""
    why = f": {report.why}" if report.why else ""
    yield shown(f"{name}: {report.verdict.replace('_', ' ')}{why}{where}")
    yield from table(report.figures)


def table(figures: Sequence[Figure]) -> Iterator[str]:
    """Name, number and arithmetic, one below the other."""
    cells = [(figure.name, _number(figure), figure.arithmetic) for figure in figures]
    names = max((len(name) for name, _, _ in cells), default=0)
    amounts = max((len(amount) for _, amount, _ in cells), default=0)
    for name, amount, words in cells:
        sign = " =" if amount != _UNKNOWN else ": "
        yield shown(f"  {name:<{names}}  {amount:>{amounts}}{sign} {words}")


def _number(figure: Figure) -> str:
    if figure.value is None:
        return _UNKNOWN
    if isinstance(figure.value, str):
        return figure.value
    most = "at most " if figure.at_most else ""
    if figure.unit == "bytes":
        return f"{most}{size(figure.value)}"
    unit = f" {figure.unit}" if figure.unit in _UNITS else ""
    return f"{most}{number(round(figure.value, 2))}{unit}"


def body(name: str, report: Report) -> dict[str, object]:
    """What ``--json`` prints of an engine."""
    return {
        "name": name,
        "model": report.place,
        "verdict": report.verdict.value,
        "why": report.why,
        "figures": [asdict(figure) for figure in report.figures],
    }
