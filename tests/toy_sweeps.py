"""Sweeps whose times are spelled out."""

import polars as pl

from tpunb.frames.hardware import Device
from tpunb.studies.sweeps import Sweep

MS = 10**9
CHIP = Device("toy", 1e12, 1e9, 1e11, "none", dtype="f32")


def sweep(steps_ms, *, batches=(16, 32, 64, 128), spread=None, **facts):
    """A sweep over batch; a time of None did not fit, and `spread` gives intervals of that share."""
    rows = []
    for batch, ms in zip(batches, steps_ms, strict=True):
        step = None if ms is None else round(ms * MS)
        ends = (
            {}
            if spread is None or step is None
            else {"low_ps": step - round(step * spread), "high_ps": step + round(step * spread)}
        )
        state = "out of memory" if step is None else "ok"
        rows.append({"batch": batch, "examples": batch, "step_ps": step, "state": state, **ends})
    constants = {"device": "toy", "framework": "JAX", "version": "0.7", **facts}
    frame = pl.DataFrame(rows, infer_schema_length=None)
    return Sweep(frame.with_columns(**{name: pl.lit(value) for name, value in constants.items()}), ("batch",))


def grid(time, widths=(8, 16), batches=(16, 32, 64, 128), **facts):
    """A sweep over batch and width; `time` gives milliseconds of a step."""
    points = [(batch, width) for batch in batches for width in widths]
    rows = [
        {"batch": b, "width": w, "examples": b, "step_ps": round(time(b, w) * MS), "flops": 1e6 * b * w, "state": "ok"}
        for b, w in points
    ]
    constants = {"device": "toy", "framework": "JAX", "version": "0.7", **facts}
    frame = pl.DataFrame(rows).with_columns(**{name: pl.lit(value) for name, value in constants.items()})
    return Sweep(frame, ("batch", "width"))


KNEE = sweep([1, 1, 1, 2])  # 16, 32, 64, 64 examples per ms
