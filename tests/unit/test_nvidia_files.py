"""Whatever the file system is like, every look answers, and what is closed is absent."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.simulated import ROOT
from watchdog.nvidia import devices, files, obstacle, versions
from watchdog.nvidia.engine_cuda import wish
from watchdog.nvidia.fit import mismatch
from watchdog.nvidia.interpreter import python_of, site_packages

COMMAND = ("/env/bin/python3.12", "-m", "vllm.entrypoints.openai.api_server")
PLACES = (
    "proc/driver/nvidia/version",
    "sys/module/nvidia/version",
    "proc/devices",
    "proc/7/maps",
    "etc/ld.so.conf",
    "etc/ld.so.conf.d",
    "sys/bus/pci/devices",
    "sys/bus/pci/devices/0000:00:06.0",
    "sys/bus/pci/devices/0000:00:06.0/vendor",
    "sys/bus/pci/devices/0000:00:06.0/config",
    "sys/bus/pci/devices/0000:00:06.0/driver",
    "proc/driver/nvidia/gpus/0000:00:06.0/information",
    "dev",
    "dev/nvidia0",
    "dev/nvidiactl",
    "usr/bin/nvidia-modprobe",
    "usr/lib",
    "usr/lib/libcuda.so.1",
    "env",
    "env/pyvenv.cfg",
    "env/bin/python3.12",
    "env/lib",
    "env/lib/python3.12/site-packages",
    "env/lib/python3.12/site-packages/torch",
    "env/lib/python3.12/site-packages/torch/version.py",
    "home/.local/lib",
)
LONG = "x" * 5000
ODD = (
    "/closed",
    "/a\0b",
    f"/{LONG}",
    "/loop",
    "/**b",
    "/[",
    "/\udcff",
    "/pipe",
    "",
    "*",
    "/file/x",
)
CLOSED_LOOK = """
import os, sys
from watchdog.nvidia import engine_cuda, fit, versions, devices, interpreter
os.setgroups([]); os.setgid(65534); os.setuid(65534)
command = ["/usr/bin/python3", "-m", "vllm.entrypoints.openai.api_server"]
for name in ("LD_LIBRARY_PATH", "PYTHONPATH", "HOME", "PATH"):
    environment = {name: "/closed/lib"}
    print(fit.obstacle(command, environment, "."), engine_cuda.wanted(command, environment, "."))
os.chdir("closed-later")
os.rmdir("../closed-later")
print(repr(interpreter.python_of(["./python3"], {})))
"""


def machine(root: Path) -> None:
    """A machine with a driver, a card, and an engine whose torch wants CUDA."""
    contents = {
        "proc/driver/nvidia/version": "NVIDIA UNIX x86_64 Kernel Module  580.65.06  x\n",
        "proc/devices": "Character devices:\n195 nvidia\n",
        "proc/7/maps": "7f-8f r-xp 0 08:01 1 /lib/libcuda.so.1 (deleted)\n",
        "etc/ld.so.conf": "include /etc/ld.so.conf.d/*.conf\n",
        "etc/ld.so.conf.d/a.conf": "/opt/lib\n",
        "sys/bus/pci/devices/0000:00:06.0/vendor": "0x10de\n",
        "sys/bus/pci/devices/0000:00:06.0/class": "0x030200\n",
        "sys/bus/pci/devices/0000:00:06.0/config": "????",
        "proc/driver/nvidia/gpus/0000:00:06.0/information": "Device Minor: 0\n",
        "usr/lib/libcuda.so.580.65.06": "",
        "env/pyvenv.cfg": "include-system-site-packages = true\n",
        "env/bin/python3.12": "",
        "env/lib/python3.12/site-packages/torch/version.py": "cuda = '13.0'\n",
        "home/.local/lib/python3.12/site-packages/x": "",
        "dev/null": "",
        "file": "",
    }
    for path, content in contents.items():
        put(root / path, content)
    (root / "usr/lib/libcuda.so.1").symlink_to("libcuda.so.580.65.06")
    (root / "sys/bus/pci/devices/0000:00:06.0/driver").symlink_to("/drivers/nvidia")
    (root / "loop").symlink_to("loop")
    os.mkfifo(root / "pipe")


def put(file: Path, content: str) -> None:
    """A file with everything above it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content)


def look(root: Path, environment: dict[str, str], command: tuple[str, ...] = COMMAND) -> None:
    """Every question that the package answers."""
    where = str(root)
    obstacle(command, environment, where)
    wish(command, environment, where)
    mismatch(environment, where)
    versions.user_library(environment, where)
    versions.compat_sources(environment, where)
    versions.stale_libraries((7,), where)
    devices.expected(where)
    devices.fallen(where)
    devices.node_troubles(where)
    site_packages(python_of(command, environment, where), environment, where)


