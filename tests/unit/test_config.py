"""The configuration: what is accepted, what is refused, and in which words."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchdog.config import (
    Config,
    ConfigError,
    find,
    listen_address,
    load,
    parse_duration,
    state_dir,
    with_command,
)
from watchdog.core.state import Budget


class Settings(msgspec.Struct, frozen=True):
    """A probe's own."""

    patience: float = 4.0
    paths: tuple[str, ...] = ()


PROBES = {"gpu": Settings}
ENGINE = '[engine.main]\ncommand = ["vllm", "serve", "m"]\n'
COMMAND = ("vllm", "serve", "m", "--port", "9000")

Loader = Callable[..., Config]


@pytest.fixture
def loaded(tmp_path: Path) -> Loader:
    """Load a text as a file."""

    def of(text: str, command: tuple[str, ...] = ()) -> Config:
        path = tmp_path / "watchdog.toml"
        path.write_text(text)
        return load(path, PROBES, command)

    return of


def lines(loaded: Loader, text: str) -> list[str]:
    """The errors of a text, without the path of the file."""
    with pytest.raises(ConfigError) as caught:
        loaded(text)
    return [line.rpartition("watchdog.toml: ")[2] for line in caught.value.lines]


def test_the_whole_example(loaded: Loader) -> None:
    """Every key of the documented example is read, durations as seconds."""
    config = loaded("""
[watchdog]
listen = "127.0.0.1:9909"
mode = "observe"
log = "-"
[engine.main]
command = ["vllm", "serve", "Qwen/Qwen3-0.6B", "--port", "8000"]
env = { A = "b" }
gpus = [0]
start_timeout = "30m"
start_deadline = "2h"
stop = { drain_timeout = "30s", term_timeout = "20s", kill_timeout = "500ms" }
log_file = "engine-main.log"
standby = false
pre_start = [{ command = ["true"], timeout = "5s" }]
model_change = "warn"
[policy]
backoff = { initial = "1s", max = "5m", jitter = 0.1, reset_after_ready = "10m" }
restart_budget = { count = 5, window = "1h30m" }
boot_budget = { count = 3, window = "1h" }
on_give_up = "exit"
[probes.gpu]
period = "1s"
timeout = "5s"
patience = "2s"
[[rule]]
name = "engine-stalled"
for = "20s"
[notify.alertmanager]
url = "http://127.0.0.1:9093"
""")
    engine = config.engine["main"]
    assert (engine.env, engine.gpus, engine.stop.kill_timeout) == ({"A": "b"}, (0,), 0.5)
    assert (engine.pre_start[0].command, engine.pre_start[0].timeout) == (("true",), 5.0)
    assert engine.core("main").start_deadline == 7200.0
    assert config.policy.core().restart_budget == Budget(5, 5400.0)
    assert (config.probes["gpu"].period, config.probes["gpu"].settings.patience) == (1.0, 2.0)
    assert (config.rule[0].name, config.rule[0].for_) == ("engine-stalled", 20.0)
    assert config.warnings == ("notify.alertmanager: accepted, but this version sends nothing",)


def test_defaults_without_a_file() -> None:
    """No file is a configuration too; a command makes its engine ``main``."""
    config = load(None, PROBES, COMMAND)
    assert list(config.engine) == ["main"]
    assert config.engine["main"].log_file == "engine-main.log"
    assert config.probes["gpu"].settings == Settings()
    assert load(None, PROBES).engine == {}


