"""Who computes on a card, through whichever of the driver's lists can be read right."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import pynvml

from probes._nvml.card import Card
from probes._nvml.names import ALL_ONES_32, ALL_ONES_64

Row = tuple[int, int | None, int | None, int | None]
"""Pid, bytes, GPU instance, compute instance; None is unknown, or no instance."""

_MARGIN = 5
_TOO_SMALL = 7


class _LongInfo(ctypes.Structure):
    """A row as some drivers of the R535 branch wrote it: with eight bytes more."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("usedGpuMemory", ctypes.c_ulonglong),
        ("gpuInstanceId", ctypes.c_uint),
        ("computeInstanceId", ctypes.c_uint),
        ("usedGpuCcProtectedMemory", ctypes.c_ulonglong),
    )


def processes(card: Card) -> list[Row]:
    """Every compute process once per instance; the driver may list one several times.

    Pids are passed on as they are, impossible ones too. Raises AbsentError or CodeError.
    """
    found: dict[tuple[int, int | None, int | None], int | None] = {}
    for info in _listed(card):
        used = None if info.usedGpuMemory in {None, ALL_ONES_64} else int(info.usedGpuMemory)
        key = (int(info.pid), _instance(info.gpuInstanceId), _instance(info.computeInstanceId))
        before = found.get(key)
        found[key] = before if used is None else max(used, before or 0)
    return [(pid, used, gpu, compute) for (pid, gpu, compute), used in found.items()]


def _instance(number: int) -> int | None:
    return None if number == ALL_ONES_32 else int(number)


def _listed(card: Card) -> Any:  # noqa: ANN401
    if _long_rows():
        return card.given(("long process list", ()), _long_list)
    return card.first(
        ("nvmlDeviceGetComputeRunningProcesses_v3",), ("nvmlDeviceGetComputeRunningProcesses_v2",)
    )


def _long_rows() -> bool:
    """Whether the library is of those: no function tells, but these two say when it was made.

    One came together with the long rows, the other is the list that replaced them.
    """
    return _has("nvmlDeviceGetConfComputeMemSizeInfo") and not _has(
        "nvmlDeviceGetRunningProcessDetailList"
    )


def _has(name: str) -> bool:
    try:
        _function(name)
    except (AttributeError, pynvml.NVMLError):
        return False
    return True


def _function(name: str) -> Any:  # noqa: ANN401
    return pynvml._nvmlGetFunctionPointer(name)  # noqa: SLF001 - the binding has no other door


def _long_list(handle: object) -> Iterator[_LongInfo]:
    """The list of version 3 with rows of the long layout."""
    function = _function("nvmlDeviceGetComputeRunningProcesses_v3")
    count = ctypes.c_uint(0)
    code = function(handle, ctypes.byref(count), None)
    if code == _TOO_SMALL:
        count.value = count.value * 2 + _MARGIN
        rows = (_LongInfo * count.value)()
        code = function(handle, ctypes.byref(count), rows)
    else:
        rows = (_LongInfo * 0)()
    if code:
        raise pynvml.NVMLError(code)
    return iter(rows[: count.value])
