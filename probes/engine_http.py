"""Asks the engine over HTTP: ``/health``, and for one token when nothing else shows progress.

``/health`` alone proves nothing: vLLM answers it from the API process while the engine stands
still, and fails to answer while it is merely busy. One token proves the engine works.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from probes._http.answers import Answer, Trouble
from watchdog.contracts import EngineLook, EngineTarget, ProbeSpec, SampleSpec
from watchdog.core.model import (
    ProcessState,
    Sampled,
    Seconds,
    SubjectKind,
    Unread,
    Value,
    engine_subject,
)

if TYPE_CHECKING:
    from probes._http.client import EngineHttp

_CAP = 1 << 20
"""Bytes: one token is far below, a pooling answer of a large model below too."""
_MARGIN = 0.2
"""Seconds by which a wait ends before the deadline, so that its outcome is still told."""
_NEARLY = 0.9
"""Of the fair wait: what /health may overrun by when its time-out fires late."""
_OK, _BAD_REQUEST, _NOT_FOUND = 200, 400, 404
_OTHER_TASK = frozenset({404, 405, 501})
_NO_KEY = frozenset({401, 403})
_REJECTED = frozenset({429, 503})
_ASKED = frozenset({"ok", "timeout", "error"})
"""Whatever /health says that is no plain refusal, a token that comes proves that it is wrong."""
_PATHS = ("/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/pooling")


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All in seconds."""

    health_timeout: float = 3.0
    """A free API process answers in milliseconds; longer waits only delay the canary."""
    canary_interval: float = 3.0
    """Progress younger than this needs no proof, nor does a canary that succeeded."""
    canary_timeout: float = 3.0
    """One token takes milliseconds; three time-outs in a row stay well below 30 s."""


@dataclass(frozen=True, slots=True)
class _Told:
    """The outcome of one canary; ``status`` 0 when there was no answer."""

    outcome: str
    status: int = 0
    seconds: Seconds = 0.0


@dataclass(slots=True)
class _Learned:
    """What one generation of the engine taught: its model, and where it completes."""

    generation: str = ""
    model: str = ""
    path: str = ""
    ask_for_model: bool = False
    """The served name of the command was refused: another start may have been told otherwise."""


class EngineHttpProbe:
    """``/health`` each time, a canary when it is due; one connection, one request at a time."""

    def __init__(self, settings: Settings, target: EngineTarget, http: EngineHttp) -> None:
        self._settings = settings
        self._target = target
        self._http = http
        self._subject = engine_subject(target.name)
        self._learned = _Learned()
        self._succeeded_at: Seconds | None = None

    def read(self, deadline: Seconds) -> Iterable[Sampled | Unread]:
        """One ``/health``, then at most one canary, both before ``deadline``."""
        began, deadline = time.monotonic(), deadline - _MARGIN
        fair = min(self._settings.canary_timeout, (deadline - began) / 2)
        values, health = self._health(deadline - fair)
        told = self._canary(health, deadline, fair)
        values["canary"] = told.outcome
        if told.status:
            values["canary_status"] = told.status
        if told.outcome == "ok":
            values["canary_seconds"] = told.seconds
        return [Sampled(self._subject, name, value) for name, value in values.items()]

    def close(self) -> None:
        """Break what is under way."""
        self._http.close()

    def _health(self, deadline: Seconds) -> tuple[dict[str, Value], str]:
        began = time.monotonic()
        limit = min(deadline, began + self._settings.health_timeout)
        answer = self._http.get("/health", limit, _CAP)
        values: dict[str, Value] = {"health_seconds": time.monotonic() - began}
        if isinstance(answer, Answer):
            values["health"] = "ok" if answer.status == _OK else "status"
            values["health_status"] = answer.status
        elif answer in {Trouble.TIMEOUT, Trouble.REFUSED}:
            values["health"] = answer.value
        else:
            values["health"] = "error"
        return values, str(values["health"])

    # --- the canary ---------------------------------------------------------------------------

    def _canary(self, health: str, deadline: Seconds, fair: Seconds) -> _Told:
        """Skipped rather than cut short: a wait shorter than ``fair`` would accuse the engine."""
        look, now = self._target.look(), time.monotonic()
        if look.generation != self._learned.generation:
            self._learned = _Learned(look.generation)
            self._succeeded_at = None
        if deadline - now < fair * _NEARLY or not self._is_due(look, health, now):
            return _Told("skipped")
        told = self._ask(min(deadline, now + self._settings.canary_timeout))
        self._succeeded_at = time.monotonic() if told.outcome == "ok" else None
        return told

    def _is_due(self, look: EngineLook, health: str, now: Seconds) -> bool:
        wanted = (health == "ok" and look.state is ProcessState.STARTING) or (
            health in _ASKED and look.state is ProcessState.RUNNING
        )
        proofs = (at for at in (look.progressed_at, self._succeeded_at) if at is not None)
        proven = max(proofs, default=-self._settings.canary_interval)
        return wanted and not look.sleeping and now - proven >= self._settings.canary_interval

    def _ask(self, deadline: Seconds) -> _Told:
        model = self._model(deadline)
        if isinstance(model, _Told):
            return model
        told = _Told("failed")
        for path in (self._learned.path,) if self._learned.path else _PATHS:
            answer = self._http.post_json(path, _body(path, model), deadline, _CAP)
            told = _told(answer)
            if isinstance(answer, Answer) and _is_unknown_model(answer):
                self._learned.model, self._learned.ask_for_model = "", True
                return told
            if not (isinstance(answer, Answer) and _is_other_task(answer)):
                self._learn(path, told)
                return told
        self._learned.path = ""
        return told

    def _learn(self, path: str, told: _Told) -> None:
        if told.outcome == "ok":
            self._learned.path = path

    def _model(self, deadline: Seconds) -> str | _Told:
        """The served name, else the first of the engine's list, or why there is none."""
        if self._http.endpoint.served_name and not self._learned.ask_for_model:
            return self._http.endpoint.served_name
        if self._learned.model:
            return self._learned.model
        answer = self._http.get("/v1/models", deadline, _CAP, key=True)
        if isinstance(answer, Trouble) or answer.status != _OK:
            return _told(answer)
        try:
            self._learned.model = msgspec.json.decode(answer.body, type=_Models).data[0].id
        except (msgspec.MsgspecError, IndexError):
            return _Told("failed", answer.status)
        return self._learned.model


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


