"""Ten thousand configurations that nobody would write: accepted, or refused in good words."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.configurations import FILES, GOOD, KEYS, LEAVES, TABLE, accepted, document
from watchdog.config import ConfigError
from watchdog.rules import RuleError, default_rules

SECRET = "hunter2"  # noqa: S105 - nobody's
LONGEST = 1100
"""Characters of a line behind the file's name."""

TOKEN = re.compile(r'"""|\'\'\'|"[^"\n]*"|\'[^\'\n]*\'|[\w.+-]+|\s+|.', re.DOTALL)
PIECES = [token for text in GOOD for token in TOKEN.findall(text)]
ODD = ["[", "[[", "]", "{", "}", "=", '"', "'''", ".", "\0", "\x1b[31m", "\r", "\\", "é", "1e999"]


def times(number: int) -> settings:
    """That many examples; ten thousand in all of this file."""
    slow = [HealthCheck.too_slow]
    return settings(deadline=None, suppress_health_check=slow, max_examples=number)


@pytest.fixture(scope="module", name="file")
def fixture_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file to write to, over and over."""
    return tmp_path_factory.mktemp("fuzz") / "watchdog.toml"


def told(file: Path, data: bytes) -> tuple[str, ...]:
    """The lines in which the daemon refuses a file; none when it accepts it."""
    file.write_bytes(data)
    found = refusal(file)
    assert all(line.startswith(f"{file}: ") for line in found)
    lines = tuple(line.removeprefix(f"{file}: ") for line in found)
    for line in lines:
        assert re.match(r"\S.*?: \S", line), line
        assert line.isprintable(), line
        assert len(line) <= LONGEST, line
    return lines


def refusal(file: Path) -> tuple[str, ...]:
    """The lines of the error, at least one; none when there is no error."""
    try:
        config, _ = accepted(file)
    except (ConfigError, RuleError) as error:
        return error.lines or ("",)
    return () if config.sha256 else ("",)


@st.composite
def mutated(draw: st.DrawFn) -> str:
    """A good file with tokens swapped, cut out, doubled, or replaced by odd ones."""
    tokens = TOKEN.findall(draw(st.sampled_from([text for text in GOOD if text])))
    index = st.integers(0, len(tokens) - 1)
    for _ in range(draw(st.integers(1, 4))):
        one, other = draw(index), draw(index)
        match draw(st.sampled_from(["swap", "cut", "double", "other", "odd"])):
            case "swap":
                tokens[one], tokens[other] = tokens[other], tokens[one]
            case "cut":
                tokens[one] = ""
            case "double":
                tokens[one] *= 2
            case "other":
                tokens[one] = draw(st.sampled_from(PIECES))
            case _:
                tokens[one] += draw(st.sampled_from(ODD))
    return "".join(tokens)


@times(4500)
@given(data=st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_any_bytes(data: bytes, file: Path) -> None:
    """FACT: whatever is in the file, nothing but ConfigError or RuleError comes of it."""
    told(file, data)


@times(2000)
@given(text=mutated(), cut=st.integers(0, 400) | st.none())
def test_good_files_gone_wrong(text: str, cut: int | None, file: Path) -> None:
    """FACT: a good file with a slip, or of which only a part arrived, is told of in lines."""
    told(file, text.encode()[:cut])


@times(1000)
@given(tree=FILES | TABLE)
def test_any_tables(tree: dict[str, Any], file: Path) -> None:
    """FACT: right and wrong shapes in all places are told of in lines."""
    told(file, document(tree).encode())


WORDS = [
    token for rule in default_rules() for token in TOKEN.findall(rule.when or "") if token.strip()
]
CONDITIONS = st.lists(st.sampled_from(WORDS), max_size=8).map(" ".join) | st.builds(
    lambda rule, at, word: f"{rule.when[:at]}{word}{rule.when[at:]}",
    st.sampled_from(default_rules()),
    st.integers(0, 60),
    st.sampled_from([*WORDS, *ODD]),
)
TEXTS = st.text(max_size=20) | st.sampled_from([rule.name for rule in default_rules()])
RULES = st.fixed_dictionaries(
    {"name": st.sampled_from(["own", "own-2", "engine-dead", "gpu-hot"])},
    optional={
        "subject": st.sampled_from(["engine", "gpu", "host", "process"]),
        "when": CONDITIONS,
        "summary": TEXTS,
        "actions": st.lists(TEXTS | st.just("restart_engine"), max_size=2),
        "inhibited_by": st.lists(TEXTS | st.sampled_from(["own", "gpu-hot"]), max_size=2),
        "evidence": st.lists(TEXTS | CONDITIONS, max_size=2),
        "holds": st.sampled_from(["inhibited", "blocked", "paused"]),
        "runbook": TEXTS,
        "reason": TEXTS,
    },
)


@times(1500)
@given(rules=st.lists(RULES, min_size=1, max_size=3))
def test_any_rules(rules: list[dict[str, Any]], file: Path) -> None:
    """FACT: rules of right types with whatever in them compile, or are told of in lines."""
    told(file, document({"rule": rules}).encode())


NAMES = st.sampled_from(["VLLM_API_KEY", "command", "env", "pre_start", "main", "x"])
SHAPES = st.recursive(
    st.just(SECRET) | st.just(f"--api-key={SECRET}") | st.integers(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=2),
    max_leaves=4,
)
PLACES: list[Callable[[Any], dict[str, Any]]] = [
    lambda shape: {"engine": shape},
    lambda shape: {"engine": {"main": shape}},
    lambda shape: {"engine": {"main": {"command": shape}}},
    lambda shape: {"engine": {"main": {"command": ["vllm", "serve", "m", shape]}}},
    lambda shape: {"engine": {"main": {"env": shape}}},
    lambda shape: {"engine": {"main": {"env": {"VLLM_API_KEY": shape}}}},
    lambda shape: {"engine": {"main": {"pre_start": shape}}},
    lambda shape: {"engine": {"main": {"pre_start": [{"command": shape}]}}},
    lambda shape: {"notify": shape},
    lambda shape: {"notify": {"pager": shape}},
    lambda shape: {"notify": {"pager": {"url": shape}}},
]


@times(980)
@given(place=st.sampled_from(PLACES), shape=SHAPES)
def test_no_secret_is_repeated(
    place: Callable[[Any], dict[str, Any]], shape: object, file: Path
) -> None:
    """FACT: a key in a command, an environment or an address is in no line, however misplaced."""
    lines = told(file, document(place(shape)).encode())
    assert not [line for line in lines if SECRET in line]


@times(20)
@given(key=KEYS, value=LEAVES)
def test_a_thousand_mistakes_are_a_hundred_lines(key: str, value: object, file: Path) -> None:
    """FACT: in a file that is wrong all over, some mistakes are told, and how many there are."""
    tree = {"policy": {f"{key}{number}": value for number in range(1000)}}
    lines = told(file, document(tree).encode())
    assert len(lines) == 101
    assert lines[-1] == "more: 900 further mistakes are not shown"


@pytest.mark.parametrize("bracket", [b"[", b"{x="])
def test_brackets_without_end_are_one_line(bracket: bytes, file: Path) -> None:
    """FACT: what is nested deeper than the parser can go is refused, not a crash."""
    (line,) = told(file, b"a = " + bracket * 100_000)
    assert line == "cannot be read: expected fewer brackets within brackets"


def test_keys_that_take_the_parser_minutes_are_refused_at_once(file: Path) -> None:
    """FACT: a dotted key of a megabyte is one line, not minutes without an answer."""
    (line,) = told(file, b"a" + b".a" * 500_000 + b" = 1")
    assert line == "line 1: expected at most 500 dots in a key"
