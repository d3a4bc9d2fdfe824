"""The nginx group: what its file says, and who is in it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.core import GENERATION, NAME, Story, http, metrics, reading, serving
from tests.support.rule_stories_standby import FIRST, LIFE, helping, load, quiet
from watchdog.contracts import Endpoint
from watchdog.core.model import Cause, EngineSpawned, HoldReason, Mode, ProcessState, Verb, Verdict
from watchdog.upstream import block
from watchdog.upstream.serving import members

HERE = Endpoint("127.0.0.1", 8000)


def lines(text: str) -> list[str]:
    """What nginx reads of it."""
    bare = (line.partition("#")[0].strip() for line in text.splitlines())
    return [line for line in bare if line]


# --- the text -----------------------------------------------------------------------------------


def test_the_file_is_one_group_of_all_who_serve() -> None:
    """FACT: sorted by name, so that the same engines are the same text; by the fewest requests."""
    servers = {"b": Endpoint("127.0.0.1", 8001), "a": HERE}
    text = block.text("vllm", servers)
    assert lines(text) == [
        "upstream vllm {",
        "zone vllm 64k;",
        "least_conn;",
        "server 127.0.0.1:8000 max_fails=0;",
        "server 127.0.0.1:8001 max_fails=0;",
        "}",
    ]
    assert text == block.text("vllm", dict(reversed(servers.items())))
    assert "# least_conn: " in text
    assert "# max_fails=0: " in text


def test_a_group_of_nobody_is_valid() -> None:
    """FACT: it has one server, which is marked down: nginx refuses a group without any."""
    assert lines(block.text("x", {}))[3:] == ["server 127.0.0.1:9 down;", "}"]


@pytest.mark.parametrize(
    ("endpoint", "address"),
    [
        (HERE, "127.0.0.1:8000"),
        (Endpoint("::1", 8000), "[::1]:8000"),
        (Endpoint("127.0.0.1", 0, uds="/run/vllm.sock"), '"unix:/run/vllm.sock"'),
        (Endpoint("127.0.0.1", 0, uds='/a b;{"\\'), '"unix:/a b;{\\"\\\\"'),
        (Endpoint("127.0.0.1", 0, uds="/a\nb"), None),
        (Endpoint("a\x7f", 1), None),
    ],
)
def test_every_address_is_written_as_nginx_reads_it(
    endpoint: Endpoint, address: str | None
) -> None:
    """FACT: sockets are quoted; what no quotes can hold is no address."""
    assert block.address(endpoint) == address


def test_who_cannot_be_named_is_left_out_and_told() -> None:
    """FACT: one bad address does not keep the others out of the file."""
    servers = {"a": HERE, "bad": Endpoint("127.0.0.1", 0, uds="/a\nb")}
    assert block.text("x", servers) == block.text("x", {"a": HERE})
    (told,) = block.unfit(servers)
    assert told.startswith("cannot tell nginx of bad: ")


def test_two_at_one_address_are_one_server() -> None:
    """FACT: nginx would send it twice as much."""
    assert block.text("x", {"b": HERE, "a": HERE}) == block.text("x", {"a": HERE})


# --- who is in it -------------------------------------------------------------------------------


def now(story: Story, *before: str) -> set[str]:
    """Who is in the group, where ``before`` were so far."""
    return set(members(story.state, frozenset(before)))


def judged(story: Story, verdict: Verdict) -> Story:
    """The engine as it is, with another verdict."""
    story.state = story.state.with_engine(replace(story.engine, verdict=verdict))
    return story


@pytest.mark.parametrize("verdict", list(Verdict))
def test_who_serves_is_in(verdict: Verdict) -> None:
    """FACT: ready and busy, and no other verdict brings an engine in."""
    expected = {NAME} if verdict in {Verdict.READY, Verdict.BUSY} else set()
    assert now(judged(serving(), verdict)) == expected


@pytest.mark.parametrize("verdict", list(Verdict))
def test_who_is_in_doubt_stays(verdict: Verdict) -> None:
    """FACT: a degraded engine that answers stays in; all that is worse takes it out."""
    stays = {Verdict.READY, Verdict.BUSY, Verdict.DEGRADED}
    assert now(judged(serving(), verdict), NAME) == ({NAME} if verdict in stays else set())


def test_who_surely_does_not_answer_goes() -> None:
    """FACT: degraded by what no request survives: refused, an error, asleep, without its core."""
    for one in (http(1.0, "refused"), http(1.0, "status"), metrics(1.0, 1.0, sleeping=True)):
        story = serving().read(one)
        assert story.engine.verdict is Verdict.DEGRADED
        assert now(story, NAME) == set()
    story = serving().read(reading("engine_process", 0.5, ("members", 3), ("cores", 1)))
    story.read(reading("engine_process", 1.0, ("members", 2), ("cores", 0)))
    assert story.engine.verdict is Verdict.DEGRADED
    assert now(story, NAME) == set()


def test_a_starting_engine_is_not_in_before_its_first_token() -> None:
    """FACT: after a start the first proof brings it in, whatever was before."""
    story = serving()
    story.exited(1.0)
    assert now(story, NAME) == set()
    story.spawned(2.0, LIFE)
    story.finished(2.1, "restart_engine")
    assert now(story, NAME) == set()
    story.serve(3.0, LIFE)
    assert now(story) == {NAME}


@pytest.mark.parametrize("verb", [Verb.STOP, Verb.RESTART, Verb.SHUTDOWN])
def test_who_is_being_stopped_is_out(verb: Verb) -> None:
    """FACT: from the decision on, whoever made it."""
    story = serving()
    story.command(verb, 1.0)
    assert story.engine.process is ProcessState.STOPPING
    assert now(story, NAME) == set()


def adopted(*, ready: bool) -> Story:
    """An engine that was taken over, and that nobody has looked at."""
    story = Story()
    at = 0.5 if ready else None
    how = (GENERATION, 7, Cause.OPERATOR)
    story.take(EngineSpawned(1.0, NAME, *how, adopted=True, ready=ready, ready_at=at))
    return story


def test_an_adopted_engine_is_in_before_anybody_has_looked() -> None:
    """FACT: it served under the last watchdog; only one that was never ready has to show it."""
    assert now(adopted(ready=True)) == {NAME}
    assert now(adopted(ready=False)) == set()
    assert now(adopted(ready=True).read(http(2.0, "status")), NAME) == set()


# --- a standby that may go ----------------------------------------------------------------------


def idle() -> Story:
    """A standby that its rule wants to stop, and that has a request in it."""
    story = helping()
    for at in range(40, 950, 5):
        story.read(*load(at, at, running=1.0), metrics(at, at, running=1.0, generation=LIFE))
    assert story.decisions[-1].hold is HoldReason.INHIBITED
    return story


def test_a_standby_that_is_to_stop_takes_no_more_requests() -> None:
    """FACT: out while its stop only waits for the requests in it, and in when load is back."""
    story = idle()
    assert now(story, NAME, FIRST) == {FIRST}
    story.read(*load(950.0, 950.0, running=60.0))
    assert now(story, FIRST) == {NAME, FIRST}


def test_a_standby_that_is_not_going_to_be_stopped_stays() -> None:
    """FACT: neither while paused, nor for a rule on trial."""
    story = idle()
    story.command(Verb.PAUSE, 950.0)
    story.read(metrics(951.0, 951.0, running=1.0, generation=LIFE))
    assert now(story, NAME, FIRST) == {NAME, FIRST}
    story = idle()
    ((key, seen),) = [(k, s) for k, s in story.state.watches.items() if k[0] == "standby-idle"]
    assert seen.firing is not None
    trial = replace(seen, firing=replace(seen.firing, mode=Mode.OBSERVE))
    story.state = replace(story.state, watches={**story.state.watches, key: trial})
    assert now(story, NAME, FIRST) == {NAME, FIRST}


def test_the_last_one_is_not_taken_out_for_being_idle() -> None:
    """FACT: when nobody else is in the group the standby stays."""
    story = idle()
    other = replace(story.state.engines[FIRST], verdict=Verdict.STALLED)
    story.state = story.state.with_engine(other)
    assert now(story, NAME, FIRST) == {NAME}


def test_a_quiet_standby_is_in() -> None:
    """FACT: as long as no rule wants it stopped."""
    assert now(helping().read(*quiet(40.0, 60.0))) == {NAME, FIRST}
