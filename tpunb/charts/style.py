"""Shared parts of the charts: rows that a browser can hold, and a colour for each phase."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import altair as alt
import polars as pl
import polars.selectors as cs

from tpunb.charts.render import LayerPicture
from tpunb.frames import Phases
from tpunb.text import cut, plain, plural

PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")  # Okabe and Ito, 2008
PHASE_COLOURS = (  # of the longest phases: none is an account's, and the first six differ in grey, too
    *("#12cfc6", "#093fa2", "#908712", "#90ea99", "#51a2f3", "#993f51"),
    *("#6387b4", "#515100", "#63c699", "#2d517e", "#87995a", "#90cf5a"),
)
NOISE, OTHERS, GREY = "#8c8c8c", "#7f6a4d", "#7f7f7f"
INK = "currentColor"  # text colour of the page
HOSTS = 8  # at most in one chart
TIME = "time since the start of the run (s)"
WIDTH = 640  # points on the page
WHOLE = alt.Axis(tickCount=8, tickMinStep=1, format="d")
ABOUT: dict[str, Any] = {"tooltip": alt.Tooltip("about:N", title=" "), "description": "about:N"}


def clean(text: pl.Expr) -> pl.Expr:
    """Return `text` without characters that XML forbids or that change the direction of text."""
    return text.cast(pl.String).str.replace_all(r"[\p{Cc}\p{Cf}\x{FFFE}\x{FFFF}]", "\ufffd")


@lru_cache(4096)  # names of phases are drawn with each move of a slider
def cleaned(text: str) -> str:
    """Return one text as `clean` returns a column."""
    return str(pl.select(clean(pl.lit(text))).item())


def counted(column: str, noun: str) -> pl.Expr:
    """Return a column of counts with their noun."""
    return pl.col(column).map_elements(lambda n: plural(n, noun), return_dtype=pl.String)


def rows_of(frame: pl.DataFrame) -> alt.Chart:
    """Return a chart of rows that JavaScript and XML can hold, with ``about`` as tooltip."""
    rows = frame.with_columns(clean(cs.string() | cs.categorical() | cs.enum()), cs.float().fill_nan(None))
    return alt.Chart(rows).encode(**ABOUT)


def hue(column: str, colours: Mapping[str, str], **legend: Any) -> alt.Color:
    """Return the colour of each value of a column, with a legend below the plot."""
    scale = alt.Scale(domain=[*colours], range=[*colours.values()])
    return alt.Color(f"{column}:N", scale=scale, legend=alt.Legend(orient="bottom", **legend))


def with_signals(chart: LayerPicture, **values: Any) -> LayerPicture:
    """Return a chart with signals, each with its first value."""
    picture: LayerPicture = chart.add_params(*(alt.param(name, value=value) for name, value in values.items()))
    return picture


def titled(phases: Phases, text: str) -> str:
    """Return a title followed by the name of the run."""
    name = cleaned(phases.steps.name)
    return f"{text} · {name}" if name else text


def colours(phases: Phases) -> dict[int, str]:
    """Return a colour for each of the 12 longest phases, which differ for colour-blind readers; one for all others."""
    real = [phase for phase in phases.names if phase >= 0]
    hues = dict(zip(real, PHASE_COLOURS, strict=False))
    return {phase: hues.get(phase, OTHERS) for phase in real} | {-1: NOISE}


def covered() -> pl.Expr:
    """Return the share of each phase with those of the longer ones; outliers are not covered and end the whole."""
    share, phase = pl.col("share"), pl.col("phase") >= 0
    return pl.when(phase).then((share * phase).cum_sum()).otherwise(share.sum())


def legend_of(phases: Phases) -> pl.DataFrame:
    """Return (phase, colour, group, order) of the legend's entries, in order."""
    others, noise = pl.col("colour") == OTHERS, pl.col("colour") == NOISE
    share = (pl.col("share").sum().over("colour") * 100).round(1)
    name = pl.when(others).then(pl.format("{} other phases", pl.len().over("colour"))).otherwise("name")
    frame = phases.frame.with_columns(colour=pl.col("phase").replace_strict(colours(phases)))
    return frame.select(
        "phase", "colour", pl.format("{} · {} %", name, share).alias("group"), (others + 2 * noise).alias("order")
    ).sort("order", maintain_order=True)


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
