"""Work of a run under the roof of its device."""

from __future__ import annotations

import altair as alt
import polars as pl

from tpunb.charts.labels import listed, names_of
from tpunb.charts.render import LayerPicture
from tpunb.charts.rows import GREY, PALETTE, WIDTH, cleaned, rows_of
from tpunb.errors import TpunbError, wrong
from tpunb.frames.hardware import Device
from tpunb.frames.roofline import Roofline
from tpunb.text import duration, percent, plain, plural

_POINTS = 250  # at most in one chart
_NAMED = 5  # of most headroom
_MARGIN = 4.0  # by which the axes exceed points and ridge
_BOUND = {"compute": PALETTE[0], "memory": PALETTE[1]}


def roofline(roof: Roofline, *, backdrop: pl.DataFrame | None = None) -> LayerPicture:
    """Return the rows of a roofline by intensity and rate, both logarithmic, under the roof of the device.

    The roof rises with the memory bandwidth to the ridge and is level at the peak. Peaks of other data types of these
    rows and faster memories are dashed. The area of a point is its self time; the five of most headroom are numbered.

    Parameters
    ----------
    roof
        Roofline whose rows are the points.
    backdrop
        Frame with ``intensity`` and ``rate`` of other measurements, in grey: ``tp.studies.sweeps.paradnn.traces()``.

    Raises
    ------
    TypeError
        When `roof` is no Roofline.
    TpunbError
        When no row has FLOPs and bytes.
    """
    if not isinstance(roof, Roofline):
        raise wrong("roofline", "roof", "be a Roofline", roof)
    known = roof.frame.filter(pl.col("rate") > 0, pl.col("intensity") > 0)
    if known.is_empty():
        raise TpunbError("no row of the roofline has FLOPs and bytes", hint="choose another level: by='run'")
    points = _points(known.head(_POINTS))
    device, others = cleaned(plain(roof.device_label)), _backdrop(backdrop)
    lines = _lines(points, roof.device, others["intensity"].to_list())
    left_out = f", {len(known) - len(points)} of less headroom not shown" if len(known) > len(points) else ""
    left_out += f", {len(roof) - len(known)} without known FLOPs not shown" if len(roof) > len(known) else ""
    behind = f"; grey: {plural(len(others), 'point')} of other measurements" if len(others) else ""
    utilisation = roof.utilisation
    reached = f"; {_pair(utilisation)} of peak FLOP/s reached" if utilisation else ""
    x = alt.X("intensity:Q", title="intensity (FLOP/byte)", axis=alt.Axis(format="~g", tickCount=6))
    y = alt.Y("rate:Q", title="rate (FLOP/s)", axis=alt.Axis(format="~s", tickCount=6))
    rates, across = [*points["rate"], *lines["rate"], *others["rate"]], lines["intensity"].to_list()
    log_x = alt.Scale(type="log", nice=False, domain=[min(across), max(across)])
    log_y = alt.Scale(type="log", nice=False, domain=[min(rates) / 2, max(rates) * 2])
    base = rows_of(points).encode(x=x.scale(log_x), y=y.scale(log_y))
    size = alt.Size("self_ps:Q", scale=alt.Scale(range=[12, 500]), legend=None)
    hue = alt.Color(
        "bound:N",
        scale=alt.Scale(domain=[*_BOUND], range=[*_BOUND.values()]),
        legend=alt.Legend(title="bound by", orient="bottom"),
    )
    curve = rows_of(lines).encode(x="intensity:Q", y="rate:Q", detail="line:N")
    peaks, slopes = (
        rows_of(lines.filter("labelled", level=level)).encode(x="intensity:Q", y="rate:Q", text="about:N")
        for level in (True, False)
    )
    return LayerPicture(
        layer=[
            *([rows_of(others).mark_circle(color=GREY, opacity=0.35).encode(x=x, y=y)] if len(others) else []),
            curve.transform_filter("datum.main").mark_line(color=GREY, strokeWidth=2),
            curve.transform_filter("!datum.main").mark_line(color=GREY, strokeDash=[4, 3], strokeWidth=1),
            peaks.mark_text(align="right", dy=-7, color=GREY),
            slopes.mark_text(align="left", dx=12, dy=4, color=GREY),
            base.mark_circle(opacity=0.75, stroke="white", strokeWidth=0.5).encode(size=size, color=hue),
            base.transform_filter("datum.rank")
            .mark_text(align="left", dx=8, dy=-8, fontWeight="bold")
            .encode(text="rank:N"),
        ],
        title=alt.TitleParams(
            f"Roofline by {roof.by} · {device}",
            subtitle=[f"{plural(len(points), 'row')}{left_out}{reached}{behind}", *_most_headroom(points)],
        ),
        description=f"Roofline of {device} by {roof.by}{reached}: {listed(points['about'].to_list())}.",
        width=WIDTH,
        height=360,
    )


