"""The schema for editors: what it refuses is refused, what is accepted it accepts."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from tests.support.configurations import FILES, GOOD, accepted
from tests.support.configurations import document as written
from tests.support.simulated import ROOT
from watchdog import registry
from watchdog.config import ConfigError
from watchdog.config.durations import duration_text, parse_duration
from watchdog.config.reference import page
from watchdog.config.schema import document
from watchdog.rules import RuleError, default_rules

SCHEMA = document(registry.probes(), [rule.name for rule in default_rules()], registry.actions())
VALIDATOR = Draft202012Validator(SCHEMA)
ENGINE = '[engine.main]\ncommand = ["vllm", "serve", "m"]\n'


def loads(path: Path, text: str) -> bool:
    """Whether the daemon accepts the text."""
    path.write_text(text)
    try:
        accepted(path)
    except (ConfigError, RuleError):
        return False
    return True


@pytest.fixture(scope="module", name="file")
def fixture_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file to write to, over and over."""
    return tmp_path_factory.mktemp("schema") / "watchdog.toml"


def test_it_is_a_schema() -> None:
    """FACT: the document is valid JSON Schema 2020-12."""
    Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("watchdog.schema.json", json.dumps(SCHEMA, indent=2, ensure_ascii=False) + "\n"),
        ("configuration.md", page(SCHEMA)),
    ],
)
def test_the_documentation_is_current(name: str, text: str) -> None:
    """FACT: docs/ has what ``schema`` and ``schema --markdown`` print."""
    assert (ROOT / "docs" / name).read_text() == text


