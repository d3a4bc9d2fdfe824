"""Which program a command line runs: an interpreter, a wrapper or a path in front of it aside."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import PurePath

from watchdog.command_line import SHELLS, Form, locate

_WITH_VALUE = frozenset({"-X", "-W"})
"""Options of the Python interpreter whose value is the next word."""
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_WRAPPERS: dict[str, tuple[frozenset[str], int]] = {
    "catatonit": (frozenset(), 0),
    "chrt": (frozenset({"-T", "-P", "-D"}), 1),
    "command": (frozenset(), 0),
    "doas": (frozenset({"-u", "-C"}), 0),
    "dumb-init": (frozenset({"-r", "--rewrite"}), 0),
    "env": (frozenset({"-u", "--unset", "-C", "--chdir"}), 0),
    "exec": (frozenset({"-a"}), 0),
    "gosu": (frozenset(), 1),
    "ionice": (frozenset({"-c", "-n", "--class", "--classdata"}), 0),
    "nice": (frozenset({"-n", "--adjustment"}), 0),
    "nohup": (frozenset(), 0),
    "numactl": (frozenset({"-N", "-m", "-C", "-i", "-p"}), 0),
    "prlimit": (frozenset(), 0),
    "setpriv": (frozenset({"--reuid", "--regid", "--groups", "--bounding-set", "--inh-caps"}), 0),
    "setsid": (frozenset(), 0),
    "stdbuf": (frozenset({"-i", "-o", "-e"}), 0),
    "su-exec": (frozenset(), 1),
    "sudo": (frozenset({"-u", "-g", "-h", "-C", "-D"}), 0),
    "taskset": (frozenset(), 1),
    "time": (frozenset({"-f", "-o"}), 0),
    "timeout": (frozenset({"-k", "-s", "--kill-after", "--signal"}), 1),
    "tini": (frozenset({"-p", "-e"}), 0),
}
"""Their options with a value behind a blank, and how many words of their own precede the program's.

None of them, and no shell, is ever the engine's program.
"""
_BUILT_IN = frozenset(
    {"cd", "exit", "export", "set", "source", ".", "trap", "ulimit", "umask", ":"}
)
_SEPARATORS = frozenset(";&|()\n")


def runs(argv: Sequence[str], command: Sequence[str]) -> bool:
    """Whether ``argv`` is the program that ``command`` starts, behind whatever wraps it there.

    A title in the place of the arguments is no program that a command names.
    """
    program, wanted = _program(argv), named(command)
    if not program or not wanted:
        return False
    return program == wanted or (_is_vllm(program) and _is_vllm(wanted))


def named(command: Sequence[str]) -> str:
    """The name of the program, or of the module, that ``command`` starts.

    "" when it names none: a shell's own file, a text for an interpreter, an unknown option.
    """
    form, start = locate(command)
    if form is Form.SERVE:
        return "vllm"
    if form is Form.API_SERVER:
        return command[start - 1]
    words = _unwrapped(list(command))
    if not words:
        return ""
    if PurePath(words[0]).name in SHELLS:
        return _of_script(words[1:])
    return _program(words)


def _is_vllm(program: str) -> bool:
    """``vllm``, or one of its modules that serve as well."""
    return program.partition(".")[0] == "vllm"


def _unwrapped(words: list[str]) -> list[str]:
    """``words`` from the program on; none of them when that cannot be told."""
    while words:
        wrapper = _WRAPPERS.get(PurePath(words[0]).name)
        if _ASSIGNMENT.match(words[0]):
            words = words[1:]
        elif wrapper is None:
            break
        else:
            words = _behind_options(words[1:], wrapper[0])[wrapper[1] :]
    return words


def _behind_options(words: list[str], valued: frozenset[str]) -> list[str]:
    while words and words[0].startswith("-"):
        if words[0] == "--":
            return words[1:]
        words = words[2 if words[0] in valued else 1 :]
    return words


def _of_script(words: list[str]) -> str:
    """What ``-c SCRIPT`` of a shell starts: what it ends with, or vLLM wherever that stands."""
    for index, word in enumerate(words):
        if not word.startswith("-"):
            return ""  # a file, which is not read
        if word.endswith("c") and not word.startswith("--"):
            names = [named(one) for one in _simple(next(iter(words[index + 1 :]), ""))]
            return next(filter(_is_vllm, names), names[-1] if names else "")
    return ""


def _simple(script: str) -> Iterator[list[str]]:
    """The simple commands of a script that start a program; none of a script that is not read."""
    lexer = shlex.shlex(script, posix=True, punctuation_chars=";&|()\n")
    lexer.whitespace, lexer.whitespace_split = " \t\r", True
    try:
        tokens = [*lexer, ";"]
    except ValueError:
        return
    words: list[str] = []
    for token in tokens:
        if token and set(token) <= _SEPARATORS:
            bare = _unwrapped(words)
            if bare and bare[0] not in _BUILT_IN and not {"$", "`"} & set(bare[0]):
                yield words
            words = []
        else:
            words.append(token)


def _program(argv: Sequence[str]) -> str:
    """``vllm`` of ``python3 /opt/bin/vllm serve``, the module of ``python3 -m MODULE``."""
    words = iter(argv)
    first = PurePath(next(words, "")).name
    if first in SHELLS or first in _WRAPPERS:
        return ""
    if not first.startswith("python"):
        return first
    for word in words:
        if word == "-m":
            return next(words, "")
        if word in _WITH_VALUE:
            next(words, "")
        elif not word.startswith("-"):
            return PurePath(word).name
        elif word.endswith("c") and not word.startswith("--"):
            return ""  # a text is no name
    return ""
