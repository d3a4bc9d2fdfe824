"""How long the NVML worker is waited for, and what is said meanwhile: a library of our own."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from probes._nvml.client import WORKER, NvmlClient, NvmlHungError
from tests.support import fake_nvml
from tests.support.fake_nvml import FakeNvml, asking, sweep, trouble
from tests.support.simulated import PATIENCE, until

SOON = 0.3
"""Seconds given to a sweep that will hang anyway."""


@pytest.fixture
def nvml(tmp_path: Path) -> FakeNvml:
    """A loaded H200."""
    return fake_nvml.build(tmp_path)


@pytest.fixture
def client(nvml: FakeNvml) -> Iterator[NvmlClient]:
    """A client of that card."""
    with asking(nvml.environment) as asked:
        yield asked


def ask(client: NvmlClient, request: str, patience: float = PATIENCE) -> dict[str, Any]:
    """The answer to a request that must be answered."""
    return client.ask(request, time.monotonic() + patience)


def counted(folder: Path) -> tuple[tuple[str, ...], Path]:
    """A worker's command that leaves a line in the file for every start."""
    starts = folder / "starts"
    starts.touch()
    return ("/bin/sh", "-c", f'echo >> "{starts}"; exec "$@"', "sh", *WORKER), starts


def healthy(client: NvmlClient) -> bool:
    """Whether a request is answered, and nothing is held against the driver any more."""
    sweep(client)
    return blameless(client)


def blameless(client: NvmlClient) -> bool:
    """Whether nothing is held against the driver."""
    return not client.trouble and client.unanswered_since is None


def test_a_slow_start_is_waited_for(nvml: FakeNvml) -> None:
    """FACT: a worker whose first answer takes longer than a request is not started again."""
    command, starts = counted(nvml.folder)
    nvml.set({"do.nvmlInit": 3 * SOON * 1000})
    with asking(nvml.environment, command) as client:
        assert trouble(client, SOON) == "cannot read any GPU: no answer in time"
        assert len(sweep(client)["gpus"]) == 1
        assert len(starts.read_text()) == 1


@pytest.fixture
def silent(tmp_path: Path) -> Iterator[tuple[NvmlClient, Path]]:
    """A client of a worker that never answers, and where that notes the request it got."""
    asked = tmp_path / "asked"
    with asking({}, ("/bin/sh", "-c", 'read -r line; echo > "$0"; read -r line', str(asked))) as it:
        yield it, asked


def test_waiting_for_a_turn_counts(silent: tuple[NvmlClient, Path]) -> None:
    """FACT: who comes while another request hangs has its own deadline, and the same trouble."""
    client, asked = silent
    other = threading.Thread(target=trouble, args=(client, 2 * PATIENCE))
    before = time.monotonic()
    other.start()
    try:
        until(asked.exists)
        with pytest.raises(NvmlHungError):
            ask(client, "processes", SOON)
        assert client.trouble == "cannot read any GPU: no answer in time"
        assert before < (client.unanswered_since or 0.0)
    finally:
        client.close()
        other.join(PATIENCE)
    assert not other.is_alive()


def test_an_answer_ends_the_blame_of_who_waited(tmp_path: Path) -> None:
    """FACT: what is noted by who waited in vain for a turn goes with the answer to the other."""
    go, asked = tmp_path / "go", tmp_path / "asked"
    os.mkfifo(go)
    reply = r'echo "{\"request\":$n,\"gpus\":[]}"'
    script = f'read -r n _; echo > "$1"; read -r _ < "$0"; {reply}; read -r _'
    with asking({}, ("/bin/sh", "-c", script, str(go), str(asked))) as client:
        first = threading.Thread(target=sweep, args=(client,))
        first.start()
        until(asked.exists)
        with pytest.raises(NvmlHungError):
            ask(client, "events", SOON)
        assert client.unanswered_since is not None
        go.write_text("\n")
        first.join(PATIENCE)
        assert blameless(client)


def test_patience_with_a_first_answer_grows(nvml: FakeNvml) -> None:
    """FACT: a library that starts more slowly than the first worker may take is got through."""
    command, starts = counted(nvml.folder)
    nvml.set({"do.nvmlInit": 2000})
    client = NvmlClient(command, {**os.environ, **nvml.environment}, attach=1.0)
    try:
        until(lambda: answers(client), 2 * PATIENCE)
        assert len(starts.read_text()) > 1
    finally:
        client.close()
        until(lambda: not client.pids)


def answers(client: NvmlClient) -> bool:
    """Whether a request of a short patience is answered."""
    try:
        return bool(sweep(client, SOON)["gpus"])
    except NvmlHungError:
        return False


def test_it_says_since_when_nobody_answers(nvml: FakeNvml, client: NvmlClient) -> None:
    """FACT: the row of hanging requests has the begin of its first, and ends with an answer."""
    sweep(client)
    assert client.unanswered_since is None
    nvml.do("stuck")
    before = time.monotonic()
    try:
        assert trouble(client, SOON) == client.trouble
        since = client.unanswered_since
        assert since is not None
        assert before <= since < time.monotonic()
        trouble(client, SOON)
        assert client.unanswered_since == since
    finally:
        nvml.heal()
    assert healthy(client)


def test_an_error_is_an_answer(nvml: FakeNvml, client: NvmlClient) -> None:
    """FACT: a driver that says why it cannot is no driver that does not respond."""
    nvml.set({"error.nvmlInit": fake_nvml.VERSIONS_DIFFER})
    assert trouble(client) == client.trouble != ""
    assert client.unanswered_since is None


@pytest.mark.parametrize("end", ["crash", "no worker"])
def test_an_end_is_an_answer(nvml: FakeNvml, end: str) -> None:
    """FACT: a worker that dies, or that cannot be started, hangs no more."""
    door = nvml.folder / "door"
    door.symlink_to("/bin/sh")
    with asking(nvml.environment, (str(door), "-c", 'exec "$@"', "sh", *WORKER)) as client:
        sweep(client)
        nvml.do("hang")
        trouble(client, SOON)
        assert client.unanswered_since is not None
        nvml.heal()
        if end == "crash":
            nvml.do("crash")
        else:
            door.unlink()
        assert trouble(client).startswith("cannot ")
        assert client.unanswered_since is None
