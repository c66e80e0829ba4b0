"""Hosts that delay a job: judged by the waits inside collectives, where the last to arrive waits least.

Of a job with pipeline parallelism hosts are judged by replay with operations of typical length.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl

from tpunb import schema
from tpunb.analysis.barriers import WAITS, Barriers, aligned, clocks, find_barriers, median
from tpunb.analysis.pipeline import Replay, obstacle, replay
from tpunb.analysis.run import OfRun, Run, loaded, steps
from tpunb.analysis.time_line import BOUNDARY, FEWEST_SAMPLES
from tpunb.errors import NoSteps
from tpunb.frames import Steps
from tpunb.frames.cache import memoised
from tpunb.frames.conversion import Tabular
from tpunb.frames.op_matrix import Bools, Floats, Ints
from tpunb.frames.steps import HostTables, WallClock
from tpunb.step_stats import batch_means, op_names
from tpunb.step_stats.merge_hosts import host_tables, of_job
from tpunb.text import cut, duration, percent, plain, plural

_MOST_NAMED = 4  # hosts in a sentence


@dataclass(frozen=True, eq=False, repr=False)
class Hosts(Tabular, OfRun):
    """Hosts of a job by what their delays cost.

    Parameters
    ----------
    frame
        One row per host: ``tpunb.schema.HOSTS``.
    critical
        Per step the chain of (host, device, collective) that ended it: ``tpunb.schema.CRITICAL``.
    lateness
        How late each host came in each step: ``tpunb.schema.LATENESS``.
    span_ps
        Step time of the job in picoseconds, median over hosts: the base of every share.
    by
        What arrivals were judged by: "collectives"; without them "waits in backward passes and collectives" by the
        clocks of ranks that wait on the host, else "step ends"; or "replay" of a pipeline.
    notes
        What is not judged, one line each.
    what_if
        Slowdown and gain of parts of a job with pipeline parallelism: ``tpunb.schema.WHAT_IF``; empty for others.
    cause
        What slows a pipeline down: "worker", "stage", "sequence" (work that differs from microbatch to microbatch),
        "none", or "unknown"; None for other jobs.
    """

    frame: pl.DataFrame
    critical: pl.DataFrame
    lateness: pl.DataFrame
    span_ps: int
    by: str = "collectives"
    notes: tuple[str, ...] = field(default=())
    what_if: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=schema.WHAT_IF))
    cause: str | None = None

    def __post_init__(self) -> None:
        for name in ("frame", "critical", "lateness", "what_if"):
            columns = getattr(schema, "HOSTS" if name == "frame" else name.upper())
            object.__setattr__(self, name, schema.check(getattr(self, name), columns, name))

    def share(self, time_ps: int | None) -> float:
        """Return a time as a share of the step time of the job."""
        return (time_ps or 0) / max(self.span_ps, 1)

    @property
    def slowdown(self) -> float | None:
        """Step time as a multiple of that with operations of typical length; None without a pipeline."""
        whole = self.what_if.filter(part="job")["slowdown"]
        return whole[0] if len(whole) else None

    @property
    def sentence(self) -> str:
        """Which hosts to replace, and the gain of the job, in one sentence."""
        return "; ".join(self._parts())

    def _parts(self) -> Iterator[str]:
        present, lost = self.frame.filter(pl.col("lost").is_null()), self.frame.drop_nulls("lost")
        named, judged = present.filter("named"), present.drop_nulls("costs_ps")
        first = f"{plural(present.height, 'host')}, "
        if self.slowdown is not None:
            first += f"slowdown {self.slowdown:.2f} against operations of typical length: "
        if self.cause in _UNEVEN:
            stage = self.what_if.filter(part="stage").sort("slowdown")["name"][-1]
            slowest = f", of which stage {stage} is the slowest" if self.cause == "stage" else ""
            yield f"{first}{_UNEVEN[self.cause]}{slowest}"
            yield from self._gain(self.cause, "even work would gain {} of step time")
        elif judged.is_empty():
            yield f"{first}none {'is judged' if self.by == 'replay' else 'waits for another'}"
        elif named.is_empty():
            gain = percent(self.share(judged["costs_ps"][0]), 2)
            most = f", {_name(judged.row(0, named=True))} by {gain} of step time" * (judged["costs_ps"][0] > 0)
            none = "none delays the others" + " more than their spread explains" * bool(most)
            yield first + ("cause unknown" if self.cause == "unknown" else none) + most
        else:
            rows = [*named.head(_MOST_NAMED).iter_rows(named=True)]
            by_line = named["place"].is_not_null().any()  # which is slow on another host, too
            verb, gained = ("", "costs") if by_line else ("replace ", "to gain")
            gains = [f"{_name(row)} {gained} {percent(self.share(row['costs_ps']), 1)}" for row in rows]
            gains[0] += " of step time"
            each = [f"{gain} ({why(row)})" for gain, row in zip(gains, rows, strict=True)]
            more = f" and {named.height - _MOST_NAMED} more" if named.height > _MOST_NAMED else ""
            yield f"{first}{verb}{', '.join(each)}{more}"
            if named.height > 1:
                yield f"{percent(self.share(named['together_ps'][-1]), 1)} together"
            yield from self._gain("worker") if self.cause == "worker" else ()
        if self.by == "step ends" and not judged.is_empty():
            yield f"judged by {self.by}, as no collectives are recorded"
        elif self.by == WAITS:
            yield f"judged by {self.by}"
        if lost.height:
            more = ", ..." * (lost.height > _MOST_NAMED)
            yield f"{lost.height:,} lost: {', '.join(map(_name, lost.head(_MOST_NAMED).iter_rows(named=True)))}{more}"
        yield from map(plain, self.notes)

    def _gain(self, cause: str, words: str = "") -> Iterator[str]:
        """Yield the gain without a cause in a pipeline, in words if there are any, and its interval if known."""
        times = self.what_if.filter(part="cause", name=cause).select("gain_ps", "low_ps", "high_ps").row(0)
        steps = self.lateness["step"].n_unique()
        gain, *ends = (percent(self.share(time * steps), 1) for time in times if time is not None)
        yield from [words.format(gain)] if words else []
        yield from [f"95 % interval {' to '.join(ends)}"] if ends else []

    def __repr__(self) -> str:
        return f"Hosts({self.sentence})"


_UNEVEN = {"stage": "uneven stages", "sequence": "uneven work by sequence"}


def _name(row: dict[str, Any]) -> str:
    return cut(plain(row["host"]))


def why(row: dict[str, Any]) -> str:
    """Return cause and recurrence of a row of ``tpunb.schema.HOSTS``."""
    where = [plain(row[name]) for name in ("device", "op") if row[name] is not None]
    cause = f"{row['cause']} of {', '.join(map(cut, where))}" if where else f"cause {row['cause']}"
    if row["place"] is not None:
        cause = f"{'' if row['cause'] == 'unknown' else row['cause'] + ' '}at {cut(plain(row['place']), 80)}"
    return f"{cause}, {row['recurrence']}"


_ALPHA = 0.05  # share of sound jobs in which a host would be named
_RANKED, _UPPER = 128, 2 / 3  # hosts whose gains are compared: at most, and as a part of all
_LEAST_COST = 0.05  # of step time, of a host that is late in one step after the other: goodput counts from there
# both: half and twice of it change no name in four jobs of two processes, two of them with a slow one
_SHARED = 0.1  # of the steps, traced by several hosts, whose collectives stand for the others; 0 to 0.095 there
_SAME_PACE = 1.02  # longest by shortest time of hosts for their steps, if they wait in each; 1.0001 to 1.005 there
_AT_PLACE = 0.2  # part of the lateness that a host spends at a place more than others
_REPLAYED = 16  # hosts, where replica groups separate hosts


def hosts(run: Run) -> Hosts:
    """Return which hosts of a job delay the others, why, and the gain of a replacement.

    At a collective all devices of a group wait for the last one, which has the shortest run, whatever the clocks show.
    A host that is last costs the time to the second-last. Hosts are named if their cost exceeds what the costs of the
    others explain: spacings of the largest values, times their rank, have one exponential distribution [1]_; or if a
    host costs more than the others in one step after the other, by the means of batches of steps, and 5 % of step time.
    Without collectives of devices, ranks that wait on the host are judged by what they do not compute in backward
    passes and collectives; else arrival is the end of the step. A job with pipeline parallelism (`Steps.pipeline`) is
    replayed with operations of typical length instead, after [2]_: ``what_if`` has its slowdown by operation, worker
    and stage.

    Parameters
    ----------
    run
        Path of a job of several hosts, its Profile, Steps or Phases.

    Raises
    ------
    TypeError
        When `run` is something else.
    NoSteps
        When no step was traced in full.

    References
    ----------
    .. [1] I. Weissman, "Estimation of parameters and large quantiles based on the k largest observations", Journal of
       the American Statistical Association 73, 1978.
    .. [2] J. Lin et al., "Understanding Stragglers in Large Model Training Using What-if Analysis", OSDI 2025, Eq. 1-5.
    """
    found = loaded(run, "hosts")
    return _hosts(steps(found)).about(found)


def slow_ranks(steps: Steps) -> Hosts | None:
    """Return `hosts` of ranks whose clocks recorded their waits for each other; None for other runs."""
    waited = steps.frame.filter(pl.col("peers_ps") > 0)["host"]
    return _hosts(steps) if waited.len() and steps.frame["host"].n_unique() > 1 else None


@memoised
def _hosts(steps: Steps) -> Hosts:
    tables = of_job(steps).by_host or host_tables(steps)  # one host is no job
    frame = tables.frame.filter(pl.col("traced") == "full")
    if steps.pipeline.is_empty() and not _are_shared(tables.collectives, tables.frame):
        frame = frame if (waits := _waits(tables.frame, (steps.wall or WallClock(0)).spans)).is_empty() else waits
    if frame.is_empty():
        raise NoSteps(f"{steps.name or 'the job'} has no step that was traced in full")
    if not steps.pipeline.is_empty():
        reason = obstacle(steps.pipeline)
        return _of_pipeline(steps.pipeline, tables, frame) if reason is None else _unjudged(tables, frame, reason)
    barriers = find_barriers(tables, frame)
    tops = [_top(barriers.wait[np.ix_(*block)], block) for block in barriers.blocks]
    costs, last = _costs(barriers, tops)
    order = _ranking(tops, costs)
    together = _together(barriers, order)
    if any(component.max(initial=0) > 0 for component in barriers.groups):
        costs, order, together = _replayed(barriers, costs, order)
    unlike = _outliers(np.diff(together, prepend=0)[:-1])
    named = order[: max(unlike, _steadily_late(barriers, order, _LEAST_COST * _span_ps(frame)))]
    late = _lateness(barriers)
    skew, drift = clocks(barriers)
    whole = (("costs_ps", costs[order]), ("together_ps", together), ("skew_ps", skew[order]))
    columns = {name: pl.Series(values).fill_nan(None).round().cast(pl.Int64) for name, values in whole}
    names = np.array(barriers.hosts)
    rows = pl.DataFrame(
        {"host": names[order], "last": last[order], "drift_ppm": drift[order]} | columns, nan_to_null=True
    ).with_columns(
        role=pl.Series([tables.roles.get(name) for name in names[order]], dtype=pl.String),
        named=pl.int_range(pl.len()) < len(named),
    )
    reasons = causes(barriers, tables, frame, late, named.tolist())
    of_named = pl.DataFrame({"host": names[named], "late_ps": late[:, named].clip(0).sum(axis=0)})
    places = _places((steps.wall or WallClock(0)).samples, frame, barriers, of_named)
    reasons = reasons.join(places, on="host", how="left", maintain_order="left")
    every = [int(step) for step in barriers.steps]
    lateness = {
        "host": pl.Series(barriers.hosts, dtype=schema.NAME)[np.repeat(np.arange(len(names)), len(every))],
        "step": np.tile(every, len(names)),
        "late_ps": np.rint(late.T).astype(np.int64).ravel(),
    }
    return Hosts(
        _with_lost(rows.join(reasons, on="host", how="left", maintain_order="left"), tables),
        _critical(barriers, skew),
        pl.DataFrame(lateness),
        _span_ps(frame),
        barriers.by,
        barriers.notes,
    )


def _filled(wait: Floats) -> Floats:
    """Return waits in which a host without one waits longest: it never comes last."""
    return np.where(np.isfinite(wait), wait, np.nanmax(wait, axis=1, keepdims=True))


def _top(wait: Floats, block: tuple[Ints, Ints]) -> tuple[Ints, Floats]:
    """Return the hosts that came last to each instance, and their waits, shortest first."""
    filled = _filled(wait)
    most = min(_RANKED + 2, filled.shape[1])
    who = np.argpartition(filled, most - 1, axis=1)[:, :most]
    waits = np.take_along_axis(filled, who, axis=1)
    by_wait = np.argsort(waits, axis=1, kind="stable")
    return block[1][np.take_along_axis(who, by_wait, axis=1)], np.take_along_axis(waits, by_wait, axis=1)


def _costs(barriers: Barriers, tops: Sequence[tuple[Ints, Floats]]) -> tuple[Floats, Floats]:
    """Return what each host costs, and the share of its collectives to which it came last; NaN if it had none."""
    took = np.zeros(len(barriers.hosts))
    for rows, hosts in barriers.blocks:
        took[hosts] += np.isfinite(barriers.wait[np.ix_(rows, hosts)]).sum(axis=0)
    costs, last = np.zeros((2, len(took)))
    for who, wait in tops:
        costs += np.bincount(who[:, 0], wait[:, 1] - wait[:, 0], len(took))
        last += np.bincount(who[:, 0], wait[:, 1] > wait[:, 0], len(took))
    return np.where(took > 0, costs, np.nan), np.where(took > 0, last / np.maximum(took, 1), np.nan)


def _ranking(tops: Sequence[tuple[Ints, Floats]], costs: Floats) -> Ints:
    """Return the hosts in order: next is the one that is dearest when no other waits for those before it."""
    out, order = np.zeros(len(costs), bool), list[int]()
    while len(order) < min(_RANKED, len(costs) - 1):
        gains = np.zeros(len(costs))
        for who, wait in tops:
            rows, left = np.arange(len(who)), ~out[who]
            first = left.argmax(axis=1)
            left[rows, first] = False
            second = np.where(left.any(axis=1), left.argmax(axis=1), first)
            gains += np.bincount(who[rows, first], wait[rows, second] - wait[rows, first], len(costs))
        gains[out] = 0
        if gains.max() <= 0:
            break
        order.append(int(gains.argmax()))
        out[order[-1]] = True
    rest = np.flatnonzero(~out)
    return np.array([*order, *rest[np.argsort(-np.nan_to_num(costs[rest], nan=-1), kind="stable")]], np.int64)


def _together(barriers: Barriers, order: Ints) -> Floats:
    """Return the gain if no other host waits for the first, the first two, ... in an order."""
    rank, gains = np.argsort(order), np.zeros(len(order))
    for rows, hosts in barriers.blocks:
        ranked = hosts[np.argsort(rank[hosts])]
        filled = _filled(barriers.wait[np.ix_(rows, ranked)])
        least = np.minimum.accumulate(filled[:, ::-1], axis=1).sum(axis=0)[::-1]  # of all from a rank on
        gains[rank[ranked[:-1]]] += np.diff(least)
    return gains.cumsum()


def _outliers(gains: Floats) -> int:
    """Return how many of the first hosts gain more than the gains of those after them explain."""
    # spacings of largest values, times their rank, are exponential: the ratio of one to the mean of n has the
    # F-distribution; the probability of any false one among `most` is `_ALPHA` or less
    compared = min(_RANKED, math.ceil(_UPPER * (len(gains) + 1)), int(np.isfinite(gains).sum()))
    most = max(compared // 2, 1)
    for k in range(min(most, compared - 1), 0, -1):
        n = compared - k
        mean = (gains[k:compared] * np.arange(2, n + 2)).mean()  # the first after k others has rank 1
        if gains[k - 1] > mean * n * ((most / _ALPHA) ** (1 / n) - 1):
            return k
    return 0


def _steadily_late(barriers: Barriers, order: Ints, least: float) -> int:
    """Return how many of the first hosts cost more than the mean of those after them in batch after batch of steps.

    Each costs at least a time, and more than twice the half of its 95 % interval.
    """
    for k, host in enumerate(order[:-1][:_RANKED]):
        gains = np.zeros((len(barriers.steps), len(order)))
        for rows, hosts in barriers.blocks:
            if len(left := hosts[np.isin(hosts, order[k:])]) > 1:
                who, wait = _top(barriers.wait[np.ix_(rows, left)], (rows, left))
                np.add.at(gains, (barriers.step[rows], who[:, 0]), wait[:, 1] - wait[:, 0])
        more = gains[:, host] - gains[:, order[k + 1 :]].mean(axis=1)
        error = batch_means.error(batch_means.means(more), len(more))
        low, _ = batch_means.ends(more.mean(), (error, len(more)), (np.zeros_like(error), len(more)))
        if not (more.sum() >= least and (error == 0 or 2 * (more.mean() - low) < more.mean())):
            return k
    return max(len(order) - 1, 0)


def _waits(frame: pl.DataFrame, spans: pl.DataFrame) -> pl.DataFrame:
    """Return the steps of ranks that wait for each other on the host, with ``waited_ps``: also until the next step.

    Where only some ranks evaluate, training steps are numbered without others. Steps in which the profiler of a rank
    began or ended a window are left out: others wait for it.
    """
    frame = (frame if frame["peers_ps"].count() else _waits_of_devices(frame)).drop_nulls("peers_ps")
    if frame["host"].n_unique() < 2 or not (frame["peers_ps"] > 0).any():
        return frame.clear()
    ends = frame.select("host", "step", "start_ps", until_ps=pl.col("start_ps") + pl.col("dur_ps")).sort("start_ps")
    windows = spans.filter(account="profiler", detail=BOUNDARY).sort("start_ps")
    windows = windows.join_asof(ends, on="start_ps", by="host", check_sortedness=False).select("host", "step")
    spans = spans.filter(account=schema.PEERS).select("host", "start_ps", after_ps="dur_ps").sort("start_ps")
    spans = spans.join_asof(ends, on="start_ps", by="host", check_sortedness=False)
    after_ps = pl.col("after_ps").filter(pl.col("start_ps") >= pl.col("until_ps")).sum()
    after = spans.group_by("host", "step").agg(after_ps)
    frame = frame.join(after, on=["host", "step"], how="left", maintain_order="left")
    frame = frame.with_columns(waited_ps=pl.col("peers_ps") + pl.col("after_ps").fill_null(0))
    delayed = pl.concat([windows, windows.with_columns(pl.col("step") + 1)]).with_columns(profiled=True).unique()
    frame = frame.join(delayed, on=["host", "step"], how="left", maintain_order="left")
    numbered = frame.with_columns(step=aligned(frame))
    if not numbered["step"].equals(frame["step"]):
        numbered = numbered.filter(kind="train")
    free = numbered.filter(~pl.col("profiled").any().over("step")).drop("profiled")
    return free if free.height else numbered.drop("profiled")


def _are_shared(collectives: pl.DataFrame, frame: pl.DataFrame) -> bool:
    """Return whether several hosts traced collectives of enough of the same steps: their windows differ."""
    hosts = collectives.filter(pl.col("instance") > 0).group_by("step").agg(pl.n_unique("host"))
    return hosts.filter(pl.col("host") > 1).height > _SHARED * frame["step"].n_unique()


def _waits_of_devices(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the training steps of compiled functions with ``peers_ps``: what each takes longer than the shortest.

    Hosts that keep pace with each other compute the same in a step, and wait in it for the one that launches it last.
    """
    hosts = frame["host"].n_unique()
    frame = frame.filter(kind="train", rule="calls").filter(pl.n_unique("host").over("step") == hosts)
    frame = frame.filter(pl.col("step") > pl.col("step").min() + 1)  # the first ones are compiled
    spans = frame.group_by("host").agg(span_ps=pl.col("start_ps").max() - pl.col("start_ps").min())["span_ps"]
    if spans.is_empty() or spans.max() > _SAME_PACE * spans.min():  # type: ignore[operator]
        return frame.clear()
    return frame.with_columns(peers_ps=pl.col("dur_ps") - pl.col("dur_ps").min().over("step"))


