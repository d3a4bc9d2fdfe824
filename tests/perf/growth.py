"""How the cost grows: ``python -m tests.perf.growth [--out docs/measurements]``, under 8 minutes.

The core over made-up boxes, the real daemon in front of the embedded engine and of cards that a
library makes up, and the replay of a month. Writes a table, growth.md, and one picture a curve.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.perf.core import SECONDS, WARM_UP, Box, Run
from tests.perf.curves import Curve, Point, picture
from tests.perf.replay import Week
from tests.perf.table import children, pss
from tests.support import fake_nvml
from tests.support.configurations import accepted
from tests.support.daemon import Daemon, running, simulated_command
from tests.support.rules import DEFAULT_RULES
from tests.support.simulated import free_port, until
from watchdog.core import rule_set
from watchdog.core.engine import step
from watchdog.core.model import Event
from watchdog.core.rule_set import RuleSet
from watchdog.core.state import PolicySettings
from watchdog.recorder import Start, Told, read
from watchdog.replay import replay

OUT = Path("docs/measurements")
CARDS = (1, 4, 8, 16)
ENGINES = (1, 2, 4, 8)
RULES = (10, len(DEFAULT_RULES), 300, 1000)
DAYS = (1, 3, 7, 14, 28)
_SHIPPED = len(DEFAULT_RULES)
_IN_ORDER = tuple(sorted(DEFAULT_RULES, key=lambda rule: not rule.actions))
"""Those that act first: without them nothing would be started."""
_PARTS = 5
_LEAST = {"days": 2, "looks": 3}
"""How often the shortest replay is done, and how many windows a daemon is watched for."""
_WINDOW = 4.0
_SETTLE = 4.0
_READY = 120.0
_DAY = 86400
_US = 1e6
_KINDS = (
    ("engine", "engine_http.canary_seconds > {}.5"),
    ("gpu", "gpu.temperature_celsius > {}.5"),
    ("gpu", 'increase(gpu.pcie_replays, "5m") > {}'),
    ("host", "memory.available_percent < 0 && cpu.used_percent > {}"),
)
_ACROSS = {"gpus": "GPUs", "engines": "engines", "rules": "rules", "days": "days recorded"}


@dataclass(frozen=True, slots=True)
class Size:
    """How big a box is."""

    gpus: int = 1
    engines: int = 1
    rules: int = _SHIPPED


def sizes(what: str, numbers: Iterable[int]) -> dict[int, Size]:
    """Boxes that differ in one thing."""
    return {number: dataclasses.replace(Size(), **{what: number}) for number in numbers}


def named(size: Size) -> tuple[str, ...]:
    """The names of its engines."""
    return tuple(f"e{number}" for number in range(size.engines))


# --- rules ----------------------------------------------------------------------------------------


def configured(size: Size) -> Iterator[str]:
    """The tables of a configuration with so many rules: the shipped ones, and new ones or less."""
    for rule in _IN_ORDER[size.rules :]:
        yield f'[[rule]]\nname = "{rule.name}"\nmode = "off"'
    for number in range(max(0, size.rules - _SHIPPED)):
        subject, when = _KINDS[number % len(_KINDS)]
        yield (
            f'[[rule]]\nname = "own-{number}"\nsubject = "{subject}"\nfor = "5s"\n'
            f"when = '''{when.format(1000 + number)}'''\nsummary = \"never\""
        )


@functools.cache
def rules_of(size: Size) -> RuleSet:
    """The same, compiled; what is off is not there."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "watchdog.toml"
        file.write_text("\n".join(configured(size)))
        compiled = accepted(file)[1]
    kept = {rule.name for rule in _IN_ORDER[: size.rules]}
    return rule_set.of([r for r in compiled if r.name in kept or r.name.startswith("own-")])


# --- the core -------------------------------------------------------------------------------------


class Core(Run):
    """The core over the events of a box, with rules of one's own choice."""

    def __init__(self, names: Sequence[str], rules: RuleSet) -> None:
        self._rules = rules
        super().__init__(names)

    def _take(self, event: Event) -> float:
        began = time.thread_time()
        done = step(self.state, event, self._rules, PolicySettings())
        took = (time.thread_time() - began) * _US
        self.state = done.state
        return took


