"""What types cannot say: names, ports and budgets that have to fit each other."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePath
from urllib.parse import urlsplit

from watchdog.command_line import CommandError, EngineCommand, connect_host, describe
from watchdog.config.reading import join, shown
from watchdog.config.settings import BudgetSettings, Config, EngineConfig, NotifyKind, PolicyConfig
from watchdog.core.policy import backoff
from watchdog.programs import named

ENGINE_NAME = "[a-z0-9][a-z0-9_-]{0,62}"
"""What an engine may be called, as a regular expression for the whole name."""

GPU_NAMES = ("GPU-[A-Za-z0-9_/-]+", "MIG-[A-Za-z0-9_/-]+")
"""What CUDA calls a card or a part of one, as regular expressions for the whole name."""
MOST_GPUS = 1024
_LONGEST_PATTERN = 1000
_OURS = frozenset({"lock", "control.sock", "recording", "evidence", "nginx-reload.log", "."})
"""Names below the state directory."""
_OF_A_START = ("standby", "pre_start", "post_stop", "expect_log", "limits")
_PART = re.compile(r"\.(?:[1-9]|part)$")
"""What rotation adds to the name of a log."""
_LOG_PROBE = "engine_log"
MOST_RECEIVERS = 16
"""Each has a thread."""
_FRAMING = frozenset({"connection", "content-length", "host", "transfer-encoding"})
"""Headers that say where an exchange begins and ends."""

_VARIABLE = re.compile(r"[^=\0]+")
_WILDCARDS = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 - compared, not bound


def faults(config: Config) -> Iterator[str]:
    """Lines ``KEY: what was expected``; nothing when the configuration can be used."""
    yield from _watchdog(config)
    commands: dict[str, EngineCommand] = {}
    for name, engine in config.engine.items():
        yield from _engine(name, engine)
        try:
            commands[name] = _described(engine)
        except CommandError as error:
            yield f"{join('engine', name)}.command: {error}"
            continue
        yield from _findable(join("engine", name), engine, commands[name])
    yield from _collisions(config, commands)
    yield from _unread_logs(config)
    yield from _policy(config.policy)
    yield from _nginx(config)
    names = Counter(rule.name for rule in config.rule)
    yield from (f"rule: expected one table named {n}, got {c}" for n, c in names.items() if c > 1)
    yield from _notify(config)


def default_log_file(engine: str) -> str:
    """The log file of an engine that names none."""
    return f"engine-{engine}.log"


def listen_address(text: str) -> tuple[str, int]:
    """Host (without brackets; empty for all) and port of HOST:PORT; raises ValueError, one line."""
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.%\w]+)\]|([^\s:\[\]]*)):([0-9]{1,5})", text)
    if match is None or int(match.group(3)) > 65535:  # noqa: PLR2004
        raise ValueError(f'expected HOST:PORT like "127.0.0.1:9909", got {shown(text)}')
    return match.group(1) or match.group(2) or "", int(match.group(3))


def _described(engine: EngineConfig) -> EngineCommand:
    return describe(engine.command, engine.env, {}, cwd=Path(engine.cwd))


def _watchdog(config: Config) -> Iterator[str]:
    try:
        listen_address(config.watchdog.listen)
    except ValueError as error:
        yield f"watchdog.listen: {error}"
    if not config.watchdog.log or "\0" in config.watchdog.log:
        yield 'watchdog.log: expected a file, or "-" for stderr'


def _engine(name: str, engine: EngineConfig) -> Iterator[str]:
    path = join("engine", name)
    if not re.fullmatch(ENGINE_NAME, name):
        yield f"{path}: expected a name of a-z, 0-9, _ and -, at most 63"
    words = (*engine.command, *engine.env.values(), engine.cwd, engine.log_file)
    if any("\0" in word for word in words):
        yield f"{path}: expected texts without NUL characters"
    if not all(map(_is_utf8, words)):
        yield f"{path}: expected texts in UTF-8"
    for variable in engine.env:
        if not _VARIABLE.fullmatch(variable):
            yield f"{join(f'{path}.env', variable)}: expected a variable's name without ="
    yield from _gpus(path, engine.gpus or ())
    log_file = PurePath(engine.log_file)
    if log_file.is_absolute() or ".." in log_file.parts:
        yield f"{path}.log_file: expected a path below the state directory"
    elif _is_ours(log_file):
        yield f"{path}.log_file: expected a file that is not the watchdog's own"
    yield from _hooks(path, engine)
    yield from _patterns(path, engine.expect_log)
    yield from _attached(path, engine)


def _attached(path: str, engine: EngineConfig) -> Iterator[str]:
    """What is said about a start means nothing where somebody else makes it."""
    if engine.attach is None:
        return
    plain = EngineConfig()
    for key in _OF_A_START:
        if getattr(engine, key) != getattr(plain, key):
            yield f"{path}.{key}: expected none for an engine that is attached to"


def _findable(path: str, engine: EngineConfig, command: EngineCommand) -> Iterator[str]:
    """An engine that somebody else starts is found by its TCP port and its program."""
    if engine.attach is None:
        return
    if command.endpoint.uds:
        yield f"{path}.attach: expected a command without --uds: it is found by its port"
    if not named(engine.command):
        yield f"{path}.attach: expected a command that names the engine's program, not its shell's"


def _is_ours(file: PurePath) -> bool:
    """Whether the watchdog keeps something of its own there, below the state directory."""
    first = file.parts[0] if file.parts else "."
    return first in _OURS or first.startswith("store.sqlite3") or file == PurePath()


def _hooks(path: str, engine: EngineConfig) -> Iterator[str]:
    for key, hooks in (("pre_start", engine.pre_start), ("post_stop", engine.post_stop)):
        for index, hook in enumerate(hooks):
            yield from _command(f"{path}.{key}[{index}].command", hook.command)


def _command(path: str, words: tuple[str, ...]) -> Iterator[str]:
    if not words or not words[0]:
        yield f"{path}: expected a program and its arguments"
    elif not all(map(_is_text, words)):
        yield f"{path}: expected texts in UTF-8 without NUL"


def _patterns(path: str, patterns: tuple[str, ...]) -> Iterator[str]:
    for index, pattern in enumerate(patterns):
        try:
            re.compile(pattern)
        except (re.error, RecursionError, OverflowError) as error:
            yield f"{path}.expect_log[{index}]: expected a regular expression: {error}"
        if len(pattern) > _LONGEST_PATTERN:
            yield f"{path}.expect_log[{index}]: expected at most {_LONGEST_PATTERN} characters"


def _unread_logs(config: Config) -> Iterator[str]:
    """What nobody looks for is never found, and the engine would never be ready."""
    probe = config.probes.get(_LOG_PROBE)
    if probe is not None and not probe.enabled:
        for name, engine in config.engine.items():
            if engine.expect_log:
                yield f"{join('engine', name)}.expect_log: expected probes.{_LOG_PROBE} enabled"


def _nginx(config: Config) -> Iterator[str]:
    settings = config.nginx
    if settings is None:
        return
    file = PurePath(settings.upstream_file)
    logs = {engine.log_file for engine in config.engine.values()}
    if not file.is_absolute() and (_is_ours(file) or settings.upstream_file in logs):
        yield "nginx.upstream_file: expected a file of its own"
    if not settings.upstream_file or not _is_text(settings.upstream_file):
        yield "nginx.upstream_file: expected a file"
    if settings.reload:
        yield from _command("nginx.reload", settings.reload)


def _notify(config: Config) -> Iterator[str]:
    if len(config.notify) > MOST_RECEIVERS:
        yield f"notify: expected at most {MOST_RECEIVERS} receivers, got {len(config.notify)}"
    for name, target in config.notify.items():
        path = join("notify", name)
        if not re.fullmatch(ENGINE_NAME, name):
            yield f"{path}: expected a name of a-z, 0-9, _ and -, at most 63"
        if not _is_url(target.url):
            yield f"{path}.url: expected http://HOST or https://HOST"
        if target.kind_of(name) is None:
            known = " or ".join(f'"{kind.value}"' for kind in NotifyKind)
            yield f"{path}.kind: expected {known}, as the name is neither"
        for header in target.headers:
            if header.lower() in _FRAMING:
                yield f"{join(f'{path}.headers', header)}: expected another header than that"


def _is_url(url: str) -> bool:
    """Whether it names a host to speak HTTP to, in characters that a request can hold."""
    if not re.fullmatch(r"https?://[!-~]+", url):
        return False
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _is_name(gpu: str) -> bool:
    return any(re.fullmatch(name, gpu) for name in GPU_NAMES)


def _is_text(word: str) -> bool:
    return "\0" not in word and _is_utf8(word)


def _is_utf8(text: str) -> bool:
    """Whether it is more than the bytes of a command line that nobody can read."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _gpus(path: str, gpus: tuple[int | str, ...]) -> Iterator[str]:
    for gpu in gpus:
        good = _is_name(gpu) if isinstance(gpu, str) else 0 <= gpu < MOST_GPUS
        if not good:
            yield f"{path}.gpus: expected indices from 0 or UUIDs like GPU-…, got {shown(gpu)}"
    if len(set(gpus)) < len(gpus):
        yield f"{path}.gpus: expected each GPU once"


