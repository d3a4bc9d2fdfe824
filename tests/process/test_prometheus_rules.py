"""Alerts, recordings and the dashboard, with the real promtool and Prometheus, on a real daemon."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import tomllib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support import fake_nvml
from tests.support.alerting import DEPLOY, Server, prometheus
from tests.support.daemon import Daemon
from tests.support.reloads import READY, File, rule, watched
from tests.support.simulated import ROOT, until

RULES = DEPLOY / "prometheus" / "vllm-watchdog.rules.yml"
CASES = RULES.with_name("vllm-watchdog.tests.yml")
CONFIG = RULES.with_name("prometheus.yml")
BOARD = DEPLOY / "grafana" / "vllm-watchdog.json"
DEFAULTS = ROOT / "watchdog" / "rules" / "defaults"

_METRIC = re.compile(r"\b(?:vllm_watchdog|nvidia_gpu|process)_[a-z0-9_]+")
_SUFFIX = re.compile(r"_(?:bucket|sum|count)$")


def promtool(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run it."""
    argv = ["promtool", *map(str, words)]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


def alert_names() -> list[str]:
    """Of the rules file, in its order."""
    return re.findall(r"- alert: (\w+)", RULES.read_text())


def panels() -> list[dict[str, Any]]:
    """Of the dashboard, without the rows."""
    return [one for one in json.loads(BOARD.read_text())["panels"] if one["type"] != "row"]


def queries() -> list[str]:
    """Every expression of the dashboard, with its variables filled in."""
    board = json.loads(BOARD.read_text())
    found = [target["expr"] for panel in panels() for target in panel["targets"]]
    found += [one["expr"] for one in board["annotations"]["list"]]
    return [text.replace("$instance", ".*").replace("$engine", ".*") for text in found]


def expressions() -> list[str]:
    """Every expression of the rules file."""
    text = re.sub(r"^ *#.*$", "", RULES.read_text(), flags=re.MULTILINE)
    return re.findall(r"expr: (.*?)(?=\n +(?:labels|for|annotations|- record|- alert|- name)|\Z)",
                      text, re.DOTALL)  # fmt: skip


def families(daemon: Daemon) -> set[str]:
    """What the page has HELP for, as it names its series."""
    return set(re.findall(r"^# HELP (\S+)", daemon.get("/metrics")[1], re.MULTILINE))


def metrics_in(text: str) -> set[str]:
    """The families that an expression asks for. Recordings have a colon, and are none."""
    bare = re.sub(r"\w+:[\w:]+", "", text)
    return {_SUFFIX.sub("", name) for name in _METRIC.findall(bare)}


def by_severity() -> dict[str, str]:
    """The severity of every default rule."""
    files = (tomllib.loads(path.read_text()) for path in DEFAULTS.glob("*.toml"))
    return {one["name"]: one["severity"] for file in files for one in file["rule"]}


# --- promtool -------------------------------------------------------------------------------------


def test_promtool_accepts_rules_and_scrape_example() -> None:
    """FACT: both files are valid, and the example loads the rules."""
    for words in (("check", "rules", RULES), ("check", "config", CONFIG)):
        done = promtool(*words)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "FAILED" not in done.stdout
    assert RULES.name in CONFIG.read_text()


def test_every_alert_fires_and_keeps_silent_as_its_cases_say() -> None:
    """FACT: all cases hold; each alert has one in which it fires, and one beside it."""
    done = promtool("test", "rules", CASES)
    assert done.returncode == 0, done.stdout + done.stderr
    cases = re.split(r"\n  - interval:", CASES.read_text())
    fires: set[str] = set()
    silent: set[str] = set()
    for case in cases:
        for name, alerts in re.findall(r"alertname: (\w+)\n +exp_alerts:(.*)", case):
            (silent if alerts.strip() == "[]" else fires).add(name)
            if not alerts.strip() and 'instance="well"' in case:
                silent.add(name)
    assert fires == silent == set(alert_names())


def test_a_case_that_is_wrong_is_seen(tmp_path: Path) -> None:
    """FACT: the cases can fail: with a critical alert made a warning, promtool refuses them."""
    text = RULES.read_text().replace("severity: critical", "severity: warning", 1)
    (tmp_path / RULES.name).write_text(text)
    (tmp_path / CASES.name).write_text(CASES.read_text())
    assert promtool("test", "rules", tmp_path / CASES.name).returncode != 0


def test_alerts_say_how_loud_and_where_to_read_on() -> None:
    """FACT: each has a severity, a summary, a description, and a page that exists."""
    blocks = RULES.read_text().split("- alert: ")[1:]
    for block in blocks:
        assert re.search(r"severity: (critical|warning)\n", block), block
        assert "summary:" in block
        assert "description:" in block
        (page,) = re.findall(r'runbook: "?([^"\n]+)', block)
        if "{{" not in page:
            assert (ROOT / page).exists(), page
    own = (ROOT / "docs" / "alerting.md").read_text()
    assert [name for name in alert_names() if f"`{name}`" not in own] == []


def test_rules_that_alerts_name_are_default_rules() -> None:
    """FACT: what is critical there is critical here; what is only info is no standing finding."""
    severities = by_severity()
    named = dict(re.findall(r'vllm_watchdog_rule_firing\{rule(=~|!~)"([^"]+)"', RULES.read_text()))
    info = {name for name, severity in severities.items() if severity == "info"}
    assert set(named["!~"].split("|")) == info
    for pattern in re.findall(r'vllm_watchdog_rule_firing\{rule=~"([^"]+)"', RULES.read_text()):
        found = {name for name in severities if re.fullmatch(pattern, name)}
        for part in _alternatives(pattern):
            assert part in found, part
        assert {severities[name] for name in found} == {"critical"}


