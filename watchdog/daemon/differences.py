"""Two configurations in words: what is not the same, keyed as in the file.

Values are shown where they are short and cannot be secret. Commands, environments and addresses are
named by their key alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import Any

import msgspec

from watchdog.config import Config, ProbeConfig, RuleConfig
from watchdog.config.kinds import duration_limit, without_none
from watchdog.config.reading import join, shown
from watchdog.config.settings import NginxSettings
from watchdog.contracts import ProbeSpec
from watchdog.core.conditions import spelled
from watchdog.core.model import Mode, Severity

_SECRET = re.compile(
    r"env|command|pre_start|post_stop|reload|url|headers|.*(?:key|token|secret|password).*"
)
_LONGEST = 60
"""Characters of a text that is still shown."""
_UNSET = "unset"
_LASTING = ("listen", "log")
"""What only a new daemon can change, of ``[watchdog]``."""
_PLAIN = RuleConfig(
    name="plain",
    for_=0.0,
    clear_for=0.0,
    cooldown=0.0,
    severity=Severity.WARNING,
    mode=Mode.ACT,
    actions=(),
    inhibited_by=(),
)
"""What holds where nothing is given."""


def changes(
    old: Config, new: Config, specs: Mapping[str, ProbeSpec], defaults: Sequence[RuleConfig]
) -> tuple[str, ...]:
    """One line for each key that changed: ``rule.engine-stalled.for: 20s -> 30s``.

    ``specs`` and ``defaults`` are the probes and the rules that both begin with.
    """
    return (
        *_of_struct("watchdog", old.watchdog, new.watchdog),
        *_of_tables("engine", old.engine, new.engine),
        *_of_struct("policy", old.policy, new.policy),
        *_of_probes(old.probes, new.probes, specs),
        *_of_tables("actions", old.actions, new.actions),
        *_of_tables("rule", effective(old.rule, defaults), effective(new.rule, defaults)),
        *_of_tables("notify", old.notify, new.notify),
        *_of_tables("", _nginx(old), _nginx(new)),
        *_of_struct("evidence", old.evidence, new.evidence),
    )


def _nginx(config: Config) -> dict[str, NginxSettings]:
    return {} if config.nginx is None else {"nginx": config.nginx}


def effective(
    configured: Sequence[RuleConfig], defaults: Sequence[RuleConfig]
) -> dict[str, RuleConfig]:
    """All rules by name: the defaults with what is configured laid over them."""
    rules = {rule.name: _laid_over(_PLAIN, rule) for rule in defaults}
    for rule in configured:
        rules[rule.name] = _laid_over(rules.get(rule.name, _PLAIN), rule)
    return rules


def _laid_over(base: RuleConfig, rule: RuleConfig) -> RuleConfig:
    fields = ((field, getattr(rule, field)) for field in rule.__struct_fields__)
    return msgspec.structs.replace(base, **{k: v for k, v in fields if v is not None})


def lasting(running: Config, wanted: Config) -> tuple[Config, tuple[str, ...]]:
    """``wanted`` with what only a new daemon can change as it is, and the keys of that."""
    keys = tuple(key for key in _LASTING if _differ(running.watchdog, wanted.watchdog, key))
    kept = {key: getattr(running.watchdog, key) for key in _LASTING}
    watchdog = msgspec.structs.replace(wanted.watchdog, **kept)
    return msgspec.structs.replace(wanted, watchdog=watchdog), tuple(
        join("watchdog", key) for key in keys
    )


def _differ(one: object, other: object, field: str) -> bool:
    return bool(getattr(one, field) != getattr(other, field))


def _of_tables(path: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    for name in dict.fromkeys((*old, *new)):
        below = join(path, name)
        if name not in old:
            yield f"{below}: new"
        elif name not in new:
            yield f"{below}: gone"
        else:
            yield from _of_struct(below, old[name], new[name])


def _of_probes(
    old: Mapping[str, ProbeConfig], new: Mapping[str, ProbeConfig], specs: Mapping[str, ProbeSpec]
) -> Iterator[str]:
    """A probe's own settings stand beside ours in the file."""
    for name, one in new.items():
        before, path = old.get(name, one), join("probes", name)
        yield from _of_struct(path, _timed(before, specs[name]), _timed(one, specs[name]))
        yield from _of_struct(path, before.settings, one.settings)


def _timed(config: ProbeConfig, spec: ProbeSpec) -> ProbeConfig:
    """Ours alone, with the probe's own times where none are given."""
    return msgspec.structs.replace(
        config,
        period=config.period or spec.period,
        timeout=config.timeout or spec.timeout,
        settings=None,
    )


def _of_struct(path: str, old: Any, new: Any) -> Iterator[str]:  # noqa: ANN401 - any table of a file
    if old == new:
        return
    for field in msgspec.structs.fields(type(new)):
        before, after = getattr(old, field.name), getattr(new, field.name)
        if before == after:
            continue
        key = join(path, field.encode_name)
        if isinstance(after, msgspec.Struct) and isinstance(before, msgspec.Struct):
            yield from _of_struct(key, before, after)
        elif isinstance(after, dict) and isinstance(before, dict):
            yield from _of_table(key, before, after, secret=_is_secret(field.encode_name))
        else:
            timed = bool(duration_limit(without_none(field.type)))
            yield key + _values(field.encode_name, before, after, timed=timed)


def _of_table(
    path: str, old: Mapping[str, Any], new: Mapping[str, Any], *, secret: bool
) -> Iterator[str]:
    for name in dict.fromkeys((*old, *new)):
        before, after = old.get(name), new.get(name)
        below = join(path, str(name))
        if isinstance(before, msgspec.Struct) and isinstance(after, msgspec.Struct):
            yield from _of_struct(below, before, after)
        elif before != after:
            yield below if secret else below + _values(str(name), before, after, timed=False)


def _values(name: str, before: object, after: object, *, timed: bool) -> str:
    """`` : OLD -> NEW`` where both may be shown."""
    if _is_secret(name):
        return ""
    words = tuple(_word(value, timed=timed) for value in (before, after))
    if any(word is None for word in words):
        return ""
    return f": {words[0]} -> {words[1]}"


def _is_secret(name: str) -> bool:
    return bool(_SECRET.fullmatch(name.lower()))


def _word(value: object, *, timed: bool) -> str | None:
    """A value as a file would have it; None for what is long or a table."""
    match value:
        case None:
            return _UNSET
        case bool() | Enum():
            return shown(value.value if isinstance(value, Enum) else value).strip('"')
        case int() | float():
            return spelled(float(value)) if timed else shown(value)
        case str():
            return shown(value) if len(value) <= _LONGEST else None
        case tuple() if all(isinstance(one, int | str) for one in value):
            text = ", ".join(shown(one) for one in value)
            return f"[{text}]" if len(text) <= _LONGEST else None
        case _:
            return None
