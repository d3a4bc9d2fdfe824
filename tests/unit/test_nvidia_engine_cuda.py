"""Which CUDA an engine wants, from its command, its environment and trees of packages."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.daemon import simulated_command
from watchdog.core.model import Cause
from watchdog.nvidia.engine_cuda import wanted, wanted_in, wish, wish_in
from watchdog.nvidia.fit import misfit, obstacle
from watchdog.nvidia.interpreter import python_of, site_packages

CUDA_13 = (
    "from typing import Optional\n__version__ = '2.9.0'\ndebug = False\n"
    "cuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n"
)
CPU = "__version__ = '2.13.0+cpu'\ncuda: Optional[str] = None\nhip: Optional[str] = None\n"
ROCM = "__version__ = '2.9.0+rocm6.4'\ncuda = None\nhip = '6.4.4'\n"
OLD = "__version__ = '2.1.0+cu118'\ndebug = False\ncuda = '11.8'\nhip = None\n"
SITE = "lib/python3.12/site-packages"


def put(root: Path, path: str, content: str = "") -> Path:
    """A file with everything above it, which may be run."""
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content)
    file.chmod(0o755)
    return file


def torch(root: Path, site: str, version_file: str = CUDA_13) -> None:
    """A torch in a directory of packages."""
    put(root, f"{site}/torch/version.py", version_file)


def venv(root: Path, prefix: str = "/opt/env", *, system: bool = False) -> None:
    """A virtual environment on the machine's Python, with vLLM's script."""
    put(root, "/usr/bin/python3.12")
    switch = str(system).lower()
    put(root, f"{prefix}/pyvenv.cfg", f"home = /usr/bin\ninclude-system-site-packages = {switch}\n")
    put(root, f"{prefix}/bin/vllm", f"#!{prefix}/bin/python\nimport sys\n")
    (root / prefix[1:] / "bin/python").symlink_to("python3")
    (root / prefix[1:] / "bin/python3").symlink_to("../../../usr/bin/python3.12")
    (root / prefix[1:] / SITE).mkdir(parents=True)


@pytest.mark.parametrize(
    ("version_file", "cuda"),
    [(CUDA_13, "13.0"), (CPU, ""), (ROCM, ""), (OLD, "11.8"), (OLD + "hip = '6.4'\n", "")],
)
def test_version_py_decides(tmp_path: Path, version_file: str, cuda: str) -> None:
    """FACT: annotated or not; None and another vendor's want none, whatever else is installed."""
    torch(tmp_path, "site", version_file)
    (tmp_path / "site/nvidia_cuda_runtime_cu12-12.8.90.dist-info").mkdir()
    assert wanted_in(["/site"], str(tmp_path)) == cuda


@pytest.mark.parametrize(
    ("names", "cuda"),
    [
        (["nvidia_cuda_runtime_cu12-12.8.90.dist-info"], "12.8"),
        (["nvidia_cuda_runtime-13.0.96.dist-info"], "13.0"),
        (["nvidia-cuda-runtime-13.0.96.dist-info", "torch-2.9.0+cu128.dist-info"], "13.0"),
        (["torch-2.9.0+cu128.dist-info"], "12.8"),
        (["torch-2.9.0+cpu.dist-info", "torchvision-0.1+cu128.dist-info"], ""),
        (["nvidia_cuda_runtime_extras-1.2.3.dist-info"], ""),
        ([], ""),
    ],
)
@pytest.mark.parametrize("version_file", [None, "cuda = (", "cuda = compute()\n", "cuda = 'new'"])
def test_without_its_word_distributions_tell(
    tmp_path: Path, names: list[str], cuda: str, version_file: str | None
) -> None:
    """FACT: the runtime's distribution (12 with, 13 without a suffix) comes before torch's tag."""
    (tmp_path / "site").mkdir()
    for name in names:
        (tmp_path / "site" / name).mkdir()
    if version_file is not None:
        torch(tmp_path, "site", version_file)
    assert wanted_in(["/site"], str(tmp_path)) == cuda


@pytest.mark.parametrize(
    ("version_file", "names", "known"),
    [
        (CPU, [], True),
        (ROCM, [], True),
        (CUDA_13, [], False),
        (None, ["torch-2.9.0+cpu.dist-info"], True),
        (None, ["torch-2.9.0+rocm6.4.dist-info"], True),
        (None, ["torch-2.9.0+cu128.dist-info"], False),
        (None, ["nvidia_cuda_runtime-13.0.96.dist-info", "torch-2.9.0.dist-info"], False),
        (None, ["torch-2.9.0.dist-info"], None),
        ("__version__ = '2.9.0+cpu'\n", [], True),
        ("cuda = (", [], None),
        (None, [], None),
    ],
)
def test_what_uses_no_cuda_is_told_from_what_is_not_known(
    tmp_path: Path, version_file: str | None, names: list[str], *, known: bool | None
) -> None:
    """FACT: only a torch that says so is without CUDA; silence is neither yes nor no."""
    (tmp_path / "site").mkdir()
    for name in names:
        (tmp_path / "site" / name).mkdir()
    if version_file is not None:
        torch(tmp_path, "site", version_file)
    assert wish_in(["/site"], str(tmp_path)).cpu_only is known


