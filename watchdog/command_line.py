"""Reads from an engine's own command where it will serve, and under which name.

What vLLM accepts is accepted: ``--flag value`` and ``--flag=value``, underscores for dashes, the
last of repeated flags wins, then a ``--config`` file, then vLLM's defaults. Nothing is executed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from watchdog import flag_file
from watchdog.contracts import Endpoint
from watchdog.core.model import Seconds
from watchdog.names import is_secret

DEFAULT_PORT = 8000
"""The port that vLLM serves on without ``--port``."""

REDACTED = "[redacted]"

_SIMULATED_MODEL = "simulated/tiny"
_NAMED = 5
_ALIASES = {
    "tp": "tensor-parallel-size",
    "dp": "data-parallel-size",
    "pp": "pipeline-parallel-size",
    "q": "quantization",
}
_MANY = frozenset({"served-model-name", "api-key"})
_ONE = frozenset(
    (
        *("block-size", "config", "cpu-offload-gb", "data-parallel-size", "download-dir", "dtype"),
        *("gpu-memory-utilization", "hf-config-path", "hf-overrides", "host", "kv-cache-dtype"),
        *("kv-cache-memory-bytes", "load-format", "max-model-len", "max-num-batched-tokens"),
        *("max-num-seqs", "model", "num-gpu-blocks-override", "pipeline-parallel-size", "port"),
        *("quantization", "revision", "rope-scaling", "root-path", "shutdown-timeout"),
        *("ssl-certfile", "ssl-keyfile", "tensor-parallel-size", "uds"),
    )
)
_SWITCHES = frozenset({"async-scheduling", "enforce-eager", "headless", "trust-remote-code"})
_SWITCH_PREFIXES = ("enable-", "disable-", "no-")
_SPREAD = re.compile(
    r"data-parallel-(?!size=|backend=|rpc-port=)|-(dp[aehlnr]|pcp|[nr])=|n(nodes|ode-rank)=|master-"
    r"|headless=|device-ids=|worker-cls=|prefill-context|(.*-backend|-dpb)=(?=ray|external|.*\.)"
)
_MODULES = {
    "vllm.entrypoints.openai.api_server": "api_server",
    "watchdog.simulator": "simulator",
}
_SERVING_MODULES = ("vllm", "vllm.entrypoints.cli.main")
SHELLS = frozenset({"ash", "bash", "dash", "ksh", "sh", "zsh"})
"""What they run is in a text or a file of theirs."""
_SECRET = re.compile(
    r"(?i)(--api[-_]ke?y?|--hf[-_]token|(?<![\w-])\w*(?:key|token|secret|password)s?(?==))"
    r"([=\s]+)(\"[^\"]*\"|'[^']*'|[^\s\"';|&]+)"
)
"""A flag or an assignment with its value, alone or inside a shell's script."""


class CommandError(ValueError):
    """The command cannot be an engine's. The message is one line and holds no key."""


class Form(StrEnum):
    """The ways to start an engine that are known; flags of others are read where present."""

    SERVE = "serve"
    API_SERVER = "api_server"
    SIMULATOR = "simulator"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class EngineCommand:
    """What the command says about the engine. ``endpoint`` is where to connect.

    ``bind_host`` is the address that the engine binds (``0.0.0.0`` for all). ``model`` is empty
    when it could not be read. ``gpu_memory_utilization`` is a fraction, ``max_model_len`` counts
    tokens; None where the command leaves the engine's default. ``notes`` are one-line warnings.
    With ``spread`` there are flags of several nodes or ranks: which cards it uses is not known.
    ``flags`` are all that were given, names without dashes, except those of keys and tokens.
    """

    argv: tuple[str, ...] = field(repr=False)
    form: Form
    endpoint: Endpoint
    bind_host: str
    model: str = ""
    served_names: tuple[str, ...] = ()
    tensor_parallel: int = 1
    data_parallel: int = 1
    pipeline_parallel: int = 1
    gpu_memory_utilization: float | None = None
    max_model_len: int | None = None
    shutdown_timeout: Seconds | None = None
    spread: bool = False
    notes: tuple[str, ...] = ()
    flags: tuple[tuple[str, tuple[str, ...]], ...] = field(default=(), repr=False)


@dataclass(slots=True)
class _Given:
    """Flags with their values, and words that may be the model: surely, likely, or perhaps."""

    values: dict[str, tuple[str, ...]] = field(default_factory=dict)
    surely: list[str] = field(default_factory=list)
    likely: list[str] = field(default_factory=list)
    perhaps: bool = False
    notes: list[str] = field(default_factory=list)

    def one(self, name: str) -> str | None:
        values = self.values.get(name)
        return None if values is None else (values[0] if values else "")


