"""docs/faults.md: every row has its tests, and the tests exist."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
PAGE = TESTS.parent / "docs" / "faults.md"
ROWS = {
    *(f"D{number}" for number in range(1, 13)),
    *(f"H{number}" for number in range(1, 16)),
    *(f"S{number}" for number in range(1, 9)),
    *(f"W{number}" for number in range(1, 11)),
}
ON_VLLM = {"D1", "D2", "D3", "D4", "D7", "H1", "H2", "H3", "H8", "H11", "H12", "H14", "W1"}
"""Rows that the real engine can show on a CPU."""
PLACE = re.compile(r"`((?:unit|laws|process|e2e|gpu|perf)/\w+\.py)(?:::(\w+))?`")


def table() -> dict[str, list[tuple[str, str]]]:
    """The file and the function ("" for the whole file) of each proof, by row."""
    lines = re.findall(r"^\| ([DHSW]\d+) \|.*$", PAGE.read_text(), re.MULTILINE)
    assert len(lines) == len(set(lines)), "a row stands there twice"
    found = re.finditer(r"^\| ([DHSW]\d+) \|(.*)$", PAGE.read_text(), re.MULTILINE)
    return {row[1]: PLACE.findall(row[2]) for row in found}


def test_every_row_has_a_test() -> None:
    """FACT: no row of the parts D, H, S and W is missing, or stands there without a proof."""
    rows = table()
    assert set(rows) == ROWS
    assert not [row for row, proofs in rows.items() if not proofs]


def test_the_rows_for_the_real_engine_have_one_there() -> None:
    """FACT: what vLLM's CPU build can show is shown on it."""
    assert not [row for row in ON_VLLM if not any(f.startswith("e2e/") for f, _ in table()[row])]


def test_the_tests_exist() -> None:
    """FACT: each file and each function that is named is there."""
    missing = []
    for row, proofs in table().items():
        for file, function in proofs:
            path = TESTS / file
            text = path.read_text() if path.exists() else ""
            if not text or (function and f"def {function}(" not in text):
                missing.append(f"{row}: {file}::{function}")
    assert not missing


def test_no_test_of_the_faults_is_forgotten() -> None:
    """FACT: each test that is named after a row is in the table."""
    named = {function for proofs in table().values() for _, function in proofs}
    files = [*TESTS.glob("process/test_faults_*.py"), *TESTS.glob("e2e/test_real_*.py")]
    there = {
        name
        for f in files
        for name in re.findall(r"^def (test_\w+)\(", f.read_text(), re.MULTILINE)
    }
    assert there <= named
