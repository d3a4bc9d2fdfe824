"""What rules cost: compiling all of them in a fresh process, the memory of CEL, and one answer."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.perf.table import row, single

ROUNDS = 10

_FRESH = """
import gc, json, re, time

def rss():
    text = open("/proc/self/smaps_rollup").read()
    return int(re.search(r"^Rss:\\s+(\\d+)", text, re.M).group(1)) / 1024

import watchdog.config
from watchdog import registry
specs, actions = registry.probes(), registry.actions()
gc.collect()
before, began = rss(), time.perf_counter()
from watchdog.rules import build_rules
rules = build_rules((), specs, actions, "built in")
took, cost = time.perf_counter() - began, rss() - before

class Nothing:
    def get(self, name):
        return None
    def labelled(self, name):
        return {}

def each(times, fresh):
    began, view = time.perf_counter(), Nothing()
    for rule in rules:
        for _ in range(times):
            if fresh:
                rule.when._memo.clear()
            rule.when(view)
    return (time.perf_counter() - began) / times / len(rules) * 1e6

each(2, False)
print(json.dumps([len(rules), took * 1000, cost, each(2000, False), each(200, True)]))
"""


def rules() -> None:
    """Print it. Every value is unknown: a rule that was asked before looks its answer up."""
    root = Path(__file__).resolve().parents[2]
    runs = []
    for _ in range(ROUNDS):
        done = subprocess.run(
            [sys.executable, "-c", _FRESH], cwd=root, capture_output=True, check=True
        )
        runs.append(json.loads(done.stdout))
    counts, took, cost, hits, misses = zip(*runs, strict=True)
    row(f"import CEL, read and compile all {counts[0]} rules, ms", took)
    single("resident memory of CEL and of all rules at most, MiB", ROUNDS, max(cost))
    row("answer of a rule that was asked so before, µs", hits, 2)
    row("answer of a rule through CEL, µs", misses)


if __name__ == "__main__":
    rules()
