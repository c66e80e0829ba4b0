"""Group steps into phases: the verb (paper IV.A)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tpunb.cluster.dbscan import DBSCAN, labels_of
from tpunb.cluster.features import space
from tpunb.cluster.hdbscan import HDBSCAN
from tpunb.cluster.kmeans import KMeans
from tpunb.cluster.limits import LIMITS
from tpunb.cluster.ols import OLS
from tpunb.cluster.ols_plus import OLSPlus
from tpunb.cluster.paces import kinds_of
from tpunb.errors import BadProfile, NoSteps, wrong_type
from tpunb.frames import Phases, Steps
from tpunb.frames.cache import memoised, memoised_last
from tpunb.frames.exclusive_time import exclusive_time
from tpunb.frames.op_matrix import Floats, Ints, factorize
from tpunb.frames.phase_names import saved_by_clock
from tpunb.frames.phases import Labels, PhaseMethod
from tpunb.step_stats.merge_hosts import placed
from tpunb.text import plural

METHODS = {"dbscan": DBSCAN, "hdbscan": HDBSCAN, "kmeans": KMeans, "ols": OLS, "olsplus": OLSPlus}
"""Phase methods by their names in the magic and in the explorer."""

_ROWS = 2048  # steps per chunk: few enough for the processor's caches


def phases(steps: Steps, method: PhaseMethod | str | None = None) -> Phases:
    """Group steps into phases: :func:`tpunb.analysis.run.phases`."""
    method = method_of(method)
    check(steps)
    _check_operations(steps)
    of_roles = roles_of(steps)
    if not of_roles:
        return _grouped(steps, method)
    return combined(steps, of_roles, [_grouped(role.steps, method) for role in of_roles])


def method_of(method: PhaseMethod | str | None) -> PhaseMethod:
    """Return a method that is given by its name, or the default; a TypeError or ValueError if it is none."""
    if isinstance(method, str):
        if method not in METHODS:
            names = ", ".join(METHODS)
            raise ValueError(f"The method parameter of phases must be one of {names}. Got {method!r} instead.")
        method = METHODS[method]()
    if method is not None and (not callable(method) or isinstance(method, type)):
        raise wrong_type("phases", "method", "be a method such as tp.DBSCAN()", method)
    return DBSCAN() if method is None else method


def _grouped(steps: Steps, method: PhaseMethod) -> Phases:
    """Return the phases of the steps of one host, or of a job."""
    full = steps.full()
    answer = method(full) if len(full) else Labels([])
    fitted = _checked(answer, len(full), method)
    labels = fitted if full is steps else _with_others(steps, fitted)
    sweeps = getattr(answer, "sweeps", None)
    return Phases(
        steps=steps,
        labels=pl.Series("phase", labels),
        method=method,
        distances=lambda: _distances(steps, fitted),
        sweeps=sweeps if isinstance(sweeps, Mapping) else {},
        confidences=lambda: confidences(full, fitted),
    )


@memoised
def check(steps: Steps) -> None:
    """Raise if steps are not identified, not unique, or none traced in full or timed."""
    _check_whole(steps.frame, "host", "step", "traced")
    repeated = steps.frame.filter(pl.struct("host", "step").is_duplicated())
    if repeated.height:
        host, step = repeated.select("host", "step").row(0)
        raise BadProfile(
            f"step {step} of host {host!r} is there {repeated.filter(host=host, step=step).height} times",
            hint="give each step of a host a number of its own",
        )
    if not ((steps.frame["traced"] == "full").any() or (steps.frame["dur_ps"] > 0).any()):
        raise _no_steps(steps)


@memoised
def _check_operations(steps: Steps) -> None:
    _check_whole(steps.ops, "host", "step", "op", "side")


def _check_whole(frame: pl.DataFrame, *columns: str) -> None:
    for column in columns:
        if missing := frame[column].null_count():
            raise BadProfile(f"{column} is missing in {missing} of {plural(frame.height, 'row')}")


def _no_steps(steps: Steps) -> NoSteps:
    name = steps.name or "the profile"
    if not len(steps):
        hint = "mark steps in the program: `with run.step(i):` or `for batch in run.batches(data):`"
        return NoSteps(f"{name} has no steps", hint=hint)
    counts = [f"{(steps.frame['traced'] == traced).sum()} {traced}" for traced in ("partial", "none")]
    return NoSteps(
        f"{name} has no step traced in full or timed, but {' and '.join(counts)}",
        hint="capture longer windows, so that one holds a whole step: --window 10 (tp.Schedule.fixed(window=10))",
    )


def _checked(labels: object, n: int, method: PhaseMethod) -> Ints:
    """Return the labels of a method as an array, if it is one int of -1 or more per step."""
    hint = "return one int per step of the argument, -1 for outliers"
    try:
        checked = (labels if isinstance(labels, Labels) else Labels(labels)).values  # type: ignore[arg-type]  # asked
    except TypeError as error:
        raise BadProfile(f"{method!r} returned labels that are not ints: {error}", hint=hint) from error
    if len(checked) != n:
        raise BadProfile(f"{method!r} returned {plural(len(checked), 'label')} for {plural(n, 'step')}", hint=hint)
    if checked.min(initial=-1) < -1:
        raise BadProfile(f"{method!r} returned the label {checked.min()}", hint=hint)
    return checked


class _Columns(NamedTuple):
    """What places the steps not traced in full, whatever the phases: arrays of (steps,)."""

    full: NDArray[np.bool_]
    host: Ints
    kind: Ints  # and pace
    middle: Ints  # twice the middle of the step, to stay in whole picoseconds
    size: Floats  # logarithm of the step time without callbacks
    exclusive: Floats  # the same also without input wait, where `has_input`
    has_input: NDArray[np.bool_]  # whether the input wait was measured
    timed: NDArray[np.bool_]
    times_ps: tuple[Ints, Ints]  # without callbacks, and also without input wait
    saves: NDArray[np.bool_]  # a checkpoint


@memoised
def _columns(steps: Steps) -> _Columns:
    frame = steps.frame
    dur = frame["dur_ps"].fill_null(0)
    host, kind = frame["host"].rank("dense").to_numpy().astype(np.int64), kinds_of(steps)
    full = (frame["traced"] == "full").to_numpy()
    middle = (frame["start_ps"].fill_null(0) * 2 + dur).to_numpy()
    times = frame.select(pl.col("dur_ps") - pl.col("callbacks_ps").fill_null(0), exclusive_time())
    total_ps, exclusive_ps = (column.fill_null(0).clip(0).to_numpy() for column in times)
    size = np.log(total_ps.clip(1))
    exclusive = np.log(exclusive_ps.clip(total_ps // 100 + 1))  # of a step that only waits for input, 1 % of its time
    has_input = frame["input_ps"].is_not_null().to_numpy()
    timed = (dur > 0).to_numpy()
    saves = saved_by_clock(steps).to_numpy()
    times_ps = (total_ps, exclusive_ps)
    return _Columns(full, host, kind, middle, size, exclusive, has_input, timed, times_ps, saves)


def _with_others(steps: Steps, fitted: Ints) -> Ints:
    """Return the label of every step, from those of the steps traced in full."""
    columns = _columns(steps)
    labels = np.full(len(steps), -1, dtype=np.int64)
    labels[columns.full] = fitted
    sources = labels >= 0 if (labels >= 0).any() else columns.full
    placeable = _placeable(columns, sources)
    labels[placeable] = labels[_nearest(steps, sources.tobytes())]
    # of what no window traced in full, the clock knows kind and pace, and which steps save a checkpoint
    saves = columns.saves & ~np.isin(columns.kind, columns.kind[sources & columns.saves])
    unseen = ~columns.full & (~placeable | saves)
    group = columns.kind * 2 + saves
    for number, each in enumerate(dict.fromkeys(group[unseen].tolist()), start=int(fitted.max(initial=-1)) + 1):
        labels[unseen & (group == each)] = number
    labels[_far(steps, labels, columns.full | unseen)] = -1
    return labels


def _placeable(columns: _Columns, sources: NDArray[np.bool_]) -> NDArray[np.bool_]:
    return np.asarray(~columns.full & np.isin(columns.kind, columns.kind[sources]))


def _far(steps: Steps, labels: Ints, among: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return which steps not traced in full last far longer than the median of their phase's steps that are `among`."""
    from tpunb.frames.phase_sums import middle_values  # compiled: half a second that importing need not wait

    columns = _columns(steps)
    ids, phase = factorize(labels)
    among = among & columns.timed
    size = np.bincount(phase[among], minlength=len(ids))
    far = np.zeros(len(labels), np.bool_)
    for has_input, time, ascending in zip((False, True), columns.times_ps, _ascending(steps), strict=True):
        usual = middle_values(phase, ascending[among[ascending]], time, size)[phase, 0]
        longer = (time > LIMITS.outlier_time_ratio * usual) & (time - usual > LIMITS.outlier_excess_ps)
        far |= (columns.has_input == has_input) & longer
    return far & ~columns.full & columns.timed & (labels >= 0) & (size > 0)[phase]


