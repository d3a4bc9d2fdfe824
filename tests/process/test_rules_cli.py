"""``rules``, ``probes``, ``schema`` and ``check``: what is in effect, and what is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.simulated import ROOT, free_port

ENGINE = '[engine.main]\ncommand = ["vllm", "serve", "m"]\n'
STALLED = '[[rule]]\nname = "engine-stalled"\n'
HOT = '[[rule]]\nname = "gpu-hot"\n'
OWN = """\
[[rule]]
name = "cards-work-hard"
subject = "gpu"
when = 'avg_over(gpu.power_watts, "5m") > 650.0'
for = "1m"
summary = "the card draws a lot"
"""


def cli(*words: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run ``vllm-watchdog WORDS`` to its end."""
    return subprocess.run(
        [sys.executable, "-m", "watchdog", *words],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1"},
    )


def with_file(directory: Path, text: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run it with ``text`` as its configuration."""
    (directory / "watchdog.toml").write_text(text)
    return cli(*words, cwd=directory)


def test_the_rules_in_effect_are_a_table(tmp_path: Path) -> None:
    """FACT: every rule is one line, default ones of 80 columns, and says where it is from."""
    assert max(map(len, cli("rules", cwd=tmp_path).stdout.splitlines())) <= 80
    done = with_file(tmp_path, STALLED + 'for = "20s"\n' + OWN, "rules")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["NAME", "ABOUT", "SEVERITY", "MODE", "FOR", "FROM", "ACTIONS"]
    rows = {line.split()[0]: line.split()[1:] for line in lines[1:]}
    assert rows["engine-dead"] == ["engine", "critical", "act", "0s", "default", "restart_engine"]
    assert rows["engine-stalled"][3:5] == ["20s", "overridden"]
    assert rows["cards-work-hard"] == ["gpu", "warning", "act", "1m", "configured", "-"]


def test_one_rule_is_told_whole(tmp_path: Path) -> None:
    """FACT: with a name there is everything of the rule, and what a changed key was before."""
    text = STALLED + 'for = "20s"\nmode = "observe"\n'
    done = with_file(tmp_path, text, "rules", "engine-stalled")
    assert (done.returncode, done.stderr) == (0, "")
    head, *lines = done.stdout.splitlines()
    assert head == "engine-stalled (overridden)"
    assert max(map(len, lines)) <= 80
    told = {words[0]: words[1:] for line in lines if (words := line.split()) and line[2] != " "}
    assert told["for"] == ["20s", "(default:", "0s)"]
    assert told["mode"] == ["observe", "(default:", "act)"]
    assert told["when"][:3] == ["engine.health", "==", '"stalled"']
    assert told["runbook"] == ["docs/runbooks/engine-stalled.md"]
    assert set(told) == {
        "subject", "severity", "mode", "when", "for", "clear_for", "cooldown", "actions",
        "inhibited_by", "holds", "fault", "evidence", "runbook", "summary", "reason",
    }  # fmt: skip


def test_rules_for_scripts(tmp_path: Path) -> None:
    """FACT: --json has all rules, durations in seconds, and which keys a file overrides."""
    done = with_file(tmp_path, STALLED + 'for = "20s"\n' + OWN, "rules", "--json")
    rules = {rule["name"]: rule for rule in json.loads(done.stdout)}
    stalled, own = rules["engine-stalled"], rules["cards-work-hard"]
    assert (stalled["from"], stalled["overridden"], stalled["for_s"]) == ("overridden", ["for"], 20)
    assert (own["from"], own["for_s"]) == ("configured", 60)
    assert own["when"] == 'avg_over(gpu.power_watts, "5m") > 650.0'
    one = with_file(tmp_path, OWN, "rules", "cards-work-hard", "--json")
    assert json.loads(one.stdout) == own


def test_every_default_rule_has_summary_reason_and_page() -> None:
    """FACT: no default rule is shipped without its words, and its page is there."""
    rules = json.loads(cli("rules", "--json").stdout)
    assert len(rules) > 30
    for rule in rules:
        assert rule["summary"]
        assert rule["reason"]
        assert (ROOT / rule["runbook"]).is_file()


def test_the_probes_in_effect(tmp_path: Path) -> None:
    """FACT: a probe that is off or slower says so, and the watchdog's own names stand below."""
    text = '[probes.xid]\nenabled = false\n[probes.gpu]\nperiod = "1500ms"\n'
    done = with_file(tmp_path, text, "probes")
    assert (done.returncode, done.stderr) == (0, "")
    rows = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines() if line}
    assert rows["xid"][:2] == ["gpu", "no"]
    assert rows["gpu"][:4] == ["gpu", "yes", "1s500ms", "5s"]
    assert rows["watchdog"][0] == "host"


