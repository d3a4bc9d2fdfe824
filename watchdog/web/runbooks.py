"""The pages for on-call as HTML: they are there when nothing else on the network is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from html import escape
from pathlib import Path

_HERE = Path(__file__).resolve()
_PLACES = (_HERE.parent / "pages", _HERE.parents[2] / "docs" / "runbooks")
"""In an installed package, and in a checkout."""
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,80}")
_LONGEST = 1 << 16
_LINK = re.compile(r"\[([^\]]+)\]\(([a-z0-9-]+)\.md\)")
_OTHER_LINK = re.compile(r"\[([^\]]+)\]\([^)]*\)")


def link(name: str, up: str = "") -> str:
    """Where the page of that name is: ours, or an address of its own; empty where it is neither.

    ``up`` leads from the page that links to the status page.
    """
    if name.startswith(("https://", "http://")):
        return name
    return f"{up}runbooks/{name}" if exists(name) else ""


@lru_cache(maxsize=512)
def exists(name: str) -> bool:
    """Whether there is a page of ours of that name."""
    return _file(name) is not None


def render(name: str) -> str | None:
    """The page as HTML; None where there is none."""
    file = _file(name)
    if file is None:
        return None
    try:
        return "".join(_blocks(file.read_text("utf-8", errors="replace")[:_LONGEST]))
    except OSError:
        return None


def _file(name: str) -> Path | None:
    if not _NAME.fullmatch(name):
        return None
    return next((f for place in _PLACES if (f := place / f"{name}.md").is_file()), None)


def _blocks(source: str) -> Iterator[str]:
    """Headings, paragraphs, lists, tables and code: all that our pages are made of."""
    for number, piece in enumerate(re.split(r"(?m)^ *```.*$", source)):
        if number % 2:
            yield f"<pre>{escape(piece.strip())}</pre>"
        else:
            yield from (
                _block(part.strip()) for part in re.split(r"\n\s*\n", piece) if part.strip()
            )


def _block(part: str) -> str:
    head = re.match(r"(#{1,3}) (.*)", part)
    if head:
        rest = _block(part[head.end() :].strip()) if part[head.end() :].strip() else ""
        return f"<h{len(head[1])}>{_inline(head[2])}</h{len(head[1])}>{rest}"
    if part.startswith("|"):
        return _table(part.splitlines())
    if re.match(r"- |\d+\. ", part):
        kind = "ul" if part.startswith("-") else "ol"
        items = re.split(r"(?m)^(?:- |\d+\. )", part)[1:]
        return f"<{kind}>{''.join(f'<li>{_inline(item)}</li>' for item in items)}</{kind}>"
    return f"<p>{_inline(part)}</p>"


def _table(lines: list[str]) -> str:
    rows = [re.split(r"(?<!\\)\|", line.strip().strip("|")) for line in lines]
    body = [row for row in rows if not set("".join(row)) <= set("-: ")]
    told = ("".join(f"<td>{_inline(cell.strip())}</td>" for cell in row) for row in body)
    return f"<table>{''.join(f'<tr>{row}</tr>' for row in told)}</table>"


def _inline(words: str) -> str:
    """Code, bold and links; a link leads to another page of ours, or is only its words."""
    parts = words.split("`")
    return "".join(
        f"<code>{escape(part)}</code>" if number % 2 else _links(escape(part))
        for number, part in enumerate(parts)
    )


def _links(escaped: str) -> str:
    bold = re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", escaped)
    return _OTHER_LINK.sub(r"\1", _LINK.sub(r'<a href="\2">\1</a>', bold))
