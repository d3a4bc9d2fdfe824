"""What the worker makes of readings that fail now and then, and of text that is none."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from probes._nvml.client import NvmlClient
from tests.support import fake_nvml
from tests.support.fake_nvml import FakeNvml, asking, sweep
from tests.support.simulated import PATIENCE, ROOT

UNKNOWN = 999
LINKS = 18

# A worker whose clock is ahead by the seconds in a file; argument: that file, and our sources.
AHEAD = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from probes._nvml import session, worker
clock = lambda: time.monotonic() + float(Path(sys.argv[1]).read_text())
worker.main(session.Session(clock))
"""

# The worker, with a binding that raises what is no error of NVML's for the power of card 1.
SURPRISED = """
import sys
sys.path.insert(0, sys.argv[1])
import pynvml
from probes._nvml import worker
right = pynvml.nvmlDeviceGetPowerUsage
def power(handle):
    if pynvml.nvmlDeviceGetUUID(handle).startswith("GPU-00000001"):
        raise OverflowError("two\\nlines")
    return right(handle)
pynvml.nvmlDeviceGetPowerUsage = power
worker.main()
"""


@dataclass
class Later:
    """A client of a worker whose time is moved on by hand."""

    client: NvmlClient
    ahead: Path

    def after(self, seconds: float) -> dict[str, Any]:
        """The only card, so much later. The second look reads what is not quite as late."""
        self.ahead.write_text(str(float(self.ahead.read_text()) + seconds))
        (card,) = sweep(self.client)["gpus"]
        found: dict[str, Any] = card
        return found


@pytest.fixture
def nvml(tmp_path: Path) -> FakeNvml:
    """A loaded H200."""
    return fake_nvml.build(tmp_path)


@pytest.fixture
def later(nvml: FakeNvml) -> Iterator[Later]:
    """A client of that card."""
    ahead = nvml.folder / "ahead"
    ahead.write_text("0")
    command = (sys.executable, "-c", AHEAD, str(ahead), str(ROOT))
    with asking(nvml.environment, command) as client:
        yield Later(client, ahead)


@contextlib.contextmanager
def cards(nvml: FakeNvml, garbage: bytes = b"") -> Iterator[NvmlClient]:
    """A client of two cards, with a line that is not UTF-8 before the others."""
    nvml.cards = 2
    nvml.write()
    state = nvml.folder / "state"
    state.write_bytes(garbage + b"\n" + state.read_bytes())
    with asking(nvml.environment) as client:
        yield client


@pytest.mark.parametrize(("key", "lost"), [("1.name", "name"), ("driver", "driver")])
@pytest.mark.parametrize("request_", ["cards", "processes"])
def test_text_that_is_none_costs_only_itself(
    nvml: FakeNvml, key: str, lost: str, request_: str
) -> None:
    """FACT: a name or a version that is not UTF-8 is absent, and all cards are there."""
    with cards(nvml, f"{key} H".encode() + b"\xff\xfe") as client:
        answer = client.ask(request_, time.monotonic() + PATIENCE)
    assert [card["errors"] for card in answer["gpus"]] == [{}, {}]
    assert [card["uuid"] for card in answer["gpus"]] == [fake_nvml.uuid(0), fake_nvml.uuid(1)]
    assert lost not in answer
    assert lost not in answer["gpus"][1]
    assert answer["gpus"][0]["name"] == "NVIDIA H200"


def test_a_card_without_a_readable_uuid_hides_no_other(nvml: FakeNvml) -> None:
    """FACT: who cannot be told from others has an error, and the other card is read."""
    with cards(nvml, b"1.uuid \xff\xfe") as client:
        first, second = sweep(client)["gpus"]
        assert sweep(client)["gpus"][0]["errors"] == {}
    assert first["power_watts"] > 0
    assert second == {"index": 1, "errors": {"": "cannot be understood: UnicodeDecodeError"}}


def test_a_surprise_costs_one_card(nvml: FakeNvml) -> None:
    """FACT: whatever the binding raises, it is that card's error; worker and cards go on."""
    nvml.cards = 2
    nvml.write()
    with asking(nvml.environment, (sys.executable, "-c", SURPRISED, str(ROOT))) as client:
        for _ in range(2):
            first, second = sweep(client)["gpus"]
            assert first["power_watts"] > 0
            assert second["errors"] == {"": "cannot be understood: OverflowError"}
            assert second["uuid"] == fake_nvml.uuid(1)