def steps(size: Size) -> tuple[float, ...]:
    """Mean CPU microseconds of a step, over each fifth of five minutes after ten."""
    box, run = Box(size.gpus, named(size)), Core(named(size), rules_of(size))
    run.live([list(box.second(number)) for number in range(WARM_UP)])
    found = []
    length = SECONDS // _PARTS
    for begin in range(WARM_UP, WARM_UP + SECONDS, length):
        seconds = [list(box.second(number)) for number in range(begin, begin + length)]
        run.took.clear()
        run.live(seconds)
        found.append(statistics.fmean([one for costs in run.took.values() for one in costs]))
    return tuple(found)


# --- the daemon -----------------------------------------------------------------------------------


@contextlib.contextmanager
def watching(size: Size) -> Iterator[Daemon]:
    """The real daemon in front of such a box, ready; default settings but for the sizes."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        nvml = fake_nvml.idle(folder / "nvml", size.gpus)
        file = folder / "watchdog.toml"
        tables = [f"[watchdog]\nstarts_at_once = {size.engines}"]
        for engine in named(size):
            words = simulated_command(free_port(), "--startup-time", "0")
            quoted = ", ".join(f'"{word}"' for word in words)
            tables.append(f"[engine.{engine}]\ncommand = [{quoted}]")
        file.write_text("\n".join((*tables, *configured(size))))
        with running(folder / "state", (), 0, config=file, environment=nvml.environment) as daemon:
            until(lambda: _all_ready(daemon, size.engines), _READY)
            until(lambda: daemon.metric("nvidia_gpu_power_watts"), _READY)
            yield daemon


def _all_ready(daemon: Daemon, engines: int) -> bool:
    found = daemon.status().get("engines", [])
    for engine in found:
        daemon.remember(engine.get("pids", ()))
    ready = [engine for engine in found if engine["verdict"] in {"ready", "busy"}]
    return len(ready) == engines


def _own(daemon: Daemon) -> list[int]:
    """The watchdog and its own children: no process of an engine."""
    engines = daemon.status()["engines"]
    theirs = {pid for engine in engines for pid in engine["pids"]}
    return [daemon.process.pid, *(set(children(daemon.process.pid)) - theirs)]


def spent(pid: int) -> float:
    """CPU seconds of a process, of its ended threads too, to the nanosecond."""
    return time.clock_gettime((~pid << 3) | 2)  # CPUCLOCK_SCHED of linux/posix-timers.h


def idle(size: Size) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Percent of a core, and MiB of proportional memory, over some windows with nothing to do."""
    with watching(size) as daemon:
        time.sleep(_SETTLE)
        pids = _own(daemon)
        shares, sizes_ = [], []
        for _ in range(_LEAST["looks"]):
            before, began = sum(map(spent, pids)), time.monotonic()
            time.sleep(_WINDOW)
            shares.append((sum(map(spent, pids)) - before) / (time.monotonic() - began) * 100)
            sizes_.append(pss(pids))
        return tuple(shares), tuple(sizes_)


# --- recordings -----------------------------------------------------------------------------------


def replayed() -> dict[int, tuple[float, ...]]:
    """CPU seconds until so many days were judged, by days; the shorter ones more than once."""
    day = Week(1, 1)
    day.run(_DAY)
    rules = rule_set.of(DEFAULT_RULES)
    found: dict[int, list[float]] = {days: [] for days in DAYS}
    for most in (*[DAYS[0]] * (_LEAST["days"] - 1), DAYS[-1]):
        marks: dict[int, float] = {}
        began = time.process_time()
        report = replay(_days(day.folder, most, marks), rules, PolicySettings())
        marks[most] = time.process_time()
        if report.bugs or report.differences:
            raise RuntimeError("the replay does not judge as it was judged")
        for days in DAYS:
            found[days] += [marks[days] - began] if days in marks else []
    return {days: tuple(values) for days, values in found.items()}


def _days(folder: Path, most: int, marks: dict[int, float]) -> Iterator[Start | Told]:
    """The recording of a day again and again, each time a day later, as after a nightly boot."""
    for number in range(most):
        marks[number] = time.process_time()
        for entry in read(folder, print):
            yield dataclasses.replace(entry, offset=entry.offset + number * _DAY)


