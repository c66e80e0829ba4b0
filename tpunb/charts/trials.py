"""The trials of a tuning: a dot each with its interval, as they ran."""

from __future__ import annotations

import math

import altair as alt
import polars as pl

from tpunb.charts.rows import GREY, INK, PALETTE, WIDTH, rows_of
from tpunb.errors import TpunbError
from tpunb.frames.words import cut, plural, short
from tpunb.pictures import LayerPicture
from tpunb.tuning.nouns import Trial, Tuning, in_words

_LOOKS = {  # a colour that colour-blind eyes tell apart, and a shape
    "default": (PALETTE[0], "square"),
    "faster": (PALETTE[2], "triangle-up"),
    "not faster": (GREY, "circle"),
    "undecided": (PALETTE[1], "diamond"),
    "other output": (PALETTE[3], "triangle-down"),
    "refused": (PALETTE[5], "cross"),
}
_FEWEST = 8  # trials for which there is room from the beginning: the first ones do not jump
_BEYOND = 2  # times the farthest dot: an interval of two pairs may reach a thousand times as far
_FOOT = 12  # points above the axis, for trials without a time
_PLAIN = alt.Axis(tickMinStep=1, format="d", grid=False)


def trials(tuning: Tuning) -> LayerPicture:
    """Return how many times as fast a step of each trial was as that of the best before it, with its 95 % interval.

    Those that were refused, or gave another output, stand at the foot. A ring is around the values that won.

    Raises
    ------
    TpunbError
        When no trial ran.
    """
    if not tuning.trials:
        raise TpunbError("no trial ran", hint="see tuning.said")
    rows, domain = _rows(tuning)
    most = max(tuning.trials[-1].number + 1, _FEWEST)
    x = alt.X("trial:Q", title="trial", axis=_PLAIN, scale=alt.Scale(domain=[-0.5, most - 0.5], nice=False))
    scale = alt.Scale(type="log", domain=domain, nice=False)
    y = alt.Y("ratio:Q", title="times as fast as the best before", scale=scale, axis=_ticks(domain))
    timed, ended = rows.filter(pl.col("ratio").is_not_null()), rows.filter(pl.col("ratio").is_null())
    raced = timed.drop_nulls(["low", "high"])
    present = [name for name in _LOOKS if name in set(rows["verdict"])]
    colours, shapes = zip(*(_LOOKS[name] for name in present), strict=True)
    legend = alt.Legend(orient="bottom", columns=6, title=None)
    colour = alt.Color("verdict:N", scale=alt.Scale(domain=present, range=colours), legend=legend)
    shape = alt.Shape("verdict:N", scale=alt.Scale(domain=present, range=shapes), legend=legend)
    same = rows_of(pl.DataFrame({"ratio": [1.0], "about": ["as fast as the best before"]}))
    return LayerPicture(
        layer=[
            same.mark_rule(strokeDash=[4, 3], color=GREY).encode(y=alt.Y("ratio:Q", scale=scale)),
            rows_of(raced).mark_rule(strokeWidth=2).encode(x=x, y=alt.Y("low:Q", scale=scale), y2="high", color=colour),
            rows_of(timed).mark_point(filled=True, opacity=1, size=90).encode(x=x, y=y, color=colour, shape=shape),
            rows_of(ended)
            .mark_point(filled=True, opacity=1, size=90, yOffset=-_FOOT)
            .encode(x=x, y=alt.value("height"), color=colour, shape=shape),
            rows_of(timed.filter("chosen"))
            .mark_point(filled=False, opacity=1, size=320, strokeWidth=1.5, color=INK, shape="circle")
            .encode(x=x, y=y),
        ],
        title=alt.TitleParams("Trials", subtitle=[_found(tuning)]),
        description=f"Trials by how many times as fast each was as the best before it: {_found(tuning)}.",
        width=WIDTH,
        height=220,
    )


def _rows(tuning: Tuning) -> tuple[pl.DataFrame, list[float]]:
    """Return a row a trial, intervals cut to what is drawn, and the ends of the axis."""
    chosen = _chosen(tuning)
    made = [
        {
            "trial": trial.number,
            "verdict": trial.verdict,
            "ratio": 1.0 if trial.verdict == "default" else trial.ratio,
            "low": trial.low,
            "high": trial.high,
            "chosen": trial is chosen,
            "about": _about(trial),
        }
        for trial in tuning.trials
    ]
    numbers = {"trial": pl.Int64, "ratio": pl.Float64, "low": pl.Float64, "high": pl.Float64}
    rows = pl.DataFrame(made, schema_overrides=numbers, infer_schema_length=None)
    dots = [1.0, *rows["ratio"].drop_nulls()]
    least, most = min(dots) / _BEYOND, max(dots) * _BEYOND
    low = max(least, min([*dots, *rows["low"].drop_nulls()])) / 1.1
    high = min(most, max([*dots, *rows["high"].drop_nulls()])) * 1.1
    return rows.with_columns(pl.col("low", "high").clip(low, high)), [low, high]


def _ticks(domain: list[float]) -> alt.Axis:
    """Return an axis of round numbers: Vega would draw a line for every digit."""
    low, high = domain
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    values = [digit * 10.0**decade for decade in decades for digit in (1, 2, 5) if low <= digit * 10.0**decade <= high]
    return alt.Axis(format="~g", values=values) if len(values) > 2 else alt.Axis(format="~g", tickCount=5)


def _chosen(tuning: Tuning) -> Trial | None:
    """Return the trial of the values that won; that which showed it last."""
    won = [trial for trial in tuning.trials if trial.verdict == "faster" and dict(trial.values) == tuning.best]
    return won[-1] if won and tuning.best else None


def _about(trial: Trial) -> str:
    told = f"trial {trial.number}, {trial.verdict}: {cut(in_words(trial.values), 120)}"
    if trial.ratio is None:
        return told if trial.error is None else f"{told}; {cut(trial.error, 120)}"
    return f"{told}; {gain(trial)} as fast as trial {trial.against}, {plural(trial.pairs, 'pair')}"


def gain(trial: Trial) -> str:
    """Return how many times as fast a trial was as the best before it, with its interval where that is known.

    >>> gain(Trial(1, {}, "faster", ratio=4.0, low=3.5, high=1e6)), gain(Trial(2, {}, "refused"))
    ('4.00x [3.5, >100]', '–')
    """
    if trial.ratio is None:
        return "–"
    if trial.low is None or trial.high is None:
        return f"{trial.ratio:.2f}x"
    low = short(trial.low) if trial.low >= 0.01 else "<0.01"
    high = short(trial.high) if trial.high <= 100 else ">100"
    return f"{trial.ratio:.2f}x [{low}, {high}]"


def _found(tuning: Tuning) -> str:
    """Return what there is to see, in a line."""
    ran = plural(len(tuning.trials), "trial")
    if not tuning.best:
        return f"{ran}, the values stay as they are"
    ratio, low, high = tuning.speedup
    return f"{ran}; chosen (ring): {ratio:.2f}x [{low:.2f}, {high:.2f}] as fast as written"
