"""Chart of the trials of a tuning: one dot with its interval each, in order."""

from __future__ import annotations

import math

import altair as alt
import polars as pl

from tpunb.charts.render import LayerPicture
from tpunb.charts.style import GREY, INK, PALETTE, WIDTH, rows_of
from tpunb.errors import TpunbError
from tpunb.text import cut, plural
from tpunb.tuning.results import Speedup, Trial, Tuning, format_values

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
    """Return the chart of the speed-up of each trial against the program's values, with its 95 % interval.

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
    y = alt.Y("ratio:Q", title="speed-up against the program", scale=scale, axis=_ticks(domain))
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
        description=f"Trials by their speed-up against the program's values: {_summary(tuning)}.",
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
            "ratio": None if speedup is None else speedup.ratio,
            "low": None if speedup is None or trial.low is None else speedup.low,
            "high": None if speedup is None or trial.high is None else speedup.high,
            "chosen": trial is chosen,
            "about": _about(trial, speedup),
        }
        for trial, speedup in zip(tuning.trials, tuning.speedups, strict=True)
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


def _about(trial: Trial, speedup: Speedup | None) -> str:
    text = f"trial {trial.number}, {trial.verdict}: {cut(format_values(trial.values), 120)}"
    if trial.error is not None:
        text += f"; {cut(trial.error, 120)}"
    if trial.against is None or speedup is None:
        return text
    return f"{text}; {gain(speedup)}, by {plural(trial.pairs, 'pair')} of runs with trial {trial.against}"


def gain(speedup: Speedup | None) -> str:
    """Return a speed-up with its interval, if it has one.

    >>> gain(Speedup(4.0, 3.5, 4.5)), gain(Speedup(1.1, 0.0, 1e6)), gain(Speedup(1.1, 0.0, math.inf)), gain(None)
    ('4.00x [3.50, 4.50]', '1.10x [<0.01, >100]', '1.10x', '–')
    """
    if speedup is None:
        return "–"
    ratio, low, high = speedup
    if low == ratio == high or (low == 0 and math.isinf(high)):  # the program itself, or one pair
        return f"{ratio:.2f}x"
    if low > 1:
        return speedup.brief
    return f"{ratio:.2f}x [{f'{low:.2f}' if low >= 0.01 else '<0.01'}, {f'{high:.2f}' if high <= 100 else '>100'}]"


def _summary(tuning: Tuning) -> str:
    ran = plural(len(tuning.trials), "trial")
    if not tuning.best:
        return f"{ran}, the values stay as they are"
    return f"{ran}; chosen (ring): {tuning.speedup.brief} vs the program's values"
