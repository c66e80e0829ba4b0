"""Collectives at which the hosts of a job wait for each other, as arrays of instances and hosts."""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl

from tpunb import schema
from tpunb.frames.op_matrix import Floats, Ints, factorize
from tpunb.frames.steps import HostTables, trained
from tpunb.step_stats.collectives import replica_groups
from tpunb.text import cut

_FILE = r"^.*/|\.(xplane\.pb|trace\.json)(\.gz)?$"  # what the name of a file has more than that of its host
WAITS = "waits in backward passes and collectives"  # of hosts, by their clocks
_CHECKED = 64  # instances that show whether hosts of a replica group end together


@dataclass(frozen=True, eq=False)
class Barriers:
    """Instances in order of time; the arrays are of shape (instances, hosts), NaN where a host took no part."""

    hosts: list[str]
    steps: list[int]
    step: Ints  # place in `steps` of each instance
    name: pl.Series  # of each instance; null without collectives
    wait: Floats
    start: Floats  # by the clock of the host
    device: Ints  # place in `devices`, -1 if unknown
    devices: list[str]
    group: Ints  # place in `groups` of each instance
    groups: list[Ints]  # component of each host: those of one wait for each other, -1 for none
    by: str  # "collectives", `WAITS` or "step ends"
    notes: tuple[str, ...]

    @cached_property
    def blocks(self) -> list[tuple[Ints, Ints]]:
        """Instances and hosts that wait for each other, two or more in each instance."""
        blocks = []
        for place, component in enumerate(self.groups):
            rows = np.flatnonzero(self.group == place)
            for number in range(component.max(initial=-1) + 1):
                hosts = np.flatnonzero(component == number)
                waited = rows[np.isfinite(self.wait[np.ix_(rows, hosts)]).sum(axis=1) > 1]
                blocks += [(waited, hosts)] if len(waited) else []
        return blocks

    @property
    def ends(self) -> Floats:
        """End of each instance by the clock of each host."""
        return self.start + self.wait

    @cached_property
    def late(self) -> Floats:
        """Time by which each host came later than the median of those that it waits for, 0 if it took no part."""
        late = np.zeros_like(self.wait)
        for block in self.blocks:
            wait = self.wait[np.ix_(*block)]
            late[np.ix_(*block)] = np.nan_to_num(median(wait, 1)[:, None] - wait)
        return late


