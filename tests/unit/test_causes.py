"""Why an engine ended: one recording for each signature, and what must not be taken for one."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.core import NAME, serving
from tests.support.simulated import ROOT
from watchdog.core.model import Cause, EngineExited
from watchdog.core.state import RETRIES
from watchdog.supervisor.causes import TAIL_BYTES, classify
from watchdog.supervisor.exits import ExitStatus
from watchdog.supervisor.signatures import Signature, page, signatures

FAILED = ExitStatus(exit_code=1)
RECORDINGS = {path.stem: path for path in (ROOT / "tests/recordings/exits").glob("*.log")}
ROWS = {row.name: row for row in signatures()}
STARTED = (ROOT / "tests/recordings/vllm-0.32-cpu-start.log").read_bytes()


@pytest.mark.parametrize("name", sorted(RECORDINGS))
def test_a_recorded_end_has_its_cause(name: str) -> None:
    """FACT: the root cause is found among its consequences, and told in two sentences."""
    row = ROWS[name]
    code = 1 if row.exit_code is None else row.exit_code
    told = classify(ExitStatus(exit_code=code), RECORDINGS[name].read_bytes())
    assert (told.signature, told.cause, told.advice) == (name, row.cause, row.advice)
    assert told.explanation.endswith(f"; the engine exited with status {code}")
    assert told.explanation.isprintable()
    assert "{" not in told.explanation


def test_every_pattern_has_a_recording() -> None:
    """FACT: no row of the table is untried, and they are more than thirty of many causes."""
    assert RECORDINGS.keys() == {name for name, row in ROWS.items() if row.patterns}
    assert len(ROWS) >= 30
    assert len({row.cause for row in ROWS.values()}) >= 25


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_the_table_says_what_the_policy_does(row: Signature) -> None:
    """FACT: a row's retry class is how often its cause is tried again."""
    assert RETRIES.get(row.cause) == row.retry.restarts


@pytest.mark.parametrize(
    ("name", "explanation"),
    [
        (
            "gpu_memory_taken",
            "63.21 GiB of 79.10 GiB GPU memory were free, and the engine wants 72.77 GiB",
        ),
        (
            "cuda_oom",
            "GPU 1 ran out of memory: 2.00 GiB were wanted, 1.06 GiB of 79.10 GiB were free",
        ),
        (
            "kv_cache_too_small",
            "one request of 131072 tokens needs 16.0 GiB KV cache, and 6.91 GiB are there",
        ),
        ("shm_short", "/dev/shm has 62 MiB free, and the engine needs 160 MiB"),
        ("gpus_too_few", "the command needs 4 GPUs, and the engine sees 2"),
    ],
)
def test_the_explanation_has_the_numbers(name: str, explanation: str) -> None:
    """FACT: what vLLM says in numbers is in the sentence for the person on call."""
    told = classify(FAILED, RECORDINGS[name].read_bytes())
    assert told.explanation == f"{explanation}; the engine exited with status 1"


# --- what is no evidence --------------------------------------------------------------------------


def test_a_good_start_betrays_nothing() -> None:
    """FACT: a real start, which warns of too many open files, explains no later exit."""
    up_to = STARTED.index(b"Application startup complete")
    assert b"Too many open files" in STARTED[:up_to]
    told = classify(FAILED, STARTED[:up_to])
    assert (told.cause, told.signature) == (Cause.CRASH, "")
    assert told.advice


@pytest.mark.parametrize("name", sorted(name for name in RECORDINGS if not ROWS[name].quiet))
@pytest.mark.parametrize(
    "line",
    [
        "(APIServer pid=7) INFO 11-30 05:14:40 [logger.py:39] Received request: ",
        "\x1b[0;36m(APIServer pid=7)\x1b[0;0m \x1b[32mINFO\x1b[0m \x1b[90m11-30 05:14:40\x1b[0m ",
        '{"asctime": "2026-11-30 05:14:40", "levelname": "INFO", "message": "',
        "INFO:     ",
    ],
)
def test_what_a_prompt_says_is_no_evidence(name: str, line: str) -> None:
    """FACT: the words of any failure in a line that reports none do not name a cause."""
    words = RECORDINGS[name].read_text().replace("\n", "\\n")
    told = classify(FAILED, f"{line}prompt: '{words}'\n".encode())
    assert (told.cause, told.signature) == (Cause.CRASH, "")


@pytest.mark.parametrize(
    "line",
    [
        "requests.exceptions.HTTPError: 403 Client Error: Forbidden for url: https://a.example/b.png",
        "urllib3.exceptions.MaxRetryError: Max retries exceeded with url: /b.png (Caused by",
        "requests.exceptions.HTTPError: 502 Server Error: Bad Gateway for url: https://a.example/b",
    ],
)
def test_a_picture_that_a_request_names_is_no_model(line: str) -> None:
    """FACT: an error of fetching what a client asked for says nothing about the model hub."""
    log = f"(APIServer pid=7) ERROR 11-30 05:14:40 [serving.py:9] {line}\n"
    assert classify(FAILED, log.encode()).cause is Cause.CRASH


