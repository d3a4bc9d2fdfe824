"""Versions of the loaded kernel module and of the user library, and libraries that are gone.

The library is looked for as the dynamic loader does: LD_LIBRARY_PATH, then the directories of
/etc/ld.so.conf in their order, then the built-in ones. The files are read instead of asking
``ldconfig``, so that nothing is run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from watchdog.nvidia.files import head, is_file, matching, real, text, under

NVML = "libnvidia-ml.so.1"
CUDA = "libcuda.so.1"

_MODULE = re.compile(r"\bModule\b.*?\b(\d+(?:\.\d+)+)")
_SUFFIX = re.compile(r"\.so\.(\d+(?:\.\d+)+)$")
_BUILT_IN = ("/lib64", "/usr/lib64", "/lib", "/usr/lib")
_COMPAT_CONF = "00-compat-*.conf"
_COMPAT_HOME = "/usr/local/cuda/compat"
_TRUE = ("1", "true")
_MAPS_LIMIT = 1 << 24
_GONE = re.compile(
    rb"^[^\n]*/(lib(?:cuda|nvcuvid|nvidia-[^/\n]*?)\.so[^/\n]*?) \(deleted\)$", re.MULTILINE
)
_ELF = b"\x7fELF"
_CLASS_64 = 2
_DEEPEST = 4
"""Levels of ``include`` in ld.so.conf that are followed: files can include themselves."""


def loaded_module(root: str = "/") -> str:
    """The version of the kernel module that is loaded; "" without one.

    The first line of /proc/driver/nvidia/version has it behind the word "Module", of the open
    module ("Open Kernel Module for x86_64  580.65.06") and of the closed ("x86_64 Kernel Module").
    """
    found = _MODULE.search(text(under(root, "/proc/driver/nvidia/version")))
    return found[1] if found else text(under(root, "/sys/module/nvidia/version"))


def user_library(environment: Mapping[str, str], root: str = "/") -> str:
    """The version of the user library that a process of this environment gets; "" when unknown.

    NVML's, as no cuda-compat replaces that one; else libcuda's where it is the system's own.
    """
    version = library_version(NVML, environment, root)
    if version or not is_systems(library(CUDA, environment, root), root):
        return version
    return library_version(CUDA, environment, root)


def is_compat(path: Path | None, root: str = "/") -> bool:
    """Whether the library is of a cuda-compat package.

    They keep to directories of that name, which a link may hide, or are configured by a file of it.
    """
    if path is None:
        return False
    places = {path.parent, real(path).parent}
    named = (part for place in places for part in _inside(place, root).parts)
    return any("compat" in part for part in named) or not places.isdisjoint(_of_compat_conf(root))


def is_systems(path: Path | None, root: str = "/") -> bool:
    """Whether the library is the system's own: in a directory of the loader's, and no cuda-compat.

    What only an environment leads to may be a cuda-compat under another name, unless the rest of
    a driver lies beside it: no cuda-compat has NVML's library.
    """
    if path is None or is_compat(path, root):
        return False
    if is_file(path.parent / NVML):
        return True
    own = {real(under(root, folder)) for folder in _systems(root)}
    return real(path.parent) in own


def library_version(name: str, environment: Mapping[str, str], root: str = "/") -> str:
    """The version in the real name of library ``name``; "" without one."""
    found = library(name, environment, root)
    version = _SUFFIX.search(real(found).name) if found else None
    return version[1] if version else ""


def library(name: str, environment: Mapping[str, str], root: str = "/") -> Path | None:
    """The file that the loader would take for library ``name``; None when it finds none."""
    for folder in search_path(environment, root):
        found = under(root, f"{folder}/{name}")
        if is_file(found) and _loads(found):
            return found
    return None


def search_path(environment: Mapping[str, str], root: str = "/") -> Iterator[str]:
    """The directories of the loader, first the environment's.

    vLLM itself puts its cuda-compat in front when it is told to, and starts itself again.
    """
    if environment.get("VLLM_ENABLE_CUDA_COMPATIBILITY", "").strip().lower() in _TRUE:
        yield environment.get("VLLM_CUDA_COMPATIBILITY_PATH") or _COMPAT_HOME
    for folder in re.split("[:;]", environment.get("LD_LIBRARY_PATH", "")):
        if folder.startswith("/"):
            yield folder
    yield from _systems(root)


def compat_sources(environment: Mapping[str, str], root: str = "/") -> tuple[str, ...]:
    """Where a cuda-compat comes from: directories of the environment, files of ld.so.conf.d.

    NVIDIA's container toolkit writes 00-compat-*.conf when the image brings a newer libcuda.
    """
    given = environment.get("LD_LIBRARY_PATH", "").split(":")
    folders = tuple(folder for folder in given if "compat" in folder)
    return folders + tuple(f"/etc/ld.so.conf.d/{path.name}" for path in _compat_conf(root))


def stale_libraries(pids: Iterable[int], root: str = "/") -> tuple[str, ...] | None:
    """Libraries of NVIDIA that the processes map and that are deleted, by name.

    None when the maps of none of them can be read. A process keeps what it maps: it runs on, and
    its next start gets what lies there now.
    """
    maps = [head(under(root, f"/proc/{pid}/maps"), _MAPS_LIMIT) for pid in pids]
    if not any(maps):
        return None
    return tuple(sorted({name.decode(errors="replace") for m in maps for name in _GONE.findall(m)}))


def _systems(root: str) -> Iterator[str]:
    """The loader's directories for every process."""
    yield from _configured(under(root, "/etc/ld.so.conf"), root, 0)
    yield from _BUILT_IN


def _compat_conf(root: str) -> tuple[Path, ...]:
    return matching(under(root, "/etc/ld.so.conf.d"), _COMPAT_CONF)


def _of_compat_conf(root: str) -> set[Path]:
    """The directories that those files add."""
    return {
        under(root, folder) for file in _compat_conf(root) for folder in _configured(file, root, 0)
    }


def _inside(path: Path, root: str) -> Path:
    """The path as seen from the root: the names above it say nothing."""
    for top in (Path(root), real(Path(root))):
        if path.is_relative_to(top):
            return path.relative_to(top)
    return path


def _configured(file: Path, root: str, depth: int) -> Iterator[str]:
    if depth > _DEEPEST:
        return
    for raw in text(file).splitlines():
        line = raw.partition("#")[0].strip()
        if line.startswith("include"):
            for pattern in line.split()[1:]:
                yield from _included(pattern, file, root, depth)
        elif line.startswith("/"):
            yield line


def _included(pattern: str, file: Path, root: str, depth: int) -> Iterator[str]:
    where = under(root, pattern) if pattern.startswith("/") else file.parent / pattern
    for included in matching(where.parent, where.name):
        yield from _configured(included, root, depth + 1)


def _loads(file: Path) -> bool:
    """Whether a 64-bit process may load it: the loader passes over libraries of another class."""
    start = head(file, len(_ELF) + 1)
    return not start.startswith(_ELF) or start[-1] == _CLASS_64
