"""A start passes the gate, spawns what was asked, and reports how it ended."""

import os
import signal
import socket
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.simulated import until
from tests.support.trees import living, script, supervision
from watchdog import procfs
from watchdog.contracts import ActionError
from watchdog.core.model import Cause, EngineSpawned
from watchdog.ledger import GenerationRecord
from watchdog.supervisor import spawn, tempdirs
from watchdog.supervisor.household import Household
from watchdog.supervisor.memory_ledger import MemoryLedger

SLEEP = "time.sleep(600)\n"
SHOW = (
    "print('generation=' + os.environ['VLLM_WATCHDOG_GENERATION'])\n"
    "print('engine=' + os.environ['VLLM_WATCHDOG_ENGINE'])\n"
    "print('tmp=' + os.environ['TMPDIR'], 'rpc=' + os.environ['VLLM_RPC_BASE_PATH'])\n"
    "print('cache=' + os.environ['TORCHINDUCTOR_CACHE_DIR'])\n"
    "print('session', os.getsid(0) == os.getpid(), 'stdin', sys.stdin.read() == '')\n"
    "print('ready=1', flush=True)\n"
)


class Journal(MemoryLedger):
    """A ledger that remembers what was noted, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[tuple[str, object]] = []
        self.directories: list[Path] = []

    def planned(self, record: GenerationRecord) -> None:
        """Note it."""
        self.lines.append(("planned", record.pid))
        self.directories.append(Path(record.tempdir))
        super().planned(record)

    def spawned(self, generation: str, pid: int, start_ticks: int, at: float) -> None:
        """Note it."""
        self.lines.append(("spawned", pid))
        super().spawned(generation, pid, start_ticks, at)

    def ended(
        self, generation: str, *, exit_code: int | None, signal: int | None, cause: Cause
    ) -> None:
        """Note it."""
        self.lines.append(("ended", (exit_code, signal, cause)))
        super().ended(generation, exit_code=exit_code, signal=signal, cause=cause)


def test_the_engine_has_a_session_a_mark_and_a_directory_of_its_own() -> None:
    """FACT: what a leader finds: own session, no stdin, the id, a private 0700 directory.

    The directory goes with the set; the compile cache does not lie in it.
    """
    with supervision(script(SHOW + SLEEP)) as supervised:
        supervised.engine.start(Cause.OPERATOR)
        until(lambda: "ready=" in supervised.log())
        words = dict(w.split("=", 1) for w in supervised.log().split() if "=" in w)
        (record,) = supervised.ledger.living("main")
        private = Path(words["tmp"])

        assert words["generation"] == record.id
        assert words["engine"] == "main"
        assert words["tmp"] == words["rpc"] == record.tempdir
        assert stat.S_IMODE(private.stat().st_mode) == 0o700
        assert len(record.tempdir) < 60
        assert private not in Path(words["cache"]).parents
        assert "session True stdin True" in supervised.log()

        supervised.engine.stop(drain=False, cause=Cause.OPERATOR)
        assert not private.exists()


def test_what_the_user_sets_wins_over_ours_but_for_the_id(tmp_path: Path) -> None:
    """FACT: the engine's env replaces our variables, not the generation id; gpus become CUDA's."""
    user = {"TMPDIR": "/elsewhere", "VLLM_WATCHDOG_GENERATION": "forged", "X": "1"}
    launch = spawn.Launch("main", ("x",), tmp_path / "log", env=user, gpus=("0", "GPU-1"))

    env = spawn.environment(launch, "abc", tmp_path)

    assert env["TMPDIR"] == "/elsewhere"
    assert env["VLLM_RPC_BASE_PATH"] == str(tmp_path)
    assert env["VLLM_WATCHDOG_GENERATION"] == "abc"
    assert env["CUDA_VISIBLE_DEVICES"] == "0,GPU-1"
    assert env["X"] == "1"
    assert env["PATH"] == os.environ["PATH"]


def test_what_is_said_to_the_watchdog_is_not_said_to_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FACT: vLLM would warn of each. It gets what marks its processes, and what is its own."""
    monkeypatch.setenv("VLLM_WATCHDOG_CONFIG", "/etc/x.toml")
    monkeypatch.setenv("VLLM_WATCHDOG_STATE_DIR", "/var/lib/x")
    monkeypatch.setenv("VLLM_WATCHDOG_HOOK", "pre_start")
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "DEBUG")
    user = {"VLLM_WATCHDOG_STATE_DIR": "mine"}
    launch = spawn.Launch("main", ("x",), tmp_path / "log", env=user)

    env = spawn.environment(launch, "abc", tmp_path)

    assert {name: value for name, value in env.items() if name.startswith("VLLM_WATCHDOG_")} == {
        "VLLM_WATCHDOG_ENGINE": "main",
        "VLLM_WATCHDOG_GENERATION": "abc",
        "VLLM_WATCHDOG_STATE_DIR": "mine",
    }
    assert env["VLLM_LOGGING_LEVEL"] == "DEBUG"


