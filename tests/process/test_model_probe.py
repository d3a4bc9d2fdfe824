"""The engine_model probe against simulated engines, and against servers that mean harm."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from probes.engine_model import PROBE, Settings
from tests.support.engines import Target, answered, errors, raw_server, requests, values
from tests.support.simulated import free_port, simulated
from watchdog.contracts import Endpoint, EngineLook, FirstGood, Probe
from watchdog.core.model import ProcessState, Sampled, Unread, Value

READY = EngineLook(generation="g1", state=ProcessState.RUNNING, ready=True)
GOOD = FirstGood("simulated/tiny", 4096, refuses=True)


@contextmanager
def probing(target: Target) -> Iterator[Probe]:
    """A probe that is closed afterwards."""
    probe = PROBE.build(Settings(), target)
    try:
        yield probe
    finally:
        probe.close()


def target(port: int, good: FirstGood | None = GOOD, key: str = "") -> Target:
    """A ready engine."""
    return Target(Endpoint("127.0.0.1", port, api_key=key), now=READY, good=good)


def read(of: Target) -> list[Sampled | Unread]:
    """One reading."""
    with probing(of) as probe:
        return list(probe.read(time.monotonic() + 3.0))


def seen(of: Target) -> dict[str, Value]:
    """One reading by name."""
    return values(read(of))


def test_a_serving_engine_tells_its_model() -> None:
    """FACT: names and length as /v1/models has them, with the key, and what differs from them."""
    flags = ("--served-model-name", "b", "a", "--max-model-len", "8192", "--api-key", "k")
    with simulated(*flags) as engine:
        engine.ready()
        told = seen(target(engine.port, key="k"))
        assert told == {
            "known": True,
            "files_changed": "",
            "served_names": "a, b",
            "max_model_len": 8192,
            "changed": "serves a, b, was simulated/tiny; max_model_len 8192, was 4096",
            "refused": True,
        }
        assert errors(read(target(engine.port))) == ["cannot ask for the models: HTTP status 401"]


def test_the_same_model_is_no_change() -> None:
    """FACT: what it was is no change, and neither is what nobody knows."""
    with simulated() as engine:
        engine.ready()
        for good in (GOOD, FirstGood("simulated/tiny"), FirstGood(refuses=True), None):
            told = seen(target(engine.port, good))
            assert (told["changed"], told["refused"]) == ("", False)
            assert told["known"] is (good is not None)
            assert ("files_changed" in told) is (good is not None)


def test_files_are_told_as_they_are_known() -> None:
    """FACT: what was loaded is a change, what lies on the disk is one of the next start."""
    with simulated() as engine:
        engine.ready()
        told = seen(target(engine.port, FirstGood(loaded="config.json differs", on_disk="x")))
    assert (told["changed"], told["refused"]) == ("config.json differs", False)
    assert told["files_changed"] == "x"


def test_an_engine_that_is_not_ready_is_not_asked() -> None:
    """FACT: while it starts, and when it is stopped, only files are told."""
    asked = target(free_port())
    asked.now = EngineLook(state=ProcessState.STARTING)
    assert seen(asked) == {"known": True, "files_changed": ""}


def test_a_ready_engine_that_does_not_answer() -> None:
    """FACT: then what it serves is not known, and nothing is changed or refused."""
    found = read(target(free_port()))
    assert errors(found) == ["cannot ask for the models: refused"]
    assert {one.sample for one in found} == {"known", "files_changed", "served_names"}


def serve(body: bytes) -> Callable[[socket.socket], None]:
    """A server of one answer."""

    def talk(connection: socket.socket) -> None:
        for _ in requests(connection):
            connection.sendall(answered(200, body))

    return talk


def models(*cards: dict[str, object]) -> bytes:
    """A list of models."""
    return json.dumps({"object": "list", "data": cards}).encode()


def test_adapters_are_no_models() -> None:
    """FACT: an adapter that is loaded while the engine runs changes nothing."""
    own: dict[str, object] = {"id": "simulated/tiny", "parent": None, "max_model_len": 4096}
    body = models({"id": "lora", "parent": "simulated/tiny", "max_model_len": 1}, own)
    with raw_server(serve(body)) as server:
        assert seen(target(server.port))["changed"] == ""


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"[" * 5000,
        b'{"data": {}}',
        b'{"data": [{"id": 3}]}',
        b'{"data": [{"id": " "}]}',
        models(),
        models({"id": "lora", "parent": "x"}),
        b'{"data": [{"id": "\xff"}]}',
    ],
)
def test_nonsense_is_unknown(body: bytes) -> None:
    """FACT: what is no list of models makes no claim."""
    with raw_server(serve(body)) as server:
        (error,) = errors(read(target(server.port)))
    assert error.startswith("cannot ask for the models: ")
    assert "\n" not in error


def test_names_and_lengths_without_measure() -> None:
    """FACT: a name is one line of bounded length, and a length a number of tokens."""
    body = models({"id": "a\nb" * 100_000, "max_model_len": 10**15 * 99}, {"id": "c"})
    with raw_server(serve(body)) as server:
        told = seen(target(server.port))
    assert "max_model_len" not in told
    assert len(str(told["served_names"])) == 1000
    assert "\n" not in str(told["changed"])
