"""The leader, ``vllm serve`` itself: starts the tree, serves HTTP, and ends as vLLM does.

The main thread owns the life cycle; HTTP, engine reports and timers run in threads that wake it.
"""

import contextlib
import os
import select
import signal
import socket
import sys
import threading
import time
from multiprocessing import resource_tracker
from typing import NoReturn

from watchdog.simulator import engine_core, litter, log_lines, start_failures
from watchdog.simulator.api_servers import ApiServers
from watchdog.simulator.engine_client import EngineClient
from watchdog.simulator.faults import LEADER_TIMERS
from watchdog.simulator.frontend import Frontend, Phase
from watchdog.simulator.log_lines import Log
from watchdog.simulator.options import Options
from watchdog.simulator.wire import Channel

_READY_TIMEOUT = 600.0
_WORKER_DEATH_DELAY = 0.3
_GONE_TIMEOUT = 5.0
_LOOK_PERIOD = 0.02
_FORCE = 2
"""So many signals end a wait at once."""


class Leader:
    """One run; every way out goes through leave."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._log = Log("APIServer")
        self._frontend = Frontend(options, self._log)
        self._began = time.monotonic()
        self._wake_reader, self._wake_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._terms = 0
        self._dies_at: float | None = None
        self._last_tokens: dict[int, tuple[int, int]] = {}
        self._api_servers: ApiServers | None = None
        self._leaving = threading.Lock()

    def run(self) -> NoReturn:
        """The whole life, from the banner to the exit status."""
        log_lines.leader_banner(self._log, self._options)
        for fault, status in start_failures.EARLY_FAULTS.items():
            if fault in self._options.faults:
                start_failures.log_early(self._log, fault, self._options.model)
                self.leave(status)
        listener = self._bind()
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)
        log_lines.leader_config(self._log)
        self._start_engines(listener)
        self._arm_timers()
        self._wait_ready()
        self._serve(listener)

    def leave(self, status: int) -> NoReturn:
        """End the process and, unless told to leave orphans, the tree."""
        self._leaving.acquire()  # once: what else ends it now is only the echo of the first
        self._frontend.phase = Phase.CLOSING
        if not self._frontend.board.has("leave_orphans"):
            if self._api_servers is not None:
                self._api_servers.kill()
            for engine in self._frontend.engines:
                engine.kill()
            for engine in self._frontend.engines:
                engine.wait_gone(_GONE_TIMEOUT)
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        os._exit(status)  # interpreter shutdown would wait for the resource tracker

    def _on_signal(self, number: int, _: object) -> None:
        if number == signal.SIGTERM and self._frontend.board.has("ignore_term"):
            self._log.note("launcher.py:150", "[shutdown] SIGTERM ignored")
            return
        self._terms += 1 if number == signal.SIGTERM or self._serving() else 2
        with contextlib.suppress(OSError):
            os.write(self._wake_writer, b"s")

    def _serving(self) -> bool:
        return self._frontend.phase is not Phase.LOADING

    # --- start --------------------------------------------------------------------------------

    def _bind(self) -> socket.socket:
        from watchdog.simulator.server import bind

        host, port = self._options.host, self._options.port
        try:
            if "port_in_use" not in self._options.faults:
                return bind(host, port)
            reason = "[Errno 98] Address already in use"
        except OSError as error:
            reason = str(error)
        start_failures.log_port_in_use(self._log, host, port, reason)
        return self.leave(1)

    def _start_engines(self, listener: socket.socket) -> None:
        resource_tracker.ensure_running()
        try:
            litter.create_ring_buffer()
            litter.leave_rendezvous_file()
            litter.leave_sockets(max(0, litter.SOCKETS_PER_START - 2 * self._options.engines))
            for rank in range(self._options.engines):
                self._frontend.engines.append(self._start_engine(rank, listener))
        except OSError as error:
            self._log.raw(f"OSError: cannot create the engine's sockets: {error}")
            self.leave(1)

    def _start_engine(self, rank: int, listener: socket.socket) -> EngineClient:
        door, path = litter.new_listener()
        pid = os.fork()
        if pid == 0:
            listener.close()
            door.close()
            os.close(self._wake_reader)
            os.close(self._wake_writer)
            engine_core.run(self._options, rank, Channel(litter.connect(path)))
        client = EngineClient(rank, pid, Channel(door.accept()[0]))
        door.close()
        return client

    def _wait_ready(self) -> None:
        timeout = float(os.environ.get("VLLM_ENGINE_READY_TIMEOUT_S", _READY_TIMEOUT))
        deadline = time.monotonic() + timeout
        waiting = list(self._frontend.engines)
        while waiting:
            if self._terms > 1:
                self._die_of_interrupt()
            state = None if self._terms else waiting[0].wait_ready(0.05)
            if self._terms:
                self._sleep(0.5)  # the handshake was broken off: ready is never heard of
            if state is False or time.monotonic() > deadline:
                if self._frontend.phase is not Phase.CLOSING:
                    start_failures.log_initialization_failed(self._log)
                self.leave(1)
            if state:
                waiting.pop(0)

    def _die_of_interrupt(self) -> NoReturn:
        self._log.raw("KeyboardInterrupt: terminated")
        for engine in self._frontend.engines:
            engine.kill()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
        self.leave(130)

    def _sleep(self, seconds: float) -> None:
        """Until something wakes the main thread, or so long."""
        if select.select([self._wake_reader], [], [], seconds)[0]:
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake_reader, 4096)

    # --- faults with a clock ------------------------------------------------------------------

    def _arm_timers(self) -> None:
        self._frontend.on_fault = self._arm
        for name in (*LEADER_TIMERS, "exit_code"):
            if name in self._options.faults:
                self._arm(name, time.monotonic() - self._began)

    def _arm(self, name: str, elapsed: float = 0.0) -> None:
        board = self._frontend.board
        if name == "exit_code" and not board.among(("crash_after", "exit_zero_after")):
            self.leave(int(board.value(name) or 0))
        if name in LEADER_TIMERS:
            value = board.value(name) or 0
            timer = threading.Timer(max(0.0, value - elapsed), self._fire, (name, value))
            timer.daemon = True
            timer.start()

    def _fire(self, name: str, value: float) -> None:
        board = self._frontend.board
        if board.value(name) != value:
            return
        if name == "kill_core_after":
            self._frontend.engines[0].signal(signal.SIGKILL)
        elif name == "exit_zero_after":
            self.leave(0)
        else:
            self._log.raw("RuntimeError: simulated crash of the API server")
            code = board.value("exit_code")
            self.leave(1 if code is None else int(code))

    # --- serving ------------------------------------------------------------------------------

    def _serve(self, listener: socket.socket) -> NoReturn:
        from watchdog.simulator.server import Server

        port = int(listener.getsockname()[1])
        log_lines.about_to_listen(self._log, self._options, port)
        listener = self._behind_api_servers(listener)
        for engine in self._frontend.engines:
            engine.watch(self._engine_died)
        server = Server(listener, self._frontend)
        self._frontend.phase = Phase.SERVING
        self._terms = 0
        try:
            server.start()
        except OSError as error:
            start_failures.log_port_in_use(self._log, self._options.host, port, str(error))
            self.leave(1)
        log_lines.ready(self._log)
        self._until_asked()
        self._drain()
        self._close(server)

    def _behind_api_servers(self, listener: socket.socket) -> socket.socket:
        """Where the leader itself listens: behind its API servers, where there are several."""
        from watchdog.simulator.server import bind

        if self._options.api_servers == 1:
            return listener
        inner = bind("127.0.0.1", 0)
        listener.listen()
        port = int(inner.getsockname()[1])
        self._api_servers = ApiServers(self._options.api_servers, listener, port)
        self._api_servers.watch(self._api_server_died)
        return inner

    def _api_server_died(self, number: int) -> None:
        self._log.raw(f"RuntimeError: Process ApiServer_{number} died with exit code -9")
        self.leave(1)

    def _until_asked(self) -> None:
        """Wait for a signal; leaves by itself when the engine is dead."""
        interval = float(os.environ.get("VLLM_LOG_STATS_INTERVAL", "10"))
        while not self._terms:
            due = self._dies_at
            self._sleep(interval if due is None else max(0.0, due - time.monotonic()))
            if due is None:
                self._log_stats(interval)
            elif time.monotonic() >= due:
                if not self._keeps_alive():
                    self._leave_dead()
                self._sleep(0.5)

    def _keeps_alive(self) -> bool:
        wanted = os.environ.get("VLLM_KEEP_ALIVE_ON_ENGINE_DEATH", "0") not in ("", "0")
        return wanted or self._frontend.board.has("keep_alive")

    def _engine_died(self, engine: EngineClient, *, announced: bool) -> None:
        if self._frontend.phase is not Phase.CLOSING:
            text = "Engine core proc EngineCore died unexpectedly, shutting down client."
            self._log.fail("core_client.py:700", text)
            self._log.fail("async_llm.py:720", "AsyncLLM output_handler failed.")
        delay = self._options.engine_death_delay
        if announced:
            delay = min(delay, _WORKER_DEATH_DELAY)
        self._dies_at = time.monotonic() + delay
        engine.fail_all()
        with contextlib.suppress(OSError):
            os.write(self._wake_writer, b"d")

    def _leave_dead(self) -> NoReturn:
        self._log.server("Shutting down")
        self._log.server(f"Finished server process [{os.getpid()}]")
        self.leave(0)

    def _log_stats(self, interval: float) -> None:
        for engine in self._frontend.engines:
            counters = engine.counters
            now = (counters.prompt_tokens, counters.generation_tokens)
            before = self._last_tokens.get(engine.rank, (0, 0))
            self._last_tokens[engine.rank] = now
            if now != before or counters.running:
                rates = [(a - b) / interval for a, b in zip(now, before, strict=True)]
                gauges = (counters.running, counters.waiting, counters.usage)
                log_lines.engine_stats(self._log, engine.rank, rates, gauges)

    # --- stop ---------------------------------------------------------------------------------

    def _drain(self) -> None:
        """With ``--shutdown-timeout``: running requests may finish, new ones are refused."""
        self._frontend.phase = Phase.DRAINING
        self._log.note("launcher.py:160", "[shutdown] SIGTERM received, shutting down")
        deadline = time.monotonic() + self._options.shutdown_timeout
        while self._frontend.outstanding() and self._terms < _FORCE and not self._frontend.dead:
            if time.monotonic() >= deadline:
                break
            self._sleep(_LOOK_PERIOD)

    def _close(self, server: "Server") -> NoReturn:  # type: ignore[name-defined] # noqa: F821
        """Kill the engine, then wait for the clients: for as long as they stay."""
        self._frontend.phase = Phase.CLOSING
        if not self._frontend.board.has("leave_orphans"):
            for engine in self._frontend.engines:
                engine.kill()
        self._log.server("Shutting down")
        server.close()
        if self._frontend.open_requests:
            self._log.server("Waiting for connections to close. (CTRL+C to force quit)")
        while self._frontend.open_requests and self._terms < _FORCE:
            self._sleep(_LOOK_PERIOD)
        self._log.server("Waiting for application shutdown.")
        self._log.server("Application shutdown complete.")
        self._log.server(f"Finished server process [{os.getpid()}]")
        self.leave(0)