def _places(samples: pl.DataFrame, frame: pl.DataFrame, barriers: Barriers, late: pl.DataFrame) -> pl.DataFrame:
    """Return (host, place): where in the program hosts, with how late they are, are more often than the others."""
    low, high = (int(time) for time in frame["start_ps"].sort().gather([0, -1]))
    samples = samples.filter(pl.col("start_ps").is_between(low, high), pl.col("host").is_in(barriers.hosts))
    shares = samples.group_by("host", "place").agg(n=pl.len())
    shares = shares.with_columns(share=pl.col("n") / pl.col("n").sum().over("host"))
    others = (pl.col("share").sum().over("place") - pl.col("share")) / max(samples["host"].n_unique() - 1, 1)
    shares = shares.with_columns(more_ps=(pl.col("share") - others) * (high - low)).join(late, on="host")
    found = (pl.col("n") >= FEWEST_SAMPLES) & (pl.col("more_ps") >= _AT_PLACE * pl.col("late_ps"))
    order = shares.drop_nulls("place").filter(found).sort("more_ps", "place", descending=[True, False])
    return order.unique("host", keep="first").select("host", "place")


def _replayed(barriers: Barriers, costs: Floats, order: Ints) -> tuple[Floats, Ints, Floats]:
    """Return costs, order and joint gains by a replay of the job, for the dearest hosts; NaN for others."""
    # where groups of hosts wait for each other, a delay costs the job as far as it reaches the end through others
    chosen = order[:_REPLAYED]
    alone = _replay(barriers, [[], *([host] for host in chosen)])
    costs = np.where(np.isin(np.arange(len(costs)), chosen), np.nan, np.minimum(costs, 0))
    costs[chosen] = alone[0] - alone[1:]
    order = np.concatenate([chosen[np.argsort(-costs[chosen], kind="stable")], order[_REPLAYED:]])
    joint = _replay(barriers, [[], *(order[: n + 1].tolist() for n in range(len(chosen)))])
    together = np.full(len(order), np.nan)
    together[: len(chosen)] = joint[0] - joint[1:]
    return costs, order, together


