"""Whether a model fits: weights, KV cache and length put together, each number with arithmetic.

What the engine needs besides is not known before it measures it: the room for the KV cache, and
what follows from it, are told as "at most".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil

from watchdog.command_line import EngineCommand
from watchdog.preflight import cache
from watchdog.preflight.cache import Plan
from watchdog.preflight.cards import Card
from watchdog.preflight.length import Length, length_of
from watchdog.preflight.loaded import Loaded, loaded_of
from watchdog.preflight.model import Model, model_of
from watchdog.preflight.report import Figure, Report, Verdict
from watchdog.preflight.shape import Shape, ShapeError, absurd, attention_heads, shape_of
from watchdog.preflight.wishes import DEFAULT_SHARE, Wishes, wishes_of
from watchdog.preflight.words import number, plural, size

_OLD_SHARE = 0.9
"""The default of vLLM up to 0.18: a start that might work is not called impossible."""
_CHUNKS = "VLLM_ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE"
_INCOMPLETE = "the weights are incomplete"
_BESIDES = 4 << 30
"""With less than this beyond one request of full length it is tight: activations, CUDA's context
and graphs took 0.3 GiB with a tiny model on an H200, and take some GiB with large ones."""


@dataclass(frozen=True, slots=True)
class _Sheet:
    """What has been found so far. ``card`` is the smallest one, None when no memory is known."""

    wishes: Wishes
    card: Card | None
    figures: list[Figure] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def add(
        self, name: str, value: float | None, unit: str, words: str, *, at_most: bool = False
    ) -> None:
        self.figures.append(Figure(name, value, unit, words, at_most))

    @property
    def total(self) -> int | None:
        """The memory of the smallest card, None if unknown."""
        return None if self.card is None else self.card.total

    @property
    def defaults(self) -> cache.Defaults:
        """What vLLM takes on such a card."""
        return cache.defaults_of(self.total, "" if self.card is None else self.card.model)

    @property
    def is_open(self) -> bool:
        """Whether the engine measures what is left for the KV cache."""
        return self.wishes.blocks is None and self.wishes.cache_bytes is None


def preflight(
    said: EngineCommand,
    environment: Mapping[str, str],
    cwd: str | None,
    cards: Sequence[Card],
) -> Report:
    """Whether the engine that ``said`` starts would fit on ``cards``, those that it would use.

    ``environment`` is the engine's, ``cwd`` where it starts. ``cards`` is empty when none is known.
    Reads the model's folder, which may hang with its mount. Never raises for what lies there.
    """
    wishes = wishes_of(said)
    model = model_of(said, wishes, environment, cwd)
    known = [card for card in cards if card.total is not None]
    card = min(known, key=lambda one: one.total or 0, default=None)
    sheet = _Sheet(wishes, card)
    sheet.problems.extend((*wishes.unread, *model.problems))
    sheet.warnings.extend((*model.notes, *wishes.notes))
    loaded = _weights(sheet, model, said)
    _enough(sheet, said, cards)
    share = _share(sheet)
    _free(sheet, cards)
    room = _room(sheet, share, loaded)
    plan = _plan(sheet, model, said, environment)
    verdict = _cache(sheet, plan, _length(sheet, model, environment), room)
    verdict = _held(sheet, plan, loaded, verdict)
    if loaded is None and verdict is not Verdict.TOO_LARGE:
        verdict = Verdict.NOT_COMPUTED
    return Report(
        model.place,
        verdict,
        tuple(sheet.figures),
        tuple(sheet.problems),
        tuple(sheet.warnings),
        _INCOMPLETE if model.incomplete and verdict is Verdict.NOT_COMPUTED else "",
    )


def _weights(sheet: _Sheet, model: Model, said: EngineCommand) -> Loaded | None:
    if model.weights is None:
        sheet.add("weights", None, "bytes", model.away or "no files of weights")
        return None
    if model.incomplete:
        sheet.add("weights", None, "bytes", _INCOMPLETE)
        return None
    sheet.add("weights", model.weights.bytes, "bytes", model.weights.how)
    loaded = loaded_of(model.weights, model.config, sheet.wishes, said)
    if loaded.words != size(model.weights.bytes):
        sheet.add("weights on a card", loaded.least, "bytes", loaded.words)
    return loaded


def _length(sheet: _Sheet, model: Model, environment: Mapping[str, str]) -> Length:
    length = length_of(model.config, sheet.wishes, environment)
    if length.own is not None:
        sheet.add("model's own length", length.own, "tokens", length.own_words)
    sheet.add("length of a request", length.tokens, "tokens", length.words)
    sheet.warnings.extend(length.warnings)
    if length.problem:
        sheet.problems.append(length.problem)
    return length


def _plan(
    sheet: _Sheet, model: Model, said: EngineCommand, environment: Mapping[str, str]
) -> Plan | None:
    name = "KV cache a token"
    if model.config is None:
        sheet.add(name, None, "bytes", model.away or "no configuration")
        return None
    sheet.problems.extend(absurd(model.config))
    ranks = (said.tensor_parallel, said.pipeline_parallel)
    heads = attention_heads(model.config)
    if heads % ranks[0]:
        sheet.problems.append(
            f"its {heads} attention heads cannot be dealt to {ranks[0]} tensor ranks"
        )
    try:
        shape = _as_told(shape_of(model.config, windows=sheet.wishes.windows), environment)
        plan = cache.plan_of(shape, model.config, sheet.wishes, ranks, sheet.defaults)
    except ShapeError as error:
        sheet.add(name, None, "bytes", str(error))
        return None
    sheet.add(name, plan.per_token, "bytes", cache.per_token_words(plan))
    return plan


def _as_told(shape: Shape, environment: Mapping[str, str]) -> Shape:
    """What vLLM makes of it by its environment. Raises ShapeError."""
    if shape.latent and environment.get("VLLM_MLA_DISABLE", "0") != "0":
        raise ShapeError("VLLM_MLA_DISABLE has it keep whole heads, whose size is not known here")
    if shape.chunked and environment.get(_CHUNKS, "1") == "0":
        return replace(shape, layers=shape.whole)
    return shape


def _share(sheet: _Sheet) -> int | None:
    """What vLLM takes for itself of the smallest card."""
    card = sheet.card
    if card is None or card.total is None:
        why = "no GPU is known here; --memory 80GiB stands in for one"
        sheet.add("memory of a card", None, "bytes", why)
        return None
    sheet.add("memory of a card", card.total, "bytes", card.words or card.name)
    told, why = sheet.wishes.share, "--gpu-memory-utilization"
    if told is None:
        told, why = DEFAULT_SHARE, f"{why} since vLLM 0.25; {_OLD_SHARE} up to 0.18"
    amount = ceil(card.total * told)
    sheet.add("vLLM's share", amount, "bytes", f"{told} x {size(card.total)} ({why})")
    return amount


def _enough(sheet: _Sheet, said: EngineCommand, cards: Sequence[Card]) -> None:
    """Every rank takes a card; with flags of several machines not all need be here."""
    parts = (
        (said.tensor_parallel, "tensor"),
        (said.pipeline_parallel, "pipeline"),
        (said.data_parallel, "data"),
    )
    needed = said.tensor_parallel * said.pipeline_parallel * said.data_parallel
    words = " x ".join(f"{count} {what} parallel" for count, what in parts if count > 1)
    if needed > 1:
        sheet.add("cards", needed, "GPUs", words)
    if cards and not said.spread and len(cards) < needed:
        sheet.problems.append(
            f"it needs {plural(needed, 'GPU')} ({words}), and may use {len(cards)} here"
        )


def _free(sheet: _Sheet, cards: Sequence[Card]) -> None:
    """A card with less than the share free is refused, before anything is loaded."""
    told = sheet.wishes.share
    share = _OLD_SHARE if told is None else told
    for card in cards:
        if card.total is None or card.used is None:
            continue
        free, wanted = card.total - card.used, ceil(card.total * share)
        held = f" held by {card.holders}" if card.holders else " in use"
        words = f"{size(card.total)} - {size(card.used)}{held}"
        sheet.add(f"free on {card.name}", free, "bytes", words)
        if free < wanted:
            sheet.problems.append(
                f"{card.name} has {size(free)} free ({words}), and vLLM refuses to start with less"
                f" than {size(wanted)} ({share} x {size(card.total)})"
            )


def _room(sheet: _Sheet, share: int | None, loaded: Loaded | None) -> int | None:
    """What is left for the KV cache; at most, unless the command says it."""
    name = "room for the KV cache"
    if sheet.wishes.cache_bytes is not None:
        sheet.add(name, sheet.wishes.cache_bytes, "bytes", "--kv-cache-memory-bytes")
        return sheet.wishes.cache_bytes
    if share is None or loaded is None:
        missing = "the weights are" if share is not None else "the memory of a card is"
        sheet.add(name, None, "bytes", f"{missing} not known")
        return None
    if sheet.is_open and share <= loaded.least:  # blocks that are set are taken without a look
        sheet.problems.append(
            f"the weights alone take {size(loaded.least)} ({loaded.words}) of vLLM's share of"
            f" {size(share)}"
        )
    words = f"{size(share)} - {size(loaded.least)} of weights, less what only vLLM can measure"
    sheet.add(name, max(0, share - loaded.least), "bytes", words, at_most=True)
    return max(0, share - loaded.least)


def _cache(sheet: _Sheet, plan: Plan | None, length: Length, room: int | None) -> Verdict:
    if plan is None or length.tokens is None:
        return Verdict.TOO_LARGE if room == 0 else Verdict.NOT_COMPUTED
    tokens = length.tokens
    needed, one = plan.blocks(tokens), plan.block_bytes
    if len(plan.layers) > 1 or plan.layers[0].window is not None:
        sheet.add("tokens in flight", plan.in_flight, "tokens", plan.in_flight_words)
    sheet.add("a block", one, "bytes", cache.block_words(plan))
    words = f"{plan.words(tokens)} = {plural(needed, 'block')} x {size(one)}"
    sheet.add("a request of full length", needed * one, "bytes", words)
    blocks = sheet.wishes.blocks
    why = "--num-gpu-blocks-override"
    if blocks is None:
        if room is None:
            return Verdict.NOT_COMPUTED
        blocks, why = room // one, f"{size(room)} / {size(one)}"
    sheet.add("blocks", blocks, "blocks", why, at_most=sheet.is_open)
    _concurrency(sheet, blocks, needed, tokens)
    return _judged(sheet, plan, tokens, blocks)


def _concurrency(sheet: _Sheet, blocks: int, needed: int, tokens: int) -> None:
    """What vLLM logs when it has started."""
    ratio = blocks / needed
    words = f"{plural(blocks, 'block')} / {number(needed)}"
    sheet.add("maximum concurrency", ratio, "requests", words, at_most=sheet.is_open)
    words = f"{number(round(ratio, 2))} requests x {number(tokens)}"
    sheet.add("KV cache size", int(ratio * tokens), "tokens", words, at_most=sheet.is_open)
    told = sheet.wishes.sequences
    why = "--max-num-seqs" if told else f"--max-num-seqs by default{sheet.defaults.words}"
    most = told or sheet.defaults.sequences
    sheet.add("run at the same time", most, "requests", f"{why}; others wait")


def _judged(sheet: _Sheet, plan: Plan, tokens: int, blocks: int) -> Verdict:
    """One block is kept back, and one request of full length has to fit into the others."""
    pool, needed = blocks * plan.block_bytes, (plan.blocks(tokens) + 1) * plan.block_bytes
    longest = 0 if pool >= needed else plan.longest(pool)
    fitted = sheet.wishes.fitted and (pool >= needed or longest > 0)
    if pool < needed and not fitted:
        fits = f"; at best {number(longest)} tokens fit" if longest else ""
        sheet.problems.append(
            f"a request of {number(tokens)} tokens takes {size(needed)} of KV cache, and there are"
            f" {size(pool)}{fits}"
        )
        return Verdict.TOO_LARGE
    if longest and fitted:
        words = f"what {size(pool)} serve of the model's own {number(tokens)}"
        sheet.add("length that fits", longest, "tokens", words, at_most=sheet.is_open)
    if sheet.is_open and not fitted and pool - needed < _BESIDES:
        sheet.warnings.append(
            f"tight: {size(pool - needed)} are left beside the weights and one request of full"
            " length for all else that vLLM needs"
        )
        return Verdict.TIGHT
    return Verdict.FITS


def _held(sheet: _Sheet, plan: Plan | None, loaded: Loaded | None, verdict: Verdict) -> Verdict:
    """A cache whose size the command sets lies beside the weights, whatever the share."""
    amount, why = sheet.wishes.cache_bytes, "--kv-cache-memory-bytes"
    if sheet.wishes.blocks is not None and plan is not None:
        amount, why = sheet.wishes.blocks * plan.block_bytes, "--num-gpu-blocks-override"
    if amount is None or loaded is None or sheet.total is None:
        return verdict
    if loaded.least + amount <= sheet.total:
        return verdict
    sheet.problems.append(
        f"the weights take {size(loaded.least)} and {why} {size(amount)}, and a card has"
        f" {size(sheet.total)}"
    )
    return Verdict.TOO_LARGE
