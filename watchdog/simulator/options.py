"""What the command line decided: one frozen value that every process of the tree shares."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from watchdog.simulator.faults import Value

VERSION = "0.32.0"
"""The release of vLLM that is imitated."""


class Generation(StrEnum):
    """Metric names of these releases of vLLM; they were renamed in between."""

    V0_8 = "0.8"
    V0_10 = "0.10"
    V0_32 = "0.32"


@dataclass(frozen=True, slots=True)
class Options:
    """All durations in seconds."""

    host: str
    port: int
    model: str
    served_names: tuple[str, ...]
    max_model_len: int
    api_keys: tuple[str, ...]
    root_path: str
    ssl_keyfile: str | None
    ssl_certfile: str | None
    startup_time: float
    tokens_per_second: float
    workers: int
    engines: int
    api_servers: int
    shutdown_timeout: float
    engine_death_delay: float
    track_load: bool
    access_log: bool
    generation: Generation
    faults: Mapping[str, Value]

    @property
    def scheme(self) -> str:
        """``https`` when there is a certificate."""
        return "https" if self.ssl_certfile else "http"
