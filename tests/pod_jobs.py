"""Simulated pods, and jobs of hosts whose arrivals at collectives are spelled out."""

import numpy as np
import pod_tables
import polars as pl
from simulate.pod import pod
from simulate.step_program import StepProgram

import tpunb as tp
from tpunb import schema
from tpunb.frames import Steps
from tpunb.frames.steps import HostTables
from tpunb.testing import toy_steps

MS = 1_000_000_000
US = 1_000_000


def program(*segments, transfer=100_000_000):
    """Segments of runs in milliseconds, each followed by an all-reduce of 0.1 ms."""
    runs = [
        (f"fusion.{i}{j}", "fusion", "loop fusion", ms * MS, i)
        for i, s in enumerate(segments)
        for j, ms in enumerate(s)
    ]
    shared = [(f"all-reduce.{i}", "all-reduce", "all-reduce", float(transfer)) for i in range(len(segments))]
    names = ["name", "op", "category", "dur_ps"]
    return StepProgram(
        pl.DataFrame(runs, schema=[*names, "segment"], orient="row").with_columns(pl.col("dur_ps").cast(pl.Float64)),
        pl.DataFrame(shared, schema=names, orient="row"),
    )


TWO = program([3, 2], [4])


def job(arrivals, *, names=None, offset=0, drift=0.0, transfer=10, facts=None, **more):
    """Steps of hosts from arrivals in microseconds since the end of the collective before: (steps, collectives, hosts).

    `offset` and `drift` are of the clock of each host, `facts` columns of collectives, `more` fields of the tables.
    """
    arrivals = np.array(arrivals, float) * US
    n, m, hosts = arrivals.shape
    ends = (arrivals.max(axis=2) + transfer * US).cumsum().reshape(n, m, 1)
    start = np.concatenate([np.zeros(1), ends.ravel()[:-1]]).reshape(n, m, 1) + arrivals
    names = names or [f"h{number}" for number in range(hosts)]
    start, until = (
        np.rint(times * (1 + np.array(drift)) + np.array(offset) * US) for times in (start, ends + 0 * start)
    )
    columns = {
        "host": np.tile(names, n * m),
        "step": np.repeat(np.arange(n), m * hosts),
        "name": np.tile(np.repeat([f"all-reduce.{number}" for number in range(m)], hosts), n),
        "start_ps": start.ravel().astype(int),
        "dur_ps": (until - start).ravel().astype(int),
    }
    facts = {"program": None, "instance": 1, "device": "/device:TPU:0", "groups": None} | (facts or {})
    collectives = pl.DataFrame(columns).with_columns(**{name: pl.lit(value) for name, value in facts.items()})
    spans = np.diff(ends[:, -1, 0], prepend=0).astype(int)
    frame = pl.DataFrame({"host": np.tile(names, n), "step": np.repeat(np.arange(n), hosts)}).with_columns(
        kind=pl.lit("train"),
        traced=pl.lit("full"),
        start_ps=pl.lit(0),
        dur_ps=pl.Series(np.repeat(spans, hosts)),
        device_ps=None,
        idle_ps=None,
    )
    tables = {"frame": frame, "ops": pl.DataFrame(schema=schema.HOST_OPS), "collectives": collectives} | more
    return Steps(toy_steps("").frame, toy_steps("").ops, name="job", by_host=HostTables(**tables))


def simulated(*faults, hosts=16, steps=40, seed=0, program=TWO):
    made = pod(program, hosts=hosts, steps=steps, seed=seed, faults=faults)
    return made, tp.hosts(pod_tables.job_steps(made))
