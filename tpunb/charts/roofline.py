"""Work of a run under the roof of its device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import altair as alt
import polars as pl

from tpunb.analysis.roofline import Roofline
from tpunb.charts.render import LayerPicture
from tpunb.charts.style import GREY, LETTER, NOISE, PALETTE, TIME, WIDTH, clean, cleaned, hue, listed, names_of, rows_of
from tpunb.errors import TpunbError, wrong_type
from tpunb.frames import Profile, Steps
from tpunb.frames.hardware import Device
from tpunb.text import cut, duration, percent, plain, plural

_POINTS = 250  # at most in one chart
_NAMED = 5  # of most headroom
_MARGIN = 4.0  # by which the axes exceed points and ridge
_BOUND = {"compute": PALETTE[0], "memory": PALETTE[1]}


def roofline(roof: Roofline) -> LayerPicture:
    """Return the rows of a roofline by intensity and rate, both logarithmic, under the roof of the device.

    The roof rises with the memory bandwidth to the ridge and is level at the peak. Peaks of other data types of these
    rows and faster memories are dashed. The area of a point is its self time; the five of most headroom are numbered.
    Where the peaks of the device are unknown, the points are shown without a roof, and those of most time are numbered.

    Parameters
    ----------
    roof
        Roofline whose rows are the points.

    Raises
    ------
    TypeError
        When `roof` is no Roofline.
    TpunbError
        When no row has FLOPs and bytes.
    """
    if not isinstance(roof, Roofline):
        raise wrong_type("roofline", "roof", "be a Roofline", roof)
    placed = roof.frame.filter(pl.col("rate") > 0, pl.col("intensity") > 0)
    if placed.is_empty():
        raise TpunbError("no row of the roofline has FLOPs and bytes", hint="choose another level: by='run'")
    points = _points(placed.head(_POINTS))
    device, lines = cleaned(plain(roof.device_label)), _lines(points, roof.device)
    left_out = f", {len(placed) - len(points)} of less headroom not shown" if len(placed) > len(points) else ""
    left_out += f", {len(roof) - len(placed)} without known FLOPs not shown" if len(roof) > len(placed) else ""
    utilisation = roof.utilisation
    reached = f"; {_pair(utilisation)} of peak FLOP/s reached" if utilisation else ""
    x = alt.X("intensity:Q", title="intensity (FLOP/byte)", axis=alt.Axis(format="~g", tickCount=6))
    y = alt.Y("rate:Q", title="rate (FLOP/s)", axis=alt.Axis(format="~s", tickCount=6))
    rates = [*points["rate"], *lines["rate"]]
    across = lines["intensity"].to_list() or [at * by for at in points["intensity"] for by in (1 / _MARGIN, _MARGIN)]
    log_x = alt.Scale(type="log", nice=False, domain=[min(across), max(across)])
    log_y = alt.Scale(type="log", nice=False, domain=[min(rates) / 2, max(rates) * 2])
    base = rows_of(points).encode(x=x.scale(log_x), y=y.scale(log_y))
    size = alt.Size("self_ps:Q", scale=alt.Scale(range=[12, 500]), legend=None)
    colour = alt.value(GREY) if roof.device is None else hue("bound", _BOUND, title="bound by")
    curve = rows_of(lines).encode(x="intensity:Q", y="rate:Q", detail="line:N")
    peaks, slopes = (
        rows_of(lines.filter("labelled", level=level)).encode(x="intensity:Q", y="rate:Q", text="about:N")
        for level in (True, False)
    )
    return LayerPicture(
        layer=[
            curve.transform_filter("datum.main").mark_line(color=GREY, strokeWidth=2),
            curve.transform_filter("!datum.main").mark_line(color=GREY, strokeDash=[4, 3], strokeWidth=1),
            peaks.mark_text(align="right", dy=-7, color=GREY),
            slopes.mark_text(align="left", dx=12, dy=4, color=GREY),
            base.mark_circle(opacity=0.75, stroke="white", strokeWidth=0.5).encode(size=size, color=colour),
            base.transform_filter("datum.rank")
            .mark_text(align="left", dx=8, dy=-8, fontWeight="bold")
            .encode(text="rank:N"),
        ],
        title=alt.TitleParams(
            f"Roofline by {roof.by} · {device}",
            subtitle=[f"{plural(len(points), 'row')}{left_out}{reached}", *_most_headroom(points)],
        ),
        description=f"Roofline of {device} by {roof.by}{reached}: {listed(points['about'].to_list())}.",
        width=WIDTH,
        height=360,
    )


def _points(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the points with their names and tooltips."""
    rank = pl.int_range(1, pl.len() + 1)
    about = [
        f"{name}: {row['rate'] / 1e9:,.1f} GFLOP/s at {row['intensity']:.3g} FLOP/byte, {_beside_roof(row)}"
        for name, row in zip(names_of(rows["what"], 60), rows.iter_rows(named=True), strict=True)
    ]
    shown = rows.select(
        *("intensity", "rate", "self_ps", "bound", "dtype", "headroom_ps"), rank=pl.when(rank <= _NAMED).then(rank)
    )
    return shown.with_columns(name=pl.Series(names_of(rows["what"])), about=pl.Series(about))


