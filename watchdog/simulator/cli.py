"""The command line of the simulated engine; flags are spelled as vLLM's where it has them."""

import argparse
import os
from collections.abc import Sequence
from typing import NoReturn

from watchdog.simulator import faults
from watchdog.simulator.leader import Leader
from watchdog.simulator.options import Generation, Options

_FASTEST = 10_000.0


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line, as everywhere in this project, instead of the usage."""
        self.exit(2, f"simulate-engine: cannot start: {message}\n")


def main(argv: Sequence[str]) -> int:
    """Run the engine until it ends; returns only for errors of usage (2) and ``--help`` (0)."""
    try:
        options = parse(argv)
    except SystemExit as stop:
        return int(stop.code or 0)
    return Leader(options).run()


def parse(argv: Sequence[str]) -> Options:
    """The options; raises SystemExit(2) after one line on standard error."""
    parser = _parser()
    given = parser.parse_args(argv)
    try:
        chosen = dict(faults.parse(text, faults.When.START) for text in given.fault)
    except faults.FaultError as error:
        parser.error(str(error))
    for path in (given.ssl_keyfile, given.ssl_certfile):
        if path and not os.access(path, os.R_OK):
            parser.error(f"cannot read {path}")
    return Options(
        host=given.host,
        port=given.port,
        model=given.model,
        served_names=tuple(given.served_model_name or [given.model]),
        max_model_len=given.max_model_len,
        api_keys=tuple(given.api_key or filter(None, [os.environ.get("VLLM_API_KEY")])),
        root_path=given.root_path.rstrip("/"),
        ssl_keyfile=given.ssl_keyfile,
        ssl_certfile=given.ssl_certfile,
        startup_time=given.startup_time,
        tokens_per_second=given.tokens_per_second,
        workers=given.workers,
        engines=given.dp,
        api_servers=given.api_server_count,
        shutdown_timeout=given.shutdown_timeout,
        engine_death_delay=given.engine_death_delay,
        track_load=given.enable_server_load_tracking,
        access_log=not given.disable_uvicorn_access_log,
        generation=Generation(given.metrics_generation),
        faults=chosen,
    )


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="simulate-engine",
        description="An OpenAI-compatible stand-in for vLLM.",
        epilog=f"faults:\n{faults.table()}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _add_serving_flags(parser)
    _add_simulation_flags(parser)
    return parser


def _add_serving_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=_port, default=8000, help="0: a free one, see the log")
    parser.add_argument("--model", default="simulated/tiny")
    parser.add_argument("--served-model-name", nargs="+")
    parser.add_argument("--max-model-len", type=_Count(1, 1 << 30), default=4096)
    parser.add_argument("--api-key", nargs="+", help="also VLLM_API_KEY")
    parser.add_argument("--root-path", default="")
    parser.add_argument("--ssl-keyfile")
    parser.add_argument("--ssl-certfile")
    parser.add_argument("--shutdown-timeout", type=_seconds, default=0.0, metavar="SECONDS")
    parser.add_argument("--api-server-count", type=_Count(1, 16), default=1, metavar="N")
    parser.add_argument("--enable-server-load-tracking", action="store_true")
    parser.add_argument("--disable-uvicorn-access-log", action="store_true")


def _add_simulation_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--startup-time", type=_seconds, default=0.2, metavar="SECONDS")
    parser.add_argument("--tokens-per-second", type=_rate, default=50.0, help="for each request")
    parser.add_argument("--workers", type=_Count(0, 64), default=1, help="0: as TP=1 on CUDA")
    parser.add_argument("--dp", type=_Count(1, 64), default=1, help="data parallel engines")
    parser.add_argument("--engine-death-delay", type=_seconds, default=4.0, metavar="SECONDS")
    parser.add_argument("--metrics-generation", choices=list(Generation), default=Generation.V0_32)
    parser.add_argument("--fault", action="append", default=[], metavar="NAME[=VALUE]")


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise ValueError
    return value


def _rate(text: str) -> float:
    value = _seconds(text)
    if not 0 < value <= _FASTEST:
        raise ValueError
    return value


def _port(text: str) -> int:
    return _Count(0, 65535)(text)


class _Count:
    def __init__(self, least: int, most: int) -> None:
        self._least, self._most = least, most

    def __call__(self, text: str) -> int:
        value = int(text)
        if not self._least <= value <= self._most:
            raise ValueError
        return value

    @property
    def __name__(self) -> str:
        return f"number from {self._least} to {self._most}"
