"""The driver's lines, old and new, the table of classes, and what settings change."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes._kmsg import Entry
from probes._xid.cards import Card
from probes._xid.classes import Classes, XidClass, changes, table
from probes._xid.line import XidLine, XidLines, normalized, parsed
from probes._xid.once import Once
from probes.xid import Settings, sentence

REAL = (
    "NVRM: Xid (PCI:0000:00:06): 31, pid=1796, name=oob, channel 0x0000000a, intr 00000000. "
    "MMU Fault: ENGINE GRAPHICS GPC1 GPCCLIENT_T1_0 faulted @ 0x7f3c_00000000."
)
LOSS = (
    "NVRM: The NVIDIA GPU 0000:41:00.0",
    "NVRM: (PCI ID: 10de:2335) installed in this system has",
    "NVRM: fallen off the bus and is not responding to commands.",
)


def entry(text: str, usec: int = 0, facility: int = 0) -> Entry:
    """A record of the kernel's log."""
    return Entry(1, usec, 3, facility, text)


def found(text: str) -> XidLine:
    """The Xid of a line that has one."""
    line = parsed(text)
    assert line is not None
    return line


def test_a_real_line() -> None:
    """FACT: an H200's line gives the place, the number, the process and the message."""
    line = found(REAL)
    assert (line.bus_id, line.xid, line.pid, line.name) == ("0000:00:06.0", 31, 1796, "oob")
    assert (line.gi, line.ci, line.fatal, line.action, line.previous) == (None,) * 5
    assert line.message.startswith("channel 0x0000000a, intr 00000000. MMU Fault")
    assert line.summary.startswith("MMU Fault: ENGINE GRAPHICS GPC1")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "NVRM: Xid (PCI:0000:C1:00): 13, pid='<unknown>', name=<unknown>, Graphics Exception",
            XidLine("0000:c1:00.0", 13, message="Graphics Exception"),
        ),
        (
            "NVRM: Xid (PCI:0000:03:00): 43, pid=7, Ch 00000008",
            XidLine("0000:03:00.0", 43, pid=7, message="Ch 00000008"),
        ),
        (
            "NVRM: Xid (0000:03:00): 48, An uncorrectable double bit error",
            XidLine("0000:03:00.0", 48, message="An uncorrectable double bit error"),
        ),
        (
            "NVRM: Xid (0004:00): 13, 0001 00000000",
            XidLine("0000:04:00.0", 13, message="0001 00000000"),
        ),
        (
            "NVRM: Xid (PCI:00000001:0a:1f.0): 62, 0a(1)",
            XidLine("0001:0a:1f.0", 62, message="0a(1)"),
        ),
        (
            "NVRM: Xid (PCI:0000:00:06 GPU-I:05 GPU-CI:01): 31, pid=9, name=a b, MMU Fault",
            XidLine("0000:00:06.0", 31, pid=9, name="a b", message="MMU Fault", gi=5, ci=1),
        ),
        (
            "NVRM: Xid (PCI:0000:00:06 GPU-I:05): 31, pid=9, name=x, MMU Fault",
            XidLine("0000:00:06.0", 31, pid=9, name="x", message="MMU Fault", gi=5),
        ),
        ("NVRM: Xid (PCI:0000:00:06): 79", XidLine("0000:00:06.0", 79)),
        (
            "NVRM: Xid (PCI:0000:00:06): 45, pid=0, name=x, Ch 1 caused by previous Xid 31",
            XidLine(
                "0000:00:06.0",
                45,
                name="x",
                message="Ch 1 caused by previous Xid 31",
                previous=31,
            ),
        ),
        (
            "NVRM: GPU 0000:00:06.0: GPU has fallen off the bus.",
            XidLine("0000:00:06.0", 79, message="GPU has fallen off the bus."),
        ),
    ],
)
def test_forms(text: str, expected: XidLine) -> None:
    """FACT: the lines of old drivers, of MIG instances and of lost cards are all understood."""
    assert parsed(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.159.04",
        "NVRM: Xid",
        "NVRM: Xid (PCI:0000:00:06): ",
        "NVRM: Xid (PCI:0000:00:06): x, pid=1",
        "NVRM: Xid (PCI:0000:00:06): 123456, pid=1",
        "NVRM: Xid (PCI:0000:00:06): 31x, pid=1",
        "NVRM: Xid (PCI:zzzz:00:06): 31, pid=1",
        "usb 1-1: Product: NVRM: Xid (PCI:0000:00:06): 79, GPU has fallen off the bus.",
        " NVRM: Xid (PCI:0000:00:06): 79, GPU has fallen off the bus.",
        "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 32",
    ],
)
def test_no_xid(text: str) -> None:
    """FACT: what only looks like an Xid, or quotes one, is none."""
    assert parsed(text) is None
    assert XidLines().found(entry(text)) is None


