"""One rule over one engine, said a second time in the plainest way, to compare the core with."""

from __future__ import annotations

from dataclasses import dataclass, field

from watchdog.core.model import Seconds
from watchdog.core.rules import Rule

HELPED_AFTER: Seconds = 600.0
GAP: Seconds = 15.0
LAST_RUNG_RESTS: Seconds = 300.0
"""What costs no budget and did not help is not done again for so long."""


@dataclass
class Model:
    """What must come of looks at a healthy engine. ``acts`` is (when, what)."""

    rule: Rule
    value: bool | None = None
    at: Seconds | None = None
    true_since: Seconds | None = None
    false_since: Seconds | None = None
    firing: bool = False
    running: bool = False
    born_at: Seconds = 0.0
    gap_at: Seconds = 0.0
    process_at: Seconds = 0.0
    read_at: Seconds = 0.0
    rung: int = 0
    ended_at: Seconds | None = None
    healed_at: Seconds | None = None
    acts: list[tuple[Seconds, str]] = field(default_factory=list)

    def happens(self, at: Seconds) -> None:
        """Something happened at ``at``; what it was, is in the fields already."""
        if self.at is not None and at - self.at > GAP:
            self.true_since = self.false_since = self.value = None
            self.gap_at = at
        self.at = at
        self._judge(at)
        rested = self.ended_at is None or at - self.ended_at >= self._rest()
        due = self.firing and self.false_since is None and not self.running
        if due and rested and self._known(at):
            self._act(at)

    def _rest(self) -> Seconds:
        last = self.rung >= len(self.rule.actions)
        return max(self.rule.cooldown, LAST_RUNG_RESTS) if last else self.rule.cooldown

    def _known(self, at: Seconds) -> bool:
        """It holds, and was looked for since nobody looked, since the start and the last act."""
        holds = self.true_since is not None and at - self.true_since >= self.rule.hold_for
        looked = self.read_at >= max(self.gap_at, self.born_at, self.ended_at or 0.0)
        return holds and self.value is not None and looked and self.process_at >= self.gap_at

    def _judge(self, at: Seconds) -> None:
        if self.value is None:
            self.true_since = self.true_since if self.firing else None
            self.false_since = None
        elif self.value:
            self.false_since = None
            self.true_since = at if self.true_since is None else self.true_since
            lasted = at - self.true_since >= self.rule.hold_for
            seen = not self.rule.hold_for or self.read_at > self.true_since
            if not self.firing and lasted and seen:
                self.firing = True
                if self.healed_at is not None and at - self.healed_at >= HELPED_AFTER:
                    self.rung = 0
                self.healed_at = None
        else:
            self.true_since = None
            self.false_since = at if self.false_since is None else self.false_since
            if self.firing and at - self.false_since >= self.rule.clear_for:
                self.firing = False
                self.healed_at = at if self.acts else None
            if not self.firing:
                self.false_since = None

    def _act(self, at: Seconds) -> None:
        self.acts.append((at, self.rule.actions[min(self.rung, len(self.rule.actions) - 1)]))
        self.rung += 1
        self.running = True
        self.ended_at = self.healed_at = None
