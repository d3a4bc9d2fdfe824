"""Whether an engine can start on the driver that is loaded: for the start gate and ``check``.

Nothing is said without knowledge: no driver, no torch, a family of CUDA that nobody has heard of.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from watchdog.core.model import Cause
from watchdog.nvidia import engine_cuda, versions
from watchdog.nvidia.files import shown
from watchdog.nvidia.floors import Fit, judge, numbers

_NONE: Mapping[str, str] = MappingProxyType({})


def misfit(
    command: Sequence[str],
    environment: Mapping[str, str],
    root: str = "/",
    floors: Mapping[str, str] = _NONE,
) -> str:
    """Why the engine's CUDA cannot run on the driver here, one sentence; "" if it fits or unknown.

    ``environment`` is the engine's. ``floors`` as in ``floors.judge``.
    """
    fit = engine_fit(engine_cuda.wanted(command, environment, root), environment, root, floors)
    return fit.words if fit.fits is False else ""


def engine_fit(
    wanted: str,
    environment: Mapping[str, str],
    root: str = "/",
    floors: Mapping[str, str] = _NONE,
) -> Fit:
    """The judgement on the CUDA ``wanted`` by an engine of this environment; "" is not known.

    A cuda-compat libcuda newer than the module is what CUDA sees, so it is judged in its place.
    """
    driver = versions.loaded_module(root)
    if not driver or not wanted:
        return Fit(fits=None)
    library = versions.library_version(versions.CUDA, environment, root)
    return judge(max(driver, library, key=numbers), wanted, floors)


def mismatch(environment: Mapping[str, str], root: str = "/") -> str:
    """Why a new CUDA process of this environment would be refused, one sentence; "" if unknown.

    The library must be the module's own, or a cuda-compat that is newer; anything else is error
    803 of CUDA, "unsupported display driver / cuda driver combination". A newer one that only the
    environment leads to is taken for a cuda-compat, whatever its directory is called.
    """
    driver = versions.loaded_module(root)
    found = versions.library(versions.CUDA, environment, root)
    library = versions.library_version(versions.CUDA, environment, root)
    if not numbers(driver) or not numbers(library) or numbers(library) == numbers(driver):
        return ""
    if numbers(library) > numbers(driver) and not versions.is_systems(found, root):
        return ""
    sentence = shown(f"driver {driver} is loaded, and libcuda is of {library} ({found})")
    compat = versions.is_compat(found, root)
    sources = versions.compat_sources(environment, root) if compat else ()
    return f"{sentence}, by way of {shown(', '.join(sources))}" if sources else sentence


def obstacle(
    command: Sequence[str],
    environment: Mapping[str, str],
    root: str = "/",
    floors: Mapping[str, str] = _NONE,
) -> tuple[Cause, str] | None:
    """Why the engine cannot start on the driver here, and in words; None if it can or who knows.

    What wants no CUDA starts on any driver, and of a driver that is not there nothing is known.
    """
    if not versions.loaded_module(root) or not engine_cuda.wanted(command, environment, root):
        return None
    differs = mismatch(environment, root)
    if differs:
        return Cause.DRIVER_MISMATCH, differs
    old = misfit(command, environment, root, floors)
    return (Cause.DRIVER_TOO_OLD, old) if old else None
