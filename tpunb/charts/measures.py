"""One figure of each run: bars that say whether it was measured, modelled or published."""

from __future__ import annotations

import re
from typing import Any

import altair as alt
import polars as pl
import polars.selectors as cs

from tpunb.charts.labels import LETTER, LINE, faded, lanes, listed, names_of
from tpunb.charts.rows import GREY, PALETTE, WIDTH, cleaned, percent_of, rows_of
from tpunb.errors import TpunbError, wrong
from tpunb.frames.words import cut, plain, plural
from tpunb.pictures import LayerPicture

_HOW = {  # a filling, a frame and a dash each; where colours look alike, two of them still differ
    "measured": (PALETTE[0], PALETTE[0], [1, 0]),
    "modelled": (faded(PALETTE[1], 0.3), PALETTE[1], [4, 2]),
    "published": ("transparent", PALETTE[2], [1, 0]),
}
_NEEDED = "run", "value", "how"
_COLUMNS = {
    "run": pl.String,
    "value": pl.Float64,
    "how": pl.String,
    "form": pl.String,
    "low": pl.Float64,
    "high": pl.Float64,
}
_UNKNOWN = "not known"
_BAR, _GAP, _BETWEEN = 15, 4, 8  # points: a bar, the gap to the next, and as much again to that of the next run
_WIDE = WIDTH - 200
_EDGE = 6.0  # points from a line to a text
_FORM = 40  # letters of a form
_ROUNDING = 1e-9  # that a sum of shares may be above 1
_BEYOND = 2  # times the longest bar: as far as an interval is drawn


def measures(frame: pl.DataFrame, *, title: str, share: bool = True) -> LayerPicture:
    """Return a bar for each figure of each run, in the looks of how it came about (paper Figures 10 to 16).

    Beside each bar stands its value; where it is not known, so is said in its place. What was published of no run of
    these is a line across all bars.

    Parameters
    ----------
    frame
        A row a figure, in the order to draw:

        - ``run``, the name of its run; null for a line across
        - ``value``: 0 to 1 of a share, 0 or more of a ratio; null where it is not known
        - ``how``: "measured", "modelled" or "published"
        - ``form``, if there is one: which figure of the run it is, such as "naive", or what a line across is called
        - ``low`` and ``high``, if there are: an interval around it
    title
        What the figures are.
    share
        Whether they are shares of a whole, in per cent. If not, they are ratios ("1.12x"), beside a line at 1.

    Raises
    ------
    TypeError
        When `frame` is no frame or `title` no text.
    ValueError
        When a column is missing or of another type, or holds what it cannot.
    TpunbError
        When no row is of a run.
    """
    if not isinstance(title, str):
        raise wrong("measures", "title", "be a str", title)
    rows, title = _checked(frame, share), cleaned(plain(title))
    if rows["run"].null_count() == rows.height:
        raise TpunbError("no run to draw", hint="a row of the frame is a figure of a run")
    bars, across = placed(rows, share=share), _across(rows, share)
    most = 100.0 if share else _most(bars, across)
    return LayerPicture(
        layer=[
            _bars(bars.drop_nulls("value"), _axis(most, share)),
            *([] if share else [_same()]),
            *_lines(across, most),
            *_intervals(bars.drop_nulls(["value", "low", "high"]), most),
            *_texts(bars, _free([*across["value"]] if share else [1.0, *across["value"]], most)),
        ],
        title=alt.TitleParams(title, subtitle=[_found(bars)]),
        description=f"{title}: {listed([*across['about'], *bars['about']])}.",
        width=_WIDE,
        height=bars["bottom"][-1] + _BETWEEN / 2,
    )


def placed(rows: pl.DataFrame, *, share: bool) -> pl.DataFrame:
    """Return the rows that are of runs, those of one run together, with where they are drawn and what is written.

    ``value``, ``low`` and ``high`` in what the axis counts; ``top`` and ``bottom`` of the bar in points; ``run`` as it
    is written, ``text`` beside the bar, ``about`` under the pointer.
    """
    rows = rows.drop_nulls("run")
    runs = rows["run"].unique(maintain_order=True).to_list()
    nth = pl.col("run").replace_strict({run: i for i, run in enumerate(runs)}, return_dtype=pl.Int64)
    rows = rows.with_columns(nth=nth).sort("nth", maintain_order=True)
    top = pl.int_range(pl.len()) * (_BAR + _GAP) + pl.col("nth") * _BETWEEN + _BETWEEN / 2
    name = pl.col("run").replace_strict(dict(zip(runs, names_of(runs), strict=True)), return_dtype=pl.String)
    rows = rows.with_columns(run=name, top=top, bottom=top + _BAR)
    written = [_written(row, share) for row in rows.iter_rows(named=True)]
    texts = pl.DataFrame(written, schema={"text": pl.String, "about": pl.String}, orient="row")
    return _counted(pl.concat([rows, texts], how="horizontal"), share)


