"""Tables as values that panels, pages and terminals draw alike. Names in them are text, never markup."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import zip_longest
from typing import TypedDict

from tpunb.text import cut, plain
from tpunb.widgets.panel import asset

METHOD = "How this was measured"
"""Title of the lines about windows and phases."""
CLUSTERING = "How phases were found"
"""Title of the method, its curve and its slider."""
ROWS = 12
"""Most rows of a table."""
STYLE = asset("page.css")
"""Style of panels, pages and pictures."""

_LEFT = {  # columns of text; figures are aligned on the right
    *("Phase", "Kind", "Operation", "Window", "Error", "Stage", "Parameter", "Current", "Chosen", "Values"),
    *("Verdict", "Reason", "Output", "Run", "Program", "Device", "Host", "Detail", "Stalls at", "Fact", "Value"),
    *("Gained", "Lost"),
}
_HINTS = {
    "CV (%)": "coefficient of variation: standard deviation of the step time as a share of its mean",
    "Traced": "steps of which a window has all operations",
    "Id": "number of the phase in Python",
    "Idle (%)": "of step time",
    "MXU (%)": "of the peak of the matrix unit",
    "% of self time": "time of the operation itself, without those that it calls",
}
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; {policy}">
<title>{title}</title>
<style>
:root{{color-scheme:light dark}}
body{{font-family:system-ui,sans-serif;margin:24px auto;max-width:1200px;padding:0 16px}}
{style}</style></head>
<body>{body}</body></html>
"""


class Table(TypedDict):
    """A table of text as the page gets it, too; a list if it has one column.

    A first cell may have a second line, which is quiet; the lines below the text of a list are code.
    """

    caption: str
    columns: list[str]
    rows: list[list[str]]
    left: list[bool]
    """Whether a column is aligned on the left."""
    colours: list[str]
    """Colour beside the first cell of each row, of the first rows alone."""
    bars: list[list[float]]
    """Begin and length of a bar in the second cell of each row, 0 to 1."""
    phases: list[int]
    """Phase that each row selects on the panel, of the first rows alone."""
    hints: list[str]
    """What a column is, where its name does not say it."""


def table(
    caption: str,
    columns: Sequence[str],
    rows: Iterable[Iterable[str]],
    *,
    colours: Sequence[str] = (),
    bars: Sequence[Sequence[float]] = (),
    phases: Sequence[int] = (),
) -> Table:
    """Return a table; its names are not trusted."""
    below = 1 if len(columns) > 1 else -1
    return {
        "caption": plain(caption),
        "columns": [plain(name) for name in columns],
        "rows": [["\n".join(map(plain, name.split("\n", below))), *map(plain, cells)] for name, *cells in rows],
        "left": [name in _LEFT for name in columns],
        "colours": [*colours],
        "bars": [[*bar] for bar in bars],
        "phases": [*phases],
        "hints": [_HINTS.get(name, "") for name in columns],
    }


def figure(value: float | None, form: str = ",", factor: int = 1) -> str:
    """Return a number as text, "–" if unknown."""
    return "–" if value is None else format(factor * value, form)


def measured(columns: Mapping[str, Sequence[str]]) -> dict[str, Sequence[str]]:
    """Return the columns of which any row has a value."""
    return {name: cells for name, cells in columns.items() if any(cell != "–" for cell in cells)}


