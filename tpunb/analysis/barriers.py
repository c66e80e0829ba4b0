"""Collectives at which the hosts of a job wait for each other, as arrays of instances and hosts."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import polars as pl

from tpunb import schema
from tpunb.frames.host_tables import HostTables
from tpunb.frames.op_matrix import Floats, Ints, factorize
from tpunb.step_stats.collectives import replica_groups

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
    notes: tuple[str, ...] = ()

    @property
    def blocks(self) -> list[tuple[Ints, Ints]]:
        """Instances and hosts that wait for each other."""
        found = []
        for place, component in enumerate(self.groups):
            rows = np.flatnonzero(self.group == place)
            members = [np.flatnonzero(component == number) for number in range(component.max(initial=-1) + 1)]
            found += [(rows, hosts) for hosts in members if len(hosts) > 1 and len(rows)]
        return found

    @property
    def ends(self) -> Floats:
        """End of each instance by the clock of each host."""
        return self.start + self.wait


def barriers(tables: HostTables, frame: pl.DataFrame) -> Barriers:
    """Return the collectives of the steps in `frame`, or without any, the ends of these steps.

    Point-to-point transfers are left out: nobody else waits for them. Programs have numbers of their own on each host
    if their ids differ.
    """
    runs = tables.collectives.filter(pl.col("instance") > 0, ~pl.col("name").cat.starts_with("collective-permute"))
    if frame.height < tables.frame.height:
        key = frame.select(pl.col("host").cast(schema.NAME), "step")
        runs = runs.join(key, on=["host", "step"], how="semi", maintain_order="left")
    if runs.is_empty():
        absent = [pl.lit(None).alias(name) for name in ("program", "name", "device", "groups")]
        runs = frame.select("host", "step", "start_ps", *absent, instance=1, dur_ps=-pl.col("dur_ps"))
        runs = schema.check(runs, schema.HOST_COLLECTIVES, "collectives")
    names = sorted(frame["host"].unique(), key=lambda name: [(len(s), s) for s in re.split(r"(\d+)", name)])
    host = _places(runs["host"], names)
    devices = sorted(runs["device"].cast(pl.String).drop_nulls().unique())
    texts = runs["groups"].cast(pl.String).drop_nulls().unique().sort().to_list()
    roles = [tables.roles.get(name) for name in names]
    role = np.array([[*dict.fromkeys(roles)].index(name) for name in roles])
    steps, step = factorize(runs["step"].to_numpy())
    place = step
    names_of, instances = runs["name"].to_physical().fill_null(0), runs["instance"]
    for code in (role[host], _programs(runs), names_of.to_numpy().astype(np.int64), instances.to_numpy()):
        place = place * (int(code.max()) + 1) + code
    _, instance = factorize(place)
    n = int(instance.max()) + 1
    first = np.zeros(n, np.int64)
    first[instance[::-1]] = np.arange(len(instance))[::-1]
    wait, start = np.full((2, n, len(names)), np.nan)
    wait[instance, host], start[instance, host] = runs["dur_ps"], runs["start_ps"]
    device = np.full(wait.shape, -1, np.int16)
    device[instance, host] = _places(runs["device"], devices)
    order = np.lexsort((np.nanmedian(start, axis=1), step[first]))
    order = order[np.isfinite(wait[order]).sum(axis=1) > 1]
    first, wait, start, device = first[order], wait[order], start[order], device[order]
    kind, group = factorize((_places(runs["groups"], texts) + 1)[first] * (role.max() + 1) + role[host[first]])
    groups, notes = [], []
    for number, code in enumerate(kind.tolist()):
        text = [None, *texts][code // (role.max() + 1)]
        rows = np.flatnonzero(group == number)
        component = _components(text, wait[rows])
        if component is None or not _end_together(component, start[rows[:_CHECKED]], wait[rows[:_CHECKED]]):
            notes.append(f"collectives of the groups {text} are left out: the groups do not fit the hosts")
            component = np.full(len(names), -1)
        groups.append(component)
    facts = runs["name"].cast(pl.String)[first], wait, start, device, devices, group, groups, tuple(notes)
    return Barriers(names, steps.tolist(), step[first], *facts)


def _places(column: pl.Series, names: list[str]) -> Ints:
    """Return the place of each text among names, -1 for null."""
    return column.cast(pl.Enum(names)).to_physical().cast(pl.Int64).fill_null(-1).to_numpy()


def _programs(runs: pl.DataFrame) -> Ints:
    """Return a number for the program of each run: by its id if hosts agree on these, else in order of start."""
    firsts = runs.group_by("host", "program").agg(pl.col("start_ps").min())
    most = firsts.group_by("host").len()["len"].max()
    if most == 1 or firsts["program"].n_unique() == most:
        return factorize(runs["program"].fill_null(0).to_numpy())[1] * (most != 1)
    ranks = firsts.with_columns(rank=pl.col("start_ps").rank("ordinal").over("host").cast(pl.Int64)).drop("start_ps")
    joined = runs.join(ranks, on=["host", "program"], how="left", nulls_equal=True, maintain_order="left")
    return joined["rank"].to_numpy()


def _components(text: str | None, wait: Floats) -> Ints | None:
    """Return which hosts wait for each other by replica groups over hosts in order; None if the groups do not fit."""
    present, component = np.flatnonzero(np.isfinite(wait).any(axis=0)), np.full(wait.shape[1], -1)
    groups = replica_groups(text or "")
    ids = [number for group in groups for number in group]
    if len(groups) < 2:
        component[present] = 0
    elif len(ids) % len(present) or max(ids) >= len(ids):
        return None
    else:
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components

        heads = np.repeat([group[0] for group in groups if group], [len(group) for group in groups if group])
        pairs = np.array([heads, ids]) // (len(ids) // len(present))
        graph = coo_array((np.ones(len(ids)), tuple(pairs)), shape=(len(present), len(present)))
        component[present] = connected_components(graph, directed=False)[1]
    return component


def _end_together(component: Ints, start: Floats, wait: Floats) -> bool:
    """Return whether the ends of components vary less than their starts; true if all hosts are one."""
    spreads = []
    for times in (start, start + wait) if component.max() > 0 else ():
        apart = [times[:, component == number] for number in range(component.max() + 1)]
        apart = [part - np.nanmedian(part, axis=1, keepdims=True) for part in apart if part.shape[1] > 1]
        moved = [np.abs(part - np.nanmedian(part, axis=0)).ravel() for part in apart]
        spreads.append(np.nanmedian(np.concatenate([np.zeros(1), *moved])))
    return len(spreads) < 2 or spreads[1] <= spreads[0] / 2


def clocks(barriers: Barriers) -> tuple[Floats, Floats]:
    """Return offset in picoseconds and drift in ppm of the clock of each host against the median host, or NaN.

    Known for hosts that end collectives of all hosts with the others: offset half-way, drift by least squares.
    """
    shared = [place for place, component in enumerate(barriers.groups) if component.max(initial=-1) == 0]
    ends = barriers.ends[np.isin(barriers.group, shared)]
    if not len(ends) or barriers.name.null_count():
        return np.full((2, len(barriers.hosts)), np.nan)[0], np.full(len(barriers.hosts), np.nan)
    middle = np.nanmedian(ends, axis=1)
    apart, time = ends - middle[:, None], (middle - (middle[0] + middle[-1]) / 2)[:, None]
    centred = np.where(np.isfinite(apart), time, np.nan)
    centred = centred - np.nanmean(centred, axis=0)
    with np.errstate(invalid="ignore"):  # one instance has no drift
        drift = np.nansum(centred * apart, axis=0) / np.nansum(centred**2, axis=0)
    offset = np.nanmedian(apart - np.nan_to_num(drift) * time, axis=0)
    return offset - np.nanmedian(offset), (drift - np.nanmedian(drift)) * 1e6