def test_only_the_kernel_is_believed() -> None:
    """FACT: the same line from any other facility is not heard."""
    assert XidLines().found(entry(REAL)) == parsed(REAL)
    assert [XidLines().found(entry(REAL, facility=n)) for n in range(1, 24)] == [None] * 23


def test_a_name_cannot_forge_a_process() -> None:
    """FACT: a process whose name contains a pid is the one that the driver named first."""
    line = found("NVRM: Xid (PCI:0000:00:06): 31, pid=5, name=x, pid=7, name=y, MMU Fault")
    assert (line.pid, line.name) == (5, "x")


def test_a_loss_in_three_records() -> None:
    """FACT: a card's loss that is told without an Xid, line by line among others, is a 79."""
    lines = XidLines()
    told = [LOSS[0], "eth0: link down", LOSS[1], REAL, LOSS[2], LOSS[2]]
    seen = [lines.found(entry(text)) for text in told]
    lost = XidLine("0000:41:00.0", 79, message="GPU has fallen off the bus.")
    assert seen == [None, None, None, parsed(REAL), lost, None]


def test_a_loss_in_one_record() -> None:
    """FACT: the same words in one record say the same."""
    line = XidLines().found(entry(r"\x0a".join(LOSS)))
    assert line is not None
    assert (line.bus_id, line.xid) == ("0000:41:00.0", 79)


def test_a_loss_that_is_not_completed() -> None:
    """FACT: the end belongs to a beginning just before it, and to nothing else."""
    lines = XidLines()
    late = [entry(LOSS[0]), entry(LOSS[1]), entry(LOSS[2], usec=5_000_000)]
    assert [lines.found(one) for one in late] == [None] * 3
    other = "NVRM: RmInitAdapter failed! (0x26:0x56:1474)"
    assert [lines.found(entry(text)) for text in (LOSS[0], other, LOSS[2])] == [None] * 3


@given(st.lists(st.text(max_size=80) | st.sampled_from(LOSS), max_size=6))
def test_hostile_lines(texts: list[str]) -> None:
    """FACT: no line whatever raises, nor does its sentence grow or break into two."""
    lines = XidLines()
    for text in texts:
        for line in (text, f"NVRM: {text}", f"NVRM: Xid (PCI:0000:00:06): 31, {text}"):
            seen = lines.found(entry(line))
            if seen is not None:
                told = sentence(seen, Classes({}).of(seen), "GPU 0")
                assert len(told) <= 200
                assert told.isprintable()


@given(st.integers(0, 1 << 40), st.text(max_size=300), st.text(max_size=300))
def test_hostile_processes(pid: int, name: str, message: str) -> None:
    """FACT: a pid is what stands first, whatever the process is called."""
    line = found(f"NVRM: Xid (PCI:0000:00:06): 13, pid={pid}, name={name}, {message}")
    assert line.pid in {pid, None}
    assert len(sentence(line, XidClass.APPLICATION, "GPU 0")) <= 200


