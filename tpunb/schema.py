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
    "category": NAME,  # of that instruction, in XProf's words: "convolution fusion", "all-reduce"
    "step_num": pl.Int64(),  # on step marks only
    "start_ps": pl.Int64(),
    "dur_ps": pl.Int64(),
    "device_dur_ps": pl.Int64(),  # by the device's own clock: a TPU's start and dur are the host's idea of them
    "flops": pl.Int64(),  # of this one run of the operation
    "bytes": pl.Int64(),  # that it reads and writes
    "hbm_bytes": pl.Int64(),  # of them, those of the device's main memory
    "sends": pl.UInt64(),  # a hand-over: whoever of the host receives this id works for this event
    "receives": pl.UInt64(),
    "launch": pl.UInt64(),  # shared by the event of the host that launches and what then runs on a device
}
"""One row an event. Ids are hashes or the profiler's own numbers, signed ones made unsigned; they name, not count."""

STEPS: Schema = {
    "host": pl.String(),
    "step": pl.Int64(),
    "mark": pl.String(),  # what marked it: "train", "test", the name of a module, ...
    "start_ps": pl.Int64(),
    "dur_ps": pl.Int64(),
    "seen": SEEN,
    # means over the devices that ran the step
    "device_ps": pl.Int64(),  # busy time
    "idle_ps": pl.Int64(),  # step time less busy time
    "infeed_ps": pl.Int64(),  # waiting for and taking in data by the infeed; TPU
    "outfeed_ps": pl.Int64(),
    "transfer_ps": pl.Int64(),  # between host and device: copies of a GPU, sends and receives of a TPU
    "collective_ps": pl.Int64(),  # all-reduce and its kin
    "duty_cycle": pl.Float64(),  # busy time by step time, waiting for the host not counted as busy; 0 to 1
    "mxu_util": pl.Float64(),  # of the matrix unit, by the hardware's own count, 0 to 1
    "flops_util": pl.Float64(),  # achieved FLOP/s by the device's peak, 0 to 1
    "hbm_util": pl.Float64(),  # achieved bytes/s by the peak of its memory, 0 to 1
    # sums over those devices
    "flops": pl.Float64(),
    "bytes": pl.Float64(),
    # on the host
    "input_ps": pl.Int64(),  # waiting for the input pipeline
    "compile_ps": pl.Int64(),
}
"""One row a (host, step)."""

OPS: Schema = {
    "host": pl.String(),
    "step": pl.Int64(),
    "op": NAME,
    "side": SIDE,
    "category": NAME,  # that most of its self time is of, or null
    "count": pl.Int64(),
    "total_ps": pl.Int64(),
    "self_ps": pl.Int64(),  # less the time of what ran nested inside
}
"""One row a (host, step, op, side)."""

LAYERS: Schema = {
    "host": pl.String(),
    "step": pl.Int64(),
    "side": SIDE,
    "layer": NAME,  # of the model, by the scopes of the framework op; null where none is told
    "tf_op": NAME,  # framework op in full, or null
    "hlo_op": NAME,  # HLO instruction, or null
    "op": NAME,  # canonical name, that of OPS
    "category": NAME,
    "count": pl.Int64(),
    "total_ps": pl.Int64(),
    "self_ps": pl.Int64(),
    "flops": pl.Float64(),
    "bytes": pl.Float64(),
}
"""One row a (host, step, side, layer, framework op, HLO instruction)."""

DEVICE_FACTS = [
    *("device_ps", "idle_ps", "infeed_ps", "outfeed_ps", "transfer_ps", "collective_ps"),
    *("duty_cycle", "mxu_util", "flops_util", "hbm_util", "flops", "bytes"),
]
"""What is known of a step a device."""

DEVICES: Schema = {
    "host": pl.String(),
    "device": pl.String(),
    "step": pl.Int64(),
    "start_ps": pl.Int64(),
    "dur_ps": pl.Int64(),
    **{name: STEPS[name] for name in DEVICE_FACTS},
}
"""One row a (host, device, step): of the same meaning as in STEPS, each of its device alone."""

HARDWARE: Schema = {
    "host": pl.String(),
    "device": pl.String(),
    "kind": pl.String(),  # "TPU v6 Lite", "GPU", "CPU"
    "peak_flops": pl.Float64(),  # per second
    "hbm_bandwidth": pl.Float64(),  # bytes per second
    "mxu_util": pl.Float64(),  # of the matrix unit while the profiler watched, where hardware counted it, 0 to 1
}
"""One row a device of a profile."""

