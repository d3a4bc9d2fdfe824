"""The probe of clocks: jumps by a day, sleep, and a whole daemon whose wall clock is set."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import signal
import socket
import struct
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from probes.clock import PROBE, Clock, Clocks, Discipline, Settings, discipline
from tests.support.daemon import Daemon, running, simulated_command
from tests.support.engines import values
from tests.support.simulated import ROOT, free_port, until
from watchdog.core.model import Sampled, Seconds, Value

DAY = 86400.0
TIME_ERROR = 5
"""What ntp_gettime(3) answers of a clock that nobody keeps right."""
SET_CLOCK = """
import mmap, os, struct, time
with open(os.environ['TEST_CLOCK_SHIFT'], 'r+b') as file:
    shift = mmap.mmap(file.fileno(), 8)
ahead = lambda: struct.unpack('d', shift[:8])[0]
wall, wall_ns = time.time, time.time_ns
time.time = lambda: wall() + ahead()
time.time_ns = lambda: wall_ns() + int(ahead() * 1e9)
"""
READ = """
import json, time
from probes.clock import Clock
clock = Clock()
print(json.dumps([[s.value for s in clock.read(0.0)][:3] for _ in range(3)]))
"""


@dataclass
class Hands:
    """Clocks that the test moves by hand."""

    wall: Seconds = 1.7e9
    since_boot: Seconds = 1000.0
    awake: Seconds = 900.0
    known: Discipline | None = None

    def clocks(self) -> Clocks:
        """As the probe is given them."""
        return Clocks(
            lambda: self.wall, lambda: self.since_boot, lambda: self.awake, lambda: self.known
        )

    def pass_by(self, seconds: Seconds, *, asleep: Seconds = 0.0) -> None:
        """Time goes on, and nobody sets a clock."""
        self.wall += seconds + asleep
        self.since_boot += seconds + asleep
        self.awake += seconds


def read(probe: Clock) -> dict[str, Value]:
    """One reading."""
    return values(probe.read(0.0))


def test_a_jump_by_a_day_both_ways() -> None:
    """FACT: how far the wall clock was set, and in which direction, is told at the next look."""
    hands = Hands()
    probe = Clock(hands.clocks())
    assert (read(probe)["jump_seconds"], read(probe)["jumps"]) == (0.0, 0)
    hands.pass_by(1.0)
    hands.wall += DAY
    told = read(probe)
    assert round(float(told["jump_seconds"]), 3) == DAY
    assert told["jumps"] == 1
    hands.pass_by(1.0)
    hands.wall -= DAY
    told = read(probe)
    assert round(float(told["jump_seconds"]), 3) == -DAY
    assert told["jumps"] == 2
    assert told["suspended_seconds"] == 100.0


def test_a_jump_is_told_for_ten_minutes() -> None:
    """FACT: it is forgotten by a clock that nobody sets; the count of jumps stays."""
    hands = Hands()
    probe = Clock(hands.clocks())
    read(probe)
    hands.wall -= DAY
    for _ in range(10):
        assert round(float(read(probe)["jump_seconds"]), 3) == -DAY
        hands.pass_by(60.0)
    hands.pass_by(1.0)
    told = read(probe)
    assert (told["jump_seconds"], told["jumps"]) == (0.0, 1)


def test_a_machine_that_slept_has_not_jumped() -> None:
    """FACT: a night's sleep is told as sleep, for the wall clock is right after it."""
    hands = Hands()
    probe = Clock(hands.clocks())
    read(probe)
    hands.pass_by(1.0, asleep=8 * 3600.0)
    told = read(probe)
    assert (told["jump_seconds"], told["jumps"]) == (0.0, 0)
    assert told["suspended_seconds"] == 100.0 + 8 * 3600.0
    hands.wall += 0.5
    assert round(float(read(probe)["jump_seconds"]), 3) == 0.5


def test_a_look_that_is_interrupted_is_no_jump() -> None:
    """FACT: a second between two clocks of one look is doubt, and no jump of a second."""
    hands = Hands()
    slow = False

    def wall() -> Seconds:
        if slow:
            hands.pass_by(1.0)
        return hands.wall

    probe = Clock(Clocks(wall, lambda: hands.since_boot, lambda: hands.awake, lambda: None))
    read(probe)
    slow = True
    assert read(probe)["jumps"] == 0
    slow = False
    assert read(probe)["jumps"] == 0


def test_clocks_that_nobody_sets_do_not_jump() -> None:
    """FACT: a thousand looks at the real clocks find no jump."""
    probe = PROBE.build(Settings(), None)
    told = [values(probe.read(0.0)) for _ in range(1000)]
    assert {(one["jump_seconds"], one["jumps"]) for one in told} == {(0.0, 0)}


