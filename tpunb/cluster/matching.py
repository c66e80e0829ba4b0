"""Which phase of one run is which of another: by what ran in them, or by how they are marked and when they came."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tpunb import schema
from tpunb.frames import Phases
from tpunb.frames.op_matrix import Floats, op_matrix

ALIKE = 0.75
"""Similarity from which on two phases are one by their operations, and two runs are of one model by their longest.

In trainings of a CNN, an MLP and a Transformer on a CPU, with other batches, optimizers, widths, data and precisions,
the same phase of one model had 0.92 and more, training and evaluation 0.73 at most, phases of two models 0.56."""
SAME_PLACE = 0.5
"""Similarity from which on two phases are one by their marks, their order and their steps."""

MATCHED = {name: schema.COMPARED[name] for name in ("phase_a", "phase_b", "similarity", "by")}

_TIE = 0.01  # what marks, order and numbers count where operations decide: phases that run the same are told by them
_UNMARKED = 0.75  # affinity of marks that say nothing: order and numbers alone have to be nearer then
_MOST_STEPS = 0.5  # an op is of a phase if it ran in half of its steps: one that ran once says nothing of it


@dataclass(frozen=True, eq=False)
class Traits:
    """What the phases of a run are known by, noise aside.

    Parameters
    ----------
    ids
        The label of each phase, longest first.
    ops
        (side, op): one row a column of `micros` and `often`.
    micros
        (phases, ops): self time in the steps seen in full, in microseconds.
    often
        (phases, ops): the share of these steps in which the op ran, 0 to 1.
    words
        What any step of the run is marked as.
    marks
        What the steps of each phase are marked as, by share.
    place
        (phases,): where its steps lie in the run, on average: 0 at the beginning, 1 at the end.
    steps
        (phases,): its share of the run's steps.
    """

    ids: list[int]
    ops: pl.DataFrame
    micros: Floats
    often: Floats
    words: set[str]
    marks: list[dict[str, float]]
    place: Floats
    steps: Floats

    @property
    def seen(self) -> NDArray[np.bool_]:
        """(phases,): whether any operation is known of it; of one that is known by the clock alone none is."""
        return np.asarray(self.often.any(axis=1))


def traits_of(phases: Phases) -> Traits:
    """Return what the phases of a run are known by."""
    ids = [int(phase) for phase in phases.frame["phase"] if phase >= 0]
    full = phases.steps.full()
    labels = phases.fitted.to_numpy()
    ops = op_matrix(full)
    own, ran = ops.values("self_ps", scale=1e-6), ops.presence()
    micros, often = np.zeros((len(ids), ops.shape[1])), np.zeros((len(ids), ops.shape[1]))
    for row, phase in enumerate(ids):
        steps = (labels == phase).astype(np.float64)
        micros[row], often[row] = steps @ own, steps @ ran / max(steps.sum(), 1)
    frame = phases.labelled.with_columns(middle=pl.col("start_ps") + pl.col("dur_ps") / 2)
    first, last = frame["start_ps"].min(), frame.select(pl.col("start_ps") + pl.col("dur_ps")).max().item()
    span = max((last or 0) - (first or 0), 1)  # type: ignore[operator]  # integers, or None where there are no steps
    by_phase = [frame.filter(pl.col("phase") == phase) for phase in ids]
    marks = [steps["mark"].drop_nulls().value_counts(normalize=True).rows() for steps in by_phase]
    middles = [steps["middle"].mean() or 0 for steps in by_phase]
    return Traits(
        ids=ids,
        ops=ops.ops,
        micros=micros,
        often=often,
        words={*frame["mark"].drop_nulls()},
        marks=[dict(shares) for shares in marks],
        place=(np.array(middles, dtype=np.float64) - (first or 0)) / span,  # type: ignore[operator]
        steps=np.array([steps.height for steps in by_phase], dtype=np.float64) / max(frame.height, 1),
    )


def by_operations(a: Traits, b: Traits) -> Floats | None:
    """Return how alike the phases of two runs are by what ran in them, (phases of a, phases of b), 0 to 1.

    On each side that both runs know, host and devices apart, the geometric mean of two affinities: that of the
    operations' shares of the self time, the sum of sqrt(p q) (Bhattacharyya 1943; 1 less the square of the Hellinger
    distance), and that of the sets of operations that run in most steps (Jaccard 1901), where one that most phases of
    a run have counts little, as it tells none from another; the first alone where neither phase has such operations.
    Then the mean of the sides on which either phase ran anything; 0 where their marks have nothing in common. None
    where the runs have no side in common.
    """
    known = pl.concat([a.ops, b.ops]).unique(maintain_order=True).with_row_index("at")
    side = known["side"].to_physical().to_numpy()
    (time_a, set_a), (time_b, set_b) = _among(known, a), _among(known, b)
    # one over the phases of a run that have it, so that a run's only phase is told by all its operations
    weight = 1 / np.maximum(np.maximum(set_a.sum(axis=0), set_b.sum(axis=0)), 1)
    sides: list[Floats] = []
    for own in (side == 0, side == 1):
        if time_a[:, own].any() and time_b[:, own].any():
            affinity = np.sqrt(_shares(time_a[:, own])) @ np.sqrt(_shares(time_b[:, own])).T
            both = (set_a[:, own] * weight[own]) @ set_b[:, own].T
            either = (set_a @ (own * weight))[:, None] + (set_b @ (own * weight))[None, :] - both
            jaccard = np.divide(both, either, out=np.zeros_like(both), where=either > 0)
            similar = np.where(either > 0, np.sqrt(affinity * jaccard), affinity).clip(0, 1)
            neither = np.outer(~time_a[:, own].any(axis=1), ~time_b[:, own].any(axis=1))
            sides.append(np.where(neither, np.nan, similar))
    if not sides:
        return None
    known_of = np.isfinite(sides).sum(axis=0)
    mean = np.divide(np.nansum(sides, axis=0), known_of, out=np.zeros(known_of.shape), where=known_of > 0)
    return np.asarray(mean * (_marks(a, b) > 0), dtype=np.float64)


def by_marks(a: Traits, b: Traits) -> Floats:
    """Return how alike the phases of two runs are by their marks, order and numbers of steps, as `by_operations` does.

    For runs whose operations bear other names, as on another kind of device: the affinity of their marks, times the
    mean of how near they lie in their runs and of the ratio of their shares of the steps.
    """
    near = 1 - np.abs(a.place[:, None] - b.place[None, :])
    most = np.maximum(a.steps[:, None], b.steps[None, :])
    ratio = np.minimum(a.steps[:, None], b.steps[None, :]) / np.where(most > 0, most, 1)
    return np.asarray((_marks(a, b) * (near + ratio) / 2).clip(0, 1), dtype=np.float64)


def likeness(a: Traits, b: Traits, similarity: Floats) -> float:
    """Return how alike two runs are: the similarity of either's longest phase seen to the phase nearest it."""
    one, other = (int(np.argmax(run.seen)) for run in (a, b))
    return float(max(similarity[one].max(), similarity[:, other].max()))


