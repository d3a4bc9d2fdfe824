"""What an auditor writes down of engines and rules, from the outside: no line of the core is used.

One account for each engine, and one for each rule and subject that it has acted about.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from watchdog.core.lifecycle import LIFE
from watchdog.core.model import Cause, Decision, Outcome, Seconds
from watchdog.core.rules import Rule
from watchdog.core.state import EngineState, PolicySettings

REFUSALS = frozenset({Cause.GPU_MEMORY_SHORT, Cause.DRIVER_MISMATCH, Cause.PORT_IN_USE})
"""Why the box itself refuses a start: such a restart is not paid for."""


@dataclass
class Account:
    """One engine. ``row`` counts failures in a row, ``restarts`` are (when, it never got ready).

    ``stopped`` by an operator, or ``resigned``: stopped by a rule.
    """

    running: str = ""
    aside: str = ""
    charged: bool = False
    ready: bool = False
    stopped: bool = False
    resigned: bool = False
    broken: bool = False
    row: int = 0
    now: Seconds = 0.0
    restarts: list[tuple[Seconds, bool]] = field(default_factory=list)

    def forgive(self) -> None:
        """A person took over."""
        self.restarts.clear()
        self.row, self.broken = 0, False

    def failed(self, engine: EngineState, policy: PolicySettings) -> None:
        """It failed; after a long time of service that is the first failure of a new row."""
        if engine.failed_at is not None and engine.ready_at is not None:
            stable = engine.failed_at - engine.ready_at >= policy.reset_after_ready
            self.row = 0 if stable else self.row

    def restarted(self, act: Decision, engine: EngineState, policy: PolicySettings) -> None:
        """A start of our own: backoff and budgets must have allowed it."""
        self.now = act.at
        since = self._waits_from(engine, policy) if act.action == "restart_engine" else None
        if since is not None and self.row:
            wait = min(policy.backoff_initial * 2.0 ** (self.row - 1), policy.backoff_max)
            assert act.at - since >= wait, f"backoff of {wait} s not kept: {act}"
        self.row += 1
        self.restarts.append((act.at, not self.ready))
        self.charged = True
        for budget, boots in ((policy.restart_budget, False), (policy.boot_budget, True)):
            used = [at for at, boot in self.restarts if boot or not boots]
            inside = sum(act.at - at < budget.window for at in used)
            assert inside <= budget.count, f"{inside} restarts in {budget.window} s: {act}"
        self.restarts = [one for one in self.restarts if act.at - one[0] < _LONGEST]

    def _waits_from(self, engine: EngineState, policy: PolicySettings) -> Seconds | None:
        """The failure; of what works, and has not for long, the last restart."""
        if engine.failed_at is not None or not self.restarts or engine.ready_at is None:
            return engine.failed_at
        long = self.now - engine.ready_at >= policy.reset_after_ready
        return None if long else self.restarts[-1][0]

    def ended(self, outcome: Outcome) -> None:
        """An action is over; one that the box refused is paid back."""
        if outcome.action not in LIFE:
            self.aside = ""
            return
        if not outcome.ok and not outcome.unkillable:
            self.ready = False
            if outcome.cause in REFUSALS and self.charged:
                self.restarts.pop()
        self.running, self.charged = "", False


_LONGEST: Seconds = 86400.0
STARTS = frozenset({"start_engine", "restart_engine"})
"""What the budgets bound; anything else rests on the last rung of a ladder."""
_FREE_RESTS: Seconds = 300.0


@dataclass
class Rungs:
    """One rule about one subject: its ladder, and when its last action ended."""

    rung: int = 0
    acted_at: Seconds | None = None
    ended_at: Seconds | None = None
    healed_at: Seconds | None = None
    action: str = ""

    def climbs(self, act: Decision, rule: Rule) -> None:
        """The rule acts: it must be the turn of this rung, and the rest must be over."""
        due = rule.actions[min(self.rung, len(rule.actions) - 1)]
        assert act.action == due, f"rung {self.rung} is {due}, not {act.action}"
        if self.ended_at is not None:
            rested = act.at - self.ended_at
            free = self.rung >= len(rule.actions) and rule.actions[-1] not in STARTS
            rest = max(rule.cooldown, _FREE_RESTS) if free else rule.cooldown
            assert rested >= rest, f"rested {rested} s of {rest}: {act}"
        self.rung += 1
        self.action = act.action
        self.acted_at, self.ended_at, self.healed_at = act.at, None, None

    def fires(self, at: Seconds, policy: PolicySettings) -> None:
        """The finding is there again."""
        if self.healed_at is not None and at - self.healed_at >= policy.reset_after_ready:
            self.rung = 0
        self.healed_at = None