def _beside_roof(row: Mapping[str, Any]) -> str:
    """Return the time of a row, and beside the roof where its peaks are known."""
    time = f"{duration(row['self_ps'])} self time"
    if row["efficiency"] is None:
        return time
    above = f"; above the roof: {row['above']}" if row["above"] else ""
    share, headroom = percent(row["efficiency"], 1), duration(row["headroom_ps"])
    return f"{share} of attainable; {time}, headroom {headroom}{above}"


def _most_headroom(points: pl.DataFrame) -> list[str]:
    """Return the numbered points with their headroom, or self time, in lines that fit."""
    has_roof = points["headroom_ps"].count() > 0
    figure, label = ("headroom_ps", "headroom: ") if has_roof else ("self_ps", "self time: ")
    named = points.drop_nulls("rank").select("rank", "name", figure).rows()
    texts = [f"{rank} {name} {duration(time)}" for rank, name, time in named]
    return [f"{label if not first else ''}{' · '.join(texts[first : first + 3])}" for first in range(0, len(texts), 3)]


def _lines(points: pl.DataFrame, device: Device | None) -> pl.DataFrame:
    """Return the ends of the lines of the roof over all intensities: slopes of memories and peaks of data types."""
    if device is None:
        return pl.DataFrame(schema=_LINES)
    across = points["intensity"].to_list()
    peaks = {device.dtype: device.peak_flops} | {
        dtype: peak for dtype, peak in device.peaks.items() if dtype in points["dtype"].to_list()
    }
    peaks = {dtype: peak / device.cores for dtype, peak in peaks.items()}
    memories = {"memory": device.bandwidth} | {level.name: level.bandwidth for level in device.levels}
    memories = {name: rate / device.cores for name, rate in memories.items() if rate < float("inf")}
    top, slowest = max(peaks.values()), min(memories.values(), default=None)
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
    return pl.DataFrame(rows, schema=_LINES, orient="row")


_LINES = {
    **{"line": pl.String, "intensity": pl.Float64, "rate": pl.Float64},
    **dict.fromkeys(("main", "labelled", "level"), pl.Boolean),
    "about": pl.String,
}


def _pair(utilisation: tuple[float, float]) -> str:
    low, high = (percent(share, 1) for share in utilisation)
    return low if low == high else f"{low} to {high}"


_LEVELS = {"layer": "layer", "part": "part", "op": "operation", "hlo_op": "instruction"}
_NAMELESS = "unattributed"
_NARROWEST = 0.0015  # of the width
_OTHERS = "#7f6a4d"
_WHITE_ON = (PALETTE[0], PALETTE[2], PALETTE[5], _OTHERS)


