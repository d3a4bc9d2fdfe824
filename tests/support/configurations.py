"""Configurations for tests: good ones as a corpus, all others as strategies; how to write them."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import strategies as st

from watchdog import registry
from watchdog.config import Config, RuleConfig, load
from watchdog.core.rules import Rule
from watchdog.rules import build_rules

GOOD = (
    """\
# the documented example
[watchdog]
listen = "127.0.0.1:9909"
mode = "act"
log = "-"
[engine.main]
command = ["vllm", "serve", "Qwen/Qwen3-0.6B", "--port", "8000"]
env = { HF_HUB_OFFLINE = "1" }
gpus = [0, "GPU-6bb1ad2f-5a19-4c1f-8b9c-2a1d3f5a7b9c"]
start_timeout = "30m"
start_deadline = "2h"
stop = { drain_timeout = "30s", term_timeout = "20s", kill_timeout = "500ms" }
log_file = "engine-main.log"
standby = false
pre_start = [{ command = ["true"], timeout = "5s" }]
model_change = "warn"
cwd = "/"
""",
    """\
[policy]
on_give_up = "exit"
[policy.backoff]
initial = "1s"
max = "5m"
jitter = 0.1
reset_after_ready = "10m"
[policy.restart_budget]
count = 5
window = "1h30m"
[policy.boot_budget]
count = 3
[policy.retries]
cuda_oom = 1
xid = 0
""",
    """\
[probes.gpu]
enabled = true
period = "1.5s"
timeout = "5s"
[probes.engine_http]
canary_timeout = "2s"
canary_interval = 3
[probes.xid]
classes = { "43" = "ignored" }
[probes.driver.floors]
"13.5" = "620.10"
[notify.alertmanager]
url = "http://127.0.0.1:9093"
timeout = "5s"
[notify.pager]
kind = "webhook"
url = "https://h:8443/in?a=b"
min_severity = "critical"
headers = { Authorization = "PAGER" }
""",
    """\
[[rule]]
name = "engine-stalled"
for = "20s"
cooldown = "0s"
severity = "critical"
[[rule]]
name = "cards-work-hard"
subject = "gpu"
when = 'gpu.temperature_celsius > 99.0 && avg_over(gpu.power_watts, "5m") > 1e3'
summary = \"\"\"Hot
and hungry\"\"\"
for = "1m"
clear_for = "1m"
mode = "observe"
evidence = ["gpu.power_watts"]
inhibited_by = []
""",
    "",
)
"""Texts that are accepted."""

_KEYS = """
watchdog listen mode log engine main command env gpus start_timeout start_deadline stop
drain_timeout term_timeout kill_timeout log_file standby pre_start timeout model_change cwd
policy backoff initial max jitter reset_after_ready restart_budget boot_budget count window
on_give_up retries cuda_oom probes gpu xid driver floors classes enabled period canary_timeout
rule name subject when for clear_for cooldown severity actions inhibited_by holds fault mode
summary reason runbook evidence notify url headers min_severity alertmanager webhook
"""
_VALUES = """
5s 1h30m 0s 99999h act hold off vllm serve m critical gpu engine 127.0.0.1:1 http://h
restart_engine engine-stalled true gpu.mig engine.wanted 30parsecs
"""
KEYS = st.sampled_from(_KEYS.split()) | st.text(max_size=4)
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=6)
    | st.sampled_from(_VALUES.split())
)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner, max_size=2),
    max_leaves=3,
)
TABLE = st.dictionaries(KEYS, TREES, max_size=3)
_NAMED = st.dictionaries(st.sampled_from(["main", "gpu"]) | st.text(max_size=3), TABLE, max_size=2)
FILES = st.fixed_dictionaries(
    {},
    optional={
        "watchdog": TABLE, "engine": _NAMED, "policy": TABLE, "probes": _NAMED,
        "rule": st.lists(TABLE, max_size=2), "notify": _NAMED,
    },
)  # fmt: skip
"""Tables in their places, with whatever in them; None stands for a date."""


def toml(value: Any) -> str:  # noqa: ANN401
    """Write any tree as an inline TOML value; None becomes a date."""
    match value:
        case None:
            return "1979-05-27T07:32:00Z"
        case bool() | str():
            return msgspec.json.encode(value).decode().replace("\x7f", "\\u007f")
        case list():
            return f"[{', '.join(map(toml, value))}]"
        case dict():
            inside = ", ".join(f"{toml(key)} = {toml(item)}" for key, item in value.items())
            return f"{{ {inside} }}"
        case _:
            return str(value)


def document(tree: dict[str, Any]) -> str:
    """A tree as a file, one line a table."""
    return "".join(f"{toml(key)} = {toml(value)}\n" for key, value in tree.items())


def accepted(path: Path) -> tuple[Config, tuple[Rule, ...]]:
    """What the daemon makes of a file. Raises ConfigError, RuleError."""
    config = load(path, registry.plug_ins())
    return config, _built(config.rule, config.file)


@lru_cache
def _built(configured: tuple[RuleConfig, ...], file: str) -> tuple[Rule, ...]:
    """As pure as it is slow, and most files have no rules of their own."""
    return build_rules(configured, registry.probes(), registry.actions(), file)
