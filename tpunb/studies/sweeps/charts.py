"""Charts of sweeps: two parameters, two sweeps, what a parameter does, latency and throughput."""

from __future__ import annotations

from typing import Any

import altair as alt
import polars as pl

from tpunb.charts.render import LayerPicture, VConcatPicture
from tpunb.charts.style import GREY, PALETTE, WIDTH, cleaned, listed, names_of, rows_of
from tpunb.errors import TpunbError, wrong_type
from tpunb.studies.sweeps.columns import SPEEDUP, SWEEP
from tpunb.studies.sweeps.results import Sensitivity, Speedup, Sweep
from tpunb.text import count, duration, percent, plural, short

_SHADES = alt.Scale(scheme=alt.SchemeParams("viridis", extent=[0.2, 0.95]))  # seen on light and dark pages
_LABELS = 150  # cells with room for a number
_RATIO = 8  # of values of one axis, from which it is logarithmic


def heatmap(sweep: Sweep, *, x: str, y: str, value: str = "flops_util") -> LayerPicture:
    """Return a column of a sweep over two parameters, as the median over the others.

    Cells without a point that ran are grey.

    Parameters
    ----------
    sweep
        Sweep with both parameters.
    x, y
        Names of two parameters.
    value
        Column of numbers of ``SWEEP``.

    Raises
    ------
    ValueError
        If there is no such parameter or column, or `x` and `y` are one.
    TpunbError
        If no point has the value.
    """
    sweep = _sweep("heatmap", sweep)
    for name in (x, y):
        if name not in sweep.parameters or x == y:
            names = ", ".join(sweep.parameters)
            raise ValueError(f"x and y of heatmap must be two of {names}. Got {x!r} and {y!r} instead.")
    if value not in SWEEP or not SWEEP[value].is_numeric():
        raise ValueError(
            f"The value parameter of heatmap must be a column of numbers of a sweep. Got {value!r} instead."
        )
    ran = (pl.col("state") == "ok") & pl.col(value).is_not_null()
    cells = sweep.frame.group_by(x, y, maintain_order=True).agg(
        pl.col("state").first(), value=pl.col(value).filter(ran).median(), rounds=ran.sum()
    )
    if not cells["value"].count():
        raise TpunbError(f"no point of the sweep has {value}", hint="choose another column: value='examples_per_s'")
    most, least = cells["value"].max(), cells["value"].min()
    shown = [_number(value, each) for each in cells["value"]]
    about = [
        f"{x}={row[x]}, {y}={row[y]}: " + (f"{text}, {plural(row['rounds'], 'point')}" if text else row["state"])
        for row, text in zip(cells.iter_rows(named=True), shown, strict=True)
    ]
    shade = (pl.col("value") - least) / max(most - least, 1e-30)  # type: ignore[operator]
    sorted_x, sorted_y = (cells[name].unique().sort().to_list() for name in (x, y))
    cells = cells.select(
        across=pl.col(x).cast(pl.String),
        up=pl.col(y).cast(pl.String),
        value="value",
        light=shade > 0.5,
        text=pl.Series([text or "–" for text in shown]),
        about=pl.Series(about),
    )
    of = sweep.parameters
    others = f", median over {', '.join(each for each in of if each not in (x, y))}" if len(of) > 2 else ""
    across = alt.X("across:O", title=cleaned(x), sort=_texts(sorted_x), axis=alt.Axis(labelAngle=0))
    up = alt.Y("up:O", title=cleaned(y), sort=_texts(sorted_y)[::-1])
    ran_cells, empty = cells.drop_nulls("value"), cells.filter(pl.col("value").is_null())
    layers = [
        rows_of(empty).mark_rect(color=GREY, opacity=0.25).encode(x=across, y=up),
        rows_of(ran_cells).mark_rect().encode(x=across, y=up, color=alt.Color("value:Q", scale=_SHADES, legend=None)),
    ]
    if len(cells) <= _LABELS:
        layers.append(rows_of(empty).mark_text(color=GREY).encode(x=across, y=up, text="text:N"))
        for light, ink in (("datum.light", "black"), ("!datum.light", "white")):
            number = rows_of(ran_cells).transform_filter(light).mark_text(color=ink)
            layers.append(number.encode(x=across, y=up, text="text:N"))
    name = _titles(value)
    title = f"{name[0].upper()}{name[1:]} by {cleaned(x)} and {cleaned(y)}"
    return LayerPicture(
        layer=layers,
        title=alt.TitleParams(title, subtitle=[f"{_device(sweep)}{others}"]),
        description=f"{title}: {cleaned(listed(cells['about'].to_list()))}.",
        width=WIDTH,
        height=34 * len(sorted_y),
    )


