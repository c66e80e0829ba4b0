"""One row per phase: the aggregates of its steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tpunb import schema
from tpunb.frames.cache import memoised, memoised_last
from tpunb.frames.exclusive_time import USUAL, exclusive_time, group_medians, rows_by_time
from tpunb.frames.op_matrix import Ints, factorize
from tpunb.frames.phase_names import phase_names, saving
from tpunb.frames.steps import Steps

if TYPE_CHECKING:
    from tpunb.frames.phase_sums import StepValues

_SUMS = ("device_ps", "idle_ps", "input_ps")  # null if no step of the phase has it
FEWEST_DRIFTING = 20
"""Steps from which on it is known whether their time drifts."""


def rows(steps: Steps, labels: pl.Series) -> pl.DataFrame:
    """Return one row per phase, longest first: ``tpunb.schema.PHASES``; labels are -1 for outliers.

    >>> from tpunb.testing import toy_steps
    >>> rows(toy_steps("aab"), pl.Series([0, 0, 1])).select("phase", "steps", "kinds", "step_ps").rows()
    [(0, 2, 'train', 1000000000), (1, 1, 'train', 2000000000)]
    """
    values = labels.to_numpy()
    low, high = int(values.min(initial=0)), int(values.max(initial=0))
    dtype = np.min_scalar_type(min(low, -1 - high))  # few bytes are compared faster
    return _rows(steps, values.astype(dtype).tobytes(), dtype)


@memoised_last  # a slider often moves without changing a label
def _rows(steps: Steps, labels: bytes, dtype: np.dtype[Any]) -> pl.DataFrame:
    from tpunb.frames.phase_sums import middle_values, phase_deviations, phase_ends, phase_sums

    columns, values = _columns(steps), _columns(steps).values
    ids, phase = factorize(np.frombuffer(labels, dtype))
    counts, sums, floats = phase_sums(phase, len(ids), len(columns.flags), values)
    totals = np.ascontiguousarray(np.hstack([sums, counts @ columns.flags]).T)  # loops are compiled for one layout
    sum_of = dict(zip(columns.names, totals, strict=True))
    count, timed, usual = counts.sum(axis=1), sum_of["timed"], sum_of["usual"]
    # step time varies without partial steps (too long) where there are others
    varies, varying = np.where(usual > 0, 1, 2), np.where(usual > 0, usual, timed)
    mean = floats[np.arange(len(ids)), varies] / varying.clip(1)
    exclusive = values.by_exclusive, values.exclusive
    # as in goodput: the exclusive time of a step, of an unusually long one up to the median of its phase or kind
    medians = middle_values(phase, *exclusive, sum_of["took"]).sum(axis=1) // 2
    productive, squares = phase_deviations(phase, values, varies, mean, np.where(ids < 0, -1, medians), USUAL)
    ends, tenth, tenths = phase_ends(phase, values, sum_of["started"])
    begin, end = (middle_values(tenth, *exclusive, tenths).sum(axis=1) // 2).reshape(-1, 2).T
    first, last = (_where(sum_of["started"] > 0, steps.frame["start_ps"][at]) for at in ends.clip(0).T)
    step_ps = _ratio(middle_values(phase, values.by_time, values.time, timed).sum(axis=1), 2 * (timed > 0))
    table = {
        "phase": ids,
        "steps": count,
        "full": sum_of["full"],
        "kinds": _kinds(columns.kinds, counts @ columns.of_kind),
        "first_step": _where(sum_of["started"] > 0, steps.frame["step"][ends[:, 0].clip(0)]),
        "start_ps": first,
        "dur_ps": sum_of["dur_ps"],
        "productive_ps": productive,
        "share": productive / max(int(productive.sum()), 1),
        "step_ps": step_ps.round().cast(int),
        **{name: _where(sum_of[f"{name} steps"] > 0, sum_of[name]) for name in _SUMS},
        "input": _ratio(sum_of["input_ps"], sum_of["input base_ps"]),
        "step_time_cv": _where(varying > 0, np.sqrt(squares / varying.clip(1)) / mean.clip(1)),
        # median exclusive time of the last tenth of the steps by that of the first, less 1
        "drift": _where((count >= FEWEST_DRIFTING) & (ids >= 0) & (begin > 0), end / begin.clip(1) - 1),
        "idle": _ratio(sum_of["idle_ps"], sum_of["idle base_ps"]),
        "mxu_util": _ratio(floats[:, 0], sum_of["mxu base_ps"]),
        "confidence": pl.Series([None] * len(ids), dtype=pl.Float64),
    }
    shares = {name: sum_of[name] / count for name in ("saving", "compiling")}
    names = phase_names(pl.DataFrame({**table, "last_ps": last, **shares}).to_dicts())
    frame = pl.DataFrame(table).insert_column(1, pl.Series("name", names, dtype=pl.String))
    return schema.check(frame[np.argsort(-productive, kind="stable")], schema.PHASES, "phases")


class _Columns(NamedTuple):
    """What depends on the steps alone, and what its sums are called."""

    names: list[str]  # of the sums, then of the flags
    flags: Ints  # (combinations, flags)
    kinds: list[str]
    of_kind: Ints  # which combinations are of each kind, the last of none: (combinations, kinds + 1)
    values: StepValues


@memoised
def _columns(steps: Steps) -> _Columns:
    from tpunb.frames.phase_sums import StepValues

    dur = pl.col("dur_ps").fill_null(0)
    idle_base = (  # devices may idle beyond a step that ends with its launch: never for more than all their time
        pl.when(pl.col("idle_ps") > dur)
        .then(pl.col("idle_ps") + pl.col("device_ps").fill_null(0))
        .otherwise(dur * pl.col("idle_ps").is_not_null())
    )
    added = steps.frame.select(
        *_SUMS,
        dur,
        idle_base.alias("idle base_ps"),
        (dur * pl.col("input_ps").is_not_null()).alias("input base_ps"),
        (dur * pl.col("mxu_util").is_not_null()).alias("mxu base_ps"),
    ).select(pl.all().cast(pl.Int64).fill_null(0))
    exclusive = steps.frame.select(exclusive_time().fill_null(0)).to_series().to_numpy()
    timed = pl.col("dur_ps").is_not_null()
    flags = steps.frame.select(
        full=pl.col("traced") == "full",
        timed=timed,
        usual=timed & (pl.col("traced") != "partial"),
        saving=saving(steps),
        compiling=pl.col("compile_ps") > 0,
        took=pl.Series(exclusive) > 0,
        started=pl.col("start_ps").is_not_null(),
        **{f"{name} steps": pl.col(name).is_not_null() for name in _SUMS},
    ).select(pl.all().cast(pl.Int64).fill_null(0))
    kinds = steps.frame["kind"].drop_nulls().unique().sort()
    kind = (steps.frame["kind"].rank("dense").cast(pl.Int64) - 1).fill_null(len(kinds)).to_numpy()
    bits = np.arange(flags.width)
    combinations, of_step = factorize((kind << flags.width) + (flags.to_numpy() << bits).sum(axis=1))
    ascending = rows_by_time(exclusive)
    varies = flags.select(pl.when(usual=1).then(1).otherwise(2 * pl.col("timed"))).to_series()
    values = (
        added.to_numpy(),
        steps.frame.select((pl.col("mxu_util") * dur).fill_null(0.0)).to_series(),
        added["dur_ps"],
        varies.cast(pl.Int8),
        exclusive,
        group_medians(exclusive, kind, ascending)[kind],
        _ascending(steps.frame["dur_ps"]),
        _ascending(steps.frame["start_ps"]),
        ascending,
    )
    return _Columns(
        [*added.columns, *flags.columns],
        combinations[:, None] >> bits & 1,
        kinds.to_list(),
        ((combinations >> flags.width)[:, None] == [*range(len(kinds)), -1]).astype(np.int64),
        StepValues(of_step, *(np.array(column, order="C") for column in values)),
    )


def _ascending(column: pl.Series) -> Ints:
    """Return the rows of a column in order of its values, without nulls."""
    order = np.argsort(column.fill_null(0).to_numpy(), kind="stable")
    return np.asarray(order[column.is_not_null().to_numpy()[order]])


def _where(valid: NDArray[np.bool_], values: NDArray[np.number] | pl.Series) -> pl.Series:
    return pl.Series(values) if valid.all() else pl.Series(values).set(pl.Series(~valid), None)


def _ratio(part: NDArray[np.number], base: Ints) -> pl.Series:
    """Return a quotient, null if the base is 0."""
    return _where(base > 0, part / np.maximum(base, 1))


def _kinds(names: list[str], counts: Ints) -> pl.Series:
    """Return the kinds of the steps of each phase in one text, the most frequent first."""
    different = (counts > 0).sum(axis=1)
    texts = np.array([*names, None], dtype=object)[np.where(different > 0, counts.argmax(axis=1), -1)]
    for row in np.flatnonzero(different > 1):
        order = np.argsort(-counts[row], kind="stable")
        texts[row] = ", ".join(names[kind] for kind in order if counts[row, kind])
    return pl.Series(texts.tolist(), dtype=pl.String)