CLOCKS: Schema = {
    "host": pl.String(),
    "device": pl.String(),
    "link": pl.String(),  # "flow", "run" or "correlation"; null where nothing links
    "launches": pl.Int64(),  # module runs or kernels of the device
    "linked": pl.Int64(),  # of them, those whose launch on the host was found
    "delay_ps": pl.Int64(),  # median time from launch to start, the clocks set right; never negative
    "skew_ps": pl.Int64(),  # by how much the device's clock is behind the host's, at least: 0 where no start shows it
}
"""One row a (host, device): how the host meets the device, and how far their clocks disagree."""

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
    "why": pl.String(),  # why it was asked for: "start", "new phase", ... (tpunb.schedule); null if not by us
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
    "input_ps": pl.Int64(),
    "spread": pl.Float64(),  # standard deviation of the step time by its mean, from 0; of steps seen in full, if any
    "idle": pl.Float64(),  # idle time by step time, of the steps that know it, 0 to 1; null where none does
    "mxu_util": pl.Float64(),  # of the matrix unit, mean over the time of the steps that know it, 0 to 1
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

ADVICE: Schema = {
    "phase": pl.Int64(),  # -1 is noise
    "rule": pl.String(),  # of tpunb.cluster.advice.RULES
    "saves_ps": pl.Int64(),  # at most; null where nothing can be said
    "saves": pl.Float64(),  # the same as a share of the time of all steps, 0 to 1
    "sentence": pl.String(),  # what is seen, with its figures
    "knob": pl.String(),  # what to try
}
"""One row a (phase, rule) that has something to say, most time saved first."""

REPRESENTATIVES: Schema = {
    "host": pl.String(),
    "step": pl.Int64(),
    "phase": pl.Int64(),
    "weight": pl.Float64(),  # the steps that it stands for
    "mark": pl.String(),
    "start_ps": pl.Int64(),
    "dur_ps": pl.Int64(),
    "device_ps": pl.Int64(),
    "idle_ps": pl.Int64(),
    "mxu_util": pl.Float64(),
    "input_ps": pl.Int64(),
    "distance": pl.Float64(),  # to the centre of its phase, in feature space; null for noise, which has none
}
"""One row a step to look at, those of the longest phase first."""

REPRESENTED: Schema = {
    "side": SIDE,
    "op": NAME,
    "self_ps": pl.Int64(),  # in the whole run, as a few steps would have it
    "low_ps": pl.Int64(),  # between which it is in 95 of 100 draws; null where they were not drawn
    "high_ps": pl.Int64(),
    "true_ps": pl.Int64(),  # as all steps seen in full have it
    "share": pl.Float64(),  # of the self time on that side, as estimated, 0 to 1
}
"""One row a (side, op), of the most self time first."""

AGREEMENT: Schema = {
    "a": pl.String(),
    "b": pl.String(),
    "ari": pl.Float64(),  # adjusted Rand index, noise a group of its own
    "ami": pl.Float64(),  # adjusted mutual information, likewise
    "ari_inside": pl.Float64(),  # of the steps that are noise to neither; null where there are none
}
"""One row a pair of methods."""

APART: Schema = {
    "phase": pl.Int64(),
    "rank": pl.Int64(),  # from 1
    "block": pl.String(),  # of the feature space: what of the operation differs (tpunb.cluster.features)
    "side": pl.String(),
    "op": pl.String(),  # of those that ran in the very same steps, presence names the first; "step time" is none
    "share": pl.Float64(),  # of the squared distance from the phase to the rest; of all columns 1.0
    "inside_ps": pl.Int64(),  # mean self time of the op per step of the phase; step time for "step time"
    "outside_ps": pl.Int64(),  # per step of the rest
    "inside_ran": pl.Float64(),  # share of the phase's steps in which it ran, 0 to 1
    "outside_ran": pl.Float64(),
}
"""One row a (phase, rank)."""

