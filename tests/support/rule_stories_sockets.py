"""What makes the default rules about sockets fire and clear."""

from __future__ import annotations

from tests.support.core import NAME
from tests.support.rule_stories import Tale, times
from watchdog.core.model import HOST, Reading, Sampled, Seconds, Value, engine_subject


def _ports(at: Seconds, percent: float = 1.0, busiest: float | None = None) -> Reading:
    """What ``sockets`` reads with so much of the ports in TIME_WAIT."""
    usual: dict[str, Value] = {"port_range": 28_232, "time_wait_percent": percent}
    if busiest is not None:
        usual["time_wait_busiest"] = "127.0.0.1:8000 (20,000 sockets)"
        usual["time_wait_busiest_percent"] = busiest
        usual["time_wait_reused"] = False
    pairs = usual.items()
    return Reading("sockets", at, 0.0, tuple(Sampled(HOST, name, v) for name, v in pairs))


def _listeners(at: Seconds, overflows: int) -> Reading:
    """What it reads of all listeners."""
    pairs = (("listen_overflows", overflows), ("listen_drops", overflows))
    return Reading("sockets", at, 0.0, tuple(Sampled(HOST, name, v) for name, v in pairs))


def _engine(at: Seconds, **values: Value) -> Reading:
    """What it reads of an engine."""
    about, labels = engine_subject(NAME), (("engine", NAME),)
    samples = tuple(Sampled(about, name, value, labels) for name, value in values.items())
    return Reading("sockets", at, 0.0, samples)


def _queue(at: Seconds, waiting: int) -> Reading:
    return _engine(at, engine_accept_queue=waiting, engine_accept_queue_limit=2048)


SOCKETS_TALES = (
    Tale(
        "sockets-time-wait",
        fires=tuple(_ports(at, 71.0, 70.0) for at in times(1, 61)),
        clears=tuple(_ports(at) for at in times(66, 186)),
        blind=(("sockets.time_wait_percent",),),
        silent=(("sockets.time_wait_busiest_percent",),),
    ),
    Tale(
        "sockets-exhausted",
        fires=tuple(_ports(at, 99.0, 98.0) for at in times(1, 6)),
        clears=tuple(_ports(at) for at in times(11, 71)),
        blind=(("sockets.time_wait_percent",),),
        silent=(("sockets.time_wait_busiest_percent",), ("sockets.time_wait_reused",)),
    ),
    Tale(
        "listen-queue-overflow",
        fires=(_listeners(1.0, 5), _listeners(6.0, 15), _listeners(11.0, 16)),
        clears=tuple(_listeners(at, 16) for at in times(16, 136)),
        blind=(("sockets.listen_overflows",),),
        drains=True,
    ),
    Tale(
        "engine-queue-full",
        fires=tuple(_queue(at, 2049) for at in times(1, 11)),
        clears=tuple(_queue(at, 0) for at in times(16, 76)),
        blind=(("sockets.engine_accept_queue",), ("sockets.engine_accept_queue_limit",)),
    ),
    Tale(
        "engine-queue-full",
        fires=(
            _engine(1.0, engine_listen_drops=0),
            *(_engine(at, engine_listen_drops=11) for at in times(6, 16)),
        ),
        clears=tuple(_engine(at, engine_listen_drops=11) for at in times(21, 141)),
        blind=(("sockets.engine_listen_drops",),),
        drains=True,
    ),
)
"""Of the rules about sockets."""