def test_secrets_are_blotted_out_of_the_recorded_command() -> None:
    """FACT: no value of a key, token or password flag remains, in either spelling."""
    words = "vllm serve m --api-key k1 k2 --port 8000 --hf-token=t --api-key=k3 --max-model-len 9"

    kept = spawn.without_secrets(words.split())

    assert " ".join(kept) == (
        "vllm serve m --api-key *** *** --port 8000 --hf-token=*** --api-key=*** --max-model-len 9"
    )


def test_the_plan_is_noted_before_the_spawn_and_the_end_last() -> None:
    """FACT: planned without a pid, spawned with it, ended with the status; then nothing lives."""
    journal = Journal()
    with supervision(script("os._exit(7)"), ledger=journal) as supervised:
        supervised.engine.start(Cause.OPERATOR)
        supervised.exited()
        supervised.engine.stop(drain=False, cause=Cause.CRASH)

        assert journal.lines == [
            ("planned", None),
            ("spawned", supervised.pid),
            ("ended", (7, None, Cause.CRASH)),
        ]
        assert journal.living("main") == ()


def test_a_registered_child_in_a_session_of_its_own_is_nobodys_orphan() -> None:
    """FACT: what the daemon launches for itself is neither reaped, nor a member, nor killed."""
    with supervision(script("print('ready=1', flush=True)\n" + SLEEP)) as supervised:
        supervised.engine.start(Cause.OPERATOR)
        own = supervised.household.launch(
            lambda: subprocess.Popen(script(SLEEP), start_new_session=True)
        )
        try:
            assert own.pid not in supervised.pids()
            supervised.engine.stop(drain=False, cause=Cause.OPERATOR)
            assert own.poll() is None

            own.kill()
            until(lambda: (info := procfs.stat(own.pid)) and info.state == "Z")
            assert supervised.household.reap_orphans() == 0
        finally:
            own.kill()
            assert own.wait() == -signal.SIGKILL


@pytest.mark.parametrize(
    ("kind", "why"),
    [("missing", "no such file"), ("plain", "permission denied"), ("noise", "exec format error")],
)
def test_what_cannot_be_executed(tmp_path: Path, kind: str, why: str) -> None:
    """FACT: one line with the program and the reason; no record, process or directory remains."""
    program = tmp_path / kind
    if kind != "missing":
        program.write_text("\x01noise")
        program.chmod(0o755 if kind == "noise" else 0o644)
    journal = Journal()
    with supervision((str(program),), ledger=journal) as supervised:
        with pytest.raises(ActionError, match=f"cannot start .*{kind}.*: {why}") as caught:
            supervised.engine.start(Cause.OPERATOR)

        assert caught.value.cause is Cause.BAD_ARGUMENTS
        assert "\n" not in str(caught.value)
        assert supervised.events == []
        assert journal.living("main") == ()
        assert [path.exists() for path in journal.directories] == [False]


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    """FACT: a working directory that does not exist is the reason, not the program."""
    launch = spawn.Launch("main", (sys.executable,), tmp_path / "log", cwd=str(tmp_path / "no"))

    with pytest.raises(ActionError, match=r"its directory .*/no does not exist"):
        spawn.spawn(launch, {}, Household())


def test_a_log_that_cannot_be_opened(tmp_path: Path) -> None:
    """FACT: the log's path and the reason, in one line."""
    launch = spawn.Launch("main", (sys.executable,), tmp_path / "no" / "log")

    with pytest.raises(ActionError, match=r"cannot open the engine's log .*no/log: No such file"):
        spawn.spawn(launch, {}, Household())


