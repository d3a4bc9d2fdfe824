"""The samples that the core itself adds to a view, declared as probes declare theirs."""

from __future__ import annotations

from collections.abc import Mapping

from watchdog.contracts import SampleSpec
from watchdog.core.model import SubjectKind

_ENGINE = (
    SampleSpec("process", str, "", "State of the engine's processes."),
    SampleSpec("health", str, "", "The verdict; not known while starting, stopping, unkillable."),
    SampleSpec("verdict", str, "", "What the engine is to somebody who wants tokens from it."),
    SampleSpec("cause", str, "", "Why it exited, or is as it is."),
    SampleSpec("reason", str, "", "What the verdict comes from, in words."),
    SampleSpec("members", int, "", "Living processes of the engine."),
    SampleSpec("wanted", bool, "", "Whether it should run; not known while an action runs."),
    SampleSpec("requests_running", float, "", "Requests that run in the engine, all ranks."),
    SampleSpec("requests_waiting", float, "", "Requests that wait in the engine, all ranks."),
    SampleSpec("attached", bool, "", "Whether somebody else starts it."),
    SampleSpec("standby", bool, "", "Whether it is started by rules, and not with the daemon."),
    SampleSpec("others_serving", int, "", "Other engines that serve. Of a standby, as the next."),
    SampleSpec("others_running", float, "", "Requests that run in the others that serve."),
    SampleSpec("others_waiting", float, "", "Requests that wait in the others that serve."),
    SampleSpec("action", str, "", "The action that runs on it; empty for none."),
)
_ENGINES = (
    SampleSpec("present", bool, "", "Whether an engine uses the card."),
    SampleSpec("waiting", float, "", "Requests that wait in the engines on the card."),
)
_WATCHDOG = (
    SampleSpec("failing_probes", str, "", "Probes that have worked and fail now; empty for none."),
)

OWN: Mapping[SubjectKind, Mapping[str, tuple[SampleSpec, ...]]] = {
    SubjectKind.ENGINE: {"engine": _ENGINE},
    SubjectKind.GPU: {"engines": _ENGINES},
    SubjectKind.HOST: {"watchdog": _WATCHDOG},
}
"""By the kind of subject: the first part of their names, and the samples."""

CORE_PARTS = frozenset(part for parts in OWN.values() for part in parts)
"""What the names of the core's samples begin with. No reading brings them: no window has them."""
