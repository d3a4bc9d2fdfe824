"""Starts a leader: its environment, its session, its log."""

from __future__ import annotations

import getpass
import os
import re
import stat
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from watchdog.contracts import ActionError
from watchdog.core.model import Cause
from watchdog.supervisor import descriptors, tempdirs
from watchdog.supervisor.household import Household
from watchdog.supervisor.members import GENERATION_VARIABLE

ENGINE_VARIABLE = "VLLM_WATCHDOG_ENGINE"
_OURS = "VLLM_WATCHDOG_"
_SECRET = re.compile(r"^--?[\w-]*(key|token|password|secret)s?(=|$)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Launch:
    """What to start and with which changes to our own environment.

    ``gpus`` None leaves the choice to the environment, as it is.
    """

    engine: str
    command: tuple[str, ...]
    log_path: Path
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    gpus: tuple[str, ...] | None = None


def lasting(launch: Launch) -> dict[str, str]:
    """What every generation's environment has: ours, then what we set, then what the user set."""
    ours = {ENGINE_VARIABLE: launch.engine}
    if launch.gpus is not None:
        # Without it CUDA counts the fastest card first, and NVML as the bus does.
        ours["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        ours["CUDA_VISIBLE_DEVICES"] = ",".join(launch.gpus)
    return dict(os.environ) | ours | dict(launch.env)


def environment(launch: Launch, generation: str, tempdir: Path) -> dict[str, str]:
    """The environment of one generation: what lasts, its private places, and its id.

    What tells the watchdog its own places is not for the engine: vLLM warns of each variable
    ``VLLM_…`` that it does not know, and with ``--fail-on-environ-validation`` does not start.
    """
    base = dict(os.environ)
    own = {
        "TMPDIR": str(tempdir),
        "VLLM_RPC_BASE_PATH": str(tempdir),
        "TORCHINDUCTOR_CACHE_DIR": base.get("TORCHINDUCTOR_CACHE_DIR") or _compile_cache(),
    }
    whole = lasting(launch) | own | dict(launch.env) | {GENERATION_VARIABLE: generation}
    meant = {ENGINE_VARIABLE, GENERATION_VARIABLE, *launch.env}
    return {name: v for name, v in whole.items() if name in meant or not name.startswith(_OURS)}


def spawn(launch: Launch, env: Mapping[str, str], household: Household) -> subprocess.Popen[bytes]:
    """Start the leader in a session of its own; raises ActionError in one line.

    The log is the child's own file descriptor: our death blocks nothing.
    """
    log = _opened(launch.log_path)
    try:
        return household.launch(lambda: _popen(launch, env, log))
    except (OSError, ValueError) as error:
        raise ActionError(_why(launch, error), Cause.BAD_ARGUMENTS) from error
    finally:
        os.close(log)


def _opened(path: Path) -> int:
    """The log, to append to. A FIFO without a reader would block for ever: it must be a file."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        log = os.open(path, flags, 0o640)
    except OSError as error:
        raise ActionError(f"cannot open the engine's log {path}: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(log).st_mode):
        os.close(log)
        raise ActionError(f"cannot open the engine's log {path}: it is no regular file")
    os.set_blocking(log, True)
    return log


def without_secrets(command: Sequence[str]) -> tuple[str, ...]:
    """The command with the values of keys, tokens and passwords blotted out."""
    kept: list[str] = []
    secret = False
    for word in command:
        flag = word.startswith("-")
        kept.append("***" if secret and not flag else _blotted(word))
        secret = (secret and not flag) or (bool(_SECRET.match(word)) and "=" not in word)
    return tuple(kept)


def _blotted(word: str) -> str:
    return f"{word.partition('=')[0]}=***" if _SECRET.match(word) and "=" in word else word


def _popen(launch: Launch, env: Mapping[str, str], log: int) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        launch.command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        cwd=launch.cwd,
        env=env,
        start_new_session=True,
        close_fds=True,
    )
    descriptors.as_inherited(process.pid)
    return process


def _why(launch: Launch, error: OSError | ValueError) -> str:
    program = launch.command[0] if launch.command else ""
    if isinstance(error, ValueError):
        return f"cannot start {program!r}: {error}"
    if launch.cwd is not None and not Path(launch.cwd).is_dir():
        return f"cannot start {program!r}: its directory {launch.cwd} does not exist"
    return f"cannot start {program!r}: {(error.strerror or str(error)).lower()}"


def _compile_cache() -> str:
    """Where torch would cache compiled kernels without our private TMPDIR, so that they survive."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    safe = re.sub(r"[^\w.-]", "_", user)
    return str(Path(tempdirs.temporary()) / f"torchinductor_{safe}")
