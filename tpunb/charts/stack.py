"""Where the time of devices goes, from the step down to the instruction."""

from __future__ import annotations

import altair as alt
import polars as pl

from tpunb.charts.labels import LETTER, listed
from tpunb.charts.render import LayerPicture
from tpunb.charts.rows import NOISE, PALETTE, WIDTH, clean, cleaned, rows_of
from tpunb.errors import TpunbError, wrong
from tpunb.frames import Steps
from tpunb.text import cut, duration, percent, plain

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
        raise wrong("stack", "steps", "be Steps", steps)
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