def _backdrop(rows: pl.DataFrame | None) -> pl.DataFrame:
    """Return the points behind the others."""
    if rows is None:
        return pl.DataFrame(schema={"intensity": pl.Float64, "rate": pl.Float64, "about": pl.String})
    shown = rows.filter(pl.col("intensity") > 0, pl.col("rate") > 0)
    about = pl.format("{} GFLOP/s at {} FLOP/byte", (pl.col("rate") / 1e9).round(1), pl.col("intensity").round(2))
    return shown.select("intensity", "rate", about=about)


def _points(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the points with their names and tooltips."""
    rank = pl.int_range(1, pl.len() + 1)
    about = [
        f"{name}: {row['rate'] / 1e9:,.1f} GFLOP/s at {row['intensity']:.3g} FLOP/byte, "
        f"{percent(row['efficiency'], 1)} of attainable; {duration(row['self_ps'])} self time, "
        f"headroom {duration(row['headroom_ps'])}" + (f"; above the roof: {row['above']}" if row["above"] else "")
        for name, row in zip(names_of(rows["what"], 60), rows.iter_rows(named=True), strict=True)
    ]
    shown = rows.select(
        *("intensity", "rate", "self_ps", "bound", "dtype", "headroom_ps"), rank=pl.when(rank <= _NAMED).then(rank)
    )
    return shown.with_columns(name=pl.Series(names_of(rows["what"])), about=pl.Series(about))


def _most_headroom(points: pl.DataFrame) -> list[str]:
    """Return the numbered points with their headroom, in lines that fit."""
    named = points.drop_nulls("rank").select("rank", "name", "headroom_ps").rows()
    texts = [f"{rank} {name} {duration(headroom)}" for rank, name, headroom in named]
    return [
        f"{'headroom: ' if not first else ''}{' · '.join(texts[first : first + 3])}"
        for first in range(0, len(texts), 3)
    ]


def _lines(points: pl.DataFrame, device: Device, others: list[float]) -> pl.DataFrame:
    """Return the ends of the lines of the roof over all intensities: slopes of memories and peaks of data types."""
    peaks = {device.dtype: device.peak_flops} | {
        dtype: peak for dtype, peak in device.peaks.items() if dtype in points["dtype"].to_list()
    }
    peaks = {dtype: peak / device.cores for dtype, peak in peaks.items()}
    memories = {"memory": device.bandwidth} | {level.name: level.bandwidth for level in device.levels}
    memories = {name: rate / device.cores for name, rate in memories.items() if rate < float("inf")}
    top, slowest = max(peaks.values()), min(memories.values(), default=None)
    across = [*points["intensity"], *others]
    ridge = peaks[device.dtype] / slowest if slowest else min(across)
    left, right = min(*across, ridge) / _MARGIN, max(*across, ridge) * _MARGIN
    rows = []
    for name, bandwidth in memories.items():
        main = bandwidth == slowest
        until = ridge if main else top / bandwidth
        ends = min(left, until / 2), until
        label = f"{name} {bandwidth / 1e9:,.0f} GB/s"
        rows += [(name, at, at * bandwidth, main, at != until, False, label) for at in ends]
    for dtype, peak in peaks.items():
        main = dtype == device.dtype
        begin = ridge if main else peak / max(memories.values(), default=peak / left)
        label = f"{dtype} {peak / 1e12:,.4g} TFLOP/s" + (
            f", ridge at {ridge:.3g} FLOP/byte" if main and slowest else ""
        )
        rows += [(dtype, at, peak, main, at == right, True, label) for at in (begin, right)]
    names = ["line", "intensity", "rate", "main", "labelled", "level", "about"]
    return pl.DataFrame(rows, schema=names, orient="row")


def _pair(utilisation: tuple[float, float]) -> str:
    low, high = (percent(share, 1) for share in utilisation)
    return low if low == high else f"{low} to {high}"
