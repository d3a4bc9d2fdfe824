"""Rules as data: conditions in CEL over declared samples, the default rules, the user's own."""

from watchdog.rules.building import build_rules
from watchdog.rules.defaults import default_rules
from watchdog.rules.errors import RuleError

__all__ = ["RuleError", "build_rules", "default_rules"]