@pytest.mark.parametrize(
    ("command", "known"),
    [
        (tuple(simulated_command(8000)), True),
        (("vllm-watchdog", "simulate-engine", "--port", "1"), True),
        (("nice", "python3", "-u", "-m", "watchdog", "simulate-engine"), True),
        (("vllm-watchdog", "run", "--", "vllm", "serve"), None),
        (("python3", "-m", "watchdog"), None),
        (("python3", "-m"), None),
        (("vllm", "serve", "m", "simulate-engine"), None),
        ((), None),
    ],
)
def test_this_programs_own_engine_uses_no_cuda(
    tmp_path: Path, command: tuple[str, ...], *, known: bool | None
) -> None:
    """FACT: the embedded engine is known by its command, and nothing else of ours is one."""
    assert wish(command, {}, str(tmp_path)).cpu_only is known


def test_a_new_torch_is_seen(tmp_path: Path) -> None:
    """FACT: what was read is kept until the file changes, and not longer."""
    torch(tmp_path, "site", CUDA_13)
    assert wanted_in(["/site"], str(tmp_path)) == "13.0"
    torch(tmp_path, "site", CUDA_13.replace("13.0", "12.8"))
    os.utime(tmp_path / "site/torch/version.py", ns=(1, 1))
    assert wanted_in(["/site"], str(tmp_path)) == "12.8"


def test_a_driver_that_comes_later_is_seen(tmp_path: Path) -> None:
    """FACT: without one nothing is in the way; nothing of that is kept for the next start."""
    venv(tmp_path)
    torch(tmp_path, f"/opt/env/{SITE}")
    command = ("/opt/env/bin/vllm", "serve", "m")
    assert obstacle(command, {}, str(tmp_path)) is None
    put(tmp_path, "/sys/module/nvidia/version", "470.57.02\n")
    found = obstacle(command, {}, str(tmp_path))
    assert found is not None
    assert found[0] is Cause.DRIVER_TOO_OLD


@pytest.mark.parametrize(
    "command",
    [
        ("vllm", "serve", "m"),
        ("/opt/env/bin/vllm", "serve", "m"),
        ("/opt/env/bin/python", "-m", "vllm.entrypoints.openai.api_server"),
        ("python3", "-u", "-m", "vllm", "serve", "m"),
        ("env", "A=b", "numactl", "-N", "0", "vllm", "serve", "m"),
        ("/opt/start", "m"),
        ("/opt/start-longer", "m"),
        ("/opt/start-by-name", "m"),
    ],
)
def test_the_python_of_a_command_is_found(tmp_path: Path, command: tuple[str, ...]) -> None:
    """FACT: by path or on the engine's PATH, by a script's first line, behind known wrappers."""
    venv(tmp_path)
    torch(tmp_path, f"/opt/env/{SITE}")
    put(tmp_path, "/opt/start", "#!/opt/env/bin/python3 -u\n")
    longer = "#!/bin/sh\n'''exec' \"/opt/env/bin/python\" \"$0\" \"$@\"\n' '''\n"
    put(tmp_path, "/opt/start-longer", longer)
    put(tmp_path, "/opt/start-by-name", "#!/usr/bin/env -S python3 -u\n")
    assert wanted(command, {"PATH": "/nowhere:/opt/env/bin:/usr/bin"}, str(tmp_path)) == "13.0"


