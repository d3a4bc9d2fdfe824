"""Prometheus: counters of what happened, gauges of the last snapshot. prometheus_client's door."""

from watchdog.metrics.exporter import Exporter

__all__ = ["Exporter"]