def describe(
    command: Sequence[str],
    env: Mapping[str, str],
    environ: Mapping[str, str],
    *,
    cwd: Path | None = None,
) -> EngineCommand:
    """What ``command`` will serve, where ``env`` is the engine's own and ``environ`` inherited.

    ``cwd`` is where the engine starts, for a relative ``--config``. Raises CommandError.
    """
    if not command or not command[0].strip():
        raise CommandError("cannot start an engine from an empty command")
    form, start = locate(command)
    given = _scan(command[start:])
    if form in {Form.SERVE, Form.API_SERVER}:
        _add_config_file(given, cwd or Path())
    model = _model(form, given)
    names = tuple(filter(None, given.values.get("served-model-name", ()))) or _only(model)
    _note_what_is_hidden(form, command, given, names)
    bind_host = _bind_host(form, given)
    key = _key(given, command[:start], env, environ)
    return EngineCommand(
        argv=tuple(command),
        form=form,
        endpoint=_endpoint(given, connect_host(bind_host), names, key),
        bind_host=bind_host,
        model=model,
        served_names=names,
        tensor_parallel=_count(form, given, "tensor-parallel-size"),
        data_parallel=_count(form, given, "data-parallel-size"),
        pipeline_parallel=_count(form, given, "pipeline-parallel-size"),
        gpu_memory_utilization=_fraction(given.one("gpu-memory-utilization")),
        max_model_len=_tokens(given.one("max-model-len")),
        shutdown_timeout=_number(given.one("shutdown-timeout")),
        spread=any(_SPREAD.match(f"{k}={' '.join(v)}") for k, v in given.values.items()),
        notes=tuple(given.notes),
        flags=tuple(one for one in given.values.items() if not _is_secret(f"--{one[0]}")),
    )


def connect_host(bind_host: str) -> str:
    """The address that reaches a server bound to ``bind_host``: loopback for a wildcard.

    ``localhost`` becomes 127.0.0.1 because vLLM binds names with IPv4.
    """
    return {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "localhost": "127.0.0.1"}.get(  # noqa: S104
        bind_host, "::1" if bind_host in {"::", "::0", "0:0:0:0:0:0:0:0"} else bind_host
    )


def redacted(command: Sequence[str]) -> list[str]:
    """``command`` with the values of keys and tokens replaced; for logs, status and the store."""
    shown: list[str] = []
    hiding = False
    for word in command:
        name, equals, _ = word.partition("=")
        if word.startswith("-") and equals and _is_secret(name):
            shown.append(f"{name}={REDACTED}")
            hiding = False
            continue
        hiding = _is_secret(word) if _is_flag(word) else hiding
        hidden = hiding and not _is_flag(word)
        shown.append(REDACTED if hidden else _SECRET.sub(rf"\1\2{REDACTED}", word))
    return shown


def _is_secret(flag: str) -> bool:
    name = _flag_name(flag)
    return name.startswith("api-k") or is_secret(name)


def locate(command: Sequence[str]) -> tuple[Form, int]:
    """The form, and the index of the first word of the engine's own arguments."""
    for index, word in enumerate(command):
        if Path(word).name == "vllm" or _is_module(command, index, _SERVING_MODULES):
            if list(command[index + 1 : index + 2]) == ["serve"]:
                return Form.SERVE, index + 2
            continue
        if _is_module(command, index, tuple(_MODULES)):
            return Form(_MODULES[word]), index + 1
        if word == "simulate-engine":
            return Form.SIMULATOR, index + 1
    return Form.OTHER, 1


def _is_module(command: Sequence[str], index: int, names: tuple[str, ...]) -> bool:
    return index > 0 and command[index - 1] == "-m" and command[index] in names


def _is_flag(word: str) -> bool:
    """As argparse sees it: a negative number or a word with a blank is a value."""
    return len(word) > 1 and word[0] == "-" and not word[1].isdigit() and " " not in word


def _flag_name(word: str) -> str:
    name = word.partition("=")[0].lstrip("-").replace("_", "-")
    if not word.startswith("--"):
        return _ALIASES.get(name, f"-{name}")
    return "api-key" if name.startswith("api-k") and "api-key".startswith(name) else name


def _scan(words: Sequence[str]) -> _Given:
    given = _Given()
    name: str | None = None
    run: list[str] = []
    for index, word in enumerate(words):
        if word == "--":
            _settle(given, name, run)
            given.surely.extend(words[index + 1 :])
            return given
        if not _is_flag(word):
            run.append(word)
            continue
        _settle(given, name, run)
        flag, equals, value = word.partition("=")
        name, run = _flag_name(flag), []
        if equals:
            given.values[name] = (value,)
            name = None
    _settle(given, name, run)
    return given


def _settle(given: _Given, name: str | None, run: list[str]) -> None:
    """Share out the words that follow a flag: its values, and what may be the model."""
    if name is None or name in _SWITCHES or name.startswith(_SWITCH_PREFIXES):
        given.surely.extend(run)
        if name is not None:
            given.values[name] = ()
    elif name in _ONE:
        given.values[name] = tuple(run[:1])
        given.surely.extend(run[1:])
    elif name in _MANY:
        given.values[name] = tuple(run)
        given.perhaps |= len(run) > 1
    else:
        given.values[name] = tuple(run)
        given.likely.extend(word for word in run[1:] if "=" not in word)
        given.perhaps |= bool(run)


