"""Run folders of steps of given times, as a clock records them, and series of step times with the noise of machines."""

import numpy as np
import polars as pl
from run_parts import begun, tables

from tpunb.io import run_folder

MS = 1_000_000_000


def noisy(seed, steps=600, *, slower=0.0):
    """Step times in ms: scatter, correlation over ten steps, rare stalls, and 0.3 % from run to run."""
    random = np.random.default_rng(seed)
    slow, log = 0.0, np.empty(steps)
    for number in range(steps):
        slow = 0.9 * slow + random.normal(0, 0.004)
        log[number] = slow + random.normal(0, 0.02) + (random.random() < 0.02) * random.exponential(1.0)
    return 10 * np.exp(log + random.normal(0, 0.003)) * (1 + slower)


def timed_run(folder, times_ms, name="timed", **facts):
    """Write a run whose steps took these times."""
    ends = np.cumsum(np.round(np.asarray(times_ms) * MS)).astype(np.int64)
    starts = np.concatenate([[0], ends[:-1]])
    rows = [
        ("toy", number, "train", int(start), int(end), *[None] * 7)
        for number, (start, end) in enumerate(zip(starts, ends, strict=True))
    ]
    ticks = pl.DataFrame(rows, schema=run_folder.TICKS, orient="row")
    writer = begun(folder)
    writer.part(0, tables(0) | {"ticks": ticks})
    writer.facts({"name": name, "state": "finished", "span_ps": int(ends[-1]), "causes": True, **facts})
    writer.close()
    return folder
