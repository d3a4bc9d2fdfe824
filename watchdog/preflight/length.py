"""How long requests may be: the model's own maximum, its rope scaling, and what was asked for.

As vLLM 0.32 does it. Before it YaRN's factor was multiplied with the original length, so that the
same model had another maximum.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

from watchdog.preflight.shape import DEFAULTS, text_of
from watchdog.preflight.wishes import Wishes
from watchdog.preflight.words import number

_KEYS = (
    *("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length"),
    *("max_target_positions", "max_sequence_length", "max_seq_length", "seq_len"),
)
_UNSCALED = frozenset(
    ("su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling")
)
"""Kinds of rope whose scaled length the configuration has already."""
_LARGEST = 1 << 40
_MOST_ROPES = 64


@dataclass(frozen=True, slots=True)
class Length:
    """``tokens`` that a request may have, None when unknown; ``own`` is the model's maximum.

    ``words`` is how both came about. ``problem`` keeps vLLM from starting, "" for none.
    """

    tokens: int | None
    own: int | None
    words: str
    own_words: str = ""
    problem: str = ""
    warnings: tuple[str, ...] = ()


def length_of(
    config: Mapping[str, Any] | None, wishes: Wishes, environment: Mapping[str, str]
) -> Length:
    """Of a model with this configuration, None for one that is not here."""
    if config is None:
        return Length(wishes.length, None, _asked(wishes))
    text = text_of(config)
    ropes = list(_ropes(text))
    own, own_words = _own(text, ropes, wishes)
    if own is None:
        return Length(wishes.length, None, _asked(wishes) if wishes.length else own_words)
    if wishes.length is None:
        return _unasked(text, ropes, wishes, own, own_words)
    found = Length(wishes.length, own, _asked(wishes), own_words)
    larger = text.get("model_max_length")
    if wishes.length <= max(own, larger if isinstance(larger, int) else 0):
        return replace(found, warnings=_shorter(wishes.length, own))
    words = f"--max-model-len {number(wishes.length)} is over the model's own {number(own)}"
    words = f"{words} ({own_words})"
    if environment.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "").lower() in {"1", "true"}:
        warning = f"{words}: VLLM_ALLOW_LONG_MAX_MODEL_LEN lets it, and answers may be nonsense"
        return replace(found, warnings=(warning,))
    hint = _yarn_hint(text, ropes, wishes.length)
    return replace(found, problem=f"{words}, which vLLM refuses{hint}")


def _asked(wishes: Wishes) -> str:
    if wishes.fitted:
        return "--max-model-len auto takes what fits"
    return (
        "--max-model-len"
        if wishes.length is not None
        else "without --max-model-len the model decides, and its configuration is not here"
    )


def _shorter(tokens: int, own: int) -> tuple[str, ...]:
    """Longer prompts are refused, longer answers end, without a word in the log."""
    if tokens >= own:
        return ()
    words = f"requests end at {number(tokens)} tokens of the model's {number(own)}"
    return (f"{words}: longer prompts are refused, longer answers cut off (finish_reason length)",)


def _unasked(
    text: Mapping[str, Any], ropes: list[Mapping[str, Any]], wishes: Wishes, own: int, words: str
) -> Length:
    original = text.get("original_max_position_embeddings")
    if not any(_kind(rope) == "longrope" for rope in ropes) or not isinstance(original, int):
        if wishes.fitted:
            return Length(own, own, f"at most {words}, the engine takes what fits", words)
        return Length(own, own, f"the model's own: {words}", words)
    warning = (
        f"without --max-model-len vLLM serves {number(original)} tokens of the model's"
        f" {number(own)}, and says nothing of it: longrope starts at the original length"
    )
    return Length(original, own, "original_max_position_embeddings", words, warnings=(warning,))


def _own(
    text: Mapping[str, Any], ropes: list[Mapping[str, Any]], wishes: Wishes
) -> tuple[int | None, str]:
    found = {name: int(v) for name in _KEYS if _is_length(v := text.get(name))}
    if "model_max_length" in found:
        found = {"model_max_length": found["model_max_length"]}
    usual = DEFAULTS.get(str(text.get("model_type")), {}).get("max_position_embeddings")
    if not found and usual is None:
        return None, "its configuration does not say how long requests may be"
    key = min(found, key=found.__getitem__, default="max_position_embeddings by default")
    own = found.get(key, usual or 0)
    words = f"{key} {number(own)}"
    window = text.get("sliding_window")
    if not wishes.windows and _is_length(window) and window < own:
        own, words = int(window), f"sliding_window {number(window)}"
    factor = _factor(text, ropes)
    if factor == 1:
        return own, words
    return int(own * factor), f"{words} x rope factor {number(factor)}"


def _is_length(value: object) -> TypeGuard[int | float]:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return 0 < value < _LARGEST


def _factor(text: Mapping[str, Any], ropes: list[Mapping[str, Any]]) -> float:
    """The last that counts, as in vLLM; Gemma 3 has its own applied already."""
    if "gemma3" in str(text.get("model_type")):
        return 1.0
    factor = 1.0
    for rope in ropes:
        told = rope.get("factor")
        if _kind(rope) not in _UNSCALED and isinstance(told, int | float) and 0 < told < _LARGEST:
            factor = float(told)
    return factor


def _ropes(text: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """One for all layers, or one a kind of layer."""
    for name in ("rope_parameters", "rope_scaling"):
        found = text.get(name)
        if not isinstance(found, dict):
            continue
        if _kind(found) or "factor" in found:
            yield found
        else:
            yield from [one for one in found.values() if isinstance(one, dict)][:_MOST_ROPES]
        return


def _kind(rope: Mapping[str, Any]) -> str:
    told = rope.get("rope_type") or rope.get("type")
    return told if isinstance(told, str) else ""


def _yarn_hint(text: Mapping[str, Any], ropes: list[Mapping[str, Any]], tokens: int) -> str:
    """Older configurations have YaRN's factor beside the length that it was not applied to."""
    for rope in ropes:
        factor, before = rope.get("factor"), rope.get("original_max_position_embeddings")
        if _kind(rope) != "yarn" or not _is_length(factor) or not _is_length(before):
            continue
        if text.get("max_position_embeddings") == before and tokens <= factor * before:
            return (
                f": YaRN's factor {number(factor)} counts in vLLM 0.32 only with"
                f" --hf-overrides '{{\"max_position_embeddings\": {int(factor * before)}}}'"
            )
    return ""
