"""Two cards: two engines under one daemon, a standby, and one engine over both."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from tests.gpu import vllm_cost
from tests.gpu import vllm_drills as drills
from tests.gpu.vllm_bed import POLICY, START, Bed, Box, Cards, Report
from tests.gpu.vllm_load import loading
from tests.gpu.vllm_watch import first, when
from tests.support.simulated import alive, free_port, until

_RULES = """
[[rule]]
name = "standby-needed"
for = "3s"

[[rule]]
name = "standby-idle"
for = "8s"
"""
"""As by default, but for how long: a machine is lent for minutes."""
_CROWD = 32
_IDLE = 20
_SLACK = 64 << 20


def pair(bed: Bed, report: Report, cards: Cards, baseline: Mapping[int, int]) -> None:
    """An engine on the first card, a standby on the second: load, a death, and the load's end."""
    port, spare = free_port(), free_port()
    tables = bed.table("main", port, [0]), bed.table("spare", spare, [1]) + "standby = true\n"
    box = Box(bed, "pair", POLICY + _RULES + "".join(tables), port)
    try:
        with report.part("pair_start") as found:
            drills.plain_start(box, found)
        with report.part("idle") as found:
            vllm_cost.idle(box, cards, found, _IDLE)
        with report.part("standby_starts") as found, loading(port, _CROWD, 256) as load:
            standby_starts(box, found)
            found["clients"] = load.end()
        with report.part("one_of_two_killed") as found:
            one_killed(box, cards, baseline, found, spare)
        with report.part("standby_stops") as found:
            standby_stops(box, cards, baseline, found, spare)
        with report.part("pair_end") as found:
            drills.ended(box, cards, baseline, found)
    finally:
        close(box)


def refused(bed: Bed, report: Report, size: int) -> None:
    """G2 with the default policy: how often it tries, and how soon it starts afterwards."""
    port = free_port()
    box = Box(bed, "refused", bed.table("main", port, [0]), port)
    try:
        with report.part("refused") as found:
            drills.stranger(box, size, found, serves=False)
        found["attempts"] = sum(x.get("event") == "action.finished" for x in box.lines())
    finally:
        close(box)


def standby_starts(box: Box, found: dict[str, Any]) -> None:
    """More requests wait than one engine takes: the second is started."""
    began = time.time()
    line = until(lambda: _line(box, "engine.started", "spare"), 60)
    found["load_to_start_s"] = round(when(line) - began, 3)
    box.ready("spare", START)
    found["start_to_ready_s"] = round(when(_line(box, "engine.ready", "spare")) - when(line), 3)
    found["pids"] = {name: box.engine(name)["pids"] for name in ("main", "spare")}
    found["log"] = [one for one in box.lines() if when(one) > began]


def one_killed(
    box: Box, cards: Cards, baseline: Mapping[int, int], found: dict[str, Any], spare: int
) -> None:
    """D1 on the first, while clients use the second: they notice nothing."""
    before = box.engine("spare")
    with loading(spare, 4, 64) as load:
        time.sleep(1)
        first_card = {0: baseline[0]} if baseline else {}
        drills.drill(box, cards, first_card, found, "D1")
        found["clients_of_the_other"] = load.end()
    after = box.engine("spare")
    found["other_same"] = {key: before[key] == after[key] for key in ("pid", "generation")}


def standby_stops(
    box: Box, cards: Cards, baseline: Mapping[int, int], found: dict[str, Any], spare: int
) -> None:
    """The load is gone: the standby is stopped when nothing is in it, and loses no request."""
    pids = box.engine("spare").get("pids", [])
    began = time.time()
    with loading(spare, 1, 300, rest=2) as load:
        until(lambda: box.engine("spare").get("state") == "stopped", 90)
        found["stopped_after_s"] = round(time.time() - began, 3)
        time.sleep(0.5)
        found["client"] = load.end()
    found["alive"] = [pid for pid in pids if alive(pid)]
    if cards and 1 in baseline:
        found["memory_back"] = cards.used()[1] <= baseline[1] + _SLACK
    found["main"] = box.engine("main").get("verdict")
    found["log"] = [one for one in box.lines() if when(one) > began - 15]


def parallel(
    bed: Bed, report: Report, cards: Cards, baseline: Mapping[int, int], until_age: float
) -> None:
    """One engine over both cards, and what happens when a part of it dies or stops."""
    port = free_port()
    flags = ("--tensor-parallel-size", "2", "--disable-custom-all-reduce")
    box = Box(bed, "tp2", POLICY + bed.table("main", port, [0, 1], *flags), port)
    try:
        with report.part("tp2_start") as found:
            drills.plain_start(box, found)
            pids = box.engine()["pids"]
            found["tree"] = drills.tree(pids)
            found["holders"] = cards.holders() if cards else []
        for fault in ("D3", "H2", "D1", "H1"):
            if report.age > until_age:
                report.say(f"tp2_{fault}: no time left")
                break
            with report.part(f"tp2_{fault}") as found:
                drills.drill(box, cards, baseline, found, fault)
        with report.part("tp2_end") as found:
            drills.ended(box, cards, baseline, found)
    finally:
        close(box)


def close(box: Box) -> None:
    """Nothing of it lives on."""
    from tests.support.daemon import finish

    for daemon in box.daemons:
        finish(daemon)


def _line(box: Box, event: str, engine: str) -> Mapping[str, Any]:
    return first(box.lines(), event, lambda line: line.get("engine") == engine)
