"""Every fault of the simulated engine does what its row in the table says."""

import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.simulated import Simulated, alive, simulated, stat_fields, until
from watchdog.simulator.faults import FAULTS, When

CORE, WORKER = "VLLM::EngineCore", "VLLM::Worker"


@pytest.fixture
def engine() -> Iterator[Simulated]:
    """A serving engine without faults."""
    with simulated("--engine-death-delay", "0.2") as running:
        yield running.ready()


def cpu_ticks(pid: int) -> int:
    """User time so far."""
    return int(stat_fields(pid)[11])


@pytest.mark.parametrize(
    ("fault", "status", "line"),
    [
        ("port_in_use", 1, "OSError: [Errno 98] Address already in use"),
        ("model_missing", 1, "is not a local folder and is not a valid model identifier"),
        ("bad_argument", 2, "error: unrecognized arguments"),
        ("driver_803", 1, "Error 803: system has unsupported display driver"),
        ("compat_804", 1, "Error 804: forward compatibility was attempted"),
        ("memory_short", 1, "on startup is less than desired GPU memory utilization"),
        ("cuda_oom", 1, "torch.OutOfMemoryError: CUDA out of memory"),
        ("crash_after=0.1", 1, "simulated crash"),
        ("exit_zero_after=0.1", 0, "version"),
        ("exit_code=7", 7, "version"),
    ],
)
def test_a_start_that_ends(fault: str, status: int, line: str) -> None:
    """FACT: the start ends with the status and vLLM's line for the cause, and leaves nobody."""
    with simulated("--fault", fault) as engine:
        assert engine.wait() == status
        assert line in engine.log()
        until(lambda: not engine.members())


@pytest.mark.parametrize(
    ("fault", "last", "never"),
    [
        ("never_ready", "init engine", "Starting vLLM server"),
        ("silent_start", "Using max model len", "Initializing a V1"),
        ("nccl_hang", "backend=nccl", "is assigned as"),
        ("slow_start=600", "Loading safetensors checkpoint shards:", "init engine"),
    ],
)
def test_a_start_that_hangs(fault: str, last: str, never: str) -> None:
    """FACT: the log ends at its place, and the port is bound but refuses connections."""
    with simulated("--fault", fault) as engine:
        if not fault.startswith("slow"):
            until(lambda: last in engine.log())
        engine.member(CORE)
        assert never not in engine.log()
        assert engine.status("/health") == 0
        with socket.socket() as probe, pytest.raises(OSError, match="in use"):
            probe.bind(("127.0.0.1", engine.port))


def test_a_slow_start_moves_and_arrives() -> None:
    """FACT: slow_start logs shard after shard and then serves."""
    with simulated("--fault", "slow_start=0.5") as engine:
        engine.ready()
        assert engine.log().count("checkpoint shards") == 20


@pytest.mark.parametrize(("fault", "title"), [("hang", CORE), ("hang_worker", WORKER)])
def test_hang_stops_and_clears(engine: Simulated, fault: str, title: str) -> None:
    """FACT: the process stops itself; clearing the fault brings the tokens back."""
    pid = engine.member(title)
    assert engine.fault(fault) == 200
    until(lambda: stat_fields(pid)[0] == "T")
    assert engine.complete(patience=0.3) == 0
    assert engine.clear(fault) == 200
    until(lambda: engine.complete() == 200)


def test_saturated_is_busy_not_dead(engine: Simulated) -> None:
    """FACT: /health and requests time out while tokens flow and /metrics answers."""
    engine.fault("saturate")
    assert engine.status("/health", patience=0.3) == 0
    assert engine.complete(patience=0.3) == 0
    counters = ("generation_tokens_total", "iteration_tokens_total_count")
    before = [engine.metric(name) for name in counters]
    until(lambda: all(engine.metric(n) > b for n, b in zip(counters, before, strict=True)))
    assert engine.metric("num_requests_running") > 0
    engine.clear("saturate")
    until(lambda: engine.complete() == 200)


def test_spin_burns_without_tokens(engine: Simulated) -> None:
    """FACT: EngineCore uses CPU, running stays above 0, no token comes."""
    core = engine.member(CORE)
    engine.fault("spin")
    until(lambda: engine.metric("num_requests_running") == 1)
    ticks = cpu_ticks(core)
    until(lambda: cpu_ticks(core) > ticks + 5)
    assert engine.complete(patience=0.3) == 0
    assert engine.metric("generation_tokens_total") == 0


def test_ignore_term(engine: Simulated) -> None:
    """FACT: SIGTERM changes nothing until the fault is cleared."""
    engine.fault("ignore_term")
    engine.process.terminate()
    until(lambda: "SIGTERM ignored" in engine.log())
    assert engine.complete() == 200
    engine.clear("ignore_term")
    engine.process.terminate()
    assert engine.wait() == 0


def test_leave_orphans(engine: Simulated) -> None:
    """FACT: the leader exits and its EngineCore and Worker stay."""
    core, worker = engine.member(CORE), engine.member(WORKER)
    engine.fault("leave_orphans")
    engine.process.terminate()
    assert engine.wait() == 0
    assert alive(core)
    assert alive(worker)