def test_a_command_replaces_only_the_command(loaded: Loader) -> None:
    """The other keys of the engine stay, and a file without a command is completed by one."""
    config = loaded('[engine.main]\ncwd = "/"\n', COMMAND)
    assert (config.engine["main"].command, config.engine["main"].cwd) == (COMMAND, "/")
    again = with_command(config, ["vllm", "serve", "other"])
    assert (again.engine["main"].command[2], again.engine["main"].cwd) == ("other", "/")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[watchdog]\nlisten = 5", "watchdog.listen: expected a text, got 5"),
        (
            '[watchdog]\nlisten = "9909"',
            'watchdog.listen: expected HOST:PORT like "127.0.0.1:9909"',
        ),
        ('[watchdog]\nmode = "off"', 'watchdog.mode: expected one of "observe", "act", got "off"'),
        ("[watchdgo]", "watchdgo: unknown key, expected one of watchdog, engine,"),
        ('[policy]\non_giveup = "exit"', "policy.on_giveup: unknown key, expected one of backoff"),
        ("policy = 5", "policy: expected a table, got 5"),
        (
            "[policy]\nrestart_budget = { count = 5, window = '10s' }",
            "policy.restart_budget: expected a window above the 15s that the first 5 backoffs take",
        ),
        (
            "[policy]\nboot_budget = { count = 0 }",
            "policy.boot_budget.count: expected a whole number",
        ),
        ("[policy]\nbackoff = { jitter = nan }", "policy.backoff.jitter: expected a number"),
        ("[policy]\nbackoff = { initial = '10m' }", "policy.backoff.initial: expected at most"),
        ("[probes.gpuu]", "probes.gpuu: unknown probe, expected one of gpu"),
        ("[probes.gpu]\nperiod = '0s'", "probes.gpu.period: expected a duration above zero"),
        ("[probes.gpu]\npaths = [1]", "probes.gpu.paths[0]: expected a text, got 1"),
        ("[probes.gpu]\npatience = true", "probes.gpu.patience: expected a number, got true"),
        ("[[rule]]\nfor = '1s'", "rule[0].name: expected a text"),
        ("[[rule]]\nname = 'a'\n[[rule]]\nname = 'a'", "rule: expected one table named a, got 2"),
        ("[notify.x]\nurl = 'ftp://h'", "notify.x.url: expected http://HOST"),
    ],
)
def test_errors_name_key_and_expectation(loaded: Loader, text: str, line: str) -> None:
    """Each mistake is one line: the key, then what was expected."""
    (found,) = lines(loaded, text)
    assert found.startswith(line)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "stop = { drain_timeout = 5 }",
            'stop.drain_timeout: expected a duration like "30s", got 5',
        ),
        ('start_timeout = "5"', 'start_timeout: expected a duration like "30s", got "5"'),
        ('start_timeout = "-5s"', 'start_timeout: expected a duration like "30s", got "-5s"'),
        ('start_timeout = "5mm"', 'start_timeout: expected a duration like "30s", got "5mm"'),
        ('start_timeout = "99999h"', 'start_timeout: expected a duration of at most "8760h"'),
        ("gpus = [0, 0]", "gpus: expected each GPU once"),
        ("gpus = [-1]", "gpus: expected indices from 0 or UUIDs"),
        ("gpus = 0", "gpus: expected a list of whole numbers or texts, got 0"),
        ('log_file = "../x"', "log_file: expected a path below the state directory"),
        ("standby = 1", "standby: expected true or false, got 1"),
        ("pre_start = [{}]", "pre_start[0].command: expected a list of texts"),
        ('model_change = "yes"', 'model_change: expected one of "refuse", "warn", "accept"'),
        ("cwd = 1979-05-27", "cwd: expected a text, got a date or time"),
    ],
)
def test_errors_of_an_engine(loaded: Loader, text: str, line: str) -> None:
    """The path leads through the engine's name to the key."""
    (found,) = lines(loaded, ENGINE + text)
    assert found.startswith(f"engine.main.{line}")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[engine.main]", "engine.main.command: cannot start an engine from an empty command"),
        (
            "[engine.main]\ncommand = ['vllm', 'serve']",
            "engine.main.command: cannot find the model",
        ),
        (ENGINE + "[engine.Main]\ncommand = ['x', '--port=1']", "engine.Main: expected a name"),
        (
            ENGINE + "[engine.b]\ncommand = ['x']",
            "engine.b.command: port 8000 is that of engine.main",
        ),
        ("[watchdog]\nlisten = ':8000'\n" + ENGINE, "watchdog.listen: port 8000 is that of engine"),
    ],
)
def test_engines_have_to_fit(loaded: Loader, text: str, line: str) -> None:
    """A command without an engine, a bad name and a port given twice are found before a start."""
    (found,) = lines(loaded, text)
    assert found.startswith(line)


def test_all_errors_at_once(loaded: Loader) -> None:
    """One run shows every mistake, also those that depend on what could be read."""
    found = lines(
        loaded, "[watchdog]\nx = 1\nlisten = 'y'\n[policy]\nz = 2\n[engine.a]\n[engine.B]\n"
    )
    keys = [line.partition(":")[0] for line in found]
    assert keys[:2] == ["watchdog.x", "policy.z"]
    assert set(keys[2:]) == {
        "watchdog.listen", "engine.a.command", "engine.B", "engine.B.command",
    }  # fmt: skip


def test_values_that_may_be_secret_are_not_repeated(loaded: Loader) -> None:
    """A key that was written as a number does not end up in a log."""
    (found,) = lines(loaded, ENGINE + "env = { VLLM_API_KEY = 123456 }")
    assert found == "engine.main.env.VLLM_API_KEY: expected a text, got a number"


@pytest.mark.parametrize(
    ("text", "place"),
    [("a = 1\nb = ?", "line 2: "), ("[x\n", "line 1: "), ("\n\na = [", "line 3: ")],
)
def test_syntax_errors_name_the_line(loaded: Loader, text: str, place: str) -> None:
    """TOML that does not parse is one line with its place."""
    (found,) = lines(loaded, text)
    assert found.startswith(place)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    """Missing, a directory, a FIFO without a writer, too large, not UTF-8: one line, no hang."""
    fifo, large, latin = tmp_path / "fifo", tmp_path / "large", tmp_path / "latin"
    os.mkfifo(fifo)
    large.write_bytes(b"#" * (1 << 20) + b"#")
    latin.write_bytes(b"a = 1\nb = '\xe9'\n")
    for path, words in [
        (tmp_path / "none", "cannot be read: no such file or directory"),
        (tmp_path, "cannot be read: expected a regular file"),
        (fifo, "cannot be read: expected a regular file"),
        (large, "cannot be read: expected at most 1048576 bytes"),
        (latin, "line 2: expected UTF-8"),
    ]:
        with pytest.raises(ConfigError) as caught:
            load(path, PROBES)
        assert caught.value.lines == (f"{path}: {words}",)


