"""The kernel log's reader on the real device, and on pipes that keep records apart."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from probes._kmsg import PATH, Entry, KernelLog, KernelLogError
from tests.support.simulated import until
from tests.support.xids import packets

USER = 1
"""The facility that the kernel gives to what user space writes."""
MANY = 4096


def writable() -> bool:
    """Whether this machine lets us write to its kernel log and read it."""
    try:
        os.close(os.open(PATH, os.O_RDWR | os.O_NONBLOCK))
    except OSError:
        return False
    setting = Path("/proc/sys/kernel/printk_devkmsg")
    return not setting.exists() or setting.read_text().strip() != "off"


on_the_device = pytest.mark.skipif(not writable(), reason="the kernel log is out of reach")


def say(text: str) -> None:
    """Write one line to the real log, through a descriptor of its own: the rate is limited."""
    device = os.open(PATH, os.O_WRONLY)
    try:
        os.write(device, text.encode() + b"\n")
    finally:
        os.close(device)


def heard(log: KernelLog, word: str) -> Entry:
    """The entry with that word, waiting for it."""
    return until(lambda: [entry for entry in log.read(MANY) if word in entry.text])[0]


@pytest.fixture
def word() -> str:
    """What nobody else says."""
    return f"watchdog-test-{uuid.uuid4().hex}"


@contextlib.contextmanager
def reading(path: str) -> Iterator[KernelLog]:
    """A log that is closed afterwards."""
    log = KernelLog(path)
    try:
        yield log
    finally:
        log.close()


def texts(log: KernelLog) -> list[str]:
    """What is new."""
    return [entry.text for entry in log.read(MANY)]


@pytest.mark.root
@on_the_device
def test_a_line_of_ours_comes_back(word: str) -> None:
    """FACT: what user space wrote is read with its level and the facility of user space."""
    with reading(PATH) as log:
        say(f"<4>{word} é")
        entry = heard(log, word)
        assert (entry.level, entry.facility) == (4, USER)
        assert entry.text == rf"{word} \xc3\xa9"
        assert entry.seq > 0
        assert entry.at > 0


@pytest.mark.root
@on_the_device
def test_user_space_cannot_speak_as_the_kernel(word: str) -> None:
    """FACT: a line that claims facility 0 is given another by the kernel."""
    with reading(PATH) as log:
        say(f"<0>NVRM: Xid (PCI:0000:00:06): 79, {word}")
        assert heard(log, word).facility == USER


@pytest.mark.root
@on_the_device
def test_the_past_is_not_read(word: str) -> None:
    """FACT: what was said before the log was opened is not news."""
    say(f"{word} before")
    with reading(PATH) as log:
        say(f"{word} after")
        assert heard(log, word).text == f"{word} after"


@pytest.mark.root
@on_the_device
def test_a_record_longer_than_the_buffer_is_skipped(word: str) -> None:
    """FACT: the kernel skips a record that does not fit; it is counted, and the next is read."""
    log = KernelLog(PATH, buffer=200)
    try:
        say(f"{word} first")
        heard(log, word)
        before = log.lost
        say(f"{word} {'x' * 500}")
        say(f"{word} last")
        assert heard(log, word).text == f"{word} last"
        assert log.lost > before
    finally:
        log.close()


def test_one_read_is_one_record() -> None:
    """FACT: a record is its prefix and its first line; lines that annotate it are left out."""
    with packets() as (path, sink), reading(path) as log:
        os.write(
            sink, b"6,339,5140900,-;NVRM: loading\n SUBSYSTEM=pci\n DEVICE=+pci:0000:00:06.0\n"
        )
        os.write(sink, b"30,340,5690716,c,caller=T1;udevd; ready\n")
        assert log.read(MANY) == [
            Entry(339, 5140900, 6, 0, "NVRM: loading"),
            Entry(340, 5690716, 6, 3, "udevd; ready"),
        ]
        assert log.read(MANY) == []


def test_the_limit() -> None:
    """FACT: no more than asked for is read, and the rest stays for the next time."""
    with packets() as (path, sink), reading(path) as log:
        for seq in range(3):
            os.write(sink, b"6,%d,1,-;line %d\n" % (seq, seq))
        assert [entry.seq for entry in log.read(2)] == [0, 1]
        assert [entry.seq for entry in log.read(2)] == [2]


def test_a_gap_is_counted() -> None:
    """FACT: sequence numbers that are missing were lost; one that goes back loses nothing."""
    with packets() as (path, sink), reading(path) as log:
        for seq in (7, 8, 12, 3, 4):
            os.write(sink, b"6,%d,1,-;line\n" % seq)
        assert len(log.read(MANY)) == 5
        assert log.lost == 3


@pytest.mark.parametrize(
    "record",
    [
        b"\n",
        b";",
        b"no record at all",
        b"6,1",
        b"6;7,8,9;text",
        b"-1,2,3,-;text",
        b"6,1,2,-text",
        b"9999999999,1,2,-;text",
        b"6," + b"1" * 3000 + b",2,-;text",
        b"\xff\xfe\x00;\x00",
    ],
)
def test_what_is_no_record(record: bytes) -> None:
    """FACT: what has not the form of a record is passed over, and the next is read."""
    with packets() as (path, sink), reading(path) as log:
        os.write(sink, record)
        os.write(sink, b"6,5,1,-;next\n")
        assert texts(log) == ["next"]


def test_bytes_that_are_no_text() -> None:
    """FACT: a byte that is no text is written as the kernel writes it."""
    with packets() as (path, sink), reading(path) as log:
        os.write(sink, b"6,5,1,-;a\xffb\\x07\n")
        assert texts(log) == [r"a\xffb\x07"]


def test_the_log_cannot_be_opened(tmp_path: Path) -> None:
    """FACT: a log that is not there says so in one line, and is read as soon as it is there."""
    path = tmp_path / "kmsg"
    with reading(str(path)) as log:
        for _ in range(2):
            with pytest.raises(KernelLogError) as caught:
                log.read(MANY)
            assert str(caught.value) == "cannot read the kernel log: No such file or directory"
        with packets() as (source, sink):
            path.symlink_to(source)
            assert log.read(MANY) == []
            os.write(sink, b"6,5,1,-;there\n")
            assert texts(log) == ["there"]


def test_something_that_is_no_log(tmp_path: Path) -> None:
    """FACT: what cannot be read is one line of trouble each time, and is opened anew each time."""
    path = tmp_path / "kmsg"
    path.symlink_to(tmp_path)
    with reading(str(path)) as log:
        before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - counted, not used
        for _ in range(3):
            with pytest.raises(KernelLogError, match=r"^cannot read the kernel log: \w[\w ]+$"):
                log.read(MANY)
        assert len(os.listdir("/proc/self/fd")) <= before  # noqa: PTH208 - as above
        with packets() as (source, sink):
            path.unlink()
            path.symlink_to(source)
            assert log.read(MANY) == []
            os.write(sink, b"6,5,1,-;healed\n")
            assert texts(log) == ["healed"]


def test_the_end_of_a_pipe_is_no_trouble() -> None:
    """FACT: a stand-in that nobody writes to any more just has nothing new."""
    with packets() as (path, sink), reading(path) as log:
        other = os.dup(sink)
        os.write(other, b"6,5,1,-;last\n")
        os.close(other)
        assert texts(log) == ["last"]
        assert texts(log) == []


class Overrun:
    """A log that was overwritten between two reads: the errors as the kernel gives them."""

    def __init__(self, *answers: bytes | int) -> None:
        self.answers = list(answers)

    def __call__(self, _descriptor: int, _size: int) -> bytes:
        """The next record, or the next error."""
        answer = self.answers.pop(0) if self.answers else errno.EAGAIN
        if isinstance(answer, int):
            raise OSError(answer, os.strerror(answer))
        return answer


def overrun(*answers: bytes | int) -> KernelLog:
    """A log that answers so."""
    return KernelLog(os.devnull, receive=Overrun(*answers))


def test_overwritten_records() -> None:
    """FACT: reading goes on behind what was overwritten, and the gap is counted."""
    log = overrun(b"6,1,1,-;a\n", errno.EPIPE, b"6,9,1,-;b\n")
    assert texts(log) == ["a", "b"]
    assert log.lost == 7
    log.close()


def test_overwritten_before_anything_was_read() -> None:
    """FACT: a loss before the first record is known to be one, at least."""
    log = overrun(errno.EPIPE, b"6,9,1,-;b\n")
    assert texts(log) == ["b"]
    assert log.lost == 1
    log.close()


def test_errors_without_end() -> None:
    """FACT: a device that only ever refuses ends the read with a line of trouble, not never."""
    log = overrun(*[errno.EINVAL] * 8)
    with pytest.raises(KernelLogError, match=r"^cannot read the kernel log: Invalid argument$"):
        log.read(4)
    log.close()


def test_an_error_in_the_middle() -> None:
    """FACT: after an error the log is opened anew, and what was missed meanwhile is counted."""
    log = overrun(b"6,1,1,-;a\n", errno.EAGAIN, errno.EIO, b"6,4,1,-;b\n")
    assert texts(log) == ["a"]
    with pytest.raises(KernelLogError):
        log.read(MANY)
    assert texts(log) == ["b"]
    assert log.lost == 2
    log.close()


def test_closed() -> None:
    """FACT: a closed log has nothing to say, and can be closed again."""
    with packets() as (path, sink), reading(path) as log:
        os.write(sink, b"6,5,1,-;line\n")
        log.close()
        log.close()
        assert log.read(MANY) == []


class Counted:
    """A device that is never empty, and how often it was read."""

    def __init__(self, record: bytes) -> None:
        self.record = record
        self.reads = 0

    def __call__(self, _descriptor: int, _size: int) -> bytes:
        """The same record again; no test needs this many."""
        self.reads += 1
        assert self.reads <= MANY
        return self.record


def test_broken_records_without_end() -> None:
    """FACT: a broken record is one of those that were asked for, so that the read comes back."""
    device = Counted(b"\0" * 16)
    log = KernelLog(os.devnull, receive=device)
    assert log.read(10) == []
    assert device.reads == 10
    log.close()


def test_a_read_is_bounded_in_bytes() -> None:
    """FACT: of long records one read takes a mebibyte, whatever the limit; the rest stays."""
    device = Counted(b"6,5,1,-;" + b"x" * (1 << 18))
    log = KernelLog(os.devnull, receive=device)
    assert len(log.read(MANY)) == 4
    assert len(log.read(MANY)) == 4
    log.close()


class Blocking:
    """A device whose read comes back when it is told to, and what descriptor it was given."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.released = threading.Event()
        self.descriptor = -1

    def __call__(self, descriptor: int, _size: int) -> bytes:
        """One record, in the end."""
        self.descriptor = descriptor
        self.entered.set()
        self.released.wait(60)
        return b"6,5,1,-;late\n"


def test_closing_does_not_wait_for_a_read() -> None:
    """FACT: a log is closed while a read hangs, and that read lets go of the device at its end."""
    device, found = Blocking(), list[Entry]()
    log = KernelLog(os.devnull, receive=device)
    reader = threading.Thread(target=lambda: found.extend(log.read(MANY)), daemon=True)
    closer = threading.Thread(target=log.close, daemon=True)
    try:
        reader.start()
        assert device.entered.wait(60)
        closer.start()
        closer.join(20)
        assert not closer.is_alive()
        held = Path(f"/proc/self/fd/{device.descriptor}")
        assert held.readlink() == Path(os.devnull)
    finally:
        device.released.set()
        reader.join(60)
    assert [entry.text for entry in found] == ["late"]
    assert log.read(MANY) == []
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(device.descriptor)
