"""The model that a command names, as far as it lies here: its configuration and its weights."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from watchdog.command_line import EngineCommand
from watchdog.model_files import asked_of
from watchdog.model_files.places import Place, places
from watchdog.preflight import gguf
from watchdog.preflight.weights import Weights, json_of, of_file, of_folder
from watchdog.preflight.wishes import Wishes

_CONFIG_LIMIT = 4 << 20
_DEEPEST = 8
_PLUG_IN = "vLLM 0.32 reads GGUF only with a plug-in"
_PATH = re.compile(r"(/|\./|\.\./|~).*")


@dataclass(frozen=True, slots=True)
class Model:
    """``config`` has the names of Hugging Face, None when there is none; ``place`` is in words.

    ``away`` says why nothing is here. ``incomplete``: nothing can be computed of the weights that
    are here. ``problems`` keep vLLM from loading it, ``notes`` do not.
    """

    place: str = ""
    config: Mapping[str, Any] | None = None
    weights: Weights | None = None
    away: str = ""
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    incomplete: bool = False


def model_of(
    said: EngineCommand, wishes: Wishes, environment: Mapping[str, str], cwd: str | None
) -> Model:
    """What lies here of the model that ``said`` serves. Never raises."""
    if not said.model:
        return Model(away="the command does not name its model")
    found = places(asked_of(said.argv, environment, cwd), environment, cwd)
    own = [place for place in found if not place.label]
    if not own:
        return _absent(said.model, environment)
    if own[0].is_file:
        return _of_file(own[0], wishes)
    others = [place for place in found if place.label.startswith("hf-config")]
    return _of_folders(own, others, wishes, offline=_is_offline(environment))


def _absent(name: str, environment: Mapping[str, str]) -> Model:
    if _PATH.fullmatch(name):
        return Model(problems=(f"cannot find the model directory {name}",), away="it is not here")
    if _is_offline(environment):
        problem = f"model {name} is not in the cache, and HF_HUB_OFFLINE forbids to download it"
        return Model(problems=(problem,), away="it is not here")
    note = f"model {name} is not here: it would be downloaded, which a gated one needs a token for"
    return Model(away="the model is not here, it would be downloaded", notes=(note,))


def _is_offline(environment: Mapping[str, str]) -> bool:
    return environment.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}


def _of_folders(own: list[Place], others: list[Place], wishes: Wishes, *, offline: bool) -> Model:
    weights = next(
        (w for place in own if (w := of_folder(place.path, wishes.load_format)) is not None), None
    )
    config, damaged, absent = _config([*others, *own])
    lacking = [absent]
    where = own[0]
    if weights is not None:
        lacking.append(weights.missing)
    elif wishes.load_format != "dummy":
        lacking.append(f"no weights in {where.path}")
    lacking = [line for line in lacking if line]
    problems = [line for line in (damaged, *(weights.problems if weights else ())) if line]
    notes = [_PLUG_IN] if weights is not None and weights.gguf else []
    fetched = bool(where.commit) and not offline
    if fetched:  # what a cache lacks is fetched, what it has is believed
        notes += [f"{line}: vLLM would download it" for line in lacking]
    else:
        problems = [*lacking, *problems]
    return Model(
        place=f"{where.path}" + (f", commit {where.commit[:12]}" if where.commit else ""),
        config=None if config is None else merged(config, wishes.overrides),
        weights=weights,
        problems=tuple(problems),
        notes=tuple(notes),
        incomplete=weights is not None and _is_incomplete(weights, fetched=fetched),
    )


def _is_incomplete(weights: Weights, *, fetched: bool) -> bool:
    """Of files that would be ``fetched`` the index alone says enough."""
    if fetched and weights.indexed and not weights.problems:
        return False
    return not weights.whole


def _config(where: list[Place]) -> tuple[dict[str, Any] | None, str, str]:
    """The first that is there; else what is wrong with it, or that there is none."""
    for place in where:
        path = place.path / "config.json"
        if path.is_file():
            found = json_of(path, _CONFIG_LIMIT)
            if isinstance(found, dict):
                return found, "", ""
            return None, f"{path} cannot be read: expected a JSON object of at most 4 MiB", ""
    for place in where:
        found = json_of(place.path / "params.json", _CONFIG_LIMIT)
        if isinstance(found, dict):
            return _of_mistral(found), "", ""
    return None, "", f"no config.json in {where[-1].path}"


_MISTRAL = {
    "dim": "hidden_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "max_seq_len": "max_position_embeddings",
    "max_position_embeddings": "max_position_embeddings",
    "sliding_window": "sliding_window",
}


def _of_mistral(params: Mapping[str, Any]) -> dict[str, Any]:
    found = {theirs: params[own] for own, theirs in _MISTRAL.items() if own in params}
    odd = {"moe", "kv_lora_rank", "vision_encoder", "audio_encoder"} & set(params)
    # What they add is written in other words than ours, so the architecture stays unknown.
    return {**found, "model_type": "mistral" if not odd else f"params.json with {min(odd)}"}


_GGUF = {
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.value_length": "v_head_dim",
    "attention.sliding_window": "sliding_window",
    "context_length": "max_position_embeddings",
}


def _of_file(place: Place, wishes: Wishes) -> Model:
    weights = of_file(place.path)
    problems = tuple(filter(None, (weights.missing, *weights.problems)))
    pairs = gguf.metadata(place.path)
    if pairs is None:
        problem = f"{place.path} is no GGUF file, and vLLM loads a folder or a repository"
        return Model(str(place.path), None, weights, "it is no GGUF file", (*problems, problem))
    architecture = str(pairs.get("general.architecture", "unknown"))
    found = {
        theirs: pairs[f"{architecture}.{own}"]
        for own, theirs in _GGUF.items()
        if f"{architecture}.{own}" in pairs
    }
    config = merged({**found, "model_type": architecture}, wishes.overrides)
    return Model(
        str(place.path),
        config,
        weights,
        problems=problems,
        notes=(_PLUG_IN,),
        incomplete=not weights.whole,
    )


def merged(
    config: Mapping[str, Any], over: Mapping[str, Any], depth: int = _DEEPEST
) -> dict[str, Any]:
    """``config`` with ``over`` laid over it, objects in objects too."""
    found = dict(config)
    for key, value in over.items():
        below = found.get(key)
        if isinstance(value, dict) and isinstance(below, dict) and depth:
            found[key] = merged(below, value, depth - 1)
        else:
            found[key] = value
    return found
