"""Take the pictures of the status page in docs/: a made-up evening, drawn by the real page.

Two engines on two cards; one of them has crashed a minute ago and is loading again, while its card
was hot. Run as ``python -m tools.screenshots``; needs Chromium.
"""

from __future__ import annotations

import base64
import json
import math
import struct
import sys
import zlib
from dataclasses import replace
from pathlib import Path

from tests.support.chromium import Page, chromium
from tests.support.core import Of, engine, http, metrics, process
from tests.support.core import Story as Told
from tests.support.windows import FakeWindow, snapshot
from watchdog import __version__
from watchdog.core.model import (
    Cause,
    EngineExited,
    EngineSpawned,
    Reading,
    ReadingTaken,
    Sampled,
    Subject,
    SubjectKind,
    Value,
    Verdict,
)
from watchdog.core.state import RestartHistory, State, Step
from watchdog.web.app import App
from watchdog.web.recent import Recent
from watchdog.web.server import serve_tcp

_DOCS = Path(__file__).resolve().parents[1] / "docs"
_NOW, _CRASH = 660.0, 602.0
_HEAT = range(300, 380)
_NEAR_THE_LIMIT = 92.0
_WALL = 1_767_237_120.0
"""2026-01-01T03:12:00Z: when pages like this one are read."""
_GIB = float(1 << 30)
_WHY = "EngineCore ended: CUDA out of memory while a prefill of 31,204 tokens was computed"

_FEWER_COLOURS = """
async (url) => {
  const image = new Image();
  image.src = url;
  await image.decode();
  const { width, height } = image;
  const context = new OffscreenCanvas(width, height).getContext("2d");
  context.drawImage(image, 0, 0);
  const all = new Uint32Array(context.getImageData(0, 0, width, height).data.buffer);
  const counts = new Map();
  for (const one of all) counts.set(one, (counts.get(one) ?? 0) + 1);
  const common = [...counts].sort((a, b) => b[1] - a[1]).map((pair) => pair[0]);
  for (let bits = 6; ; bits -= 1) {
    const plain = new Set(common.slice(0, 64));
    const rough = (one) => (one >>> (8 - bits)) & (0x010101 * ((1 << bits) - 1));
    const near = (one) => (plain.has(one) ? `${one}` : rough(one));
    const places = new Map();
    const chosen = [];
    for (const one of common) {
      if (!places.has(near(one))) places.set(near(one), chosen.push(one) - 1);
    }
    if (chosen.length <= 256) {
      const pixels = Uint8Array.from(all, (one) => places.get(near(one)));
      let text = "";
      for (let at = 0; at < pixels.length; at += 8192) {
        text += String.fromCharCode(...pixels.subarray(at, at + 8192));
      }
      const palette = chosen.flatMap((one) => [one & 255, (one >>> 8) & 255, (one >>> 16) & 255]);
      return { width, height, palette, pixels: btoa(text) };
    }
  }
}
"""
"""The 64 that are seen most stay; of the others, those that nearly agree become one."""


def main() -> None:
    """Write ``docs/status-page-{light,dark,phone}.png``."""
    server = serve_tcp(App(_window()), "127.0.0.1", 0)
    server.start()
    try:
        with chromium() as page:
            _take(page, f"http://127.0.0.1:{server.port}/")
    finally:
        server.stop()


def _take(page: Page, url: str) -> None:
    looks = (
        ("light", 1280, 1550, False, False),
        ("dark", 1280, 1550, True, False),
        ("phone", 390, 844, False, True),
    )
    for name, width, height, dark, phone in looks:
        page.look(width, height, dark=dark, phone=phone)
        page.open(url, scripts=False)
        picture = page.shot()
        page.open("about:blank")
        file = _DOCS / f"status-page-{name}.png"
        file.write_bytes(_smaller(page, picture))
        sys.stdout.write(f"{file.relative_to(_DOCS.parent)}: {file.stat().st_size // 1024} KiB\n")