def seconds(card: dict[str, Any]) -> float | None:
    """The counter of one reason."""
    found: float | None = card.get("throttle_seconds", {}).get("sw_power_cap")
    return found


def field(count: int, code: int = 0) -> dict[str, object]:
    """The field that counts the power cap, in seconds."""
    return {"field.74": f"{code} 3 {count * 10**9}"}


def test_a_counter_keeps_its_source(nvml: FakeNvml, later: Later) -> None:
    """FACT: a field that fails once is absent once; the older counter never stands in for it."""
    nvml.set({**field(900), "violation.0": "1 5000000000"})
    assert seconds(later.after(0)) == 900
    nvml.set(field(0, UNKNOWN))
    assert seconds(later.after(11)) is None
    nvml.set(field(0, fake_nvml.NOT_SUPPORTED))
    assert seconds(later.after(11)) is None
    nvml.set(field(901))
    assert seconds(later.after(11)) == 901


def test_a_counter_that_fails_first_is_not_replaced(nvml: FakeNvml, later: Later) -> None:
    """FACT: an error is no sign that the card has no such field: nothing is told until it works."""
    nvml.set({**field(0, UNKNOWN), "violation.0": "1 5000000000"})
    assert seconds(later.after(0)) is None
    nvml.set(field(900))
    assert seconds(later.after(11)) == 900


def test_the_older_counter_stays_the_source(nvml: FakeNvml, later: Later) -> None:
    """FACT: a card that had no such field keeps its older counter, across starts of the library."""
    nvml.set({**field(0, fake_nvml.NOT_SUPPORTED), "violation.0": "1 900000000000"})
    assert seconds(later.after(0)) == 900
    nvml.set({**field(5), "error.nvmlDeviceGetPowerUsage": UNKNOWN})
    later.after(11)
    assert seconds(later.after(11)) == 900
    nvml.set({"error.nvmlDeviceGetViolationStatus": UNKNOWN})
    assert seconds(later.after(11)) is None


def test_some_links_are_no_number_of_links(nvml: FakeNvml, later: Later) -> None:
    """FACT: when one link's state cannot be read the number of active links is absent."""
    nvml.set({f"field.165.{link}": "0 1 1" for link in range(LINKS)})
    assert later.after(0)["nvlinks_active"] == LINKS
    nvml.set({"field.165.3": f"{UNKNOWN} 1 0"})
    ill = later.after(61)
    assert "nvlinks_active" not in ill
    assert ill["errors"] == {"NVLink": "unknown error"}
    nvml.set({"field.165.3": "0 1 1"})
    assert later.after(61)["nvlinks_active"] == LINKS


def test_a_rare_reading_that_failed_is_asked_again_soon(nvml: FakeNvml, later: Later) -> None:
    """FACT: what is read once an hour and failed is read again within minutes."""
    nvml.set({"error.nvmlDeviceGetMaxClockInfo": 4})
    assert later.after(0)["errors"] == {"highest clock": "no permission"}
    nvml.heal()
    late = [later.after(10) for _ in range(30)]
    assert "sm_clock_max_hertz" not in late[0]
    assert late[-1]["sm_clock_max_hertz"] > 0


EVERY_LOOK = (
    "UtilizationRates",
    "MemoryInfo",
    "MemoryInfo_v2",
    "Temperature",
    "PowerUsage",
    "EnforcedPowerLimit",
    "ClockInfo",
    "PerformanceState",
    "CurrentClocksEventReasons",
    "FieldValues",
    "RemappedRows",
    "CurrPcieLinkGeneration",
)


def test_a_card_that_tells_nothing_is_not_well(nvml: FakeNvml, later: Later) -> None:
    """FACT: everything failed, each with an error of its own: the card has the first of them."""
    later.after(0)
    nvml.set({f"error.nvmlDeviceGet{name}": UNKNOWN for name in EVERY_LOOK})
    nvml.set({"error.nvmlDeviceGetUtilizationRates": 4})
    card = later.after(0)
    assert card["errors"] == {"": "no permission"}
    assert "energy_joules" not in card
    nvml.set({"error.nvmlDeviceGetPowerUsage": 16})
    assert later.after(0)["errors"] == {"": "GPU needs a reset"}
