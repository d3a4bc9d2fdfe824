"""Whose an Xid is: places without a name, cards that get theirs late, and cards of a neighbour."""

from __future__ import annotations

from pathlib import Path

import pytest

from probes._nvml.client import CardIdentity
from probes._nvml.namespaces import FIRST_PID_NAMESPACE
from tests.support.engines import Engines
from tests.support.xids import (
    CLASSES,
    ELSEWHERE,
    ENGINE,
    FAULT,
    GPU0,
    NO_DRIVER,
    TWO,
    Found,
    Told,
    classes,
    desk,
)
from watchdog.contracts import Owned, Owner

NEIGHBOUR = FAULT.replace("0000:00:06", "0000:c0:00")
PLACE = "pci-0000:00:06.0"
UNNAMED = (f"gpu/{PLACE}", "class_errors", "", PLACE)


def subjects(found: Found) -> set[str]:
    """Who is told of, besides the host."""
    return {key[0] for key in found} - {"host/host"}


def information(folder: Path, place: str, uuid: str, minor: str) -> None:
    """The driver's file about a card."""
    (folder / place).mkdir()
    (folder / place / "information").write_text(
        f"Model: \t\t NVIDIA H200\nIRQ:   \t\t 0\nGPU UUID: \t {uuid}\nBus Type: \t PCIe\n"
        f"Device Minor: \t {minor}\nGPU Excluded:\t No\n"
    )


@pytest.mark.parametrize("namespace", [ELSEWHERE, FIRST_PID_NAMESPACE])
def test_an_xid_of_a_neighbour(namespace: str) -> None:
    """FACT: an Xid of a card that NVML does not name here is nobody's here, in any namespace."""
    box = Engines(owners={1796: Owned(Owner.ENGINE, "main")})
    with desk(box=box, namespace=namespace) as at:
        before = at.read()
        at.says(NEIGHBOUR)
        assert at.read() == at.read() == before
        at.says(FAULT)
        assert classes(at.read(), *ENGINE) == {"application": 1}


def test_a_neighbour_from_before_the_names() -> None:
    """FACT: what was counted for a place is told no more once NVML names the cards without it."""
    with desk(Told(cards=(), error=NO_DRIVER), namespace=ELSEWHERE) as at:
        at.says(NEIGHBOUR)
        assert subjects(at.read()) == {"engine/main", "gpu/pci-0000:c0:00.0"}
        at.client.cards, at.client.error = TWO, None
        found = at.read()
        assert subjects(found) == {"engine/main", "gpu/GPU-0", "gpu/GPU-1"}
        assert classes(found, *ENGINE) == {}


def test_a_card_that_nvml_no_longer_names() -> None:
    """FACT: a card that was here once stays ours when NVML stops naming it."""
    with desk() as at:
        at.client.cards = TWO[1:]
        at.says(FAULT)
        assert classes(at.read(), *GPU0) == {"application": 1}


def test_without_names_no_engine_is_guessed() -> None:
    """FACT: in a container a place that NVML has not named may be anybody's: no engine's fault."""
    with desk(Told(cards=(), error=NO_DRIVER), namespace=ELSEWHERE) as at:
        at.says(FAULT)
        at.read()
        found = at.read()
        assert classes(found, *ENGINE) == {}
        assert classes(found, *UNNAMED) == {"application": 1}


def test_a_place_rises_from_zero() -> None:
    """FACT: a place that its first Xid makes known is told with zeros, then with its count."""
    with desk(Told(cards=(), error=NO_DRIVER)) as at:
        assert subjects(at.read()) == {"engine/main"}
        at.says(FAULT)
        found = at.read()
        assert [found[*UNNAMED, kind] for kind in CLASSES] == [0] * len(CLASSES)
        assert found[f"gpu/{PLACE}", "errors", "", PLACE, "31"] == 0
        assert (f"gpu/{PLACE}", "last", "", PLACE) not in found
        found = at.read()
        assert classes(found, *UNNAMED) == {"application": 1}
        assert found[f"gpu/{PLACE}", "errors", "", PLACE, "31"] == 1
        last = str(found[f"gpu/{PLACE}", "last", "", PLACE])
        assert last.startswith("Xid 31 (application) on the GPU at 0000:00:06.0, process 1796")


def test_a_card_with_an_xid_before_its_first_reading() -> None:
    """FACT: a known card, too, is told with zeros first, whatever was counted before."""
    with desk(fresh=True) as at:
        at.says(FAULT)
        assert classes(at.read(), *GPU0) == {}
        assert classes(at.read(), *GPU0) == {"application": 1}


