"""The driver's versions in trees of files as real machines have them."""

from __future__ import annotations

from pathlib import Path

import pytest

from watchdog.nvidia import versions
from watchdog.nvidia.fit import engine_fit, mismatch
from watchdog.nvidia.floors import Fit

OPEN = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build\n"
    "GCC version:  gcc version 12.3.0 (Ubuntu 12.3.0-1ubuntu1~22.04)\n"
)
CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC\n"
LIBS = "usr/lib/x86_64-linux-gnu"
COMPAT = "usr/local/cuda-12.9/compat"


def put(root: Path, path: str, content: bytes | str = "") -> Path:
    """A file with everything above it."""
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return file


def install(root: Path, version: str, folder: str = LIBS) -> None:
    """A user driver: libraries with their links, as packages lay them down."""
    for name in ("libcuda.so", "libnvidia-ml.so"):
        put(root, f"{folder}/{name}.{version}", b"\x7fELF\x02")
        link = root / folder / f"{name}.1"
        link.unlink(missing_ok=True)
        link.symlink_to(f"{name}.{version}")


def loaded(root: Path, version: str) -> None:
    """A loaded kernel module."""
    put(root, "proc/driver/nvidia/version", OPEN.replace("580.159.04", version))


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A loader's configuration without any library."""
    put(tmp_path, "etc/ld.so.conf", "include /etc/ld.so.conf.d/*.conf\n")
    put(tmp_path, "etc/ld.so.conf.d/x86_64.conf", f"# multiarch\n/{LIBS}\n")
    return tmp_path


@pytest.mark.parametrize(("text", "version"), [(OPEN, "580.159.04"), (CLOSED, "535.104.05")])
def test_the_loaded_module_says_its_version(tmp_path: Path, text: str, version: str) -> None:
    """FACT: the open and the closed module word it differently; the compiler's is not taken."""
    put(tmp_path, "proc/driver/nvidia/version", text)
    assert versions.loaded_module(str(tmp_path)) == version


def test_sysfs_stands_in_for_procfs(tmp_path: Path) -> None:
    """FACT: /sys/module has the version too; without either there is none."""
    assert versions.loaded_module(str(tmp_path)) == ""
    put(tmp_path, "sys/module/nvidia/version", "580.65.06\n")
    assert versions.loaded_module(str(tmp_path)) == "580.65.06"


def test_the_library_is_found_through_the_configuration(machine: Path) -> None:
    """FACT: the real name behind the soname has the version, in a directory of ld.so.conf.d."""
    assert versions.user_library({}, str(machine)) == ""
    install(machine, "580.65.06")
    assert versions.user_library({}, str(machine)) == "580.65.06"


def test_the_environment_comes_before_the_configuration(machine: Path) -> None:
    """FACT: LD_LIBRARY_PATH wins, empty and relative parts of it say nothing."""
    install(machine, "580.65.06")
    install(machine, "575.57.08", "opt/driver")
    environment = {"LD_LIBRARY_PATH": ":lib:/nowhere:/opt/driver"}
    assert versions.user_library(environment, str(machine)) == "575.57.08"


def test_libraries_of_32_bits_and_broken_links_are_passed_over(machine: Path) -> None:
    """FACT: as by the loader."""
    put(machine, "etc/ld.so.conf.d/i386.conf", "/usr/lib/i386-linux-gnu\n/usr/lib/broken\n")
    put(machine, "usr/lib/i386-linux-gnu/libcuda.so.1", b"\x7fELF\x01")
    (machine / "usr/lib/broken").mkdir()
    (machine / "usr/lib/broken/libcuda.so.1").symlink_to("libcuda.so.570.26")
    install(machine, "580.65.06")
    assert versions.library_version(versions.CUDA, {}, str(machine)) == "580.65.06"


def test_a_configuration_that_includes_itself_ends(machine: Path) -> None:
    """FACT: a circle of includes is left after a few rounds, with what it says."""
    put(machine, "etc/ld.so.conf", f"include ld.so.conf\n/{LIBS}\n")
    install(machine, "580.65.06")
    assert versions.user_library({}, str(machine)) == "580.65.06"