class _Completed(msgspec.Struct):
    """A completion has choices, an embedding data."""

    choices: list[dict[str, msgspec.Raw]] = []
    data: list[dict[str, msgspec.Raw]] = []


def _body(path: str, model: str) -> dict[str, object]:
    short = {"max_tokens": 1, "temperature": 0}
    match path:
        case "/v1/completions":
            return {"model": model, "prompt": "Hi", **short}
        case "/v1/chat/completions":
            return {"model": model, "messages": [{"role": "user", "content": "Hi"}], **short}
        case _:
            return {"model": model, "input": "Hi"}


def _told(answer: Answer | Trouble) -> _Told:
    match answer:
        case Trouble.TIMEOUT | Trouble.REFUSED:
            return _Told(answer.value)
        case Trouble():
            return _Told("failed")
        case Answer(status=status) if status in _NO_KEY:
            return _Told("unauthorized", status)
        case Answer(status=status) if status in _REJECTED:
            return _Told("rejected", status)
        case Answer():
            ok = answer.status == _OK and _is_complete(answer.body)
            return _Told("ok" if ok else "failed", answer.status, answer.seconds)


def _is_complete(body: bytes) -> bool:
    try:
        completed = msgspec.json.decode(body, type=_Completed)
    except msgspec.MsgspecError:
        return False
    return bool(completed.choices or completed.data)


def _is_unknown_model(answer: Answer) -> bool:
    """Whether a 404 is about the model; an unknown path is a 404 too."""
    return answer.status == _NOT_FOUND and b"does not exist" in answer.body


def _is_other_task(answer: Answer) -> bool:
    unsupported = answer.status == _BAD_REQUEST and b"does not support" in answer.body
    return answer.status in _OTHER_TASK or unsupported


def _build(settings: Settings, target: EngineTarget) -> EngineHttpProbe:
    from probes._http.client import EngineHttp

    return EngineHttpProbe(settings, target, EngineHttp(target.endpoint))


PROBE = ProbeSpec(
    name="engine_http",
    subject_kind=SubjectKind.ENGINE,
    settings=Settings,
    samples=(
        SampleSpec("health", str, "", "/health: ok, status, timeout, refused or error."),
        SampleSpec("health_status", int, "", "HTTP status of /health, if it answered."),
        SampleSpec("health_seconds", float, "seconds", "How long /health took, answered or not."),
        SampleSpec(
            "canary",
            str,
            "",
            "One token: ok, timeout, refused, unauthorized, rejected, failed or skipped.",
        ),
        SampleSpec("canary_seconds", float, "seconds", "How long one token took, when it came."),
        SampleSpec("canary_status", int, "", "HTTP status of the canary, if it was answered."),
    ),
    build=_build,
    period=2.0,
    timeout=8.0,
)