def speedups(a: Sweep | Speedup, b: Sweep | None = None, *, colour: str | None = None) -> LayerPicture:
    """Return the throughput of one sweep by that of another, a point each, by the FLOPs of a step.

    Parameters
    ----------
    a, b
        Two sweeps of the same parameters, or the `Speedup` of two alone.
    colour
        Name of a parameter whose values are colours.

    Raises
    ------
    ValueError
        If there is no such parameter.
    IncompatibleRuns
        If the sweeps cannot be compared; see `Sweep.speedup`.
    """
    answer = a if isinstance(a, Speedup) else _sweep("speedups", a).speedup(_sweep("speedups", b))
    parameters = [name for name in answer.frame.columns if name not in SPEEDUP]
    if colour is not None and colour not in parameters:
        names = ", ".join(parameters)
        raise ValueError(f"The colour parameter of speedups must be one of {names}. Got {colour!r} instead.")
    by = "flops" if answer.frame["flops"].count() else "other_examples_per_s"
    title = {"flops": "FLOPs of a step", "other_examples_per_s": f"examples per second of {cleaned(answer.other[0])}"}[
        by
    ]
    about = [
        ", ".join(f"{name}={row[name]}" for name in parameters)
        + f": {row['ratio']:.2f}x"
        + (f" [{row['low']:.2f}, {row['high']:.2f}], {row['verdict']}" if row["verdict"] else "")
        for row in answer.frame.iter_rows(named=True)
    ]
    rows = answer.frame.select(
        *("ratio", "low", "high"), by=by, hue=pl.col(colour) if colour else pl.lit("all"), about=pl.Series(about)
    )
    base = rows_of(rows.drop_nulls("by")).encode(
        x=alt.X("by:Q", title=title, scale=alt.Scale(type="log"), axis=_axis())
    )
    ends = [1.0, *(value for name in ("ratio", "low", "high") for value in rows[name].drop_nulls())]
    y = alt.Scale(type="log", nice=False, domain=[min(ends) / 1.2, max(ends) * 1.2])
    same = rows_of(pl.DataFrame({"ratio": [1.0], "about": ["equal"]}))
    layers = [
        same.mark_rule(strokeDash=[4, 3], color=GREY).encode(y=alt.Y("ratio:Q", scale=y)),
        base.transform_filter("isValid(datum.low)").mark_rule(color=GREY).encode(y=alt.Y("low:Q", scale=y), y2="high"),
        base.mark_circle(opacity=0.8, size=45).encode(
            y=alt.Y("ratio:Q", title="ratio of examples per second", scale=y, axis=alt.Axis(format="~g", tickCount=6)),
            color=_hue(rows["hue"], colour),
        ),
    ]
    first, spread = answer.sentences[:2]
    this, other = (" with ".join(names) for names in (answer.this, answer.other))
    return LayerPicture(
        layer=layers,
        title=alt.TitleParams("Speed-up", subtitle=[cleaned(f"{this} against {other}"), spread]),
        description=f"{cleaned(first)}; {spread}.",
        width=WIDTH,
        height=320,
    )


def sensitivity(answer: Sensitivity | Sweep) -> LayerPicture:
    """Return the weights of a regression as bars, largest first; of a `Sweep`, those of ``flops_util``."""
    answer = answer.sensitivity() if isinstance(answer, Sweep) else answer
    if not isinstance(answer, Sensitivity):
        raise wrong_type("sensitivity", "answer", "be a Sensitivity or a Sweep", answer, hint="sweep.sensitivity()")
    rows = answer.frame.drop_nulls().sort(pl.col("weight").abs(), descending=True)
    terms = names_of(rows["term"])
    texts = [f"{weight:.3f}" for weight in rows["weight"]]
    about = [f"{term}: {text}" for term, text in zip(terms, texts, strict=True)]
    rows = pl.DataFrame({"term": terms, "weight": rows["weight"], "text": texts, "about": about})
    ends = [0.0, *rows["weight"]]
    room = 0.12 * (max(ends) - min(ends))  # for numbers beside the bars
    scale = alt.Scale(nice=False, domain=[min(ends) - room * (min(ends) < 0), max(ends) + room])
    base = rows_of(rows).encode(
        x=alt.X(
            "weight:Q", title="standard deviations per standard deviation", axis=alt.Axis(tickCount=6), scale=scale
        ),
        y=alt.Y("term:N", title=None, sort=terms),
    )
    right = base.transform_filter("datum.weight >= 0").mark_text(align="left", dx=4)
    left = base.transform_filter("datum.weight < 0").mark_text(align="right", dx=-4)
    logs = "logarithm of " if answer.log else ""
    title, subtitle = f"What determines the {logs}{_titles(answer.of)}", f"R² {answer.r_squared:.3f}"
    return LayerPicture(
        layer=[base.mark_bar(color=PALETTE[0], height=14), *(each.encode(text="text:N") for each in (left, right))],
        title=alt.TitleParams(title, subtitle=[subtitle]),
        description=f"{title}: {listed(about)}; {subtitle}.",
        width=WIDTH - 80,
        height=24 * max(len(terms), 1),
    )


