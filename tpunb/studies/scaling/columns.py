"""Columns of runs of one training on several numbers of chips."""

from __future__ import annotations

import polars as pl

from tpunb.schema import Column, frame

_INT, _FLOAT, _TEXT = pl.Int64(), pl.Float64(), pl.String()

_SCALED = {
    "benchmark": Column(_TEXT, 'Benchmark or model, such as "resnet".'),
    "ruleset": Column(_TEXT, 'Ruleset of MLPerf Training, such as "4.0.0", or null.'),
    "submitter": Column(_TEXT, "Submitter of the results, or null."),
    "system": Column(_TEXT, "Name of the system, whose number may count cores."),
    "chips": Column(_INT, "Number of chips by the description of the system, or null."),
    "cores": Column(_INT, "Number of cores of these chips, or null."),
    "batch": Column(_INT, "Examples of a step, over all chips, or null."),
}

_MEASURED = {
    "block_s": Column(
        _FLOAT, "Seconds from block to block, from the second on, of blocks of the usual length, or null."
    ),
    "step_ps": Column(_INT, "Time of a step in picoseconds, of the batch at these examples per second, or null."),
    "examples_per_s": Column(_FLOAT, "Examples per second in these blocks, evaluation between them included, or null."),
    "startup_minutes": Column(_FLOAT, "Minutes of startup, before the time that is scored, or null."),
    "evaluation_minutes": Column(_FLOAT, "Minutes in which an evaluation runs, beside training or not, or null."),
    "to_quality": Column(_FLOAT, "Epochs or tokens until the quality was reached, or null."),
    "unit": Column(_TEXT, 'Unit of `to_quality`: "epochs" or "tokens", or null.'),
    "official_factor": Column(_FLOAT, "Factor of scaling.json by which the official score exceeds minutes, or null."),
}

SCALING_RUNS = frame(
    "SCALING_RUNS",
    "One row per run of a `Scaling`.",
    __name__,
    **_SCALED,
    run=Column(_TEXT, "Name of its log or capture."),
    status=Column(_TEXT, 'Result: "success", "aborted", "not finished", or "capture" without a target.'),
    minutes=Column(_FLOAT, "Minutes from the end of startup to the end of the run, or null."),
    **_MEASURED,
)

SCALING = frame(
    "SCALING",
    "One row per (benchmark, system, batch) of a `Scaling`, with medians of its finished runs, smallest first.",
    __name__,
    **_SCALED,
    series=Column(_TEXT, "Kind of system: its name without the number."),
    batch_scaling=Column(
        _TEXT, 'Batch by that of the next smaller size: "strong" (equal), "weak" (equal per chip), "mixed", or null.'
    ),
    runs=Column(_INT, "Number of runs."),
    unfinished=Column(_INT, "Number of runs that were aborted or did not finish."),
    scored=Column(_INT, "Number of runs of which `minutes` is the mean."),
    minutes=Column(
        _FLOAT, "Olympic mean: minutes to quality without the best and the worst run, unfinished ones first."
    ),
    speedup=Column(_FLOAT, "Minutes of the base by those of this size."),
    examples_per_s_per_chip=Column(_FLOAT, "Examples per second and chip, or null."),
    efficiency=Column(_FLOAT, "Examples per second and chip as a share of those of the base, or null."),
    base_chips=Column(_INT, "Chips of the base: the smallest size of this benchmark, ruleset and kind of system."),
    startup_share=Column(_FLOAT, "Startup as a share of the time after it, which it may exceed, or null."),
    evaluation_share=Column(_FLOAT, "Time in which an evaluation runs as a share of the time after startup, or null."),
    **_MEASURED,
)

SCALING_FIT = frame(
    "SCALING_FIT",
    "One row per size of a `ScalingFit`.",
    __name__,
    chips=_SCALED["chips"],
    step_ps=Column(_INT, "Measured time of a step in picoseconds, mean of the runs."),
    predicted_ps=Column(_INT, "Time of a step in picoseconds by a fit of the other sizes, null for two sizes."),
    error=Column(_FLOAT, "Predicted by measured time, less 1."),
    fitted=Column(pl.Boolean(), "Whether the fit is of this size too."),
)