def looped(path: Path) -> None:
    """A link to itself."""
    path.symlink_to(path.name)


def too_long(path: Path) -> None:
    """A link to a name that no file system has."""
    path.symlink_to(LONG[:4000])


def garbage(path: Path) -> None:
    """Bytes of no encoding, with NUL."""
    path.write_bytes(b"\xff\0\n/\0\ninclude \0 /\xff* /**b\n" + b"9" * 5000)


def dangling(path: Path) -> None:
    """A link to nowhere."""
    path.symlink_to("nowhere")


@pytest.mark.parametrize("spoil", [looped, too_long, os.mkfifo, Path.mkdir, garbage, dangling])
@pytest.mark.parametrize("place", PLACES)
def test_nothing_in_any_place_makes_a_look_fail(
    tmp_path: Path, place: str, spoil: Callable[[Path], None]
) -> None:
    """FACT: circles, pipes, folders, rubbish: every question is answered, and none waits."""
    machine(tmp_path)
    spoilt = tmp_path / place
    if spoilt.exists() or spoilt.is_symlink():
        spoilt.rename(tmp_path / "away")
    spoilt.parent.mkdir(parents=True, exist_ok=True)
    spoil(spoilt)
    look(tmp_path, {"HOME": "/home", "LD_LIBRARY_PATH": "/usr/lib"})


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize(
    "name", ["LD_LIBRARY_PATH", "PYTHONPATH", "HOME", "PATH", "VLLM_CUDA_COMPATIBILITY_PATH"]
)
def test_no_word_of_an_environment_makes_a_look_fail(tmp_path: Path, name: str, odd: str) -> None:
    """FACT: any path may stand there; one that leads nowhere is passed over."""
    machine(tmp_path)
    environment = {"VLLM_ENABLE_CUDA_COMPATIBILITY": "1", name: odd}
    look(tmp_path, environment)
    look(tmp_path, environment, ("python3",))
    look(tmp_path, environment, (f"{odd}/python3",))
    look(tmp_path, environment, (odd,))


@pytest.mark.parametrize(
    "line", ["include /", "include /etc/a**b.conf", "include ", "include ../", "/a\0b", "include ["]
)
def test_no_line_of_the_loaders_makes_a_look_fail(tmp_path: Path, line: str) -> None:
    """FACT: what is no pattern matches nothing, and the lines after it count."""
    machine(tmp_path)
    put(tmp_path / "etc/ld.so.conf", f"{line}\n/usr/lib\n")
    look(tmp_path, {})
    assert versions.library_version(versions.CUDA, {}, str(tmp_path)) == "580.65.06"


def test_a_sentence_about_an_odd_path_can_be_written_out(tmp_path: Path) -> None:
    """FACT: a directory whose name is not UTF-8 is told with a mark in its place."""
    machine(tmp_path)
    folder = tmp_path / "compat-\udcff"
    folder.mkdir()
    (folder / "libcuda.so.570.1").touch()
    (folder / "libcuda.so.1").symlink_to("libcuda.so.570.1")
    said = mismatch({"LD_LIBRARY_PATH": f"/{folder.name}"}, str(tmp_path))
    assert said.endswith("by way of /compat-?")
    assert said.encode()


def test_hidden_files_are_not_included(tmp_path: Path) -> None:
    """FACT: as in the loader's own patterns, a leading dot has to be spelt out."""
    for name in ("b.conf", ".c.conf", "a.conf", "d"):
        (tmp_path / name).touch()
    assert [path.name for path in files.matching(tmp_path, "*.conf")] == ["a.conf", "b.conf"]
    assert [path.name for path in files.matching(tmp_path, ".*.conf")] == [".c.conf"]


def test_a_pipe_is_not_opened(tmp_path: Path) -> None:
    """FACT: a writer that waits for a reader of the pipe goes on waiting."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    holder = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
    try:
        os.write(holder, b"for another")
        assert files.head(pipe) == b""
        assert os.read(holder, 100) == b"for another"
    finally:
        os.close(holder)


@pytest.mark.root
def test_folders_of_others_are_absent(tmp_path: Path) -> None:
    """FACT: to a user who may not enter them they hold nothing; a removed folder is none."""
    machine(tmp_path)
    put(tmp_path / "usr/bin/python3", "")
    put(tmp_path / "closed/lib/x", "")
    (tmp_path / "closed").chmod(0o700)
    (tmp_path / "closed-later").mkdir()
    (tmp_path / "closed-later").chmod(0o777)
    tmp_path.chmod(0o777)
    done = subprocess.run(
        (sys.executable, "-c", CLOSED_LOOK),
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("None \n" * 4 + "''\n", "")
