"""Chart of the trials of a tuning: one dot with its interval each, in order."""

from __future__ import annotations

import math

import altair as alt
import polars as pl

from tpunb.charts.render import LayerPicture
from tpunb.charts.rows import GREY, INK, PALETTE, WIDTH, rows_of
from tpunb.errors import TpunbError
from tpunb.text import cut, plural, short
from tpunb.tuning.results import Trial, Tuning, format_values

_MARKS = {  # colours for colour-blind eyes, and shapes
    "default": (PALETTE[0], "square"),
    "faster": (PALETTE[2], "triangle-up"),
    "not faster": (GREY, "circle"),
    "undecided": (PALETTE[1], "diamond"),
    "different output": (PALETTE[3], "triangle-down"),
    "failed": (PALETTE[5], "cross"),
}
_FEWEST = 8  # trials with room on the axis from the start, so that the first ones do not move
_BEYOND = 2  # times the farthest dot: an interval of two pairs may be a thousand times wider
_FOOT = 12  # points above the axis, for trials without a time
_PLAIN = alt.Axis(tickMinStep=1, format="d", grid=False)


def trials(tuning: Tuning) -> LayerPicture:
    """Return the chart of the speed-up of each trial over the best before it, with its 95 % interval.

    Trials that failed or changed the output are at the bottom. A ring marks the values that won.

    Raises
    ------
    TpunbError
        If there are no trials.
    """
    if not tuning.trials:
        raise TpunbError("this tuning has no trials", hint="see tuning.messages")
    rows, domain = _rows(tuning)
    most = max(tuning.trials[-1].number + 1, _FEWEST)
    x = alt.X("trial:Q", title="trial", axis=_PLAIN, scale=alt.Scale(domain=[-0.5, most - 0.5], nice=False))
    scale = alt.Scale(type="log", domain=domain, nice=False)
    y = alt.Y("ratio:Q", title="speed-up over the best before", scale=scale, axis=_ticks(domain))
    timed, ended = rows.filter(pl.col("ratio").is_not_null()), rows.filter(pl.col("ratio").is_null())
    raced = timed.drop_nulls(["low", "high"])
    present = [name for name in _MARKS if name in set(rows["verdict"])]
    colours, shapes = zip(*(_MARKS[name] for name in present), strict=True)
    legend = alt.Legend(orient="bottom", columns=6, title=None)
    colour = alt.Color("verdict:N", scale=alt.Scale(domain=present, range=colours), legend=legend)
    shape = alt.Shape("verdict:N", scale=alt.Scale(domain=present, range=shapes), legend=legend)
    same = rows_of(pl.DataFrame({"ratio": [1.0], "about": ["no speed-up"]}))
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
        title=alt.TitleParams("Trials", subtitle=[_summary(tuning)]),
        description=f"Trials by their speed-up over the best before: {_summary(tuning)}.",
        width=WIDTH,
        height=220,
    )


def _rows(tuning: Tuning) -> tuple[pl.DataFrame, list[float]]:
    """Return one row per trial, intervals clipped to the axis, and the ends of the axis."""
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
    """Return an axis with round numbers: Vega would draw a line for every digit."""
    low, high = domain
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    values = [digit * 10.0**decade for decade in decades for digit in (1, 2, 5) if low <= digit * 10.0**decade <= high]
    return alt.Axis(format="~g", values=values) if len(values) > 2 else alt.Axis(format="~g", tickCount=5)


def _chosen(tuning: Tuning) -> Trial | None:
    """Return the last trial of the values that won."""
    won = [trial for trial in tuning.trials if trial.verdict == "faster" and dict(trial.values) == tuning.best]
    return won[-1] if won and tuning.best else None


def _about(trial: Trial) -> str:
    text = f"trial {trial.number}, {trial.verdict}: {cut(format_values(trial.values), 120)}"
    if trial.ratio is None:
        return text if trial.error is None else f"{text}; {cut(trial.error, 120)}"
    return f"{text}; {gain(trial)} vs trial {trial.against}, {plural(trial.pairs, 'pair')}"


def gain(trial: Trial) -> str:
    """Return the speed-up of a trial over the best before it, with its interval.

    >>> gain(Trial(1, {}, "faster", ratio=4.0, low=3.5, high=1e6)), gain(Trial(2, {}, "failed"))
    ('4.00x [3.5, >100]', '–')
    """
    if trial.ratio is None:
        return "–"
    if trial.low is None or trial.high is None:
        return f"{trial.ratio:.2f}x"
    low = short(trial.low) if trial.low >= 0.01 else "<0.01"
    high = short(trial.high) if trial.high <= 100 else ">100"
    return f"{trial.ratio:.2f}x [{low}, {high}]"


def _summary(tuning: Tuning) -> str:
    ran = plural(len(tuning.trials), "trial")
    if not tuning.best:
        return f"{ran}, the values stay as they are"
    ratio, low, high = tuning.speedup
    return f"{ran}; chosen (ring): {ratio:.2f}x [{low:.2f}, {high:.2f}] vs the program's values"
