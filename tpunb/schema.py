"""The vocabulary: the columns of every frame, their types and units.

Times are Int64 picoseconds relative to the profile's origin; a duration ends in ``_ps``. A figure that the
capture does not know is null, never 0.
"""

from __future__ import annotations

import polars as pl

from tpunb.errors import BadProfile

Schema = dict[str, pl.DataType]

NAME = pl.Categorical()
SIDE = pl.Enum(["host", "device"])
SEEN = pl.Enum(["full", "partial", "tick"])
"""How well a step was observed: in full, cut by a window's edge, or known by our own clock alone."""

EVENTS: Schema = {
    "host": NAME,
    "plane": NAME,  # a device or a host's CPU: "/device:TPU:0", "/host:CPU"
    "line": NAME,  # a thread, a stream, or a device's "XLA Ops"
    "lane": pl.UInt32(),  # one number a (host, plane, line): names of lines repeat
    "name": NAME,
    "tf_op": NAME,  # framework op behind a device event, or null
    "hlo_op": NAME,  # HLO instruction behind a device event, or null
    "step_num": pl.Int64(),  # on step marks only
    "start_ps": pl.Int64(),
    "dur_ps": pl.Int64(),
}
"""One row an event."""

STEPS: Schema = {
    "host": pl.String(),
    "step": pl.Int64(),
    "mark": pl.String(),  # what marked it: "train", "test", the name of a module, ...
    "start_ps": pl.Int64(),
    "dur_ps": pl.Int64(),
    "device_ps": pl.Int64(),  # busy time, mean over the devices that ran the step
    "idle_ps": pl.Int64(),  # step time less busy time, mean over those devices
    "seen": SEEN,
}
"""One row a (host, step)."""

OPS: Schema = {
    "host": pl.String(),
    "step": pl.Int64(),
    "op": NAME,
    "side": SIDE,
    "count": pl.Int64(),
    "total_ps": pl.Int64(),
    "self_ps": pl.Int64(),  # less the time of what ran nested inside
}
"""One row a (host, step, op, side)."""

DEVICES: Schema = {
    "host": pl.String(),
    "device": pl.String(),
    "step": pl.Int64(),
    "start_ps": pl.Int64(),
    "dur_ps": pl.Int64(),
    "device_ps": pl.Int64(),
    "idle_ps": pl.Int64(),
}
"""One row a (host, device, step)."""

HARDWARE: Schema = {
    "host": pl.String(),
    "device": pl.String(),
    "kind": pl.String(),  # "TPU v6 Lite", "GPU", "CPU"
    "peak_flops": pl.Float64(),  # per second
    "hbm_bandwidth": pl.Float64(),  # bytes per second
}
"""One row a device of a profile."""

WINDOWS: Schema = {
    "host": pl.String(),
    "window": pl.Int64(),
    "start_ps": pl.Int64(),  # when the profiler began to watch
    "dur_ps": pl.Int64(),  # how long it watched; 0 for a window that failed
    "answer_ps": pl.Int64(),  # from asking to the answer, collection included
    "bytes": pl.Int64(),
    "events": pl.Int64(),
    "steps": pl.Int64(),  # seen in full
    "error": pl.String(),  # why the window failed, or null
}
"""One row a (host, window) that was asked for."""

PHASES: Schema = {
    "phase": pl.Int64(),  # -1 is noise
    "steps": pl.Int64(),
    "full": pl.Int64(),  # of them, seen in full
    "marks": pl.String(),  # what marked its steps, most frequent first
    "first_step": pl.Int64(),
    "start_ps": pl.Int64(),
    "dur_ps": pl.Int64(),
    "share": pl.Float64(),  # of the time of all steps, 0 to 1
    "step_ps": pl.Int64(),  # median step time
    "device_ps": pl.Int64(),  # sums over steps; null where no step knows it
    "idle_ps": pl.Int64(),
}
"""One row a phase, longest first."""

TOP: Schema = {
    "phase": pl.Int64(),
    "side": SIDE,
    "rank": pl.Int64(),  # from 1
    "op": NAME,
    "count": pl.Int64(),
    "total_ps": pl.Int64(),
    "self_ps": pl.Int64(),
    "share": pl.Float64(),  # of the self time of the phase on that side, 0 to 1
}
"""One row a (phase, side, rank)."""


def check(frame: pl.DataFrame, schema: Schema, what: str) -> pl.DataFrame:
    """Return `frame` with the columns of `schema`, in its order and its types.

    Raises
    ------
    BadProfile
        When a column lacks, or its values do not fit the type.
    """
    if frame.schema == schema:
        return frame
    missing = [name for name in schema if name not in frame.columns]
    if missing:
        raise BadProfile(
            f"the {what} frame lacks {missing}; it has {frame.columns}",
            hint=f"its columns are listed in tpunb.schema.{what.upper()}" if what.upper() in globals() else None,
        )
    try:
        return frame.select(pl.col(name).cast(dtype) for name, dtype in schema.items())
    except pl.exceptions.PolarsError as error:
        reason = str(error).partition("\n")[0]
        raise BadProfile(f"the {what} frame has a column of the wrong type: {reason}") from error


def empty(schema: Schema) -> pl.DataFrame:
    """Return a frame of no rows with the columns of `schema`."""
    return pl.DataFrame(schema=schema)
