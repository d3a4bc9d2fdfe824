"""How a reload tells of what changed: by key, with values that are short and no secret."""

from __future__ import annotations

from watchdog import registry
from watchdog.config import (
    Config,
    EngineConfig,
    EngineLimits,
    Hook,
    ModelChange,
    NotifySettings,
    ProbeConfig,
    RuleConfig,
    WatchdogSettings,
)
from watchdog.config.settings import NginxSettings
from watchdog.daemon.differences import changes, lasting


def words(old: Config, new: Config, *rules: RuleConfig) -> tuple[str, ...]:
    """What changed."""
    return changes(old, new, registry.probes(), rules)


def config(**keys: object) -> Config:
    """A configuration with every probe."""
    probes = {
        name: ProbeConfig(settings=spec.settings()) for name, spec in registry.probes().items()
    }
    return Config(**{"probes": probes, **keys})  # type: ignore[arg-type]


def test_secrets_are_named_and_not_shown() -> None:
    """Commands, environments and addresses are told by their key alone."""
    old = config(
        engine={"a": EngineConfig(command=("x", "--api-key", "s3cret"), env={"A": "s3cret"})}
    )
    new = config(
        engine={"a": EngineConfig(command=("x", "--api-key", "s3cret2"), env={"B": "s3cret"})},
        notify={"n": NotifySettings(url="http://user:s3cret@host")},
    )
    assert words(old, new) == (
        "engine.a.command",
        "engine.a.env.A",
        "engine.a.env.B",
        "notify.n: new",
    )
    address = config(notify={"n": NotifySettings(url="http://user:s3cret@other")})
    assert words(replace_engine(new), address) == ("notify.n.url",)
    named = config(
        notify={"n": NotifySettings(url="http://user:s3cret@host", headers={"X-Api": "sk_s3cret"})}
    )
    assert words(replace_engine(new), named) == ("notify.n.headers.X-Api",)


def test_what_surrounds_an_engine_is_named() -> None:
    """FACT: nginx, hooks, limits and the rest are told of; what a hook or a reload runs is not."""
    hooks = tuple(Hook(command=("mount", word)) for word in ("s3cret", "s3cret2"))
    old = config(
        engine={"a": EngineConfig(pre_start=hooks[:1], limits=EngineLimits(memory_max="8GiB"))},
        nginx=NginxSettings(upstream_file="up.conf", reload=("x", "s3cret")),
    )
    new = config(
        engine={
            "a": EngineConfig(
                pre_start=hooks[1:],
                post_stop=hooks,
                model_change=ModelChange.WARN,
                expect_log=("Flash",),
                limits=EngineLimits(memory_max="16GiB", pids_max=64),
            )
        },
        nginx=NginxSettings(upstream_file="up.conf", upstream="b", reload=("x", "s3cret2")),
        watchdog=WatchdogSettings(starts_at_once=2),
    )
    assert words(old, new) == (
        "watchdog.starts_at_once: 1 -> 2",
        "engine.a.pre_start",
        "engine.a.post_stop",
        "engine.a.model_change: refuse -> warn",
        'engine.a.expect_log: [] -> ["Flash"]',
        'engine.a.limits.memory_max: "8GiB" -> "16GiB"',
        "engine.a.limits.pids_max: unset -> 64",
        'nginx.upstream: "vllm" -> "b"',
        "nginx.reload",
    )
    bare = config(engine=new.engine, watchdog=new.watchdog)
    assert words(bare, new) == ("nginx: new",)
    assert words(new, bare) == ("nginx: gone",)


def replace_engine(one: Config) -> Config:
    """The same without engines."""
    return config(notify=one.notify)


def test_a_rule_is_compared_with_what_it_overrides() -> None:
    """An override that says what the default says is no change; its value is the old one."""
    default = RuleConfig(name="r", for_=20.0, summary="it is so")
    same = config(rule=(RuleConfig(name="r", for_=20.0),))
    longer = config(rule=(RuleConfig(name="r", for_=90.0, cooldown=300.0),))
    assert words(config(), same, default) == ()
    expected = ("rule.r.for: 20s -> 90s", "rule.r.cooldown: 0s -> 5m")
    assert words(same, longer, default) == expected
    assert words(config(), config(rule=(RuleConfig(name="own"),))) == ("rule.own: new",)


def test_what_only_a_new_daemon_can_change_stays() -> None:
    """Address and log are kept and named, everything else, receivers too, is as wanted."""
    running = config()
    wanted = config(
        watchdog=type(running.watchdog)(listen="127.0.0.1:1", log="x", mode="observe"),  # type: ignore[arg-type]
        notify={"n": NotifySettings(url="http://a")},
    )
    kept, keys = lasting(running, wanted)
    assert keys == ("watchdog.listen", "watchdog.log")
    assert (kept.watchdog.listen, kept.watchdog.log) == ("127.0.0.1:9909", "-")
    assert kept.notify == wanted.notify
    assert kept.watchdog.mode == "observe"
    assert lasting(running, config()) == (running, ())