def test_a_place_that_gets_its_name() -> None:
    """FACT: a named card is told under its name alone: from zero, and then all of its counts."""
    with desk(Told(cards=(), error=NO_DRIVER)) as at:
        at.says(FAULT)
        at.read()
        assert classes(at.read(), *UNNAMED) == {"application": 1}
        at.client.cards, at.client.error = TWO, None
        found = at.read()
        assert subjects(found) == {"engine/main", "gpu/GPU-0", "gpu/GPU-1"}
        assert classes(found, *GPU0) == {}
        found = at.read()
        assert subjects(found) == {"engine/main", "gpu/GPU-0", "gpu/GPU-1"}
        assert classes(found, *GPU0) == {"application": 1}
        assert str(found["gpu/GPU-0", "last", "0", "GPU-0"]).startswith("Xid 31")


def test_two_places_without_a_name() -> None:
    """FACT: cards without a name are told apart in every label set: the desk refuses doubles."""
    with desk(Told(cards=(), error=NO_DRIVER)) as at:
        for line in (FAULT, NEIGHBOUR):
            at.says(line)
        at.read()
        errors = {key[2:]: n for key, n in at.read().items() if key[1] == "errors"}
        assert errors == {("", PLACE, "31"): 1, ("", "pci-0000:c0:00.0", "31"): 1}


def test_names_are_awaited(tmp_path: Path) -> None:
    """FACT: while NVML answers and has yet to name the cards, only the sources are told."""
    information(tmp_path, "0000:00:06.0", "GPU-0", "0")
    with desk(Told(cards=()), gpus=str(tmp_path), fresh=True) as at:
        at.says(FAULT)
        for _ in range(2):
            assert {key[:2] for key in at.read()} == {
                ("host/host", "source"),
                ("host/host", "source_trouble"),
            }
        at.client.cards = TWO
        assert classes(at.read(), *GPU0) == {}
        assert classes(at.read(), *GPU0) == {"application": 1}


def test_it_asks_for_the_names_itself() -> None:
    """FACT: no other probe is needed for the names, and named cards are not asked for again."""
    with desk(Told(cards=(), named=TWO), fresh=True) as at:
        assert classes(at.read(), *GPU0) == {}
        at.read()
        assert at.client.asked == ["events", "cards", "events"]


def test_nvml_without_cards() -> None:
    """FACT: an NVML that names no card is not waited for: an Xid counts for its place."""
    with desk(Told(cards=(), named=())) as at:
        at.says(FAULT)
        at.read()
        assert classes(at.read(), *UNNAMED) == {"application": 1}
        assert at.client.asked == ["events", "cards", "events", "events"]


def test_cards_of_the_drivers_files(tmp_path: Path) -> None:
    """FACT: without NVML the driver's own files name a card, and its number; ??? is no UUID."""
    information(tmp_path, "0000:00:06.0", "GPU-00ab", "0")
    information(tmp_path, "0000:00:07.0", "GPU-????????", "1")
    with desk(Told(cards=(), error=NO_DRIVER), gpus=str(tmp_path)) as at:
        at.says(FAULT)
        found = at.read()
        known = ("gpu/GPU-00ab", "class_errors", "0", "GPU-00ab")
        assert classes(found, *known) == {"application": 1}
        place = "pci-0000:00:07.0"
        assert classes(found, f"gpu/{place}", "class_errors", "1", place) == {}
        at.client.cards = (CardIdentity(0, "GPU-00ab", "0000:00:06.0"), TWO[1])
        found = at.read()
        assert classes(found, *known) == {"application": 1}
        assert subjects(found) == {"engine/main", "gpu/GPU-00ab", "gpu/GPU-1"}


@pytest.mark.parametrize(("namespace", "counts"), [(ELSEWHERE, False), (FIRST_PID_NAMESPACE, True)])
def test_a_card_that_never_came_up(namespace: str, counts: bool, tmp_path: Path) -> None:  # noqa: FBT001
    """FACT: of a whole machine the driver's files name a card that NVML does not: ours too."""
    information(tmp_path, "0000:00:09.0", "GPU-00cd", "2")
    with desk(Told(), namespace=namespace, gpus=str(tmp_path)) as at:
        at.read()
        at.says("NVRM: Xid (PCI:0000:00:09): 95, pid=1, name=x, Uncontained")
        at.read()
        found = at.read()
        known = ("gpu/GPU-00cd", "class_errors", "2", "GPU-00cd")
        assert ("gpu/GPU-00cd" in subjects(found)) is counts
        assert not counts or classes(found, *known) == {"reset": 1}