def _replay(barriers: Barriers, without: Sequence[Sequence[int]]) -> Floats:
    """Return when the job ends if no other host waits for some hosts, for several choices of these."""
    n = len(barriers.hosts)
    gone = np.zeros((len(without), n), bool)
    for at, left in enumerate(without):
        gone[at, [*left]] = True
    now, before = np.zeros((len(without), n)), np.full(n, np.nan)
    for at, (wait, start) in enumerate(zip(barriers.wait, barriers.start, strict=True)):
        component = np.where(np.isfinite(wait), barriers.groups[barriers.group[at]], -1)
        hosts = np.argsort(component, kind="stable")[(component < 0).sum() :]
        _, edges, sizes = np.unique(component[hosts], return_index=True, return_counts=True)
        least, most = (np.repeat(part.reduceat(wait[hosts], edges), sizes) for part in (np.minimum, np.maximum))
        worked = np.where(np.isfinite(before[hosts]), start[hosts] - before[hosts], most - wait[hosts])
        arrived = now[:, hosts] + worked
        earliest = np.minimum.reduceat(arrived, edges, axis=1)  # of a group of which nobody waits for anybody
        latest = np.maximum.reduceat(np.where(gone[:, hosts], -np.inf, arrived), edges, axis=1)
        now[:, hosts] = np.repeat(np.maximum(latest, earliest), sizes, axis=1) + least
        before[hosts] = start[hosts] + wait[hosts]
    return np.asarray(now.max(axis=1))


