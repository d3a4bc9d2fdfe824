"""NVML's numbers in words, and the numbers that mean "nobody knows". Loads nothing."""

from __future__ import annotations

LOST = "GPU is lost"
NEEDS_RESET = "GPU needs a reset"

NAMES = {
    1: "uninitialized",
    2: "invalid argument",
    3: "not supported",
    4: "no permission",
    6: "not found",
    7: "insufficient size",
    8: "external power is not connected",
    9: "driver not loaded",
    10: "timeout",
    11: "interrupts do not arrive",
    12: "library not found",
    13: "function not found",
    14: "corrupted infoROM",
    15: LOST,
    16: NEEDS_RESET,
    17: "blocked by the operating system",
    18: "library and driver versions differ",
    19: "in use",
    20: "out of memory",
    21: "no data",
    23: "out of resources",
    25: "argument version mismatch",
    26: "deprecated",
    27: "not ready",
    28: "GPU not found",
    29: "invalid state",
    999: "unknown error",
}
"""NVML's return codes in words (``nvml.h``, nvmlReturn_t)."""

REASONS = {
    0x001: "idle",
    0x002: "applications_clocks",
    0x004: "sw_power_cap",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal",
    0x040: "hw_thermal",
    0x080: "hw_power_brake",
    0x100: "display_clock",
    0x200: "board_limit",
    0x400: "reliability",
}
"""The bits of the clocks event reasons (``nvml.h``, R615)."""

ALL_ONES_32 = 0xFFFFFFFF
ALL_ONES_64 = 0xFFFFFFFFFFFFFFFF
_HOTTEST = 150
_COLDEST_MARGIN = -150


def describe(code: int) -> str:
    """A return code in words, without asking the library."""
    return NAMES.get(code, f"error {code}")


def word(value: int) -> int | None:
    """A 32-bit value, or None for "not available"."""
    return None if value == ALL_ONES_32 else value


def long(value: int) -> int | None:
    """A 64-bit value, or None for "not available"."""
    return None if value == ALL_ONES_64 else value


def degrees(value: int) -> int | None:
    """A temperature that a running card can have, in °C, or None."""
    return value if 0 < value <= _HOTTEST else None


def distance(value: int) -> int | None:
    """A difference of temperatures in °C, which may be negative, or None."""
    return value if _COLDEST_MARGIN <= value <= _HOTTEST else None


def percent(value: float) -> float | None:
    """A share in percent, or None for what cannot be one."""
    return value if 0 <= value <= 100 else None  # noqa: PLR2004 - that is what a percent is