def matched(a: Traits, b: Traits, similarity: Floats | None) -> pl.DataFrame:
    """Return (phase_a, phase_b, similarity, by) of the phases of two runs that are one.

    Parameters
    ----------
    a, b
        The runs.
    similarity
        By their operations, to go by wherever both phases have any; None to go by their marks alone.
    """
    seen = np.outer(a.seen, b.seen) if similarity is not None else np.zeros((len(a.ids), len(b.ids)), dtype=bool)
    by_mark = by_marks(a, b)
    alike = np.where(seen, by_mark if similarity is None else similarity, by_mark)
    near = alike >= np.where(seen, ALIKE, SAME_PLACE)
    found = [
        (a.ids[row], b.ids[column], float(alike[row, column]), "operations" if seen[row, column] else "marks")
        for row, column in pairs(np.where(near, alike + _TIE * by_mark, 0))
    ]
    return pl.DataFrame(found, schema=MATCHED, orient="row")


def pairs(similarity: Floats) -> list[tuple[int, int]]:
    """Return which row goes with which column, one to one, so that the sum of similarities is largest.

    By the Hungarian method (Kuhn 1955); those of similarity 0 stay alone.

    >>> pairs(np.array([[0.9, 0.8], [0.8, 0.1], [0.0, 0.3]]))
    [(0, 1), (1, 0)]
    """
    from scipy.optimize import linear_sum_assignment

    rows, columns = linear_sum_assignment(similarity, maximize=True)
    return [(int(row), int(column)) for row, column in zip(rows, columns, strict=True) if similarity[row, column] > 0]


def _among(known: pl.DataFrame, run: Traits) -> tuple[Floats, Floats]:
    """Return the times and the sets (0 or 1) of a run's phases over the operations of both runs."""
    at = run.ops.join(known, on=["side", "op"], how="left", maintain_order="left")["at"].to_numpy()
    times, sets = np.zeros((len(run.ids), known.height)), np.zeros((len(run.ids), known.height))
    times[:, at], sets[:, at] = run.micros, run.often >= _MOST_STEPS
    return times, sets


def _shares(times: Floats) -> Floats:
    whole = times.sum(axis=1, keepdims=True)
    return np.asarray(np.divide(times, whole, out=np.zeros_like(times), where=whole > 0))


def _marks(a: Traits, b: Traits) -> Floats:
    """Return the affinity of the marks that both runs know, 0 to 1; `_UNMARKED` where neither phase has one."""
    common = sorted(a.words & b.words)
    one, other = (
        _shares(
            np.array([[shares.get(mark, 0.0) for mark in common] for shares in run.marks]).reshape(
                len(run.ids), len(common)
            )
        )
        for run in (a, b)
    )
    known = one.sum(axis=1)[:, None] + other.sum(axis=1)[None, :] > 0
    return np.where(known, np.sqrt(one) @ np.sqrt(other).T, _UNMARKED)
