"""Phases as rows: what the steps of each add up to."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tpunb import schema
from tpunb.frames.memory import last_remembered, remembered
from tpunb.frames.op_matrix import Floats, Ints
from tpunb.frames.phase_sums import indexed
from tpunb.frames.steps import Steps

_SUMS = ("device_ps", "idle_ps", "input_ps")  # null where no step knows it


def rows(steps: Steps, labels: pl.Series) -> pl.DataFrame:
    """Return one row a phase, longest first: ``tpunb.schema.PHASES``.

    Parameters
    ----------
    steps
        That are in phases.
    labels
        Of each, -1 for noise.

    >>> from tpunb.testing import toy_steps
    >>> rows(toy_steps("aab"), pl.Series([0, 0, 1])).select("phase", "steps", "marks", "step_ps").rows()
    [(0, 2, 'train', 1000000000), (1, 1, 'train', 2000000000)]
    """
    return _rows(steps, labels.to_numpy().astype(np.int64).tobytes())


@last_remembered  # a slider often moves without changing a label
def _rows(steps: Steps, labels: bytes) -> pl.DataFrame:
    from tpunb.frames import phase_loops  # compiled: it takes half a second, and those who only import need not wait

    told = _told(steps)
    found, phase = indexed(np.frombuffer(labels, dtype=np.int64))
    sums = np.zeros((len(found), told.sums.shape[1]), dtype=np.int64)
    phase_loops.add_up(phase, told.sums, sums)
    sum_of = dict(zip(told.names, sums.T, strict=True))
    middle = np.zeros((len(found), 2), dtype=np.int64)
    phase_loops.middles(phase, told.by_time, told.time, sum_of["timed"], middle)
    first = np.full(len(found), -1)
    first[phase[told.by_start[::-1]]] = told.by_start[::-1]  # of several the last to be written stays
    begins = steps.frame["start_ps", "step"][first.clip(0)]
    frame = pl.DataFrame(
        {
            "phase": found,
            "steps": np.bincount(phase, minlength=len(found)),
            "full": sum_of["full"],
            "first_step": _where(first >= 0, begins["step"]),
            "start_ps": _where(first >= 0, begins["start_ps"]),
            "dur_ps": sum_of["dur_ps"],
            "share": sum_of["dur_ps"] / max(int(told.time.sum()), 1),
            "step_ps": _part(middle.sum(axis=1), 2 * (sum_of["timed"] > 0)).round(),
            **{name: _where(sum_of[f"{name} known"] > 0, sum_of[name]) for name in _SUMS},
            "spread": _spread(told, phase, sum_of["full"]),
            "idle": _part(sum_of["idle_ps"], sum_of["idle of"]),
            "mxu_util": _part(np.bincount(phase, told.mxu, minlength=len(found)), sum_of["mxu of"]),
        }
    )
    frame = frame.join(_marks(told, found, phase), on="phase", how="left")
    return schema.check(frame.sort("dur_ps", "phase", descending=[True, False]), schema.PHASES, "phases")


class _Told(NamedTuple):
    """What hangs on no phase, in numbers.

    Parameters
    ----------
    names, sums
        What is added up: (steps, names), 0 where it is not known.
    time
        (steps,): in picoseconds, 0 where it is not known.
    mxu
        (steps,): how busy the matrix unit was, by picoseconds.
    by_time, by_start
        The rows of those that know it, rising.
    timed, full
        (steps,): whether its time is known, and whether it was seen in full.
    words, word
        The marks, and that of each step, one more for none.
    """

    names: list[str]
    sums: Ints
    time: Ints
    mxu: Floats
    by_time: Ints
    by_start: Ints
    timed: NDArray[np.bool_]
    full: NDArray[np.bool_]
    words: list[str]
    word: Ints


@remembered
def _told(steps: Steps) -> _Told:
    dur = pl.col("dur_ps").fill_null(0)
    full = pl.col("seen") == "full"
    known = {f"{name} known": pl.col(name).is_not_null() for name in _SUMS}
    parts = {f"{name} of": dur * pl.col(column).is_not_null() for name, column in _OF.items()}
    added = steps.frame.select(
        *_SUMS, full=full, timed=pl.col("dur_ps").is_not_null(), dur_ps=dur, **known, **parts
    ).select(pl.all().cast(pl.Int64).fill_null(0))
    words = steps.frame["mark"].drop_nulls().unique().sort()
    mark = steps.frame["mark"].rank("dense").cast(pl.Int64) - 1
    return _Told(
        added.columns,
        np.ascontiguousarray(added.to_numpy()),
        added["dur_ps"].to_numpy(),
        steps.frame.select((pl.col("mxu_util") * dur).fill_null(0.0)).to_series().to_numpy(),
        _rising(steps.frame["dur_ps"]),
        _rising(steps.frame["start_ps"]),
        added["timed"].to_numpy() > 0,
        added["full"].to_numpy() > 0,
        words.to_list(),
        mark.fill_null(len(words)).to_numpy(),
    )


_OF = {"idle": "idle_ps", "mxu": "mxu_util"}


def _rising(column: pl.Series) -> Ints:
    """Return the rows of a column by what they hold, those of nothing left out."""
    order = np.argsort(column.fill_null(0).to_numpy(), kind="stable")
    return np.asarray(order[column.is_not_null().to_numpy()[order]])


def _where(known: NDArray[np.bool_], values: NDArray[np.number] | pl.Series) -> pl.Series:
    return pl.Series(values).set(pl.Series(~known), None)


def _part(of: NDArray[np.number], whole: Ints) -> pl.Series:
    """Return one by the other, null where that is 0."""
    return _where(whole > 0, of / np.maximum(whole, 1))


def _spread(told: _Told, phase: Ints, full: Ints) -> pl.Series:
    """Return how far step times lie apart, by their mean; a window's edge makes the step that it cuts long."""
    among = told.timed & (told.full | (full == 0)[phase])
    of, time = phase[among], told.time[among].astype(np.float64)
    size = np.bincount(of, minlength=len(full))
    mean = np.bincount(of, time, minlength=len(full)) / np.maximum(size, 1)
    variance = np.bincount(of, (time - mean[of]) ** 2, minlength=len(full)) / np.maximum(size, 1)
    return _where(size > 0, np.sqrt(variance) / mean.clip(1))


def _marks(told: _Told, found: Ints, phase: Ints) -> pl.DataFrame:
    """Return (phase, marks): the words of each phase's steps in one text, that of most steps first."""
    many = len(told.words) + 1
    counts = np.bincount(phase * many + told.word, minlength=len(found) * many).reshape(-1, many)[:, :-1]
    of, word = np.nonzero(counts)
    columns = {"phase": found[of], "mark": pl.Series(told.words, dtype=pl.String).gather(word), "len": counts[of, word]}
    return (
        pl.DataFrame(columns)
        .sort("len", "mark", descending=[True, False])
        .group_by("phase", maintain_order=True)
        .agg(pl.col("mark").str.join(", ").alias("marks"))
    )
