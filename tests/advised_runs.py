"""Runs spelled out in the figures that advice is given for."""

import string
from dataclasses import replace

import polars as pl

from tpunb import schema
from tpunb.analysis.advice import advise
from tpunb.frames import Phases, Steps
from tpunb.frames.steps import RunEvents, WallClock
from tpunb.testing import toy_steps

S = 10**12
BUSY = {"device": 1.0, "idle": 0.0}
SAVES = [(41 + 10 * i, 2, "checkpoint save", "ModelCheckpoint") for i in range(5)]
UNKNOWN = ["device", "idle", "infeed", "outfeed", "transfer", "collective", "input", "compile"]
OTHERS = ["exposed_transfer", "exposed_collective", "host_wait", "sync_wait"]


def phased(pattern, *, traced=None, kinds=None, host="toy", ops=None, **figures):
    """Return phases, one a letter, of toy steps of 1 ms, 2 ms, ...: times as shares of the step, others as they are.

    ``ops`` are (op, side, category, share of the step) a letter; what is not given is unknown.
    """
    toy = toy_steps(pattern, traced=traced, host=host)
    rows = [figures.get(letter, {}) for letter in pattern]
    durs = toy.frame["dur_ps"].to_list()
    times = {
        f"{name}_ps": [None if name not in one else round(one[name] * dur) for one, dur in zip(rows, durs, strict=True)]
        for name in (*UNKNOWN, *OTHERS)
    }
    utils = {
        name: [one.get(name) for one in rows] for name in ("mxu_util", "flops_util", "hbm_util", "flops_time_share")
    }
    types = {name: schema.STEPS[name] for name in (*times, *utils)}
    frame = toy.frame.with_columns(pl.DataFrame({**times, **utils}, schema=types).get_columns())
    if kinds is not None:
        frame = frame.with_columns(kind=pl.Series([kinds.get(letter, "train") for letter in pattern]))
    rows = [
        (host, step, op, side, category, 1, round(part * durs[step]), round(part * durs[step]))
        for step, letter in enumerate(pattern)
        for op, side, category, part in (ops or {}).get(letter, [])
    ]
    steps = Steps(frame, pl.DataFrame(rows, schema=schema.OPS, orient="row"), windows=toy.windows, name="toy")
    return labelled(steps, [string.ascii_lowercase.index(letter) for letter in pattern])


def labelled(steps, labels):
    nowhere = pl.Series("distance", [None] * len(labels), dtype=pl.Float64)
    return Phases(steps, pl.Series("phase", labels, dtype=pl.Int64), lambda steps: labels, nowhere)


def fired(phases):
    return {(row["phase"], row["rule"]): row["saves"] for row in advise(phases).iter_rows(named=True)}


def accounted(*spans, wall_s=100, kinds=None, input_ps=None):
    """Return 40 s of steps in a run of 100 s, with spans of (start in s, seconds, account, detail) outside of them."""
    steps = toy_steps("a" * 10)
    frame = steps.frame.with_columns(
        start_ps=pl.int_range(10, dtype=pl.Int64) * 4 * S, dur_ps=pl.lit(4 * S), kind=pl.Series(kinds or ["train"] * 10)
    )
    frame = frame.with_columns(input_ps=pl.lit(input_ps, pl.Int64))
    frame = frame.with_columns(device_ps="dur_ps", idle_ps=pl.lit(0))  # nothing to say of the phase
    rows = [("toy", start * S, seconds * S, account, detail) for start, seconds, account, detail in spans]
    wall = WallClock(wall_s * S, complete=True, spans=pl.DataFrame(rows, schema=schema.SPANS, orient="row"))
    return labelled(replace(steps, frame=frame, wall=wall), [0] * 10)


def of_run(phases, **options):
    rows = advise(phases, **options).filter(pl.col("phase").is_null()).iter_rows(named=True)
    return {row["rule"]: None if row["saves_ps"] is None else row["saves_ps"] / S for row in rows}


def slowing(cpu=lambda step: 0.5):
    """Return 24 steps of 1 s, 2 s, ..., and the share of the processors that the process has in each."""
    durs = [(1 + n) * S for n in range(24)]
    starts = [sum(durs[:n]) for n in range(24)]
    steps = toy_steps("a" * 24)
    frame = steps.frame.with_columns(start_ps=pl.Series(starts), dur_ps=pl.Series(durs), traced=pl.lit("none"))
    load = pl.DataFrame([("toy", at, cpu(n), 1.0, 0) for n, at in enumerate(starts)], schema.LOAD, orient="row")
    wall = WallClock(sum(durs), complete=True, load=load)
    return labelled(replace(steps, frame=frame, wall=wall), [0] * 24)


def run_events(**rows):
    """Return the events of a run from rows of their tables."""
    frames = {name: getattr(schema, f"RUN_{name.upper()}") for name in RunEvents._fields}
    return RunEvents(**{name: pl.DataFrame(rows.get(name, []), of, orient="row") for name, of in frames.items()})


def padded(phases, widths=(128,), kept=128):
    """Phases of a loop of PyTorch whose batches are of these widths, and their masks keep so many elements of each."""
    texts = [f"input_ids:int64[4,{width}], attention_mask:int64[4,{width}]" for width in widths]
    run = run_events(
        names=[("toy", 0, "torch", "", "DataLoader")],
        signatures=[("toy", number, "", text, None) for number, text in enumerate(texts)],
        events=[("toy", 1, at, at, "fetch", 0, None, None, at % len(texts), None, kept, 1, None) for at in range(8)],
    )
    frame = phases.steps.frame.with_columns(rule=pl.lit("gradients"))
    return replace(phases, steps=replace(phases.steps, read_run_events=lambda: run, frame=frame))
