"""Workers of a job with pipeline parallelism by stage, and the chain of operations that ends one step."""

from __future__ import annotations

import altair as alt
import polars as pl

from tpunb.analysis.stragglers import Hosts
from tpunb.charts.render import VConcatPicture
from tpunb.charts.style import INK, PALETTE, WIDTH, hue, listed, names_of, rows_of
from tpunb.errors import TpunbError, wrong_type
from tpunb.step_stats.op_names import PEERS
from tpunb.text import plural

_RANKS = 24  # most rows of the heat map, slowest first
_PLACE = r"\(stage (?<stage>\d+), dp (?<rank>\d+)\)$"
_ROW = 18  # points
_HUES = dict(
    zip(("forward", "backward", "other computation", "communication"), (*PALETTE[:3], PALETTE[5]), strict=True)
)


def pipeline(found: Hosts, step: int | None = None) -> VConcatPicture:
    """Return the slowdown by each worker, stages across and data-parallel ranks down, above the chain of one step.

    Parameters
    ----------
    found
        Hosts of `tp.hosts`, of a job with pipeline parallelism.
    step
        Number of the step of the chain; the one of median duration by default.

    Raises
    ------
    TypeError
        When `found` is something else.
    ValueError
        When the step was not replayed.
    TpunbError
        When the job has no pipeline.
    """
    if not isinstance(found, Hosts):
        raise wrong_type("pipeline", "found", "be Hosts", found, hint="tp.hosts(steps)")
    if found.slowdown is None:
        raise TpunbError("the job has no pipeline that was replayed", hint="charts.hosts draws the hosts of other jobs")
    times = found.critical.group_by("step").agg(pl.col("dur_ps").sum()).sort("dur_ps", "step")
    step = int(times["step"][len(times) // 2]) if step is None else step
    if step not in times["step"]:
        raise ValueError(f"The step parameter of pipeline must be a step that was replayed. Got {step} instead.")
    about = f"slowdown {found.slowdown:.2f} against operations of typical length, cause: {found.cause}"
    cells, chain = _cells(found), _chain(found, step)
    count = f"{plural(len(chain), 'operation')} that end it"
    texts = cells.sort("slowdown", descending=True)["about"].to_list()
    return VConcatPicture(
        vconcat=[_heat_map(cells), _gantt(chain, f"Chain of step {step}: {count}")],
        title=alt.TitleParams("Workers of the pipeline", subtitle=[about]),
        description=f"Slowdown by each worker, and the chain of step {step}. {about}. {listed(texts)}.",
        usermeta={"room": 300},  # points on the page beside the plot
    )


def _cells(found: Hosts) -> pl.DataFrame:
    """Return stage, rank and slowdown of each worker, if it is not replayed the lesser of stage and rank."""
    stages, ranks = (
        found.what_if.filter(part=part).select(pl.col("name").cast(pl.Int64).alias(part), "slowdown")
        for part in ("stage", "data-parallel rank")
    )
    places = pl.col("name").str.extract_groups(_PLACE).struct.unnest().cast(pl.Int64)
    of_worker = found.what_if.filter(part="worker").select(places, exact="slowdown")
    cells = stages.join(ranks.sort("slowdown").tail(_RANKS), how="cross").rename({"data-parallel rank": "rank"})
    cells = cells.join(of_worker, on=["stage", "rank"], how="left")
    cells = cells.with_columns(slowdown=pl.coalesce("exact", pl.min_horizontal("slowdown", "slowdown_right")).round(4))
    shown = pl.col("slowdown").map_elements("{:.2f}".format, return_dtype=pl.String)
    return cells.with_columns(
        shown=shown, about=pl.format("stage {}, data-parallel rank {}: {}", "stage", "rank", shown)
    )


def _heat_map(cells: pl.DataFrame) -> alt.LayerChart:
    most = max(float(cells["slowdown"].max() or 0), 1.1)  # type: ignore[arg-type]  # of floats
    scale = alt.Scale(domain=[1, most], range=[0.05, 1], clamp=True)
    base = rows_of(cells).encode(
        x=alt.X("stage:O", title="stage", axis=alt.Axis(labelAngle=0)), y=alt.Y("rank:O", title=None)
    )
    layer = [
        base.mark_rect(color=PALETTE[5]).encode(opacity=alt.Opacity("slowdown:Q", scale=scale, legend=None)),
        base.mark_text(color=INK).encode(text="shown:N"),
    ]
    title = "Slowdown by each worker alone, data-parallel ranks down and stages across"
    height = _ROW * cells["rank"].n_unique()
    return alt.LayerChart(layer=layer, title=alt.TitleParams(title, fontSize=11), width=WIDTH, height=height)


def _chain(found: Hosts, step: int) -> pl.DataFrame:
    """Return the operations of a chain with their begin and end in seconds, and their place among the hosts."""
    rows = found.critical.filter(step=step).with_columns(
        pl.col("op").cast(pl.String), pl.col("host").fill_null("no data")
    )
    stage = pl.col("host").str.extract(r"stage (\d+)").cast(pl.Int64)
    hosts = rows.select(pl.col("host").unique()).sort(stage, "host")["host"].to_list()
    end = pl.col("dur_ps").cum_sum() / 1e12
    direction = pl.col("op").str.extract("^(forward|backward)-").fill_null("other computation")
    times = pl.format("{}: {}, {} ms", "label", "op", (pl.col("dur_ps") / 1e9).round(1))
    return rows.with_columns(
        label=pl.col("host").replace_strict(hosts, names_of(hosts)),
        place=pl.col("host").cast(pl.Enum(hosts)).to_physical(),
        kind=pl.when(pl.col("op").str.contains(PEERS)).then(pl.lit("communication")).otherwise(direction),
        begin=(end - pl.col("dur_ps") / 1e12).round(6),
        end=end.round(6),
    ).select("label", "place", "kind", "begin", "end", about=times)


def _gantt(chain: pl.DataFrame, title: str) -> alt.Chart:
    order = chain.sort("place")["label"].unique(maintain_order=True).to_list()
    kinds = {kind: colour for kind, colour in _HUES.items() if kind in {*chain["kind"]}}
    colour = hue("kind", kinds, title=None, symbolType="square", symbolStrokeWidth=0)
    x = alt.X("begin:Q", title="time in the step without gaps (s)", scale=alt.Scale(nice=False))
    y = alt.Y("label:N", sort=order, title=None)
    chart = rows_of(chain.drop("place")).mark_rect().encode(x=x, x2="end:Q", y=y, color=colour)
    shown: alt.Chart = chart.properties(
        width=WIDTH, height=_ROW * len(order), title=alt.TitleParams(title, fontSize=11)
    )
    return shown
