"""The daemon rotates what its engines write."""

from __future__ import annotations

from pathlib import Path

from tests.support.simulated import until
from watchdog.daemon.log_care import LogCare
from watchdog.supervisor.rotation import part

LIMIT = 16 << 10


def test_logs_are_looked_at_again_and_again(tmp_path: Path) -> None:
    """One that grows beyond the limit is rotated, the others are let be; after the end none is."""
    big, small = tmp_path / "big.log", tmp_path / "small.log"
    small.write_bytes(b"x")
    care = LogCare(lambda: (big, small), print, limit=LIMIT, period=0.01)
    care.start()
    try:
        for _ in range(2):
            with big.open("ab") as engine:
                engine.write(b"y" * (2 * LIMIT))
            until(lambda: big.stat().st_size <= LIMIT)
    finally:
        care.close()
    until(lambda: part(big, 2).exists())
    assert not part(small, 1).exists()


def test_what_cannot_be_rotated_is_told_once(tmp_path: Path) -> None:
    """A log that is a link is not touched; the warning comes once and the others are cared for."""
    said: list[str] = []
    link, good = tmp_path / "link.log", tmp_path / "good.log"
    (tmp_path / "target").write_bytes(b"z" * (2 * LIMIT))
    link.symlink_to(tmp_path / "target")
    good.write_bytes(b"y" * (2 * LIMIT))
    care = LogCare(lambda: (link, good), said.append, limit=LIMIT, period=0.01)
    care.start()
    try:
        until(lambda: part(good, 1).exists() and said)
        good.write_bytes(b"y" * (2 * LIMIT))
        until(lambda: part(good, 2).exists())
    finally:
        care.close()
    assert len(said) == 1
    assert str(link) in said[0]
    assert (tmp_path / "target").stat().st_size == 2 * LIMIT


def test_a_bug_does_not_end_the_care(tmp_path: Path) -> None:
    """FACT: it is told, and the next look comes all the same: logs that nobody cuts fill a disk."""
    said: list[str] = []
    big = tmp_path / "big.log"
    big.write_bytes(b"y" * (2 * LIMIT))

    def logs() -> tuple[Path, ...]:
        if not said:
            raise LookupError("engine")
        return (big,)

    care = LogCare(logs, said.append, limit=LIMIT, period=0.01)
    care.start()
    try:
        until(lambda: part(big, 1).exists())
    finally:
        care.close()
    assert said == ["cannot look after logs: LookupError: engine"]
