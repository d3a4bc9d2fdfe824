"""Keeps vLLM engines serving tokens on NVIDIA GPUs, without systemd."""

__version__ = "0.1.0"