def _lateness(barriers: Barriers) -> Floats:
    """Return how much later than the median host each came in each step, (steps, hosts)."""
    late = np.zeros((len(barriers.steps), len(barriers.hosts)))
    steps, first = np.unique(barriers.step, return_index=True)
    if len(steps):
        late[steps] = np.add.reduceat(barriers.late, first, axis=0)
    return late


def _critical(barriers: Barriers, skew: Floats) -> pl.DataFrame:
    """Return ``tpunb.schema.CRITICAL``: from the end of each step back, the host that each collective waited for."""
    ends, rows, host, step = barriers.ends, [], -1, -1
    took_part = np.isfinite(barriers.wait)
    for at in range(len(ends) - 1, -1, -1):
        component = np.where(took_part[at], barriers.groups[barriers.group[at]], -1)
        if barriers.step[at] != step:  # begins with the host that ended it last
            step = barriers.step[at]
            host = int(np.where(component < 0, -np.inf, ends[at] - np.nan_to_num(skew)).argmax())
        if component[host] < 0:
            continue
        members = np.flatnonzero(component == component[host])
        waits = barriers.wait[at, members]
        last, second = members[waits.argmin()], np.partition(waits, min(1, len(waits) - 1))[min(1, len(waits) - 1)]
        earlier = next((ends[before, last] for before in range(at - 1, -1, -1) if took_part[before, last]), np.nan)
        dur = ends[at, last] - earlier if barriers.by != "step ends" else -barriers.wait[at, last]
        device = int(barriers.device[at, last])
        gain = second - waits.min()
        named = barriers.hosts[last], None if device < 0 else barriers.devices[device], barriers.name[at]
        rows.append((barriers.steps[step], *named, *(None if np.isnan(time) else round(time) for time in (dur, gain))))
        host = last
    columns = [name for name in schema.CRITICAL if name != "segment"]
    chain = pl.DataFrame(rows[::-1], schema={name: schema.CRITICAL[name] for name in columns}, orient="row")
    return chain.with_columns(segment=pl.int_range(1, pl.len() + 1).over("step")).select(*schema.CRITICAL)


