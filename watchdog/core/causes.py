"""Why an engine exited, or was started."""

from __future__ import annotations

from enum import StrEnum


class Cause(StrEnum):
    """Why an engine exited or was (re)started. An exit nobody asked for is never ``clean``.

    ``rule`` is a restart that a rule asked for although the engine had not failed;
    ``pre_start_failed`` a hook before the start that did not succeed; ``not_expected`` a start
    whose log lacks what the configuration expects in it.
    """

    CLEAN = "clean"
    OPERATOR = "operator"
    CRASH = "crash"
    SIGNAL = "signal"
    ENGINE_CORE_DIED = "engine_core_died"
    WORKER_DIED = "worker_died"
    OOM_KILLED = "oom_killed"
    CUDA_OOM = "cuda_oom"
    STALLED = "stalled"
    START_TIMEOUT = "start_timeout"
    PORT_IN_USE = "port_in_use"
    PLACE_TAKEN = "place_taken"
    BAD_ARGUMENTS = "bad_arguments"
    MODEL_MISSING = "model_missing"
    MODEL_CHANGED = "model_changed"
    GPU_MEMORY_SHORT = "gpu_memory_short"
    DRIVER_TOO_OLD = "driver_too_old"
    DRIVER_MISMATCH = "driver_mismatch"
    CUDA_COMPAT_UNSUPPORTED = "cuda_compat_unsupported"
    NCCL_FAILURE = "nccl_failure"
    GPU_FAULT = "gpu_fault"
    XID = "xid"
    MODEL_DENIED = "model_denied"
    MODEL_UNSUPPORTED = "model_unsupported"
    MODEL_DAMAGED = "model_damaged"
    HUB_UNREACHABLE = "hub_unreachable"
    INSTALL_BROKEN = "install_broken"
    PERMISSION_DENIED = "permission_denied"
    GPU_MISSING = "gpu_missing"
    GPU_NOT_READY = "gpu_not_ready"
    GPU_UNSUPPORTED = "gpu_unsupported"
    KV_CACHE_SHORT = "kv_cache_short"
    HOST_MEMORY_SHORT = "host_memory_short"
    SHM_SHORT = "shm_short"
    DISK_FULL = "disk_full"
    TOO_MANY_FILES = "too_many_files"
    COMPILE_CACHE = "compile_cache"
    PRE_START_FAILED = "pre_start_failed"
    NOT_EXPECTED = "not_expected"
    RULE = "rule"
    UNKNOWN = "unknown"
