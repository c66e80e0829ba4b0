"""Columns of a sweep and its answers."""

from __future__ import annotations

import polars as pl

from tpunb.schema import Column, frame

_INT, _FLOAT, _TEXT = pl.Int64(), pl.Float64(), pl.String()

SWEEP = frame(
    "SWEEP",
    "One row per point of a `Sweep`, after a column per parameter.",
    __name__,
    device=Column(_TEXT, 'Device that ran the point, such as "TPU v5e" or the name of the processor, or null.'),
    framework=Column(_TEXT, 'Framework, such as "TensorFlow" or "JAX", or null.'),
    version=Column(_TEXT, "Version of the framework, or null."),
    dtype=Column(_TEXT, 'Data type of the computation, such as "float32" or "mixed_bfloat16", or null.'),
    mode=Column(_TEXT, 'What a step does: "train" or "predict", or null.'),
    weights=Column(_INT, "Number of weights of the model, or null."),
    examples=Column(_INT, "Number of examples of a step, or null."),
    flops=Column(_FLOAT, "Floating-point operations of a step, or null."),
    bytes=Column(_FLOAT, "Bytes read and written by a step, or null."),
    step_ps=Column(_INT, "Median step time in picoseconds, null unless the point ran."),
    low_ps=Column(_INT, "Lower end of the 95 % interval of the median step time in picoseconds, or null."),
    high_ps=Column(_INT, "Upper end of the 95 % interval of the median step time in picoseconds, or null."),
    p95_ps=Column(_INT, "The 95th percentile of step time in picoseconds, or null."),
    examples_per_s=Column(_FLOAT, "Examples per second at the median step time, or null."),
    flops_util=Column(_FLOAT, "Achieved FLOP/s as a share of the peak of the device, 0 to 1, or null."),
    bound=Column(_TEXT, 'Peak that limits the step at the roof: "compute" or "memory", or null.'),
    peak_bytes=Column(_INT, "Peak memory of the point in bytes, or null."),
    joules=Column(_FLOAT, "Energy of a step in joules, null without a meter."),
    rounds=Column(_INT, "Number of rounds that measured the point, or null."),
    rounds_ps=Column(
        pl.List(pl.Int64()),
        "Step time in each round in picoseconds, null in one that did not reach the point, or null.",
    ),
    state=Column(_TEXT, 'Result: "ok", "out of memory", "not reached", or "failed: " and the reason.'),
)

SATURATION = frame(
    "SATURATION",
    "One row per combination of the other parameters of a `Sweep`, after a column per parameter.",
    __name__,
    value=Column(_FLOAT, "Smallest value that is enough, null if fewer than two values ran."),
    rising=Column(pl.Boolean(), "Whether only the largest value is enough, so that larger ones may give more."),
    examples_per_s=Column(_FLOAT, "Examples per second of the best value."),
    below=Column(_FLOAT, "Next smaller value that was measured, or null."),
    given_away=Column(_FLOAT, "Examples per second that this smaller value loses, as a share of the best, 0 to 1."),
    certain=Column(
        pl.Boolean(), "Whether there were enough rounds for the intervals of all values, or none were measured."
    ),
)

SENSITIVITY = frame(
    "SENSITIVITY",
    "One row per term of the regression of a column of a `Sweep` on its parameters.",
    __name__,
    term=Column(_TEXT, 'Parameter, or product of two, such as "batch x width".'),
    weight=Column(_FLOAT, "Standard deviations of the column per standard deviation of the term, null if constant."),
)

SPEEDUP = frame(
    "SPEEDUP",
    "One row per point that two sweeps have in common, after a column per parameter.",
    __name__,
    ratio=Column(_FLOAT, "Examples per second of this sweep by those of the other."),
    low=Column(_FLOAT, "Lower end of the interval of the ratio: both ends of the step times at their worst, or null."),
    high=Column(_FLOAT, "Upper end of the interval of the ratio, or null."),
    verdict=Column(_TEXT, 'Result by the interval: "faster", "slower", "not distinguishable", null without one.'),
    examples_per_s=Column(_FLOAT, "Examples per second of this sweep."),
    other_examples_per_s=Column(_FLOAT, "Examples per second of the other sweep."),
    flops=Column(_FLOAT, "Floating-point operations of a step of this sweep, or null."),
)