def test_sleep_is_the_distance_of_two_real_clocks() -> None:
    """FACT: in a time namespace whose CLOCK_BOOTTIME is a day ahead we see that the machine slept.

    And CLOCK_REALTIME, which is the same as outside, is not said to have jumped.
    """
    offsets = ["--boottime", str(int(DAY)), "--monotonic", "0"]
    argv = ["unshare", "--time", *offsets, "--fork", sys.executable, "-c", READ]
    done = subprocess.run(argv, capture_output=True, text=True, cwd=ROOT, check=False, timeout=30)
    assert done.returncode == 0, done.stderr
    here = float(read(Clock())["suspended_seconds"])
    for jump, jumps, slept in json.loads(done.stdout):
        assert (jump, jumps) == (0.0, 0)
        assert round(slept - here - DAY) == 0


def test_what_the_kernel_knows_of_its_clock() -> None:
    """FACT: it is synchronised when the C library says so, too; what is not told is absent."""
    known = discipline()
    assert known is not None
    state = ctypes.CDLL(None).ntp_gettime(ctypes.create_string_buffer(256))
    assert known.synchronised is (state != TIME_ERROR)
    hands = Hands(known=Discipline(synchronised=True, offset=0.25))
    told = read(Clock(hands.clocks()))
    assert (told["synchronised"], told["offset_seconds"]) == (True, 0.25)
    hands.known = None
    assert set(read(Clock(hands.clocks()))) == {"jump_seconds", "jumps", "suspended_seconds"}


def test_every_sample_is_declared() -> None:
    """FACT: what is read is what is declared, for a rule and for the metrics."""
    told = {one.sample for one in Clock().read(0.0) if isinstance(one, Sampled)}
    assert told == {spec.name for spec in PROBE.samples}


def test_a_daemon_whose_wall_clock_is_set_by_a_day(tmp_path: Path) -> None:
    """FACT: both ways the jump is found and said, and nothing else happens: no interval is wrong.

    The same engine serves on, /livez is well, and an engine that dies in between is restarted.
    """
    shift = tmp_path / "shift"
    shift.write_bytes(struct.pack("d", 0.0))
    (tmp_path / "sitecustomize.py").write_text(SET_CLOCK)
    environment = {"PYTHONPATH": str(tmp_path), "TEST_CLOCK_SHIFT": str(shift)}
    port = free_port()
    often = tmp_path / "config.toml"
    often.write_text('[probes.clock]\nperiod = "100ms"\n')
    command = simulated_command(port)
    with running(
        tmp_path / "state", command, port, config=often, environment=environment
    ) as daemon:
        leader = daemon.wait_ready(120)["pid"]
        idle = socket.create_connection(_address(daemon), timeout=10)
        _set_clock(shift, DAY)
        _said(daemon, DAY, 1)
        with idle:  # nobody's connection has become a day old
            idle.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
            assert b" 200 " in idle.recv(100)
        assert _well(daemon) == leader
        os.kill(leader, signal.SIGKILL)
        until(lambda: daemon.engine().get("pid") not in {None, leader}, 120)
        second = daemon.wait_ready(120)["pid"]
        _set_clock(shift, 0.0)
        until(lambda: daemon.metric("vllm_watchdog_clock_jumps_total") == 2)
        assert _well(daemon) == second
        assert len(daemon.events("engine.exited")) == 1
        assert not daemon.events("watchdog.bug")


def _address(daemon: Daemon) -> tuple[str, int]:
    host, _, port = daemon.listen.rpartition(":")
    return host, int(port)


def _set_clock(shift: Path, ahead: Seconds) -> None:
    """Eight bytes at once: who reads them meanwhile sees the one or the other."""
    with shift.open("r+b") as file, mmap.mmap(file.fileno(), 8) as memory:
        memory[:8] = struct.pack("d", ahead)


def _said(daemon: Daemon, seconds: Seconds, jumps: int) -> None:
    fired = daemon.wait_event("finding.firing", wanted=lambda e: e["rule"] == "clock-jumped")
    assert round(float(fired["clock.jump_seconds"])) == seconds
    assert fired["clock.jumps"] == jumps
    assert fired["fix"] == "chronyc tracking"


def _well(daemon: Daemon) -> int:
    """The engine's leader, after some more turns of the loop with all that they judge."""
    name = "vllm_watchdog_loop_latency_seconds_count"
    then = daemon.metric(name) or 0
    until(lambda: (daemon.metric(name) or 0) > then + 5)
    until(lambda: daemon.verdict() == "ready")
    assert daemon.get("/livez")[0] == 200
    return int(daemon.engine()["pid"])