def _alternatives(pattern: str) -> Iterator[str]:
    for part in re.findall(r"[a-z-]+\([^)]*\)|[a-z-]+", pattern):
        head, _, rest = part.rstrip(")").partition("(")
        yield from (head + word for word in rest.split("|"))


# --- a daemon -------------------------------------------------------------------------------------


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    """One with two cards and an engine that stays dead when it dies."""
    folder = tmp_path / "nvml"
    folder.mkdir()
    fake = fake_nvml.build(folder)
    fake.cards = 2
    fake.write()
    file = File(tmp_path / "watchdog.toml")
    file.engine("main", 0, "--startup-time", "0")
    file.rest = rule("engine-dead", mode="observe")
    with pytest.MonkeyPatch.context() as environment:
        for name, value in fake.environment.items():
            environment.setenv(name, value)
        with watched(file) as started:
            until(lambda: started.metric("nvidia_gpu_compute_apps_memory_bytes") is not None, READY)
            until(lambda: started.metric("vllm_watchdog_canary_latency_seconds_count"), READY)
            yield started


def scraped(daemon: Daemon) -> str:
    """The example for Prometheus, looking often, with alerts that need no patience."""
    text = CONFIG.read_text().replace("127.0.0.1:9909", daemon.listen)
    text = text.replace("127.0.0.1:8000", f"127.0.0.1:{daemon.engine_port}")
    text = text.replace("interval: 15s", "interval: 1s").replace("timeout: 5s", "timeout: 1s")
    return re.sub(r"alerting:.*?\n\n", "", text, flags=re.DOTALL)


def values(server: Server, query: str) -> list[dict[str, Any]]:
    """The series that a query finds now; fails where Prometheus refuses it."""
    answer = server.get("/api/v1/query", query=query)
    assert answer is not None, query
    assert answer["status"] == "success", answer
    return list(answer["data"]["result"])


def firing(server: Server) -> dict[str, dict[str, str]]:
    """The labels of the alerts that fire, by their names."""
    alerts = server.get("/api/v1/alerts")["data"]["alerts"]
    return {one["labels"]["alertname"]: one["labels"] for one in alerts if one["state"] == "firing"}


def test_a_real_prometheus_sees_the_engine_die(daemon: Daemon, tmp_path: Path) -> None:
    """FACT: it loads the rules, scrapes the daemon, records, shows an alert, and asks all panels.

    Every panel that can have something to show on a box that is well has it.
    """
    folder = tmp_path / "prometheus"
    folder.mkdir()
    patient = RULES.read_text()
    (folder / RULES.name).write_text(re.sub(r"for: \d+m", "for: 1s", patient))
    with prometheus(folder, scraped(daemon)) as server:
        until(lambda: values(server, "instance_engine:vllm_serving == 1"), READY)
        until(lambda: values(server, "instance_gpu:nvidia_gpu_throttled:ratio_rate5m"), READY)
        until(lambda: values(server, 'up{job="vllm"} == 1'), READY)
        assert "VllmEngineNotServing" not in firing(server)
        for query in queries():
            assert _may_be_empty(query) or until(partial(values, server, query), READY), query
        os.kill(daemon.engine()["pid"], signal.SIGKILL)
        labels = until(lambda: firing(server).get("VllmEngineNotServing"), READY) or {}
        assert (labels["engine"], labels["severity"]) == ("main", "critical")
        assert labels["instance"] == daemon.listen
        daemon.process.kill()
        daemon.process.wait()
        until(lambda: "VllmWatchdogDown" in firing(server), READY)


def _may_be_empty(query: str) -> bool:
    """Whether it asks for what only trouble, a second engine, or other hardware brings."""
    bad = (
        "rule_firing", "== 0", "> 0", "xid", "detection", "recovery", "incidents_total",
        "notifications", "disk_percent", "tmpfs_percent", "conntrack", "pressure", "kv_usage",
        "oom", "abandoned", "actions_total", "histogram_quantile", "decisions",
    )  # fmt: skip
    return any(word in query for word in bad)


def test_every_metric_that_is_asked_for_exists(daemon: Daemon) -> None:
    """FACT: rules and dashboard name only what the page of a living daemon has, labels included."""
    known = families(daemon)
    for text in (*queries(), *expressions()):
        assert metrics_in(text) <= known, (text, metrics_in(text) - known)
    assert len(expressions()) == len(alert_names()) + RULES.read_text().count("- record:")
    page = daemon.get("/metrics")[1]
    for name, label in (("engine_verdict", "verdict"), ("engine_state", "state"), ("mode", "mode")):
        assert re.search(rf'^vllm_watchdog_{name}\{{[^}}]*\b{label}="', page, re.MULTILINE)


def test_the_dashboard_is_whole() -> None:
    """FACT: ids are unique, nothing overlaps, each panel asks its data source and says its unit."""
    board = json.loads(BOARD.read_text())
    numbers = [one["id"] for one in board["panels"]]
    assert len(set(numbers)) == len(numbers)
    taken: set[tuple[int, int]] = set()
    for one in board["panels"]:
        grid = one["gridPos"]
        spots = {
            (x, y)
            for x in range(grid["x"], grid["x"] + grid["w"])
            for y in range(grid["y"], grid["y"] + grid["h"])
        }
        assert not spots & taken, one["title"]
        assert max(x for x, _ in spots) < 24
        taken |= spots
    for one in panels():
        assert one["targets"]
        assert one["datasource"]["uid"] == "${datasource}"
        assert one["fieldConfig"]["defaults"]["unit"]
    words = " ".join(one["title"] for one in board["panels"]).lower()
    for topic in ("verdict", "canary", "gpu", "throttled", "host", "restarts left", "incidents"):
        assert topic in words
