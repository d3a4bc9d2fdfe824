"""A story that is recorded as it is told."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from tests.laws.clockwork import Clockwork, Fault
from tests.support.core import Story, http, metrics, process
from watchdog.core.model import Event, Reading, Seconds, Subject, SubjectKind
from watchdog.recorder import Recorder, Told, read
from watchdog.recorder.files import Bounds

GPU = Subject(SubjectKind.GPU, "GPU-1")
WALL = 1_000_000_000.0


def silent(text: str) -> None:
    """Nothing is expected to be skipped."""
    raise AssertionError(text)


@dataclass
class Taped:
    """A story that is recorded; time is that of its events."""

    folder: Path
    story: Story = field(default_factory=Story)
    bounds: Bounds = field(default_factory=Bounds)
    now: Seconds = 0.0
    said: list[str] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    most_samples: int = 200_000

    def __post_init__(self) -> None:
        """Begin."""
        self.recorder = Recorder(
            self.folder,
            self.said.append,
            bounds=self.bounds,
            clock=lambda: self.now,
            wall=lambda: WALL + self.now,
            most_samples=self.most_samples,
        )
        self.recorder.begin(self.story.state, self.now)
        take = self.story.take

        def recorded(event: Event) -> object:
            self.now = max(self.now, event.at)
            done = take(event)
            self.events.append(event)
            self.recorder.observe(event, done)
            return done

        self.story.take = recorded  # type: ignore[method-assign, assignment]

    def live(self, fault: Fault, seconds: int) -> None:
        """Let an engine with a fault live, minute by minute."""
        clockwork = Clockwork(fault, story=self.story)
        for minute in range(60, seconds + 1, 60):
            clockwork.run(float(minute))
            assert self.recorder.flush(30.0)

    def told(self) -> list[Told]:
        """End the recording, and what it tells."""
        self.recorder.close(30.0)
        return [entry for entry in read(self.folder, silent) if isinstance(entry, Told)]


def looks(at: Seconds) -> tuple[Reading, ...]:
    """One look of every engine probe at a healthy engine."""
    busy = metrics(at, at, running=1.0)
    return process(at, cpu_seconds=at), http(at, canary="ok", status=200), busy
