"""W1: the watchdog is killed in every state of the life cycle: no engine is lost, none doubled."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.support.killing import wait, ward
from tests.support.killing_moments import MOMENTS, kill_at

FIRST = '[policy]\nrestart_budget = { count = 1, window = "1h" }\n'


@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_at(moment: str, tmp_path: Path) -> None:
    """FACT: whoever lives is known to the next watchdog, who runs one engine and keeps accounts.

    At no time did processes of two starts live, and no restart is missing on the account.
    """
    with ward(tmp_path) as one:
        before = one.account()
        found = kill_at(one, moment, Random(moment))  # noqa: S311 - to be repeated
        name, starts, charged = one.account()
        if name != before[0]:
            before = (name, 1, 0)  # another engine, and its first start
        made = starts - before[1] - MOMENTS[moment].asked
        # A restart that died with its watchdog, planned and not spawned, stays on the account.
        assert made <= charged - before[2] <= MOMENTS[moment].crashes + (moment == "restarting")
        if moment in {"running", "draining", "reloading", "adopting", "adopted"}:
            assert found.same
            assert found.took is not None


def test_killed_after_it_was_given_up(tmp_path: Path) -> None:
    """FACT: a breaker that is open stays open: nothing lives, nothing is started, a person may."""
    with ward(tmp_path, policy=FIRST) as one:
        one.kill_leader()
        wait(lambda: one.serves() and one.account()[1] == 2)
        one.kill_leader()
        one.reach("given_up")
        assert one.kill().keys() <= one.auditor.seen
        one.succeed()
        one.reach("given_up")
        wait(one.rests)
        assert one.daemon.engine()["breaker_open"]
        assert one.daemon.command("reset-breaker").returncode == 0
        wait(one.serves)
        assert one.auditor.double == []
