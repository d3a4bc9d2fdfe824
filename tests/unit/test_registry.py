"""The registry finds what is there, and names what is broken."""

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from watchdog import registry
from watchdog.contracts import ProbeSpec
from watchdog.registry import RegistryError, check_metrics, in_package

HEAD = """
import msgspec
from watchdog.contracts import ProbeSpec, SampleSpec
from watchdog.core.model import SubjectKind
class Settings(msgspec.Struct):
    x: int = 1
class Bare(msgspec.Struct):
    x: int
def spec(name="plug", settings=Settings, samples=(SampleSpec("a", int, "", ""),), **more):
    return ProbeSpec(name, SubjectKind.HOST, settings, samples, lambda s, t: None, **more)
"""

Write = Callable[[str, str], str]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Write a module into a new package and get the package's name."""
    package = tmp_path / "plugs_of_a_test"
    package.mkdir()
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))

    def put(module: str, text: str) -> str:
        (package / f"{module}.py").write_text(HEAD + text)
        importlib.invalidate_caches()
        return package.name

    yield put
    for name in [name for name in sys.modules if name.partition(".")[0] == package.name]:
        del sys.modules[name]


def load(package: str) -> dict[str, ProbeSpec]:
    """The probes of a package."""
    return in_package(package, "PROBE", ProbeSpec)


def test_ours_are_found() -> None:
    """FACT: every module of the two packages is there under its name, and valid."""
    assert {"engine_http", "engine_metrics", "engine_process"} <= set(registry.probes())
    assert all(spec.name == name for name, spec in registry.probes().items())
    assert all(spec.name == name for name, spec in registry.actions().items())


def test_a_leading_underscore_hides(write: Write) -> None:
    """FACT: a module that begins with an underscore is nobody's plug-in and is not imported."""
    write("_hidden", "raise ValueError")
    assert set(load(write("plug", "PROBE = spec()"))) == {"plug"}


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("def broken(:", "SyntaxError"),
        ("pass", "it exports no ProbeSpec PROBE"),
        ("PROBE = 1", "it exports no ProbeSpec PROBE"),
        ("PROBE = spec('other')", "it calls itself 'other'"),
        ("PROBE = spec(samples=())", "it declares no sample"),
        ("PROBE = spec(samples=(SampleSpec('a', int, '', ''),) * 2)", "the sample a twice"),
        ("PROBE = spec(samples=(SampleSpec('a', list, '', ''),))", "no type that can be declared"),
        ("PROBE = spec(samples=(SampleSpec('a', str, '', '', True),))", "counter a is no number"),
        ("PROBE = spec(samples=(SampleSpec('a b', int, '', ''),))", "no name of a sample"),
        ("PROBE = spec(period=0)", "period and timeout must be above zero"),
        ("PROBE = spec(settings=dict)", "its settings are no msgspec.Struct"),
        ("PROBE = spec(settings=Bare)", "its settings have no defaults"),
    ],
)
def test_a_broken_plug_in_is_named(write: Write, text: str, error: str) -> None:
    """FACT: one line names the module and what is wrong with it."""
    package = write("plug", text)
    with pytest.raises(RegistryError) as raised:
        load(package)
    line = str(raised.value)
    assert line.startswith("cannot load plugs_of_a_test.plug: ")
    assert error in line
    assert "\n" not in line


def test_two_probes_cannot_export_one_metric(write: Write) -> None:
    """FACT: a metric has one owner."""
    same = "PROBE = spec({!r}, samples=(SampleSpec('a', int, '', '', metric='m'),))"
    write("one", same.format("one"))
    found = load(write("two", same.format("two")))
    with pytest.raises(RegistryError, match="cannot load two: one has the metric m too"):
        check_metrics(found)


@pytest.mark.parametrize("name", ["engine", "engines", "watchdog"])
def test_the_cores_own_names_are_taken(write: Write, name: str) -> None:
    """FACT: no probe can be called as rules call what the core itself knows."""
    package = write(name, f"PROBE = spec({name!r})")
    with pytest.raises(RegistryError, match="rules know the core's own samples by that name"):
        load(package)
