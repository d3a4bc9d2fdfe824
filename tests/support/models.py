"""Folders of models for tests: small files as they are, weights as holes of any size."""

from __future__ import annotations

import os
from pathlib import Path

GB = 10**9
FIRST, SECOND = "1" * 40, "2" * 40
"""Commits of a hub's model."""


def weights(path: Path, size: int) -> None:
    """A file of that size that takes no room."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.truncate(size)


def folder(path: Path, shards: int = 4, size: int = 5 * GB) -> Path:
    """A model in ``shards`` files of ``size`` bytes."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text('{"model_type": "llama"}')
    (path / "tokenizer.json").write_text("{}")
    (path / "model.safetensors.index.json").write_text('{"weight_map": {}}')
    for number in range(1, shards + 1):
        weights(path / shard(number, shards), size)
    return path


def shard(number: int, shards: int = 4) -> str:
    """The name of one file of weights."""
    return f"model-{number:05d}-of-{shards:05d}.safetensors"


def snapshot(
    cache: Path, commit: str, content: str, name: str = "org/model", ref: str = "main"
) -> Path:
    """A hub's snapshot: links to blobs that are called after ``content``, one hexadecimal digit."""
    top = cache / f"models--{name.replace('/', '--')}"
    made = top / "snapshots" / commit
    made.mkdir(parents=True, exist_ok=True)
    blob = top / "blobs" / (content * 64)
    weights(blob, GB)
    for path, target in ((made / "model.safetensors", blob), (made / "config.json", top / "c")):
        path.unlink(missing_ok=True)
        path.symlink_to(os.path.relpath(target, made))
    (top / "c").write_text("{}")
    (top / "refs").mkdir(exist_ok=True)
    (top / "refs" / ref).write_text(commit)
    return made
