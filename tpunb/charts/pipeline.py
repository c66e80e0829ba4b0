"""Workers of a job with pipeline parallelism by stage, and the chain of operations that ends one step."""

from __future__ import annotations

import altair as alt
import polars as pl

from tpunb.analysis.stragglers import Hosts
from tpunb.charts.render import VConcatPicture
from tpunb.charts.style import INK, PALETTE, WIDTH, listed, names_of, rows_of
from tpunb.errors import TpunbError, wrong_type
from tpunb.step_stats.op_names import PEERS
from tpunb.text import cut, plain, plural

_RANKS = 24  # most rows of the heat map, slowest first
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
    cells, chain = _cells(found), _chain(found, step)
    top = cells.sort("slowdown", descending=True).head(3)
    texts = [f"{host}: {slowdown:.2f}" for host, slowdown in top.select("host", "slowdown").rows()]
    about = f"slowdown {found.slowdown:.2f} against operations of typical length, cause: {found.cause}"
    return VConcatPicture(
        vconcat=[_heat_map(cells), _gantt(chain, step)],
        title=alt.TitleParams("Workers of the pipeline", subtitle=[about]),
        description=f"Slowdown by each worker, and the chain of step {step}. {about}. Slowest: {listed(texts)}.",
        usermeta={"room": 300},  # points on the page beside the plot
    )


def _cells(found: Hosts) -> pl.DataFrame:
    """Return stage, rank, host and slowdown of each worker: the lesser of stage and data-parallel rank."""
    parts = [
        found.what_if.filter(part=part).select(pl.col("name").alias(name), pl.col("slowdown").alias(f"of_{name}"))
        for part, name in (("stage", "stage"), ("data-parallel rank", "rank"))
    ]
    roles = pl.format("stage {}, data-parallel rank {}", "stage", "rank")
    names = found.frame.drop_nulls("role").select("host", "role")
    ranks = parts[1].sort("of_rank", descending=True).head(_RANKS)
    cells = (
        parts[0].join(ranks, how="cross").with_columns(role=roles, slowdown=pl.min_horizontal("of_stage", "of_rank"))
    )
    cells = cells.join(names, on="role", how="left").with_columns(pl.col("host").fill_null("no data"))
    return cells.with_columns(
        pl.col("stage", "rank").cast(pl.Int64),
        shown=pl.col("slowdown").map_elements("{:.2f}".format, return_dtype=pl.String),
        excess=(pl.col("slowdown") - 1).clip(0),
    )


def _heat_map(cells: pl.DataFrame) -> alt.LayerChart:
    about = "datum.host + ' (' + datum.role + '): ' + datum.shown"
    most = max(float(cells["excess"].max() or 0), 0.1)  # type: ignore[arg-type]  # of floats
    strength = alt.Opacity("excess:Q", scale=alt.Scale(domain=[0, most], range=[0.05, 1], clamp=True), legend=None)
    base = rows_of(cells).transform_calculate(about=about)
    base = base.encode(x=alt.X("stage:O", title="stage", axis=alt.Axis(labelAngle=0)), y=alt.Y("rank:O", title=None))
    title = "Slowdown if only this worker takes as long as measured, by data-parallel rank and stage"
    return alt.LayerChart(
        layer=[
            base.mark_rect(color=PALETTE[5]).encode(opacity=strength),
            base.mark_text(color=INK).encode(text="shown:N"),
        ],
        title=alt.TitleParams(title, fontSize=11),
        width=WIDTH,
        height=_ROW * cells["rank"].n_unique(),
    )


def _chain(found: Hosts, step: int) -> pl.DataFrame:
    """Return the operations of a chain with their begin and end in seconds."""
    roles = found.frame.select("host", "role")
    rows = found.critical.filter(step=step).join(roles, on="host", how="left", maintain_order="left")
    op, end = pl.col("op").cast(pl.String), pl.col("dur_ps").cum_sum() / 1e12
    direction = op.str.extract("^(forward|backward)-").fill_null("other computation")
    hosts = rows.select("host", "role").unique().sort(pl.col("role").str.extract(r"(\d+)").cast(pl.Int64), "host")
    labels = dict(zip(hosts["host"], names_of(cut(plain(host or "no data")) for host in hosts["host"]), strict=True))
    return rows.select(
        label=pl.col("host").replace_strict(labels, default="no data"),
        role=pl.col("role").fill_null("no data"),
        op=op,
        kind=pl.when(op.str.contains(PEERS)).then(pl.lit("communication")).otherwise(direction),
        begin=(end - pl.col("dur_ps") / 1e12).round(6),
        end=end.round(6),
        order=pl.col("host").replace_strict({host: n for n, host in enumerate(labels)}, default=len(labels)),
    )


def _gantt(chain: pl.DataFrame, step: int) -> alt.Chart:
    took = "format(1000 * (datum.end - datum.begin), '.1f') + ' ms'"
    about = f"datum.label + ' (' + datum.role + '): ' + datum.op + ', ' + {took}"
    order = chain.sort("order")["label"].unique(maintain_order=True).to_list()
    kinds = [kind for kind in _HUES if kind in {*chain["kind"]}]
    hue = alt.Color(
        "kind:N",
        scale=alt.Scale(domain=kinds, range=[_HUES[kind] for kind in kinds]),
        legend=alt.Legend(orient="bottom", title=None, symbolType="square", symbolStrokeWidth=0),
    )
    title = alt.TitleParams(f"Chain of step {step}: {plural(len(chain), 'operation')} that end it", fontSize=11)
    chart = rows_of(chain).transform_calculate(about=about).mark_rect().encode(color=hue, x2="end:Q")
    chart = chart.encode(
        x=alt.X("begin:Q", title="time in the step without gaps (s)", scale=alt.Scale(nice=False)),
        y=alt.Y("label:N", sort=order, title=None),
    )
    drawn: alt.Chart = chart.properties(width=WIDTH, height=_ROW * len(order), title=title)
    return drawn
