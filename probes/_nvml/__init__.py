"""NVML behind a pipe: the worker is the only code that imports pynvml."""
