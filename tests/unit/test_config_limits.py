"""What a configuration may hold however odd it looks, and how much is told of what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from watchdog import registry
from watchdog.config import ConfigError, PlugIns, load
from watchdog.config.settings import RuleConfig
from watchdog.core.model import SubjectKind
from watchdog.rules import RuleError, build_rules

DOTS = "." * 600


@pytest.mark.parametrize(
    "text",
    [f"# {DOTS}\n", f'[watchdog]\nlog = "{DOTS}"\n', f"[watchdog]\nlog = '{DOTS}' # {DOTS}\n"],
)
def test_dots_are_counted_in_keys_only(tmp_path: Path, text: str) -> None:
    """FACT: a comment or a text may have as many as it likes."""
    (tmp_path / "dots.toml").write_text(text)
    assert load(tmp_path / "dots.toml", PlugIns({})).watchdog.log in {"-", DOTS}


@pytest.mark.parametrize("text", ["a.{} = 1", "[a.{}]", "x = {{ a.{} = 1 }}", "x.y = 1\nz.{} = 2"])
def test_a_key_of_many_parts_is_refused_before_it_is_parsed(tmp_path: Path, text: str) -> None:
    """FACT: wherever a dotted key stands, its length is told with its line."""
    (tmp_path / "dots.toml").write_text(text.format(".".join("a" * 600)))
    with pytest.raises(ConfigError, match="expected at most 500 dots in a key"):
        load(tmp_path / "dots.toml", PlugIns({}))


def test_a_mark_at_the_beginning_is_no_mistake(tmp_path: Path) -> None:
    """FACT: a file that begins with a byte order mark is read as if it did not."""
    (tmp_path / "marked.toml").write_text('[watchdog]\nmode = "observe"\n', encoding="utf-8-sig")
    assert load(tmp_path / "marked.toml", PlugIns({})).watchdog.mode.value == "observe"


def test_a_thousand_mistakes_in_rules_are_not_a_thousand_lines() -> None:
    """FACT: the first hundred are told, and how many there are more."""
    wrong = tuple(
        RuleConfig(name=f"r{n}", subject=SubjectKind.GPU, when="gpu.nonsense", summary="it is")
        for n in range(150)
    )
    with pytest.raises(RuleError) as refused:
        build_rules(wrong, registry.probes(), registry.actions(), "file")
    assert len(refused.value.lines) == 101
    assert refused.value.lines[-1] == "file: more: 50 further mistakes are not shown"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (r'reload = ["nginx", "\u0000"]', "nginx.reload: expected texts in UTF-8 without NUL"),
        ('reload = ["", "-s"]', "nginx.reload: expected a program and its arguments"),
        (
            'reload = "curl --data s3cret"',
            "nginx.reload: expected a list of texts, got a text",
        ),
        (r'upstream_file = "a\u0000b"', "nginx.upstream_file: expected a file"),
    ],
)
def test_what_cannot_reload_an_nginx_is_refused(tmp_path: Path, line: str, said: str) -> None:
    """FACT: by its key, before nginx is to be told of anything, and without its words."""
    file = 'upstream_file = "up.conf"\n' if line.startswith("reload") else ""
    (tmp_path / "n.toml").write_text(f"[nginx]\n{file}{line}\n")
    with pytest.raises(ConfigError) as refused:
        load(tmp_path / "n.toml", PlugIns({}))
    assert refused.value.lines == (f"{tmp_path / 'n.toml'}: {said}",)
