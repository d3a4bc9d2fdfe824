"""Wrong conditions: one line each, with the column, in the words of whoever wrote them."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.rules import FakeView, probe, when
from watchdog.contracts import SampleSpec
from watchdog.core.model import SubjectKind, Value
from watchdog.rules.condition import CelCondition, condition
from watchdog.rules.tokens import ConditionError
from watchdog.rules.vocabulary import Vocabulary

_CARD = ("gpu", "uuid")
VOCABULARY = Vocabulary(
    {
        "gpu": probe(
            "gpu",
            SubjectKind.GPU,
            SampleSpec("heat", float, "", "", labels=_CARD),
            SampleSpec("heat_limit", float, "", "", labels=_CARD),
            SampleSpec("state", str, "", "", labels=_CARD),
            SampleSpec("mig", bool, "", "", labels=_CARD),
            SampleSpec("slow", bool, "", "", labels=(*_CARD, "why"), label_values=("hot", "power")),
            SampleSpec("holder", int, "", "", labels=(*_CARD, "pid", "owner")),
            SampleSpec("source", str, "", "", subject=SubjectKind.HOST),
        )
    }
)


def lines(text: str) -> tuple[str, ...]:
    """What is said of a condition about a GPU; nothing when it can be used."""
    try:
        condition(text, SubjectKind.GPU, VOCABULARY)
    except ConditionError as error:
        return error.lines
    return ()


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("gpu.mig && gpu.hat > 5", "column 12: unknown sample gpu.hat, did you mean gpu.heat?"),
        ("gpu.zzz", "column 1: unknown sample gpu.zzz"),
        ("gpu", "column 1: gpu alone is no sample, expected gpu.NAME"),
        ("!gpu.source", "column 2: gpu.source is a sample of a host, this rule is about a gpu"),
        (
            "engine.wanted",
            "column 1: engine.wanted is a sample of an engine, this rule is about a gpu",
        ),
        ("gpu.slow.hott", "column 1: unknown why hott of gpu.slow, did you mean hot?"),
        ('gpu.slow["x"]', "column 1: unknown why x of gpu.slow, expected one of hot, power"),
        ("gpu.mig(1)", "column 1: gpu.mig is a sample, not a function"),
        ("gpu.mig.hot", "column 1: gpu.mig has no label, got hot"),
        ("gpu.holder > 1", "column 1: gpu.holder has several labels (pid, owner): not for rules"),
        ("", "column 1: expected a condition"),
        ("// nothing", "column 1: expected a condition"),
        (" gpu.heat", "column 2: expected a condition (true or false), got a number"),
        ("gpu.slow", "column 1: expected a condition (true or false), got a table by label"),
        ('"x" + gpu.state', "column 1: expected a condition (true or false), got a text"),
        ("gpu.state == 5", "column 11: cannot compare a text with a number"),
        (
            "gpu.mig &&\n\n  gpu.heat > gpu.state",
            "line 3, column 12: cannot compare a number with a text",
        ),
        ('"é𝒳" == gpu.heat', "column 6: cannot compare a text with a number"),
        ("gpu.mig < gpu.heat", "column 9: cannot compare true or false with a number"),
        ("gpu.heat && gpu.mig", "column 10: && needs true or false on both sides, got a number"),
        ("!gpu.heat", "column 1: ! needs true or false, got a number"),
        ('-gpu.state == "x"', "column 1: cannot negate a text"),
        ("gpu.heat + gpu.state > 5", "column 10: cannot compute a number + a text"),
        ("gpu.heat ? true : false", "column 10: expected a condition before ?, got a number"),
        (
            'gpu.mig ? 1 : "x"',
            "column 9: expected the same kind on both sides of :, got a number and a text",
        ),
        ("gpu.state in 5", "column 11: cannot look for a text in a number"),
        ("gpu.heat[1]", "column 9: cannot look into a number by a number"),
        ("gpu.state.startsWith(5)", "column 11: startsWith does not take a text, a number"),
        ("gpu.heat / gpu.state > 1", "column 12: cannot divide by a text"),
        ("nown(gpu.mig)", "column 1: unknown name nown, did you mean known?"),
        ("nothing(1).x", "column 1: unknown name nothing"),
        ("gpus.heat > 5", "column 1: unknown name gpus.heat, did you mean gpu.heat?"),
        ("has(gpu.mig)", "column 1: has() is not for samples, use known(...)"),
        ("__b0", "column 1: __b0 begins with __, which is not allowed"),
        ("known()", "column 1: expected an expression in known(...)"),
        ("sure(gpu.mig, gpu.mig)", "column 1: sure takes one expression, got 2"),
        ("sure(gpu.heat)", "column 6: expected a condition (true or false), got a number"),
        (
            "any_known(gpu.mig, gpu.heat)",
            "column 20: expected a condition (true or false), got a number",
        ),
        ("gpu.slow.exists(m, known(m))", "column 26: unknown name m"),
        (
            "increase(gpu.heat) > 1",
            'column 1: expected increase of a sample and a time, like (gpu.pcie_replays, "5m")',
        ),
        (
            'increase(5, "5m") > 1',
            'column 10: expected a sample in increase, like (gpu.pcie_replays, "5m")',
        ),
        (
            'increase(gpu.heat * 2, "5m") > 1',
            'column 10: expected a sample in increase, like (gpu.pcie_replays, "5m")',
        ),
        (
            'avg_over(gpu.state, "5m") > 1',
            "column 10: avg_over needs a number, gpu.state is a text",
        ),
        (
            'max_over(gpu.mig, "5m") > 1',
            "column 10: max_over needs a number, gpu.mig is true or false",
        ),
        (
            'changes(gpu.slow, "5m") > 1',
            "column 9: expected one why of gpu.slow, like gpu.slow.hot",
        ),
        ("increase(gpu.heat, 5) > 1", 'column 20: expected a duration like "5m"'),
        ('increase(gpu.heat, "5x") > 1', 'column 20: expected a duration like "30s"'),
        ('increase(gpu.heat, "0s") > 1', "column 20: expected a duration above zero"),
        ('increase(gpu.heat, "9000h") > 1', 'column 20: expected a duration of at most "8760h"'),
        ("gpu.mig $ 1", "column 9: unexpected $"),
        ("gpu.mig; true", "column 8: unexpected ;"),
        ("gpu.mig = true", "column 9: unexpected ="),
        ("gpu.mig gpu.heat", "column 9: unexpected gpu.heat"),
        ("gpu.heat >", "column 11: unexpected end"),
        ('gpu.state == "ok', "column 14: the text that begins here has no end"),
        ("(gpu.mig", "column 1: the ( that opens here is never closed"),
        ("gpu.mig]", "column 8: unexpected ]"),
        ("gpu.heat > 1e999", "column 12: expected a smaller number"),
        ("gpu.mig\0", "column 8: unexpected character that does not print"),
        ('gpu.state == "\ud800"', "column 15: unexpected character that does not print"),
    ],
)
def test_an_error_names_the_column_and_what_is_wrong(text: str, line: str) -> None:
    """FACT: each kind of mistake has one line, placed where the author made it."""
    assert lines(text) == (line,)


def test_all_wrong_names_are_told_at_once() -> None:
    """FACT: nobody has to correct a condition name by name."""
    text = 'gpu.a > 1 || sure(gpu.b) || increase(gpu.c, "x") > gpu.slow.d || gpu.a > 2'
    assert [line.partition(":")[0] for line in lines(text)] == [
        f"column {column}" for column in (1, 19, 38, 45, 52, 66)
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "(" * 2000 + "gpu.mig" + ")" * 2000,
            "column 17: expected at most 16 brackets in brackets",
        ),
        ("[" * 4000, "column 17: expected at most 16 brackets in brackets"),
        ("gpu.mig || " * 400 + "gpu.mig", "expected at most 4096 characters, got 4407"),
        ("gpu.heat + " * 100 + "1 > 1", "expected fewer parts within parts"),
        ("9" * 4000 + " > 1", "column 1: expected a smaller number"),
        (
            "[1].map(a, a + a)" + ".map(a, a + a)" * 40 + " == [1]",
            "column 19: expected at most one map(...)",
        ),
        (
            "[1].all(a, [1].all(b, [1].all(c, true)))",
            "column 27: expected at most 2 loops within each other",
        ),
        (" && ".join(["[1].all(a, true)"] * 17), "column 325: expected at most 16 loops"),
        (
            " && ".join(f"gpu.slow.exists(m, m == '{n}')" for n in range(17)),
            "column 528: expected at most 16 loops",
        ),
    ],
)
def test_what_is_too_much_is_refused(text: str, words: str) -> None:
    """FACT: a condition can neither run for long nor take much memory."""
    assert words in lines(text)


@pytest.mark.parametrize("text", ["!" * 3000 + "gpu.mig", "gpu.mig" + " // x" * 800])
def test_what_is_only_long_is_taken(text: str) -> None:
    """FACT: length alone is no mistake."""
    assert lines(text) == ()


_PIECES = r"""gpu . gpu.mig gpu.heat gpu.slow gpu.slow.hot gpu.state __b0 ` $ é // \ 'x' ' r' ( ) [
] { } , ? known( sure( any_known( increase( max_over( "5m" " unknown size( has( dyn( type( exists(
map( all( m .exists(m, : && || ! - + / % < == in 1 0 1.5 0x1 1u true null"""
_WORDS = st.sampled_from([*_PIECES.split(), "\n", "\0"])


def test_what_runs_for_too_long_is_unknown() -> None:
    """FACT: a look at a condition ends, however large the lists that somebody wrote into it."""
    text = f"[{'1,' * 800}].all(a, [{'1,' * 800}].all(b, a == b || gpu.mig))"
    made = condition(text, SubjectKind.GPU, VOCABULARY)
    assert made(FakeView({"gpu.mig": True})) is None


@settings(max_examples=600, deadline=None)
@given(st.one_of(st.text(max_size=80), st.lists(_WORDS, max_size=14).map(" ".join)))
@example("''''")
@example("r'\\' == gpu.state")
@example("{gpu.state: 1}['x'] > 1")
@example("google.protobuf.Timestamp{seconds: 1} == timestamp(0)")
@example("gpu.mig / / 1")
@example("1 / (")
@example("b'\\xff' == b'x'")
@example("int('x') == 1 || duration('x') == duration('1s')")
def test_no_text_does_more_than_fail(text: str) -> None:
    """FACT: whatever is written, it is a condition that answers or an error of single lines."""
    try:
        made = condition(text, SubjectKind.GPU, VOCABULARY)
    except ConditionError as error:
        said = error.lines
    else:
        said = ()
        _answers(made)
    assert all(line.isprintable() and ("__" not in line or "__" in text) for line in said)


def _answers(made: CelCondition) -> None:
    seen: dict[str, Value] = {
        "gpu.mig": True,
        "gpu.heat": 1.5,
        "gpu.state": "ok",
        "gpu.slow.hot": False,
    }
    assert made(FakeView(seen, {"gpu.slow": {"hot": True}})) in {True, False, None}
    assert made(FakeView()) in {True, False, None}


@dataclass(frozen=True)
class Tree:
    """A random condition: its text, and what it says by the plain rules of three-valued logic."""

    text: str
    kind: str
    parts: tuple[Tree, ...] = ()

    def __call__(self, known: Mapping[str, bool | float]) -> bool | None:
        """The reference: Kleene's tables, written down."""
        if self.kind == "name":
            value = known.get(self.text)
            return value if isinstance(value, bool) else None
        if self.kind == "above":
            number = known.get("it.x")
            return None if number is None else number > int(self.text.rpartition(" ")[2][:-1])
        answers = [part(known) for part in self.parts]
        return _reference(self.kind, answers)


def _reference(kind: str, answers: list[bool | None]) -> bool | None:
    first = answers[0]
    if first is None and kind in {"not", "if"}:
        return None
    whole = {
        "not": not first,
        "known": first is not None,
        "sure": first is True,
        "if": answers[1 if first and kind == "if" else -1],
    }
    if kind in whole:
        return whole[kind]
    decides = kind != "all"
    if decides in answers:
        return decides
    enough = (not decides) in answers if kind == "any_known" else None not in answers
    return not decides if enough else None


_FORMS = {
    "not": ("!({})", 1),
    "all": ("({} && {})", 2),
    "any": ("({} || {})", 2),
    "known": ("known({})", 1),
    "sure": ("sure({})", 1),
    "any_known": ("any_known({}, {})", 2),
    "if": ("({} ? {} : {})", 3),
}
_LEAVES = st.one_of(
    st.sampled_from([Tree("it.a", "name"), Tree("it.b", "name")]),
    st.integers(0, 3).map(lambda n: Tree(f"(it.x > {n})", "above")),
)


def _grown(inner: st.SearchStrategy[Tree]) -> st.SearchStrategy[Tree]:
    def made(kind: str) -> st.SearchStrategy[Tree]:
        form, count = _FORMS[kind]
        parts = st.tuples(*[inner] * count)
        return parts.map(lambda some: Tree(form.format(*(one.text for one in some)), kind, some))

    return st.sampled_from(sorted(_FORMS)).flatmap(made)


@settings(max_examples=300, deadline=None)
@given(
    st.recursive(_LEAVES, _grown, max_leaves=8),
    st.fixed_dictionaries(
        {}, optional={"it.a": st.booleans(), "it.b": st.booleans(), "it.x": st.integers(0, 4)}
    ),
)
def test_conditions_agree_with_three_valued_logic(tree: Tree, known: dict[str, Value]) -> None:
    """FACT: whatever is put together of whatever, the answer is that of Kleene's tables."""
    with contextlib.suppress(ConditionError):  # nested too deeply for CEL
        assert when(tree.text, a=bool, b=bool, x=int)(FakeView(known)) is tree(known)  # type: ignore[arg-type]
