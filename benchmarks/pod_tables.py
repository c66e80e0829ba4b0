"""Tables of the hosts of a simulated pod, as of its files, without writing and reading them."""

from __future__ import annotations

import numpy as np
import polars as pl
from simulate.pod import Pod, before, launched, slow_time
from simulate.pod_files import local

from tpunb.frames import Steps
from tpunb.frames.steps import HostTables
from tpunb.schema import HOST_COLLECTIVES, HOST_OPS, NAME, OPS, STEPS


def job_steps(pod: Pod) -> Steps:
    """Return steps with the tables of the hosts of a pod, and no operations of their own."""
    tables = pod_tables(pod)
    return Steps(tables.frame, pl.DataFrame(schema=OPS), by_host=tables)


def pod_tables(pod: Pod) -> HostTables:
    """Return the tables of the hosts of a pod."""
    hosts, chips, steps, n = pod.arrivals.shape
    every, ends, names = slice(None), pod.ends(), pl.Series(pod.hosts, dtype=NAME)
    shared = pod.program.collectives
    start = local(pod, every, before(ends) + pod.latest)
    devices = pl.Series([f"/device:TPU:{chip}" for chip in range(chips)], dtype=NAME)
    instance = shared.select(pl.int_range(1, pl.len() + 1).over("name")).to_series().to_numpy()
    collectives = {
        "host": names[np.repeat(np.arange(hosts), steps * n)],
        "step": np.tile(np.repeat(np.arange(steps), n), hosts),
        "program": pl.repeat(None, start.size, dtype=pl.Int64, eager=True),
        "name": shared["name"].cast(NAME)[np.tile(np.arange(n), hosts * steps)],
        "instance": np.tile(instance, hosts * steps),
        "device": devices[pod.arrivals.argmax(axis=1).ravel()],
        "start_ps": start.ravel(),
        "dur_ps": (local(pod, every, ends + pod.late_ends) - start).ravel(),
        "groups": pl.repeat(None, start.size, dtype=pl.Int64, eager=True).cast(NAME),
    }
    return HostTables(_frame(pod, ends), _ops(pod, ends), pl.DataFrame(collectives, schema=HOST_COLLECTIVES))


def _frame(pod: Pod, ends: np.ndarray) -> pl.DataFrame:
    hosts, _, steps, _ = pod.arrivals.shape
    begin = np.broadcast_to(np.append(0.0, ends[:-1, -1]), (hosts, steps))
    begin, until = (local(pod, slice(None), times) for times in (begin, np.broadcast_to(ends[:, -1], begin.shape)))
    dur, idle = until - begin - 1, sum(pod.waits.values())
    times = {"start_ps": begin, "dur_ps": dur, "annotation_ps": dur, "device_ps": dur - idle, "idle_ps": idle}
    times |= {"collective_ps": _shared(pod, ends).sum(axis=2) / pod.arrivals.shape[1]}
    times |= {f"{name}_ps": pod.waits[name] for name in ("input", "compile")}
    facts = {name: pl.Series(np.rint(values).ravel()).cast(pl.Int64) for name, values in times.items()}
    texts = {name: pl.lit(text) for name, text in (("kind", "train"), ("traced", "full"), ("rule", "annotation"))}
    names = pl.Series(pod.hosts)[np.repeat(np.arange(hosts), steps)]
    frame = pl.DataFrame({"host": names, "step": np.tile(np.arange(steps), hosts)} | facts).with_columns(**texts)
    return frame.with_columns(pl.lit(None).alias(name) for name in STEPS if name not in frame.columns)


def _shared(pod: Pod, ends: np.ndarray) -> np.ndarray:
    """Return the time in collectives, summed over the chips of a host, (hosts, steps, collectives)."""
    chips = pod.arrivals.shape[1]
    return chips * (ends - before(ends) + pod.late_ends) - pod.arrivals.sum(axis=1, dtype=np.float64)


def _ops(pod: Pod, ends: np.ndarray) -> pl.DataFrame:
    hosts, chips, steps, n = pod.arrivals.shape
    runs, shared = pod.program.runs, pod.program.collectives
    segment = runs["segment"].to_numpy()
    work = pod.arrivals.sum(axis=(1, 2), dtype=np.float64) - chips * launched(pod, slice(None)).sum(axis=1)
    extra = np.zeros((hosts, len(segment)))
    for host in pod.slow:
        extra[host] = slow_time(pod, host).sum(axis=(0, 1))
    of_segment, durs = (segment[:, None] == np.arange(n)).astype(float), runs["dur_ps"].to_numpy()
    total = extra + durs * ((work - extra @ of_segment) / (durs @ of_segment))[:, segment]
    times = np.hstack([total, _shared(pod, ends).sum(axis=1)])
    ops = pl.concat([runs["op"], shared["op"]])
    columns = {"host": np.repeat(pod.hosts, len(ops)), "op": pl.concat([ops] * hosts), "self_ps": times.ravel()}
    sums = pl.DataFrame(columns).group_by("host", "op", maintain_order=True)
    rows = sums.agg(pl.col("self_ps").sum().round().cast(pl.Int64), count=pl.len().cast(pl.Int64) * chips * steps)
    rows = rows.with_columns(side=pl.lit("device"), total_ps="self_ps")
    return rows.select(pl.col(name).cast(dtype) for name, dtype in HOST_OPS.items())
