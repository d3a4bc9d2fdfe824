"""Starts that fail: vLLM's log lines for each cause, and the exit status.

The texts are those of public reports; a watchdog classifies the exit by them.
"""

from collections.abc import Mapping
from types import MappingProxyType

from watchdog.simulator.log_lines import Log

OUT_OF_MEMORY = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
    "capacity of 79.10 GiB of which 1.06 GiB is free. Process 4242 has 78.03 GiB memory in use."
)

EARLY_FAULTS: Mapping[str, int] = MappingProxyType({"bad_argument": 2, "model_missing": 1})
"""Fail in the leader before anything else exists; exit status."""

_EARLY_LINES = {
    "bad_argument": "vllm serve: error: unrecognized arguments: --no-such-flag",
    "model_missing": (
        "OSError: {model} is not a local folder and is not a valid model identifier listed on "
        "'https://huggingface.co/models'"
    ),
}

_803 = (
    "RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions "
    "before calling NumCudaDevices() that might have already set an error? "
    "Error 803: system has unsupported display driver / cuda driver combination"
)
_804 = (
    "RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions "
    "before calling NumCudaDevices() that might have already set an error? "
    "Error 804: forward compatibility was attempted on non supported HW"
)
_SHORT = (
    "ValueError: Free memory on device cuda:0 (12.34/79.10 GiB) on startup is less than desired "
    "GPU memory utilization (0.92, 72.77 GiB). Decrease GPU memory utilization or reduce GPU "
    "memory used by other processes."
)

CORE_LINES: Mapping[str, str] = MappingProxyType(
    {"cuda_oom": OUT_OF_MEMORY, "driver_803": _803, "compat_804": _804, "memory_short": _SHORT},
)
"""Faults that kill EngineCore while it loads, and the last line of its traceback."""


def log_early(log: Log, fault: str, model: str) -> None:
    """The lines of a fault of EARLY_FAULTS."""
    if fault != "bad_argument":
        log.raw("Traceback (most recent call last):")
    log.raw(_EARLY_LINES[fault].format(model=model))


def log_port_in_use(log: Log, host: str, port: int, reason: str) -> None:
    """What vLLM prints when it cannot bind."""
    log.raw("Traceback (most recent call last):")
    log.raw(f"OSError: {reason}: ('{host}', {port})")


def log_core_failure(log: Log, fault: str) -> None:
    """EngineCore's lines for a fault of CORE_LINES."""
    log.fail("core.py:1136", "EngineCore failed to start.")
    log.fail("core.py:1136", f"Traceback (most recent call last):\n{CORE_LINES[fault]}")


def log_initialization_failed(log: Log) -> None:
    """The leader's last words when EngineCore died before it was ready."""
    log.raw("Traceback (most recent call last):")
    log.raw(
        "RuntimeError: Engine core initialization failed. See root cause above. "
        "Failed core proc(s): {}",
    )