@memoised
def _ascending(steps: Steps) -> tuple[Ints, ...]:
    return tuple(np.argsort(time, kind="stable") for time in _columns(steps).times_ps)


@memoised_last  # by the sources: most methods find no outliers, and have the same sources
def _nearest(steps: Steps, sources: bytes) -> Ints:
    """Return the row that each placeable step takes its label from; `sources` are the bytes of one bool per step."""
    columns, among = _columns(steps), np.frombuffer(sources, dtype=np.bool_)
    nearest = np.zeros(len(steps), dtype=np.int64)
    placeable = _placeable(columns, among)
    keys = (columns.host, columns.kind, columns.saves)
    for host, kind, saves in set(zip(*(key[placeable].tolist() for key in keys), strict=True)):
        of_host, of_kind, alike = columns.host == host, columns.kind == kind, columns.saves == saves
        both = among & of_host & of_kind
        candidates = (both & alike, both, among & of_kind)
        rows = np.flatnonzero(next(mask for mask in candidates if mask.any()))
        rows = rows[np.argsort(columns.middle[rows], kind="stable")]
        queries = np.flatnonzero(placeable & of_host & of_kind & alike)
        after = np.searchsorted(columns.middle[rows], columns.middle[queries], side="right")
        for start in range(0, len(queries), _ROWS):
            chunk = slice(start, start + _ROWS)
            nearest[queries[chunk]] = _nearest_of(rows, after[chunk], queries[chunk], columns)
    return nearest[placeable]


