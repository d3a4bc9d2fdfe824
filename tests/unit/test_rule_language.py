"""The language of conditions: what it says of a view, and what it does not know."""

from __future__ import annotations

import math

import pytest

from tests.support.rules import FakeView, when
from watchdog.contracts import SampleSpec
from watchdog.core.conditions import Figure, Window
from watchdog.core.model import SubjectKind, Value

FREE = SampleSpec("free", int, "bytes", "", labels=("mount",))
REASON = SampleSpec("slow", bool, "", "", labels=("reason",), label_values=("heat", "power"))
SAMPLES = {"a": bool, "b": bool, "x": float, "n": int, "s": str, "free": FREE, "slow": REASON}
UP, MOST = "increase(it.n, 5m)", "max_over(it.x, 24h)"
LEAST, MEAN, TURNS = "min_over(it.x, 1m)", "avg_over(it.x, 1m)", "changes(it.s, 1m)"


def answer(
    text: str, values: dict[str, Value], tables: dict[str, dict[str, Value]] | None = None
) -> bool | None:
    """What a condition says of values whose names lack the ``it.``, and of windows."""
    named = {name if "(" in name else f"it.{name}": value for name, value in values.items()}
    return when(text, **SAMPLES)(FakeView(named, tables or {}))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "values", "expected"),
    [
        ("it.a && it.b", {"a": False}, False),
        ("it.a && it.b", {"a": True}, None),
        ("it.a || it.b", {"b": True}, True),
        ("it.a || it.b", {"b": False}, None),
        ("!it.a", {}, None),
        ("it.a ? it.b : false", {"a": False}, False),
        ("it.x > 5", {"x": 5.5}, True),
        ("it.n > 5", {"n": 5}, False),
        ("it.n >= 0x10 && it.n < 1e3 && it.n > .5", {"n": 16}, True),
        ("it.n in [1, 2]", {"n": 2}, True),
        ("it.n == -1", {"n": -1}, True),
        ("it.x <= 0.5 * it.n", {"x": 5.0, "n": 10}, True),
        ("it.x <= 0.5 * it.n", {"x": 5.0}, None),
        ("it.s in [\"up\", 'down']", {"s": "down"}, True),
        ('it.s.startsWith("d") && it.s.contains("ow")', {"s": "down"}, True),
        ('it.s == r"a\\b"', {"s": "a\\b"}, True),
        ('it.s == """it.a // no comment"""', {"s": "it.a // no comment"}, True),
        ("it.a // is said\n&& it.b", {"a": True, "b": True}, True),
        ("size(it.s) > 3 && it.n > 3", {"s": "four", "n": 4}, True),
        ("it.x / it.n > 1", {"x": 3.0, "n": 2}, True),
        ("it.x / it.n > 1", {"x": 3.0, "n": 0}, None),
        ("!(it.x / -(it.n - 2) > 1)", {"x": 0.0, "n": 2}, None),
        ("it.a || it.x / it.n > 1", {"a": True, "x": 3.0, "n": 0}, True),
        ("7 % size(it.s) > 1", {"s": ""}, None),
        ('it.s.matches("(")', {"s": "x"}, None),
    ],
)
def test_a_condition_is_three_valued(
    text: str,
    values: dict[str, Value],
    expected: bool | None,  # noqa: FBT001
) -> None:
    """FACT: what decides decides; what is missing or cannot be computed otherwise is unknown."""
    assert answer(text, values) is expected


