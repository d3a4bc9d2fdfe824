"""Whether an engine still serves the model of its first good start, and what to do when not.

What it was is kept for as long as the command asks for the same. Another command, and an operator's
``start`` or ``restart``, are the operator's word: what is served then is learnt as the good one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import msgspec

from watchdog.config import ModelChange
from watchdog.contracts import FirstGood
from watchdog.core.model import Cause, Decision, Event, Reading, ReadingTaken, Seconds, Verb
from watchdog.core.state import Step
from watchdog.ledger import ModelLedger
from watchdog.model_files import Asked, Fingerprint, Reader, asked_of, differences, only_grew
from watchdog.places import assigned
from watchdog.supervisor.gate import GateStep, GateVerdict, Refusal
from watchdog.supervisor.spawn import Launch, lasting

PROBE = "engine_model"
_STARTS = frozenset({"start_engine", "restart_engine"})
_STARTING = frozenset({Verb.START, Verb.RESTART, Verb.RESET_BREAKER})
_PATIENCE: Seconds = 5.0
"""A look takes milliseconds. A disk that hangs must not keep an engine from being started."""
_ADVICE = "bring the old files back, or say vllm-watchdog start: that accepts the new ones"


@dataclass(frozen=True, slots=True)
class Good:
    """What was good. ``asked`` is the key of what was asked for; the rest is not known at first."""

    asked: str
    files: Fingerprint | None = None
    served: str = ""
    max_model_len: int | None = None


@dataclass(frozen=True, slots=True)
class Start:
    """The last start that was let through.

    ``learns``: what it serves becomes the good one. ``settled``: it became ready, and its files
    were compared; ``loaded`` says how they differ. ``fitted``: its context length may be any.
    """

    asked: str
    files: Fingerprint | None
    learns: bool
    fitted: bool = False
    settled: bool = False
    loaded: str = ""


@dataclass(frozen=True, slots=True)
class Kept:
    """What is kept of one engine."""

    good: Good | None = None
    start: Start | None = None


class ModelWatch:
    """Safe from any thread. ``policy`` says what the configuration in force wants for an engine.

    ``log`` takes lines as ``Journal.log`` does.
    """

    def __init__(
        self,
        ledger: ModelLedger,
        log: Callable[..., None],
        policy: Callable[[str], ModelChange],
    ) -> None:
        self._ledger = ledger
        self._log = log
        self._policy = policy
        self._lock = threading.Lock()
        self._kept: dict[str, Kept] = {}
        self._words: set[str] = set()
        self._unmeant: set[str] = set()
        self._launches: dict[str, Launch] = {}
        self._ready: dict[str, str] = {}
        self._lookers: dict[str, _Looker] = {}

    # --- before a start -----------------------------------------------------------------------

    def commanded(self, verb: Verb, engines: Iterable[str], *, by_reload: bool) -> None:
        """Take note of a command before it is decided about.

        Whoever resets a breaker, or reloads another setting, has not said a word about the model.
        """
        if verb in _STARTING:
            meant = verb is not Verb.RESET_BREAKER and not by_reload
            with self._lock:
                if meant:
                    self._unmeant.difference_update(engines)
                else:
                    self._unmeant.update(engines)

    def decided(self, decision: Decision) -> None:
        """Take note whose start it is. To be called before anybody carries ``decision`` out."""
        if decision.action in _STARTS and decision.hold is None:
            with self._lock:
                self._words.discard(decision.target.name)
                meant = decision.target.name not in self._unmeant
                if decision.rule == "operator" and meant:
                    self._words.add(decision.target.name)

    def step(self, launch: Launch) -> GateStep:
        """The step of a start made with ``launch``: refuses another model where that is wanted."""

        def look() -> Refusal | None:
            try:
                return self._look(launch)
            except Exception:  # noqa: BLE001 - what we cannot find out must stop no engine
                return None

        return GateStep("model-unchanged", look, again=True)

    def _look(self, launch: Launch) -> Refusal | None:
        name, asked, found = launch.engine, _asked(launch), self._found(launch)
        policy = self._policy(name)
        with self._lock:
            kept = self._of(name)
            told = self._words & {name}
            self._words -= told
            good = kept.good if kept.good and kept.good.asked == asked.key else None
            differs = differences(good.files, found) if good else ""
            sure = bool(told) or policy is ModelChange.ACCEPT or _is_accepted(kept, asked, found)
            if differs and not sure and policy is ModelChange.REFUSE:
                return _refusal(name, differs)
            learns = sure or good is None or bool(differs)
            self._launches[name] = launch
            start = Start(asked.key, found, learns, asked.fitted)
            self._keep(name, replace(kept, start=start))
        if differs and start != kept.start:  # a start may look more than once
            self._tell(name, differs, accepted=sure)
        return None

    # --- when it serves -----------------------------------------------------------------------

    def observe(self, event: Event, step: Step) -> None:
        """A watcher of the loop: learns from engines that became ready, and from what they say."""
        for engine in step.state.engines.values():
            ready = engine.ready_at is not None and engine.generation
            if ready and self._ready.get(engine.name) != engine.generation:
                self._ready[engine.name] = engine.generation
                threading.Thread(
                    target=self._settle, args=(engine.name,), name="model-watch", daemon=True
                ).start()
        if isinstance(event, ReadingTaken) and event.reading.probe == PROBE:
            about = event.reading.subject
            engine_now = None if about is None else step.state.engines.get(about.name)
            if engine_now is not None and engine_now.generation == event.reading.generation:
                self._heard(engine_now.name, event.reading)

    def _settle(self, name: str) -> None:
        """Look again: a start may have downloaded what it loaded."""
        launch = self._launches.get(name)
        found = None if launch is None else self._found(launch)
        policy = self._policy(name)
        with self._lock:
            kept = self._of(name)
            if kept.start is None or kept.start.settled:
                return
            start, good = kept.start, kept.good
            loaded = _loaded(start.files, found)
            differs = "" if start.learns or good is None else differences(good.files, loaded)
            learns = start.learns or good is None or bool(differs and policy is ModelChange.WARN)
            if learns:
                good = Good(start.asked, loaded)
            elif good is not None and good.files is None:
                good = replace(good, files=loaded)
            words = "" if learns else differs
            start = replace(start, settled=True, learns=learns, loaded=words)
            self._keep(name, Kept(good, start))
        if differs and learns:
            self._tell(name, differs, accepted=False)

    def _heard(self, name: str, reading: Reading) -> None:
        """What the engine says of itself is learnt when nothing is known, or all is new."""
        said = {sample.sample: sample.value for sample in reading.samples}
        served, length, changed = (
            said.get(n) for n in ("served_names", "max_model_len", "changed")
        )
        if not isinstance(served, str):
            return
        warns = bool(changed) and self._policy(name) is ModelChange.WARN
        with self._lock:
            good, start = self._of(name).good, self._of(name).start
            if good is None or start is None or not start.settled:
                return
            if not (start.learns or not good.served or warns):
                return
            tokens = length if isinstance(length, int) and not start.fitted else None
            good = replace(good, served=served, max_model_len=tokens)
            self._keep(name, Kept(good, replace(start, learns=False, loaded="")))
        if warns:
            self._tell(name, str(changed), accepted=False)

    # --- what probes may know -----------------------------------------------------------------

    def first_good(self, launch: Launch) -> FirstGood | None:
        """What the model of an engine was, where ``launch`` is how its next start would be made.

        Looks at files. Says nothing of what was accepted and is not learnt yet.
        """
        name = launch.engine
        with self._lock:
            kept = self._of(name)
        policy, good, start = self._policy(name), kept.good, kept.start
        if good is None:
            return None
        if policy is ModelChange.ACCEPT or (start is not None and start.learns):
            return FirstGood()
        same = _asked(launch).key == good.asked
        return FirstGood(
            served_names=good.served,
            max_model_len=good.max_model_len,
            loaded="" if start is None else start.loaded,
            on_disk=differences(good.files, self._found(launch)) if same else "",
            refuses=policy is ModelChange.REFUSE,
        )

    # --- files and memory ---------------------------------------------------------------------

    def _found(self, launch: Launch) -> Fingerprint | None:
        with self._lock:
            looker = self._lookers.setdefault(launch.engine, _Looker())
        return looker.look(launch)

    def _of(self, name: str) -> Kept:
        kept = self._kept.get(name)
        if kept is None:
            kept = self._kept[name] = _read(self._ledger.load_model(name))
        return kept

    def _keep(self, name: str, kept: Kept) -> None:
        if kept != self._kept.get(name):
            self._kept[name] = kept
            self._ledger.save_model(name, msgspec.json.encode(kept).decode())

    def _tell(self, name: str, differs: str, *, accepted: bool) -> None:
        if accepted:
            self._log("info", "model.accepted", engine=name, differs=differs)
        else:
            self._log("warning", "model.changed", engine=name, differs=differs)


class _Looker:
    """Reads the files of one engine in a thread of its own, which is left behind when it hangs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reader = Reader()
        self._stuck: threading.Thread | None = None

    def look(self, launch: Launch) -> Fingerprint | None:
        """None also when the disk does not answer: at once while an earlier look still hangs."""
        found: list[Fingerprint | None] = []
        if not self._lock.acquire(timeout=_PATIENCE):
            return None
        try:
            if self._stuck is not None and self._stuck.is_alive():
                return None
            asked, around = _asked(launch), _around(launch)
            thread = threading.Thread(
                target=lambda: found.append(self._reader.read(asked, around, launch.cwd)),
                name="model-files",
                daemon=True,
            )
            thread.start()
            thread.join(_PATIENCE)
            self._stuck = thread
        finally:
            self._lock.release()
        return found[0] if found else None