@pytest.mark.parametrize(
    ("kind", "xids"),
    [
        (XidClass.APPLICATION, (8, 13, 31, 43, 69, 94, 139)),
        (XidClass.RESET, (46, 48, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158)),
        (XidClass.REBOOT, (79, 151)),
        (XidClass.HARDWARE, (1, 54, 61, 74, 78, 144, 150, 159, 162, 176, 999)),
        (XidClass.IGNORED, (14, 38, 45, 63, 92, 121, 154, 161)),
    ],
)
def test_classes(kind: XidClass, xids: tuple[int, ...]) -> None:
    """FACT: every number has one class; one that nobody lists asks for somebody to look."""
    assert {xid: table().of(XidLine("", xid)) for xid in xids} == dict.fromkeys(xids, kind)


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("149, NETIR_LINK_EVT Fatal XC0 i0 Link 08", XidClass.RESET),
        ("145, RLW_REMAP Nonfatal XC1 i0 Link 03", XidClass.IGNORED),
        ("145, RLW_REMAP Non-fatal XC1 i0 Link 03", XidClass.IGNORED),
        ("145, RLW_REMAP XC1 i0 Link 03", XidClass.HARDWARE),
        ("154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)", "reset"),
        ("154, GPU recovery action changed from 0x1 (GPU Reset) to 0x0 (None)", "ignored"),
        ("154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot)", "reboot"),
        ("154, GPU recovery action changed from 0x0 (None) to 0x4d (New Thing)", "reboot"),
        ("154, words of another driver", "ignored"),
        ("31, pid=1, name=x, Fatal something", "application"),
    ],
)
def test_the_text_decides(message: str, kind: str) -> None:
    """FACT: of NVLink's numbers the severity decides, of 154 the new action, of others nothing."""
    assert table().of(found(f"NVRM: Xid (PCI:0000:00:06): {message}")) == kind


def test_no_number_is_listed_twice() -> None:
    """FACT: the table moves no number silently: what it lists, it lists in one class."""
    import tomllib
    from importlib import resources

    data = tomllib.loads(resources.files("probes._xid").joinpath("classes.toml").read_text())
    numbers = [xid for xids in data["classes"].values() for xid in xids]
    assert len(numbers) == len(set(numbers))
    assert set(data["classes"]) == set(XidClass)
    assert not set(numbers) & {*data["severity"]["xids"], data["recovery"]["xid"]}


def test_settings_move_a_number() -> None:
    """FACT: a number that the operator moved is in that class whatever its text says."""
    classes = Classes(changes(Settings(classes={"31": "ignored", "149": "reboot"}).classes))
    assert classes.of(found(REAL)) is XidClass.IGNORED
    fatal = found("NVRM: Xid (PCI:0000:00:06): 149, NETIR_LINK_EVT Nonfatal XC0")
    assert classes.of(fatal) is XidClass.REBOOT
    assert classes.of(XidLine("", 13)) is XidClass.APPLICATION


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"x": "reset"}, "cannot use 'x' as an Xid: it is no number"),
        ({"-1": "reset"}, "cannot use '-1' as an Xid: it is no number"),
        ({"²": "reset"}, "cannot use '²' as an Xid: it is no number"),
        ({"9" * 6: "reset"}, "cannot use '999999' as an Xid: it is no number"),
        (
            {"31": "fine"},
            (
                "cannot use 'fine' as the class of Xid 31: "
                "not one of application, reset, reboot, hardware, ignored"
            ),
        ),
    ],
)
def test_wrong_settings(wrong: dict[str, str], words: str) -> None:
    """FACT: a class or a number that is none is refused in one line, when it is read too."""
    with pytest.raises(ValueError, match=r"^cannot use") as caught:
        Settings(classes=wrong)
    assert str(caught.value) == words
    with pytest.raises(msgspec.ValidationError, match="cannot use"):
        msgspec.convert({"classes": wrong}, Settings)


def test_sentences() -> None:
    """FACT: one sentence names number, class, card, instance, process and message."""
    told = sentence(found(REAL), XidClass.APPLICATION, Card("0000:00:06.0", "0", "GPU-1").words)
    assert told.startswith(
        "Xid 31 (application) on GPU 0, process 1796 (oob): MMU Fault: ENGINE GRAPHICS"
    )
    place = Card("0000:00:06.0").words
    mig = XidLine("0000:00:06.0", 79, gi=5, ci=1)
    assert sentence(mig, XidClass.REBOOT, place) == (
        "Xid 79 (reboot) on the GPU at 0000:00:06.0 (MIG 5/1)"
    )


