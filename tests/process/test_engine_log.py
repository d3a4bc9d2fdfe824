"""The engine_log probe on real files: appended to, rotated, damaged, replaced by other things."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from probes._log.follower import LONGEST, PIECE, Follower
from probes.engine_log import PROBE, Settings
from tests.support.daemon import running
from tests.support.engines import Target, errors, values
from tests.support.reloads import File, watched
from tests.support.simulated import until
from watchdog.contracts import Endpoint, EngineLook, LogPlace, Probe
from watchdog.core.model import ProcessState, Sampled, Unread, Value
from watchdog.supervisor.rotation import rotate

RECORDED = Path(__file__).parents[1] / "recordings" / "vllm-0.32-cpu-start.log"
GIB = 1 << 30
PATIENT = 20.0
"""Seconds for one look on a machine that is busy with other tests."""


@dataclass
class Log:
    """A log with the probe that follows it as the one of generation g1."""

    path: Path
    expects: tuple[str, ...] = ()
    offset: int = 0
    target: Target = field(init=False)
    probe: Probe = field(init=False)

    def __post_init__(self) -> None:
        """Nothing was looked at yet."""
        self.target = Target(
            Endpoint("127.0.0.1", 1),
            now=EngineLook(generation="g1", state=ProcessState.STARTING),
            log=LogPlace("g1", str(self.path), self.offset),
            expects=self.expects,
        )
        self.probe = PROBE.build(Settings(), self.target)

    def write(self, *lines: str) -> None:
        """Append lines, as an engine does."""
        with self.path.open("a") as file:
            file.writelines(f"{line}\n" for line in lines)

    def look(self) -> list[Sampled | Unread]:
        """All that one look brings."""
        return list(self.probe.read(time.monotonic() + PATIENT))

    def values(self) -> dict[str, Value]:
        """One look without trouble."""
        return values(self.look())


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """A log that is there and empty."""
    (tmp_path / "engine.log").touch()
    return Log(tmp_path / "engine.log")


def expecting(log: Log, *patterns: str) -> Log:
    """A probe that expects them in the same file."""
    return Log(log.path, patterns)


def test_the_recorded_start(log: Log) -> None:
    """FACT: the log of a real vLLM 0.32 on a CPU gives its numbers; it names no backend."""
    log.path.write_bytes(RECORDED.read_bytes())
    assert log.values() == {
        "startup_complete": True,
        "version": "0.32.0",
        "weights_load_seconds": 0.0,
        "kv_cache_bytes": GIB,
        "kv_cache_tokens": 2_097_152,
        "max_concurrency": 2048.0,
        "max_concurrency_tokens": 1024,
        "expected_missing": "",
        "expected_found": 0,
    }


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("Model loading took 14.5 GiB memory and 13.204526 seconds", (14.5 * GIB, 13.204526)),
        ("Model loading took 14.5000 GiB and 2.5 seconds", (14.5 * GIB, 2.5)),
        ("Model loading took 14.5000 GB and 2.5 seconds", (14.5 * GIB, 2.5)),
        ("Loading model weights took 14.5000 GB", (14.5 * GIB, None)),
        ("Loading weights took 3.25 seconds", (None, 3.25)),
    ],
)
def test_spellings_of_the_weights(log: Log, line: str, told: tuple[float | None, ...]) -> None:
    """FACT: what loading took is read in the spelling of every version since 0.6."""
    log.write(f"(Worker_TP0 pid=7) INFO 11-30 01:46:00 [gpu_model_runner.py:302] {line}")
    seen = log.values()
    assert (seen.get("weights_bytes"), seen.get("weights_load_seconds")) == told


@pytest.mark.parametrize(
    ("line", "sample", "value"),
    [
        ("[gpu_worker.py:508] Available KV cache memory: 83.5 GiB", "kv_cache_bytes", 83.5 * GIB),
        ("[gpu_worker.py:356] Available KV cache memory: 26.50 GiB", "kv_cache_bytes", 26.5 * GIB),
        ("the memory reserved for KV Cache is 45.25GiB.", "kv_cache_bytes", 45.25 * GIB),
        ("Auto set (1.5/18.0) GiB for KV cache on node 0, with", "kv_cache_bytes", 1.5 * GIB),
        ("GPU KV cache size: 28,704 tokens", "kv_cache_tokens", 28_704),
        ("Maximum concurrency for 2,048 tokens per request: 14.02x", "max_concurrency", 14.02),
        ("[monitor.py:33] torch.compile takes 34.61 s in total", "compile_seconds", 34.61),
        ("[monitor.py:81] torch.compile took 9.85 s in total", "compile_seconds", 9.85),
        ("init engine (profile, …) took 70.62 s (compilation: 42.18 s)", "compile_seconds", 42.18),
        ("Graph capturing finished in 18 secs, took 0.96 GiB", "graph_capture_seconds", 18.0),
        ("Graph capturing finished in 9 secs.", "graph_capture_seconds", 9.0),
        ("[api_server.py:981] vLLM API server version 0.8.2", "version", "0.8.2"),
        ("Initializing a V1 LLM engine (v0.10.1.1) with config: m", "version", "0.10.1.1"),
        ("\x1b[0;36m(A pid=1)\x1b[0;0m [u.py:1]  █ ▀▄▀ █  version 0.11.0", "version", "0.11.0"),
        ("cuda.py:230] Using Flash Attention backend.", "attention_backend", "Flash Attention"),
        ("[cuda.py:221] Using Triton backend on V1 engine.", "attention_backend", "Triton"),
        ("cuda.py:4] Using AttentionBackendEnum.TREE backend.", "attention_backend", "TREE"),
        (
            "[cuda.py:482] Using FLASHINFER attention backend out of potential backends: ['A'].",
            "attention_backend",
            "FLASHINFER",
        ),
        ("[nvfp4.py:1] Using TRITON backend.", "attention_backend", None),
        ("[selector.py:202] Using HND KV cache layout for X backend.", "attention_backend", None),
    ],
)  # fmt: skip
def test_spellings(log: Log, line: str, sample: str, value: Value | None) -> None:
    """FACT: milestones are read in the spellings of vLLM 0.8 to 0.32; other backends are none."""
    log.write(line)
    assert log.values().get(sample) == value


def test_what_bounds_the_engine_counts(log: Log) -> None:
    """FACT: of several workers the largest weights, the longest time and the smallest cache."""
    for size, seconds, cache in ((14, 3, 40), (15, 9, 30), (13, 5, 35)):
        log.write(f"Model loading took {size} GiB memory and {seconds}.0 seconds")
        log.write(f"[gpu_worker.py:1] Available KV cache memory: {cache}.0 GiB")
    seen = log.values()
    assert (seen["weights_bytes"], seen["weights_load_seconds"]) == (15 * GIB, 9.0)
    assert seen["kv_cache_bytes"] == 30 * GIB


def test_after_the_start_nobody_is_believed(log: Log) -> None:
    """FACT: a prompt that the log quotes sets no number, and the file is not even read any more."""
    log.write("INFO:     Application startup complete.")
    assert log.values()["startup_complete"] is True
    log.write("Received request 1: prompt: 'Model loading took 99 GiB'")
    assert "weights_bytes" not in log.values()
    log.path.unlink()
    assert log.values()["startup_complete"] is True


def test_a_process_that_writes_it(log: Log) -> None:
    """FACT: half-written lines wait for their end, wherever the writer pauses."""
    log = expecting(log, "Using Flash[A-Z]", r"startup complete\.$")
    text = "INFO [f.py:1] Using FlashAttention version 3\nINFO:     Application startup complete.\n"
    slowly = f"import os,time\nfor c in {text!r}: os.write(1, c.encode()); time.sleep(0.005)"
    with (
        log.path.open("ab") as file,
        subprocess.Popen([sys.executable, "-c", slowly], stdout=file) as writer,
    ):
        assert until(lambda: log.values().get("expected_found") == 2, PATIENT)
        assert writer.wait() == 0
    seen = log.values()
    assert (seen["expected_missing"], seen["startup_complete"]) == ("", True)


def test_a_start_has_its_own_part(log: Log) -> None:
    """FACT: lines of the start before count for nothing, and a new start begins anew."""
    log.write("GPU KV cache size: 1,000 tokens", "wanted")
    log = Log(log.path, ("wanted",), offset=log.path.stat().st_size)
    assert log.values()["expected_missing"] == "wanted"
    log.write("GPU KV cache size: 2,000 tokens", "wanted", "Application startup complete.")
    seen = log.values()
    assert (seen["kv_cache_tokens"], seen["expected_missing"]) == (2000, "")
    log.target.log = LogPlace("g2", str(log.path), log.path.stat().st_size)
    assert errors(log.look()) == ["no start is known whose log could be read"]
    log.target.now = replace(log.target.now, generation="g2")
    seen = log.values()
    assert "kv_cache_tokens" not in seen
    assert (seen["startup_complete"], seen["expected_missing"]) == (False, "wanted")


def test_what_is_ready_needs_no_proof(log: Log) -> None:
    """FACT: of an adopted engine that was ready nothing is matched, and nothing is claimed."""
    log = expecting(log, "wanted")
    log.target.now = replace(log.target.now, ready=True)
    log.write("GPU KV cache size: 2,000 tokens")
    seen = log.values()
    assert seen["kv_cache_tokens"] == 2000
    assert "expected_missing" not in seen


@pytest.mark.parametrize("offset", [0, 7000])
def test_rotation(log: Log, offset: int) -> None:
    """FACT: what was not read before a rotation is read in PATH.1, then the log goes on."""
    log.path.write_text(("x" * 99 + "\n") * (offset // 100))
    log = Log(log.path, ("first", "second", "third"), offset=offset)
    log.write("first")
    watched_on = log.values()["expected_found"]
    log.write(*("y" * 99 for _ in range(100)), "second")
    assert rotate(log.path, limit=0)
    log.write("third")
    assert watched_on == 1
    assert until(lambda: log.values()["expected_found"] == 3, PATIENT)


def test_a_cut_log_that_grew_past_our_place(log: Log) -> None:
    """FACT: a rotation is seen by what lies before our place, not by the length alone."""
    log = expecting(log, "first", "second", "third")
    log.write("first")
    assert log.values()["expected_found"] == 1
    log.write("second")
    assert rotate(log.path, limit=0)
    log.write("third", *(f"line {number}" for number in range(100)))
    assert until(lambda: log.values()["expected_found"] == 3, PATIENT)


def test_adoption_after_a_rotation(log: Log) -> None:
    """FACT: a new watchdog finds the start in PATH.1 when the log is too short to hold it."""
    log.write(*("x" * 99 for _ in range(70)))
    offset = log.path.stat().st_size
    log.write("first", *("y" * 99 for _ in range(100)))
    assert rotate(log.path, limit=0)
    log.write("second")
    log = Log(log.path, ("first", "second"), offset)
    assert until(lambda: log.values()["expected_found"] == 2, PATIENT)


def test_a_part_that_is_lost(log: Log) -> None:
    """FACT: where the other part of a cut log never comes it goes on at the beginning."""
    log = expecting(log, "wanted")
    log.write("a long line that was read before the file was emptied")
    assert log.values()["expected_missing"] == "wanted"
    log.path.write_text("wanted\n")
    assert until(lambda: log.values()["expected_missing"] == "", PATIENT)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(st.integers(0, 9000), st.sampled_from(["rotate", "look"])), max_size=25))
def test_no_line_is_lost_or_told_twice(steps: list[int | str]) -> None:
    """FACT: every line is told once, whatever is written, rotated (once a look) and looked at."""
    seen, number, rotated = [], 0, False
    with scratch() as path:
        follower = Follower(str(path), 0)
        seen.extend(follower.lines())
        for step in [*steps, "look", "look", "look"]:
            if step == "look":
                seen.extend(follower.lines())
                rotated = False
            elif step == "rotate":
                rotated = rotated or rotate(path, limit=0)
            elif not rotated or isinstance(step, int):
                with path.open("a") as file:
                    line = f"line {number} {'z' * (int(step) % 3000)} at {number}\n"
                    file.write(line * (int(step) > 0))
                number += int(step) > 0
    assert [int(line.split()[1]) for line in seen] == list(range(number))


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """An empty log for one example."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "engine.log"
        path.touch()
        yield path


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.binary(max_size=12_000) | st.sampled_from([b"\n", b"\r", b"\0" * 9000, b"\xff"]))
)
def test_any_bytes(pieces: Sequence[bytes]) -> None:
    """FACT: whatever comes, in whatever pieces, the lines are those of the whole, cut and clean."""
    seen = []
    with scratch() as path:
        follower = Follower(str(path), 0)
        for piece in pieces:
            with path.open("ab") as file:
                file.write(piece)
            seen.extend(follower.lines())
    *lines, rest = b"".join(pieces).replace(b"\0", b"").replace(b"\r", b"\n").split(b"\n")
    lines += [rest] if len(rest) > LONGEST else []
    assert len(seen) == len([line for line in lines if line])
    assert all(len(line) <= LONGEST for line in seen)


