"""Which Python runs an engine's command, and where it imports from. Read from files, never run.

What a shell script would start is not guessed: nothing is known then.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from watchdog.nvidia.files import entries, head, is_folder, link, may_run, text, under

_PYTHON = re.compile(r"(?:python|pypy)\d*(?:\.\d+)*t?")
_VERSIONED = re.compile(r"python(\d+\.\d+)t?")
_ENTRY = "vllm"
_WRAPPERS = frozenset(
    (
        "chrt",
        "dumb-init",
        "env",
        "ionice",
        "nice",
        "nohup",
        "numactl",
        "prlimit",
        "setpriv",
        "setsid",
        "stdbuf",
        "taskset",
        "time",
        "timeout",
        "tini",
    )
)
"""Programs that start the rest of their command here: not ``docker``, ``ssh`` or ``uv run``."""
_LEADING = 12
"""Words of theirs in front of Python that are looked through: ``env A=b``, ``numactl -N 0``."""
_OURS = ("vllm-watchdog", "watchdog")
_SIMULATOR = "watchdog.simulator"
_SIMULATE = "simulate-engine"
_HEAD = 4096
_EXEC = re.compile(r"""^'''exec' (?:"([^"]+)"|(\S+)) """, re.MULTILINE)
"""Second line of a script of pip's whose interpreter is too long a path for a first line."""
_LINKS = 16
_SYSTEM = "/usr"


def python_of(command: Sequence[str], environment: Mapping[str, str], root: str = "/") -> str:
    """The path of the Python that runs ``command``, links not followed; "" when unknown.

    Also "" for this program's own engine, which imports nothing beyond the standard library.
    """
    for position, word in enumerate(command[:_LEADING]):
        name = Path(word).name
        if name in _OURS:
            return ""
        if _PYTHON.fullmatch(name):
            ours = _module(command[position + 1 :]).partition(".")[0] in _OURS
            return "" if ours else _found(word, environment, root)
        if name == _ENTRY or (position == 0 and name not in _WRAPPERS):
            script = _found(word, environment, root)
            return _of_script(script, environment, root) if script else ""
    return ""


def simulates(command: Sequence[str]) -> bool:
    """Whether ``command`` is this program's own engine, which has no use for a GPU."""
    for position, word in enumerate(command[:_LEADING]):
        name, rest = Path(word).name, command[position + 1 :]
        if name in _OURS:
            return _SIMULATE in rest[:1]
        if _PYTHON.fullmatch(name):
            module = _module(rest)
            told = rest[rest.index("-m") + 2 :][:1] if module else ()
            return module == _SIMULATOR or (module in _OURS and _SIMULATE in told)
        if name == _ENTRY or (position == 0 and name not in _WRAPPERS):
            return False
    return False


def site_packages(python: str, environment: Mapping[str, str], root: str = "/") -> tuple[str, ...]:
    """Directories that ``python`` imports packages from, in its order, as far as they exist."""
    wanted = dict.fromkeys(_sites(python, environment, root))
    return tuple(folder for folder in wanted if is_folder(under(root, folder)))


def _module(arguments: Sequence[str]) -> str:
    """What ``-m`` names; "" without it."""
    for position, word in enumerate(arguments):
        if word == "-m":
            return arguments[position + 1] if position + 1 < len(arguments) else ""
        if not word.startswith("-"):
            return ""
    return ""


def _found(word: str, environment: Mapping[str, str], root: str) -> str:
    """The word as a path: itself when it has a slash, else the first match on PATH."""
    if "/" in word:
        return word if word.startswith("/") else _from_here(word)
    for folder in environment.get("PATH", os.defpath).split(":"):
        path = f"{folder}/{word}"
        if folder.startswith("/") and may_run(under(root, path)):
            return path
    return ""


def _from_here(word: str) -> str:
    """The path below the working directory, which may have been removed."""
    try:
        return str(Path.cwd() / word)
    except OSError:
        return ""


def _of_script(script: str, environment: Mapping[str, str], root: str) -> str:
    """The Python in the first line of the script; "" when another program runs it."""
    start = head(under(root, script), _HEAD).decode(errors="replace")
    if not start.startswith("#!"):
        return ""
    longer = _EXEC.search(start)
    words = [longer[1] or longer[2]] if longer else _words(start.partition("\n")[0][2:])
    for word in words[:_LEADING]:
        if _PYTHON.fullmatch(Path(word).name):
            return _found(word, environment, root)
    return ""


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError:
        return []


def _sites(python: str, environment: Mapping[str, str], root: str) -> Iterator[str]:
    for folder in environment.get("PYTHONPATH", "").split(":"):
        if folder.startswith("/"):
            yield folder
    chain = _chain(python, root)
    version = next((m[1] for p in reversed(chain) if (m := _VERSIONED.fullmatch(p.name))), "")
    prefixes = [str(path.parent.parent) for path in chain]
    for prefix in prefixes:
        venv = text(under(root, f"{prefix}/pyvenv.cfg"))
        if venv:
            yield from _under_prefix(prefix, version, root)
            if not re.search(r"(?im)^include-system-site-packages\s*=\s*true", venv):
                return
    home = environment.get("HOME", "")
    if home.startswith("/") and not environment.get("PYTHONNOUSERSITE"):
        yield from _versioned(f"{home}/.local/lib", version, "site-packages", root)
    for prefix in prefixes:
        yield from _under_prefix(prefix, version, root)


def _under_prefix(prefix: str, version: str, root: str) -> Iterator[str]:
    """Of CPython's layout, and of Debian's, which serves /usr from /usr/local first."""
    if prefix in {_SYSTEM, "/"}:
        yield from _versioned("/usr/local/lib", version, "dist-packages", root)
        yield "/usr/lib/python3/dist-packages"
        prefix = _SYSTEM
    for lib in ("lib", "lib64"):
        yield from _versioned(f"{prefix}/{lib}", version, "site-packages", root)


def _versioned(lib: str, version: str, packages: str, root: str) -> Iterator[str]:
    """The directory of that Python's packages, of every Python's when the version is not known."""
    if version:
        yield f"{lib}/python{version}/{packages}"
        return
    for found in entries(under(root, lib)):
        if found.name.startswith("python"):
            yield f"{lib}/{found.name}/{packages}"


def _chain(python: str, root: str) -> list[Path]:
    """The path and what it links to, link by link: an environment is known by its own path."""
    chain = [Path(python)]
    while len(chain) < _LINKS:
        target = link(under(root, str(chain[-1])))
        if target is None:
            break
        chain.append(Path(os.path.normpath(chain[-1].parent / target)))
    return chain
