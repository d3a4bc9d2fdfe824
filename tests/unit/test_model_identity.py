"""What is learnt of an engine's model, and which start is let through: real folders and stores."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.core import engine, reading
from tests.support.models import FIRST, SECOND, folder, shard, snapshot, weights
from tests.support.simulated import until
from watchdog.config import ModelChange
from watchdog.contracts import ActionError, FirstGood
from watchdog.core.model import (
    Cause,
    Decision,
    HoldReason,
    ReadingTaken,
    Seconds,
    Tick,
    Verb,
    engine_subject,
)
from watchdog.core.state import State, Step
from watchdog.daemon.model_watch import ModelWatch
from watchdog.store import Store
from watchdog.supervisor.gate import GateStep, Refusal, pass_gate
from watchdog.supervisor.spawn import Launch

OLD_SIZE, NEW_SIZE = 5_000_000_000, 4_000_000_000


@dataclass
class Life:
    """One engine and what watches over its model; ``again`` is the next watchdog."""

    store: Store
    model: Path
    flags: tuple[str, ...] = ()
    policy: ModelChange = ModelChange.REFUSE
    lines: list[tuple[str, Any]] = field(default_factory=list)
    starts: int = 0

    def __post_init__(self) -> None:
        self.again()

    def again(self) -> None:
        """Another watchdog over the same store."""
        self.watch = ModelWatch(self.store, self.log, lambda _: self.policy)

    def log(self, _level: str, event: str, /, **keys: object) -> None:
        """As the journal."""
        self.lines.append((event, keys.get("differs")))

    @property
    def launch(self) -> Launch:
        """How the next start is made."""
        return Launch("main", ("vllm", "serve", str(self.model), *self.flags), Path("log"))

    def order(self, rule: str = "engine-dead", hold: HoldReason | None = None) -> None:
        """A restart is decided."""
        subject = engine_subject("main")
        one = Decision(0.0, rule, subject, "restart_engine", Cause.OPERATOR, hold)
        self.watch.decided(one)

    def gate(self) -> Refusal | None:
        """The step of a start."""
        step = self.watch.step(self.launch)
        assert step.name == "model-unchanged"
        return step.look()

    def start(self, rule: str = "engine-dead") -> Refusal | None:
        """A start that is decided by ``rule``, and serves when it is let through."""
        self.order(rule)
        refusal = self.gate()
        if refusal is None:
            self.serve()
        return refusal

    def serve(self, served: str = "tiny", length: int = 4096, changed: str = "") -> None:
        """A new generation became ready, and told what it serves once its files were compared."""
        self.starts += 1
        self.ready()
        until(lambda: '"settled":true' in self.store.load_model("main"))
        self.say(served, length, changed)

    def ready(self) -> None:
        """The core noticed that it serves."""
        self.watch.observe(Tick(1.0), self.step())

    def say(self, served: str = "tiny", length: int = 4096, changed: str = "") -> None:
        """What the probe read."""
        one = reading(
            "engine_model",
            2.0,
            ("served_names", served),
            ("max_model_len", length),
            ("changed", changed),
            generation=self.generation,
        )
        self.watch.observe(ReadingTaken(2.0, one), self.step())

    @property
    def generation(self) -> str:
        """Of the present start."""
        return f"{self.starts:08x}"

    def step(self, at: Seconds = 1.0) -> Step:
        """What the loop hands on."""
        now = replace(engine(), generation=self.generation)
        return Step(State(engines={"main": now}, at=at), (), (), (), None)

    def good(self) -> FirstGood | None:
        """What the probe is told."""
        return self.watch.first_good(self.launch)


@pytest.fixture
def life(tmp_path: Path) -> Iterator[Life]:
    """An engine that was never started."""
    store = Store.open(tmp_path / "state")
    yield Life(store, folder(tmp_path / "m"))
    store.close()


def replace_weights(life: Life, size: int = NEW_SIZE) -> str:
    """Other weights in the directory; what is said of them."""
    weights(life.model / shard(2), size)
    return f"{shard(2)} {size / 1e9:.1f} GB, was {OLD_SIZE / 1e9:.1f} GB"


def test_the_first_good_start_is_remembered(life: Life) -> None:
    """FACT: names and length come from the engine; before it served nothing is known."""
    assert life.good() is None
    assert life.start() is None
    assert life.good() == FirstGood("tiny", 4096, refuses=True)
    life.again()
    assert life.good() == FirstGood("tiny", 4096, refuses=True)


def test_other_weights_refuse_an_automatic_start(life: Life) -> None:
    """FACT: H12: a crash is no silent upgrade: refused by name, with the difference in words."""
    life.start()
    words = replace_weights(life)
    for _ in range(2):
        refusal = life.start()
        assert refusal is not None
        assert refusal.cause is Cause.MODEL_CHANGED
        assert refusal.explanation.startswith("cannot start main: its model ")
        assert words in refusal.explanation
        assert "vllm-watchdog start" in refusal.what_to_do
        life.again()
    good = life.good()
    assert good is not None
    assert good.on_disk == words
    replace_weights(life, OLD_SIZE)
    assert life.start() is None


def test_weights_that_are_replaced_while_a_start_waits_refuse_it(life: Life) -> None:
    """FACT: after a long wait for a turn the files are looked at once more."""
    life.start()

    def turn() -> None:
        replace_weights(life)

    steps = [life.watch.step(life.launch), GateStep("turn", turn)]
    with pytest.raises(ActionError, match="its model is not what it served before"):
        pass_gate(steps, old=-1.0)


def test_the_first_start_of_a_watchdog_is_nobodys_word(life: Life) -> None:
    """FACT: after a reboot the engine is started with the operator's cause and without his word."""
    life.start()
    replace_weights(life)
    life.again()
    assert life.start("engine-down") is not None