_EXPLAINED = 0.5  # part of the lateness that a cause has to explain
_REGULAR = 0.8  # part of the steps, or of the gaps between late ones, that are alike
_WAITING = r"(?i)^(infeed|outfeed|send|recv)"  # operations of a device that wait for others
_REASON = ("host", "cause", "device", "op", "recurrence")


def causes(
    barriers: Barriers, tables: HostTables, frame: pl.DataFrame, late: Floats, hosts: Sequence[int]
) -> pl.DataFrame:
    """Return host, cause, device, op and recurrence of some hosts.

    A cause explains what the host has more of than the median of its role, at most its lateness in each step.
    Compute is busy time of the device, as far as operations took longer.
    """
    times = {
        "input": _by_step(barriers, frame, pl.sum_horizontal("input_ps", "infeed_ps", ignore_nulls=True)),
        "compile": _by_step(barriers, frame, pl.col("compile_ps")),
        "host": _by_step(barriers, frame, pl.col("idle_ps")),
    }
    if barriers.by == WAITS:  # since the last step, without waits
        end_ps = pl.col("start_ps") + pl.col("dur_ps")
        since_ps = end_ps - pl.coalesce(end_ps.shift().over("host"), "start_ps")
        times["host"] = _by_step(barriers, frame.sort("host", "step"), since_ps - pl.col("waited_ps"))
    ops, self_ps = _by_op(barriers, tables)
    roles = np.array([tables.roles.get(name, "") for name in barriers.hosts])
    rows: list[tuple[str | None, ...]] = []
    for host in hosts:
        lateness, peers = late[:, host].clip(0), roles == roles[host]
        often = _recurrence(lateness)
        total, shares = max(lateness.sum(), 1), {}
        for name, of in times.items():
            shares[name] = np.nansum(np.minimum(of[:, host] - median(of[:, peers], 1), lateness).clip(0)) / total
        more = self_ps[:, host] - median(self_ps[:, peers], 1)
        idle = shares["host"] if np.isfinite(times["host"][:, host]).any() else shares["input"] + shares["compile"]
        shares["compute"] = min(more.clip(0).sum() / total, 1 - idle)
        shares["host"] -= shares["input"] + shares["compile"]
        cause = max(shares, key=lambda name: shares[name])
        device = op = None
        if shares[cause] < _EXPLAINED:
            cause = "unknown"
        elif cause == "host" and often in ("bursts", "once"):
            cause = "pause"
        elif cause == "compute":
            device, op = _device(barriers, host), ops[int(more.argmax())]
        rows.append((barriers.hosts[host], cause, device, op, often))
    return pl.DataFrame(rows, schema=dict.fromkeys(_REASON, pl.String), orient="row")


