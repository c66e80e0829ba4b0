"""What every chart is made of: rows that a browser can hold, and a colour a phase."""

from __future__ import annotations

import altair as alt
import polars as pl
import polars.selectors as cs

from tpunb.export import phase_name
from tpunb.frames import Phases
from tpunb.frames.words import plural

PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")  # Okabe and Ito, 2008
NOISE, OTHERS, GREY = "#8c8c8c", "#7f6a4d", "#7f7f7f"
INK = "currentColor"  # that of the text of the page
HOSTS = 8  # as many in one picture
TIME = "time since the start of the run (s)"
SEEN = {"full": "seen in full", "partial": "seen in part", "tick": "inferred"}
WIDTH = 640  # points on the page
WHOLE = alt.Axis(tickCount=8, tickMinStep=1, format="d")


def clean(text: pl.Expr) -> pl.Expr:
    """Return `text` without the characters that XML forbids or that turn a line around."""
    return text.cast(pl.String).str.replace_all(r"[\p{Cc}\p{Cf}\x{FFFE}\x{FFFF}]", "\ufffd")


def cleaned(text: str) -> str:
    """Return what `clean` makes of one text: titles and descriptions are not of a frame."""
    found: str = pl.select(clean(pl.lit(text))).item()
    return found


def counted(column: str, noun: str) -> pl.Expr:
    """Return a column of counts with their noun, as :func:`tpunb.frames.words.plural` has it."""
    return pl.col(column).map_elements(lambda n: plural(n, noun), return_dtype=pl.String)


def rows_of(frame: pl.DataFrame) -> alt.Chart:
    """Return a chart of rows that JavaScript and XML can hold; ``about`` is what the pointer shows."""
    rows = frame.with_columns(clean(cs.string() | cs.categorical() | cs.enum()), cs.float().fill_nan(None))
    return alt.Chart(rows).encode(description="about:N", tooltip=alt.Tooltip("about:N", title=" "))


def percent_of(share: float) -> str:
    """Return a share as percent, to a tenth."""
    return f"{100 * share:.1f} %"


def titled(phases: Phases, text: str) -> str:
    """Return a title with the name of the run behind it."""
    name = cleaned(phases.steps.name)
    return f"{text} · {name}" if name else text


def colours(phases: Phases) -> dict[int, str]:
    """Return a colour a phase: six that colour-blind eyes tell apart, for the longest; one for all others."""
    real = [phase for phase in phases.frame["phase"] if phase >= 0]
    hues = dict(zip(real, PALETTE, strict=False))
    return {phase: hues.get(phase, OTHERS) for phase in real} | {-1: NOISE}


def legend_of(phases: Phases) -> pl.DataFrame:
    """Return (phase, colour, group, order): what the legend calls each phase, in its order."""
    others, noise = pl.col("colour") == OTHERS, pl.col("colour") == NOISE
    share = (pl.col("share").sum().over("colour") * 100).round(1)
    name = pl.when(others).then(pl.format("{} other phases", pl.len().over("colour"))).otherwise("name")
    frame = phases.frame.with_columns(
        colour=pl.col("phase").replace_strict(colours(phases)),
        name=pl.col("phase").map_elements(phase_name, return_dtype=pl.String),
    )
    return frame.select(
        "phase", "colour", pl.format("{} · {} %", name, share).alias("group"), (others + 2 * noise).alias("order")
    ).sort("order", maintain_order=True)
