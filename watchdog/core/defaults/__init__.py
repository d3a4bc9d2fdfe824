"""The default rules: thresholds with their reasons. Each has a page in ``docs/runbooks``."""

from watchdog.core.defaults.engine import ENGINE_RULES
from watchdog.core.defaults.gpu import GPU_RULES
from watchdog.core.defaults.gpu_faults import GPU_FAULT_RULES
from watchdog.core.defaults.host import HOST_RULES

DEFAULT_RULES = (*ENGINE_RULES, *GPU_FAULT_RULES, *GPU_RULES, *HOST_RULES)

__all__ = ["DEFAULT_RULES"]