def _smaller(page: Page, picture: bytes) -> bytes:
    """The same with at most 256 colours, which is all that such a page needs."""
    url = f"data:image/png;base64,{base64.b64encode(picture).decode()}"
    found = page.script(f"({_FEWER_COLOURS})({json.dumps(url)})")
    width, height = found["width"], found["height"]
    pixels = base64.b64decode(found["pixels"])
    rows = (b"\0" + pixels[row * width : (row + 1) * width] for row in range(height))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in (
            (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
            (b"PLTE", bytes(found["palette"])),
            (b"IDAT", zlib.compress(b"".join(rows), 9)),
            (b"IEND", b""),
        )
    )


def _window() -> FakeWindow:
    recent = Recent()
    story = _story(recent)
    shown = snapshot(story.state, _NOW, _WALL)
    return FakeWindow(
        replace(
            shown,
            version=__version__,
            pids={"chat": (4390, 4391, 4392), "embed": (5151, 5152, 5153)},
            ports={"chat": 8000, "embed": 8001},
            budget={"chat": 4, "embed": 5},
            budgets={"chat": 5, "embed": 5},
            recent=recent.points,
        )
    )


def _story(recent: Recent) -> Told:
    engines = {
        name: engine(
            name=name,
            verdict=Verdict.READY,
            ready_seconds=41.3,
            leader=pid,
            history=RestartHistory(starts=1),
        )
        for name, pid in (("chat", 4242), ("embed", 5151))
    }
    story = Told(State(engines=engines))
    for second in range(60, int(_NOW) + 1):
        at = float(second)
        _serve(story, at, *(["embed"] if at >= _CRASH else ["chat", "embed"]))
        if at == _CRASH:
            story.take(EngineExited(at, "chat", "0000000a", 0, None, Cause.ENGINE_CORE_DIED, _WHY))
            story.take(EngineSpawned(at + 0.4, "chat", "0000000b", 4390, Cause.ENGINE_CORE_DIED))
            story.finished(at + 0.5, "restart_engine", name="chat")
        for reading in _cards(at):
            recent.observe(ReadingTaken(at, reading), Step(story.state))
            story.take(ReadingTaken(at, reading))
    return story


def _serve(story: Told, at: float, *names: str) -> None:
    for name in names:
        of = Of(name=name)
        story.read(process(at, cpu_seconds=at, **of), metrics(at, at * 90, running=6.0, **of))
        story.read(http(at, canary="ok", status=200, **of))


def _cards(at: float) -> list[Reading]:
    samples: list[Sampled] = []
    down = at >= _CRASH
    for index, swing in enumerate((0.0, 2.1)):
        idle = down and index == 0
        busy = 0.0 if idle else 78 + 14 * math.sin(at / 31 + swing) + 6 * math.sin(at / 7 + swing)
        hot = at in _HEAT and index == 0
        warm = 61 + busy / 9 + (17 if hot else 0) - (14 * min((at - _CRASH) / 40, 1) if idle else 0)
        used = (4 if idle else 121 + 3 * math.sin(at / 90)) if index == 0 else 64.0
        samples += _samples(index, busy, used * _GIB, warm, hot=hot)
    return [Reading("gpu", at, 0.02, tuple(samples))]


def _samples(index: int, busy: float, used: float, warm: float, *, hot: bool) -> list[Sampled]:
    uuid = f"GPU-{index:08x}-4b1d-4c0e-9d5e-7a2f0c3b1e55"
    subject, labels = Subject(SubjectKind.GPU, uuid), (("gpu", str(index)), ("uuid", uuid))
    values: dict[str, Value] = {
        "state": "ok",
        "name": "NVIDIA H200",
        "utilization_percent": busy,
        "memory_used_bytes": used,
        "memory_total_bytes": 140.4 * _GIB,
        "temperature_celsius": warm,
        "power_watts": 120 + busy * 5.2,
    }
    reasons = {"sw_thermal": hot, "sw_power_cap": busy > _NEAR_THE_LIMIT}
    return [
        *(Sampled(subject, name, value, labels) for name, value in values.items()),
        *(
            Sampled(subject, "throttled", held, (*labels, ("reason", reason)))
            for reason, held in reasons.items()
        ),
    ]


if __name__ == "__main__":
    main()
