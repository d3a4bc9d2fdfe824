"""A worker whose memory is garbage: what it says ends as one error, or as absent values."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from probes._nvml.client import NvmlUnavailableError
from probes.gpu import PROBE, Gpu
from probes.gpu_processes import PROBE as PROCESSES
from probes.gpu_processes import GpuProcesses
from tests.support.fake_nvml import asking
from tests.support.simulated import PATIENCE
from watchdog.contracts import Probe, ProbeSpec
from watchdog.core.model import Event, ReadingTaken
from watchdog.daemon.box import EngineBox
from watchdog.runner import ProbeRun
from watchdog.supervisor.memory_ledger import MemoryLedger

# Answers every request with the text in a file; @ is the request's number.
PARROT = """
import sys
text = open(sys.argv[1]).read()
for line in sys.stdin:
    sys.stdout.write(text.replace("@", line.split()[0]) + "\\n")
    sys.stdout.flush()
"""
WELL = '{"index":1,"uuid":"GPU-1","bus_id":"b","errors":{},"power_watts":7,"processes":[]}'
DEEP = "[" * 100_000
LONG = "9" * 4000


def worker(folder: Path, text: str) -> tuple[str, ...]:
    """Its command line."""
    (folder / "text").write_text(text)
    return (sys.executable, "-c", PARROT, str(folder / "text"))


@pytest.mark.parametrize("request_", ["cards", "processes", "events"])
@pytest.mark.parametrize(
    "text",
    [
        '{"request":@}',
        '{"request":@,"gpus":null,"events":null}',
        '{"request":@,"gpus":5,"events":5}',
        '{"request":@,"gpus":{},"events":{}}',
        '{"request":@,"gpus":' + DEEP,
        '{"request":"@","gpus":[],"events":[]}',
        '{"request":@,"error":["x"],"code":[]}',
        '{"request":@,"error":"two\\nlines","code":1e999}',
    ],
)
def test_what_is_no_answer_is_one_error(tmp_path: Path, text: str, request_: str) -> None:
    """FACT: whoever asks gets one line of an error, whatever the worker made of it."""
    with asking({}, worker(tmp_path, text)) as client:
        with pytest.raises(NvmlUnavailableError) as caught:
            client.ask(request_, time.monotonic() + PATIENCE)
        assert str(caught.value).startswith("cannot read any GPU: ")
        assert str(caught.value).isprintable()
        assert client.unanswered_since is None


CARD = '{"index":0,"uuid":"GPU-0","bus_id":"b","errors":{},%s}'
BAD = {
    "no card": "1",
    "a list": "[]",
    "no index": '{"uuid":"GPU-0","errors":{}}',
    "an odd index": '{"index":"x","uuid":"GPU-0","errors":{}}',
    "a truth": '{"index":true,"errors":{}}',
    "no errors": '{"index":0,"uuid":"GPU-0"}',
    "odd errors": '{"index":0,"uuid":"GPU-0","errors":[1]}',
    "odd words": '{"index":0,"uuid":["a"],"name":5,"errors":{"power":{"a":"b\\n"}}}',
    "NaN": CARD % '"power_watts":NaN,"temperature_celsius":-1e999,"memory_used_bytes":Infinity',
    "huge": CARD % f'"power_watts":{LONG},"ecc_corrected_errors":{LONG},"memory_used_bytes":{LONG}',
    "odd numbers": CARD % '"power_watts":"7","memory_used_bytes":-5,"memory_total_bytes":1.5',
    "a mask": CARD % '"reasons":"x","reasons_supported":null',
    "half a mask": CARD % '"reasons":4',
    "throttled": CARD % '"throttle_seconds":[1]',
    "throttled by": CARD % '"throttle_seconds":{"sw_power_cap":"x","hw_thermal":NaN}',
    "no rows": CARD % '"processes":5',
    "odd rows": CARD % '"processes":[[1,-5,null,null],["a",1,null,null]]',
    "short rows": CARD % '"processes":[[1],[]]',
    "deep rows": CARD % '"processes":[[[[[1]]]]]',
}


@pytest.mark.parametrize("which", BAD)
@pytest.mark.parametrize("spec", [PROBE, PROCESSES], ids=lambda spec: str(spec.name))
def test_a_card_of_garbage_hides_no_other(tmp_path: Path, which: str, spec: ProbeSpec) -> None:
    """FACT: what makes no sense is absent or unread, and the card beside it is sampled."""
    text = f'{{"request":@,"gpus":[{BAD[which]},{WELL}]}}'
    posted: list[Event] = []
    with asking({}, worker(tmp_path, text)) as client:
        box = EngineBox({}, MemoryLedger())
        probe: Probe = Gpu(client) if spec is PROBE else GpuProcesses(client, box)
        ProbeRun(spec, probe, None, None, posted.append).run()
    (event,) = posted
    assert isinstance(event, ReadingTaken)
    assert event.reading.error is None
    assert "gpu/GPU-1" in {str(one.subject) for one in event.reading.samples}
    assert all(one.error.isprintable() for one in event.reading.unread)
    told = {one.sample for one in event.reading.samples if str(one.subject) != "gpu/GPU-1"}
    assert told <= {"state", "throttled"}


def test_garbage_about_events_is_no_event(tmp_path: Path) -> None:
    """FACT: events are told as far as they can be understood."""
    text = '{"request":@,"supported":1,"events":[1,{"xid":"x","uuid":[]},{"xid":31,"gi":NaN}]}'
    with asking({}, worker(tmp_path, text)) as client:
        answer = client.ask("events", time.monotonic() + PATIENCE)
    nobody = {"uuid": "", "bus_id": "", "gi": None, "ci": None}
    assert answer == {
        "supported": False,
        "events": [{**nobody, "xid": None}, {**nobody, "xid": 31}],
    }
