"""``VLLM::EngineCore``: schedules the requests, drives the workers, reports to the leader.

One thread and one selector. It does not watch its parent: like vLLM's it outlives a leader that
was killed, with its workers.
"""

import contextlib
import os
import selectors
import signal
import time
from typing import NoReturn

from watchdog.simulator import log_lines, offspring, start_failures
from watchdog.simulator.batching import PHANTOM_TOKENS, Batch, Gauges, Output, Request
from watchdog.simulator.core_start import Workers, load
from watchdog.simulator.faults import Value, concerns
from watchdog.simulator.options import Options
from watchdog.simulator.titles import set_title
from watchdog.simulator.wire import Channel, Message

_BURN = 0.02


def run(options: Options, rank: int, leader: Channel) -> NoReturn:
    """Load, then serve for ever; ends by a signal, or by the death of a worker (exit 1)."""
    log = log_lines.Log(log_lines.engine_name(rank, options.engines))
    set_title(f"VLLM::{log.name}")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a loading EngineCore only takes note
    workers = load(options, rank, log)
    leader.send({"ready": True, "workers": workers.pids})
    _Core(options, rank, leader, workers).serve()


class _Core:
    def __init__(self, options: Options, rank: int, leader: Channel, workers: Workers) -> None:
        self._options, self._rank = options, rank
        self._log = log_lines.Log(log_lines.engine_name(rank, options.engines))
        self._leader, self._workers = leader, workers
        self._batch = Batch()
        self._faults: dict[str, Value] = {}
        self._interval = 1 / options.tokens_per_second
        self._next_step = 0.0
        self._step = 0
        self._awaited: set[int] = set()
        self._late: list[Message] = []
        self._sent_at = self._warned_at = 0.0
        self._compiler: tuple[int, float] | None = None
        self._selector = selectors.DefaultSelector()

    def serve(self) -> NoReturn:
        signal.signal(signal.SIGTERM, self._terminate)
        self._selector.register(self._leader, selectors.EVENT_READ, self._from_leader)
        for rank, channel in self._workers.channels.items():
            self._selector.register(
                channel,
                selectors.EVENT_READ,
                lambda r=rank, c=channel: self._from_worker(r, c),
            )
        for name, value in self._options.faults.items():
            self._set_fault(name, value)
        while True:
            for key, _ in self._selector.select(self._patience()):
                key.data()
            self._turn()

    def _terminate(self, *_: object) -> NoReturn:
        self._log.note("core.py:1190", "[shutdown] engine core exiting")
        os._exit(0)

    def _patience(self) -> float | None:
        """How long nothing can happen but a message."""
        now = time.monotonic()
        if "spin" in self._faults:
            return 0.0
        if self._compiler:
            return max(0.0, self._compiler[1] - now)
        if self._awaited:
            return 1.0
        return max(0.0, self._next_step - now) if self._busy() else None

    def _busy(self) -> bool:
        return "saturate" in self._faults or ("sleeping" not in self._faults and bool(self._batch))

    def _turn(self) -> None:
        now = time.monotonic()
        if "spin" in self._faults:
            while time.monotonic() < now + _BURN:
                pass
        elif self._compiler:
            self._compile_on(now)
        elif self._awaited:
            self._complain(now)
        elif self._busy() and now >= self._next_step:
            self._begin_step(now)

    # --- messages -----------------------------------------------------------------------------

    def _from_leader(self) -> None:
        try:
            messages = self._leader.receive()
        except EOFError:
            self._selector.unregister(self._leader)
            return
        for message in messages:
            if message["do"] in ("add", "abort") and (self._awaited or self._compiler):
                self._late.append(message)
            else:
                self._obey(message)

    def _catch_up(self) -> None:
        """What came during a step: vLLM's loop sees its input only between two steps."""
        late, self._late = self._late, []
        for message in late:
            self._obey(message)

    def _obey(self, message: Message) -> None:
        match message["do"]:
            case "add":
                now = time.monotonic()
                ends = now + float(self._faults.get("prefill", 0))
                request = Request(message["name"], message["prompt"], message["limit"], now, ends)
                self._batch.add(request)
            case "abort":
                if self._batch.abort(message["name"]):
                    self._report([(message["name"], "abort")], 0)
            case "set":
                self._set_fault(message["name"], message["value"])
            case "clear":
                self._faults.pop(message["name"], None)
                self._report([], 0)
            case unknown:
                self._log.fail("core.py:1200", f"unknown message {unknown}")

    def _set_fault(self, name: str, value: Value) -> None:
        match name:
            case "hang" if concerns(value, self._rank):
                os.kill(os.getpid(), signal.SIGSTOP)
            case "hang_worker" if concerns(value, self._rank):
                for channel in self._workers.channels.values():
                    channel.send({"do": "stop"})
            case "double_fork" if self._rank == 0:
                offspring.fork_detached(value)
            case "cuda_oom":
                self._die(start_failures.OUT_OF_MEMORY)
            case "saturate" | "sleeping" | "spin":
                self._faults[name] = value
                self._report([], 0)
            case "compile" | "prefill":
                self._faults[name] = value
            case _:  # the leader's own faults, and another rank's
                pass

    # --- steps --------------------------------------------------------------------------------

    def _begin_step(self, now: float) -> None:
        if "compile" in self._faults:
            seconds = float(self._faults.pop("compile"))
            self._compiler = (offspring.fork_compiler(), now + seconds)
            return
        self._step += 1
        self._next_step = max(self._next_step + self._interval, now)
        self._sent_at = self._warned_at = now
        self._awaited = set(self._workers.channels)
        for channel in self._workers.channels.values():
            channel.send({"do": "step", "step": self._step})
        if not self._awaited:
            self._end_step()

    def _from_worker(self, rank: int, channel: Channel) -> None:
        try:
            messages = channel.receive()
        except EOFError:
            self._worker_died(rank)
        for message in messages:
            if message["done"] == self._step:
                self._awaited.discard(rank)
        if messages and not self._awaited:
            self._end_step()

    def _end_step(self) -> None:
        if "saturate" in self._faults:
            self._report([], PHANTOM_TOKENS)
        else:
            self._report(self._batch.step(time.monotonic()), 0)
        self._catch_up()

    def _compile_on(self, now: float) -> None:
        if self._compiler and now >= self._compiler[1]:
            offspring.end_compiler(self._compiler[0])
            self._compiler = None
            self._catch_up()

    def _report(self, outputs: list[Output], phantom: int) -> None:
        gauges = self._gauges()
        numbers = (gauges.running, gauges.waiting, gauges.usage)
        self._leader.send({"out": outputs, "phantom": phantom, "gauges": numbers})

    def _gauges(self) -> Gauges:
        gauges = self._batch.gauges(time.monotonic())
        if "saturate" in self._faults:
            return Gauges(PHANTOM_TOKENS, 100 + self._step % 50, 0.9 + self._step % 10 / 100)
        if "spin" in self._faults:
            return Gauges(max(1, gauges.running), gauges.waiting, max(0.01, gauges.usage))
        return gauges

    # --- trouble ------------------------------------------------------------------------------

    def _complain(self, now: float) -> None:
        interval = float(os.environ.get("VLLM_RINGBUFFER_WARNING_INTERVAL", "60"))
        if now - self._warned_at >= interval:
            self._warned_at = now
            text = f"No available shared memory broadcast block found in {interval:.0f} seconds."
            self._log.note("shm_broadcast.py:681", text)
        if now - self._sent_at >= float(
            os.environ.get("VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS", "300"),
        ):
            self._die("TimeoutError: RPC call to sample_tokens timed out.")

    def _worker_died(self, rank: int) -> NoReturn:
        text = f"Worker proc VllmWorker-{rank} died unexpectedly (exit code: None)"
        self._log.fail("multiproc_executor.py:280", text)
        self._die("RuntimeError: Executor failed.")

    def _die(self, reason: str) -> NoReturn:
        self._log.fail("core.py:1145", "EngineCore encountered a fatal error.")
        self._log.fail("core.py:1145", f"Traceback (most recent call last):\n{reason}")
        self._leader.send({"dead": True})
        for pid in self._workers.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        os._exit(1)