def _around(launch: Launch) -> dict[str, str]:
    return lasting(launch) | assigned(launch.command)


def _asked(launch: Launch) -> Asked:
    return asked_of(launch.command, _around(launch), launch.cwd)


def _is_accepted(kept: Kept, asked: Asked, found: Fingerprint | None) -> bool:
    """Whether what is there now was let through before, and has not come to serve yet."""
    start = kept.start
    if start is None or not start.learns or start.asked != asked.key:
        return False
    return not differences(start.files, found)


def _loaded(before: Fingerprint | None, after: Fingerprint | None) -> Fingerprint | None:
    """What a start has loaded, by what was there at its gate and when it served.

    A hub's newer snapshot was fetched by the start itself. Of files that somebody else replaced
    meanwhile nobody knows which were loaded.
    """
    if before is None or after is None:
        return before or after
    moved = before.commit != after.commit
    return after if moved or only_grew(before, after) else None


def _refusal(name: str, differs: str) -> Refusal:
    text = f"cannot start {name}: its model is not what it served before: {differs}"
    return Refusal(Cause.MODEL_CHANGED, text, GateVerdict.MODEL_CHANGED, _ADVICE)


def _read(body: str) -> Kept:
    """Nothing for what another version wrote, or nobody."""
    try:
        return msgspec.json.decode(body, type=Kept)
    except msgspec.MsgspecError:
        return Kept()