def _recurrence(lateness: Floats) -> str:
    """Return in which steps a host is late, in words: by 50 % of the mean of late steps, or more."""
    ran = np.flatnonzero(lateness >= (lateness**2).sum() / max(lateness.sum(), 1) / 2)
    gaps, usual = np.diff(ran), lateness >= lateness.mean() / 2
    if len(ran) < 2:
        return "once"
    if max(len(ran), usual.sum()) >= _REGULAR * len(lateness):
        return "every step"
    every = int(np.median(gaps))
    return f"every {every} steps" if len(gaps) > 1 and (gaps == every).mean() >= _REGULAR else "bursts"


def _device(barriers: Barriers, host: int) -> str | None:
    """Return the device that arrives last in most of the time by which a host is late, None if there is none."""
    late = np.bincount(barriers.device[:, host] + 1, barriers.late[:, host].clip(0))[1:]
    return barriers.devices[late.argmax()] if late.max(initial=0) > late.sum() / 2 else None


def _by_step(barriers: Barriers, frame: pl.DataFrame, column: pl.Expr) -> Floats:
    """Return a time of each host by step, (steps, hosts), NaN if unknown."""
    rows = frame.select("host", "step", value=column.cast(pl.Float64)).filter(pl.col("step").is_in(barriers.steps))
    times = np.full((len(barriers.steps), len(barriers.hosts)), np.nan)
    host = rows["host"].cast(pl.Enum(barriers.hosts)).to_physical().to_numpy()
    times[np.searchsorted(barriers.steps, rows["step"]), host] = rows["value"]
    return times


def _by_op(barriers: Barriers, tables: HostTables) -> tuple[list[str], Floats]:
    """Return operations of devices that wait for nobody, and their self times, (ops, hosts)."""
    rows = tables.ops.filter(side="device").with_columns(pl.col("op").cast(pl.String), pl.col("host").cast(pl.String))
    rows = rows.filter(pl.col("host").is_in(barriers.hosts), ~pl.col("op").str.contains(_WAITING))
    ops = [name for name in rows["op"].unique().sort() if op_names.operation_class(name) != "collective"] or [""]
    rows = rows.filter(pl.col("op").is_in(ops))
    times = np.zeros((len(ops), len(barriers.hosts)))
    op, host = (
        rows[name].cast(pl.Enum(of)).to_physical().to_numpy() for name, of in (("op", ops), ("host", barriers.hosts))
    )
    times[op, host] = rows["self_ps"]
    return ops, times


