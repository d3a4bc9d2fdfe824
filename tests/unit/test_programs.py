"""Which program a command starts, behind whatever stands in front of it."""

from __future__ import annotations

import pytest

from watchdog.programs import named, runs

SERVE = ("vllm", "serve", "m", "--distributed-executor-backend", "ray")


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (SERVE, "vllm"),
        (("env", "-u", "A", "B=c", "nice", "-n", "5", "/opt/serve.py", "x"), "serve.py"),
        (("A=b", "python3", "-X", "dev", "-m", "mine.server"), "mine.server"),
        (("timeout", "-k", "5", "100", "tini", "--", "my-engine"), "my-engine"),
        (("numactl", "--cpunodebind=0", "python3", "/opt/serve.py"), "serve.py"),
        (("bash", "-c", "cd /x && exec env A=b my-engine --flag; exit 1"), "my-engine"),
        (("sh", "-lc", "ulimit -n 1; vllm serve m & wait"), "vllm"),
        (("bash", "-c", 'exec "$ENGINE" serve'), ""),
        (("bash", "-c", "'"), ""),
        (("bash", "/opt/start.sh"), ""),
        (("bash",), ""),
        (("env",), ""),
        (("python3", "-c", "text"), ""),
        ((), ""),
    ],
)
def test_a_command_names_the_one_program_that_it_starts(
    command: tuple[str, ...], name: str
) -> None:
    """FACT: assignments, wrappers and shells are passed over; what is not read names nothing."""
    assert named(command) == name


@pytest.mark.parametrize(
    ("argv", "command"),
    [
        (("/usr/bin/ray", "start"), SERVE),
        (("bash", "-c", "nc -l 8000"), ("bash", "-c", "exec vllm serve m")),
        (("bash", "other.sh"), ("bash", "start.sh")),
        (("env", "x"), ("env", "vllm", "serve", "m")),
        (("python3", "m"), SERVE),
        (("sleep", "9"), ("bash", "-c", "sleep 9; exec my-engine")),
    ],
)
def test_no_other_word_of_a_command_is_its_program(
    argv: tuple[str, ...], command: tuple[str, ...]
) -> None:
    """FACT: arguments, wrappers and shells never make a stranger the engine."""
    assert not runs(argv, command)
