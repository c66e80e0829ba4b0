"""One row per phase: the aggregates of its steps."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tpunb import schema
from tpunb.frames.cache import memoised, memoised_last
from tpunb.frames.exclusive_time import deviates, exclusive_time, group_medians, rows_by_time
from tpunb.frames.op_matrix import Floats, Ints, factorize
from tpunb.frames.phase_names import phase_names, saving
from tpunb.frames.steps import Steps

_SUMS = ("device_ps", "idle_ps", "input_ps")  # null if no step of the phase has it
_DRIFTING = 20  # fewest steps whose drift is known


def rows(steps: Steps, labels: pl.Series) -> pl.DataFrame:
    """Return one row per phase, longest first: ``tpunb.schema.PHASES``; labels are -1 for outliers.

    >>> from tpunb.testing import toy_steps
    >>> rows(toy_steps("aab"), pl.Series([0, 0, 1])).select("phase", "steps", "kinds", "step_ps").rows()
    [(0, 2, 'train', 1000000000), (1, 1, 'train', 2000000000)]
    """
    return _rows(steps, labels.to_numpy().astype(np.int64).tobytes())


@memoised_last  # a slider often moves without changing a label
def _rows(steps: Steps, labels: bytes) -> pl.DataFrame:
    from tpunb.frames.phase_sums import in_phases, middle_values, row_sums

    columns = _columns(steps)
    ids, phase = factorize(np.frombuffer(labels, dtype=np.int64))
    sums = np.zeros((len(ids), columns.sums.shape[1]), dtype=np.int64)
    row_sums(phase, columns.sums, sums)
    sum_of = dict(zip(columns.names, sums.T, strict=True))
    middle = np.zeros((len(ids), 2), dtype=np.int64)
    middle_values(phase, columns.by_time, columns.time, sum_of["timed"], middle)
    # as in goodput: the exclusive time of a step, of an unusually long one up to the median of its phase or kind
    of_phase = group_medians(columns.exclusive, phase, columns.by_exclusive)[phase]
    usual = np.where(ids[phase] < 0, columns.kind_median, of_phase)
    productive = np.zeros((len(ids), 1), dtype=np.int64)
    exclusive = np.where(deviates(columns.exclusive, usual), usual, columns.exclusive)
    row_sums(phase, exclusive[:, None], productive)  # in integers
    order = np.empty_like(columns.by_start)
    size = in_phases(phase, columns.by_start, order)  # of steps that have a start
    after = np.cumsum(size)
    first, last = (np.append(order, -1)[np.where(size > 0, at, -1)] for at in (after - size, after - 1))
    begins, ends = (steps.frame["start_ps", "step"][rows.clip(0)] for rows in (first, last))
    count = np.bincount(phase, minlength=len(ids))
    frame = pl.DataFrame(
        {
            "phase": ids,
            "steps": count,
            "full": sum_of["full"],
            "kinds": _kinds(columns, phase, len(ids)),
            "first_step": _where(first >= 0, begins["step"]),
            "start_ps": _where(first >= 0, begins["start_ps"]),
            "dur_ps": sum_of["dur_ps"],
            "productive_ps": productive[:, 0],
            "share": productive[:, 0] / max(int(productive.sum()), 1),
            "step_ps": _ratio(middle.sum(axis=1), 2 * (sum_of["timed"] > 0)).round(),
            **{name: _where(sum_of[f"{name} steps"] > 0, sum_of[name]) for name in _SUMS},
            "input": _ratio(sum_of["input_ps"], sum_of["input base_ps"]),
            "step_time_cv": _step_time_cv(columns, phase, len(ids)),
            "drift": _drift(columns, phase, order, size, (count >= _DRIFTING) & (ids >= 0)),
            "idle": _ratio(sum_of["idle_ps"], sum_of["idle base_ps"]),
            "mxu_util": _ratio(np.bincount(phase, columns.mxu, minlength=len(ids)), sum_of["mxu base_ps"]),
        }
    )
    shares = {name: sum_of[name] / count for name in ("saving", "compiling")}
    named = frame.with_columns(last_ps=_where(last >= 0, ends["start_ps"]), **shares)
    frame = frame.with_columns(name=pl.Series(phase_names(named.to_dicts()), dtype=pl.String))
    return schema.check(frame.sort("productive_ps", "phase", descending=[True, False]), schema.PHASES, "phases")


class _Columns(NamedTuple):
    """What depends on the steps alone, as arrays."""

    names: list[str]
    sums: Ints  # of `names`, to add up
    time: Ints  # 0 where null
    mxu: Floats  # utilisation times picoseconds
    by_time: Ints  # rows that have a time
    by_start: Ints
    timed: NDArray[np.bool_]
    partial: NDArray[np.bool_]
    kinds: list[str]
    kind: Ints  # number in `kinds`, with one more for none
    exclusive: Ints
    by_exclusive: Ints  # rows that took time
    kind_median: Ints  # of `exclusive` over the kind


@memoised
def _columns(steps: Steps) -> _Columns:
    dur = pl.col("dur_ps").fill_null(0)
    having = {f"{name} steps": pl.col(name).is_not_null() for name in _SUMS}
    bases = {
        # devices may idle beyond a step that ends with its launch: never for more than all their time
        "idle base_ps": pl.when(pl.col("idle_ps") > dur)
        .then(pl.col("idle_ps") + pl.col("device_ps").fill_null(0))
        .otherwise(dur * pl.col("idle_ps").is_not_null()),
        "input base_ps": dur * pl.col("input_ps").is_not_null(),
        "mxu base_ps": dur * pl.col("mxu_util").is_not_null(),
    }
    added = steps.frame.select(
        *_SUMS,
        full=pl.col("traced") == "full",
        timed=pl.col("dur_ps").is_not_null(),
        dur_ps=dur,
        saving=saving(steps),
        compiling=pl.col("compile_ps") > 0,
        **having,
        **bases,
    ).select(pl.all().cast(pl.Int64).fill_null(0))
    kinds = steps.frame["kind"].drop_nulls().unique().sort()
    kind = (steps.frame["kind"].rank("dense").cast(pl.Int64) - 1).fill_null(len(kinds)).to_numpy()
    exclusive = steps.frame.select(exclusive_time().fill_null(0)).to_series().to_numpy()
    ascending = rows_by_time(exclusive)
    return _Columns(
        added.columns,
        np.ascontiguousarray(added.to_numpy()),
        added["dur_ps"].to_numpy(),
        steps.frame.select((pl.col("mxu_util") * dur).fill_null(0.0)).to_series().to_numpy(),
        _ascending(steps.frame["dur_ps"]),
        _ascending(steps.frame["start_ps"]),
        added["timed"].to_numpy() > 0,
        (steps.frame["traced"] == "partial").to_numpy(),
        kinds.to_list(),
        kind,
        exclusive,
        ascending,
        group_medians(exclusive, kind, ascending)[kind],
    )


def _ascending(column: pl.Series) -> Ints:
    """Return the rows of a column in order of its values, without nulls."""
    order = np.argsort(column.fill_null(0).to_numpy(), kind="stable")
    return np.asarray(order[column.is_not_null().to_numpy()[order]])


def _where(valid: NDArray[np.bool_], values: NDArray[np.number] | pl.Series) -> pl.Series:
    return pl.Series(values).set(pl.Series(~valid), None)


def _ratio(part: NDArray[np.number], base: Ints) -> pl.Series:
    """Return a quotient, null if the base is 0."""
    return _where(base > 0, part / np.maximum(base, 1))


def _step_time_cv(columns: _Columns, phase: Ints, phases: int) -> pl.Series:
    """Return the coefficient of variation of step time, without partial steps (too long) where there are others."""
    from tpunb.frames.phase_sums import variances

    moments = np.zeros((phases, 2))
    size = variances(phase, columns.time, columns.timed, ~columns.partial, moments)
    return _where(size > 0, np.sqrt(moments[:, 1]) / moments[:, 0].clip(1))


def _drift(columns: _Columns, phase: Ints, order: Ints, size: Ints, of: NDArray[np.bool_]) -> pl.Series:
    """Return the median exclusive time of the last tenth of each phase's steps by that of the first, less 1."""
    from tpunb.frames.phase_sums import ends

    end = np.full(len(phase), -1)
    ends(order, size, end)
    rows = columns.by_exclusive[end[columns.by_exclusive] >= 0]
    middle = group_medians(columns.exclusive, end.clip(0), rows)
    first, last = np.append(middle, np.zeros(2 * len(size) - len(middle), np.int64)).reshape(-1, 2).T
    return _where(of & (first > 0), last / np.maximum(first, 1) - 1)


def _kinds(columns: _Columns, phase: Ints, phases: int) -> pl.Series:
    """Return the kinds of the steps of each phase in one text, the most frequent first."""
    width = len(columns.kinds) + 1
    counts = np.bincount(phase * width + columns.kind, minlength=phases * width).reshape(-1, width)
    counts[:, -1] = 0
    different = (counts > 0).sum(axis=1)
    texts = np.array([*columns.kinds, None], dtype=object)[np.where(different > 0, counts.argmax(axis=1), -1)]
    for row in np.flatnonzero(different > 1):
        order = np.argsort(-counts[row], kind="stable")
        texts[row] = ", ".join(columns.kinds[kind] for kind in order if counts[row, kind])
    return pl.Series(texts.tolist(), dtype=pl.String)