def html(table: Table) -> str:
    """Return a table as HTML, the colour of a row beside its name."""
    if len(table["columns"]) == 1:
        listed = "".join(f"<li>{_with_code(text)}</li>" for (text,) in table["rows"])
        return f'<div class="tpunb-list"><b>{safe(table["caption"])}</b><ol>{listed}</ol></div>'
    kinds = [' class="tpunb-text"' if left else "" for left in table["left"]]
    abouts = [f' title="{safe(hint)}"' if hint else "" for hint in table["hints"]]
    head = "".join(
        f'<th scope="col"{kind}{about}>{safe(name)}</th>'
        for name, kind, about in zip(table["columns"], kinds, abouts, strict=True)
    )
    body = ""
    for row, colour, bar in zip_longest(table["rows"], table["colours"], table["bars"]):
        chip = f'<span class="tpunb-chip" aria-hidden="true" style="background:{colour}"></span>' if colour else ""
        ends = "" if bar is None else f"margin-left:{100 * bar[0]:.1f}%;width:{100 * bar[1]:.1f}%"
        fill = f";background:{colour}" if colour else ""
        width = "" if bar is None else f'<span class="tpunb-bar" aria-hidden="true"><i style="{ends}{fill}"></i></span>'
        cells = [f"<td{kind}>{safe(cell)}</td>" for kind, cell in zip(kinds, row, strict=True)]
        second = cells[1] if bar is None else f"<td{kinds[1]}>{width}<b>{safe(row[1])}</b></td>"
        name, _, below = row[0].partition("\n")
        quiet = f'<div class="tpunb-quiet">{safe(below)}</div>' if below else ""
        first = f'<th scope="row"{kinds[0]} style="font-weight:normal">{chip}{safe(name)}{quiet}</th>'
        body += f"<tr>{first}{second}{''.join(cells[2:])}</tr>"
    caption = f"<caption>{safe(table['caption'])}</caption>"
    return f'<table class="tpunb-table">{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def _with_code(text: str) -> str:
    """Return text as HTML, with the code below it as a block that one click selects."""
    first, _, code = text.partition("\n")
    lines = "\n".join(map(safe, code.split("\n")))
    return safe(first) + (f'<pre class="tpunb-paste"><code>{lines}</code></pre>' if code else "")


def text(table: Table) -> list[str]:
    """Return the caption and the rows of a table as lines; long names lose their middle."""
    if len(table["columns"]) == 1:
        return [table["caption"], *(f"  {line}" for (row,) in table["rows"] for line in row.split("\n"))]
    cells = [[cut(cell.replace("\n", " · ")) for cell in row] for row in (table["columns"], *table["rows"])]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = (
        "  ".join(c.ljust(w) if left else c.rjust(w) for c, w, left in zip(row, widths, table["left"], strict=True))
        for row in cells
    )
    return [table["caption"], *(f"  {line}".rstrip() for line in lines)]


def block(
    lines: Sequence[str],
    notes: Sequence[str],
    evidence: str,
    tables: Sequence[Table],
    method: Sequence[str],
    *,
    answer: str = "",
    title: str = METHOD,
    curve: str = "",
) -> str:
    """Return HTML without scripts: the answer (HTML), lines, notes, `evidence` (HTML), tables, then the method.

    The first line is the headline where there is no answer. The method is folded unless it has a `curve` (HTML).
    """
    first, *quiet = ("", *map(safe, lines)) if answer else map(safe, lines)
    answer = answer or f'<p class="tpunb-answer">{first}</p>'
    warnings = "".join(f'<p class="tpunb-note" role="note">{safe(note)}</p>' for note in notes)
    beside = f'<p class="tpunb-quiet">{"<br>".join(quiet)}</p>' if quiet else ""
    below = f"<summary>{title}</summary><p>{'<br>'.join(map(safe, method))}</p>{curve}"
    how = f"<details{' open' if curve else ''}>{below}</details>" if method else ""
    return (
        f'<div class="tpunb-page tpunb-summary"><style>{STYLE}</style>{answer}{beside}{warnings}{evidence}'
        f'<div class="tpunb-tables">{"".join(map(html, tables))}</div>{how}</div>'
    )


def document(title: str, body: str, style: str = "", *, scripts: bool = False) -> bytes:
    """Return a page that needs no network, of HTML and CSS; it runs the scripts in `body` only with `scripts`."""
    policy = "style-src 'unsafe-inline'; img-src data:"
    if scripts:
        policy = f"script-src 'unsafe-inline' 'unsafe-eval'; {policy} blob:"
    return _PAGE.format(policy=policy, title=safe(title), style=style, body=body).encode()


def safe(text: str) -> str:
    """Return `text` escaped for HTML."""
    return escape(plain(text))
