"""Paces of one kind of steps, where the program itself marks that something else begins.

Two calls of ``fit`` on images of two sizes run the same operations, and a window may see a few steps of one of them,
slowed by the profiler; the host clock timed all. By its step times such calls differ. Without a mark, a call of
``fit``, tuning in its midst, or a function that is traced or compiled again, another pace is no other kind: a machine
slows down and recovers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from tpunb.cluster.limits import LIMITS
from tpunb.cluster.recorded import input_ops, launches
from tpunb.frames import Steps
from tpunb.frames.cache import memoised
from tpunb.frames.exclusive_time import exclusive_time
from tpunb.frames.op_matrix import Bools, Ints, op_matrix, self_times

if TYPE_CHECKING:
    from scipy.sparse import csr_array


def kinds_of(steps: Steps) -> Ints:
    """Return the kind of each step, and its pace between marks of the program, as a number from 0: (steps,).

    >>> from tpunb.testing import toy_steps
    >>> kinds_of(toy_steps("aab")).tolist()
    [0, 0, 0]
    """
    if steps.whole is None:
        return _kinds(steps)
    kinds = steps.whole.frame.select("host", "step", pl.Series("number", _kinds(steps.whole)))
    placed = steps.frame.join(kinds, on=["host", "step"], how="left", maintain_order="left")
    return placed["number"].fill_null(0).to_numpy().astype(np.int64)


@memoised
def _kinds(steps: Steps) -> Ints:
    frame = steps.frame.select(
        pl.col("kind").fill_null(""), "host", "traced", exclusive_time(), pl.Series("stretch", _stretches(steps))
    )
    exclusive, took = pl.col("exclusive_ps"), pl.col("exclusive_ps") > 0
    # tracing slows steps down
    timed, untraced = exclusive.filter(took), exclusive.filter(took & (pl.col("traced") == "none"))
    fewest = LIMITS.pace_fewest_steps
    stretches = frame.group_by("kind", "host", "stretch").agg(
        *(
            pl.when(untraced.len() >= fewest).then(untraced.quantile(q)).otherwise(timed.quantile(q)).alias(name)
            for name, q in (("low", 0.25), ("middle", 0.5), ("high", 0.75))
        ),
        paced=(timed.len() >= fewest) & (timed.sum() > 0),
        spent=timed.sum(),
    )
    stretches = (
        stretches.with_columns(
            pl.col("paced") & (pl.col("spent") >= LIMITS.pace_time_share * pl.col("spent").sum().over("kind"))
        )
        .sort("kind", "middle", "host", "stretch")
        .with_columns(other=_other_pace().over("kind"))
        .with_columns(
            number=(pl.col("other") | (pl.col("kind") != pl.col("kind").shift())).fill_null(value=False).cum_sum()
        )
    )
    placed = frame.join(stretches, on=["kind", "host", "stretch"], how="left", maintain_order="left")
    return placed["number"].to_numpy().astype(np.int64)


def _other_pace() -> pl.Expr:
    """Whether a stretch begins another pace: far above the one before, in order of pace, and hardly overlapping."""
    before = {name: pl.when("paced").then(name).forward_fill().shift() for name in ("middle", "high")}
    far = (pl.col("middle") >= LIMITS.pace_ratio * before["middle"]) & (pl.col("low") > before["high"])
    return (pl.col("paced") & far).fill_null(value=False)


def _stretches(steps: Steps) -> Ints:
    """Return the number of marks on its host before the middle of each step."""
    stretch = np.zeros(len(steps), dtype=np.int64)
    if steps.wall is None:
        return stretch
    function = pl.col("detail").str.extract(r"^(.*?)(?: again for |…|$)")
    again = pl.int_range(pl.len()).over("host", function) > 0
    again &= (pl.col("account") == "program startup") & (pl.col("dur_ps") >= LIMITS.shortest_compilation_ps)
    spans = steps.wall.spans.sort("start_ps")
    marks = spans.filter(pl.col("account").is_in(["fit", "tuning"]) | again).select("host", "start_ps")
    middle = (steps.frame["start_ps"] + steps.frame["dur_ps"].fill_null(0) // 2).fill_null(0).to_numpy()
    for (host,), part in marks.partition_by("host", as_dict=True).items():
        rows = (steps.frame["host"] == host).to_numpy()
        stretch[rows] = np.searchsorted(part["start_ps"].to_numpy(), middle[rows])
    return stretch


def alternate(steps: Steps, rows: Ints, labels: Ints) -> bool:
    """Return whether all clusters, of rows of steps in order of time, are other work by alternation and operations."""
    exclusive_ps = steps.frame.select(exclusive_time()).to_series().fill_null(0).to_numpy()[rows]
    ids = [label for label in np.unique(labels) if label >= 0]
    ids = sorted(ids, key=lambda label: float(np.median(exclusive_ps[labels == label])))
    if len(ids) < 2 or min(int((labels == label).sum()) for label in ids) < LIMITS.alternating_fewest_steps:
        return False
    ops, (times, _) = op_matrix(steps), self_times(steps)
    of_work = ~(input_ops(ops) | launches(ops))
    typical = [_typical(times, rows[labels == label], of_work) for label in ids]
    for shorter, longer, short_work, long_work in zip(ids, ids[1:], typical, typical[1:], strict=False):
        short, long = exclusive_ps[labels == shorter], exclusive_ps[labels == longer]
        factor = np.median(long) / max(np.median(short), 1)
        if factor < LIMITS.alternating_time_ratio or np.quantile(long, 0.25) <= np.quantile(short, 0.75):
            return False
        if long_work < short_work * factor**LIMITS.alternating_explained:
            return False
        order = labels[(labels == shorter) | (labels == longer)]
        if np.count_nonzero(np.diff(order)) < LIMITS.alternating_changes * 2 * len(short) * len(long) / len(order):
            return False
    return True


def _typical(times: csr_array, rows: Ints, chosen: Bools) -> float:
    """Return the sum of the median self times of chosen operations, in picoseconds."""
    sample = rows[np.linspace(0, len(rows) - 1, min(len(rows), LIMITS.alternating_most_steps)).astype(np.int64)]
    return float(np.median(times[sample].toarray()[:, chosen], axis=0).sum())
