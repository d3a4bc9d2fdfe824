"""What is raised when rules cannot be used."""

from __future__ import annotations

from collections.abc import Sequence


class RuleError(Exception):
    """Rules that cannot be used. ``lines`` are ``FILE: rule.NAME.KEY: what was expected``."""

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__("\n".join(lines))
        self.lines = tuple(lines)
