"""Replay of a job with pipeline parallelism: operations as a graph, whose durations can be exchanged.

An operation begins when those before it in its stream of the worker have ended: computation and gradients are one
stream, each kind of send and receive another. The computation of a microbatch waits for its receive, its send for the
computation, and a receive is posted when the microbatch before was computed. A communication begins with the last of
its peers and then takes its transfer time. Peers are a send and its receive, the workers of a stage in a collective,
those of one data-parallel rank for gradients of embeddings, and all to clip gradients by their norm. Times between
operations are left out [1]_.

References
----------
.. [1] J. Lin et al., "Understanding Stragglers in Large Model Training Using What-if Analysis", OSDI 2025, section 3.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import numpy as np
import polars as pl

from tpunb.errors import BadProfile
from tpunb.frames.op_matrix import Floats, Ints, factorize
from tpunb.io.operation_table import absent_workers
from tpunb.step_stats.op_names import PEERS

_STREAMS = ("forward-send", "forward-recv", "backward-send", "backward-recv")
_LINKS = {"forward": 1, "backward": -1}  # stages from a send to its receive
_ALONE = "layernorm"  # all-reduces of tensor-parallel ranks, of which a table has one
_OF_RANK, _OF_ALL = "embedding", "clip"
_ENDS_APART_PS = 10**9  # of peers by one clock: 0.05 ms in the published traces, at most 2.6
_BLOCK = 2**23  # durations that are replayed together
_WORKER = ["stage", "dp_rank"]
_LOCAL = ~pl.col("op").str.contains(PEERS)


@dataclass(frozen=True, eq=False)
class Replay:
    """Operations of complete steps, and how they wait for each other; times are in picoseconds.

    `table` has a row per operation with ``host``, ``step``, ``stage``, ``dp_rank``, ``op``, ``type``
    (send and receive are one), ``worker`` (its place in `workers`), ``number`` (of its type of operation in the step),
    ``active_ps`` (without the wait for peers) and ``typical_ps``; `workers` a row per worker with ``host``
    (null if it has no data) and ``skew_ps``.
    """

    table: pl.DataFrame
    workers: pl.DataFrame
    peers: Ints  # group of each operation: those that begin together
    before: Ints  # of each pair of operations the first
    after: Ints

    @property
    def _step(self) -> Ints:
        return factorize(self.table["step"].to_numpy())[1]

    @cached_property
    def _levels(self) -> Ints:
        """Place of each group in the order in which the groups can be computed."""
        first, then = self.peers[self.before], self.peers[self.after]
        level = np.zeros(self.peers.max() + 1, np.int64)
        for _ in range(np.bincount(self._step).max() + 1):
            later = level.copy()
            np.maximum.at(later, then, level[first] + 1)
            if (later == level).all():
                return level
            level = later
        raise BadProfile("operations of a step wait for each other: sends and receives do not match")

    @cached_property
    def _by_level(self) -> list[tuple[Ints, Ints, Ints, Ints]]:
        """For each level the operations before, where those of each group begin, the groups, and their operations."""
        level, waits = self._levels, self.peers[self.after]
        pairs, nodes = np.lexsort((waits, level[waits])), np.argsort(level[self.peers], kind="stable")
        ends = np.arange(level.max() + 2)
        of_pairs, of_nodes = (np.searchsorted(x, ends) for x in (level[waits][pairs], level[self.peers][nodes]))
        parts = []
        for number in ends[:-1]:
            chosen = pairs[of_pairs[number] : of_pairs[number + 1]]
            groups, first = np.unique(waits[chosen], return_index=True)
            parts.append((self.before[chosen], first, groups, nodes[of_nodes[number] : of_nodes[number + 1]]))
        return parts

    def ends(self, durations: Floats) -> Floats:
        """Return when each operation ends since the start of its step: (operations, choices of durations)."""
        end, start = np.zeros_like(durations), np.zeros((self.peers.max() + 1, durations.shape[1]))
        for before, first, groups, nodes in self._by_level:
            if len(before):
                start[groups] = np.maximum.reduceat(end[before], first, axis=0)
            end[nodes] = start[self.peers[nodes]] + durations[nodes]
        return end

    def step_times(self, choices: Iterable[Floats]) -> Floats:
        """Return the time of each step for several choices of durations: (steps, choices)."""
        left, blocks = iter(choices), []
        while block := [*islice(left, max(1, _BLOCK // max(self.table.height, 1)))]:
            ends, first = self.ends(np.stack(block, axis=1)), np.searchsorted(self._step, np.arange(self._step[-1] + 1))
            blocks.append(np.maximum.reduceat(ends, first, axis=0))
        return np.concatenate(blocks, axis=1)

    def chain(self) -> Ints:
        """Return the rows of the operations that end each step, in order, each the last that the next waited for."""
        end = self.ends(self.table["active_ps"].to_numpy()[:, None])[:, 0]
        last, by_end = np.full(self.peers.max() + 1, -1), np.argsort(end[self.before], kind="stable")
        last[self.peers[self.after[by_end]]] = self.before[by_end]  # of equal places the latest stays
        order = np.lexsort((end, self._step))
        rows = [order[np.searchsorted(self._step[order], np.arange(self._step[-1] + 1), side="right") - 1]]
        while len(rows[-1]):
            before = last[self.peers[rows[-1]]]
            rows.append(before[before >= 0])
        found = np.concatenate(rows[::-1])
        return np.asarray(found[np.argsort(self._step[found], kind="stable")])


def obstacle(pipeline: pl.DataFrame) -> str | None:
    """Return why a job cannot be replayed, None if it can: ``tpunb.schema.PIPELINE``.

    >>> obstacle(pl.DataFrame({"stage": [0, 2], "op": ["forward-send", "forward-recv"], "chunk": [0, 0]}))
    'no rank of stage 1 has operations'
    """
    if pipeline.filter(pl.col("chunk") >= 0)["chunk"].n_unique() > 1:
        return "stages have several model chunks, whose order is not replayed"
    for direction in _LINKS:
        ends = {f"{direction}-send", f"{direction}-recv"}
        if len(absent := ends - {*pipeline["op"]}) == 1:
            return f"no rank has operations of type {absent.pop()}"
    peers = pl.col("stage") + (pl.col("op") == "forward-send") - (pl.col("op") == "forward-recv")
    stages, linked = {*pipeline["stage"]}, {*pipeline.select(peers).to_series()}
    missing = {*range(min(stages | linked), max(stages | linked) + 1)} - stages
    return f"no rank of stage {min(missing)} has operations" if missing else None


def replay(pipeline: pl.DataFrame) -> Replay:
    """Return the replay of complete steps, ``tpunb.schema.PIPELINE``.

    A stage and data-parallel rank without a worker gets the operations of another rank, at their typical length.
    Clocks are compared by the ends of communications, which peers reach together.
    """
    rows = _with_stand_ins(pipeline.with_columns(pl.col("op", "host").cast(pl.String), absent=pl.lit(value=False)))
    workers = rows.group_by(_WORKER).agg(pl.col("host").first()).sort(_WORKER).with_row_index("worker")
    stream = pl.col("op").replace_strict({name: n for n, name in enumerate(_STREAMS, 1)}, default=0)
    rows = rows.join(workers.drop("host"), on=_WORKER, maintain_order="left").with_columns(stream=stream)
    rows = rows.sort("step", "worker", "stream", "start_ps", maintain_order=True)
    rows = rows.with_columns(
        number=pl.int_range(pl.len()).over("step", "worker", "op"),
        type=pl.col("op").str.replace("-(send|recv)$", " transfer"),
    )
    rows = rows.with_columns(peers=pl.Series(_peers(rows)))
    skew = _skew(rows, len(workers))
    rows = rows.with_columns(pl.col("start_ps") - pl.Series(skew)[rows["worker"]])
    rows = _timed(rows)
    before, after = (np.concatenate(ends) for ends in zip(*_waits(rows), strict=True))
    workers = workers.with_columns(skew_ps=pl.Series(skew))
    return Replay(rows, workers, rows["peers"].to_numpy(), before, after)


def _with_stand_ins(rows: pl.DataFrame) -> pl.DataFrame:
    """Add the operations of workers without any, after those of another in the stage."""
    donors = rows.group_by("stage").agg(donor=pl.col("dp_rank").min())
    copies = absent_workers(rows).join(donors, on="stage").join(rows, left_on=["stage", "donor"], right_on=_WORKER)
    copies = copies.with_columns(host=pl.lit(None, pl.String), absent=pl.lit(value=True))
    return pl.concat([rows, copies.select(rows.columns)])


def _peers(rows: pl.DataFrame) -> Ints:
    """Return the number of the group of operations that begin together, for each row."""
    op, stage = pl.col("op"), pl.col("stage")
    linked, alone = op.is_in(_STREAMS), _LOCAL | op.str.starts_with(_ALONE)
    direction = op.str.extract("^(forward|backward)-(?:send|recv)$")
    apart = direction.replace_strict(_LINKS, default=0, return_dtype=pl.Int64)
    of_all = op.str.contains(_OF_ALL)
    parts = [
        pl.col("step").rank("dense"),
        pl.coalesce(direction, "op").rank("dense"),
        pl.when(of_all | op.str.contains(_OF_RANK)).then(-1).when(op.str.ends_with("-recv")).then(stage - apart)
        .otherwise(stage) + 2,
        pl.when(linked | op.str.contains(_OF_RANK)).then("dp_rank").otherwise(-1) + 1,
        pl.col("number"),
    ]  # fmt: skip
    key = pl.lit(0, pl.Int64)
    for part in parts:
        key = key * (part.max().cast(pl.Int64) + 1) + part.cast(pl.Int64)
    row = -1 - pl.int_range(pl.len())
    return factorize(rows.select(pl.when(alone).then(row).otherwise(key)).to_series().to_numpy())[1]


def _skew(rows: pl.DataFrame, workers: int) -> Ints:
    """Return the clock of each worker less the median, 0 for what the ends of communications do not show."""
    end = pl.col("start_ps") + pl.col("dur_ps")
    together = ~pl.col("absent") & ~_LOCAL & ~pl.col("op").str.contains(_OF_ALL)  # after which each clips its own
    ends = rows.filter(together).select("peers", pl.col("worker").cast(pl.Int64), end_ps=end)
    first = ends.group_by("peers").agg(pl.col("worker", "end_ps").sort_by("worker").first())
    apart = ends.join(first, on="peers", suffix="_first").filter(pl.col("worker") != pl.col("worker_first"))
    pairs = apart.group_by("worker", "worker_first").agg(
        apart=(pl.col("end_ps") - pl.col("end_ps_first")).median(), weight=pl.len().sqrt()
    )
    if pairs.is_empty():
        return np.zeros(workers, np.int64)
    from scipy.sparse import coo_array
    from scipy.sparse.linalg import lsqr

    weight = pairs["weight"].to_numpy()
    row, signs = np.tile(np.arange(len(pairs)), 2), np.concatenate([weight, -weight])
    places = np.concatenate([pairs["worker"].to_numpy(), pairs["worker_first"].to_numpy()])
    matrix = coo_array((signs, (row, places)), shape=(len(pairs), workers)).tocsr()
    skew = lsqr(matrix, weight * pairs["apart"].to_numpy(), atol=1e-12, btol=1e-12)[0]
    skew -= np.median(skew)
    return np.where(np.abs(skew) > _ENDS_APART_PS, np.rint(skew), 0).astype(np.int64)


def _timed(rows: pl.DataFrame) -> pl.DataFrame:
    """Add `active_ps`, from the start of the last peer, and `typical_ps`: mean, of communications the median."""
    # without data of peers the typical time, without those of the worker that of the fastest in its stage
    active, end = pl.col("active_ps"), pl.col("start_ps") + pl.col("dur_ps")
    alone = pl.col("op").is_in(_STREAMS) & (pl.len().over("peers") == 1)
    from_last = (end - pl.col("start_ps").max().over("peers")).clip(0).cast(pl.Float64)
    rows = rows.with_columns(active_ps=pl.when(~alone & ~pl.col("absent").any().over("peers")).then(from_last))
    of_worker = pl.when(_LOCAL).then(active.mean().over("op", "worker"))
    rows = rows.with_columns(active_ps=pl.coalesce(active, of_worker.min().over("op", "stage")))
    typical = pl.when(_LOCAL).then(active.mean().over("op")).otherwise(active.median().over("op"))
    rows = rows.with_columns(typical_ps=pl.coalesce(typical, pl.col("dur_ps").min().over("op").cast(pl.Float64)))
    return rows.with_columns(active_ps=pl.coalesce(active, "typical_ps"))


def _waits(rows: pl.DataFrame) -> Iterator[tuple[Ints, Ints]]:
    """Yield pairs of operations of one worker of which the second waits for the first."""
    row = pl.int_range(pl.len()).alias("row")
    same = pl.struct("step", "worker", "stream").rle_id()
    follows = rows.select(same=same.diff() == 0).to_series().fill_null(value=False).to_numpy()
    yield np.flatnonzero(follows) - 1, np.flatnonzero(follows)
    key = ["step", "worker", "number"]
    placed = rows.select(*key, "op", row)
    for direction in _LINKS:
        recv, compute, send = (
            placed.filter(pl.col("op") == f"{direction}-{kind}").drop("op") for kind in ("recv", "compute", "send")
        )
        posted = compute.with_columns(pl.col("number") + 1)
        for first, then in ((recv, compute), (compute, send), (posted, recv)):
            pairs = first.join(then, on=key, suffix="_then")
            yield pairs["row"].to_numpy(), pairs["row_then"].to_numpy()
