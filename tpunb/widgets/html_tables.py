"""Tables for a page and for a terminal. Names in them are text, never markup."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

from tpunb.text import cut, plain
from tpunb.widgets.panel import asset

ROWS = 12
"""Most rows of a table."""


class Table(NamedTuple):
    """A caption, a header, rows of as many cells, and the colours of rows by their first cell."""

    caption: str
    header: list[str]
    rows: list[list[str]]
    colours: Mapping[str, str] = {}


_LEFT = {"Phase", "Kind", "Operation", "Window", "Error"}  # columns of text; figures are aligned on the right
_LEFT |= {"Stage", "Parameter", "Values", "Verdict", "Reason"}


def html(table: Table) -> str:
    """Return a table as HTML, the colour of a row beside its name."""
    caption, header, rows, colours = table
    kinds = [' class="tpunb-text"' if name in _LEFT else "" for name in header]
    head = "".join(f'<th scope="col"{kind}>{safe(name)}</th>' for name, kind in zip(header, kinds, strict=True))
    body = ""
    for row in rows:
        colour = colours.get(row[0])
        chip = f'<span class="tpunb-chip" aria-hidden="true" style="background:{colour}"></span>' if colour else ""
        cells = [f"<td{kind}>{safe(cell)}</td>" for kind, cell in zip(kinds, row, strict=True)]
        first = f'<th scope="row"{kinds[0]} style="font-weight:normal">{chip}{safe(row[0])}</th>'
        body += f"<tr>{first}{''.join(cells[1:])}</tr>"
    caption = f"<caption>{safe(caption)}</caption>"
    return f'<table class="tpunb-table">{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def block(
    headline: str, messages: tuple[Sequence[str], Sequence[str]], shown: Sequence[Table], below: str, picture: str = ""
) -> str:
    """Return a headline, quiet lines, notes and tables as HTML without scripts; `picture` and `below` are HTML."""
    quiet = "<br>".join(map(safe, messages[0]))
    warnings = "".join(f'<p class="tpunb-note" role="note">{safe(note)}</p>' for note in messages[1])
    return (
        f'<div class="tpunb-summary"><style>{asset("summary.css")}</style>'
        f'<p class="tpunb-headline">{safe(headline)}</p>{picture}<p class="tpunb-quiet">{quiet}</p>'
        f'{warnings}<div class="tpunb-tables">{"".join(map(html, shown))}</div>{below}</div>'
    )


def text(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the rows of a table as lines; long names lose their middle."""
    cells = [[cut(plain(cell)) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    left = [name in _LEFT for name in rows[0]]
    return [
        "  " + "  ".join(c.ljust(w) if to else c.rjust(w) for c, w, to in zip(row, widths, left, strict=True)).rstrip()
        for row in cells
    ]


def safe(text: str) -> str:
    """Return `text` escaped for HTML."""
    return escape(plain(text))
