"""Measures the watchdog before real engines: ``python tests/gpu/vllm_report.py one --out DIR …``.

``one`` is all that one card is enough for, ``two`` what takes two. DIR gets the report as JSON, and
the configuration, state and logs of every daemon. ``--simulate`` tries the harness on the embedded
engine, without a card. It causes an Xid 31, and changes no setting of a card.
"""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.gpu import vllm_cost, vllm_drills, vllm_two
from tests.gpu.vllm_bed import POLICY, Bed, Box, Cards, Report
from tests.support.simulated import free_port

FLAGS = (
    "--max-model-len 1024 --max-num-seqs 8 --enforce-eager --dtype bfloat16 "
    "--gpu-memory-utilization 0.6"
)
_TAKEN = 0.7
"""Of the first card, by the stranger: an engine that wants 0.6 does not fit beside it."""
_VERSIONS = "import importlib.metadata as m; print(*(m.version(n) for n in ('vllm', 'torch')))"
_BESIDE = (("doctor",), ("check",), ("status",), ("probes",), ("rules",))


def main() -> None:
    """Measure what was asked for."""
    asked = _asked()
    asked.out.mkdir(parents=True, exist_ok=True)
    env = dict(pair.split("=", 1) for pair in asked.env)
    bed = Bed(
        tuple(shlex.split(asked.vllm)),
        asked.model,
        tuple(shlex.split(asked.flags)),
        env,
        asked.out,
        asked.simulate,
    )
    report = Report(asked.out / f"report-{asked.what}.json")
    cards = Cards()
    used = cards.used() if cards else []
    with report.part("facts") as found:
        found.update(facts(bed, cards, used))
    baseline = dict(enumerate(used))
    if asked.what == "one":
        one(bed, report, cards, baseline, asked)
    else:
        if cards:
            size = int(_TAKEN * cards.facts["memory_bytes"][0])
            vllm_two.refused(bed, report, size)
        vllm_two.pair(bed, report, cards, baseline)
        vllm_two.parallel(bed, report, cards, baseline, asked.until)
    report.say("done")


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("one", "two"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--vllm", default="vllm", help="the words before the model")
    parser.add_argument("--model", default="", help="a directory")
    parser.add_argument("--flags", default=FLAGS)
    parser.add_argument("--env", action="append", default=[], help="NAME=VALUE of the engine")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=int, default=20, help="of a round")
    parser.add_argument("--until", type=float, default=1e9, help="no drill begins after so many")
    parser.add_argument("--simulate", action="store_true")
    return parser.parse_args()


def facts(bed: Bed, cards: Cards, used: list[int]) -> dict[str, Any]:
    """What it was measured on."""
    found: dict[str, Any] = {**cards.facts, "used_at_first": used}
    found["host"] = {
        "kernel": platform.release(),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
    }
    found["command"] = bed.command(8000)
    if not bed.simulated:
        engine = [bed.vllm[0]] if "python" in bed.vllm[0] else [sys.executable]
        asked = subprocess.run(
            [*engine, "-c", _VERSIONS],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, **bed.env},
        )
        found["vllm_and_torch"] = asked.stdout.strip() or asked.stderr[-300:]
    for name in ("nvidia-ml-py", "httpx", "cel-expr-python"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def one(
    bed: Bed, report: Report, cards: Cards, baseline: Mapping[int, int], asked: argparse.Namespace
) -> None:
    """All that one card is enough for, what matters most first."""
    box = Box(bed, "one", "", free_port())
    box.text = POLICY + bed.table("main", box.port, [0])
    try:
        with report.part("start") as found:
            if cards:
                size = int(_TAKEN * cards.facts["memory_bytes"][0])
                vllm_drills.stranger(box, size, found)
            else:
                vllm_drills.plain_start(box, found)
        with report.part("beside") as found:
            beside(box, found)
        with report.part("idle") as found:
            vllm_cost.idle(box, cards, found, min(20, asked.seconds))
        with report.part("cost") as found:
            vllm_cost.cost(box, cards, found, asked.rounds, asked.seconds)
        faults(box, report, cards, baseline, asked.until)
        with report.part("end") as found:
            vllm_drills.ended(box, cards, baseline, found)
    finally:
        vllm_two.close(box)


def beside(box: Box, found: dict[str, Any]) -> None:
    """The commands that look, beside the engine that serves, and what the log's milestones say."""
    box.ready()
    for words in _BESIDE:
        found[words[0]] = box.timed(*words)
    found["engine"] = box.engine()
    found["tree"] = vllm_drills.tree(box.engine()["pids"])
    page = box.daemon.get("/metrics")[1].splitlines()
    found["milestones"] = [x for x in page if x.startswith("vllm_watchdog_engine_log_")]
    found["healthz"] = box.daemon.get("/healthz")
    (box.bed.out / "metrics.txt").write_text("\n".join(page) + "\n")


def faults(
    box: Box, report: Report, cards: Cards, baseline: Mapping[int, int], until_age: float
) -> None:
    """Every fault, each on the engine that came out of the last one."""
    for fault in ("D1", "D2", "D3", "H1"):
        if report.age < until_age:
            with report.part(fault) as found:
                vllm_drills.drill(box, cards, baseline, found, fault)
    if cards:
        with report.part("G8") as found:
            vllm_drills.xid(box, found, vllm_drills.faulty)
    with report.part("W1") as found:
        vllm_drills.watchdog_killed(box, found)
    for name, cause in (
        ("G1", vllm_drills.orphan_stopped),
        ("G3", vllm_drills.orphan_at_start),
    ):
        if report.age < until_age:
            with report.part(name) as found:
                cause(box, cards, baseline, found)


if __name__ == "__main__":
    main()
