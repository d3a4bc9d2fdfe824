"""Which CUDA an engine's torch wants, read from files: torch is never imported, nothing is run.

In order: ``torch/version.py`` read as syntax, the distribution of the CUDA runtime beside it, the
local tag of torch's own version. The first that says anything decides.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from watchdog.nvidia.files import head, is_file, names, status, under
from watchdog.nvidia.interpreter import python_of, simulates, site_packages

_VERSION_LIMIT = 1 << 16
_CUDA = re.compile(r"(\d+\.\d+)(?:\.\d+)*")
_TAG = re.compile(r"\+cu(\d+)(\d)")
_OTHER_TAG = re.compile(r"\+(?:cpu|rocm)")
_RUNTIMES = re.compile(r"nvidia[-_.]cuda[-_.]runtime(?:[-_.]cu\d+)?-(\d+\.\d+)[^-]*\.dist-info")
_TORCH = re.compile(r"torch-([^-]+)\.dist-info")
_UNKNOWN = object()


@dataclass(frozen=True, slots=True)
class Wish:
    """What an engine wants. ``cuda`` is "13.0"; "" when it wants none or nothing is known.

    ``cpu_only``: True when it is known to use no CUDA, which a torch for another vendor's cards
    does not either; False when it wants one; None when nothing is known.
    """

    cuda: str = ""
    cpu_only: bool | None = None


@dataclass(frozen=True, slots=True)
class _Torch:
    """What version.py assigns. ``cuda`` None: built without, or for another vendor's cards."""

    known: bool = False
    cuda: str | None = None
    version: str = ""


def wanted(command: Sequence[str], environment: Mapping[str, str], root: str = "/") -> str:
    """The CUDA that the engine of ``command`` wants, "13.0"; "" when none or not known."""
    return wish(command, environment, root).cuda


def wish(command: Sequence[str], environment: Mapping[str, str], root: str = "/") -> Wish:
    """The CUDA that the engine of ``command`` wants, and whether it is known to want none."""
    if simulates(command):
        return Wish(cpu_only=True)
    python = python_of(command, environment, root)
    if not python:
        return Wish()
    return wish_in(site_packages(python, environment, root), root)


def wanted_in(sites: Sequence[str], root: str = "/") -> str:
    """As ``wanted``, for directories of packages in the order of import."""
    return wish_in(sites, root).cuda


def wish_in(sites: Sequence[str], root: str = "/") -> Wish:
    """As ``wish``, for directories of packages in the order of import."""
    folders = [under(root, site) for site in sites]
    version_files = (site / "torch" / "version.py" for site in folders)
    version_file = next((file for file in version_files if is_file(file)), None)
    torch = _read(version_file) if version_file else _Torch()
    if torch.known:
        return Wish(torch.cuda or "", cpu_only=torch.cuda is None)
    packages = [name for folder in folders for name in names(folder)]
    versions = (torch.version, *_torch_versions(packages))
    cuda = _runtime(packages) or _tagged(versions)
    if cuda:
        return Wish(cuda, cpu_only=False)
    return Wish(cpu_only=True if any(map(_OTHER_TAG.search, versions)) else None)


def _runtime(packages: Sequence[str]) -> str:
    found = (_RUNTIMES.fullmatch(name.lower()) for name in packages)
    return next((match[1] for match in found if match), "")


def _torch_versions(packages: Sequence[str]) -> Iterator[str]:
    yield from (match[1] for name in packages if (match := _TORCH.fullmatch(name)))


def _tagged(versions: Sequence[str]) -> str:
    """``2.9.0+cu128`` wants 12.8. Wheels of the public index have no tag."""
    found = (_TAG.search(version) for version in versions)
    return next((f"{match[1]}.{match[2]}" for match in found if match), "")


def _read(path: Path) -> _Torch:
    found = status(path)
    if found is None:
        return _Torch()
    return _parsed(str(path), found.st_mtime_ns, found.st_size)


@functools.lru_cache(maxsize=32)
def _parsed(path: str, _changed: int, _size: int) -> _Torch:
    try:
        tree = ast.parse(head(Path(path), _VERSION_LIMIT))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return _Torch()
    values = dict(_assigned(tree))
    cuda, hip = values.get("cuda", _UNKNOWN), values.get("hip")
    version = values.get("__version__")
    return _Torch(
        known=bool(hip) or cuda is None or bool(_number(cuda)),
        cuda=None if hip else _number(cuda),
        version=version if isinstance(version, str) else "",
    )


def _number(value: object) -> str | None:
    match = _CUDA.fullmatch(value) if isinstance(value, str) else None
    return match[1] if match else None


def _assigned(tree: ast.Module) -> Iterator[tuple[str, object]]:
    """Names and constants of the module's assignments, with and without an annotation."""
    for node in tree.body:
        if isinstance(node, ast.Assign):
            targets: list[ast.expr] = node.targets
        elif isinstance(node, ast.AnnAssign):
            targets = [node.target]
        else:
            continue
        if isinstance(node.value, ast.Constant):
            yield from ((t.id, node.value.value) for t in targets if isinstance(t, ast.Name))