def stack(steps: Steps) -> LayerPicture:
    """Return the self time of devices as an icicle: step, layer, part, operation, instruction.

    The width is the mean over steps. What has no name at a level is "unattributed"; a level on which nothing has a name
    is left out, as are parts of less than 0.15 % of the width.

    Parameters
    ----------
    steps
        Steps of a run whose raw events were kept.

    Raises
    ------
    TypeError
        When `steps` are no Steps.
    TpunbError
        When the capture kept statistics only, or no operation ran on a device.
    """
    if not isinstance(steps, Steps):
        raise wrong_type("stack", "steps", "be Steps", steps)
    rows = steps.layers.filter(pl.col("side") == "device", pl.col("self_ps") > 0)
    if rows.is_empty():
        raise TpunbError("no operation ran on a device", hint="pass steps of a run with a TPU, a GPU or XLA")
    count = rows.select("host", "step").n_unique()
    rows = rows.with_columns(pl.lit(f"step, mean of {count}" if count > 1 else "step").alias("whole"))
    levels = ["whole", *(name for name in _LEVELS if name in rows.columns and rows[name].count() > 0)]
    spans = _spans(rows, levels, count)
    drawn = spans.filter(pl.col("share") >= _NARROWEST)
    titles = ["step", *(_LEVELS[name] for name in levels[1:])]
    x = alt.X("from:Q", title="self time of devices per step (ms)", axis=alt.Axis(grid=False)).scale(nice=False)
    y = alt.Y("level:N", sort=titles, title=None, axis=alt.Axis(ticks=False, domain=False)).scale(padding=0.06)
    base = rows_of(drawn.sort("level", "from")).encode(y=y)
    text = base.encode(x="middle:Q", text="text:N")
    total = round(sum(spans.filter(level="step")["self_ps"]))
    unnamed = sum(spans.filter("nameless", level=titles[-1])["share"])
    about = f"{duration(total)} self time per step; {percent(unnamed, 1)} without an {titles[-1]}"
    return LayerPicture(
        layer=[
            base.mark_rect(stroke="white", strokeWidth=0.5).encode(
                x=x, x2="until:Q", color=alt.Color("colour:N", scale=None)
            ),
            *(
                text.transform_filter(which).mark_text(color=ink, fontSize=10, tooltip=None)
                for which, ink in (("datum.white", "white"), ("!datum.white", "black"))
            ),
        ],
        title=alt.TitleParams("Across the stack" + _of(steps), subtitle=[about]),
        description=f"Self time of devices by {', '.join(titles)}: {about}. "
        f"{listed(drawn.filter(level=titles[min(1, len(titles) - 1)])['about'].to_list())}.",
        width=WIDTH,
        height=alt.Step(26),
    )


def _spans(rows: pl.DataFrame, levels: list[str], count: int) -> pl.DataFrame:
    """Return a bar of each thing of each level, from where those before it end: most time first, nameless last."""
    names = [pl.col(name).cast(pl.String).fill_null(_NAMELESS) for name in levels]
    leaves = rows.with_columns(names).group_by(levels).agg(pl.col("self_ps").sum() / count)
    depths = range(1, len(levels) + 1)
    leaves = leaves.with_columns(
        *(pl.col("self_ps").sum().over(levels[:depth]).alias(f"time_{depth}") for depth in depths),
        *((pl.col(levels[depth - 1]) == _NAMELESS).alias(f"nameless_{depth}") for depth in depths),
    )
    order = [key for depth in depths for key in (f"nameless_{depth}", f"time_{depth}", levels[depth - 1])]
    leaves = leaves.sort(order, descending=[False, True, False] * len(levels))
    leaves = leaves.with_columns(until=pl.col("self_ps").cum_sum())
    whole = float(leaves["self_ps"].sum())
    hues = _hues(leaves, levels)
    spans = []
    for depth in depths:
        of = leaves.group_by(levels[:depth], maintain_order=True).agg(
            pl.col("self_ps").sum(), pl.col("until").max(), pl.col(f"nameless_{depth}").first().alias("nameless")
        )
        colour = pl.lit(_OTHERS) if depth == 1 else pl.col(levels[1]).replace_strict(hues, default=_OTHERS)
        title = "step" if depth == 1 else _LEVELS[levels[depth - 1]]
        spans.append(
            of.select(
                "self_ps",
                "nameless",
                level=pl.lit(title),
                name=clean(pl.col(levels[depth - 1])),
                share=pl.col("self_ps") / whole,
                until=pl.col("until") / 1e9,
                colour=pl.when("nameless").then(pl.lit(NOISE)).otherwise(colour),
                **{"from": (pl.col("until") - pl.col("self_ps")) / 1e9},
            )
        )
    return _labelled(pl.concat(spans))


def _hues(leaves: pl.DataFrame, levels: list[str]) -> dict[str, str]:
    """Return a colour for each of the six of the second level with most time."""
    if len(levels) < 2:
        return {}
    named = leaves.filter(pl.col(levels[1]) != _NAMELESS)[levels[1]].unique(maintain_order=True)
    return dict(zip(named, PALETTE, strict=False))