@pytest.mark.parametrize(
    "command",
    [
        ("docker", "run", "image", "vllm", "serve", "m"),
        ("bash", "-c", "exec vllm serve m"),
        ("/opt/start.sh", "vllm"),
        ("vllm-watchdog", "simulate-engine"),
        ("python3", "-m", "watchdog.simulator"),
        ("absent", "serve"),
        ("env",),
        (),
    ],
)
def test_what_runs_elsewhere_or_is_not_vllm_wants_nothing_known(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    """FACT: no guess is made at containers, shells and this program's own engine."""
    venv(tmp_path)
    torch(tmp_path, f"/opt/env/{SITE}")
    for name in ("docker", "bash", "env"):
        put(tmp_path, f"/opt/env/bin/{name}", "\x7fELF")
    put(tmp_path, "/opt/env/bin/vllm-watchdog", "#!/opt/env/bin/python\n")
    put(tmp_path, "/opt/start.sh", "#!/bin/sh\nexec vllm serve m\n")
    environment = {"PATH": "/opt/env/bin"}
    assert python_of(command, environment, str(tmp_path)) == ""
    assert wanted(command, environment, str(tmp_path)) == ""


def test_this_machines_simulator_wants_no_cuda() -> None:
    """FACT: the embedded engine's real command says nothing about CUDA."""
    assert wanted(simulated_command(8000), os.environ) == ""


def test_an_image_of_debians_python_has_its_packages_in_usr_local(tmp_path: Path) -> None:
    """FACT: vLLM's script of /usr/local/bin on /usr/bin/python3 imports from dist-packages."""
    put(tmp_path, "/usr/bin/python3.12")
    (tmp_path / "usr/bin/python3").symlink_to("python3.12")
    put(tmp_path, "/usr/local/bin/vllm", "#!/usr/bin/python3\n")
    torch(tmp_path, "/usr/local/lib/python3.12/dist-packages")
    torch(tmp_path, "/usr/local/lib/python3.10/dist-packages", OLD)
    environment = {"PATH": "/usr/local/bin:/usr/bin"}
    assert wanted(("vllm", "serve"), environment, str(tmp_path)) == "13.0"


def test_a_closed_environment_does_not_see_the_systems_packages(tmp_path: Path) -> None:
    """FACT: pyvenv.cfg decides whether the system's torch counts, as in Python."""
    venv(tmp_path, "/opt/closed")
    venv(tmp_path, "/opt/open", system=True)
    torch(tmp_path, "/usr/local/lib/python3.12/dist-packages")
    assert wanted(("/opt/closed/bin/vllm",), {}, str(tmp_path)) == ""
    assert wanted(("/opt/open/bin/vllm",), {}, str(tmp_path)) == "13.0"


def test_pythonpath_and_the_users_packages_come_first(tmp_path: Path) -> None:
    """FACT: in Python's order: PYTHONPATH, the user's own, the system's."""
    put(tmp_path, "/usr/bin/python3.12")
    torch(tmp_path, "/usr/lib/python3/dist-packages", OLD)
    command, root = ("/usr/bin/python3.12", "serve.py"), str(tmp_path)
    assert wanted(command, {"HOME": "/opt/u"}, root) == "11.8"
    torch(tmp_path, "/opt/u/.local/lib/python3.12/site-packages")
    assert wanted(command, {"HOME": "/opt/u"}, root) == "13.0"
    assert wanted(command, {"HOME": "/opt/u", "PYTHONNOUSERSITE": "1"}, root) == "11.8"
    torch(tmp_path, "/opt/extra", CUDA_13.replace("13.0", "12.8"))
    assert wanted(command, {"HOME": "/opt/u", "PYTHONPATH": "/opt/extra"}, root) == "12.8"


def test_a_real_environment_is_read_as_its_python_imports(tmp_path: Path) -> None:
    """FACT: the directories found are those that a real virtual environment's own Python names."""
    home = tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    python = str(home / "bin" / "python")
    ask = "import site; print(*site.getsitepackages(), sep=chr(10))"
    told = subprocess.run([python, "-c", ask], check=True, capture_output=True, text=True)
    found = site_packages(python, {"HOME": str(tmp_path)})
    assert os.path.realpath(found[0]) == os.path.realpath(told.stdout.splitlines()[0])
    assert {os.path.realpath(f) for f in found} == {
        os.path.realpath(f) for f in told.stdout.splitlines()
    }


def test_links_in_a_circle_end(tmp_path: Path) -> None:
    """FACT: a Python that links to itself is no engine, and no hang."""
    folder = tmp_path / "opt"
    folder.mkdir()
    (folder / "python").symlink_to("python")
    assert wanted(("/opt/python", "serve.py"), {}, str(tmp_path)) == ""


def test_the_gate_has_one_sentence(tmp_path: Path) -> None:
    """FACT: engine and driver that do not go together give the sentence; else there is none."""
    venv(tmp_path)
    torch(tmp_path, f"/opt/env/{SITE}")
    command, root = ("/opt/env/bin/vllm", "serve", "m"), str(tmp_path)
    assert misfit(command, {}, root) == ""
    put(tmp_path, "/sys/module/nvidia/version", "550.54.14\n")
    assert misfit(command, {}, root) == (
        "driver 550.54.14 supports CUDA 12.4; the engine's torch wants CUDA 13.0, which needs "
        "driver 580.65.06 or newer"
    )
    put(tmp_path, "/sys/module/nvidia/version", "580.65.06\n")
    assert misfit(command, {}, root) == ""
    torch(tmp_path, f"/opt/env/{SITE}", CUDA_13.replace("13.0", "13.20"))
    assert misfit(command, {}, root) == ""
    assert misfit(command, {}, root, {"13": "600.1"}).endswith("needs driver 600.1 or newer")
