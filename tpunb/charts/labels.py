"""What charts of many runs write: names that fit and stay apart, and texts in lines where none meets another."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tpunb.charts.rows import cleaned
from tpunb.frames.words import cut, plain

LINE = 14  # points on the page from one line of text to the next
LETTER = 6  # points that a letter takes, or fewer
WIDEST = 300  # points for a name: Vega would cut off its end
_NAME = 32  # letters of a name
_TOLD = 12  # texts that a description has room for


def names_of(names: Iterable[str]) -> list[str]:
    """Return names as a chart writes them: cleaned, without the middle of long ones, numbered where two look alike.

    >>> names_of(["bert", "bert ", "b" * 50 + "ert"])
    ['bert', 'bert (2)', 'bbbbbbbbbbbbbbb…bbbbbbbbbbbbbert']
    """
    labels: list[str] = []
    for name in names:
        label = cut(cleaned(plain(name)).strip(), _NAME) or "unnamed"
        others = (f"{label} ({n})" for n in range(2, len(labels) + 3))
        labels.append(label if label not in labels else next(other for other in others if other not in labels))
    return labels


def lanes(spans: Sequence[tuple[float, float]]) -> list[int]:
    """Return the line for each span, from 0: the first where it meets none of those that begin before it.

    >>> lanes([(0, 10), (5, 20), (10, 15)])
    [0, 1, 0]
    """
    line = [0] * len(spans)
    ends: list[float] = []  # of each line, on the right
    for i in sorted(range(len(spans)), key=lambda i: spans[i]):
        left, right = spans[i]
        line[i] = next((n for n, end in enumerate(ends) if end <= left), len(ends))
        ends[line[i] : line[i] + 1] = [right]
    return line


def listed(texts: Sequence[str]) -> str:
    """Return texts in one, for a description: as many as somebody listens to.

    >>> listed(["bert 98.1 %", "dcgan 99.0 %"])
    'bert 98.1 %; dcgan 99.0 %'
    """
    more = len(texts) - _TOLD
    return "; ".join(texts[:_TOLD]) + (f"; and {more} more" if more > 0 else "")


def faded(colour: str, strength: float) -> str:
    """Return a colour of which as much is there, 0 to 1: a legend shows it, as it does no opacity by name.

    >>> faded("#0072B2", 0.25)
    'rgba(0, 114, 178, 0.25)'
    """
    red, green, blue = bytes.fromhex(colour.removeprefix("#"))
    return f"rgba({red}, {green}, {blue}, {strength})"
