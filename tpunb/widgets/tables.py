"""Tables of a run, for a page and for a terminal. Names in them are text, never markup."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

import polars as pl

from tpunb import charts
from tpunb.export import phase_name
from tpunb.frames import Phases
from tpunb.frames.words import cut, plain
from tpunb.widgets.panel import asset

ROWS = 12
"""Rows of a table at most."""


class Table(NamedTuple):
    """A caption, a header, rows of as many cells, and the colours of rows by their first cell."""

    caption: str
    header: list[str]
    rows: list[list[str]]
    colours: Mapping[str, str] = {}


def of_phases(phases: Phases) -> list[Table]:
    """Return the phases, longest first, and the most time-consuming operations of the longest."""
    longest = phases.longest.id
    top = phases.top(5).filter(pl.col("phase") == longest)
    colours = {phase_name(number): colour for number, colour in charts.colours(phases).items()}
    tables = [Table("Phases, longest first", *_phases(phases), colours)]
    for side in ("device", "host"):
        rows = [
            [row["op"], f"{100 * row['share']:.1f} %", f"{row['self_ps'] / 1e9:,.3f}", f"{row['count']:,}"]
            for row in top.filter(pl.col("side") == side).iter_rows(named=True)
        ]
        if rows:
            caption = f"Top operations of {phase_name(longest)}, {side}"
            tables.append(Table(caption, ["Operation", "Self time", "ms", "Calls"], rows))
    return tables


def _phases(phases: Phases) -> tuple[list[str], list[list[str]]]:
    rows = [
        [
            phase_name(row["phase"]),
            row["marks"] or "–",
            f"{row['steps']:,}",
            f"{row['full']:,}" if row["full"] else "clock alone",
            f"{100 * row['share']:.1f} %",
            f"{row['step_ps'] / 1e9:,.3f}",
            f"{100 * row['spread']:.0f} %",
            "–" if row["idle"] is None else f"{100 * row['idle']:.0f} %",
        ]
        for row in phases.frame.head(ROWS).iter_rows(named=True)
    ]
    if phases.frame.height > ROWS:
        rest = phases.frame.slice(ROWS)
        share = f"{100 * rest['share'].sum():.1f} %"
        full = f"{rest['full'].sum():,}"
        rows.append([f"{rest.height} more", "–", f"{rest['steps'].sum():,}", full, share, "–", "–", "–"])
    return ["Phase", "Marks", "Steps", "In full", "Share", "Step (ms)", "Spread", "Idle"], rows


_LEFT = {"Phase", "Marks", "Operation", "Window", "Error"}  # of texts; columns of figures end on the right
_LEFT |= {"Place", "Parameter", "Values", "Verdict", "Why"}


def html(table: Table) -> str:
    """Return a table as HTML, with the colour of a row beside its name."""
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


def block(headline: str, lines: Sequence[str], notes: Sequence[str], shown: Sequence[Table], below: str = "") -> str:
    """Return tables under a headline, quiet lines and notes, as HTML without scripts; `below` is HTML already."""
    quiet = "<br>".join(map(safe, lines))
    told = "".join(f'<p class="tpunb-note" role="note">{safe(note)}</p>' for note in notes)
    return (
        f'<div class="tpunb-summary"><style>{asset("summary.css")}</style>'
        f'<p class="tpunb-headline">{safe(headline)}</p><p class="tpunb-quiet">{quiet}</p>'
        f'{told}<div class="tpunb-tables">{"".join(map(html, shown))}</div>{below}</div>'
    )


def text(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the rows of a table as lines; long names are cut in the middle."""
    cells = [[cut(plain(cell)) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    left = [name in _LEFT for name in rows[0]]
    return [
        "  " + "  ".join(c.ljust(w) if to else c.rjust(w) for c, w, to in zip(row, widths, left, strict=True)).rstrip()
        for row in cells
    ]


def safe(text: str) -> str:
    """Return `text` as HTML that says just that."""
    return escape(plain(text))


def many(n: int, noun: str) -> str:
    """Return a count with its noun.

    >>> many(1, "step"), many(1200, "step")
    ('1 step', '1,200 steps')
    """
    return f"{n:,} {noun}{'s'[: n != 1]}"
