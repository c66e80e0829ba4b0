"""Matching of the phases of two runs: by their operations, or by the kinds and the order of their steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tpunb import schema
from tpunb.cluster.limits import LIMITS
from tpunb.frames import Phases
from tpunb.frames.op_matrix import Floats, op_matrix

SAME = 0.75
"""Smallest similarity by operations of matching phases, and of the longest phases of runs of one model.

In trainings of a CNN, an MLP and a Transformer on a CPU, with other batches, optimizers, widths, data and precisions,
the same phase of one model had 0.92 and more, training and evaluation 0.73 at most, phases of two models 0.56."""
SAME_PLACE = 0.5
"""Smallest similarity by kinds, order and steps of matching phases."""

MATCHED = {name: schema.COMPARED[name] for name in ("phase_a", "phase_b", "similarity", "by")}

_TIE = 0.01  # weight of kinds, order and steps among phases of the same operations
_UNKNOWN = 0.75  # affinity of unknown kinds: order and steps alone must be nearer
_MOST_STEPS = 0.5  # share of its steps in which an operation of a phase ran


@dataclass(frozen=True, eq=False)
class Traits:
    """What identifies the phases of a run; outliers left out."""

    ids: list[int]  # label of each phase, longest first
    ops: pl.DataFrame  # side and name of each column of `micros` and `frequency`
    micros: Floats  # self time in the steps traced in full, in microseconds: (phases, ops)
    frequency: Floats  # share of these steps in which the op ran, 0 to 1: (phases, ops)
    run_kinds: set[str]  # kinds of all steps of the run
    kinds: list[dict[str, float]]  # share of the steps of each phase by kind
    place: Floats  # mean place of its steps in the run, 0 at the start, 1 at the end: (phases,)
    steps: Floats  # share of the run's steps: (phases,)

    @property
    def traced(self) -> NDArray[np.bool_]:
        """(phases,): whether any of its operations is known."""
        return np.asarray(self.frequency.any(axis=1))


def traits_of(phases: Phases) -> Traits:
    """Return what identifies the phases of a run."""
    ids = [int(phase) for phase in phases.frame["phase"] if phase >= 0]
    full = phases.steps.full()
    labels = phases.fitted.to_numpy()
    ops = op_matrix(full)
    times, ran = ops.values("self_ps", scale=1e-6), ops.presence()
    micros, frequency = np.zeros((2, len(ids), ops.shape[1]))
    for row, phase in enumerate(ids):
        steps = (labels == phase).astype(np.float64)
        micros[row], frequency[row] = steps @ times, steps @ ran / max(steps.sum(), 1)
    frame = phases.labelled.with_columns(middle=pl.col("start_ps") + pl.col("dur_ps") / 2)
    first, last = frame["start_ps"].min(), frame.select(pl.col("start_ps") + pl.col("dur_ps")).max().item()
    span = max((last or 0) - (first or 0), 1)  # type: ignore[operator]  # integers, or None where there are no steps
    by_phase = [frame.filter(pl.col("phase") == phase) for phase in ids]
    kinds = [steps["kind"].drop_nulls().value_counts(normalize=True).rows() for steps in by_phase]
    middles = [steps["middle"].mean() or 0 for steps in by_phase]
    return Traits(
        ids=ids,
        ops=ops.ops,
        micros=micros,
        frequency=frequency,
        run_kinds={*frame["kind"].drop_nulls()},
        kinds=[dict(shares) for shares in kinds],
        place=(np.array(middles, dtype=np.float64) - (first or 0)) / span,  # type: ignore[operator]
        steps=np.array([steps.height for steps in by_phase], dtype=np.float64) / max(frame.height, 1),
    )


def by_operations(a: Traits, b: Traits) -> Floats | None:
    """Return the similarity of two runs' phases by operations, (phases of a, phases of b), 0 to 1; None if unknown.

    Mean over host and devices of the geometric mean of the affinity of shares of self time (Bhattacharyya 1943) and of
    the shares of steps in which operations run (Jaccard 1901), weighted down for operations of many phases.
    """
    union = pl.concat([a.ops, b.ops]).unique(maintain_order=True).with_row_index("at")
    side = union["side"].to_physical().to_numpy()
    (time_a, set_a), (time_b, set_b) = _align(union, a), _align(union, b)
    # one over the number of phases of a run that have it: the only phase of a run counts all its operations
    weight = 1 / np.maximum(np.maximum(*((ran >= _MOST_STEPS).sum(axis=0) for ran in (set_a, set_b))), 1)
    sides: list[Floats] = []
    for mask in (side == 0, side == 1):
        if time_a[:, mask].any() and time_b[:, mask].any():
            neither = np.outer(~time_a[:, mask].any(axis=1), ~time_b[:, mask].any(axis=1))
            share_a, share_b = _shares(time_a[:, mask]), _shares(time_b[:, mask])
            affinity = np.sqrt(share_a) @ np.sqrt(share_b).T
            in_both = time_a[:, mask].any(axis=0) & time_b[:, mask].any(axis=0)
            # the profiler may have skipped operations of little time in one run
            mask[mask] = in_both | (np.maximum(share_a.max(axis=0), share_b.max(axis=0)) >= LIMITS.evidence)
            both = np.stack([np.minimum(row, set_b[:, mask]) @ weight[mask] for row in set_a[:, mask]])
            either = (set_a @ (mask * weight))[:, None] + (set_b @ (mask * weight))[None, :] - both
            jaccard = np.divide(both, either, out=np.zeros_like(both), where=either > 0)
            similar = np.where(either > 0, np.sqrt(affinity * jaccard), affinity).clip(0, 1)
            sides.append(np.where(neither, np.nan, similar))
    if not sides:
        return None
    count = np.isfinite(sides).sum(axis=0)
    mean = np.divide(np.nansum(sides, axis=0), count, out=np.zeros(count.shape), where=count > 0)
    return np.asarray(mean * (_kinds(a, b) > 0), dtype=np.float64)


def by_kinds(a: Traits, b: Traits) -> Floats:
    """Return the similarity of the phases of two runs by kinds, order and numbers of steps, as `by_operations` does.

    For runs whose operations have other names, as on other devices: the affinity of kinds, times the mean of the
    nearness of places and of the ratio of shares of the steps.
    """
    near = 1 - np.abs(a.place[:, None] - b.place[None, :])
    most = np.maximum(a.steps[:, None], b.steps[None, :])
    ratio = np.minimum(a.steps[:, None], b.steps[None, :]) / np.where(most > 0, most, 1)
    return np.asarray((_kinds(a, b) * (near + ratio) / 2).clip(0, 1), dtype=np.float64)


def run_similarity(a: Traits, b: Traits, similarity: Floats) -> float:
    """Return the similarity of two runs: of the longest traced phase of either to the most similar phase."""
    row, column = (int(np.argmax(run.traced)) for run in (a, b))
    return float(max(similarity[row].max(), similarity[:, column].max()))


def match(a: Traits, b: Traits, similarity: Floats | None) -> pl.DataFrame:
    """Return (phase_a, phase_b, similarity, by) of the matching phases of two runs.

    `similarity`, by operations, is used if both phases have any; kinds only if None.
    """
    kinds = by_kinds(a, b)
    traced = np.zeros(kinds.shape, dtype=bool) if similarity is None else np.outer(a.traced, b.traced)
    best = np.where(traced, kinds if similarity is None else similarity, kinds)
    near = best >= np.where(traced, SAME, SAME_PLACE)
    rows = [
        (a.ids[row], b.ids[column], float(best[row, column]), "operations" if traced[row, column] else "kinds")
        for row, column in assignment(np.where(near, best + _TIE * kinds, 0))
    ]
    return pl.DataFrame(rows, schema=MATCHED, orient="row")


def assignment(similarity: Floats) -> list[tuple[int, int]]:
    """Return the one-to-one assignment of rows to columns with the largest sum of similarities.

    By the Hungarian method (Kuhn 1955); pairs of similarity 0 are left out.

    >>> assignment(np.array([[0.9, 0.8], [0.8, 0.1], [0.0, 0.3]]))
    [(0, 1), (1, 0)]
    """
    from scipy.optimize import linear_sum_assignment

    rows, columns = linear_sum_assignment(similarity, maximize=True)
    return [(int(row), int(column)) for row, column in zip(rows, columns, strict=True) if similarity[row, column] > 0]


def _align(union: pl.DataFrame, run: Traits) -> tuple[Floats, Floats]:
    """Return times and shares of steps that ran them, of a run's phases, over the operations of both runs."""
    at = run.ops.join(union, on=["side", "op"], how="left", maintain_order="left")["at"].to_numpy()
    times, sets = np.zeros((2, len(run.ids), union.height))
    times[:, at], sets[:, at] = run.micros, run.frequency
    return times, sets


def _shares(times: Floats) -> Floats:
    total = times.sum(axis=1, keepdims=True)
    return np.asarray(np.divide(times, total, out=np.zeros_like(times), where=total > 0))


def _kinds(a: Traits, b: Traits) -> Floats:
    """Return the affinity of the kinds of both runs, 0 to 1; `_UNKNOWN` if neither phase has any."""
    common = sorted(a.run_kinds & b.run_kinds)
    rows = ([[kinds.get(kind, 0.0) for kind in common] for kinds in run.kinds] for run in (a, b))
    shares_a, shares_b = (_shares(np.array(shares).reshape(len(shares), len(common))) for shares in rows)
    valid = shares_a.sum(axis=1)[:, None] + shares_b.sum(axis=1)[None, :] > 0
    return np.where(valid, np.sqrt(shares_a) @ np.sqrt(shares_b).T, _UNKNOWN)
