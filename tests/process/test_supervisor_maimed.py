"""An engine that has lost a part to the kernel's OOM killer and lives on without it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.memory_cgroups import kernel, limited
from tests.support.simulated import until
from tests.support.trees import ended, script, supervision
from watchdog.core.model import Cause

MAIMED = script(
    "child = os.fork()\n"
    "if child == 0:\n"
    "    held = []\n"
    "    while not os.path.exists(sys.argv[1]): time.sleep(0.01)\n"
    "    while True: held.append(bytearray(b'x') * (1 << 20))\n"
    "print(f'child={child}', flush=True)\n"
    "os.waitpid(child, 0)\n"
    "time.sleep(600)\n"
)


@pytest.fixture
def small() -> Iterator[Path]:
    """A memory cgroup with a low limit, which is gone afterwards."""
    with limited() as folder:
        yield folder


@pytest.mark.root
@kernel
@pytest.mark.parametrize(
    ("asked", "cause"),
    [(Cause.ENGINE_CORE_DIED, Cause.OOM_KILLED), (Cause.OPERATOR, Cause.OPERATOR)],
)
def test_a_part_that_the_kernel_ended(
    small: Path, tmp_path: Path, asked: Cause, cause: Cause
) -> None:
    """FACT (D5): stopped because it lacks a part, it says who took that; an operator's stop not."""
    go = tmp_path / "go"
    with supervision((*MAIMED, str(go))) as seen:
        seen.engine.start(Cause.OPERATOR)
        child = seen.said("child")
        until(lambda: child in seen.pids())
        (small / "cgroup.procs").write_text(str(child))
        go.touch()
        until(lambda: ended(child))
        seen.engine.stop(drain=False, cause=asked)
        exited = seen.exited()
    assert exited.cause is cause
    assert (f"OOM killer ended process {child}" in exited.explanation) is (cause is not asked)
