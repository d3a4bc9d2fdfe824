"""How often a property is tried, and the mutations of bytes that all of them draw from.

``make test`` tries each some hundred times, always the same ones, half a minute in all.
``VLLM_WATCHDOG_FUZZ=50`` in the environment tries each fifty times as often, every time others::

    VLLM_WATCHDOG_FUZZ=50 .venv/bin/pytest tests/fuzz

What fails is made smaller, and printed with the line that repeats it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

LONGER = "VLLM_WATCHDOG_FUZZ"
_SLOW = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.large_base_example]
_ODD = (
    b"\0",
    b"\xff",
    b"\x1b[31m",
    b"\xc3(",
    b"\r\n",
    b"\n\n",
    b" ",
    b",",
    b'"',
    b"{",
    b"]",
    b"-1",
    b"NaN",
    b"1e999",
    b"18446744073709551616",
    b"9" * 400,
    b"null",
    b"%00",
    b"..",
    "\N{ARABIC-INDIC DIGIT SEVEN}".encode(),
)


def times(number: int) -> settings:
    """That many examples, or as many more as the environment asks for."""
    more = int(os.environ.get(LONGER, "1"))
    return settings(
        deadline=None,
        derandomize=more == 1,
        max_examples=number * more,
        suppress_health_check=_SLOW,
    )


@st.composite
def mutated(draw: st.DrawFn, seeds: Sequence[bytes], most: int = 4) -> bytes:
    """One of the seeds with some bits turned, bytes cut out, doubled, swapped or put in between."""
    data = bytearray(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(0, most))):
        at = draw(st.integers(0, max(len(data) - 1, 0)))
        end = at + draw(st.sampled_from((1, 2, 4, 16, 100, 1 << 20)))
        match draw(st.sampled_from(("turn", "cut", "double", "put", "other", "end"))):
            case "turn" if data:
                data[at] ^= 1 << draw(st.integers(0, 7))
            case "cut":
                del data[at:end]
            case "double":
                data[at:at] = data[at:end]
            case "put":
                data[at:at] = draw(st.sampled_from(_ODD) | st.binary(min_size=1, max_size=12))
            case "other":
                other = draw(st.sampled_from(seeds))
                data[at:end] = other[at:end]
            case _:
                del data[at:]
    return bytes(data)
