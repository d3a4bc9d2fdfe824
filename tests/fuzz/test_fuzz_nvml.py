"""Values that no card has: from a worker that is told to say them, and from the library itself."""

from __future__ import annotations

import contextlib
import json
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes._nvml.client import NvmlClient
from probes.gpu import PROBE as CARDS
from probes.gpu import Gpu
from probes.gpu_processes import PROBE as PROCESSES
from probes.gpu_processes import GpuProcesses
from tests.fuzz.budget import times
from tests.support import fake_nvml
from tests.support.fake_nvml import LOADED, FakeNvml, asking, uuid
from tests.support.simulated import ROOT
from watchdog.contracts import Probe
from watchdog.core.model import Event, Reading, ReadingTaken, Sampled
from watchdog.daemon.box import EngineBox
from watchdog.runner import ProbeRun
from watchdog.supervisor.memory_ledger import MemoryLedger

# Answers every request with what stands in a file then; @ is the request's number.
PARROT = """
import sys
for line in sys.stdin:
    text = open(sys.argv[1]).read()
    sys.stdout.write(text.replace("@", line.split()[0]) + "\\n")
    sys.stdout.flush()
"""

# The worker, whose clock is ahead by the seconds in a file, so that all looks are due.
AHEAD = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from probes._nvml import session, worker
worker.main(session.Session(lambda: time.monotonic() + float(Path(sys.argv[1]).read_text())))
"""
HOURS = 36_000.0
HOTTEST = 150.0
HEATED = frozenset({"temperature_celsius", "temperature_margin_celsius"})
SEPARATORS = (",", ":")
MOST = 1 << 64


def reading(probe: Probe, *, processes: bool) -> Reading:
    """What the runner, which refuses all that is not declared, makes of one look."""
    posted: list[Event] = []
    ProbeRun(PROCESSES if processes else CARDS, probe, None, None, posted.append).run()
    (event,) = posted
    assert isinstance(event, ReadingTaken)
    return event.reading


def probes(client: NvmlClient) -> dict[bool, Probe]:
    """Both that ask for cards, by whether it is the one of processes."""
    return {False: Gpu(client), True: GpuProcesses(client, EngineBox({}, MemoryLedger()))}


def check(seen: Reading, well: str) -> tuple[Sampled, ...]:
    """A reading in which every number is one; the samples of the card beside."""
    assert seen.error is None, seen.error
    for one in seen.samples:
        if isinstance(one.value, str):
            assert one.value.isprintable()
            continue
        assert math.isfinite(one.value), one
        if one.sample.endswith(("_bytes", "throttle_seconds")):
            assert one.value >= 0, one
    for wrong in seen.unread:
        assert wrong.error.isprintable()
    return tuple(one for one in seen.samples if str(one.subject) == f"gpu/{well}")


def check_possible(seen: Reading) -> None:
    """Every number is one that a card can have."""
    for one in seen.samples:
        if isinstance(one.value, int | float) and one.sample.endswith("_percent"):
            assert 0 <= one.value <= 100, one
        if isinstance(one.value, int | float) and one.sample in HEATED:
            assert -HOTTEST <= one.value <= HOTTEST, one


# --- the worker's own words -----------------------------------------------------------------------


@dataclass
class Parrot:
    """A client of a worker that says what stands in a file, and the probes that ask it."""

    text: Path
    probes: dict[bool, Probe]


@pytest.fixture(scope="module", name="parrot")
def fixture_parrot(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parrot]:
    """One for all examples."""
    text = tmp_path_factory.mktemp("parrot") / "text"
    text.write_text('{"request":@,"gpus":[]}')
    with asking({}, (sys.executable, "-c", PARROT, str(text))) as client:
        yield Parrot(text, probes(client))


WELL: dict[str, Any] = {"index": 1, "uuid": "GPU-1", "bus_id": "b", "errors": {}}
WELL |= {"power_watts": 7.5, "temperature_celsius": 40, "processes": [[1, 5, None, None]]}
NUMBERS = st.sampled_from(
    (0, -1, -0.0, 1.5, MOST - 1, MOST, -MOST, 1 << 63, 1e308, math.nan, math.inf, -math.inf)
) | st.integers(-(1 << 70), 1 << 70)
ANYTHING: st.SearchStrategy[Any] = st.recursive(
    NUMBERS | st.none() | st.booleans() | st.text(max_size=6) | st.floats(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=6,
)
MEASURED = [one.name for one in CARDS.samples] + [
    "reasons",
    "reasons_supported",
    "throttle_seconds",
]
ROWS = st.lists(st.lists(ANYTHING, max_size=5) | st.tuples(NUMBERS, NUMBERS, NUMBERS, NUMBERS))
SAID = st.fixed_dictionaries(
    {},
    optional={
        "index": st.just(0) | ANYTHING,
        "uuid": st.just("GPU-0") | ANYTHING,
        "bus_id": ANYTHING,
        "name": ANYTHING,
        "errors": st.dictionaries(st.sampled_from(MEASURED) | st.text(max_size=5), ANYTHING)
        | ANYTHING,
        "processes": ROWS | ANYTHING,
    },
)
VALUES = st.dictionaries(st.sampled_from(MEASURED) | st.text(max_size=6), NUMBERS | ANYTHING)


@times(120)
@given(said=SAID, values=VALUES, first=st.booleans(), processes=st.booleans())
def test_fuzz_values(
    parrot: Parrot,
    said: dict[str, Any],
    values: dict[str, Any],
    first: bool,  # noqa: FBT001
    processes: bool,  # noqa: FBT001
) -> None:
    """FACT: a card of wrong types and sizes is absent in part or all; the one beside is not."""
    card = {**values, **said}
    if card.get("uuid") == "GPU-1" or card.get("index") == 1:
        card = {**card, "uuid": "GPU-0", "index": 0}
    cards = [card, WELL] if first else [WELL, card]
    text = json.dumps(cards, separators=SEPARATORS).replace("@", "")
    parrot.text.write_text(f'{{"request":@,"gpus":{text}}}')
    own = check(reading(parrot.probes[processes], processes=processes), "GPU-1")
    told = {one.sample: one.value for one in own}
    if processes:
        assert told["processes"] == 1
    else:
        assert (told["state"], told["power_watts"]) == ("ok", 7.5)


# --- the library's own numbers --------------------------------------------------------------------


@dataclass
class Real:
    """The real worker in front of two cards of a library, and a clock that is moved on."""

    nvml: FakeNvml
    ahead: Path
    probes: dict[bool, Probe]


@pytest.fixture(scope="module", name="real")
def fixture_real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    """One for all examples."""
    folder = tmp_path_factory.mktemp("nvml")
    nvml = fake_nvml.build(folder)
    nvml.cards = 2
    nvml.write()
    ahead = folder / "ahead"
    ahead.write_text("0")
    command = (sys.executable, "-c", AHEAD, str(ahead), str(ROOT))
    with asking(nvml.environment, command) as client:
        yield Real(nvml, ahead, probes(client))


KEYS = sorted(set(LOADED) - {"process", "event_types", "mig_slots", "samples"})
WORDS = (
    *("18446744073709551615", "18446744073709551616", "4294967295", "2147483648", "-1", "-2"),
    *("9223372036854775808", "-9223372036854775808", "1e308", "nan", "-inf", "!3", "!999", "x"),
)
LINE = st.lists(st.sampled_from(WORDS) | st.integers(0, 1 << 64).map(str), min_size=1, max_size=4)


@contextlib.contextmanager
def saying(real: Real, lines: dict[str, str]) -> Iterator[None]:
    """While the first card says these."""
    own = {f"0.{key}": value for key, value in lines.items()}
    real.nvml.set(own)
    real.ahead.write_text(str(float(real.ahead.read_text()) + HOURS))
    try:
        yield
    finally:
        real.nvml.clear(*own)


def lasting(own: tuple[Sampled, ...]) -> dict[tuple[str, object], object]:
    """What a card that nobody touched tells every time."""
    return {
        (one.sample, one.labels): one.value
        for one in own
        if one.sample not in {"utilization_percent", "energy_joules", "throttle_seconds"}
    }


@times(80)
@given(
    lines=st.dictionaries(st.sampled_from(KEYS), LINE.map(" ".join), min_size=8, max_size=30),
    processes=st.booleans(),
)
def test_fuzz_library(
    real: Real,
    lines: dict[str, str],
    processes: bool,  # noqa: FBT001
) -> None:
    """FACT: any number in any call is a sample that can be, or none; no other card is touched."""
    probe = real.probes[processes]
    with saying(real, {}):
        before = check(reading(probe, processes=processes), uuid(1))
    with saying(real, lines):
        seen = reading(probe, processes=processes)
    after = check(seen, uuid(1))
    check_possible(seen)
    assert before
    assert lasting(after) == lasting(before)


PIDS = st.tuples(st.sampled_from(WORDS) | st.integers(1, 1 << 40).map(str), st.sampled_from(WORDS))


@times(40)
@given(rows=st.lists(PIDS.map(" ".join), max_size=5))
def test_fuzz_holders(real: Real, rows: list[str]) -> None:
    """FACT: a process with any pid and any size ends no look, and is never less than nothing."""
    whole = [*rows, "460 21051211776"]
    real.nvml.set({"0.process": whole})
    try:
        told = {one.sample for one in check(reading(real.probes[True], processes=True), uuid(1))}
    finally:
        real.nvml.clear("0.process")
    assert {"processes", "complete", "strangers"} <= told