def test_one_look_is_bounded(log: Log) -> None:
    """FACT: a log of 200 MB is read a piece a look, and one line of it is kept in part."""
    with log.path.open("wb") as file:
        file.truncate(200 << 20)
        file.seek(0, os.SEEK_END)
        file.write(b"\nApplication startup complete.\n")
    before = _bytes_read()
    assert log.values()["startup_complete"] is False
    assert PIECE <= _bytes_read() - before < 2 * PIECE
    assert [log.values()["startup_complete"] for _ in range(800)][-1] is True


def _bytes_read() -> int:
    return int(Path("/proc/self/io").read_text().split()[1])


def test_what_is_no_log(log: Log) -> None:
    """FACT: a missing file, a FIFO, a folder and somebody else's file are named, and not read."""
    log = expecting(log, "wanted")
    log.write("wanted")
    os.chown(log.path, 12345, 12345)
    wrong = [errors(log.look())]
    log.path.unlink()
    wrong.append(errors(log.look()))
    os.mkfifo(log.path)
    wrong.append(errors(log.look()))
    log.path.unlink()
    log.path.mkdir()
    wrong.append(errors(log.look()))
    assert [text for (text,) in wrong] == [
        f"cannot read {log.path}: it belongs to the user 12345",
        f"cannot read {log.path}: no such file or directory",
        f"cannot read {log.path}: it is no regular file",
        f"cannot read {log.path}: it is no regular file",
    ]
    assert not [s for s in log.look() if isinstance(s, Sampled) and s.sample.startswith("expected")]
    log.path.rmdir()
    log.write("wanted")
    assert log.values()["expected_missing"] == ""