def test_one_probe_is_told_whole(tmp_path: Path) -> None:
    """FACT: settings with their defaults, and each sample as rules and dashboards name it."""
    text = '[probes.engine_http]\ncanary_timeout = "2s"\n'
    told = with_file(tmp_path, text, "probes", "engine_http").stdout
    assert "canary_timeout   2.0 (default: 3.0)\n" in told
    gpu = with_file(tmp_path, text, "probes", "gpu").stdout
    assert max(map(len, gpu.splitlines())) <= 80
    assert "  gpu.power_watts  float  watts\n    Power draw.\n    metric nvidia_gpu_power" in gpu
    assert "    by reason: " in gpu
    assert "  gpu.pcie_replays  int  errors  counter\n" in gpu
    assert "    metric nvidia_gpu_pcie_replays_total\n" in gpu


def test_samples_for_scripts() -> None:
    """FACT: --json names every sample with type, unit, labels of its own and closed values."""
    probes = {probe["name"]: probe for probe in json.loads(cli("probes", "--json").stdout)}
    samples = {sample["name"]: sample for sample in probes["gpu"]["samples"]}
    assert samples["gpu.throttled"]["labels"] == ["reason"]
    assert "hw_thermal" in samples["gpu.throttled"]["label_values"]
    assert samples["gpu.temperature_celsius"]["unit"] == "celsius"
    assert samples["gpu.state"]["metric"] is None
    assert [sample["name"] for sample in probes["watchdog"]["samples"]] == [
        "watchdog.failing_probes"
    ]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("rules", "gpu-hott"), "no rule gpu-hott (did you mean gpu-hot?)"),
        (("rules", "\x1b"), "no rule \\x1b; vllm-watchdog rules lists all"),
        (("probes", "gpus"), "no probe gpus (did you mean gpu?)"),
        (("probes", "nothing"), "no probe nothing; vllm-watchdog probes lists all"),
    ],
)
def test_an_unknown_name_is_one_line(words: tuple[str, ...], line: str) -> None:
    """FACT: a name that nothing has is exit 2, with the one that is close."""
    done = cli(*words)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", line + "\n")


def test_the_schema_is_printed() -> None:
    """FACT: ``schema`` prints what is kept in docs/, ``--markdown`` the page for people."""
    assert cli("schema").stdout == (ROOT / "docs" / "watchdog.schema.json").read_text()
    page = (ROOT / "docs" / "configuration.md").read_text()
    assert cli("schema", "--markdown").stdout == page


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "[policy]\nrestart_budgets = { count = 5 }",
            (
                "policy.restart_budgets: unknown key, expected one of backoff, restart_budget, "
                "boot_budget, retries, on_give_up (did you mean restart_budget?)"
            ),
        ),
        (
            ENGINE + 'start_timeout = "30parsecs"',
            'engine.main.start_timeout: expected a duration like "30s", got "30parsecs"',
        ),
        (
            ENGINE + 'start_timeout = "99999h"',
            'engine.main.start_timeout: expected a duration of at most "8760h", got "99999h"',
        ),
        (HOT + "for = 30", 'rule.gpu-hot.for: expected a duration like "30s", got 30'),
        (
            HOT + 'when = "gpu.temperature_celcius > 90.0"',
            (
                "rule.gpu-hot.when: column 1: unknown sample gpu.temperature_celcius, "
                "did you mean gpu.temperature_celsius?"
            ),
        ),
        (
            HOT + 'when = "gpu.mig || gpu.throttled.hot"',
            (
                "rule.gpu-hot.when: column 12: unknown reason hot of gpu.throttled, "
                "expected one of idle, applications_clocks, sw_power_cap, hw_slowdown, sync_boost, "
                "sw_thermal, hw_thermal, hw_power_brake, display_clock, board_limit, "
                "reliability, other"
            ),
        ),
        (
            HOT + 'when = "gpu.temperature_celsius + 1.0"',
            "rule.gpu-hot.when: column 1: expected a condition (true or false), got a number",
        ),
        (
            STALLED + 'actions = ["reboot_machine"]',
            (
                'rule.engine-stalled.actions: unknown action "reboot_machine", '
                "expected one of raise_conntrack, restart_engine, run_command, start_engine, "
                "stop_engine, sweep_leftovers"
            ),
        ),
        (
            STALLED + 'holds = "blocked"',
            (
                "rule.engine-stalled.holds: a rule with actions that holds restarts holds itself: "
                "expected one of both"
            ),
        ),
        (
            '[[rule]]\nname = "engine-driver-too-old"\nactions = ["stop_engine"]',
            (
                "rule.engine-driver-too-old.actions: a rule with actions that holds restarts holds "
                "itself: expected one of both"
            ),
        ),
        (
            '[policy]\nrestart_budget = { count = 5, window = "10s" }',
            (
                "policy.restart_budget: expected a window above the 15s that the first 5 backoffs "
                "take, got 10s"
            ),
        ),
        (
            HOT + 'inhibited_by = ["gpu-lost"]\n'
            '[[rule]]\nname = "gpu-lost"\ninhibited_by = ["gpu-hot"]',
            "rule.gpu-hot.inhibited_by: a cycle of inhibitions: gpu-hot, gpu-lost, gpu-hot",
        ),
        pytest.param(
            "#" * 10_000_000, "cannot be read: expected at most 1048576 bytes", id="ten-megabytes"
        ),
    ],
)
def test_bad_input_is_one_line_with_its_place(text: str, line: str, tmp_path: Path) -> None:
    """FACT: each mistake is refused with file, key or column, and what was expected; exit 2."""
    file = tmp_path / "watchdog.toml"
    file.write_text(text)
    done = cli("check", "--config", str(file))
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"{file}: {line}\n")


