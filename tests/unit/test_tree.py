"""The tree keeps its own rules: sizes, docstrings, real tests, no ties to a machine."""

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("watchdog", "probes", "actions", "tests", "tools")
MAX_FILE = 400
MAX_FUNCTION = 50
SHORT_FUNCTION = 10

# Written so that this file does not contain what it looks for.
PATCHING = re.compile(r"mock\.patch|monkeypatch\.setattr|from unittest[.]mock")
# vllm is the user of the image that deploy/container makes.
MACHINE_PATHS = re.compile(r"(?<![\w.])/(?:work|root|home/(?!vllm/)\w+)/|/tmp/(?:brief|bash_jobs)")
REGISTRIES = re.compile(
    r"--(?:extra-)?index-url|--find-links|--trusted-host|"
    r"\b(?:pypi|pythonhosted|docker|ghcr|quay|nvcr|gcr)\.(?:org|io)\b"
)

Function = ast.FunctionDef | ast.AsyncFunctionDef


def tracked() -> list[Path]:
    """Return the files of the tree: those in git and those that git would add."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    paths = (ROOT / name for name in listing.split("\0") if name)
    return [path for path in paths if path.is_file()]


def python_files(*folders: str) -> list[Path]:
    """Return the Python files below `folders` (all sources by default)."""
    roots = [ROOT / folder for folder in folders or SOURCES]
    return [
        path
        for path in tracked()
        if path.suffix == ".py" and any(path.is_relative_to(root) for root in roots)
    ]


def functions(paths: list[Path]) -> Iterator[tuple[str, Function]]:
    """Yield every function of `paths` with its place as `file:line name`."""
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, Function):
                yield f"{path.relative_to(ROOT)}:{node.lineno} {node.name}", node


def lines(function: Function) -> int:
    """Count the lines of `function` from `def` to its end, docstring not counted."""
    first = function.body[0]
    docstring = ast.get_docstring(function, clean=False) is not None
    doc_lines = (first.end_lineno or 0) - first.lineno + 1 if docstring else 0
    return (function.end_lineno or 0) - function.lineno + 1 - doc_lines


def matches(pattern: re.Pattern[str], paths: list[Path]) -> list[str]:
    """Return `file:line text` of every line in `paths` that `pattern` finds."""
    return [
        f"{path.relative_to(ROOT)}:{number} {line.strip()}"
        for path in paths
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if pattern.search(line)
    ]


def test_no_file_is_longer_than_400_lines() -> None:
    """Every Python file fits in 400 lines."""
    sizes = {path: len(path.read_text().splitlines()) for path in python_files()}
    assert sizes, "no Python files were found"
    assert not {str(path): size for path, size in sizes.items() if size > MAX_FILE}


def test_no_function_is_longer_than_50_lines() -> None:
    """Every function fits in 50 lines, its docstring not counted."""
    sizes = [(place, lines(node)) for place, node in functions(python_files())]
    assert not [(place, size) for place, size in sizes if size > MAX_FUNCTION]


def test_at_least_half_of_the_functions_are_short() -> None:
    """At least half of the functions of the product have at most 10 lines."""
    product = python_files("watchdog", "probes", "actions")
    sizes = [lines(node) for _, node in functions(product)]
    short = sum(size <= SHORT_FUNCTION for size in sizes)
    assert short >= len(sizes) / 2, f"{short} of {len(sizes)} functions are short"


def test_every_test_states_its_fact() -> None:
    """Every test function has a docstring."""
    tests = [
        (place, node)
        for place, node in functions(python_files("tests"))
        if node.name.startswith("test_")
    ]
    assert not [place for place, node in tests if not ast.get_docstring(node)]


def test_tests_use_the_real_thing() -> None:
    """No test replaces a part of the product while it runs."""
    others = [path for path in python_files("tests") if path != Path(__file__).resolve()]
    assert not matches(PATCHING, others)


def test_nothing_ties_the_tree_to_a_machine_or_a_registry() -> None:
    """No file names a home directory of whoever wrote it, or the host packages came from."""
    others = [path for path in tracked() if path != Path(__file__).resolve()]
    assert not matches(MACHINE_PATHS, others)
    assert not matches(REGISTRIES, others)


def test_the_searches_find_what_they_look_for() -> None:
    """The patterns above are not vacuous: each finds a line of the kind it forbids."""
    assert PATCHING.search("with mock" + ".patch('a.b'):")
    assert MACHINE_PATHS.search("log = '/root/" + "x.log'")
    assert REGISTRIES.search("from https://pypi" + ".org/simple")
