"""An engine whose environment has a torch for CUDA, and that is the simulator: no GPU is needed."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

from tests.support.simulated import ROOT

_VERSION = """
__all__ = ["__version__", "cuda"]
__version__ = "2.14.0"
cuda: str | None = "{cuda}"
hip: str | None = None
"""
_SCRIPT = """
    #!{python}
    import sys
    sys.path.insert(0, {root!r})
    from watchdog.simulator.cli import main
    known = [w for w in sys.argv[3:] if not w.startswith("--gpu-memory-utilization")]
    sys.exit(main(known))
"""


def installed(folder: Path, cuda: str = "13.0") -> Path:
    """A virtual environment with a torch built for ``cuda``; the path of its ``vllm``."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (site,) = folder.glob("lib/python3*/site-packages")
    (site / "torch").mkdir()
    (site / "torch" / "version.py").write_text(_VERSION.format(cuda=cuda))
    script = folder / "bin" / "vllm"
    python = folder / "bin" / "python"
    script.write_text(textwrap.dedent(_SCRIPT).lstrip().format(python=python, root=str(ROOT)))
    script.chmod(0o755)
    return script


def command(folder: Path, port: int, *flags: str) -> list[str]:
    """``vllm serve`` as a person would type it, in an environment of its own."""
    return [str(installed(folder)), "serve", "simulated/tiny", "--port", str(port), *flags]