COMPARED: Schema = {
    "phase_a": pl.Int64(),
    "phase_b": pl.Int64(),
    "similarity": pl.Float64(),  # 0 to 1
    "by": pl.Enum(["operations", "marks"]),  # what they were matched by
    "marks": pl.String(),  # of both, most frequent first; "in a / in b" where they differ
    "steps_a": pl.Int64(),
    "steps_b": pl.Int64(),
    "dur_a_ps": pl.Int64(),  # time of the phase, mean over the hosts of its run
    "dur_b_ps": pl.Int64(),
    "step_a_ps": pl.Int64(),  # step time, geometric mean
    "step_b_ps": pl.Int64(),
    "ratio": pl.Float64(),  # of these, b by a, with the ends of its 95 % interval
    "ratio_low": pl.Float64(),
    "ratio_high": pl.Float64(),
    "idle_a": pl.Float64(),  # share of a step in which its devices were idle, 0 to 1
    "idle_b": pl.Float64(),
    "idle_change": pl.Float64(),  # b less a, with the ends of its 95 % interval
    "idle_low": pl.Float64(),
    "idle_high": pl.Float64(),
    "mxu_a": pl.Float64(),  # use of the matrix unit, 0 to 1
    "mxu_b": pl.Float64(),
    "duty_a": pl.Float64(),  # duty cycle, 0 to 1
    "duty_b": pl.Float64(),
    "input_a": pl.Float64(),  # share of a step that its host waited for input, 0 to 1
    "input_b": pl.Float64(),
}
"""One row a pair of phases, one of each run, longest first."""

COMPARED_OPS: Schema = {
    "phase_a": pl.Int64(),
    "phase_b": pl.Int64(),
    "side": SIDE,
    "op": NAME,
    "state": pl.Enum(["gained", "lost", "both"]),
    "self_a_ps": pl.Int64(),  # self time a step seen in full, 0 in those in which it did not run
    "self_b_ps": pl.Int64(),
    "change_ps": pl.Int64(),  # b less a, with the ends of its 95 % interval
    "low_ps": pl.Int64(),
    "high_ps": pl.Int64(),
}
"""One row an operation of a pair of phases, the largest change first."""

EXPLAINED: Schema = {
    "phase_a": pl.Int64(),  # null for a phase of b that has no counterpart; -1 is noise
    "phase_b": pl.Int64(),
    "marks": pl.String(),
    "steps_a": pl.Int64(),
    "steps_b": pl.Int64(),
    "dur_a_ps": pl.Int64(),  # mean over the hosts of its run; 0 where there is no such phase
    "dur_b_ps": pl.Int64(),
    "change_ps": pl.Int64(),  # b less a
    "by_steps_ps": pl.Int64(),  # of it, by more steps, the rest by longer ones; null without a counterpart
    "by_step_time_ps": pl.Int64(),
    "share": pl.Float64(),  # of the difference between the runs; null where they do not differ
}
"""One row a phase of either run, and one of noise; `change_ps` adds up to the difference between the runs."""

SETTINGS: Schema = {
    "fact": pl.String(),
    "a": pl.String(),
    "b": pl.String(),
}
"""One row a fact that is known of what either run did."""


_MAY_LACK = {
    *("category", "device_dur_ps", "flops", "bytes", "hbm_bytes", "sends", "receives", "launch", "why"),
    *(set(STEPS) - {"host", "step", "mark", "start_ps", "dur_ps", "device_ps", "idle_ps", "seen"}),
}
"""Facts that few captures know: a frame may leave their columns out, and they are null then."""


def check(frame: pl.DataFrame, schema: Schema, what: str) -> pl.DataFrame:
    """Return `frame` with the columns of `schema`, in its order and its types; null for a fact that it leaves out.

    Raises
    ------
    BadProfile
        When a column lacks, or its values do not fit the type.
    """
    if frame.schema == schema:
        return frame
    absent = [name for name in schema if name not in frame.columns]
    missing = [name for name in absent if name not in _MAY_LACK]
    if missing:
        raise BadProfile(
            f"the {what} frame lacks {missing}; it has {frame.columns}",
            hint=f"its columns are listed in tpunb.schema.{what.upper()}" if what.upper() in globals() else None,
        )
    try:
        return frame.with_columns(pl.lit(None).alias(name) for name in absent).select(
            pl.col(name).cast(dtype) for name, dtype in schema.items()
        )
    except pl.exceptions.PolarsError as error:
        reason = str(error).partition("\n")[0]
        raise BadProfile(f"the {what} frame has a column of the wrong type: {reason}") from error


def empty(schema: Schema) -> pl.DataFrame:
    """Return a frame of no rows with the columns of `schema`."""
    return pl.DataFrame(schema=schema)
