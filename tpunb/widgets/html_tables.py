"""Tables for a page and for a terminal. Names in them are text, never markup."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

from tpunb.text import cut, plain
from tpunb.widgets.panel import asset

METHOD = "How this was measured"
"""Title of the lines about windows and phases."""
FOUND = "How phases were found"
"""Title of the method, its curve and its slider."""
ADVICE = "What to do"
"""Title of the advice, most time saved first."""
ROWS = 12
"""Most rows of a table."""


class Table(NamedTuple):
    """A caption, a header, rows of as many cells, and the colours of rows by their first cell.

    A first cell may have a second line, which is quiet.
    """

    caption: str
    header: list[str]
    rows: list[list[str]]
    colours: Mapping[str, str] = {}


_LEFT = {"Phase", "Kind", "Operation", "Window", "Error"}  # columns of text; figures are aligned on the right
_LEFT |= {"Stage", "Parameter", "Values", "Verdict", "Reason", "Run", "Program", "Device"}


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
        name, _, below = row[0].partition("\n")
        quiet = f'<div class="tpunb-quiet">{safe(below)}</div>' if below else ""
        first = f'<th scope="row"{kinds[0]} style="font-weight:normal">{chip}{safe(name)}{quiet}</th>'
        body += f"<tr>{first}{''.join(cells[1:])}</tr>"
    caption = f"<caption>{safe(caption)}</caption>"
    return f'<table class="tpunb-table">{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def items(title: str, texts: Sequence[str]) -> str:
    """Return texts as a list below a title; "" if there are none."""
    listed = "".join(f"<li>{safe(text)}</li>" for text in texts)
    return f'<div class="tpunb-advice"><b>{safe(title)}</b><ul>{listed}</ul></div>' if texts else ""


def block(
    lines: Sequence[str],
    notes: Sequence[str],
    evidence: str,
    shown: Sequence[Table],
    method: Sequence[str],
    *,
    title: str = METHOD,
    curve: str = "",
) -> str:
    """Return HTML without scripts: a headline, quiet lines, notes, `evidence` (HTML), tables, then the method.

    The method is folded unless it has a `curve` (HTML).
    """
    first, *quiet = map(safe, lines)
    warnings = "".join(f'<p class="tpunb-note" role="note">{safe(note)}</p>' for note in notes)
    beside = f'<p class="tpunb-quiet">{"<br>".join(quiet)}</p>' if quiet else ""
    below = f"<summary>{title}</summary><p>{'<br>'.join(map(safe, method))}</p>{curve}"
    how = f"<details{' open' if curve else ''}>{below}</details>" if method else ""
    return (
        f'<div class="tpunb-summary"><style>{asset("summary.css")}</style>'
        f'<p class="tpunb-headline">{first}</p>{beside}{warnings}{evidence}'
        f'<div class="tpunb-tables">{"".join(map(html, shown))}</div>{how}</div>'
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
