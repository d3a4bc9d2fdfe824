"""Where the files of a model are: a folder, or a snapshot in the cache of a hub."""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from watchdog.model_files.asking import Asked
from watchdog.model_files.small import small_text, status

_COMMIT = re.compile(r"[0-9a-f]{40}")
_NAME = re.compile(r"[\w.-]+(?:/[\w.-]+)?")


@dataclass(frozen=True, slots=True)
class Place:
    """A folder or one file. ``label`` goes before the names of files that are not the model's own.

    ``commit`` is that of a hub's snapshot.
    """

    path: Path
    label: str = ""
    commit: str = ""
    is_file: bool = False


def places(asked: Asked, environment: Mapping[str, str], cwd: str | None) -> tuple[Place, ...]:
    """Where to look, the model's own places first; () when its place cannot be told.

    A cache that holds weights alone (``--download-dir``) is one of two places of a model.
    """
    caches = tuple(filter(None, (asked.download_dir, _cache(environment))))
    own = tuple(_found(asked.model, asked.revision, caches, cwd))
    if not own:
        return ()
    others = (
        Place(one.path, label, one.commit, one.is_file)
        for label, name, revision in (
            ("tokenizer: ", asked.tokenizer, asked.tokenizer_revision or asked.revision),
            ("hf-config: ", asked.hf_config, asked.revision),
        )
        for one in _found(name, revision, caches, cwd)
    )
    return (*own, *others)


def _found(name: str, revision: str, caches: tuple[str, ...], cwd: str | None) -> Iterator[Place]:
    """What exists under that name counts as a path, as vLLM sees it; only then comes a hub."""
    if not name:
        return
    path = _under(cwd, name)
    found = status(path)
    if found is not None:
        if stat.S_ISDIR(found.st_mode):
            yield Place(path)
        elif stat.S_ISREG(found.st_mode):
            yield Place(path, is_file=True)
        return
    if _NAME.fullmatch(name):
        for cache in caches:
            yield from _snapshot(_under(cwd, cache), name, revision or "main")


def _snapshot(cache: Path, name: str, revision: str) -> Iterator[Place]:
    folder = cache / f"models--{name.replace('/', '--')}"
    commit = revision
    if not _COMMIT.fullmatch(revision):
        commit = small_text(folder / "refs" / revision)
    path = folder / "snapshots" / commit
    if _COMMIT.fullmatch(commit):
        found = status(path)
        if found is not None and stat.S_ISDIR(found.st_mode):
            yield Place(path, commit=commit)


def _cache(environment: Mapping[str, str]) -> str:
    """The hub's cache as its library finds it; "" when the environment does not tell."""

    def value(name: str) -> str:
        return environment.get(name, "")

    told = value("HF_HUB_CACHE") or value("HUGGINGFACE_HUB_CACHE")
    home = value("HOME")
    if not told:
        caches = value("XDG_CACHE_HOME") or (f"{home}/.cache" if home else "")
        base = value("HF_HOME") or (f"{caches}/huggingface" if caches else "")
        told = f"{base}/hub" if base else ""
    return f"{home}{told[1:]}" if home and told.startswith("~/") else told


def _under(cwd: str | None, name: str) -> Path:
    return Path(cwd or "") / name
