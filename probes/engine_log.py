"""What an engine's log says of its start, and whether it has shown what is expected of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from probes._log.expected import Expected
from probes._log.follower import Follower
from probes._log.milestones import Milestones
from watchdog.contracts import EngineTarget, LogPlace, ProbeSpec, SampleSpec
from watchdog.core.model import Sampled, Seconds, SubjectKind, Unread, Value, engine_subject

_INFO = "vllm_watchdog_engine_log_info"


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No settings: what is expected of a log is said of its engine, as ``expect_log``."""


class EngineLog:
    """Follows the log of the present start until it has said all that is wanted.

    From then on the file is not read any more: what follows are requests.
    """

    def __init__(self, target: EngineTarget) -> None:
        self._target = target
        self._subject = engine_subject(target.name)
        self._of: tuple[str, tuple[str, ...]] | None = None
        self._follower = Follower("", 0)
        self._milestones = Milestones()
        self._expected = Expected(())

    def read(self, deadline: Seconds) -> Iterable[Sampled | Unread]:
        """What is known by now; what was said earlier in this start stays known."""
        look, place = self._target.look(), self._target.log_place()
        if place is None or place.generation != look.generation:
            return [Unread(self._subject, "no start is known whose log could be read")]
        self._begin(place)
        error = self._more(place, deadline, ready=look.ready)
        told = [Sampled(self._subject, name, value) for name, value in self._values(error)]
        return [*told, Unread(self._subject, error)] if error else told

    def close(self) -> None:
        """Nothing is held between two looks."""

    def _begin(self, place: LogPlace) -> None:
        of = (place.generation, self._target.expects)
        if of != self._of:
            self._of = of
            self._follower = Follower(place.path, place.offset)
            self._milestones, self._expected = Milestones(), Expected(of[1])

    def _more(self, place: LogPlace, deadline: Seconds, *, ready: bool) -> str:
        """Read on, and match; what went wrong, or "". What is ready needs no proof any more."""
        wanted = bool(self._expected.missing) and not ready
        if self._milestones.complete and not wanted:
            return ""
        lines: list[str] = []
        if not (wanted and self._expected.busy):
            try:
                lines = self._follower.lines()
            except (OSError, ValueError) as error:
                words = error.strerror if isinstance(error, OSError) else None
                return f"cannot read {place.path}: {(words or str(error)).lower()}"
        self._milestones.take(lines)
        return self._expected.look(lines, deadline) if wanted else ""

    def _values(self, error: str) -> Iterator[tuple[str, Value]]:
        """What could not be looked at now may have matched by now."""
        yield "startup_complete", self._milestones.complete
        yield from self._milestones.values.items()
        if self._expected.known and not error.startswith("cannot read"):
            yield "expected_missing", self._expected.missing
            yield "expected_found", self._expected.found


def _build(_: Settings, target: EngineTarget) -> EngineLog:
    return EngineLog(target)


PROBE = ProbeSpec(
    name="engine_log",
    subject_kind=SubjectKind.ENGINE,
    settings=Settings,
    samples=(
        SampleSpec(
            "startup_complete", bool, "", "Whether the log says that the start is complete."
        ),
        SampleSpec("version", str, "", "vLLM's version, as it says itself.", metric=_INFO),
        SampleSpec("attention_backend", str, "", "The backend of the attention.", metric=_INFO),
        SampleSpec(
            "weights_load_seconds",
            float,
            "seconds",
            "How long the slowest worker loaded the model.",
        ),
        SampleSpec("weights_bytes", int, "bytes", "Memory that the model takes, of one worker."),
        SampleSpec("kv_cache_bytes", int, "bytes", "Memory for the KV cache, of one worker."),
        SampleSpec("kv_cache_tokens", int, "", "Tokens that the KV cache of one engine holds."),
        SampleSpec(
            "max_concurrency", float, "", "Requests of the greatest length that the cache holds."
        ),
        SampleSpec(
            "max_concurrency_tokens", int, "", "Tokens of a request of the greatest length."
        ),
        SampleSpec("compile_seconds", float, "seconds", "How long torch.compile took."),
        SampleSpec("graph_capture_seconds", float, "seconds", "How long CUDA graphs took."),
        SampleSpec(
            "expected_missing",
            str,
            "",
            "The first of expect_log that no line has matched yet; empty when all have. A line is"
            " matched up to 4096 bytes, in a child that is ended at the deadline; an expression"
            " that takes longer than 50 ms on a line counts as not matching it.",
        ),
        SampleSpec("expected_found", int, "", "How many of expect_log have matched a line."),
    ),
    build=_build,
    period=1.0,
    timeout=2.0,
)
