"""Parts of charts of many runs: names that fit and differ, lines in which no two texts overlap, framed bars."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import altair as alt

from tpunb.charts.rows import cleaned
from tpunb.text import cut, plain

LINE = 14  # points on the page from one line of text to the next
LETTER = 6  # points per letter, at most
WIDEST = 300  # points for a name, beyond which Vega truncates it
_LISTED = 12  # most texts in a description


def names_of(names: Iterable[str], most: int = 32) -> list[str]:
    """Return names for a chart: cleaned, those over `most` letters without their middle, equal ones numbered.

    >>> names_of(["bert", "bert ", "b" * 50 + "ert"])
    ['bert', 'bert (2)', 'bbbbbbbbbbbbbbb…bbbbbbbbbbbbbert']
    """
    labels: list[str] = []
    for name in names:
        label = cut(cleaned(plain(name)).strip(), most) or "unnamed"
        others = (f"{label} ({n})" for n in range(2, len(labels) + 3))
        labels.append(label if label not in labels else next(other for other in others if other not in labels))
    return labels


def lanes(spans: Sequence[tuple[float, float]]) -> list[int]:
    """Return a line for each span, from 0: the first on which it overlaps no earlier one.

    >>> lanes([(0, 10), (5, 20), (10, 15)])
    [0, 1, 0]
    """
    line = [0] * len(spans)
    ends: list[float] = []  # right end of each line
    for i in sorted(range(len(spans)), key=lambda i: spans[i]):
        left, right = spans[i]
        line[i] = next((n for n, end in enumerate(ends) if end <= left), len(ends))
        ends[line[i] : line[i] + 1] = [right]
    return line


def listed(texts: Sequence[str]) -> str:
    """Return the first texts in one, for a description.

    >>> listed(["bert 98.1 %", "dcgan 99.0 %"])
    'bert 98.1 %; dcgan 99.0 %'
    """
    more = len(texts) - _LISTED
    return "; ".join(texts[:_LISTED]) + (f"; and {more} more" if more > 0 else "")


def faded(colour: str, strength: float) -> str:
    """Return a colour with an opacity from 0 to 1, which legends show.

    >>> faded("#0072B2", 0.25)
    'rgba(0, 114, 178, 0.25)'
    """
    red, green, blue = bytes.fromhex(colour.removeprefix("#"))
    return f"rgba({red}, {green}, {blue}, {strength})"


def framed(field: str, looks: Mapping[str, tuple[str, str, list[int]]], **legend: Any) -> dict[str, Any]:
    """Return the encodings of bars by the values of a field: the fill, frame and dash of each, in one legend."""
    kinds = {"fill": alt.Fill, "stroke": alt.Stroke, "strokeDash": alt.StrokeDash}
    shown = alt.Legend(orient="bottom", title=None, symbolType="square", symbolStrokeWidth=1.5, **legend)
    scales = (alt.Scale(domain=[*looks], range=values) for values in zip(*looks.values(), strict=True))
    return {
        name: kind(f"{field}:N", scale=scale, legend=shown)
        for (name, kind), scale in zip(kinds.items(), scales, strict=True)
    }