def test_double_fork_leaves_the_session(engine: Simulated) -> None:
    """FACT: a descendant in another session, without environment, outlives the whole set."""
    children = Path("/proc")
    before = {entry.name for entry in children.iterdir()}

    def detached() -> list[int]:
        new = [e for e in children.iterdir() if e.name.isdigit() and e.name not in before]
        return [int(e.name) for e in new if _text(e / "cmdline").startswith("VLLM::Detached")]

    engine.fault("double_fork", 60)
    pid = until(detached)[0]
    try:
        assert int(stat_fields(pid)[3]) != engine.pid
        assert "PATH=" not in _text(Path(f"/proc/{pid}/environ"))
        engine.process.terminate()
        assert engine.wait() == 0
        assert alive(pid)
    finally:
        os.kill(pid, signal.SIGKILL)


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def test_kill_core_after(engine: Simulated) -> None:
    """FACT: EngineCore dies after the delay, and the leader exits 0."""
    engine.fault("kill_core_after", 0.1)
    assert engine.wait() == 0


def test_cuda_oom_at_run_time(engine: Simulated) -> None:
    """FACT: EngineCore logs the fatal error and dies; the leader exits 0."""
    engine.fault("cuda_oom")
    assert engine.wait() == 0
    assert "EngineCore encountered a fatal error" in engine.log()
    assert "CUDA out of memory" in engine.log()


def test_bad_metrics_are_noise(engine: Simulated) -> None:
    """FACT: the page answers 200 and is no text."""
    engine.fault("bad_metrics")
    status, body = engine.call("/metrics")
    assert status == 200
    with pytest.raises(UnicodeDecodeError):
        body.decode()


def test_huge_metrics_have_the_size(engine: Simulated) -> None:
    """FACT: the page grows by the given bytes."""
    engine.fault("huge_metrics", 3_000_000)
    assert 3_000_000 < len(engine.call("/metrics")[1]) < 3_100_000


@pytest.mark.parametrize("fault", ["slow_answers", "endless_answers", "no_answer"])
def test_answers_that_never_end(engine: Simulated, fault: str) -> None:
    """FACT: no request gets a whole answer, and what comes is what the row says."""
    engine.fault(fault)
    with socket.create_connection(("127.0.0.1", engine.port)) as client:
        client.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        client.settimeout(0.5)
        if fault == "no_answer":
            with pytest.raises(TimeoutError):
                client.recv(1)
        elif fault == "slow_answers":
            assert client.recv(100) == b"H"
        else:
            until(lambda: len(client.recv(1 << 20)) > 10_000)
    engine.clear(fault)
    assert engine.status("/health") == 200


def test_health_503(engine: Simulated) -> None:
    """FACT: only the health routes answer 503."""
    engine.fault("health_503")
    assert engine.status("/health") == engine.status("/ping") == 503
    assert engine.complete() == 200


def test_sleeping_is_said_in_the_metrics(engine: Simulated) -> None:
    """FACT: the sleep state changes and requests wait until it is over."""
    engine.fault("sleeping")
    page = engine.call("/metrics")[1].decode()
    assert 'sleep_state="weights_offloaded"} 1.0' in page
    assert engine.complete(patience=0.3) == 0
    engine.clear("sleeping")
    assert engine.complete() == 200


def test_compile_has_a_ptxas_below_the_core(engine: Simulated) -> None:
    """FACT: a request waits while a ptxas runs below EngineCore, and is served afterwards."""
    core = engine.member(CORE)
    engine.fault("compile", 0.5)
    with engine.open_completion(tokens=1) as client:
        pid = engine.member("ptxas")
        assert int(stat_fields(pid)[1]) == core
        client.settimeout(10)
        assert b"200 OK" in client.recv(100)
    until(lambda: not alive(pid))


def test_a_long_prefill_moves_only_the_cache(engine: Simulated) -> None:
    """FACT: KV cache usage rises, the iteration counter stands still, no token comes."""
    engine.fault("prefill", 60)
    with engine.open_completion():
        first = until(lambda: engine.metric("kv_cache_usage_perc"))
        until(lambda: engine.metric("kv_cache_usage_perc") > first)
        assert engine.metric("iteration_tokens_total_count") == 0
        assert engine.metric("num_requests_running") == 1


def test_faults_are_listed(engine: Simulated) -> None:
    """FACT: what is in force and what exists can be asked."""
    engine.fault("health_503")
    answer = json.loads(engine.call("/simulator/faults")[1])
    assert answer == {"active": {"health_503": True}, "known": list(FAULTS)}


@pytest.mark.parametrize(
    "name",
    ["nonsense", *(f.name for f in FAULTS.values() if f.when is When.START)],
)
def test_a_fault_that_does_not_fit_is_refused(engine: Simulated, name: str) -> None:
    """FACT: an unknown fault, or one of the start, is 400 at run time and changes nothing."""
    assert engine.fault(name, 1) == 400
    assert json.loads(engine.call("/simulator/faults")[1])["active"] == {}