_SLOW = 1.1  # slowdown from which a job has stragglers (Lin et al. 2025, section 4)
_CAUSED = 0.5  # share of the slowdown that a cause explains (sections 4.3 and 5.2)
_ALIKE = 0.9  # correlation of forward and backward computation if both follow the sequence (section 5.3)
_NEARLY = 0.9  # of the gain of a third of the workers
_SLOWEST = 0.03  # share of workers that count as the slowest, at least one (Eq. 5)


def _unjudged(tables: HostTables, frame: pl.DataFrame, reason: str) -> Hosts:
    """Return the hosts of a pipeline that cannot be replayed: the ends of its steps do not show who waits for whom."""
    names = frame.select(pl.col("host").unique(maintain_order=True), named=pl.lit(value=False))
    chain, lateness = pl.DataFrame(schema=schema.CRITICAL), pl.DataFrame(schema=schema.LATENESS)
    return Hosts(_with_lost(names, tables), chain, lateness, _span_ps(frame), "replay", (reason,))


def _with_lost(rows: pl.DataFrame, tables: HostTables) -> pl.DataFrame:
    """Return ``tpunb.schema.HOSTS``: some columns of the hosts, then those that are lost."""
    lost = tables.lost.select(host="what", lost="reason")
    return pl.concat([pl.DataFrame(schema=schema.HOSTS), rows, lost], how="diagonal_relaxed")


def _span_ps(frame: pl.DataFrame) -> int:
    """Return the step time of a job, median over hosts; with waits by the clock, it lasts until the next step."""
    if "waited_ps" in frame.columns:
        hosts = frame.group_by("host").agg(period_ps=pl.col("start_ps").sort().diff().median() * pl.len())
        return int(hosts.select(pl.col("period_ps").median()).item() or 0)
    return int(frame.group_by("step").agg(pl.col("dur_ps").median())["dur_ps"].sum())


def _of_pipeline(pipeline: pl.DataFrame, tables: HostTables, frame: pl.DataFrame) -> Hosts:
    """Return the hosts of a job with pipeline parallelism, by its replay with operations of typical length."""
    job = replay(pipeline.filter(pl.col("step").is_in(frame["step"].unique().to_list())))
    active, typical, worker = (job.table[name].to_numpy() for name in ("active_ps", "typical_ps", "worker"))
    measured, ideal = job.step_times([active, typical]).T
    base = max(ideal.mean(), 1)
    whole, slowdown = measured - ideal, measured.mean() / base

    def gains(masks: Iterable[Bools]) -> Floats:
        return np.asarray(measured[:, None] - job.step_times(np.where(mask, typical, active) for mask in masks))

    parts = [_parts("job", ["job"], np.array([slowdown]), whole[:, None], whole)]
    by_worker = np.full(len(job.workers), np.inf)  # the lesser of stage and rank (section 3.3)
    for part, column in {"operation": "type", "stage": "stage", "data-parallel rank": "dp_rank"}.items():
        names, code = np.unique(job.table[column].to_numpy(), return_inverse=True)
        only = job.step_times(np.where(code == n, active, typical) for n in range(len(names))).mean(axis=0) / base
        parts.append(_parts(part, names, only, gains(code == n for n in range(len(names))), whole))
        if part != "operation":
            by_worker = np.minimum(by_worker, only[np.searchsorted(names, job.workers[column].to_numpy())])
    present = np.flatnonzero(job.workers["host"].is_not_null().to_numpy())
    order = present[np.lexsort((-np.bincount(worker, active - typical)[present], -by_worker[present]))]
    single = job.step_times(np.where(worker == one, active, typical) for one in order[:_REPLAYED]).mean(axis=0)
    tried = order[np.argsort(-single, kind="stable")]
    order = np.concatenate([tried, order[_REPLAYED:]])
    alone = gains(worker == one for one in tried)
    joint = gains(np.isin(worker, tried[: n + 1]) for n in range(len(tried)))
    few = _slow_workers(job, tried, joint.mean(axis=0) / max(whole.mean(), 1), present)
    slow = np.minimum(by_worker[tried], np.sort(single)[::-1] / base)
    parts.append(_parts("worker", job.workers["host"].gather(tried), slow, alone, whole))
    changed = _changed(job, order[: max(len(few), math.ceil(_SLOWEST * len(order)))])
    causes = _parts("cause", changed, None, measured[:, None] - job.step_times(changed.values()), whole)
    eligible = {"stage": True, "worker": len(few) > 0, "sequence": _follows_sequence(job)}
    most = causes.filter(pl.col("name").replace_strict(eligible)).sort("explained")["name", "explained"].row(-1)
    cause = "none" if slowdown < _SLOW else most[0] if (most[1] or 0) >= _CAUSED else "unknown"
    steps, chain = job.table["step"].unique().sort(), job.table.gather(job.chain())
    segment, dur_ps = pl.int_range(1, pl.len() + 1).over("step"), pl.col("active_ps").round()
    chain = chain.select("step", "host", "op", segment=segment, dur_ps=dur_ps, device=None, gain_ps=None)
    late = {"host": job.workers["host"].gather(np.repeat(tried, len(steps))), "step": np.tile(steps, len(tried))}
    skew_ps = int(np.ptp(job.workers["skew_ps"].to_numpy()))
    return Hosts(
        _with_lost(_worker_rows(job, order, few if cause == "worker" else few[:0], alone, joint), tables),
        chain,
        pl.DataFrame(late | {"late_ps": alone.T.ravel().round()}),
        _span_ps(frame),
        "replay",
        (f"clocks differ by up to {duration(skew_ps)}, which is corrected",) * (skew_ps > 0),
        what_if=pl.concat([*parts, causes]),
        cause=cause,
    )