def test_an_upgrade_under_a_loaded_module_is_a_mismatch(machine: Path) -> None:
    """FACT: the module is the old one and the library the new one; the sentence has both."""
    loaded(machine, "580.65.06")
    install(machine, "580.65.06")
    assert mismatch({}, str(machine)) == ""
    install(machine, "580.82.07")
    said = mismatch({}, str(machine))
    assert said.startswith("driver 580.65.06 is loaded, and libcuda is of 580.82.07 (")


def test_a_newer_compat_library_is_no_mismatch_and_is_judged_in_the_drivers_place(
    machine: Path,
) -> None:
    """FACT: cuda-compat lifts what the driver runs, and is no half-done upgrade of the host."""
    loaded(machine, "535.104.05")
    install(machine, "535.104.05")
    install(machine, "580.65.06", COMPAT)
    environment = {"LD_LIBRARY_PATH": f"/{COMPAT}"}
    assert engine_fit("13.0", {}, str(machine)).fits is False
    assert engine_fit("13.0", environment, str(machine)).fits is True
    assert mismatch(environment, str(machine)) == ""
    assert versions.user_library({}, str(machine)) == "535.104.05"


@pytest.mark.parametrize(
    "environment",
    [
        {"LD_LIBRARY_PATH": "/opt/forward"},
        {"LD_LIBRARY_PATH": "/opt/link"},
        {"VLLM_ENABLE_CUDA_COMPATIBILITY": "1", "VLLM_CUDA_COMPATIBILITY_PATH": "/opt/forward"},
    ],
)
def test_a_newer_library_that_the_environment_leads_to_is_a_compat_by_another_name(
    machine: Path, environment: dict[str, str]
) -> None:
    """FACT: a start that would work is not blocked, and nobody says the host is half upgraded."""
    loaded(machine, "580.65.06")
    put(machine, f"{LIBS}/libcuda.so.1", b"\x7fELF\x02")
    install(machine, "590.44.01", COMPAT)
    put(machine, "opt/forward/libcuda.so.590.44.01", b"\x7fELF\x02")
    (machine / "opt/forward/libcuda.so.1").symlink_to("libcuda.so.590.44.01")
    (machine / "opt/link").symlink_to(f"../{COMPAT}")
    assert mismatch(environment, str(machine)) == ""
    assert engine_fit("13.1", environment, str(machine)) == Fit(fits=True)


def test_a_newer_compat_library_that_is_configured_is_no_mismatch(machine: Path) -> None:
    """FACT: behind a link, or by the toolkit's 00-compat file, it is one whatever its name."""
    loaded(machine, "580.65.06")
    install(machine, "590.44.01", COMPAT)
    (machine / "opt").mkdir()
    (machine / "opt/link").symlink_to(f"../{COMPAT}")
    put(machine, "etc/ld.so.conf.d/a.conf", "/opt/link\n")
    assert mismatch({}, str(machine)) == ""
    install(machine, "590.44.02", "opt/forward")
    put(machine, "etc/ld.so.conf.d/00-compat-1.conf", "/opt/forward\n")
    assert versions.library_version(versions.CUDA, {}, str(machine)) == "590.44.02"
    assert mismatch({}, str(machine)) == ""


def test_the_systems_own_library_is_a_mismatch_by_whatever_way(machine: Path) -> None:
    """FACT: an environment that names the system's directory leads to no cuda-compat."""
    loaded(machine, "580.65.06")
    install(machine, "590.44.01")
    (machine / "opt").mkdir()
    (machine / "opt/link").symlink_to(f"../{LIBS}")
    for folder in (f"/{LIBS}", "/opt/link"):
        assert "590.44.01" in mismatch({"LD_LIBRARY_PATH": folder}, str(machine))


def test_an_older_library_is_a_mismatch_wherever_it_lies(machine: Path) -> None:
    """FACT: no libcuda runs on a newer module: neither as a compat nor by another name."""
    loaded(machine, "580.65.06")
    install(machine, "570.26", "opt/old")
    assert "570.26" in mismatch({"LD_LIBRARY_PATH": "/opt/old"}, str(machine))


def test_a_library_of_unknown_standing_is_not_taken_for_the_systems(machine: Path) -> None:
    """FACT: without NVML's, libcuda's version tells of the driver only where it is its own."""
    put(machine, "opt/forward/libcuda.so.590.44.01", b"\x7fELF\x02")
    (machine / "opt/forward/libcuda.so.1").symlink_to("libcuda.so.590.44.01")
    environment = {"LD_LIBRARY_PATH": "/opt/forward"}
    assert versions.user_library(environment, str(machine)) == ""
    put(machine, "etc/ld.so.conf.d/a.conf", "/opt/forward\n")
    assert versions.user_library(environment, str(machine)) == "590.44.01"