def _written(row: dict[str, Any], share: bool) -> tuple[str, str]:
    """Return what stands beside a bar, and what is said of it."""
    form = cut(plain(row["form"] or ""), _FORM)
    of = f"{row['run']}, {form}" if form else row["run"]
    if row["value"] is None:
        return form, f"{of}: {_UNKNOWN}"
    text = _figure(row["value"], share)
    if row["low"] is not None and row["high"] is not None:
        low, high = (_figure(row[end], share).rstrip(" %x") for end in ("low", "high"))
        text += f" [{low}, {high}]"
    return f"{text} · {form}" if form else text, f"{of}: {text}, {row['how']}"


def _figure(value: float, share: bool) -> str:
    return percent_of(value) if share else f"{value:.2f}x"


def _across(rows: pl.DataFrame, share: bool) -> pl.DataFrame:
    """Return the lines across all bars: ``value``, ``how``, and ``about``, the text above each."""
    rows = rows.filter(pl.col("run").is_null()).drop_nulls("value")
    about = []
    for form, value in rows.select("form", "value").iter_rows():
        name, text = cut(plain(form or "published"), _FORM), _figure(value, share)
        about.append(name if re.search(r"\d ?[%x×]$", name) else f"{name}: {text}")  # with its figure, or without
    return _counted(rows.with_columns(about=pl.Series(about, dtype=pl.String)), share)


def _counted(rows: pl.DataFrame, share: bool) -> pl.DataFrame:
    """Return rows in what the axis counts: shares in per cent."""
    return rows.with_columns(pl.col("value", "low", "high") * (100 if share else 1))


def _most(bars: pl.DataFrame, across: pl.DataFrame) -> float:
    """Return the end of the axis of ratios: an interval of few may reach a thousand times as far as the bars."""
    longest = float(max([1.0, *bars["value"].drop_nulls(), *across["value"]]))
    return 1.05 * min(_BEYOND * longest, float(max([longest, *bars["high"].drop_nulls()])))


def _axis(most: float, share: bool) -> alt.X:
    axis = alt.Axis(tickCount=6, format="~r", labelExpr=f"datum.label + '{' %' if share else 'x'}'")
    return alt.X("value:Q", title=None, axis=axis, scale=alt.Scale(domain=[0, most], nice=False))


def _y(column: str) -> alt.Y:
    return alt.Y(f"{column}:Q", axis=None, scale=None)  # points on the page


def _bars(bars: pl.DataFrame, x: alt.X) -> alt.Chart:
    """Return the bars of the figures that are known, in the looks of how they came about."""
    bar = rows_of(bars).mark_bar(strokeWidth=1.5, orient="horizontal")
    chart: alt.Chart = bar.encode(x=x, x2=alt.datum(0), y=_y("top"), y2="bottom")
    ways = [way for way in _HOW if way in bars["how"]]
    if not ways:
        return chart
    legend = alt.Legend(orient="bottom", title=None, symbolType="square", symbolStrokeWidth=1.5)
    fill, stroke, dash = (
        alt.Scale(domain=ways, range=looks) for looks in zip(*(_HOW[way] for way in ways), strict=True)
    )
    return chart.encode(
        fill=alt.Fill("how:N", scale=fill, legend=legend),
        stroke=alt.Stroke("how:N", scale=stroke, legend=legend),
        strokeDash=alt.StrokeDash("how:N", scale=dash, legend=legend),
    )


def _intervals(bars: pl.DataFrame, most: float) -> list[alt.Chart]:
    """Return a line from end to end of each interval, as far as it is drawn, and a short one across each end."""
    middle = (pl.col("top") + pl.col("bottom")) / 2
    rows = bars.with_columns(pl.col("low", "high").clip(0, most), middle=middle, above=middle - 4, below=middle + 4)
    base = rows_of(rows)
    ends = (base.mark_rule().encode(x=f"{end}:Q", y=_y("above"), y2="below") for end in ("low", "high"))
    return [base.mark_rule().encode(x="low:Q", x2="high", y=_y("middle")), *ends]


def _free(lines: list[float], most: float) -> float:
    """Return how far to the right, in points, there stands what is not known: no line across crosses it."""
    at, wide = _EDGE, LETTER * len(_UNKNOWN)
    for line in sorted(lines):
        x = _WIDE * line / most
        at = x + _EDGE if x < at + wide else at
    return at


def _texts(bars: pl.DataFrame, free: float) -> list[alt.Chart]:
    """Return the names of the runs, what stands beside each bar, and what in place of one, `free` to the right."""
    bars = bars.with_columns(middle=(pl.col("top") + pl.col("bottom")) / 2)
    runs = bars.group_by("run", maintain_order=True).agg(pl.col("middle").mean(), about=pl.col("run").first())
    unknown = bars.filter(pl.col("value").is_null()).with_columns(said=pl.lit(_UNKNOWN))
    # beside the plot: behind their bars the lines would cross them
    beside = rows_of(bars).mark_text(align="left", dx=8).encode(x=alt.value("width"), text="text:N")
    within = rows_of(unknown).mark_text(align="left", dx=free, fontStyle="italic", opacity=0.75)
    names = rows_of(runs).mark_text(align="right", dx=-8).encode(x=alt.value(0), text="run:N")
    return [each.encode(y=_y("middle")) for each in (beside, within.encode(x=alt.value(0), text="said:N"), names)]


