"""The default rules, as a user would write them. Each has a page in ``docs/runbooks``."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources

from watchdog.config.reading import Reader
from watchdog.config.settings import RuleConfig
from watchdog.rules.errors import RuleError


@cache
def default_rules() -> tuple[RuleConfig, ...]:
    """The rules that are shipped, read once. Raises RuleError when a file of ours is broken."""
    files = sorted(one.name for one in resources.files(__name__).iterdir())
    return tuple(rule for name in files if name.endswith(".toml") for rule in _rules(name))


def _rules(file: str) -> tuple[RuleConfig, ...]:
    text = resources.files(__name__).joinpath(file).read_text("utf-8")
    reader = Reader()
    rules = reader.structs(RuleConfig, tomllib.loads(text)["rule"], "rule")
    if reader.errors or not isinstance(rules, tuple):
        raise RuleError(tuple(f"{file}: {error}" for error in reader.errors))
    return rules
