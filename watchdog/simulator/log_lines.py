"""vLLM 0.32's log lines, in its order and with its prefixes.

``(APIServer pid=..) INFO 11-30 01:45:39 [core.py:114] ...``: process, level, time, place, text.
"""

import contextlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass

from watchdog.simulator.options import VERSION, Options


@dataclass(frozen=True, slots=True)
class Log:
    """Writes the lines of one process to standard output, as vLLM's default stream does."""

    name: str

    def note(self, place: str, text: str) -> None:
        """One line of level INFO."""
        self._stamped("INFO", place, text)

    def fail(self, place: str, text: str) -> None:
        """One line of level ERROR; every line of a traceback gets a prefix of its own."""
        for line in text.splitlines():
            self._stamped("ERROR", place, line)

    def server(self, text: str, level: str = "INFO") -> None:
        """A line of the HTTP server, which has its own format."""
        self.raw(f"{level + ':':<9} {text}".rstrip())

    def raw(self, text: str) -> None:
        """A line with the prefix only."""
        line = f"({self.name} pid={os.getpid()}) {text}\n"
        with contextlib.suppress(OSError):
            os.write(1, line.encode(errors="replace"))

    def _stamped(self, level: str, place: str, text: str) -> None:
        self.raw(f"{level} {time.strftime('%m-%d %H:%M:%S')} [{place}] {text}")


def engine_name(rank: int, engines: int) -> str:
    """The log prefix and title suffix of an EngineCore."""
    return f"EngineCore_DP{rank}" if engines > 1 else "EngineCore"


def worker_name(engine: int, rank: int, options: Options) -> str:
    """``Worker`` alone, or with its data and tensor parallel ranks."""
    data = f"_DP{engine}" if options.engines > 1 else ""
    tensor = f"_TP{rank}" if options.workers > 1 else ""
    return f"Worker{data}{tensor}"


def leader_banner(log: Log, options: Options) -> None:
    """Lines 1: the first that vLLM prints."""
    log.note("api_utils.py:339", f"       █     █     █▄   ▄█  version {VERSION}")
    log.note("api_utils.py:339", f" ▄▄ ▄█ █     █     █ ▀▄▀ █  model   {options.model}")
    arguments = {"model": options.model, "host": options.host, "port": options.port}
    log.note("api_utils.py:273", f"non-default args: {arguments}")


def leader_config(log: Log) -> None:
    """Lines 2: the configuration has been resolved."""
    log.note("model.py:598", "Resolved architecture: SimulatedForCausalLM")
    log.note("model.py:1725", "Using max model len 4096")


def core_begin(log: Log, options: Options) -> None:
    """Line 3."""
    text = f"Initializing a V1 LLM engine (v{VERSION}) with config: model={options.model!r}"
    log.note("core.py:114", text)


def world(log: Log, size: int, rank: int) -> None:
    """Line 4, before the rendezvous."""
    text = f"world_size={size} rank={rank} local_rank={rank} distributed_init_method=file"
    log.note("parallel_state.py:1588", f"{text} backend=nccl")


def assigned(log: Log, size: int, rank: int) -> None:
    """Line 4, after the rendezvous: a gap between the two is a hang in NCCL."""
    text = f"rank {rank} in world size {size} is assigned as DP rank 0, PP rank 0, TP rank {rank}"
    log.note("parallel_state.py:1923", text)


def loading(log: Log, options: Options) -> None:
    """Lines 5 and the first of 6."""
    text = "Using FLASH_ATTN attention backend out of potential backends: ['FLASH_ATTN']"
    log.note("cuda.py:420", text)
    log.note("flash_attn.py:670", "Using FlashAttention version 3")
    log.note("model_runner.py:281", f"Starting to load model {options.model}...")


def shards(log: Log, done: int, total: int) -> None:
    """Progress of line 6."""
    share = 100 * done // total
    log.raw(f"Loading safetensors checkpoint shards: {share:3d}% Completed | {done}/{total}")


def loaded(log: Log, seconds: float) -> None:
    """The last of lines 6, and 7 to 9."""
    log.note("default_loader.py:430", f"Loading weights took {seconds:.2f} seconds")
    log.note("model_runner.py:302", f"Model loading took 0.01 GiB memory and {seconds:.6f} seconds")
    log.note("gpu_worker.py:508", "Available KV cache memory: 83.60 GiB")
    concurrency = "Maximum concurrency for 4,096 tokens per request: 16.00x"
    text = f"GPU KV cache size: 65,536 tokens, {concurrency}"
    log.note("kv_cache_utils.py:2146", text)
    log.note("model_runner.py:900", "Graph capturing finished in 0 secs, took 0.01 GiB")
    text = f"init engine (profile, create kv cache, warmup model) took {seconds:.2f} s"
    log.note("core.py:344", text)


def about_to_listen(log: Log, options: Options, port: int) -> None:
    """Lines 10 and the routes: vLLM prints them before it listens."""
    log.note("api_server.py:577", "Supported tasks: ['generate']")
    text = f"Starting vLLM server on {options.scheme}://{options.host}:{port}"
    log.note("api_server.py:581", text)
    log.note("launcher.py:37", "Available routes are:")
    for path in ("/health", "/metrics", "/v1/models", "/v1/completions", "/v1/chat/completions"):
        log.note("launcher.py:46", f"Route: {path}, Methods: GET, POST")


def ready(log: Log) -> None:
    """Lines 11: the engine serves."""
    log.server(f"Started server process [{os.getpid()}]")
    log.server("Waiting for application startup.")
    log.server("Application startup complete.")


def engine_stats(log: Log, rank: int, rates: Sequence[float], gauges: Sequence[float]) -> None:
    """The periodic line: prompt and generation rates, running, waiting, KV cache usage."""
    prompt, generation = rates
    running, waiting, usage = gauges
    log.note(
        "loggers.py:259",
        f"Engine {rank:03d}: Avg prompt throughput: {prompt:.1f} tokens/s, "
        f"Avg generation throughput: {generation:.1f} tokens/s, Running: {running:.0f} reqs, "
        f"Waiting: {waiting:.0f} reqs, GPU KV cache usage: {100 * usage:.1f}%, "
        "Prefix cache hit rate: 0.0%",
    )
