"""What the watchdog costs a real engine: tokens a second with it and without, its CPU, its memory.

The same engine goes on all the time: SIGQUIT has the watchdog leave it, the next one adopts it.
"""

from __future__ import annotations

import signal
import statistics
import time
from typing import Any

from tests.gpu.measure import cpu, memory
from tests.gpu.vllm_bed import Box, Cards
from tests.gpu.vllm_load import Load, generated
from tests.support.simulated import alive, cmdline
from watchdog import procfs

CLIENTS = 8
TOKENS = 128
_SETTLES = 3.0
_MIB = 1 << 20


def cost(box: Box, cards: Cards, found: dict[str, Any], rounds: int, seconds: int) -> None:
    """So many rounds, one with the watchdog and one without each; at the end it is there."""
    port = box.engine()["port"]
    engine = box.engine()["pids"]
    Load(port, CLIENTS, TOKENS, 5).wait()
    found.update(clients=CLIENTS, tokens_a_completion=TOKENS, seconds_a_round=seconds)
    found["with"], found["without"], found["adoptions"] = [], [], []
    for _ in range(rounds):
        found["with"].append(_round(port, seconds, box, cards, engine))
        box.daemon.send(signal.SIGQUIT)
        found.setdefault("left_with_code", []).append(box.daemon.ended(30))
        time.sleep(1)
        found["without"].append(_round(port, seconds, None, cards, engine))
        began = time.monotonic()
        box.launch()
        after = box.ready()
        found["adoptions"].append(round(time.monotonic() - began, 3))
        assert after["pids"][0] in engine, "the engine was restarted"
        time.sleep(_SETTLES)
    for side in ("with", "without"):
        rates = [one["tokens_a_second"] for one in found[side]]
        found[f"{side}_median"] = round(statistics.median(rates), 1)
        found[f"{side}_range"] = [min(rates), max(rates)]


def _round(
    port: int, seconds: int, box: Box | None, cards: Cards, engine: list[int]
) -> dict[str, Any]:
    ours = [] if box is None else members(box, engine)
    before = {pid: cpu(pid) for pid in ours}
    load = Load(port, CLIENTS, TOKENS, seconds + 4)
    time.sleep(2)
    began, had = time.monotonic(), generated(port)
    time.sleep(seconds)
    took, tokens = time.monotonic() - began, generated(port) - had
    told = load.wait()
    found = {
        "tokens_a_second": round(tokens / took, 1),
        "latency_s": told["latency_s"],
        "errors": told["errors"],
        "gpu_used_bytes": cards.used() if cards else [],
    }
    if ours:
        spent = {pid: cpu(pid) - then for pid, then in before.items() if alive(pid)}
        found["watchdog_cpu_percent"] = _shares(spent, took + 4)
    return found


def members(box: Box, engine: list[int]) -> list[int]:
    """The watchdog and its own children, which the engine is none of."""
    pids = [box.daemon.process.pid]
    for pid in pids:
        pids += [one for one in procfs.children(pid) if one not in engine and alive(one)]
    return pids


def idle(box: Box, cards: Cards, found: dict[str, Any], seconds: int) -> None:
    """CPU and memory of the watchdog beside an idle engine, and its bytes on the cards."""
    ours = members(box, box.engine()["pids"])
    before = {pid: cpu(pid) for pid in ours}
    time.sleep(seconds)
    spent = {pid: cpu(pid) - then for pid, then in before.items() if alive(pid)}
    found["processes"] = {pid: cmdline(pid)[:90] for pid in ours}
    found["seconds"] = seconds
    found["cpu_percent"] = _shares(spent, seconds)
    found["cpu_percent_in_all"] = round(100 * sum(spent.values()) / seconds, 3)
    found["pss_mib"] = {pid: round(memory(pid)["pss"] / _MIB, 1) for pid in ours}
    found["pss_mib_in_all"] = round(sum(found["pss_mib"].values()), 1)
    rows = cards.holders() if cards else []
    found["gpu_bytes"] = sum(row.get(pid, 0) for row in rows for pid in ours)
    found["gpu_holders"] = rows


def _shares(spent: dict[int, float], seconds: float) -> dict[int, float]:
    return {pid: round(100 * value / seconds, 3) for pid, value in spent.items()}
