"""Steps into phases: the verb (paper IV.A)."""

from __future__ import annotations

import operator
from collections.abc import Mapping

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tpunb.cluster.dbscan import DBSCAN
from tpunb.cluster.features import space
from tpunb.errors import BadProfile, NoSteps, wrong
from tpunb.frames import PhaseMethod, Phases, Steps
from tpunb.frames.op_matrix import Floats, Ints

_AROUND = 8  # full steps on either side that a step may take after
_ALIKE = 1.1  # times: step times that are as like as the likest, within 10 %


def phases(steps: Steps, method: PhaseMethod | None = None) -> Phases:
    """Return the steps grouped into phases.

    The method sees the steps that were seen in full. Every other step takes the label of the nearest of them in time
    of its host and its mark that is in a phase (an odd step makes no others odd), by the middle of the step; of two
    as near, the earlier. A step that the clock timed goes with those around it that took about as long: one that
    saves a checkpoint does not lend its label to the quick ones that follow. Where none is of its host, those of
    other hosts serve. Steps of a mark that no window saw in full are a phase of their own, known by the clock alone:
    its ``full`` is 0.

    Parameters
    ----------
    steps
        To group.
    method
        ``DBSCAN()`` unless given; ``OLS()``, ``OLSPlus()``, ``KMeans()``, ``HDBSCAN()``, or any function from `Steps`
        to one int a step, -1 for noise.

    Raises
    ------
    TypeError
        When `steps` are none, or `method` is no function of them.
    NoSteps
        When there are no steps, or none was seen in full.
    BadProfile
        When the method does not return one int of -1 or more a step; when a host has two steps of one number, or a
        step or an operation has no name.

    >>> from tpunb.testing import toy_steps
    >>> phases(toy_steps("aaabbb"))
    Phases(2 phases over 6 steps, DBSCAN(), top 3 cover 100.0%)
    >>> phases(toy_steps("aaabbb"), lambda steps: range(len(steps))).labels.to_list()
    [0, 1, 2, 3, 4, 5]
    """
    if not isinstance(steps, Steps):
        raise wrong("phases", "steps", "be Steps", steps, hint="tp.steps(profile)")
    method = DBSCAN() if method is None else method
    if not callable(method) or isinstance(method, type):
        raise wrong("phases", "method", "be a method such as tp.DBSCAN()", method)
    _check(steps)
    full = steps.full()
    if not len(full):
        raise _no_steps(steps)
    answer = method(full)
    fitted = _checked(answer, len(full), method)
    seen = (steps.frame["seen"] == "full").to_numpy()
    labels = np.full(len(steps), -1, dtype=np.int64)
    labels[seen] = fitted
    mark = steps.frame["mark"].fill_null("").to_numpy()
    unseen = ~np.isin(mark, list(set(mark[seen])))  # of objects it looks at each in turn: give it few
    among = labels >= 0 if (labels >= 0).any() else seen
    labels[~seen & ~unseen] = labels[_nearest(steps.frame, ~seen & ~unseen, among)]
    for number, name in enumerate(dict.fromkeys(mark[unseen]), start=max(int(fitted.max()), -1) + 1):
        labels[unseen & (mark == name)] = number
    distance = np.full(len(steps), np.nan)
    distance[seen] = _distances(space(full).points, fitted)
    sweeps = getattr(answer, "sweeps", None)
    return Phases(
        steps=steps,
        labels=pl.Series("phase", labels),
        method=method,
        distance=pl.Series("distance", distance, nan_to_null=True),
        sweeps=sweeps if isinstance(sweeps, Mapping) else {},
    )


def _check(steps: Steps) -> None:
    """Refuse steps that cannot be told apart."""
    for frame, columns in ((steps.frame, ("host", "step", "seen")), (steps.ops, ("host", "step", "op", "side"))):
        for column in columns:
            if frame[column].null_count():
                raise BadProfile(f"{frame[column].null_count()} of {frame.height} rows have no {column}")
    twice = steps.frame.filter(pl.struct("host", "step").is_duplicated())
    if twice.height:
        host, step = twice.select("host", "step").row(0)
        raise BadProfile(
            f"step {step} of host {host!r} is there {twice.filter(host=host, step=step).height} times",
            hint="give each step of a host a number of its own",
        )