def _nearest_of(rows: Ints, after: Ints, queries: Ints, columns: _Columns) -> Ints:
    """Return the nearest of `rows`, sorted by time, for each query, which would be inserted at `after`."""
    middle, size, exclusive, has_input = columns.middle, columns.size, columns.exclusive, columns.has_input
    near = rows[(after[:, None] + np.arange(-LIMITS.candidate_steps, LIMITS.candidate_steps)).clip(0, len(rows) - 1)]
    distance = np.abs(middle[queries][:, None] - middle[near])
    difference = np.abs(size[queries][:, None] - size[near])
    both = has_input[queries][:, None] & has_input[near]
    difference += np.abs(exclusive[queries][:, None] - exclusive[near]) * both
    difference *= columns.timed[queries][:, None]
    similar = difference <= difference.min(axis=1, keepdims=True) + np.log(LIMITS.equal_time_ratio)
    best = np.where(similar, distance, np.iinfo(np.int64).max).argmin(axis=1)  # the earlier of two
    return np.asarray(near[np.arange(len(queries)), best], dtype=np.int64)


def _distances(steps: Steps, fitted: Ints) -> pl.Series:
    """Return ``Phases.distance``: of each full step to the mean of its phase; null for outliers, which have none."""
    from scipy.sparse import csr_array

    points, n = space(steps.full()).points, len(fitted)
    ids, phase = factorize(fitted)
    centre = csr_array((np.ones(n), phase, np.arange(n + 1)), shape=(n, len(ids))).T @ points
    centre /= np.bincount(phase)[:, None]
    distance = np.empty(n)
    for start in range(0, n, _ROWS):
        rows = slice(start, start + _ROWS)
        off = centre[phase[rows]]
        off -= points[rows]
        np.einsum("ij,ij->i", off, off, out=distance[rows])
    np.sqrt(distance, out=distance)
    distance[fitted < 0] = np.nan
    distances = np.full(len(steps), np.nan)
    distances[(steps.frame["traced"] == "full").to_numpy()] = distance
    return pl.Series("distance", distances, nan_to_null=True)


