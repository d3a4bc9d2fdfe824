"""``/v1/completions`` and ``/v1/chat/completions``, streamed or not."""

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from queue import Empty
from typing import Any

from watchdog.simulator.answers import Answer, ClientGoneError
from watchdog.simulator.engine_client import DEAD, Ticket
from watchdog.simulator.frontend import EngineDeadError, Frontend, NotAcceptingError, Phase

_DEFAULT_TOKENS = 16
_LOOK_PERIOD = 0.05
_WORDS = ("the", "engine", "keeps", "making", "tokens", "one", "by", "one")


class BadRequestError(Exception):
    """A request that vLLM refuses; carries the HTTP status and what is wrong."""

    def __init__(self, status: int, message: str, kind: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.kind, self.param = status, kind, param


@dataclass(frozen=True, slots=True)
class _Asked:
    chat: bool
    model: str
    prompt: int
    limit: int
    stream: bool
    usage: bool


def error_body(status: int, message: str, kind: str, param: str | None = None) -> dict[str, Any]:
    """OpenAI's error object as vLLM fills it."""
    return {"error": {"message": message, "type": kind, "param": param, "code": status}}


def answer_completion(frontend: Frontend, answer: Answer, body: bytes, *, chat: bool) -> int:
    """Generate and answer; the status. Raises ClientGoneError."""
    try:
        asked = _parse(frontend, body, chat=chat)
    except BadRequestError as error:
        answer.json(error.status, error_body(error.status, str(error), error.kind, error.param))
        return error.status
    answer.hold(lambda: frontend.board.has("saturate"))
    try:
        ticket = frontend.submit(asked.prompt, asked.limit)
        return _generate(frontend, answer, asked, ticket)
    except NotAcceptingError:
        text = "cannot schedule new futures after shutdown"
    except EngineDeadError:
        text = "EngineCore encountered an issue. See stack trace (above) for the root cause."
    answer.json(500, error_body(500, text, "InternalServerError"))
    return 500


def _parse(frontend: Frontend, body: bytes, *, chat: bool) -> _Asked:
    try:
        data = json.loads(body)
    except ValueError as error:
        raise BadRequestError(400, f"Invalid JSON: {error}", "BadRequestError") from error
    if not isinstance(data, dict):
        raise BadRequestError(400, "The body must be an object.", "BadRequestError")
    model = data.get("model") or frontend.options.served_names[0]
    if model not in frontend.options.served_names:
        text = f"The model `{model}` does not exist."
        raise BadRequestError(404, text, "NotFoundError", "model")
    options = data.get("stream_options") or {}
    return _Asked(
        chat=chat,
        model=model,
        prompt=_prompt_tokens(data, chat=chat),
        limit=_limit(data),
        stream=bool(data.get("stream")),
        usage=bool(options.get("include_usage")),
    )


def _limit(data: Mapping[str, Any]) -> int:
    value = data.get("max_completion_tokens") or data.get("max_tokens", _DEFAULT_TOKENS)
    if not isinstance(value, int) or value < 1:
        text = f"max_tokens must be at least 1, got {value}."
        raise BadRequestError(400, text, "BadRequestError", "max_tokens")
    return value


def _prompt_tokens(data: Mapping[str, Any], *, chat: bool) -> int:
    name = "messages" if chat else "prompt"
    if name not in data:
        raise BadRequestError(400, f"Field required: {name}", "BadRequestError", name)
    value = data[name]
    if chat:
        value = " ".join(str(message.get("content", "")) for message in value)
    if isinstance(value, list):
        return max(1, len(value))
    return max(1, len(str(value).split()))


def _tokens(frontend: Frontend, answer: Answer, ticket: Ticket) -> Iterator[str | None]:
    """The finish reason so far, for every token; aborts the request when the client leaves."""
    reason: str | None = None
    while reason is None:
        _check(answer, ticket)
        try:
            reason = ticket.items.get(timeout=_LOOK_PERIOD)
        except Empty:
            continue
        if reason == DEAD:
            if frontend.phase is not Phase.CLOSING:
                raise EngineDeadError
            answer.hold(lambda: True)  # vLLM never answers these: the client has to give up
        yield reason


def _check(answer: Answer, ticket: Ticket) -> None:
    try:
        answer.check_client()
    except ClientGoneError:
        ticket.client.abort(ticket)
        raise


def _generate(frontend: Frontend, answer: Answer, asked: _Asked, ticket: Ticket) -> int:
    tokens = _tokens(frontend, answer, ticket)
    if asked.stream:
        return _stream(answer, asked, ticket, tokens)
    words = [_word(number) for number, _ in enumerate(tokens)]
    text = "".join(words)
    content: dict[str, Any] = (
        {"message": {"role": "assistant", "content": text}} if asked.chat else {"text": text}
    )
    kind = "chat.completion" if asked.chat else "text_completion"
    choices = [{"index": 0, **content, "logprobs": None, "finish_reason": "length"}]
    answer.json(200, {**_frame(asked, ticket, kind, choices), "usage": _usage(asked, len(words))})
    return 200


def _stream(answer: Answer, asked: _Asked, ticket: Ticket, tokens: Iterator[str | None]) -> int:
    kind = "chat.completion.chunk" if asked.chat else "text_completion"
    made = 0
    try:
        answer.begin_chunked("text/event-stream; charset=utf-8")
        for made, reason in enumerate(tokens, 1):
            text = _word(made - 1)
            content: dict[str, Any] = {"delta": {"content": text}} if asked.chat else {"text": text}
            choices = [{"index": 0, **content, "logprobs": None, "finish_reason": reason}]
            _event(answer, json.dumps(_frame(asked, ticket, kind, choices)))
        if asked.usage:
            frame = {**_frame(asked, ticket, kind, []), "usage": _usage(asked, made)}
            _event(answer, json.dumps(frame))
    except EngineDeadError:
        _event(answer, json.dumps(error_body(500, "EngineCore died.", "InternalServerError")))
    except ClientGoneError:
        ticket.client.abort(ticket)
        raise
    _event(answer, "[DONE]")
    answer.chunk(b"")
    return 200


def _event(answer: Answer, data: str) -> None:
    answer.chunk(f"data: {data}\n\n".encode())


def _frame(asked: _Asked, ticket: Ticket, kind: str, choices: list[Any]) -> dict[str, Any]:
    return {
        "id": ticket.name,
        "object": kind,
        "created": int(time.time()),
        "model": asked.model,
        "choices": choices,
    }


def _usage(asked: _Asked, made: int) -> dict[str, int]:
    return {
        "prompt_tokens": asked.prompt,
        "completion_tokens": made,
        "total_tokens": asked.prompt + made,
    }


def _word(number: int) -> str:
    return " " + _WORDS[number % len(_WORDS)]
