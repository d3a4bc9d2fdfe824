"""``doctor`` as a person or a script runs it, on a machine whose cards a fake library tells."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support import fake_nvml
from tests.support.daemon import running, simulated_command
from tests.support.fake_nvml import LIBRARY, LOST, FakeNvml
from tests.support.rules import DEFAULT_RULES
from tests.support.simulated import ROOT, free_port, until
from watchdog import config as configuration
from watchdog import procfs
from watchdog.contracts import Box, Owner, Probe, ProbeError, ProbeSpec, SampleSpec
from watchdog.core.engine import firing
from watchdog.core.model import Sampled, Seconds, SubjectKind, Unread, engine_subject
from watchdog.daemon.once import OneBox, look

GIB = 1 << 30
READY = 120.0
NVML_PROBES = ("driver", "gpu", "gpu_processes", "xid")
ENGINE = ("--", "vllm", "serve", "simulated/tiny")
HOST_PROBES = ("clock", "conntrack", "cpu", "disk", "files", "memory", "oom", "sockets", "tmpfs")
UNSEEN = "".join(f"[probes.{name}]\nenabled = false\n" for name in HOST_PROBES)
"""What ails the machine that the tests run on is its own affair."""


@pytest.fixture
def nvml(tmp_path: Path) -> FakeNvml:
    """Two idle cards."""
    return fake_nvml.idle(tmp_path / "nvml", 2)


def doctor(
    folder: Path, environment: Mapping[str, str], *words: str, more: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run ``vllm-watchdog doctor WORDS`` to its end, with a configuration that sees GPUs alone."""
    (folder / "watchdog.toml").write_text(UNSEEN + more)
    own = {key: value for key, value in os.environ.items() if not key.startswith("VLLM_WATCHDOG")}
    own |= {"PYTHONPATH": str(ROOT), "VLLM_WATCHDOG_STATE_DIR": str(folder / "state")}
    return subprocess.run(
        [sys.executable, "-m", "watchdog", "doctor", *words],
        cwd=folder,
        env={**own, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def told(folder: Path, nvml: FakeNvml, *words: str) -> dict[str, Any]:
    """What it prints as JSON; its exit code is what it says."""
    done = doctor(folder, nvml.environment, "--json", *words)
    assert done.stderr == ""
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["exit_code"] == done.returncode
    return found


def rules(found: Mapping[str, Any]) -> set[str]:
    """The findings that are more than information."""
    return {one["rule"] for one in found["findings"] if one["severity"] != "info"}


def test_healthy_cards_are_exit_0_with_a_line_each(tmp_path: Path, nvml: FakeNvml) -> None:
    """FACT: without trouble it is 0, and cards and driver are told."""
    done = doctor(tmp_path, nvml.environment)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    for card in range(2):
        (line,) = [line for line in lines if line.startswith(f"GPU {card} ")]
        for part in ("NVIDIA H200", fake_nvml.uuid(card), "0 %", "/140.4 GiB", "°C", " W"):
            assert part in line
    (driver,) = [line for line in lines if line.startswith("driver ")]
    assert "NVML ok" in driver
    assert "could not be read" not in done.stdout


def test_a_lost_card_is_exit_2_with_evidence_and_runbook(tmp_path: Path, nvml: FakeNvml) -> None:
    """FACT (G7): the lost card is critical, and the other one is still told."""
    nvml.set({"0.lost": LOST})
    done = doctor(tmp_path, nvml.environment)
    assert done.returncode == 2
    lines = done.stdout.splitlines()
    assert lines[0].startswith("CRITICAL  gpu-lost on GPU 0")
    assert "  gpu.state = lost" in lines
    (page,) = [word for word in done.stdout.split() if word.endswith("/gpu-lost.md")]
    assert (ROOT / page).is_file()
    assert any(line.startswith("GPU 1  NVIDIA H200") for line in lines)
    assert "gpu: cannot read GPU 0: GPU is lost" in done.stdout


def test_a_pending_remap_is_exit_1(tmp_path: Path, nvml: FakeNvml) -> None:
    """FACT: a warning alone is 1, and names the card."""
    nvml.set({"1.remapped_rows": "1 2 1 0"})
    done = doctor(tmp_path, nvml.environment)
    assert done.returncode == 1
    assert f"WARNING   gpu-remap-pending on GPU 1 ({fake_nvml.uuid(1)})" in done.stdout


def test_the_loudest_finding_comes_first(tmp_path: Path, nvml: FakeNvml) -> None:
    """FACT: critical goes before warning, in text and in JSON, and decides the exit code."""
    nvml.set({"0.remapped_rows": "1 2 1 0", "1.lost": LOST})
    found = told(tmp_path, nvml)
    assert rules(found) >= {"gpu-lost", "gpu-remap-pending"}
    assert (found["findings"][0]["severity"], found["exit_code"]) == ("critical", 2)


def test_what_another_finding_outranks_sends_nobody_elsewhere(
    tmp_path: Path, nvml: FakeNvml
) -> None:
    """FACT: an inhibited finding is told, with the one that outranks it instead of its own fix."""
    rule = """[[rule]]
name = "{}"
subject = "gpu"
when = 'gpu.temperature_celsius > 0'
severity = "{}"
summary = "it is {}"
fix = "see to {}"
"""
    more = rule.format(*("hot", "critical", "hot", "the fans"))
    more += rule.format(*("warm", "warning", "warm", "the weather")) + 'inhibited_by = ["hot"]\n'
    text = doctor(tmp_path, nvml.environment, more=more).stdout
    assert text.count("fix: see to the fans") == 2
    assert "the weather" not in text
    assert text.count("  fix: that of hot on GPU") == 2
    found = json.loads(doctor(tmp_path, nvml.environment, "--json", more=more).stdout)
    inhibitors = {one["rule"]: one["inhibited_by"] for one in found["findings"]}
    assert (inhibitors["hot"], inhibitors["warm"]) == (None, "hot")


def test_no_library_is_exit_3_and_says_so(tmp_path: Path) -> None:
    """FACT (G11): without NVML nothing is wrong, nothing was seen, and both are said."""
    (tmp_path / LIBRARY).write_text("no library\n")
    done = doctor(tmp_path, {"LD_LIBRARY_PATH": str(tmp_path)})
    assert (done.returncode, done.stderr) == (3, "")
    assert "INFO      driver-absent on this host" in done.stdout
    assert "cannot read any GPU: library not found" in done.stdout.partition("could not be read")[2]


def test_a_hung_driver_is_given_up(tmp_path: Path, nvml: FakeNvml) -> None:
    """FACT (G8): it ends by the probes' timeout, and says that the driver does not respond."""
    file = tmp_path / "quick.toml"
    short = "".join(f'[probes.{name}]\ntimeout = "1s"\n' for name in NVML_PROBES)
    file.write_text(UNSEEN + short)
    nvml.do("hang")
    done = doctor(tmp_path, nvml.environment, "--config", str(file))
    assert (done.returncode, done.stderr) == (3, "")
    assert "no findings in what could be read" in done.stdout
    assert "NVML unresponsive" in done.stdout
    assert "cannot read any GPU: " in done.stdout.partition("could not be read:")[2]


def test_json_has_everything(tmp_path: Path, nvml: FakeNvml) -> None:
    """FACT: findings and GPUs have the shape of /api/v1/status; what was not read has its probe."""
    nvml.set({"1.lost": LOST})
    found = told(tmp_path, nvml)
    assert set(found) == {"findings", "gpus", "driver", "unread", "exit_code", "attached"}
    (lost,) = [one for one in found["findings"] if one["rule"] == "gpu-lost"]
    assert lost["evidence"] == {"gpu.state": "lost"}
    assert lost["runbook"] == "gpu-lost"
    assert [gpu["index"] for gpu in found["gpus"]] == [0, 1]
    assert found["gpus"][0]["uuid"] == fake_nvml.uuid(0)
    assert found["gpus"][0]["throttled"]["idle"] is True
    assert found["driver"]["gpus_found"] == 2
    (card,) = [one for one in found["unread"] if one["probe"] == "gpu"]
    assert card["error"] == "cannot read GPU 1: GPU is lost"


@pytest.mark.parametrize(
    "text",
    ["[probes.nonsense]\n", '[[rule]]\nname = "engine-dead"\nactions = ["reboot"]\n', "= 1\n"],
)
def test_a_bad_configuration_is_exit_2_in_a_line(tmp_path: Path, text: str) -> None:
    """FACT: the mistake is named on stderr with the file, and nothing is looked at."""
    file = tmp_path / "bad.toml"
    file.write_text(text)
    done = doctor(tmp_path, {}, "--config", str(file))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith(f"{file}: ")


def test_a_hostile_name_is_shown_and_not_obeyed(tmp_path: Path, nvml: FakeNvml) -> None:
    """FACT: a card whose name has escape characters is told without it; none reaches a terminal."""
    nvml.set(name="\x1b[31mH200\x07")
    done = doctor(tmp_path, nvml.environment)
    assert "H200" not in done.stdout
    assert fake_nvml.uuid(0) in done.stdout
    assert all(c.isprintable() or c == "\n" for c in done.stdout)


def test_a_stranger_on_an_engines_card_is_named(tmp_path: Path, nvml: FakeNvml) -> None:
    """FACT (G10): with a COMMAND, memory that others hold on its cards is a warning."""
    nvml.set({"0.process": f"{os.getpid()} {2 * GIB}"})
    assert "gpu-foreign-memory" in rules(told(tmp_path, nvml, *ENGINE))
    assert "gpu-foreign-memory" not in rules(told(tmp_path, nvml))


def test_beside_a_daemon_it_knows_the_engine_and_leaves_it_alone(
    tmp_path: Path, nvml: FakeNvml
) -> None:
    """FACT: memory of a supervised engine is no stranger's, and the engine serves on.

    Like vLLM's children the engine shows no environment: only the daemon knows whose it is.
    """
    port = free_port()
    command = ["env", "-i", *simulated_command(port)]
    with running(tmp_path / "state", command, port, environment=nvml.environment) as daemon:
        before = daemon.wait_ready(READY)
        nvml.set({"0.process": [f"{pid} {2 * GIB}" for pid in before["pids"]]})
        assert rules(told(tmp_path, nvml, "--", *command)) == set()
        after = daemon.engine()
        assert (after["generation"], after["starts"]) == (before["generation"], before["starts"])
        assert until(lambda: daemon.verdict() in {"ready", "busy"})


@pytest.fixture
def family() -> Iterator[tuple[int, int]]:
    """A process with the marks of a generation, and its child without any environment."""
    script = "exec 3<&0; env -i cat <&3 & echo $!; cat"
    marks = {"VLLM_WATCHDOG_GENERATION": "g", "VLLM_WATCHDOG_ENGINE": "main"}
    with subprocess.Popen(
        ["sh", "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **marks},
    ) as process:
        assert process.stdout is not None
        yield process.pid, int(process.stdout.readline())


def test_without_a_daemon_the_marks_tell_an_engine(family: tuple[int, int]) -> None:
    """FACT: a process that carries a generation, and what descends from it, is an engine's."""
    box = OneBox(())
    until(lambda: (child := procfs.stat(family[1])) is not None and child.comm == "cat")
    for pid in family:
        owned = box.owner(pid)
        assert (owned.owner, owned.engine) == (Owner.ENGINE, "main")
    assert box.owner(os.getpid()).owner is Owner.FOREIGN
    assert box.owner(1 << 30).owner is Owner.UNKNOWN


class NoSettings(msgspec.Struct, frozen=True):
    """None."""


class TooOld:
    """Finds that no engine of a certain command and environment fits."""

    def __init__(self, box: Box) -> None:
        self._box = box

    def read(self, _deadline: Seconds) -> Iterable[Sampled | Unread]:
        """What the probe ``driver`` would say of an engine that wants too much."""
        for engine in self._box.engines():
            fits = engine.command[0] != "vllm" or "VLLM_WATCHDOG_ENGINE" not in engine.environment
            yield Sampled(engine_subject(engine.name), "fits", fits, (("engine", engine.name),))

    def close(self) -> None:
        """Nothing to close."""


class Blind:
    """Reads nothing."""

    def read(self, _deadline: Seconds) -> Iterable[Sampled | Unread]:
        """Cannot."""
        raise ProbeError("cannot read anything")

    def close(self) -> None:
        """Nothing to close."""


def spec(name: str, probe: type[TooOld | Blind]) -> ProbeSpec:
    """A probe of the host."""

    def build(_: NoSettings, box: Box) -> Probe:
        return probe(box) if issubclass(probe, TooOld) else Blind()

    samples = (SampleSpec("fits", bool, "", "Whether.", labels=("engine",)),)
    return ProbeSpec(name, SubjectKind.HOST, NoSettings, samples, build)


def test_an_engine_that_the_driver_is_too_old_for_is_found_at_once() -> None:
    """FACT (G12): probes see command and environment of engines; no rule waits for its time."""
    specs = {"driver": spec("driver", TooOld), "blind": spec("blind", Blind)}
    kinds = {name: one.settings for name, one in specs.items()}
    config = configuration.load(None, configuration.PlugIns(kinds), ENGINE[1:])
    seen = look(config, specs, DEFAULT_RULES, {})
    assert [finding.rule for _, finding in firing(seen.snapshot.state)] == ["engine-driver-too-old"]
    assert [(one.probe, one.error) for one in seen.unread] == [("blind", "cannot read anything")]