def _lines(across: pl.DataFrame, most: float) -> list[alt.Chart]:
    """Return the lines across all bars, and above each what it is, where it meets no other's text."""
    if across.is_empty():
        return []
    across = across.sort("value")
    wide = LETTER * across["about"].str.len_chars() + LETTER
    at = across["value"] * _WIDE / most
    # of two lines near to each other the texts stand on either side
    right = (pl.int_range(pl.len()) >= pl.len() / 2) & (at + wide <= _WIDE + 3 * LINE) | (at + 3 * LINE < wide)
    rows = across.with_columns(right=right)
    spans = pl.select(left=pl.when(rows["right"]).then(at).otherwise(at - wide)).with_columns(end=pl.col("left") + wide)
    rows = rows.with_columns(line=pl.Series(lanes(spans.rows()), dtype=pl.Int64))
    rules = rows_of(rows).mark_rule(strokeDash=[4, 3], strokeWidth=1.5).encode(x="value:Q")
    return [rules, *(_above(names) for names in rows.partition_by("line", "right"))]


def _above(names: pl.DataFrame) -> alt.Chart:
    """Return texts of one line above the plot, all on one side of what they name."""
    right, dy = names["right"][0], -4 - LINE * names["line"][0]
    base = rows_of(names).encode(x="value:Q", y=alt.value(0), text="about:N")
    chart: alt.Chart = base.mark_text(
        align="left" if right else "right", dx=-3 if right else 3, dy=dy, baseline="bottom"
    )
    return chart


def _same() -> alt.Chart:
    base = rows_of(pl.DataFrame({"value": [1.0], "about": ["1x: no change"]}))
    chart: alt.Chart = base.mark_rule(color=GREY).encode(x="value:Q")
    return chart


def _found(bars: pl.DataFrame) -> str:
    """Return how many figures of how many runs there are, by how they came about."""
    known = bars.drop_nulls("value")
    counts = [(known.filter(how=way).height, way) for way in _HOW] + [(bars.height - known.height, _UNKNOWN)]
    told = ", ".join(f"{n} {way}" for n, way in counts if n)
    return f"{plural(bars['run'].n_unique(), 'run')}: {told}"


def _checked(frame: object, share: bool) -> pl.DataFrame:
    """Return `frame` with the columns that it must have and may have, what is in them checked."""
    rows = _typed(frame)
    if not_told := sorted({*rows["how"].fill_null("null")} - {*_HOW}):
        raise _bad("how", f"be {', '.join(_HOW)}", cut(plain(not_told[0])))
    if rows.filter(pl.col("run").is_null(), pl.col("how") != "published").height:
        raise _bad("run", "be a name, where a figure was not published", None)
    for column in ("value", "low", "high"):
        numbers = rows[column].drop_nulls()
        fit = numbers.is_finite() & (numbers >= 0) & (numbers <= (1 + _ROUNDING if share else float("inf")))
        if not fit.all():
            raise _bad(column, "be in [0, 1]" if share else "be 0 or more", numbers.filter(~fit)[0])
    if rows.filter(pl.col("low") > pl.col("high")).height:
        raise _bad("low", "be no more than high", rows.filter(pl.col("low") > pl.col("high"))["low"][0])
    return rows


def _typed(frame: object) -> pl.DataFrame:
    """Return the columns that are of use here, each of its type; nulls for those that a frame may leave out."""
    if not isinstance(frame, pl.DataFrame):
        raise wrong("measures", "frame", "be a polars DataFrame", frame)
    if missing := [name for name in _NEEDED if name not in frame.columns]:
        has = cut(plain(", ".join(frame.columns))) or "none"
        raise ValueError(f"The frame parameter of measures must have the column {missing[0]}. Got {has} instead.")
    for name, dtype in _COLUMNS.items():
        found = frame.schema.get(name, pl.Null())
        numeric = dtype == pl.Float64 and found.is_numeric()
        named = dtype == pl.String and found in (pl.String, pl.Categorical, pl.Enum)
        if not (numeric or named or found == pl.Null):
            raise _bad(name, f"be {dtype}", found, kind=TypeError)
    return frame.select(
        (pl.col(name) if name in frame.columns else pl.lit(None)).cast(dtype).alias(name)
        for name, dtype in _COLUMNS.items()
    ).with_columns(cs.float().fill_nan(None))


def _bad(column: str, must: str, got: object, kind: type[Exception] = ValueError) -> Exception:
    return kind(f"The {column} column of measures must {must}. Got {got!r} instead.")
