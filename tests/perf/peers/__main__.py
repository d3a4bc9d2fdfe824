"""`python -m tests.perf.peers [--only NAME,..] [--rounds N] [--out FOLDER]`: us and the others.

Takes about ten minutes and writes FOLDER/peers.md and peers.json. A peer that is not installed is
named with its package, and skipped. Everything started is ended by pid, also when interrupted.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NoReturn

from tests.perf.peers import bare, circus, cron, monit, ours, pip, runit, s6, scenarios, supervisord
from tests.perf.peers.idle import EXPORTER, Cost, cost, scrapes
from tests.perf.peers.processes import over, sweep
from tests.perf.peers.report import Results
from tests.perf.peers.scenarios import Sample
from tests.perf.peers.subject import Subject

SUBJECTS: tuple[Subject, ...] = tuple(
    subject
    for module in (bare, ours, supervisord, circus, monit, s6, runit, cron)
    for subject in module.SUBJECTS
)
ROUNDS = 12
POLLED = 10
_TURNS = 3
"""The exact ones take turns: what else the machine does then disturbs all of them alike."""
_STOPS = 3
_HANGS = 3
_IDLE_AT_ONCE = 4
_WORKERS = (1, 8)
_DEBIAN = ("monit", "s6", "runit", "curl", EXPORTER)


def main() -> None:
    """Measure, write, say where."""
    arguments = _arguments()
    chosen = [s for s in SUBJECTS if not arguments.only or s.name in arguments.only.split(",")]
    if not chosen:
        sys.exit(f"no such subject; there are {', '.join(sorted({s.name for s in SUBJECTS}))}")
    results = _prepared(chosen)
    run = Path(tempfile.mkdtemp(prefix="peers-"))
    signal.signal(signal.SIGTERM, _terminated)
    try:
        measure(results, run, arguments.rounds)
    except KeyboardInterrupt:
        sys.exit("interrupted: nothing is written")
    finally:
        over.set()
        print(f"{sweep(run)} left processes ended", flush=True)
        shutil.rmtree(run, ignore_errors=True)
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "peers.md").write_text(results.markdown())
    (arguments.out / "peers.json").write_text(results.raw())
    print(results.markdown(), f"\n{arguments.out}/peers.md and peers.json are written", sep="")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.perf.peers", description=__doc__)
    parser.add_argument("--only", default="", help="names of subjects, with commas")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"crashes each ({ROUNDS})")
    parser.add_argument("--out", type=Path, default=Path("docs/measurements"))
    return parser.parse_args()


def _terminated(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def _prepared(chosen: Sequence[Subject]) -> Results:
    if any("(pip)" in need for subject in chosen for need in subject.needs):
        trouble = pip.build()
        print(f"MISSING: pip could not build {pip.HOME}: {trouble}" if trouble else pip.HOME)
    missing = {s.title: needs for s in chosen if (needs := s.missing())}
    if shutil.which(EXPORTER) is None:
        missing["node_exporter"] = [f"{EXPORTER}:{EXPORTER}"]
    for who, needs in missing.items():
        print(f"MISSING: {who} is skipped, it needs {', '.join(needs)}", flush=True)
    machine = f"{time.strftime('%Y-%m-%d')}, Python {platform.python_version()}, "
    machine += f"{os.cpu_count()} cores, Linux {platform.release()}, load {os.getloadavg()[0]:.2f}."
    command = " ".join(["python -m tests.perf.peers", *sys.argv[1:]])
    subjects = [subject for subject in chosen if subject.title not in missing]
    return Results(command, machine, versions(subjects), subjects, missing)


def versions(subjects: Iterable[Subject]) -> dict[str, str]:
    """Of what is compared here, by the package's own word."""
    found = {"vllm-watchdog": _output(sys.executable, "-m", "watchdog", "--version")}
    words = " ".join(need for subject in subjects for need in subject.needs)
    if "(pip)" in words:
        frozen = _output(pip.program("python"), "-m", "pip", "freeze").splitlines()
        names = ("supervisor", "superlance", "circus", "tornado", "pyzmq")
        found |= dict(line.split("==") for line in frozen if re.split("==", line)[0] in names)
    for package in _DEBIAN:
        if package in words or package == EXPORTER:
            found[package] = _output("dpkg-query", "-W", "-f", "${Version}", package) or "missing"
    return found


