"""Group steps into phases: the verb (paper IV.A)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tpunb.cluster.dbscan import DBSCAN, labels_of
from tpunb.cluster.features import space
from tpunb.cluster.hdbscan import HDBSCAN
from tpunb.cluster.kmeans import KMeans
from tpunb.cluster.ols import OLS
from tpunb.cluster.ols_plus import OLSPlus
from tpunb.cluster.paces import kinds_of
from tpunb.errors import BadProfile, NoSteps, wrong_type
from tpunb.frames import Phases, Profile, Steps
from tpunb.frames.cache import memoised, memoised_last
from tpunb.frames.op_matrix import Floats, Ints, factorize
from tpunb.frames.own_time import own_time
from tpunb.frames.phase_names import saved_by_clock
from tpunb.frames.phases import Labels, PhaseMethod
from tpunb.step_stats.merge_hosts import placed
from tpunb.step_stats.reduce import steps as steps_of
from tpunb.text import plural

METHODS = {"dbscan": DBSCAN, "hdbscan": HDBSCAN, "kmeans": KMeans, "ols": OLS, "olsplus": OLSPlus}
"""Phase methods by their names in the magic and in the explorer."""

_CANDIDATES = 8  # full steps on each side that a step may take its label from
_ROWS = 2048  # steps per chunk: few enough for the processor's caches
_SIMILAR = 1.1  # factor between step times that count as equal
_FAR, _FAR_PS = 5, 20_000_000_000  # a step is an outlier if it is so many times, and so much, longer than its phase


def phases(steps: Steps | Profile, method: PhaseMethod | str | None = None) -> Phases:
    """Group steps into phases.

    The method labels the steps traced in full. Every other step takes the label of the nearest of them in time, by the
    middle of the step, that has its host and its kind, saved a checkpoint if it did, and is not an outlier; the earlier
    of two as near. If the clock timed the step, candidates of similar step time come first: without callbacks, and
    where it is known with and without input wait. If its host has no candidate, other hosts serve. A kind without
    candidates is a phase by itself, whose ``full`` is 0: in a run without windows, where the clock timed the steps,
    each kind.

    Steps of one kind are of several where the program marks that something else begins, by a call of ``fit``, by tuning
    in its midst, or by tracing or compiling a function again, and the median own time of the steps is another: 1.5
    times as long or more, with three quarters of the steps above three quarters of the other, from 20 steps and 5 % of
    the time on.

    A step not traced in full is an outlier if it takes more than 5 times the median of its phase and more than 20 ms
    longer, both without callbacks and known input wait; `Phases.labelled` has its reason. Both bounds leave out noise:
    20 ms are time slices of a busy machine, and of short steps many take 5 times the median. The median is that of the
    steps traced in full, of all if there are none; of an even number the lower, so one slow step of two is found.

    Steps of several hosts are grouped once for each role, a set of hosts that run one program: a phase is a property of
    the job's step, and each host has the label of the step in which it takes part (:mod:`tpunb.cluster.assign`).

    Parameters
    ----------
    steps
        Steps to group, or a profile, whose steps they are.
    method
        ``DBSCAN()`` by default; ``OLS()``, ``OLSPlus()``, ``KMeans()``, ``HDBSCAN()``, or the name of one, such as
        "olsplus"; or any function from `Steps` to one int per step, -1 for outliers.

    Raises
    ------
    TypeError
        If `steps` are neither steps nor a profile, or `method` is not a function of steps.
    ValueError
        If no method has that name.
    NoSteps
        If there are no steps, or none was traced in full or timed.
    BadProfile
        If the method does not return one int of -1 or more per step; if a host has two steps of the same number, or
        a step or an operation has no name.

    >>> from tpunb.testing import toy_steps
    >>> phases(toy_steps("aaabbb"))
    Phases(2 phases over 6 steps, DBSCAN(), top 3 cover 100.0 % of productive time)
    >>> phases(toy_steps("aaabbb"), lambda steps: range(len(steps))).labels.to_list()
    [0, 1, 2, 3, 4, 5]
    """
    steps = steps_of(steps) if isinstance(steps, Profile) else steps
    if not isinstance(steps, Steps):
        hint = "tp.load(path)" if isinstance(steps, str | PathLike) else "tp.steps(profile)"
        raise wrong_type("phases", "steps", "be Steps or a Profile", steps, hint=hint)
    method = _named(method) if isinstance(method, str) else DBSCAN() if method is None else method
    if not callable(method) or isinstance(method, type):
        raise wrong_type("phases", "method", "be a method such as tp.DBSCAN()", method)
    _check(steps)
    of_roles = roles_of(steps)
    groups = [_grouped(role.steps, method) for role in of_roles] or [_grouped(steps, method)]
    if not any(group.known for group in groups):
        raise _no_steps(steps)
    if not of_roles:
        return groups[0].phases
    return combined(steps, of_roles, [group.phases for group in groups])


class _Grouped(NamedTuple):
    known: bool  # whether a step was traced in full or timed
    phases: Phases


def _grouped(steps: Steps, method: PhaseMethod) -> _Grouped:
    """Return the phases of the steps of one host, or of a job."""
    full = steps.full()
    answer = method(full) if len(full) else Labels([])
    fitted = _checked(answer, len(full), method)
    labels = fitted if full is steps else _with_others(steps, fitted)
    sweeps = getattr(answer, "sweeps", None)
    phases = Phases(
        steps=steps,
        labels=pl.Series("phase", labels),
        method=method,
        distances=lambda: _distances(steps, fitted),
        sweeps=sweeps if isinstance(sweeps, Mapping) else {},
        confidences=lambda: confidences(full, fitted),
    )
    return _Grouped(bool(len(full) or _columns(steps).timed.any()), phases)


def _named(method: str) -> PhaseMethod:
    if method not in METHODS:
        raise ValueError(f"The method parameter of phases must be one of {', '.join(METHODS)}. Got {method!r} instead.")
    chosen: PhaseMethod = METHODS[method]()
    return chosen


@memoised
def _check(steps: Steps) -> None:
    """Raise if steps or operations are not identified, or steps not unique."""
    for frame, columns in ((steps.frame, ("host", "step", "traced")), (steps.ops, ("host", "step", "op", "side"))):
        for column in columns:
            if frame[column].null_count():
                raise BadProfile(
                    f"{column} is missing in {frame[column].null_count()} of {plural(frame.height, 'row')}"
                )
    repeated = steps.frame.filter(pl.struct("host", "step").is_duplicated())
    if repeated.height:
        host, step = repeated.select("host", "step").row(0)
        raise BadProfile(
            f"step {step} of host {host!r} is there {repeated.filter(host=host, step=step).height} times",
            hint="give each step of a host a number of its own",
        )


def _no_steps(steps: Steps) -> NoSteps:
    name = steps.name or "the profile"
    if not len(steps):
        hint = "mark steps: `with run.step(i):` or `for batch in run.batches(data):`"
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
    """What places the steps not traced in full, whatever the phases: arrays of (steps,).

    `kind` is the kind and the pace; `middle` is twice the middle of the step, to stay in whole picoseconds; `size` is
    the logarithm of the step time without callbacks, `own` also without input wait where `fed` says that it is known;
    `long` has both in picoseconds; `saves` says which saved a checkpoint.
    """

    full: NDArray[np.bool_]
    host: Ints
    kind: Ints
    middle: Ints
    size: Floats
    own: Floats
    fed: NDArray[np.bool_]
    timed: NDArray[np.bool_]
    long: tuple[Ints, Ints]
    saves: NDArray[np.bool_]


@memoised
def _columns(steps: Steps) -> _Columns:
    frame = steps.frame
    dur = frame["dur_ps"].fill_null(0)
    host, kind = frame["host"].rank("dense").to_numpy().astype(np.int64), kinds_of(steps)
    full = (frame["traced"] == "full").to_numpy()
    middle = (frame["start_ps"].fill_null(0) * 2 + dur).to_numpy()
    times = frame.select(pl.col("dur_ps") - pl.col("callbacks_ps").fill_null(0), own_time())
    long, own = (column.fill_null(0).clip(0).to_numpy() for column in times)
    size, own_size = np.log(long.clip(1)), np.log(own.clip(long // 100 + 1))  # all input: no own time to go by
    fed = frame["input_ps"].is_not_null().to_numpy()
    timed = (dur > 0).to_numpy()
    saves = saved_by_clock(steps).to_numpy()
    return _Columns(full, host, kind, middle, size, own_size, fed, timed, (long, own), saves)


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
    for fed, time, ascending in zip((False, True), columns.long, _ascending(steps), strict=True):
        middle = np.zeros((len(ids), 2), dtype=np.int64)
        middle_values(phase, ascending[among[ascending]], time, size, middle)
        usual = middle[phase, 0]
        far |= (columns.fed == fed) & (time > _FAR * usual) & (time - usual > _FAR_PS)
    return far & ~columns.full & columns.timed & (labels >= 0) & (size > 0)[phase]


@memoised
def _ascending(steps: Steps) -> tuple[Ints, ...]:
    return tuple(np.argsort(time, kind="stable") for time in _columns(steps).long)


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
    middle, size, own, fed = columns.middle, columns.size, columns.own, columns.fed
    near = rows[(after[:, None] + np.arange(-_CANDIDATES, _CANDIDATES)).clip(0, len(rows) - 1)]
    distance = np.abs(middle[queries][:, None] - middle[near])
    difference = np.abs(size[queries][:, None] - size[near])
    difference += np.abs(own[queries][:, None] - own[near]) * (fed[queries][:, None] & fed[near])
    difference *= columns.timed[queries][:, None]
    similar = difference <= difference.min(axis=1, keepdims=True) + np.log(_SIMILAR)
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


_DRAWS, _PART, _MOST = 5, 0.8, 1000
_LEAST = 3  # steps
_SEEN = 10  # steps of a phase in a part of a long run, below which its confidence is unknown
_FEW = 0.01  # share of a part below which outliers are left out
_NONE = 0.6  # index of no confidence


def confidences(full: Steps, labels: Ints) -> dict[int | None, float | None]:
    """Return the confidence in each phase by its label, and in all of them by None; outliers are no phase.

    Parameters
    ----------
    full
        Steps traced in full.
    labels
        Label of each, -1 for outliers: (steps,).

    >>> from tpunb.testing import toy_steps
    >>> confidences(toy_steps("aaaaabbbbb"), np.repeat([0, 1], 5))
    {0: 1.0, 1: 1.0, None: 1.0}
    """
    if len(full) < _LEAST:
        return {}
    ids, phase = factorize(labels)
    shared, most = np.sum([_agreement(phase[rows], found, ids) for rows, found in _parts(full)], axis=0)
    # most parts of a long run have too few steps of a rare phase to find it
    rare = np.bincount(phase) * _MOST < _SEEN * len(full) if len(full) * _PART > _MOST else np.zeros(len(ids), np.bool_)
    known = (most > 0) & ~rare
    index = {int(label): shared[at] / most[at] if known[at] else None for at, label in enumerate(ids)}
    every = shared.sum() / most.sum() if most.sum() > 0 else 1.0  # all in one phase, in both
    of_one = {int(ids[0]): 1.0} if len(ids) == 1 and not most.sum() else {}
    return {
        label: None if value is None or label == -1 else float(np.clip((value - _NONE) / (1 - _NONE), 0, 1))
        for label, value in (index | of_one | {None: every}).items()
    }


def _agreement(phase: Ints, found: Ints, ids: Ints) -> Floats:
    """Return the parts of the adjusted Rand index in each phase: pairs beyond chance, and the most there can be."""
    outliers = ids[phase] < 0, found < 0
    few = [mask & (mask.mean() < _FEW) for mask in outliers]
    kept = ~(few[0] | few[1])
    table = np.zeros((len(ids), int(found.max(initial=-1)) + 2))
    np.add.at(table, (phase[kept], found[kept] + 1), 1)
    rows, columns, n = table.sum(axis=1), table.sum(axis=0), table.sum()
    together = (table * (table - 1)).sum(axis=1)
    mine, theirs = rows * (rows - 1), table @ (columns - 1).clip(0)
    chance = mine * (columns * (columns - 1)).sum() / max(n * (n - 1), 1)
    return np.stack([together - chance, (mine + theirs) / 2 - chance])


@memoised
def _parts(full: Steps) -> list[tuple[Ints, Ints]]:
    """Return the rows of each part, and the phases that the default method finds in them."""
    n, random = len(full), np.random.default_rng(0)
    size = min(round(n * _PART), _MOST)
    rows = [np.sort(random.choice(n, size, replace=False)) for _ in range(_DRAWS)]
    return [(part, labels_of(full, part)) for part in rows]


@dataclass(frozen=True, eq=False)
class Role:
    """The hosts of a job that run one program.

    Parameters
    ----------
    steps
        Steps of the job in that role.
    rows
        Rows of its hosts in the frame of all hosts.
    at
        Row in `steps` of each.
    """

    steps: Steps
    rows: Ints
    at: Ints


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

    The sweeps are those of the role whose steps take most time. The confidence in all phases is the mean over roles,
    weighted by their steps, null where one is unknown.
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
            for at, known in zip(offsets, of_parts, strict=True)
            for label, value in known.items()
            if label is not None
        }
        every = [known.get(None) for known in of_parts]
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