def test_all_mistakes_of_rules_are_told_at_once(tmp_path: Path) -> None:
    """FACT: three broken rules are three lines."""
    rules = "".join(
        f'[[rule]]\nname = "{name}"\nwhen = "1.0"\n' for name in ("gpu-hot", "gpu-lost")
    )
    done = with_file(tmp_path, rules + STALLED + 'holds = "paused"\n', "check")
    keys = [line.split(": ")[1] for line in done.stderr.splitlines()]
    assert sorted(keys) == ["rule.engine-stalled.holds", "rule.gpu-hot.when", "rule.gpu-lost.when"]


ODD = """\
[probes.xid]
enabled = false
[[rule]]
name = "gpu-lost"
mode = "off"
[[rule]]
name = "gpu-hot"
inhibited_by = ["gpu-lost"]
[[rule]]
name = "gpu-power-brake"
[[rule]]
name = "engine-dead"
inhibited_by = ["engine-stalled"]
[[rule]]
name = "engine-stalled"
mode = "observe"
actions = ["restart_engine"]
[[rule]]
name = "own"
subject = "gpu"
when = 'max_over(gpu.power_watts, "1s") > 1.0'
summary = "too narrow"
[notify.webhook]
url = "http://127.0.0.1:9"
headers = { Authorization = "TEST_NOT_SET" }
"""


def test_what_is_odd_is_a_warning(tmp_path: Path) -> None:
    """FACT: what is accepted and hardly meant is told on stderr, and changes no exit code."""
    engine = (sys.executable, "-m", "x", "--port", str(free_port()))
    done = with_file(tmp_path, ODD, "check", "--", *engine)
    assert (done.returncode, done.stdout) == (0, "no problems found\n")
    head = "warning: watchdog.toml: "
    lines = done.stderr.splitlines()
    assert all(line.startswith(head) for line in lines)
    (blind,) = (line for line in lines if "probes.xid" in line)
    assert blind.startswith(f"{head}probes.xid.enabled: false, so nothing is known for gpu-xid-")
    assert [line.removeprefix(head) for line in lines if line != blind] == [
        "notify.webhook.headers.Authorization: the variable TEST_NOT_SET is not set here",
        "rule.gpu-power-brake: changes nothing",
        "rule.engine-stalled.mode: observe, so it no longer holds back engine-dead",
        "rule.gpu-lost.mode: off, so it no longer holds back gpu-hot",
        "rule.engine-stalled.actions: never taken, the rule's mode is observe",
        "rule.own.when: max_over(gpu.power_watts, 1s) is hardly ever known, gpu looks every 1s",
    ]
    told = with_file(tmp_path, ODD, "check", "--json", "--", *engine)
    assert len(json.loads(told.stdout)["warnings"]) == len(lines)


def test_a_file_without_oddities_warns_of_nothing(tmp_path: Path) -> None:
    """FACT: overriding and adding rules as meant is silent."""
    engine = (sys.executable, "-m", "x", "--port", str(free_port()))
    done = with_file(tmp_path, STALLED + 'for = "20s"\n' + OWN, "check", "--", *engine)
    assert (done.returncode, done.stderr) == (0, "")