def test_a_log_that_would_block_is_refused(tmp_path: Path) -> None:
    """FACT: a FIFO that nobody reads, where the log should be, is refused at once."""
    launch = spawn.Launch("main", (sys.executable,), tmp_path / "log")
    os.mkfifo(launch.log_path)

    with pytest.raises(ActionError, match=r"cannot open the engine's log .*: No such device"):
        spawn.spawn(launch, {}, Household())

    reader = os.open(launch.log_path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with pytest.raises(ActionError, match=r"it is no regular file"):
            spawn.spawn(launch, {}, Household())
    finally:
        os.close(reader)


def test_a_taken_port_names_its_owner() -> None:
    """FACT: a listener refuses the start with port_in_use, its pid and its name; then it starts."""
    with supervision(script(SLEEP)) as supervised:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", supervised.port))
            listener.listen()
            with pytest.raises(ActionError, match=f"process {os.getpid()} ") as caught:
                supervised.engine.start(Cause.OPERATOR)
            assert caught.value.cause is Cause.PORT_IN_USE
            assert supervised.events == []

        supervised.engine.start(Cause.OPERATOR)
        assert len(supervised.pids()) == 1


def test_no_second_leader_beside_the_first() -> None:
    """FACT: a start while the leader lives is refused, and the leader is left alone."""
    with supervision(script(SLEEP)) as supervised:
        supervised.engine.start(Cause.OPERATOR)
        with pytest.raises(ActionError, match=f"cannot start main: {supervised.pid} lives"):
            supervised.engine.start(Cause.OPERATOR)

        assert living([supervised.pid]) == [supervised.pid]


def test_a_start_ends_what_a_crash_left() -> None:
    """FACT: never on top: orphans of a dead leader are gone before the next leader is spawned."""
    text = "if os.fork() == 0: time.sleep(600)\nprint('ready=1', flush=True)\n" + SLEEP
    with supervision(script(text)) as supervised:
        supervised.engine.start(Cause.OPERATOR)
        until(lambda: len(supervised.pids()) == 2 and "ready=" in supervised.log())
        old = list(supervised.pids())
        os.kill(supervised.pid, signal.SIGKILL)
        supervised.exited()

        supervised.engine.start(Cause.CRASH)

        assert living(old) == []
        assert supervised.pid not in old
        assert len(supervised.ledger.living("main")) == 1


def test_a_recorded_generation_that_lives_refuses_the_start() -> None:
    """FACT: an unadopted process of an older record blocks a start; once it is dead, it does not.

    Its private directory is then removed.
    """
    with supervision(script(SLEEP)) as supervised:
        supervised.engine.start(Cause.OPERATOR)
        (record,) = supervised.ledger.living("main")
        pid = supervised.pid
        supervised.engine.leave()

        with pytest.raises(ActionError, match=f"process {pid} of an older start lives"):
            supervised.engine.start(Cause.OPERATOR)

        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        supervised.engine.start(Cause.OPERATOR)
        assert not Path(record.tempdir).exists()


def test_only_private_directories_are_removed(tmp_path: Path) -> None:
    """FACT: a path without our prefix, or a link with it, is left alone."""
    kept = tmp_path / "kept"
    kept.mkdir()
    link = tmp_path / "vw-link"
    link.symlink_to(kept)

    assert not tempdirs.remove(kept)
    assert not tempdirs.remove(link)
    assert kept.is_dir()


def test_a_start_can_be_repeated() -> None:
    """FACT: stop and start again: a new pid, a new generation, and the count of spawns is two."""
    with supervision(script(SLEEP)) as supervised:
        for _ in range(2):
            supervised.engine.start(Cause.OPERATOR)
            supervised.engine.stop(drain=False, cause=Cause.OPERATOR)
        spawned = [event for event in supervised.events if isinstance(event, EngineSpawned)]

        assert len({event.generation for event in spawned}) == 2
        assert [replace(e, at=0.0).adopted for e in spawned] == [False, False]
        assert all(event.cause is Cause.OPERATOR for event in supervised.exits())
