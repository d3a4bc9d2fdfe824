"""What ``sweep`` prints and how it ends, for what a sweep may have found."""

from __future__ import annotations

from watchdog.cli.sweep import BLIND, DONE, UNDONE, body, engines, exit_code, render
from watchdog.config import Config, EngineConfig
from watchdog.supervisor.leftovers import Swept

FOUND = Swept(
    removed=("/dev/shm/psm_0",),
    kept=(("/dev/shm/psm_1", "a process uses it"),),
    spared=(("/dev/shm/psm_2", "it is younger than 60 s"),),
)
FAILED = Swept(kept=(("/dev/shm/psm_3", "operation not permitted"),))
BLINDED = Swept(
    removed=("/tmp/vw-0",), kept=(("/dev/shm/psm_4", "they are hidden"),), why="they are hidden"
)


def test_a_dry_run_says_what_would_go_and_how() -> None:
    """FACT: what is kept has its reason, and the command that removes the rest is named."""
    assert render(FOUND, "", removed=False).splitlines() == [
        "would be removed:",
        "  /dev/shm/psm_0",
        "kept:",
        "  /dev/shm/psm_1: a process uses it",
        "  /dev/shm/psm_2: it is younger than 60 s",
        "nothing was removed; `vllm-watchdog sweep --yes` removes it",
    ]
    assert render(FOUND, "", removed=True).splitlines()[:2] == ["removed:", "  /dev/shm/psm_0"]
    assert render(Swept(), "", removed=False) == "nothing to sweep"


def test_a_hostile_name_is_shown_and_not_obeyed() -> None:
    """FACT: no control character of a path reaches a terminal."""
    found = Swept(removed=("/tmp/\x1b[31m\n",))
    assert render(found, "", removed=True).splitlines() == ["removed:", r"  /tmp/\x1b[31m\n"]


def test_how_it_ends() -> None:
    """FACT: 0 also with files in use, 1 for what could not be removed, 3 for what is not known."""
    assert exit_code(FOUND, "", removed=True) == DONE
    assert exit_code(FAILED, "", removed=True) == UNDONE
    assert exit_code(FAILED, "", removed=False) == DONE
    assert exit_code(BLINDED, BLINDED.why, removed=True) == BLIND
    assert render(BLINDED, BLINDED.why, removed=True).splitlines()[-1] == (
        "not known: they are hidden"
    )


def test_json_has_all_of_it() -> None:
    """FACT: scripts find the same, and the exit code."""
    assert body(FOUND, "", removed=False) == {
        "removed": [],
        "would_remove": ["/dev/shm/psm_0"],
        "kept": [
            {"path": "/dev/shm/psm_1", "why": "a process uses it"},
            {"path": "/dev/shm/psm_2", "why": "it is younger than 60 s"},
        ],
        "unknown": "",
        "exit_code": 0,
    }
    done = body(FOUND, "", removed=True)
    assert (done["removed"], done["would_remove"]) == (["/dev/shm/psm_0"], [])


def test_engines_that_only_a_daemon_knows_count() -> None:
    """FACT: one that is not in the configuration any more is looked after all the same."""
    config = Config(engine={"main": EngineConfig(command=("vllm",))})
    found = {one.name: one for one in engines(config, {"old": (1,)})}
    assert found["main"].processes() == ()
    assert [info.pid for info in found["old"].processes()] == [1]