def _no_steps(steps: Steps) -> NoSteps:
    name = steps.name or "the profile"
    if not len(steps):
        return NoSteps(
            f"{name} holds no steps", hint="mark them: `with run.step(i):` or `for batch in run.steps(data):`"
        )
    failures = steps.windows["error"].drop_nulls()
    if failures.len() and failures.len() == steps.windows.height:
        return NoSteps(
            f"{name} holds no step that was seen: all {failures.len()} windows failed, the first with {failures[0]!r}",
            hint="end whatever else profiles this program, and capture again",
        )
    if steps.windows.is_empty() and (steps.frame["seen"] == "tick").all():
        return NoSteps(
            f"{name} holds no step that was seen, but {len(steps)} that were noted by the clock: it had no windows",
            hint="phases are found by what windows see: capture longer, and without Schedule.ticks()",
        )
    kinds = [f"{(steps.frame['seen'] == kind).sum()} {kind}" for kind in ("partial", "tick")]
    return NoSteps(
        f"{name} holds no step that was seen in full, but {' and '.join(kinds)}",
        hint="capture longer windows: a window must hold a whole step",
    )


def _checked(labels: object, n: int, method: PhaseMethod) -> Ints:
    """Return what a method gave as an array, if it is one int of -1 or more a step."""
    hint = "a phase method returns one int a step that it was given, -1 for noise"
    try:
        values = [operator.index(label) for label in labels]  # type: ignore[attr-defined]  # that is the question
    except TypeError as error:
        raise BadProfile(f"{method!r} returned labels that are no ints: {error}", hint=hint) from error
    if len(values) != n:
        raise BadProfile(f"{method!r} returned {len(values)} labels for {n} steps", hint=hint)
    if min(values) < -1:
        raise BadProfile(f"{method!r} returned the label {min(values)}", hint=hint)
    return np.array(values, dtype=np.int64)


def _nearest(frame: pl.DataFrame, asking: NDArray[np.bool_], among: NDArray[np.bool_]) -> Ints:
    """Return, for each asking step, the row of the nearest in time `among` those of its host and its mark, if any.

    Of the eight on either side those whose time is like its own come first, where the clock knows its time.
    """
    # twice the middle of a step, to stay in whole picoseconds
    middle = (frame["start_ps"].fill_null(0) * 2 + frame["dur_ps"].fill_null(0)).to_numpy()
    host, mark = (frame[name].fill_null("").to_numpy() for name in ("host", "mark"))
    size = np.log(frame["dur_ps"].fill_null(0).clip(1).to_numpy())
    timed = (frame["dur_ps"] > 0).fill_null(False).to_numpy()
    nearest = np.zeros(len(frame), dtype=np.int64)
    for name, word in set(zip(host[asking], mark[asking], strict=True)):
        of_host, of_mark = host == name, mark == word
        asked = np.flatnonzero(asking & of_host & of_mark)
        candidates = (among & of_host & of_mark, among & of_mark, among & of_host, among)
        own = np.flatnonzero(next(these for these in candidates if these.any()))
        own = own[np.argsort(middle[own], kind="stable")]
        after = np.searchsorted(middle[own], middle[asked], side="right")
        near = own[(after[:, None] + np.arange(-_AROUND, _AROUND)).clip(0, len(own) - 1)]
        far = np.abs(middle[asked][:, None] - middle[near])
        unlike = np.abs(size[asked][:, None] - size[near]) * timed[asked][:, None]
        alike = unlike <= unlike.min(axis=1, keepdims=True) + np.log(_ALIKE)
        best = np.where(alike, far, np.iinfo(np.int64).max).argmin(axis=1)  # the earlier of two
        nearest[asked] = near[np.arange(len(asked)), best]
    return np.asarray(nearest[asking], dtype=np.int64)


def _distances(points: Floats, labels: Ints) -> Floats:
    """Return how far each step lies from the mean of its phase; NaN for noise, which has no centre."""
    found, phase = np.unique(labels, return_inverse=True)
    centre = np.zeros((len(found), points.shape[1]))
    np.add.at(centre, phase, points)
    centre /= np.bincount(phase)[:, None]
    distance = np.linalg.norm(points - centre[phase], axis=1)
    distance[labels < 0] = np.nan
    return np.asarray(distance, dtype=np.float64)