def find_barriers(tables: HostTables, frame: pl.DataFrame) -> Barriers:
    """Return the collectives of the steps in `frame`, or without any, their waits by the clock, or else their ends.

    ``waited_ps``, if `frame` has it, are these waits, of all hosts for each other. Point-to-point transfers are left
    out: nobody else waits for them. If program ids differ, hosts number them apart.
    """
    runs, by = _runs(tables, frame)
    names, lost = _in_order({*frame["host"].unique()}), {re.sub(_FILE, "", name) for name in tables.lost["what"]}
    host = _places(runs["host"], names)
    columns = (runs[name].unique().drop_nulls().cast(pl.String) for name in ("device", "groups", "name"))
    devices, texts, ops = map(sorted, columns)
    roles = [tables.roles.get(name) if by != WAITS else None for name in names]
    role = np.array([[*dict.fromkeys(roles)].index(name) for name in roles])
    steps, step = factorize(runs["step"].to_numpy())
    key = step
    for code in (role[host], _programs(runs), _places(runs["name"], ops) + 1, runs["instance"].to_numpy()):
        key = key * (int(code.max()) + 1) + code
    distinct, instance = factorize(key)
    n = len(distinct)
    first = np.zeros(n, np.int64)
    first[instance[::-1]] = np.arange(len(instance))[::-1]
    wait, start = np.full((2, n, len(names)), np.nan)
    wait[instance, host], start[instance, host] = runs["dur_ps"], runs["start_ps"]
    device = np.full(wait.shape, -1, np.int16)
    device[instance, host] = _places(runs["device"], devices)
    order = np.lexsort((median(start, 1), step[first]))
    order = order[np.isfinite(wait[order]).sum(axis=1) > 1]
    first, wait, start, device = first[order], wait[order], start[order], device[order]
    kind, group = factorize((_places(runs["groups"], texts) + 1)[first] * (role.max() + 1) + role[host[first]])
    groups, notes = [], []
    for number, code in enumerate(kind.tolist()):
        rows, text = np.flatnonzero(group == number), [None, *texts][code // (role.max() + 1)]
        present = np.flatnonzero(np.isfinite(wait[rows]).any(axis=0))
        component = _component(text, names, present, lost if role.max() == 0 else set())
        if component is None or not _end_together(component, start[rows[:_CHECKED]], wait[rows[:_CHECKED]]):
            shown = cut(text or "", 80)
            notes.append(f"collectives of the groups {shown} are left out: the groups do not fit the hosts")
            component = np.full(len(names), -1)
        groups.append(component)
    facts = runs["name"][first].cast(pl.String), wait, start, device, devices, group, groups, by, tuple(notes)
    return Barriers(names, steps.tolist(), step[first], *facts)


def _runs(tables: HostTables, frame: pl.DataFrame) -> tuple[pl.DataFrame, str]:
    """Return the collectives of steps, or without any, one wait of each host by step, at its end; and which."""
    to_one = pl.col("name").cat.starts_with("collective-permute").fill_null(value=False)
    runs = tables.collectives.filter(pl.col("instance") > 0, ~to_one)
    if frame.height < tables.frame.height:
        full = frame.select(pl.col("host").cast(schema.NAME), "step")
        runs = runs.join(full, on=["host", "step"], how="semi", maintain_order="left")
    if not runs.is_empty() and "waited_ps" not in frame.columns:
        return runs, "collectives"
    absent = [pl.lit(None).alias(name) for name in ("program", "name", "device", "groups")]
    wait_ps, start_ps, by = -pl.col("dur_ps"), pl.col("start_ps"), "step ends"  # as if all waited until the same end
    if "waited_ps" in frame.columns:
        wait_ps, start_ps, by = pl.col("waited_ps"), start_ps + pl.col("dur_ps") - pl.col("waited_ps"), WAITS
    runs = frame.select("host", "step", *absent, start_ps=start_ps, instance=1, dur_ps=wait_ps)
    return schema.check(runs, schema.HOST_COLLECTIVES, "collectives"), by


def aligned(frame: pl.DataFrame) -> pl.Expr:
    """Return the number by which the steps of hosts are one: of training steps alone where only some evaluate."""
    kinds = frame.group_by("step").agg(pl.col("kind").n_unique())["kind"]
    return trained() if (kinds > 1).any() else pl.col("step")


def _in_order(names: set[str]) -> list[str]:
    """Return names sorted with their numbers in order: host-9 before host-10."""
    return sorted(names, key=lambda name: [(len(part), part) for part in re.split(r"(\d+)", name)])


def _places(column: pl.Series, names: list[str]) -> Ints:
    """Return the place of each text of a column among names, -1 for null; a text may be long, so each is read once."""
    distinct = column.unique().drop_nulls()
    place = dict(zip(names, range(len(names)), strict=True))
    of_code = {code: place[text] for code, text in zip(distinct.to_physical(), distinct.cast(pl.String), strict=True)}
    places = np.full(max(of_code, default=-1) + 2, -1)
    places[[*of_code]] = [*of_code.values()]
    return np.asarray(places[column.to_physical().fill_null(len(places) - 1).to_numpy()])


def _programs(runs: pl.DataFrame) -> Ints:
    """Return a number for the program of each run: by its id if hosts agree on these, else in order of start."""
    firsts = runs.group_by("host", "program").agg(pl.col("start_ps").min())
    most = firsts.group_by("host").len()["len"].max()
    if most == 1 or firsts["program"].n_unique() == most:
        return factorize(runs["program"].fill_null(0).to_numpy())[1] * (most != 1)
    ranks = firsts.with_columns(rank=pl.col("start_ps").rank("ordinal").over("host").cast(pl.Int64)).drop("start_ps")
    joined = runs.join(ranks, on=["host", "program"], how="left", nulls_equal=True, maintain_order="left")
    return joined["rank"].to_numpy()


def _component(text: str | None, names: list[str], present: Ints, lost: set[str]) -> Ints | None:
    """Return which hosts wait for each other, by replica groups of their devices in order; None if these do not fit."""
    component, groups = np.full(len(names), -1), replica_groups(text or "")
    every = _in_order({names[host] for host in present} | lost)
    ids, hosts = np.array([number for group in groups for number in group]), len(every)
    if len(groups) < 2:
        component[present] = 0
        return component
    if len(ids) % hosts or max(ids) >= len(ids):
        return None
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    heads = np.repeat([group[0] for group in groups if group], [len(group) for group in groups if group])
    pairs = np.array([heads, ids]) // (len(ids) // hosts)
    graph = coo_array((np.ones(len(ids)), tuple(pairs)), shape=(hosts, hosts))
    numbers = [every.index(names[host]) for host in present]
    component[present] = connected_components(graph, directed=False)[1][numbers]
    return component


def _end_together(component: Ints, start: Floats, wait: Floats) -> bool:
    """Return whether the ends of components vary less than their starts; true if all hosts are one."""
    spreads = []
    for times in (start, start + wait) if component.max() > 0 else ():
        apart = [times[:, component == number] for number in range(component.max() + 1)]
        apart = [part - median(part, 1)[:, None] for part in apart if part.shape[1] > 1]
        moved = [np.abs(part - median(part, 0)).ravel() for part in apart]
        spreads.append(np.nanmedian(np.concatenate([np.zeros(1), *moved])))
    return len(spreads) < 2 or spreads[1] <= spreads[0] / 2


def median(times: Floats, axis: int) -> Floats:
    """Return the median without NaN, which takes three times as long where there is any; NaN where all are."""
    if np.isfinite(times).all():
        return np.asarray(np.median(times, axis=axis))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return np.asarray(np.nanmedian(times, axis=axis))


def clocks(barriers: Barriers) -> tuple[Floats, Floats]:
    """Return offset in picoseconds and drift in ppm of the clock of each host against the median host, or NaN.

    Known for hosts that end collectives of all hosts with the others: offset half-way, drift by least squares.
    """
    shared = [place for place, component in enumerate(barriers.groups) if component.max(initial=-1) == 0]
    ends = barriers.ends[np.isin(barriers.group, shared)]
    if not len(ends) or barriers.by != "collectives":
        return np.full((2, len(barriers.hosts)), np.nan)[0], np.full(len(barriers.hosts), np.nan)
    middle = median(ends, 1)
    apart, time = ends - middle[:, None], (middle - (middle[0] + middle[-1]) / 2)[:, None]
    with warnings.catch_warnings():  # a host without such a collective has no offset, one instance has no drift
        warnings.simplefilter("ignore", RuntimeWarning)
        centred = np.where(np.isfinite(apart), time, np.nan)
        centred = centred - np.nanmean(centred, axis=0)
        drift = np.nansum(centred * apart, axis=0) / np.nansum(centred**2, axis=0)
        offset = median(apart - np.nan_to_num(drift) * time, 0)
        return offset - np.nanmedian(offset), (drift - np.nanmedian(drift)) * 1e6