def _output(*argv: str) -> str:
    result = subprocess.run(argv, capture_output=True, text=True, check=False)
    return result.stdout.strip() if result.returncode == 0 else ""


def measure(results: Results, run: Path, rounds: int) -> None:
    """All phases, one after the other; within one, what does not disturb the rest runs at once."""
    exact = [s for s in results.subjects if not s.phase]
    polled = [s for s in results.subjects if s.phase]
    heavy = [s for s in results.subjects if s.name == "circus"]
    asked = [s for s in results.subjects if s.health and s not in heavy]
    crash = partial(_crash, results, run)
    turn = -(-rounds // _TURNS)
    _at_once(1, results, [partial(crash, s, turn) for _ in range(_TURNS) for s in exact])
    _at_once(99, results, [partial(crash, s, min(rounds, POLLED)) for s in polled])
    keepers = [s for s in results.subjects if s.name != "bare respawn"]
    jobs = [partial(_stops, results, run, s) for s in keepers]
    jobs += [partial(_loops, results, run, s) for s in keepers]
    _at_once(99, results, jobs + _health(results, run, heavy, 1))
    _at_once(99, results, _health(results, run, asked, _HANGS))
    idle = [s for s in keepers if s.profile == "tuned" or s.name == "vllm-watchdog"]
    _at_once(_IDLE_AT_ONCE, results, [partial(_idle, results, run, s) for s in idle])
    for subject in (s for s in keepers if s.name == "vllm-watchdog"):
        results.scrapes = scrapes(run, subject)


def _at_once(count: int, results: Results, jobs: Sequence[Callable[[], None]]) -> None:
    """Run the jobs, so many at a time; one that fails is told in the report."""
    with ThreadPoolExecutor(count) as pool:
        futures = [pool.submit(_told, results, job) for job in jobs]
        try:
            for future in futures:
                future.result()
        except BaseException:
            over.set()
            pool.shutdown(cancel_futures=True)
            raise


def _told(results: Results, job: Callable[[], None]) -> None:
    try:
        job()
    except InterruptedError:
        raise
    except (OSError, subprocess.SubprocessError) as error:
        print(f"FAILED: {error}", flush=True)
        results.failures.append(str(error))


def _crash(results: Results, run: Path, subject: Subject, rounds: int) -> None:
    samples = scenarios.crashes(run, subject, rounds)
    results.crash.setdefault(subject.title, []).extend(samples)
    _said("crash", subject, samples)


def _stops(results: Results, run: Path, subject: Subject) -> None:
    results.stop[subject.title] = scenarios.stops(run, subject, _STOPS)
    _said("stop", subject, results.stop[subject.title])


def _loops(results: Results, run: Path, subject: Subject) -> None:
    results.loop[subject.title] = [scenarios.loops(run, subject)]
    _said("loop", subject, results.loop[subject.title])


def _health(
    results: Results, run: Path, subjects: Sequence[Subject], rounds: int
) -> list[Callable[[], None]]:
    jobs: list[Callable[[], None]] = []
    for s in subjects:
        hang, saturated = results.hang.setdefault(s.title, []), results.saturated
        jobs += [partial(_add, "hang", s, hang, partial(scenarios.hangs, run, s))] * rounds
        one = partial(scenarios.saturations, run, s)
        jobs += [partial(_add, "saturated", s, saturated.setdefault(s.title, []), one)]
    return jobs


def _add(what: str, who: Subject, samples: list[Sample], one: Callable[[], Sample]) -> None:
    samples.append(one())
    _said(what, who, samples[-1:])


def _idle(results: Results, run: Path, subject: Subject) -> None:
    found: list[Cost] = [cost(run, subject, workers) for workers in _WORKERS]
    results.idle[subject.title] = found
    print(f"idle: {subject.title}: {found}", flush=True)


def _said(what: str, subject: Subject, samples: Sequence[Sample]) -> None:
    seconds = " ".join("never" if s.seconds is None else f"{s.seconds:.3f}" for s in samples)
    print(f"{what}: {subject.title}: {seconds}", flush=True)


if __name__ == "__main__":
    main()