def tables(schema: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every key of the schema with its own schema."""
    for name, inner in schema.get("properties", {}).items():
        yield f"{path}{name}", inner
        yield from tables(inner, f"{path}{name}.")
    for inside in ("items", "additionalProperties"):
        if isinstance(schema.get(inside), dict):
            yield from tables(schema[inside], path)


def test_every_key_is_explained() -> None:
    """FACT: each key of a struct of ours comes with its reason; a map's keys are the author's."""
    maps = ("policy.retries.", "probes.")
    silent = [
        path
        for path, schema in tables(SCHEMA, "")
        if "." in path and not path.startswith(maps) and "description" not in schema
    ]
    assert silent == []


def test_names_of_rules_and_actions_are_offered() -> None:
    """FACT: an editor can complete the name of a default rule and of an action."""
    fields = SCHEMA["properties"]["rule"]["items"]["properties"]
    assert "engine-stalled" in fields["name"]["examples"]
    assert ["restart_engine"] in fields["actions"]["examples"]


@pytest.mark.parametrize("text", GOOD)
def test_what_is_good_is_good(text: str, file: Path) -> None:
    """FACT: the corpus of good files passes both."""
    assert loads(file, text)
    assert [error.message for error in VALIDATOR.iter_errors(tomllib.loads(text))] == []


@pytest.mark.parametrize(
    "text",
    [
        "[watchdgo]",
        "[watchdog]\nmode = 'off'",
        "[watchdog]\nlisten = 9909",
        ENGINE + "start_timeout = '30parsecs'",
        ENGINE + "start_timeout = '0s'",
        ENGINE + "start_timeout = 30",
        ENGINE + "gpus = [1.5]",
        ENGINE + "gpus = ['0']",
        ENGINE + "gpus = [-1]",
        ENGINE + "gpus = [0, 0]",
        ENGINE + "start_timeout = '8761h'",
        ENGINE + "start_timeout = '00009000h'",
        ENGINE + "start_timeout = '9000000m'",
        ENGINE + "start_timeout = '400ns'",
        ENGINE + "start_timeout = '0.4us'",
        ENGINE + "start_timeout = '0.0000004s'",
        ENGINE + "env = { A = 1 }",
        ENGINE + "pre_start = [{ timeout = '1s' }]",
        "[engine.Main]\ncommand = ['vllm', 'serve', 'm']",
        "[policy]\nbackoff = { jitter = 1.5 }",
        "[policy]\nboot_budget = { count = 0 }",
        "[policy.retries]\nboredom = 1",
        "[policy.retries]\ncuda_oom = -1",
        "[probes.gpuu]",
        "[probes.gpu]\nperiods = '1s'",
        "[probes.engine_http]\ncanary_timeout = 'soon'",
        "[probes.driver.floors]\nlatest = '620.10'",
        "[[rule]]\nfor = '1s'",
        "[[rule]]\nname = 'a b'",
        "[[rule]]\nname = 'engine-stalled'\nseverity = 'loud'",
        "[notify.x]",
        "[notify.webhook]\nurl = 'http://h'\nkind = 'pager'",
        "[notify.webhook]\nurl = 'http://h'\nheaders = { X = 'Bearer x' }",
        "rule = {}",
    ],
)
def test_what_is_bad_is_bad(text: str, file: Path) -> None:
    """FACT: a mistake in a single value is marked in the editor, and refused at start."""
    assert not VALIDATOR.is_valid(tomllib.loads(text))
    assert not loads(file, text)


LEAVES = [
    True, 0, 1, 5, 1001, 0.5, 2.0, "5s", "0s", "1h30m", "0.5ms", "1µs", "act", "observe", "exit",
    "critical", "gpu", "x", "http://h", ":9", "", [], {}, ["x"], [0], ["true"], {"x": "y"},
    {"cuda_oom": 2}, {"initial": "1ms"}, {"count": 2}, [{"command": ["x"]}],
]  # fmt: skip


def spots(tree: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    """Every key of every table."""
    for key, value in tree.items():
        yield tree, key
        if isinstance(value, dict):
            yield from spots(value)
        for item in value if isinstance(value, list) else ():
            if isinstance(item, dict):
                yield from spots(item)


@st.composite
def changed(draw: st.DrawFn) -> dict[str, Any]:
    """A good file with a few values replaced by others, or keys of the schema added."""
    tree = tomllib.loads(draw(st.sampled_from([text for text in GOOD if text])))
    for _ in range(draw(st.integers(1, 3))):
        table, key = draw(st.sampled_from(list(spots(tree))))
        pool = draw(st.sampled_from([alike(table[key])] * 4 + [LEAVES]))
        table[key] = deepcopy(draw(st.sampled_from(pool)))
    return tree


def alike(value: object) -> list[Any]:
    """Values that may well stand in the place of this one."""
    match value:
        case bool():
            return [True, False]
        case int() | float():
            return [0, 1, 2, 0.25, 1.0, "2s"]
        case str() if re.fullmatch(r"[0-9.]+[hms]+.*", value):
            return [
                "8760h",
                "525600m",
                "600ns",
                "0.6us",
                "300ns300ns",
                "1s",
                "90m",
                "1h30m",
                "1h0.5s",
                "2h",
                "0s",
                "1500ms",
                "1µs",
            ]
        case dict() | list():
            return [value, {}, [], [0, 1], ["GPU-1", 3], ["MIG-x/1"]]
        case _:
            return [value, "act", "critical", "x"]


@settings(deadline=None, max_examples=500)
@given(tree=changed() | FILES)
@example(tree={"probes": {"engine_http": {"canary_timeout": "2s", "canary_interval": 1}}})
def test_whatever_is_accepted_the_schema_accepts(tree: dict[str, Any], file: Path) -> None:
    """FACT (law): what the schema refuses, the daemon refuses too."""
    text = written(tree)
    assert VALIDATOR.is_valid(tomllib.loads(text)) or not loads(file, text)


@given(seconds=st.integers(0, 8760 * 3600 * 10**6).map(lambda each: each / 10**6))
def test_defaults_are_durations_that_are_read_back(seconds: float) -> None:
    """FACT: a duration written for the schema is the same number when it is read."""
    assert parse_duration(duration_text(seconds)) == pytest.approx(seconds, abs=1e-6)