def test_an_operators_start_accepts_and_learns(life: Life) -> None:
    """FACT: what serves after an operator's word is the good one from then on."""
    life.start()
    words = replace_weights(life)
    assert life.start("operator") is None
    assert ("model.accepted", words) in life.lines
    assert life.start() is None
    replace_weights(life, OLD_SIZE)
    assert life.start() is not None


@pytest.mark.parametrize(("verb", "by_reload"), [(Verb.RESET_BREAKER, False), (Verb.RESTART, True)])
def test_who_did_not_speak_of_the_model_accepts_none(
    life: Life, verb: Verb, *, by_reload: bool
) -> None:
    """FACT: closing a breaker, and a reload of another setting, are no word about the model.

    A ``start`` afterwards is.
    """
    life.start()
    replace_weights(life)
    life.watch.commanded(verb, ("main",), by_reload=by_reload)
    assert life.start("operator") is not None
    life.watch.commanded(Verb.START, ("main",), by_reload=False)
    assert life.start("operator") is None


def test_a_name_accepted_by_an_operator_is_learnt(life: Life) -> None:
    """FACT: with the same files and another name nothing is compared after an operator's start."""
    life.start()
    life.order("operator")
    assert life.gate() is None
    assert life.good() == FirstGood()
    life.serve("other", 8192)
    assert life.good() == FirstGood("other", 8192, refuses=True)


def test_a_word_is_for_one_start(life: Life) -> None:
    """FACT: a word that no start used does not stay for the next crash, nor does a held one."""
    life.start()
    replace_weights(life)
    life.order("operator")
    life.order()
    assert life.gate() is not None
    life.order("operator", HoldReason.OBSERVE)
    assert life.gate() is not None
    life.order("operator")
    assert life.gate() is None
    replace_weights(life, 3_000_000_000)
    assert life.gate() is not None


def test_an_accepted_start_that_fails_stays_accepted(life: Life) -> None:
    """FACT: the retry of what an operator started is let through, also by the next watchdog."""
    life.start()
    replace_weights(life)
    life.order("operator")
    assert [life.gate(), life.gate()] == [None, None]  # once more after a wait
    assert [event for event, _ in life.lines] == ["model.accepted"]
    life.again()
    life.order()
    assert life.gate() is None
    life.again()
    assert life.good() == FirstGood()
    weights(life.model / shard(3), 1)  # nobody has accepted this one
    assert life.gate() is not None


def test_a_start_that_never_served_is_not_good(life: Life) -> None:
    """FACT: what was there at a start that failed is not what later ones are compared with."""
    assert life.gate() is None
    replace_weights(life)
    assert life.start() is None
    replace_weights(life, OLD_SIZE)
    assert life.start() is not None


def test_another_command_is_the_operators_word(life: Life, tmp_path: Path) -> None:
    """FACT: another model or name in the command is learnt anew; another port is not a word."""
    life.start()
    life.model = folder(tmp_path / "other", shards=2)
    assert life.start() is None
    life.flags = ("--served-model-name", "x")
    weights(life.model / shard(2, 2), NEW_SIZE)
    assert life.start() is None
    life.flags += ("--port", "9")
    weights(life.model / shard(2, 2), OLD_SIZE)
    assert life.start() is not None