def latency(sweep: Sweep, parameter: str = "batch") -> VConcatPicture:
    """Return step time (median with its interval, and 95th percentile) and throughput against a parameter.

    Each is the median over the other parameters; select one combination with ``sweep.filter``.

    Raises
    ------
    ValueError
        If there is no such parameter of numbers.
    TpunbError
        If no point ran.
    """
    sweep = _sweep("latency", sweep)
    if parameter not in sweep.parameters or not sweep.frame[parameter].dtype.is_numeric():
        parameters = ", ".join(sweep.parameters)
        raise ValueError(f"The parameter of latency must be of numbers, of {parameters}. Got {parameter!r} instead.")
    if sweep.ok.is_empty():
        raise TpunbError("no point of the sweep ran", hint="see the column state of sweep.frame")
    columns = ("step_ps", "low_ps", "high_ps", "p95_ps", "examples_per_s")
    rows = sweep.ok.group_by(value=parameter).agg(pl.len(), *(pl.col(name).median() for name in columns)).sort("value")
    about = [
        f"{parameter} {row['value']:,.10g}: median {duration(row['step_ps'])}"
        + (f", p95 {duration(row['p95_ps'])}" if row["p95_ps"] is not None else "")
        + (f", {_number('examples_per_s', row['examples_per_s'])} per second" if row["examples_per_s"] else "")
        for row in rows.iter_rows(named=True)
    ]
    rows = rows.with_columns(pl.col(columns[:4]) / 1e9, about=pl.Series(about))
    wide = rows["value"].max() >= _RATIO * rows["value"].min() > 0  # type: ignore[operator]
    scale = alt.Scale(type="log", base=2, nice=False) if wide else alt.Scale(zero=False)
    x = alt.X(
        "value:Q", title=cleaned(parameter), scale=scale, axis=alt.Axis(format=",~r", values=_some(rows["value"]))
    )
    base = rows_of(rows).encode(x=x)
    names = ["median", "95th percentile"]
    hue = alt.Scale(domain=names, range=[PALETTE[0], PALETTE[1]])
    legend = alt.Legend(orient="bottom", title=None) if rows["p95_ps"].count() else None
    time: list[Any] = [base.mark_rule(strokeWidth=2, color=PALETTE[0]).encode(y="low_ps:Q", y2="high_ps")]
    for name, column in zip(names, ("step_ps", "p95_ps"), strict=True):
        line = base.transform_calculate(of=f"'{name}'").transform_filter(f"isValid(datum.{column})")
        line = line.encode(
            y=alt.Y(f"{column}:Q", title="step time (ms)"), color=alt.Color("of:N", scale=hue, legend=legend)
        )
        time += [line.mark_line(tooltip=None), line.mark_point(filled=True, size=50, opacity=1)]
    rate = base.encode(y=alt.Y("examples_per_s:Q", title="examples per second", axis=_axis()))
    rates = [
        rate.mark_line(color=PALETTE[2], tooltip=None),
        rate.mark_point(filled=True, size=50, opacity=1, color=PALETTE[2]),
    ]
    combinations = rows["len"].max()
    several = f", median of up to {plural(combinations, 'combination')}" if combinations > 1 else ""  # type: ignore[operator, arg-type]
    return VConcatPicture(
        vconcat=[alt.layer(*marks).properties(width=WIDTH, height=150) for marks in (time, rates)],
        title=alt.TitleParams(f"Latency and throughput by {cleaned(parameter)}", subtitle=[_device(sweep) + several]),
        description=f"Latency and throughput of {_device(sweep)}{several}: {cleaned(listed(about))}.",
    )


def _sweep(owner: str, sweep: object) -> Sweep:
    if not isinstance(sweep, Sweep):
        raise wrong_type(owner, "sweep", "be a Sweep", sweep, hint="Sweep.read('sweep.parquet')")
    return sweep


def _device(sweep: Sweep) -> str:
    return cleaned(" with ".join(sweep.names))


def _titles(column: str) -> str:
    units = {"flops_util": "FLOP/s utilisation (% of peak)", "examples_per_s": "examples per second"}
    return units.get(column, column.removesuffix("_ps").replace("_", " ") + (" time" if column.endswith("_ps") else ""))


def _number(column: str, value: float | None) -> str | None:
    if value is None:
        return None
    if column == "flops_util":
        return percent(value, 1)
    return duration(value) if column.endswith("_ps") else count(round(value)) if value >= 1000 else short(value)


def _texts(values: list[Any]) -> list[str]:
    return pl.Series(values).cast(pl.String).to_list()


def _some(values: pl.Series) -> list[float]:
    return values.gather_every(1 + len(values) // 12).to_list()


def _axis() -> alt.Axis:
    return alt.Axis(format="~s", tickCount=6)


def _hue(values: pl.Series, colour: str | None) -> Any:
    """Return the colours of the values of a parameter: shades of numbers, hues of texts."""
    if colour is None:
        return alt.value(PALETTE[0])
    legend = alt.Legend(title=cleaned(colour), orient="bottom", columns=9)
    if values.dtype.is_numeric():
        return alt.Color("hue:O", scale=_SHADES, legend=legend)
    return alt.Color("hue:N", scale=alt.Scale(range=[*PALETTE]), legend=legend)
