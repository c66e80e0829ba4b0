"""PyTorch's modules around the launches of kernels, from the frames of its Python tracer."""

from __future__ import annotations

import polars as pl

from tpunb.step_stats import launches

_FRAME = "$nn.Module: "  # such as "$nn.Module: Conv2d_0"
_DEEPEST = 32  # modules within modules
_BETWEEN = "\0"


def scoped(events: pl.DataFrame) -> pl.DataFrame:
    """Return `events` whose kernels have the modules around their launch in `tf_op`, to be separated by `split`."""
    frames = events.filter(pl.col("name").cat.starts_with(_FRAME))
    if frames.is_empty():
        return events
    on_device = pl.col("plane").cat.starts_with(launches.DEVICE)
    sent = launches.first_of(events.filter(~on_device), "correlation_id")
    kernels = events.with_row_index().filter(on_device).select("index", "host", "correlation_id", "tf_op")
    runs = kernels.join(sent.select("host", "correlation_id", "lane", at="start_ps"), on=["host", "correlation_id"])
    within = runs.sort("at").join_asof(_paths(frames), on="at", by="lane", check_sortedness=False)
    op = pl.col("tf_op").cast(pl.String).fill_null("")
    within = within.filter(pl.col("path") != "").select("index", tf_op=pl.concat_str("path", pl.lit(_BETWEEN), op))
    names = events["tf_op"].cast(pl.String).scatter(within["index"], within["tf_op"])
    return events.with_columns(tf_op=names.cast(events["tf_op"].dtype))


def split(tf_op: str) -> tuple[str | None, str | None]:
    """Return path of modules and framework op of what `scoped` joined, each None where there is none."""
    path, joined, op = tf_op.partition(_BETWEEN)
    return (path, op or None) if joined else (None, tf_op)


def _paths(frames: pl.DataFrame) -> pl.DataFrame:
    """Return (lane, at, path), by time: the modules that run on each lane from a moment on, outermost first."""
    rows: list[tuple[int, int, str]] = []
    frames = frames.sort("start_ps", -pl.col("dur_ps"))
    for (lane,), of_lane in frames.group_by("lane", maintain_order=True):
        stack: list[tuple[str, int]] = []
        spans = of_lane.select("name", "start_ps", end_ps=pl.col("start_ps") + pl.col("dur_ps")).rows()
        for name, start, end in (*spans, ("", 2**63, 0)):
            while stack and stack[-1][1] <= start:
                ended = stack.pop()[1]
                rows.append((lane, ended, "/".join(module for module, _ in stack[:_DEEPEST])))
            if name:
                stack.append((name.removeprefix(_FRAME), min([end, *(outer for _, outer in stack[-1:])])))
                rows.append((lane, start, "/".join(module for module, _ in stack[:_DEEPEST])))
    columns = {"lane": pl.UInt32, "at": pl.Int64, "path": pl.String}
    return pl.DataFrame(rows, schema=columns, orient="row").sort("at", maintain_order=True)