def test_warn_tells_and_learns(life: Life) -> None:
    """FACT: with warn a difference is one line in the journal, and the good one from then on."""
    life.policy = ModelChange.WARN
    life.start()
    words = replace_weights(life)
    assert life.start() is None
    assert life.start() is None
    assert life.lines == [("model.changed", words)]
    life.say("other", 4096, "serves other, was tiny")
    assert life.lines[1:] == [("model.changed", "serves other, was tiny")]
    assert life.good() == FirstGood("other", 4096)


def test_accept_says_nothing(life: Life) -> None:
    """FACT: with accept nothing is refused, compared or told as a change."""
    life.policy = ModelChange.ACCEPT
    life.start()
    replace_weights(life)
    assert life.good() == FirstGood()
    assert life.start() is None
    assert not [event for event, _ in life.lines if event == "model.changed"]
    life.policy = ModelChange.REFUSE
    assert life.start() is None


def test_refuse_learns_no_other_name(life: Life) -> None:
    """FACT: what must not serve does not become good by serving for long."""
    life.start()
    for _ in range(3):
        life.say("other", 1, "serves other, was tiny")
    assert life.good() == FirstGood("tiny", 4096, refuses=True)


def test_a_reading_of_a_start_that_is_gone_teaches_nothing(life: Life) -> None:
    """FACT: a late answer is not what the present start serves."""
    life.order()
    life.gate()
    life.starts = 1
    life.ready()
    until(lambda: '"settled":true' in life.store.load_model("main"))
    late = reading("engine_model", 2.0, ("served_names", "old"), generation="0badbeef")
    life.watch.observe(ReadingTaken(2.0, late), life.step())
    life.say()
    assert life.good() == FirstGood("tiny", 4096, refuses=True)


def test_a_length_that_is_fitted_is_not_compared(life: Life) -> None:
    """FACT: what depends on free memory is no part of the identity."""
    life.flags = ("--max-model-len", "auto")
    life.start()
    assert life.good() == FirstGood("tiny", None, refuses=True)


@pytest.fixture
def hub(life: Life, tmp_path: Path) -> Life:
    """The engine serves a hub's model."""
    life.model = Path("org/model")
    life.flags = ("--download-dir", str(tmp_path / "hub"))
    return life


def test_a_download_during_the_first_start_is_part_of_it(hub: Life, tmp_path: Path) -> None:
    """FACT: what the first start fetched is what it served, not what was there before."""
    hub.order()
    assert hub.gate() is None
    snapshot(tmp_path / "hub", FIRST, "a")
    hub.serve()
    snapshot(tmp_path / "hub", SECOND, "b")
    refusal = hub.start()
    assert refusal is not None
    assert "commit 222222222222, was 111111111111" in refusal.explanation


def test_a_start_that_fetched_a_newer_model_is_told(hub: Life, tmp_path: Path) -> None:
    """FACT: what passed the gate and was replaced by the start itself is found when it serves."""
    snapshot(tmp_path / "hub", FIRST, "a")
    hub.start()
    hub.order()
    assert hub.gate() is None
    snapshot(tmp_path / "hub", SECOND, "b")
    hub.serve()
    for _ in range(2):
        good = hub.good()
        assert good is not None
        assert "model.safetensors has other contents" in good.loaded
        assert good.refuses
        hub.again()


def test_files_that_somebody_replaced_while_it_loaded_make_no_claim(life: Life) -> None:
    """FACT: which of the two was loaded nobody knows; the next start is compared all the same."""
    life.start()
    life.order()
    assert life.gate() is None
    replace_weights(life)
    life.serve()
    good = life.good()
    assert good is not None
    assert good.loaded == ""
    assert good.on_disk
    assert life.start() is not None


def test_what_cannot_be_found_is_not_changed(hub: Life, tmp_path: Path) -> None:
    """FACT: a model that is nowhere to be seen starts, before and after it was seen."""
    assert hub.start() is None
    snapshot(tmp_path / "hub", FIRST, "a")
    assert hub.start() is None
    (tmp_path / "hub/models--org--model/refs/main").unlink()
    assert hub.start() is None
    snapshot(tmp_path / "hub", SECOND, "b")
    assert hub.start() is not None


@pytest.mark.parametrize("body", ["", "{", "[]", '{"good": 1}', '{"good": {"asked": []}}'])
def test_a_memory_that_is_no_memory_is_none(life: Life, body: str) -> None:
    """FACT: what another version wrote, or nobody, is learnt anew."""
    life.store.save_model("main", body)
    assert life.good() is None
    assert life.start() is None
    assert life.good() == FirstGood("tiny", 4096, refuses=True)


def test_no_key_is_kept(life: Life) -> None:
    """FACT: neither the key of the command nor a word of it is in the store."""
    life.flags = ("--api-key", "s3cret")
    life.start()
    assert "s3cret" not in life.store.load_model("main")