@pytest.mark.parametrize(
    ("text", "values", "expected"),
    [
        ("known(it.x)", {}, False),
        ("known(it.x)", {"x": 0.0}, True),
        ("known(it.a && it.b)", {"a": False}, True),
        ("known(it.x + it.n)", {"x": 1.0}, False),
        ("sure(it.a)", {}, False),
        ("sure(it.a)", {"a": False}, False),
        ("sure(it.a)", {"a": True}, True),
        ("sure(it.a) || it.b", {"b": False}, False),
        ("sure(it.a) || it.b", {"a": False}, None),
        ("!sure(it.a) && it.b", {"b": True}, True),
        ("any_known(it.a, it.b)", {}, None),
        ("any_known(it.a, it.b)", {"a": False}, False),
        ("any_known(it.a, it.b,)", {"b": True}, True),
        ("unknown", {}, None),
        ("unknown || it.a", {"a": True}, True),
        ("sure(unknown)", {}, False),
        ('it.s in ["up", "off"] ? unknown : it.s == "bad"', {"s": "up"}, None),
        ('it.s in ["up", "off"] ? unknown : it.s == "bad"', {"s": "bad"}, True),
        ("sure(!known(it.x) || any_known(it.a, sure(it.b)))", {"x": 1.0}, False),
        ("sure(!known(it.x) || any_known(it.a, sure(it.b)))", {"x": 1.0, "b": True}, True),
    ],
)
def test_macros_say_what_the_unknown_means(
    text: str,
    values: dict[str, Value],
    expected: bool | None,  # noqa: FBT001
) -> None:
    """FACT: known and sure always answer, any_known answers for what is there, unknown never."""
    assert answer(text, values) is expected


@pytest.mark.parametrize(
    ("text", "window", "figure", "covered", "expected"),
    [
        ('increase(it.n, "5m") > 2', UP, 3, False, True),
        ('increase(it.n, "5m") > 2', UP, 2, False, None),
        ('increase(it.n, "5m") > 2', UP, 2, True, False),
        ('increase(it.n, "300s") < 2', UP, 3, False, False),
        ('increase(it.n, "5m") < 2', UP, 1, False, None),
        ('increase(it.n, "5m") == 7', UP, 3, False, None),
        ('increase(it.n, "5m") == 7', UP, 9, False, None),
        ('increase(it.n, "5m") == 7', UP, 9, True, False),
        ('increase(it.n, "5m") != 2 + 3', UP, 9, False, None),
        ('increase(it.n, "5m") - 3 > 2', UP, 9, False, None),
        ('increase(it.n, "5m") - 3 > 2', UP, 9, True, True),
        ('![increase(it.n, "5m")].exists(v, v > 3 && v < 5)', UP, 9, False, None),
        ('string(increase(it.n, "5m")) != "4"', UP, 9, False, None),
        ('2 < increase(it.n, "5m")', UP, 3, False, True),
        ('increase(it.n, "5m") == 0', UP, 0, True, True),
        ('increase(it.n, "5m") > 5 && increase(it.n, "5m") < 10', UP, 3, False, None),
        ('max_over(it.x, "24h") > 5', MOST, 6.0, False, True),
        ('max_over(it.x, "24h") > 5', MOST, 4.0, False, None),
        ('min_over(it.x, "1m") < 5', LEAST, 4.0, False, True),
        ('min_over(it.x, "1m") < 5', LEAST, 6.0, False, None),
        ('min_over(it.x, "1m") < 5', LEAST, 6.0, True, False),
        ('avg_over(it.x, "1m") > 5', MEAN, 9.0, False, None),
        ('avg_over(it.x, "1m") > 5', MEAN, 9.0, True, True),
        ('changes(it.s, "1m") >= 3', TURNS, 3, False, True),
        ('changes(it.s, "1m") >= 3', TURNS, 2, False, None),
        ('known(increase(it.n, "5m"))', UP, 2, False, False),
        ('known(increase(it.n, "5m"))', UP, 2, True, True),
        ('sure(increase(it.n, "5m") > 2)', UP, 2, False, False),
        ('1 / increase(it.n, "5m") > 2', UP, 0, True, None),
    ],
)
def test_a_window_is_a_bound_until_it_is_covered(
    text: str,
    window: str,
    figure: Value,
    covered: bool,  # noqa: FBT001
    expected: bool | None,  # noqa: FBT001
) -> None:
    """FACT: an answer is given as soon as the part of the window not yet seen cannot change it."""
    assert answer(text, {window: figure, f"{window} covered": covered}) is expected