def test_the_hash_is_of_what_is_effective(loaded: Loader) -> None:
    """A comment or a default written out changes nothing; a value does."""
    first = loaded(ENGINE).sha256
    assert loaded(ENGINE + "# comment\nstandby = false\n").sha256 == first
    assert loaded(ENGINE + "standby = true\n").sha256 != first


@pytest.mark.parametrize(
    ("text", "seconds"), [("500ms", 0.5), ("30s", 30), ("1h30m", 5400), ("1.5s", 1.5), ("0s", 0)]
)
def test_durations(text: str, seconds: float) -> None:
    """Go's notation, in seconds."""
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "address"),
    [("127.0.0.1:9909", ("127.0.0.1", 9909)), (":1", ("", 1)), ("[::1]:0", ("::1", 0))],
)
def test_listen_addresses(text: str, address: tuple[str, int]) -> None:
    """HOST:PORT, with brackets for IPv6, and without a host for all."""
    assert listen_address(text) == address


def test_where_the_configuration_is_found(tmp_path: Path) -> None:
    """The flag wins over the variable, and both are taken at their word."""
    environ = {"VLLM_WATCHDOG_CONFIG": "b.toml"}
    assert find("a.toml", environ) == Path("a.toml")
    assert find(None, environ) == Path("b.toml")
    assert find(str(tmp_path / "none"), {}) == tmp_path / "none"


def test_where_the_state_lies(tmp_path: Path) -> None:
    """The flag wins over the variable."""
    environ = {"VLLM_WATCHDOG_STATE_DIR": str(tmp_path / "b")}
    assert state_dir(tmp_path / "a", environ) == tmp_path / "a"
    assert state_dir(None, environ) == tmp_path / "b"
    assert state_dir(None, {"XDG_STATE_HOME": str(tmp_path)}).name == "vllm-watchdog"


LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=6)
    | st.sampled_from(["5s", "act", "hold", "vllm", "serve", "m", "critical", "127.0.0.1:1"])
)
KEYS = st.sampled_from(
    [
        "watchdog",
        "listen",
        "mode",
        "log",
        "engine",
        "main",
        "command",
        "env",
        "gpus",
        "start_timeout",
        "start_deadline",
        "stop",
        "drain_timeout",
        "term_timeout",
        "kill_timeout",
        "log_file",
        "standby",
        "pre_start",
        "timeout",
        "model_change",
        "cwd",
        "policy",
        "backoff",
        "initial",
        "max",
        "jitter",
        "reset_after_ready",
        "restart_budget",
        "boot_budget",
        "count",
        "window",
        "on_give_up",
        "probes",
        "gpu",
        "period",
        "enabled",
        "patience",
        "paths",
        "rule",
        "name",
        "when",
        "for",
        "severity",
        "actions",
        "notify",
        "url",
    ]
) | st.text(max_size=4)
TREES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4)
)
TABLE = st.dictionaries(KEYS, TREES, max_size=5)
NAMED = st.dictionaries(st.sampled_from(["main", "gpu"]) | st.text(max_size=3), TABLE, max_size=2)
FILES = st.fixed_dictionaries(
    {},
    optional={
        "watchdog": TABLE, "engine": NAMED, "policy": TABLE, "probes": NAMED,
        "rule": st.lists(TABLE, max_size=2), "notify": NAMED,
    },
)  # fmt: skip


def toml(value: Any) -> str:  # noqa: ANN401
    """Write any tree as an inline TOML value; None becomes a date."""
    match value:
        case None:
            return "1979-05-27T07:32:00Z"
        case bool() | str():
            return msgspec.json.encode(value).decode().replace("\x7f", "\\u007f")
        case list():
            return f"[{', '.join(map(toml, value))}]"
        case dict():
            inside = ", ".join(f"{toml(key)} = {toml(item)}" for key, item in value.items())
            return f"{{ {inside} }}"
        case _:
            return str(value)


@given(tree=FILES | TABLE)
def test_nothing_but_config_errors(tree: dict[str, Any], tmp_path_factory: Any) -> None:  # noqa: ANN401
    """Whatever is in the file, it is accepted or refused in lines FILE: KEY: words."""
    path = tmp_path_factory.getbasetemp() / f"fuzz-{os.getpid()}.toml"
    path.write_text("".join(f"{toml(key)} = {toml(value)}\n" for key, value in tree.items()))
    try:
        told = [f"{path}: sha256: {load(path, PROBES).sha256}"]
    except ConfigError as error:
        told = list(error.lines)
    assert told
    for line in told:
        assert re.fullmatch(re.escape(str(path)) + r": \S.*: \S.*", line)
