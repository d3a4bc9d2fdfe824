"""Faults on a real card: a real Xid, memory that others hold, an orphan with real memory."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from probes._nvml.client import NvmlClient
from probes.driver import Driver
from probes.driver import Settings as DriverSettings
from probes.gpu_processes import GpuProcesses
from probes.xid import Settings, XidProbe
from tests.gpu.conftest import Holding
from tests.gpu.cuda_programs import ENGINE
from tests.support.daemon import running
from tests.support.engines import Engines
from tests.support.simulated import ROOT, alive, free_port, until
from watchdog.contracts import Owned, Owner
from watchdog.core.model import Sampled, Unread, Value
from watchdog.daemon.gpu_look import GpuLook
from watchdog.nvidia import engine_cuda
from watchdog.supervisor.gpu_gate import Baselines, memory_released

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not Path("/dev/nvidia0").exists(), reason="there is no NVIDIA GPU here"),
]

GIB = 1 << 30
HELD = 2 * GIB
READY = 60.0


class Strangers:
    """A box in which every process is somebody else's, except those that are given."""

    state_dir = ""

    def __init__(self, owners: Mapping[int, Owned] | None = None) -> None:
        self._box = Engines(owners=dict(owners or {}))
        self.engines = self._box.engines

    def owner(self, pid: int) -> Owned:
        """Foreign, unless given."""
        found = self._box.owner(pid)
        return Owned(Owner.FOREIGN, "", "stranger") if found.owner is Owner.UNKNOWN else found


def samples(read: object) -> dict[tuple[str, ...], Value]:
    """Values by name and labels other than the card's; an Unread fails the test."""
    assert isinstance(read, list)
    assert not [one for one in read if isinstance(one, Unread)]
    return {
        (one.sample, *(v for k, v in one.labels if k not in {"gpu", "uuid"})): one.value
        for one in read
        if isinstance(one, Sampled)
    }


def later() -> float:
    """A deadline that is far away."""
    return time.monotonic() + 60


def test_a_real_xid_is_counted_once(client: NvmlClient, faulty: Callable[[], int]) -> None:
    """FACT (G8): an out-of-bounds write is one Xid 31, whichever sources saw it, of its process."""
    client.ask("cards", later())
    owners: dict[int, Owned] = {}
    probe = XidProbe(Settings(), Engines(owners=owners), client)
    try:
        samples(list(probe.read(later())))
        owners[faulty()] = Owned(Owner.ENGINE, "main", "python3")
        found: dict[tuple[str, ...], Value] = {}

        def counted() -> bool:
            found.update(samples(list(probe.read(later()))))
            return bool(found.get(("errors", "31")))

        until(counted)
        for _ in range(10):
            counted()
            time.sleep(0.2)  # the second source may come later; it must add nothing
        sys.stdout.write(f"xid: {found}\n")
        assert found["errors", "31"] == 1
        assert found["class_errors", "application"] == 1
        assert "Xid 31" in str(found["last",])
        if "kmsg" in str(found["source",]):
            assert found["engine_errors", "main", "application"] == 1
    finally:
        probe.close()


def test_the_driver_is_well(client: NvmlClient) -> None:
    """FACT: module and library agree, every card on the bus is found, every node can be used."""
    found = samples(list(Driver(DriverSettings(), client, Engines(())).read(later())))
    sys.stdout.write(f"driver: {found}\n")
    assert found["module_version",] == found["library_version",]
    assert found["versions_match",] is True
    assert found["nvml",] == "ok"
    assert found["device_trouble",] == ""
    assert found["gpus_expected",] == found["gpus_found",]


def test_the_cuda_of_a_real_torch_is_read_without_importing_it() -> None:
    """FACT (G13): what the files say is what torch says of itself."""
    asked = subprocess.run(
        [sys.executable, "-c", "import torch; print(torch.version.cuda)"],
        capture_output=True,
        text=True,
        check=False,
    )
    if asked.returncode:
        pytest.skip("there is no torch here")
    command = (sys.executable, "-m", "vllm.entrypoints.openai.api_server")
    assert engine_cuda.wanted(command, os.environ) == asked.stdout.strip()


def test_memory_of_a_stranger_is_a_strangers(client: NvmlClient, holding: Holding) -> None:
    """FACT (G2): its real bytes are foreign, and nothing much is left unaccounted for."""
    with holding(HELD) as process:
        probe = GpuProcesses(client, Strangers())
        found = samples(list(probe.read(later())))
        sys.stdout.write(f"processes: {found}\n")
        assert HELD <= int(found["memory_bytes", "foreign"]) <= HELD + GIB
        assert int(found["unaccounted_bytes",]) < GIB
        assert f"pid {process.pid}" in str(found["strangers",])


def test_the_gate_knows_who_holds_the_card(client: NvmlClient, holding: Holding) -> None:
    """FACT (G1, G2): it refuses beside a stranger, and passes at once when that is gone."""
    look = GpuLook(GpuProcesses(client, Strangers()))
    step = memory_released(look, "main", ("0",), 0.99, Baselines(), patience=1.0)
    with holding(4 * GIB) as process:
        refusal = step()
        assert refusal is not None
        assert f"process {process.pid} (stranger)" in refusal.explanation
    assert step() is None


def test_another_pid_namespace_claims_nothing(holding: Holding) -> None:
    """FACT (G16): from a pid namespace of its own nobody is seen, and no orphan is claimed."""
    ask = (
        "import json, time; from probes._nvml.client import NvmlClient\n"
        "client = NvmlClient()\n"
        "print(json.dumps(client.ask('processes', time.monotonic() + 60)))\n"
        "client.close()\n"
    )
    with holding(HELD) as process:
        inside = subprocess.run(
            ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", ask],
            capture_output=True,
            text=True,
            check=False,
            cwd=ROOT,
        )
        if "unshare" in inside.stderr:
            pytest.skip("no new pid namespace may be made here")
        (card,) = json.loads(inside.stdout)["gpus"][:1]
        sys.stdout.write(f"inside: {card}\n")
        assert process.pid not in [row[0] for row in card["processes"]]
        assert card["memory_used_bytes"] >= HELD


def test_an_orphan_with_real_memory_is_ended_before_the_new_start(tmp_path: Path) -> None:
    """FACT (D1, G1, G3): the leader dies, its child holds the card: it is ended, then we start."""
    port = free_port()
    command = [sys.executable, "-c", ENGINE, str(HELD), "--port", str(port)]
    owner = 'nvidia_gpu_compute_apps_memory_bytes{gpu="0",owner="engine"'
    with running(tmp_path, command, port) as daemon:
        daemon.wait_ready(READY)
        until(lambda: (daemon.metric(owner) or 0) >= HELD, READY)
        assert daemon.get("/healthz")[0] == 200
        before = daemon.engine()
        os.kill(before["pid"], signal.SIGKILL)
        until(lambda: daemon.is_another(before), READY)
        assert not [pid for pid in before["pids"] if alive(pid)]
        daemon.wait_ready(READY)
        until(lambda: HELD <= (daemon.metric(owner) or 0) < 2 * HELD, READY)
        resolved = daemon.wait_event("incident.resolved")
        sys.stdout.write(f"incident: {json.dumps(resolved)}\n")