def _collisions(config: Config, commands: dict[str, EngineCommand]) -> Iterator[str]:
    ports: dict[int, str] = {}
    sockets: dict[str, str] = {}
    files: dict[str, str] = {}
    for name, command in commands.items():
        path, port, uds = join("engine", name), command.endpoint.port, command.endpoint.uds
        if uds and (first := sockets.setdefault(uds, name)) != name:
            yield f"{path}.command: the socket is that of engine.{first}"
        if not uds and (first := ports.setdefault(port, name)) != name:
            yield f"{path}.command: port {port} is that of engine.{first}"
        if (first := files.setdefault(config.engine[name].log_file, name)) != name:
            yield f"{path}.log_file: expected a file of its own, this is engine.{first}'s"
        base = _PART.sub("", config.engine[name].log_file)
        if base != config.engine[name].log_file and base in files:
            yield f"{path}.log_file: a rotated part of engine.{files[base]}'s log has this name"
        if _takes_our_port(config.watchdog.listen, command):
            yield f"watchdog.listen: port {port} is that of engine.{name}"


def _takes_our_port(listen: str, command: EngineCommand) -> bool:
    try:
        host, port = listen_address(listen)
    except ValueError:
        return False
    if command.endpoint.uds or port != command.endpoint.port:
        return False
    same = connect_host(host) == command.endpoint.host
    return same or bool(_WILDCARDS & {host, command.bind_host})


def _policy(policy: PolicyConfig) -> Iterator[str]:
    if policy.backoff.initial > policy.backoff.max:
        yield "policy.backoff.initial: expected at most policy.backoff.max"
    yield from _unreachable("policy.restart_budget", policy.restart_budget, policy)
    yield from _unreachable("policy.boot_budget", policy.boot_budget, policy)


def _unreachable(path: str, budget: BudgetSettings, policy: PolicyConfig) -> Iterator[str]:
    """A budget that backoff alone keeps from being spent never opens the breaker."""
    settings = policy.core()
    total = sum(backoff(failures, "0", settings) for failures in range(budget.count))
    if total > budget.window:
        yield (
            f"{path}: expected a window above the {total:g}s that the first {budget.count}"
            f" backoffs take, got {budget.window:g}s"
        )
