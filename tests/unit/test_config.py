"""The configuration: what is accepted, what is refused, and in which words."""

import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from watchdog.config import (
    Config,
    ConfigError,
    PlugIns,
    find,
    listen_address,
    load,
    parse_duration,
    state_dir,
    with_command,
)
from watchdog.core.state import Budget
from watchdog.names import is_secret, without_secrets


class Settings(msgspec.Struct, frozen=True):
    """A probe's own."""

    patience: float = 4.0
    paths: tuple[str, ...] = ()


KNOWN = PlugIns({"gpu": Settings}, {"call": Settings})
ENGINE = '[engine.main]\ncommand = ["vllm", "serve", "m"]\n'
COMMAND = ("vllm", "serve", "m", "--port", "9000")

Loader = Callable[..., Config]


@pytest.fixture
def loaded(tmp_path: Path) -> Loader:
    """Load a text as a file."""

    def of(text: str, command: tuple[str, ...] = ()) -> Config:
        path = tmp_path / "watchdog.toml"
        path.write_text(text)
        return load(path, KNOWN, command)

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
min_severity = "critical"
headers = { X-Key = "TEST_NOT_SET" }
""")
    engine = config.engine["main"]
    assert (engine.env, engine.gpus, engine.stop.kill_timeout) == ({"A": "b"}, (0,), 0.5)
    assert (engine.pre_start[0].command, engine.pre_start[0].timeout) == (("true",), 5.0)
    assert engine.core("main").start_deadline == 7200.0
    assert config.policy.core().restart_budget == Budget(5, 5400.0)
    assert (config.probes["gpu"].period, config.probes["gpu"].settings.patience) == (1.0, 2.0)
    assert (config.rule[0].name, config.rule[0].for_) == ("engine-stalled", 20.0)
    assert config.warnings == (
        "notify.alertmanager.headers.X-Key: the variable TEST_NOT_SET is not set here",
    )
    assert config.notify["alertmanager"].min_severity == "critical"


def test_defaults_without_a_file() -> None:
    """No file is a configuration too; a command makes its engine ``main``."""
    config = load(None, KNOWN, COMMAND)
    assert list(config.engine) == ["main"]
    assert config.engine["main"].log_file == "engine-main.log"
    assert config.probes["gpu"].settings == Settings()
    assert load(None, KNOWN).engine == {}


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
        ("[notify.webhook]\nurl = 'ftp://h'", "notify.webhook.url: expected http://HOST"),
        ("[notify.webhook]\nurl = 'http://h:99999'", "notify.webhook.url: expected http://HOST"),
        ("[notify.webhook]\nurl = 'http://'", "notify.webhook.url: expected http://HOST"),
        ("[notify.x]\nurl = 'http://h'", 'notify.x.kind: expected "alertmanager" or "webhook", as'),
        (
            "[notify.webhook]\nurl = 'http://h'\nheaders = { X = 'Bearer s3cret' }",
            "notify.webhook.headers.X: expected a text like ^[A-Za-z_][A-Za-z0-9_]{0,254}$, got ",
        ),
        (
            "[notify.webhook]\nurl = 'http://h'\nheaders = { Host = 'V' }",
            "notify.webhook.headers.Host: expected another header than that",
        ),
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
        ('log_file = "."', "log_file: expected a file that is not the watchdog's own"),
        ('log_file = "store.sqlite3"', "log_file: expected a file that is not the watchdog's own"),
        ('log_file = "recording/x"', "log_file: expected a file that is not the watchdog's own"),
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


def test_what_a_url_says_of_its_user_is_not_repeated(loaded: Loader) -> None:
    """A text that is no number, and a URL with a password, is told without it."""
    url = "https://me:s3cret@host/x?api_key=s3cret2"
    (found,) = lines(loaded, ENGINE + f"standby = '{url}'")
    assert "s3cret" not in found
    assert "https://***@host/x?api_key=***" in found
    told = without_secrets({"url": url, "hf_token": "s3cret", "limits": [url, 3]})
    assert "s3cret" not in str(told)
    assert told["limits"] == ["https://***@host/x?api_key=***", 3]


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("VLLM_API_KEY", True),
        ("--hf-token", True),
        ("db_password", True),
        ("client-secret", True),
        ("--tokenizer", False),
        ("--ssl-keyfile", False),
        ("--max-num-batched-tokens", False),
        ("--port", False),
    ],
)
def test_names_tell_what_is_secret(name: str, secret: bool) -> None:  # noqa: FBT001
    """One answer for files, commands, environments and differences."""
    assert is_secret(name) is secret


def test_bytes_that_are_no_text_are_refused() -> None:
    """A command with a byte that is no UTF-8 is one line."""
    with pytest.raises(ConfigError) as caught:
        with_command(Config(), ["vllm", "serve", "m", "--served-model-name", "\udcff"])
    assert caught.value.lines == ("built-in defaults: engine.main: expected texts in UTF-8",)


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
            load(path, KNOWN)
        assert caught.value.lines == (f"{path}: {words}",)


def test_a_file_with_a_hostile_name_is_one_line(tmp_path: Path) -> None:
    """Control characters of the name are not obeyed by whoever reads the error."""
    with pytest.raises(ConfigError) as caught:
        load(tmp_path / "a\n\x1b[31m", KNOWN)
    assert caught.value.lines == (f"{tmp_path}/a  [31m: cannot be read: no such file or directory",)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[watchdog]\nlisen = ':1'", "(did you mean listen?)"),
        ("[polcy]", "(did you mean policy?)"),
        ("[probes.gpuu]", "(did you mean gpu?)"),
        ("[policy.retries]\ncuda_omm = 1", "(did you mean cuda_oom?)"),
        ("[policy.retries]\n9 = 1", "not_expected, rule, unknown"),
        ("[watchdog]\nzzz = 1", "expected one of listen, mode, starts_at_once, log"),
    ],
)
def test_the_key_that_is_close_is_named(loaded: Loader, text: str, line: str) -> None:
    """A slip of the pen is answered with what was meant; what is close to nothing with the list."""
    (found,) = lines(loaded, text)
    assert found.endswith(line)


def test_retries_are_read_by_cause(loaded: Loader) -> None:
    """A number a cause; a wrong number and a wrong cause are each their own line."""
    config = loaded("[policy.retries]\ncuda_oom = 2\nxid = 0\n")
    assert config.policy.retries == {"cuda_oom": 2, "xid": 0}
    assert lines(loaded, "[policy.retries]\ncuda_oom = -1\nxid = '1'\n") == [
        "policy.retries.cuda_oom: expected a whole number of at least 0 and at most 1000, got -1",
        'policy.retries.xid: expected a whole number of at least 0 and at most 1000, got "1"',
    ]


def test_many_engines_are_judged_in_a_moment(loaded: Loader) -> None:
    """Three thousand engines on one port are as many mistakes, without comparing each with each."""
    text = "".join(f"[engine.e{n}]\ncommand = ['x', '--port=1']\n" for n in range(3000))
    found = lines(loaded, text)
    assert found[0] == "engine.e1.command: port 1 is that of engine.e0"
    assert found[-1] == "more: 2899 further mistakes are not shown"


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