def test_an_expression_that_never_ends(log: Log) -> None:
    """FACT: it is named, others match in the same look, and this process goes on meanwhile."""
    log = expecting(log, "(a+)+$", "other")
    log.write("a" * 60 + "!", "other", "a" * 60 + "!")
    found = log.look()
    assert errors_of(found) == ["cannot match expect_log '(a+)+$': it takes too long on a line"]
    seen = {s.sample: s.value for s in found if isinstance(s, Sampled)}
    assert (seen["expected_missing"], seen["expected_found"]) == ("(a+)+$", 1)
    log.write("aaa")
    assert log.values()["expected_missing"] == ""


def errors_of(found: Sequence[Sampled | Unread]) -> list[str]:
    """The troubles among what was read."""
    return [item.error for item in found if isinstance(item, Unread)]


def test_a_deadline_that_is_near(log: Log) -> None:
    """FACT: without time to match nothing is claimed, and the lines wait for the next look."""
    log = expecting(log, "wanted")
    log.write("wanted")
    assert "expected_missing" not in values(list(log.probe.read(time.monotonic() + 0.1)))
    log.path.write_bytes(b"")
    assert log.values()["expected_missing"] == ""


def test_the_daemon_waits_for_what_is_expected(tmp_path: Path) -> None:
    """FACT: an engine whose log shows what is expected becomes ready; its numbers are metrics."""
    file = File(tmp_path / "w.toml")
    patterns = ["Using FlashAttention version [23]", r"KV cache size: [\d,]+ tokens"]
    file.engine("main", expect_log=patterns)
    with watched(file) as daemon:
        metric = 'vllm_watchdog_engine_log_{}{{engine="main"}}'
        until(lambda: daemon.metric(metric.format("kv_cache_tokens")) == 65_536, PATIENT)
        assert daemon.metric(metric.format("expected_found")) == 2
        assert daemon.metric(metric.format("max_concurrency")) == 16


def test_the_daemon_gives_up_on_what_never_comes(tmp_path: Path) -> None:
    """FACT: an engine that serves without the expected line stays starting, and then fails so."""
    file = File(tmp_path / "w.toml")
    file.engine("main", expect_log=["Using FlashAttention", "no such [l]ine"], start_timeout="4s")
    file.write()
    with running(tmp_path / "s", (), file.port, config=file.path) as daemon:
        reason = "the log has not shown 'no such [l]ine' yet"
        until(lambda: daemon.engine().get("reasons") == [reason], 40.0)
        assert daemon.verdict() == "starting"
        assert daemon.get("/readyz")[0] == 503
        failed = daemon.wait_event("decision.act", 40.0, lambda e: e["cause"] == "not_expected")
        assert failed["action"] == "restart_engine"
        assert reason in failed["detail"]