def _model(form: Form, given: _Given) -> str:
    named = given.one("model") or ""
    match form:
        case Form.SIMULATOR:
            return named or _SIMULATED_MODEL
        case Form.SERVE:
            return next(iter([*given.surely, *_only(named), *given.likely]), "") or _unread(given)
        case Form.API_SERVER | Form.OTHER:
            return named


def _unread(given: _Given) -> str:
    if not given.perhaps:
        raise CommandError("cannot find the model: expected vllm serve MODEL")
    given.notes.append("the model could not be told from the flags' values; put it after serve")
    return ""


def _only(text: str) -> tuple[str, ...]:
    return (text,) if text else ()


def _note_what_is_hidden(
    form: Form, command: Sequence[str], given: _Given, names: tuple[str, ...]
) -> None:
    if form is Form.OTHER and Path(command[0]).name in SHELLS:
        given.notes.append("what a shell runs is not read: port, key and model are defaults")
    elif form in {Form.API_SERVER, Form.OTHER} and not names:
        given.notes.append("no --model: the engine's default has no name here")
    if "headless" in given.values:
        given.notes.append("--headless: this engine serves no API")


def _endpoint(given: _Given, host: str, names: tuple[str, ...], key: str) -> Endpoint:
    return Endpoint(
        host=host,
        port=_port(given.one("port")),
        tls=bool(given.one("ssl-certfile") or given.one("ssl-keyfile")),
        uds=given.one("uds") or "",
        root_path=(given.one("root-path") or "").rstrip("/"),
        served_name=names[0] if names else "",
        api_key=key,
    )


def _port(text: str | None) -> int:
    if text is None:
        return DEFAULT_PORT
    shown = text if len(text) <= 20 else text[:20] + "…"  # noqa: PLR2004
    if not re.fullmatch(r"[+-]?[0-9]{1,20}", text):
        raise CommandError(f"cannot read --port: expected a number from 1 to 65535, got {shown!r}")
    port = int(text)
    if not 1 <= port <= 65535:  # noqa: PLR2004
        raise CommandError(f"cannot use port {shown}: expected a number from 1 to 65535")
    return port


def _bind_host(form: Form, given: _Given) -> str:
    default = "127.0.0.1" if form is Form.SIMULATOR else "0.0.0.0"  # noqa: S104
    return (given.one("host") or default).strip("[]")


def _key(
    given: _Given, wrapper: Sequence[str], env: Mapping[str, str], environ: Mapping[str, str]
) -> str:
    """The first key of the flag; the variable counts only without the flag, as in vLLM."""
    if "api-key" in given.values:
        return given.one("api-key") or ""
    assigned = [word.partition("=")[2] for word in wrapper if word.startswith("VLLM_API_KEY=")]
    return assigned[-1] if assigned else env.get("VLLM_API_KEY", environ.get("VLLM_API_KEY", ""))


def _count(form: Form, given: _Given, name: str) -> int:
    text = given.one(name)
    if text is None:
        return 1
    if re.fullmatch(r"[0-9]{1,5}", text) and int(text) >= 1:
        return int(text)
    if form is Form.OTHER:
        return 1
    raise CommandError(f"cannot read --{name}: expected a whole number of at least 1")


def _number(text: str | None) -> float | None:
    return float(text) if text and re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text) else None


def _fraction(text: str | None) -> float | None:
    value = float(text) if text and re.fullmatch(r"[0-9]*\.?[0-9]+", text) else None
    return value if value is not None and 0 < value <= 1 else None


def _tokens(text: str | None) -> int | None:
    """A human-readable integer: ``k`` is 1000, ``K`` is 1024; None for the default."""
    match = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)([kKmMgG]?)", text or "")
    if match is None:
        return None
    number, unit = match.groups()
    power = " kmg".index(unit.lower()) if unit else 0
    return int(float(number) * (1024 if unit.isupper() else 1000) ** power)


def _add_config_file(given: _Given, cwd: Path) -> None:
    """Raises CommandError of a file that does not answer: a guess would watch the wrong port."""
    name = given.one("config")
    if not name:
        return
    try:
        found = flag_file.read(cwd / name)
    except TimeoutError as error:
        raise CommandError(str(error)) from error
    if found is None:
        given.notes.append("the engine's --config file could not be read")
        return
    for key, values in found.values.items():
        given.values.setdefault(key, values)
    odd = [key for key in found.odd if key not in given.values]
    if odd:
        keys = ", ".join(odd[:_NAMED]) + (" and more" if len(odd) > _NAMED else "")
        given.notes.append(f"not understood in the engine's --config file, so not counted: {keys}")