@given(st.binary(max_size=2048), st.integers(0, 255), st.integers(1, 64) | st.none())
def test_noise_is_not_explained(noise: bytes, code: int, number: int | None) -> None:
    """FACT: random bytes never raise and never name a cause, whatever the status is."""
    status = ExitStatus(exit_code=code) if number is None else ExitStatus(signal=number)
    told = classify(status, noise)
    assert told == classify(status, b"")
    assert told.cause is not Cause.CLEAN
    if number is None and code <= 128:
        assert told.cause is Cause.CRASH


@pytest.mark.parametrize("name", sorted(RECORDINGS))
def test_a_log_full_of_beginnings_ends(name: str) -> None:
    """FACT: 64 KiB that nearly match, over and over, are searched to their end."""
    for pattern in ROWS[name].patterns:
        found = pattern.search(RECORDINGS[name].read_bytes())
        part = found.group()[:-1] if found else pattern.pattern[:9]
        assert classify(FAILED, (part * TAIL_BYTES)[:TAIL_BYTES]).explanation


@given(st.text(max_size=200))
def test_values_from_the_log_stay_on_one_line(value: str) -> None:
    """FACT: what the log puts into an explanation can neither break lines nor move the cursor."""
    line = (
        f"The supplied chat template ({value}) looks like a file path, but it failed to be opened"
    )
    assert classify(FAILED, line.encode(errors="replace")).explanation.isprintable()


# --- signals, kills and members -------------------------------------------------------------------


@pytest.mark.parametrize(
    "status", [ExitStatus(exit_code=0), FAILED, ExitStatus(signal=9), ExitStatus(exit_code=137)]
)
def test_an_oom_kill_that_is_known_explains_all(status: ExitStatus) -> None:
    """FACT: D5: evidence of an OOM kill outranks status and log; its text is the explanation."""
    text = "the kernel killed VLLM::EngineCore (61 GiB of 64 GiB)"
    told = classify(status, RECORDINGS["engine_core_died"].read_bytes(), oom=text)
    assert (told.cause, told.explanation, told.signature) == (Cause.OOM_KILLED, text, "")
    assert told.advice


@pytest.mark.parametrize("status", [ExitStatus(signal=9), ExitStatus(exit_code=137)])
def test_a_kill_nobody_explains_says_where_to_look(status: ExitStatus) -> None:
    """FACT: the OOM killer leaves no word in the log, and the on-call engineer is told so."""
    told = classify(status, RECORDINGS["cuda_oom"].read_bytes())
    assert told.cause is Cause.SIGNAL
    assert "OOM killer" in told.explanation
    assert "dmesg" in told.advice
    assert "memory.events" in told.advice


@pytest.mark.parametrize(
    ("number", "cause", "signature"),
    [
        (signal.SIGBUS, Cause.SHM_SHORT, "sigbus_leader"),
        (signal.SIGILL, Cause.INSTALL_BROKEN, "sigill_leader"),
        (signal.SIGSEGV, Cause.SIGNAL, "sigsegv_leader"),
        (signal.SIGABRT, Cause.SIGNAL, "sigabrt_leader"),
        (signal.SIGTERM, Cause.SIGNAL, ""),
        (signal.SIGUSR1, Cause.SIGNAL, ""),
    ],
)
@pytest.mark.parametrize("shell", [False, True])
def test_a_signal_without_a_word(
    number: signal.Signals, cause: Cause, signature: str, *, shell: bool
) -> None:
    """FACT: the signal alone is a cause, also where a shell made 128 + n of it."""
    status = ExitStatus(exit_code=128 + number) if shell else ExitStatus(signal=number)
    told = classify(status, b"")
    assert (told.cause, told.signature) == (cause, signature)
    assert told.advice


def test_the_log_knows_better_than_an_abort() -> None:
    """FACT: native code that aborts after a CUDA error was ended by that error."""
    told = classify(ExitStatus(signal=6), RECORDINGS["gpu_illegal_access"].read_bytes())
    assert (told.cause, told.signature) == (Cause.GPU_FAULT, "gpu_illegal_access")


@pytest.mark.parametrize(
    ("lost", "cause"),
    [
        (("VLLM::EngineCor", "VLLM::Worker"), Cause.ENGINE_CORE_DIED),
        (("VLLM::Worker_TP1",), Cause.WORKER_DIED),
        (("sh",), Cause.CRASH),
        ((), Cause.CRASH),
    ],
)
def test_a_member_that_went_first_is_named(lost: tuple[str, ...], cause: Cause) -> None:
    """FACT: without a word in the log the member that went before the leader is the cause."""
    assert classify(ExitStatus(exit_code=0), b"", lost).cause is cause


# --- where it is told -----------------------------------------------------------------------------


def test_the_journal_has_the_advice() -> None:
    """FACT: ``engine.exited`` says what to do; an exit without advice has no such key."""
    for advice in ("make room", ""):
        story = serving()
        gone = (900.0, NAME, story.engine.generation, 1, None, Cause.DISK_FULL, "it is full")
        story.take(EngineExited(*gone, advice))
        (record,) = story.events("engine.exited")
        assert dict(record.keys).get("advice") == (advice or None)


def test_the_page_is_current() -> None:
    """FACT: docs/exit-causes.md is what the table prints."""
    assert (ROOT / "docs/exit-causes.md").read_text() == page()
    command = [sys.executable, "-m", "watchdog.supervisor.signatures"]
    printed = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, check=True)
    assert printed.stdout.decode() == page()
    assert len(re.findall(r"^\| `", page(), re.MULTILINE)) == len(ROWS)