@pytest.mark.parametrize(
    ("now", "most", "covered", "expected"),
    [(8.0, 16.0, False, True), (16.0, 16.0, False, False), (None, 16.0, True, None)],
)
def test_a_fall_is_seen_before_the_window_is_covered(
    now: float | None,
    most: float,
    covered: bool,  # noqa: FBT001
    expected: bool | None,  # noqa: FBT001
) -> None:
    """FACT: macros judge a window's bound by themselves: the idiom for what was lost works."""
    text = 'known(it.x) ? sure(it.x < max_over(it.x, "24h")) : unknown'
    values: dict[str, Value] = {MOST: most, f"{MOST} covered": covered}
    assert answer(text, values if now is None else {**values, "x": now}) is expected


def test_many_uncovered_windows_are_unknown_but_do_not_hide_what_is_decided() -> None:
    """FACT: at most four bounds are tried together; what decides without them still does."""
    parts = [f'max_over(it.x, "{n}m") > 1' for n in range(1, 7)]
    seen = {f"max_over(it.x, {n}m)": 5.0 for n in range(1, 7)}
    assert answer(" && ".join(parts), {**seen}) is None
    assert answer(" && ".join([*parts, "it.a"]), {**seen, "a": False}) is False


@pytest.mark.parametrize(
    ("text", "values", "table", "expected"),
    [
        ("it.slow.heat", {"slow.heat": True}, {}, True),
        ('it.slow["heat"]', {"slow.heat": True}, {}, True),
        ('it.free["/dev/shm"] < 100', {"free./dev/shm": 5}, {}, True),
        ("it.free.exists(m, it.free[m] < 100)", {}, {"/tmp": 500, "/x": 5}, True),
        ("it.free.exists(m, it.free[m] < 100)", {}, {"/tmp": 500}, False),
        ("it.free.exists(m, it.free[m] < 100)", {}, {}, None),
        ('it.free.all(m, m.startsWith("/") && it.free[m] > it.n)', {"n": 1}, {"/": 2}, True),
        ("size(it.free) > 1", {}, {"/": 2}, False),
        ("it.free[it.s] > 1", {"s": "/none"}, {"/": 2}, None),
        ("known(it.free)", {}, {}, False),
    ],
)
def test_labels_are_named_or_looked_through(
    text: str,
    values: dict[str, Value],
    table: dict[str, Value],
    expected: bool | None,  # noqa: FBT001
) -> None:
    """FACT: a label's value is a sample of its own; the whole is a map, unknown while empty."""
    assert answer(text, values, {"it.free": table}) is expected


@pytest.mark.parametrize("value", [math.nan, 10**400, "9"])
def test_what_is_no_number_is_not_known(value: Value) -> None:
    """FACT: NaN, numbers out of range and texts in a number's place neither fire nor resolve."""
    condition = when("!(it.x < 5)", **SAMPLES)  # type: ignore[arg-type]
    assert [condition(FakeView({"it.x": value})) for _ in range(2)] == [None, None]
    assert condition(FakeView({"it.x": 7.0})) is True


def test_answers_are_remembered_without_end_and_without_error() -> None:
    """FACT: however many values come by, each gets its own answer."""
    condition = when("it.x > 500 || it.free.exists(m, it.free[m] > 500)", x=float, free=FREE)
    for turn in range(2):
        for at in range(1000):
            number, table = (at, 0) if turn else (0, at)
            view = FakeView({"it.x": float(number)}, {"it.free": {"/": table}})
            assert condition(view) is (at > 500)


def test_a_condition_says_what_it_asks_for() -> None:
    """FACT: samples, windows and evidence are found however deep, each once and in order."""
    text = 'sure(it.a || increase(it.n, "5m") > 1) || increase(it.n, "300s") > 2 || it.slow.heat'
    condition = when(text, SubjectKind.GPU, **SAMPLES)  # type: ignore[arg-type]
    assert condition.samples == {"it.a", "it.n", "it.slow.heat"}
    assert condition.windows == (Window(Figure.INCREASE, "it.n", 300.0),)
    assert condition.evidence == ("it.a", UP, "it.slow.heat")


def test_conditions_are_equal_by_kind_and_text() -> None:
    """FACT: a reload can tell whether a rule has changed."""
    one, same = (when("it.a", a=bool) for _ in range(2))
    assert (one, hash(one)) == (same, hash(same))
    assert one != when("it.a ", a=bool)
    assert one != when("it.a", SubjectKind.GPU, a=bool)
