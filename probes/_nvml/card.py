"""One card as the worker knows it: its handle, what it cannot do, and what it said lately.

pynvml's errors are never compared or turned into text: some of that calls into the library again.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterable
from typing import Any

import pynvml

from probes._nvml.names import ALL_ONES_64, describe

_ABSENT = frozenset({3, 6, 13, 25, 26})
"""This card, or this driver, does not have it; asked once, then left out until the next start."""
_NOTHING = frozenset({0, 6})
"""No sample: the binding raises even success when a list is empty."""
_RACE = 7
"""The list grew between asking for its size and reading it."""
_STALE = 2
_AGAIN = frozenset({1, 15, 16, 999})
"""What a fresh start of the library may mend: stale handles after a reset or a reload."""

Key = tuple[str, tuple[object, ...]]


class AbsentError(Exception):
    """There is no such thing on this card."""


class CodeError(Exception):
    """NVML answered with an error."""

    def __init__(self, code: int) -> None:
        super().__init__(describe(code))
        self.code = code
        self.words = describe(code)


class Card:
    """The calls on one handle. ``suspects`` are calls that once said "invalid argument".

    That is a stale handle, or a question that this driver does not know: when a fresh start of the
    library changed nothing, it is the latter. ``sources`` says where a counter was first read:
    another counter of the same thing goes on from another number.
    """

    def __init__(self, suspects: Iterable[Key] = (), sources: dict[str, str] | None = None) -> None:
        self.handle: Any = None
        self.identity: dict[str, str] = {}
        self.kept: dict[str, dict[str, Any]] = {}
        self.due: dict[str, float] = {}
        self.since = 0
        self.samples_due = 0.0
        self.utilization: float | None = None
        self.sources = {} if sources is None else sources
        self.doubted: set[Key] = set()
        self.wants_restart = False
        self._suspects = frozenset(suspects)
        self._absent: set[Key] = set()

    def call(self, name: str, *args: object, more: object = None) -> Any:  # noqa: ANN401
        """Call pynvml's function of that name, for this card.

        ``more`` is a last argument that is no part of the question: a time, or a struct to fill.
        Raises AbsentError or CodeError.
        """
        given = args if more is None else (*args, more)

        def read(handle: object) -> Any:  # noqa: ANN401
            return getattr(pynvml, name)(handle, *given)

        return self.given((name, args), read)

    def given(self, key: Key, read: Callable[[object], Any]) -> Any:  # noqa: ANN401
        """What ``read`` makes of the handle; ``key`` is how the question is remembered."""
        if key in self._absent:
            raise AbsentError
        try:
            return self._twice(read)
        except (AttributeError, pynvml.NVMLLibraryMismatchError):
            self._absent.add(key)  # a binding or a library older than the call
            raise AbsentError from None
        except pynvml.NVMLError as error:
            raise self._judged(key, int(error.value)) from None

    def _twice(self, read: Callable[[object], Any]) -> Any:  # noqa: ANN401
        try:
            return read(self.handle)
        except pynvml.NVMLError as error:
            if int(error.value) != _RACE:
                raise
        return read(self.handle)

    def _judged(self, key: Key, code: int) -> Exception:
        if code in _NOTHING and key[0] == "nvmlDeviceGetSamples":
            return AbsentError()
        if code in _ABSENT or key in self._suspects:
            self._absent.add(key)
            return AbsentError()
        if code == _STALE:
            self.doubted.add(key)
        self.wants_restart |= code == _STALE or code in _AGAIN
        return CodeError(code)

    def first(self, *questions: tuple[Any, ...]) -> Any:  # noqa: ANN401
        """The answer to the first question that this card knows. Raises as ``call``."""
        for question in questions[:-1]:
            try:
                return self.call(*question)
            except AbsentError:
                continue
        return self.call(*questions[-1])

    def fabric(self) -> int:
        """The state of the NVSwitch fabric, 0 when there is none. Raises as ``call``."""
        try:
            info = pynvml.c_nvmlGpuFabricInfoV_t()
        except AttributeError:
            raise AbsentError from None
        self.call("nvmlDeviceGetGpuFabricInfoV", more=ctypes.byref(info))
        return int(info.state) & 0xFF  # one byte in nvml.h, and then padding

    def fields(
        self, *ids: int | tuple[int, int], whole: bool = False
    ) -> dict[int | tuple[int, int], int]:
        """Field values by id or (id, scope), those that the card has.

        One call for all. Raises CodeError when all failed, or one when ``whole``; AbsentError when
        there is no such call.
        """
        found, failed = self.fields_and_failures(*ids)
        if failed and (whole or not found):
            raise next(iter(failed.values()))
        return found

    def fields_and_failures(
        self, *ids: int | tuple[int, int]
    ) -> tuple[dict[int | tuple[int, int], int], dict[int | tuple[int, int], CodeError]]:
        """Field values, and the errors of those that the card has and does not tell.

        Raises as ``call``.
        """
        found: dict[int | tuple[int, int], int] = {}
        failed: dict[int | tuple[int, int], CodeError] = {}
        for one, value in zip(ids, self.call("nvmlDeviceGetFieldValues", ids), strict=True):
            code = int(value.nvmlReturn)
            if not code:
                found[one] = _number(value)
            elif code not in _ABSENT and code != _STALE:
                failed[one] = CodeError(code)
        if failed and not found:
            self.wants_restart |= any(error.code in _AGAIN for error in failed.values())
        return found, failed


def _number(field: Any) -> int:  # noqa: ANN401
    """The member of the union that the type names (``nvml.h``, nvmlValueType_t)."""
    members = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
    kind = int(field.valueType)
    value = getattr(field.value, members[kind] if kind < len(members) else "ullVal")
    return int(value) if math.isfinite(value) else ALL_ONES_64
