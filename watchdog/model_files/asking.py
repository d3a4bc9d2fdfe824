"""Which model a command asks for: what only its operator changes."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from watchdog.command_line import CommandError, EngineCommand, Form, describe, redacted
from watchdog.model_files.small import small_text

_FLAGS = frozenset(
    {
        "chat-template",
        "code-revision",
        "config-format",
        "convert",
        "download-dir",
        "dtype",
        "generation-config",
        "hf-config-path",
        "hf-overrides",
        "load-format",
        "max-model-len",
        "model",
        "model-loader-extra-config",
        "override-generation-config",
        "quantization",
        "revision",
        "rope-scaling",
        "rope-theta",
        "runner",
        "served-model-name",
        "speculative-config",
        "task",
        "tokenizer",
        "tokenizer-mode",
        "tokenizer-revision",
    }
)
"""Those that decide what is served, and none that holds a key."""
_FITTED = frozenset({"auto", "-1"})
"""With these vLLM takes the length that fits into the memory that it finds: another each time."""
_TOP = re.compile(r"([A-Za-z][\w-]*)\s*:\s*(.*)")
_CONFIG_LIMIT = 1 << 20


@dataclass(frozen=True, slots=True)
class Asked:
    """What a command asks for. ``key`` is the same as long as it asks for the same.

    ``model`` is a path or a hub's name, "" when it cannot be read; so are ``tokenizer`` and
    ``hf_config``, "" for the model's own. ``fitted``: the context length depends on free memory.
    """

    key: str
    model: str = ""
    revision: str = ""
    download_dir: str = ""
    tokenizer: str = ""
    tokenizer_revision: str = ""
    hf_config: str = ""
    fitted: bool = False


def asked_of(command: Sequence[str], environment: Mapping[str, str], cwd: str | None) -> Asked:
    """What ``command`` asks for when it is run in ``cwd``. Never raises.

    Of a command that is not understood every word counts, keys and tokens excepted.
    """
    here = Path(cwd or ".")
    try:
        said = describe(command, {}, {}, cwd=here)
    except CommandError:
        return Asked(_key(redacted(command)))
    if said.form is Form.OTHER and not said.model:
        return Asked(_key(redacted(command)))
    flags = _flags(command, here)

    def one(name: str) -> str:
        return (flags.get(name) or ("",))[0]

    return Asked(
        key=_key([said.form, said.model, *_rest(said, command), *sorted(flags.items())]),
        model="" if _is_elsewhere(said.model, environment) else said.model,
        revision=one("revision"),
        download_dir=one("download-dir"),
        tokenizer=one("tokenizer"),
        tokenizer_revision=one("tokenizer-revision"),
        hf_config=one("hf-config-path"),
        fitted=one("max-model-len").lower() in _FITTED,
    )


def _key(words: object) -> str:
    """Not salted: it has to be the same for every start. No secret goes into it."""
    return hashlib.sha256(json.dumps(words).encode(errors="surrogateescape")).hexdigest()


def _rest(said: EngineCommand, command: Sequence[str]) -> list[str]:
    """All words of a program that nobody knows: any of them may name what it loads."""
    return redacted(command) if said.form is Form.OTHER else []


def _is_elsewhere(model: str, environment: Mapping[str, str]) -> bool:
    """Another hub, an object store, or one quantization of a repository: nothing to be found."""
    other_hub = environment.get("VLLM_USE_MODELSCOPE", "").lower() in {"1", "true"}
    return (":" in model or other_hub) and not Path(model).is_absolute()


def _flags(command: Sequence[str], cwd: Path) -> dict[str, tuple[str, ...]]:
    """The flags of ``_FLAGS`` with their values; those of a ``--config`` file yield."""
    given = dict(_given(command))
    name = next(iter(given.pop("config", ())), "")
    found = dict(_configured(small_text(cwd / name, _CONFIG_LIMIT))) if name else {}
    return {**found, **given}


def _given(command: Sequence[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    for index, word in enumerate(command):
        flag, equals, value = word.partition("=")
        name = "quantization" if flag == "-q" else flag[2:].replace("_", "-")
        if (flag.startswith("--") or flag == "-q") and name in _FLAGS | {"config"}:
            yield name, (value,) if equals else tuple(_values(command[index + 1 :]))


def _values(words: Sequence[str]) -> Iterator[str]:
    """Words up to the next flag; a negative number is none."""
    for word in words:
        if len(word) > 1 and word[0] == "-" and not word[1].isdigit():
            return
        yield word


def _configured(text: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Top-level keys of a YAML file, each with its value and the lines below it."""
    name, lines = "", list[str]()
    for line in [*text.splitlines(), "end:"]:
        match = _TOP.match(line)
        if match is None:
            lines.append(line.strip())
            continue
        if name in _FLAGS:
            yield name, tuple(filter(None, lines))
        name = match.group(1).replace("_", "-")
        lines = [re.sub(r"\s+#.*$", "", match.group(2)).strip("\"' ")]