def test_the_names_above_the_root_say_nothing(tmp_path: Path) -> None:
    """FACT: a tree that lies below a directory called compat has no cuda-compat by that."""
    root = tmp_path / "compat"
    loaded(root, "580.65.06")
    install(root, "590.44.01", "usr/lib")
    assert "590.44.01" in mismatch({}, str(root))


def test_an_older_compat_library_is_a_mismatch_with_its_source(machine: Path) -> None:
    """FACT: an image's cuda-compat below the host's driver is named with where it comes from."""
    loaded(machine, "580.65.06")
    install(machine, "580.65.06")
    install(machine, "575.51.03", COMPAT)
    put(machine, "etc/ld.so.conf.d/00-compat-1.conf", f"/{COMPAT}\n")
    said = mismatch({}, str(machine))
    assert "libcuda is of 575.51.03" in said
    assert said.endswith("by way of /etc/ld.so.conf.d/00-compat-1.conf")
    environment = {"LD_LIBRARY_PATH": f"/{COMPAT}"}
    assert versions.compat_sources(environment, str(machine))[0] == f"/{COMPAT}"
    assert engine_fit("13.0", {}, str(machine)).fits is True


def test_vllm_can_be_told_to_use_compat(machine: Path) -> None:
    """FACT: VLLM_ENABLE_CUDA_COMPATIBILITY puts the compat directory in front."""
    install(machine, "535.104.05")
    install(machine, "580.65.06", "opt/compat")
    switched = {
        "VLLM_ENABLE_CUDA_COMPATIBILITY": "1",
        "VLLM_CUDA_COMPATIBILITY_PATH": "/opt/compat",
    }
    assert versions.library_version(versions.CUDA, switched, str(machine)) == "580.65.06"
    off = switched | {"VLLM_ENABLE_CUDA_COMPATIBILITY": "0"}
    assert versions.library_version(versions.CUDA, off, str(machine)) == "535.104.05"


def test_deleted_libraries_of_nvidia_are_told_from_all_others(tmp_path: Path) -> None:
    """FACT: only NVIDIA's, only deleted ones, each once, of all processes; None without any map."""
    maps = (
        "7f00-7f01 r-xp 00000000 08:01 12   /usr/lib/libcuda.so.580.65.06 (deleted)\n"
        "7f01-7f02 rw-p 00000000 08:01 12   /usr/lib/libcuda.so.580.65.06 (deleted)\n"
        "7f02-7f03 r-xp 00000000 08:01 13   /usr/lib/libnvidia-ptxjitcompiler.so.580.65.06\n"
        "7f03-7f04 rw-s 00000000 00:01 14   /dev/shm/psm_1 (deleted)\n"
        "7f04-7f05 r-xp 00000000 08:01 15   /usr/lib/libcudart.so.13 (deleted)\n"
    )
    put(tmp_path, "proc/7/maps", maps)
    put(tmp_path, "proc/8/maps", "7f-8f r-xp 0 08:01 1 /lib/libnvidia-ml.so.580.65.06 (deleted)\n")
    root = str(tmp_path)
    assert versions.stale_libraries((7, 8, 9), root) == (
        "libcuda.so.580.65.06",
        "libnvidia-ml.so.580.65.06",
    )
    put(tmp_path, "proc/10/maps", "7f-8f r-xp 0 08:01 1 /lib/libcuda.so.580.65.06\n")
    assert versions.stale_libraries((10,), root) == ()
    assert versions.stale_libraries((9,), root) is None


def test_a_newer_driver_in_the_environments_path_is_no_compat(machine: Path) -> None:
    """FACT (G12): libcuda with NVML's library beside it is a whole driver, not a cuda-compat."""
    loaded(machine, "580.65.06")
    install(machine, "590.44.01", "opt/driver")
    environment = {"LD_LIBRARY_PATH": "/opt/driver"}
    assert "590.44.01" in mismatch(environment, str(machine))
    for name in ("libnvidia-ml.so.1", "libnvidia-ml.so.590.44.01"):
        (machine / "opt/driver" / name).unlink()
    assert mismatch(environment, str(machine)) == ""