# --- what is written ------------------------------------------------------------------------------


def _points(values: Mapping[int, tuple[float, ...]]) -> tuple[Point, ...]:
    return tuple(Point(size, found) for size, found in values.items())


def core_curves() -> Iterator[Curve]:
    """What a step costs."""
    for what, numbers in (("gpus", CARDS), ("engines", ENGINES), ("rules", RULES)):
        costs = {number: steps(size) for number, size in sizes(what, numbers).items()}
        title = f"One step of the core over {_ACROSS[what]}"
        yield Curve(
            f"growth-step-{what}", title, _ACROSS[what], "CPU, µs a step", _points(costs), 0
        )


def daemon_curves() -> Iterator[Curve]:
    """What the idle daemon costs."""
    seen = functools.cache(idle)
    for what, numbers in (("gpus", CARDS), ("engines", ENGINES), ("rules", RULES)):
        found = {number: seen(size) for number, size in sizes(what, numbers).items()}
        across = _ACROSS[what]
        shares = _points({number: both[0] for number, both in found.items()})
        memory = _points({number: both[1] for number, both in found.items()})
        title = f"CPU of the idle daemon over {across}"
        yield Curve(f"growth-cpu-{what}", title, across, "CPU, % of a core", shares, 2)
        title = f"Memory of the daemon over {across}"
        yield Curve(f"growth-pss-{what}", title, across, "PSS, MiB", memory)


def replay_curve() -> Curve:
    """What it takes to judge again."""
    title = "Replay over days of recordings"
    points = _points(replayed())
    return Curve("growth-replay-days", title, _ACROSS["days"], "CPU, s", points)


ABOUT = f"""# Growth

`python -m tests.perf.growth`. Each figure is the mean of n, with their range.

- A step of the core: CPU of one event from a made-up box, all probes at their default periods; five
  stretches of a minute after ten minutes. {_SHIPPED} rules are those that are shipped; more are new
  ones that watch samples and never fire, less are those that act and some more.
- The daemon: the real one with its NVML worker, all probes on, in front of idle embedded engines
  and of cards that a library makes up at no cost of its own; {_LEAST["looks"]} windows of
  {_WINDOW:g} s, {_SETTLE:g} s after all is ready. So soon after the start some looks are due more
  often than later.
- The replay: one GPU, one engine, a fault every fifty minutes, as the recorder thins it. One day is
  recorded; a longer time is that day again and again, each with a start of the watchdog.

Where nothing else is said there is one GPU, one engine, and the {_SHIPPED} rules.
"""


def document(curves: Sequence[Curve]) -> str:
    """The page: a table of all points, and the pictures."""
    where = f"{time.strftime('%Y-%m-%d')}, Python {platform.python_version()}, {os.cpu_count()}"
    load = f"load {os.getloadavg()[2]:.1f} in the last quarter of an hour, this program included"
    lines = [ABOUT, f"{where} cores, Linux {platform.release()}, {load}\n"]
    lines += ["| what | size | n | mean | min | max |", "| --- | --- | --- | --- | --- | --- |"]
    lines += [row for curve in curves for row in _rows(curve)]
    lines.append("")
    lines += [f"![{curve.title}]({curve.name}.svg)\n" for curve in curves]
    return "\n".join(lines)


def _rows(curve: Curve) -> Iterator[str]:
    for point in curve.points:
        figures = (point.mean, min(point.values), max(point.values))
        told = " | ".join(f"{figure:.{curve.digits}f}" for figure in figures)
        size = f"{point.x:g} {curve.across}"
        yield f"| {curve.title}, {curve.up} | {size} | {len(point.values)} | {told} |"


def main(out: Path) -> None:
    """Measure, write it to ``out``, and print the page."""
    curves = [*core_curves(), *daemon_curves(), replay_curve()]
    for curve in curves:
        (out / f"{curve.name}.svg").write_text(picture(curve))
    (out / "growth.md").write_text(document(curves))
    print(document(curves))


if __name__ == "__main__":
    words = sys.argv[1:]
    main(Path(words[words.index("--out") + 1]) if "--out" in words else OUT)