def _labelled(spans: pl.DataFrame) -> pl.DataFrame:
    """Return spans with the text that fits each, its tooltip and its middle."""
    fits = (spans["share"] * WIDTH / LETTER - 1).cast(pl.Int64).to_list()
    names = [plain(name) for name in spans["name"]]
    texts = [cut(name, room) if room >= 4 else "" for name, room in zip(names, fits, strict=True)]
    about = [
        f"{level} {cut(name, 160)}: {duration(round(time))} per step, {percent(share, 1)} of device self time"
        for level, name, time, share in zip(spans["level"], names, spans["self_ps"], spans["share"], strict=True)
    ]
    return spans.with_columns(
        text=pl.Series(texts, dtype=pl.String),
        about=pl.Series(about, dtype=pl.String),
        middle=(pl.col("from") + pl.col("until")) / 2,
        white=pl.col("colour").is_in(_WHITE_ON),
    )


def _of(steps: Steps) -> str:
    return f" · {cleaned(steps.name)}" if steps.name else ""


_BINS = 400  # in time


def counters(profile: Profile) -> LayerPicture:
    """Return the utilisation of each unit over time by its hardware counter, mean over devices.

    Raises
    ------
    TpunbError
        When the profile has no hardware counters.
    """
    rows = profile.counters.select("start_ps", name="counter", value=pl.col("value") * 100)
    return _over_time(profile, rows, "Hardware counters", "utilisation", "%", pl.col("value").mean())


def memory(profile: Profile) -> LayerPicture:
    """Return the memory in use over time by allocator: its maximum in each of 400 bins.

    Raises
    ------
    TpunbError
        When the profile has no events of allocators.
    """
    host = pl.when(profile.memory["host"].n_unique() > 1).then(pl.col("host") + " ").otherwise(pl.lit(""))
    name = host + pl.col("allocator").cast(pl.String).fill_null("unnamed").str.replace(r"^(\d+)$", "TPU:$1")
    rows = profile.memory.select("start_ps", name=name, value=pl.col("in_use_bytes") / 1e9)
    return _over_time(profile, rows, "Memory in use", "memory in use", "GB", pl.col("value").max())


def _over_time(
    profile: Profile, rows: pl.DataFrame, title: str, what: str, unit: str, mean_or_max: pl.Expr
) -> LayerPicture:
    """Return a line per name, of those with the highest values."""
    rows = rows.drop_nulls("value").with_columns(pl.col("name").cast(pl.String))
    if rows.is_empty():
        raise TpunbError(f"{profile.name} holds no {title.lower()}", hint="record it with them, see docs/profiles.md")
    highest = rows.group_by("name").agg(pl.col("value").max()).sort("value", "name", descending=[True, False])
    shown = highest.head(len(PALETTE))
    width = max(profile.span_ps, *rows["start_ps"], 1) // _BINS + 1
    binned = rows.join(shown, on="name", how="semi").group_by("name", bin=pl.col("start_ps") // width).agg(mean_or_max)
    binned = binned.sort("name", "bin").select(
        "name",
        "value",
        second=pl.col("bin") * width / 1e12,
        about=pl.format("{}: {} at {} s", "name", pl.col("value").round(3), (pl.col("bin") * width / 1e12).round(3)),
    )
    axis, peaks = f"{what} ({unit})", [f"{name} {value:.3g} {unit}" for name, value in shown.rows()]
    others = f"; {highest.height - shown.height} more left out" if highest.height > shown.height else ""
    colour = alt.Color("name:N", title=None).scale(range=PALETTE)
    line = rows_of(binned).encode(x=alt.X("second:Q", title=TIME), y=alt.Y("value:Q", title=axis), color=colour)
    text = cleaned(f"{title} · {profile.name}")
    return LayerPicture(
        layer=[line.mark_line(interpolate="step-after"), line.mark_point(size=9, filled=True)],
        title=alt.TitleParams(text, subtitle=[cleaned(f"at most: {listed(peaks)}{others}")]),
        description=cleaned(f"{text}, at most: {listed(peaks)}{others}."),
        width=WIDTH,
        height=200,
    )
