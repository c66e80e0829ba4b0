"""Steps into phases: the verb (paper IV.A)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tpunb.cluster.dbscan import DBSCAN
from tpunb.cluster.features import space
from tpunb.errors import BadProfile, NoSteps, wrong
from tpunb.frames import Labels, PhaseMethod, Phases, Steps
from tpunb.frames.memory import last_remembered, remembered
from tpunb.frames.op_matrix import Floats, Ints
from tpunb.frames.phase_sums import indexed

_AROUND = 8  # full steps on either side that a step may take after
_ROWS = 2048  # that are worked on at one time: few enough to stay near the processor
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
    labels = fitted if full is steps else _with_others(steps, fitted)
    sweeps = getattr(answer, "sweeps", None)
    return Phases(
        steps=steps,
        labels=pl.Series("phase", labels),
        method=method,
        far=lambda: _read_distance(steps, fitted),
        sweeps=sweeps if isinstance(sweeps, Mapping) else {},
    )


@remembered
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
        checked = (labels if isinstance(labels, Labels) else Labels(labels)).values  # type: ignore[arg-type]  # asked
    except TypeError as error:
        raise BadProfile(f"{method!r} returned labels that are no ints: {error}", hint=hint) from error
    if len(checked) != n:
        raise BadProfile(f"{method!r} returned {len(checked)} labels for {n} steps", hint=hint)
    if checked.min() < -1:
        raise BadProfile(f"{method!r} returned the label {checked.min()}", hint=hint)
    return checked


class _Others(NamedTuple):
    """What tells steps that were not seen in full where they belong, whatever the phases: (steps,) each.

    Parameters
    ----------
    seen
        Whether a step was seen in full.
    asking
        Whether it was not, though others of its mark were.
    host, mark
        Numbers for their names.
    middle
        Twice the middle of the step, to stay in whole picoseconds.
    size
        The logarithm of its time.
    timed
        Whether the clock knows its time.
    """

    seen: NDArray[np.bool_]
    asking: NDArray[np.bool_]
    host: Ints
    mark: Ints
    middle: Ints
    size: Floats
    timed: NDArray[np.bool_]


@remembered
def _others(steps: Steps) -> _Others:
    frame = steps.frame
    dur = frame["dur_ps"].fill_null(0)
    host, mark = (frame[name].fill_null("").rank("dense").to_numpy().astype(np.int64) for name in ("host", "mark"))
    seen = (frame["seen"] == "full").to_numpy()
    return _Others(
        seen,
        ~seen & np.isin(mark, mark[seen]),
        host,
        mark,
        (frame["start_ps"].fill_null(0) * 2 + dur).to_numpy(),
        np.log(dur.clip(1).to_numpy()),
        (dur > 0).to_numpy(),
    )


def _with_others(steps: Steps, fitted: Ints) -> Ints:
    """Return the label of every step, by those `fitted` of the steps seen in full."""
    others = _others(steps)
    labels = np.full(len(steps), -1, dtype=np.int64)
    labels[others.seen] = fitted
    among = labels >= 0 if (labels >= 0).any() else others.seen
    labels[others.asking] = labels[_nearest(steps, among.tobytes())]
    unseen = ~others.seen & ~others.asking
    for number, mark in enumerate(dict.fromkeys(others.mark[unseen].tolist()), start=max(int(fitted.max()), -1) + 1):
        labels[unseen & (others.mark == mark)] = number
    return labels


@last_remembered  # by whom steps are placed: most methods find no noise, and ask for the same again
def _nearest(steps: Steps, placed: bytes) -> Ints:
    """Return, for each asking step, the row of the nearest in time of those of its host and its mark, if any.

    Of the eight on either side those whose time is like its own come first, where the clock knows its time.

    Parameters
    ----------
    steps
        All of them.
    placed
        The bytes of one bool a step: whether others may be placed by it.
    """
    others, among = _others(steps), np.frombuffer(placed, dtype=np.bool_)
    nearest = np.zeros(len(steps), dtype=np.int64)
    for name, word in set(zip(others.host[others.asking].tolist(), others.mark[others.asking].tolist(), strict=True)):
        of_host, of_mark = others.host == name, others.mark == word
        candidates = (among & of_host & of_mark, among & of_mark, among & of_host, among)
        own = np.flatnonzero(next(these for these in candidates if these.any()))
        own = own[np.argsort(others.middle[own], kind="stable")]
        asked = np.flatnonzero(others.asking & of_host & of_mark)
        after = np.searchsorted(others.middle[own], others.middle[asked], side="right")
        for start in range(0, len(asked), _ROWS):
            rows = slice(start, start + _ROWS)
            nearest[asked[rows]] = _nearest_of(own, after[rows], asked[rows], others)
    return nearest[others.asking]


def _nearest_of(own: Ints, after: Ints, asked: Ints, others: _Others) -> Ints:
    """Return, for each of some steps, the nearest of its `own`, which are sorted by time; it comes `after` so many."""
    middle, size = others.middle, others.size
    near = own[(after[:, None] + np.arange(-_AROUND, _AROUND)).clip(0, len(own) - 1)]
    far = np.abs(middle[asked][:, None] - middle[near])
    unlike = np.abs(size[asked][:, None] - size[near]) * others.timed[asked][:, None]
    alike = unlike <= unlike.min(axis=1, keepdims=True) + np.log(_ALIKE)
    best = np.where(alike, far, np.iinfo(np.int64).max).argmin(axis=1)  # the earlier of two
    return np.asarray(near[np.arange(len(asked)), best], dtype=np.int64)


def _read_distance(steps: Steps, fitted: Ints) -> pl.Series:
    """Return ``Phases.distance``, by the labels `fitted` of the steps seen in full."""
    distances = np.full(len(steps), np.nan)
    distances[(steps.frame["seen"] == "full").to_numpy()] = _distances(space(steps.full()).points, fitted)
    return pl.Series("distance", distances, nan_to_null=True)


def _distances(points: Floats, labels: Ints) -> Floats:
    """Return how far each step lies from the mean of its phase; NaN for noise, which has no centre."""
    from scipy.sparse import csr_array

    n = len(labels)
    found, phase = indexed(labels)
    centre = csr_array((np.ones(n), phase, np.arange(n + 1)), shape=(n, len(found))).T @ points
    centre /= np.bincount(phase)[:, None]
    distance = np.empty(n)
    for start in range(0, n, _ROWS):
        rows = slice(start, start + _ROWS)
        off = centre[phase[rows]]
        off -= points[rows]
        np.einsum("ij,ij->i", off, off, out=distance[rows])
    np.sqrt(distance, out=distance)
    distance[labels < 0] = np.nan
    return distance