def confidences(full: Steps, labels: Ints) -> dict[int | None, float | None]:
    """Return the confidence in each phase by its label, and in all of them by None; outliers are no phase.

    >>> from tpunb.testing import toy_steps
    >>> confidences(toy_steps("aaaaabbbbb"), np.repeat([0, 1], 5))
    {0: 1.0, 1: 1.0, None: 1.0}
    """
    if len(full) < LIMITS.confidence_fewest_steps:
        return {}
    ids, phase = factorize(labels)
    shared, most = np.sum([_agreement(phase[rows], regrouped, ids) for rows, regrouped in _parts(full)], axis=0)
    # most parts of a long run have too few steps of a rare phase to find it
    in_part = np.bincount(phase) * LIMITS.confidence_most_steps / len(full)
    is_long = len(full) * LIMITS.confidence_part > LIMITS.confidence_most_steps
    rare = is_long & (in_part < LIMITS.confidence_fewest_of_phase)
    decided = (most > 0) & ~rare
    index = {int(label): shared[at] / most[at] if decided[at] else None for at, label in enumerate(ids)}
    every = shared.sum() / most.sum() if most.sum() > 0 else 1.0  # all in one phase, in both
    of_one = {int(ids[0]): 1.0} if len(ids) == 1 and not most.sum() else {}
    zero = LIMITS.confidence_zero_index
    return {
        label: None if value is None or label == -1 else float(np.clip((value - zero) / (1 - zero), 0, 1))
        for label, value in (index | of_one | {None: every}).items()
    }


def _agreement(phase: Ints, regrouped: Ints, ids: Ints) -> Floats:
    """Return the parts of the adjusted Rand index in each phase: pairs beyond chance, and the most there can be."""
    outliers = ids[phase] < 0, regrouped < 0
    few = [mask & (mask.mean() < LIMITS.confidence_outlier_share) for mask in outliers]
    kept = ~(few[0] | few[1])
    table = np.zeros((len(ids), int(regrouped.max(initial=-1)) + 2))
    np.add.at(table, (phase[kept], regrouped[kept] + 1), 1)
    rows, columns, n = table.sum(axis=1), table.sum(axis=0), table.sum()
    together = (table * (table - 1)).sum(axis=1)
    mine, theirs = rows * (rows - 1), table @ (columns - 1).clip(0)
    chance = mine * (columns * (columns - 1)).sum() / max(n * (n - 1), 1)
    return np.stack([together - chance, (mine + theirs) / 2 - chance])


@memoised
def _parts(full: Steps) -> list[tuple[Ints, Ints]]:
    """Return the rows of each part, and the phases that the default method finds in them."""
    n, random = len(full), np.random.default_rng(0)
    size = min(round(n * LIMITS.confidence_part), LIMITS.confidence_most_steps)
    rows = [np.sort(random.choice(n, size, replace=False)) for _ in range(LIMITS.confidence_draws)]
    return [(part, labels_of(full, part)) for part in rows]


