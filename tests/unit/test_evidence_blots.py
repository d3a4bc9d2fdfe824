"""What is written into a bundle: no secret, no control character, and never more than its limit."""

from __future__ import annotations

import json

import pytest

from tests.support.engines import Target
from watchdog.contracts import Endpoint
from watchdog.evidence.blots import Blots, secrets

LIMIT = 1 << 20


def text(raw: bytes | str, *known: str, limit: int = LIMIT) -> str:
    """The text as it is written."""
    return Blots(known).text(raw, limit).decode()


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("{'api_key': ['sk-a-b', 1]}", "{'api_key': ['***', 1]}"),
        ('{"hf_token": "abc", "port": 1}', '{"hf_token": "***", "port": 1}'),
        ("HF_TOKEN=abc USER=me", "HF_TOKEN=*** USER=me"),
        ("vllm serve --api-key abc --port 1", "vllm serve --api-key *** --port 1"),
        ("x-api-key: abc", "x-api-key: ***"),
        ("Authorization: Bearer abcdefgh", "Authorization: Bearer ***"),
        ("https://me:word@host/path", "https://***@host/path"),
        ("hf_abcdefghijklmnopqrstuvwxyz", "hf_***"),
    ],
)
def test_what_looks_like_a_secret_is_blotted_out(line: str, shown: str) -> None:
    """FACT: also when nobody knew of it."""
    assert text(line) == shown


@pytest.mark.parametrize(
    "line",
    [
        "KeyError: 'max_tokens'",
        "num_batched_tokens=8192, prompt_tokens=5",
        "eos_token_id=2, tokenizer_mode='auto', api_key=None",
        "missing key: max_model_len",
        "the key is under the mat",
        "--served-model-name key --port 1",
    ],
)
def test_what_only_sounds_like_one_is_shown(line: str) -> None:
    """FACT: evidence is not blotted out for a word in it."""
    assert text(line) == line


def test_a_known_value_goes_in_every_form() -> None:
    """FACT: the longest first, short ones as whole words, and one that is cut off at the end."""
    assert text("abcdefgh abc xabcx", "abc", "abcdefgh") == "*** *** xabcx"
    assert text("the key is very-secr", "very-secret") == "the key is ***"
    assert text("a\x1b[31mbc-key\n", "abc-key") == "***\n"


def test_json_stays_json_whatever_the_key_is() -> None:
    """FACT: numbers stay numbers when the key is one; texts and names in it are blotted."""
    told = Blots(("1234", 'a"b\\c')).json({"n": 51234, "t": "is 1234", 'a"b\\c': ["1234"]})
    assert json.loads(told) == {"n": 51234, "t": "is ***", "***": ["***"]}


def test_no_control_character_is_left() -> None:
    """FACT: escapes, bells, right-to-left marks and bytes that are no text are spelled."""
    raw = b"a\x1b]0;x\x07\r\nb\x00\xff\xe2\x80\xae<b>\tc\rd"
    assert text(raw) == "a\\x1b]0;x\\x07\nb\\x00\\xff\\u202e<b>\tc\nd"
    told = Blots(()).json({"a": "\u202e\x1b\x7f"}).decode()
    assert told.isascii()
    assert told.isprintable()
    assert json.loads(told) == {"a": "\u202e\x1b\x7f"}


def test_of_what_is_too_long_the_end_is_kept() -> None:
    """FACT: whole lines where there are any, never more than the limit, also of a single line."""
    lines = "".join(f"line {number}\n" for number in range(1000))
    told = text(lines, limit=100)
    assert lines.endswith(told)
    assert told.startswith("line ")
    assert len(told) <= 100
    assert text("x" * 1000, limit=100) == "x" * 100
    assert len(text(b"\xff" * 1000, limit=100)) <= 100


@pytest.mark.parametrize(
    "piece", ["key", "key=", "://", "--", "sk-", "?a", "\x1b[1;", "\r", "\u202e", "'", "bearer "]
)
def test_a_hostile_line_costs_what_any_line_does(piece: str) -> None:
    """FACT: a quarter of a megabyte of it ends; a pattern that is not linear never would."""
    assert len(text(piece * (262_144 // len(piece)))) <= LIMIT


def test_secrets_are_those_of_command_environment_and_endpoint() -> None:
    """FACT: a switch that sounds like a secret is none, and an engine's own key always is."""
    engine = Target(
        Endpoint("127.0.0.1", 1, api_key="77"),
        command=("vllm", "--api-key", "one", "two", "--hf-token=three", "--port", "1"),
        environment={
            "VLLM_API_KEY": "four",
            "HF_TOKEN": "five-five",
            "TOKEN_CACHE": "1",
            "PATH": "/bin",
            "TOKENIZERS_PARALLELISM": "false-ish",
        },
    )
    assert secrets((engine,)) == {"77", "one", "two", "three", "four", "five-five"}