def _slow_workers(job: Replay, tried: Ints, explained: Floats, present: Ints) -> Ints:
    """Return the fewest workers that explain the slowdown, none if they do not or are most of their stage."""
    most = explained[: max(len(present) // 3, 1)]
    few = tried[: int((most >= _NEARLY * most.max()).argmax()) + 1]
    stage = job.workers["stage"].to_numpy()
    sizes, slow = (np.bincount(stage[of], minlength=int(stage.max()) + 1) for of in (present, few))
    return few if explained[len(few) - 1] >= _CAUSED and not (2 * slow > sizes).any() else few[:0]


def _parts(part: str, names: Iterable[Any], slowdown: Floats | None, gains: Floats, whole: Floats) -> pl.DataFrame:
    """Return ``tpunb.schema.WHAT_IF`` of parts from their gains, (steps, parts), and the gain of all: (steps,)."""
    mean, error = batch_means.mean(gains), batch_means.error(batch_means.means(gains), len(gains))
    low, high = batch_means.ends(mean, (error, len(gains)), (np.zeros_like(error), len(gains)))
    times = {"gain_ps": mean, "low_ps": low, "high_ps": high}
    columns = {name: pl.Series(values).fill_nan(None).round().cast(pl.Int64) for name, values in times.items()}
    explained = mean / whole.mean() if whole.mean() > 0 else np.full(len(mean), np.nan)
    frame = pl.DataFrame({"part": part, "name": [str(name) for name in names], **columns, "explained": explained})
    frame = frame.with_columns(slowdown=pl.lit(None) if slowdown is None else pl.Series(slowdown))
    return schema.check(frame.with_columns(pl.col("explained").fill_nan(None)), schema.WHAT_IF, "what_if")


def _changed(job: Replay, slowest: Ints) -> dict[str, Floats]:
    """Return the durations of operations without each cause."""
    active, typical = pl.col("active_ps"), pl.col("typical_ps")
    computes = pl.col("op").str.ends_with("compute")
    choices = {
        "worker": pl.when(pl.col("worker").is_in(slowest.tolist())).then(typical).otherwise(active),
        "stage": pl.when(computes).then(active * typical / active.mean().over("op", "stage")).otherwise(active),
        "sequence": pl.when(computes).then(active.mean().over("op", "worker")).otherwise(active),
    }
    return {name: job.table.select(choice).to_series().to_numpy() for name, choice in choices.items()}


def _follows_sequence(job: Replay) -> bool:
    """Return whether microbatches with a long forward computation have a long backward one."""
    key = ["step", "worker", "number"]
    both = [job.table.filter(op=f"{name}-compute").select(*key, "active_ps") for name in ("forward", "backward")]
    pairs = both[0].join(both[1], on=key).group_by("worker").agg(pl.corr("active_ps", "active_ps_right").alias("alike"))
    return bool(np.nanmedian(pairs["alike"].to_numpy()) >= _ALIKE) if len(pairs) else False


def _worker_rows(job: Replay, order: Ints, named: Ints, alone: Floats, joint: Floats) -> pl.DataFrame:
    """Return rows of ``tpunb.schema.HOSTS``, the slowest first."""
    more = job.table.group_by("worker", "op").agg(more=(pl.col("active_ps") - pl.col("typical_ps")).sum())
    worst = more.sort("more", "op").group_by("worker", maintain_order=True).last()
    rows: pl.DataFrame = job.workers[order.tolist()].join(worst, on="worker", how="left", maintain_order="left")
    is_named, local = pl.col("worker").is_in(named.tolist()), ~pl.col("op").str.contains(op_names.PEERS)
    columns = {"costs_ps": alone.sum(axis=0), "together_ps": joint.sum(axis=0)}
    sums = pl.DataFrame({name: pl.Series(values).round().cast(pl.Int64) for name, values in columns.items()})
    often = pl.Series([_recurrence(gain.clip(0)) for gain in alone.T], dtype=pl.String)
    tried = sums.with_columns(job.workers["worker"].gather(order[: len(sums)]), often.alias("recurrence"))
    return rows.join(tried, on="worker", how="left", maintain_order="left").select(
        *("host", "skew_ps", *columns),
        named=is_named,
        cause=pl.when(is_named).then(pl.when(local).then(pl.lit("compute")).otherwise(pl.lit("unknown"))),
        op=pl.when(is_named & local).then("op"),
        recurrence=pl.when(is_named).then("recurrence"),
    )