@dataclass(frozen=True, eq=False)
class Role:
    """The hosts of a job that run one program."""

    steps: Steps  # of the job in that role
    rows: Ints  # of its hosts in the frame of all hosts
    at: Ints  # row in `steps` of each


@memoised
def roles_of(steps: Steps) -> list[Role]:
    """Return the roles of the hosts of a job; none if there is one host."""
    if steps.by_host is None and steps.frame["host"].n_unique() < 2:
        return []
    job, places = (steps, steps.frame.select("host", "step")) if steps.by_host is not None else placed(steps)
    job, places = _typical(job), places.with_columns(row=pl.int_range(pl.len(), dtype=pl.Int64))
    roles = []
    for name in places["host"].unique(maintain_order=True):
        of_role = _of_role(job, name)
        at = of_role.frame.select("host", "step", at=pl.int_range(pl.len(), dtype=pl.Int64))
        rows = places.join(at, on=["host", "step"], maintain_order="left")
        roles.append(Role(of_role, rows["row"].to_numpy(), rows["at"].to_numpy()))
    return roles


def _typical(job: Steps) -> Steps:
    """Return the steps of a job without waits for slow hosts."""
    if job.by_host is None or job.by_host.typical.is_empty():
        return job
    whole = None if job.whole is None else _typical(job.whole)
    return replace(job, frame=job.by_host.typical, ops=job.by_host.typical_ops, whole=whole)


def _of_role(job: Steps, name: str) -> Steps:
    return replace(
        job,
        **{table: getattr(job, table).filter(host=name) for table in ("frame", "ops", "devices", "windows")},
        whole=None if job.whole is None else _of_role(job.whole, name),
        by_host=None,
    )


def combined(steps: Steps, roles: Sequence[Role], parts: Sequence[Phases]) -> Phases:
    """Return the phases of `steps` of several hosts from those of each role; labels of later roles follow on.

    Sweeps are those of the longest role; the confidence in all phases is the mean over roles, weighted by steps.
    """
    labels, offset, offsets = np.full(len(steps), -1, np.int64), 0, []
    for role, part in zip(roles, parts, strict=True):
        of_role = part.labels.to_numpy()
        labels[role.rows] = np.where(of_role < 0, -1, of_role + offset)[role.at]
        offsets.append(offset)
        offset += int(of_role.max(initial=-1)) + 1

    def distances() -> pl.Series:
        distance = np.full(len(steps), np.nan)
        for role, part in zip(roles, parts, strict=True):
            distance[role.rows] = part.distance.to_numpy()[role.at]
        distance[(steps.frame["traced"] != "full").to_numpy()] = np.nan
        return pl.Series("distance", distance, nan_to_null=True)

    def confidences() -> dict[int | None, float | None]:
        of_parts = [dict(part.confidences()) for part in parts]
        of_phases: dict[int | None, float | None] = {
            label + at if label >= 0 else label: value
            for at, by_label in zip(offsets, of_parts, strict=True)
            for label, value in by_label.items()
            if label is not None
        }
        every = [by_label.get(None) for by_label in of_parts]
        sizes = [len(role.steps) for role in roles]
        weighted = [value * n for value, n in zip(every, sizes, strict=True) if value is not None]
        return of_phases | {None: sum(weighted) / sum(sizes) if len(weighted) == len(roles) else None}

    longest = max(range(len(roles)), key=lambda at: int(roles[at].steps.frame["dur_ps"].sum()))
    return Phases(
        steps=steps,
        labels=pl.Series("phase", labels),
        method=parts[0].method,
        distances=distances,
        sweeps=parts[longest].sweeps,
        confidences=confidences,
    )