def test_bus_ids() -> None:
    """FACT: all spellings of a place are one."""
    spellings = ("00000000:C1:00.0", "0000:c1:00.0", "0000:C1:00")
    assert {normalized(one) for one in spellings} == {"0000:c1:00.0"}
    assert normalized("elsewhere") == "elsewhere"


def test_the_same_process_again() -> None:
    """FACT: the same Xid of a process counts once in five seconds, and again after them."""
    once, line = Once(), XidLine("0000:00:06.0", 13, pid=1)
    times = (100.0, 101.0, 105.0, 105.1, 111.0)
    assert [once.kernel(line, at, at) for at in times] == [True, False, False, True, True]


def test_different_faults_are_different() -> None:
    """FACT: another process, card or number is another fault."""
    once = Once()
    lines = (
        XidLine("0000:00:06.0", 13, pid=1),
        XidLine("0000:00:06.0", 13, pid=2),
        XidLine("0000:00:07.0", 13, pid=1),
        XidLine("0000:00:06.0", 31, pid=1),
    )
    assert all(once.kernel(line, 1.0, 1.0) for line in lines)


def test_an_event_waits_for_the_line() -> None:
    """FACT: an event that the kernel log tells of too is that line, whichever comes first."""
    event, line = XidLine("0000:00:06.0", 31), XidLine("0000:00:06.0", 31, pid=1)
    once = Once()
    once.event(event, 1.0)
    assert once.due(1.0, at_once=False) == []
    assert once.kernel(line, 500.0, 2.0)
    assert once.due(2.0, at_once=False) == []
    once.event(event, 3.0)
    assert once.due(4.0, at_once=False) == []
    once.event(event, 9.0)
    assert once.due(10.0, at_once=False) == [event]
    assert not once.kernel(line, 508.0, 10.0)


def test_an_event_and_a_late_line() -> None:
    """FACT: an event between two lines does not hide from the second that it is the first."""
    once = Once()
    line, event = XidLine("0000:00:06.0", 31, pid=1), XidLine("0000:00:06.0", 31)
    assert once.kernel(line, 100.0, 1000.0)
    once.event(event, 1010.0)
    assert once.due(1011.0, at_once=False) == [event]
    assert not once.kernel(line, 101.0, 1016.0)


def test_a_line_without_a_process_is_anybodys() -> None:
    """FACT: a line that names no process is the fault of any process, before or after it."""
    once, nobody = Once(), XidLine("0000:00:06.0", 31)
    one, other = (XidLine("0000:00:06.0", 31, pid=pid) for pid in (1, 2))
    assert once.kernel(one, 1.0, 1.0)
    assert not once.kernel(nobody, 2.0, 2.0)
    assert once.kernel(nobody, 20.0, 20.0)
    assert not once.kernel(other, 21.0, 21.0)


def test_what_is_forgotten() -> None:
    """FACT: after a minute nothing is kept of a fault."""
    once, line = Once(), XidLine("0000:00:06.0", 31, pid=1)
    assert once.kernel(line, 1.0, 1.0)
    assert once.due(62.0, at_once=False) == []
    assert once.kernel(line, 1.0, 62.0)


class Lines(XidLine):
    """A line that counts how often a number of it is looked at."""

    looks = 0

    def __getattribute__(self, name: str) -> object:
        """The field."""
        if name == "xid":
            Lines.looks += 1
        return super().__getattribute__(name)


def test_the_cost_of_many_faults() -> None:
    """FACT: what one more fault costs does not grow with how many there were."""
    once, costs, pids = Once(), [], itertools.count(1)
    for many in (100, 100, 2000):
        Lines.looks = 0
        for _ in range(many):
            pid = next(pids)
            assert once.kernel(Lines("0000:00:06.0", 45, pid=pid), pid / 1000, 1.0)
        costs.append(Lines.looks / many)
    assert costs[0] == costs[1] == costs[2]
