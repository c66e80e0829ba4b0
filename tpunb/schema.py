"""Columns of every frame: type, unit, definition, and how a column is aggregated. The home of the glossary.

Times are Int64 picoseconds relative to the profile's origin; a duration ends in ``_ps``. A figure that the capture
does not contain is null, never 0. ``docs/glossary.md`` is generated from this module.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import polars as pl

from tpunb.errors import BadProfile
from tpunb.text import format_error

Schema = dict[str, pl.DataType]

Aggregation = Literal["first", "min", "max", "sum", "mean", "middle"]
"""How values become one, nulls left out. "mean" is weighted by ``dur_ps`` over windows and plain over devices and
hosts; "middle" is the lower median."""

NAME = pl.Categorical()
SIDE = pl.Enum(["host", "device"])
TRACED = pl.Enum(["full", "partial", "none"])
RULES: dict[str, str] = {
    "annotation": "The program annotates its steps, for whichever profiler.",
    "steps line": "A device has a line of steps in the profile.",
    "module": "A compiled module ran: the one with most device time again, or each if nothing else shows steps.",
    "calls": "A compiled function was called again.",
    "whole": "The whole capture is one step.",
    "clock": "The host clock of a capture recorded it, in runs of an earlier version.",
    "caller": "A rule of the caller found it.",
    "mark": "The program marks it: run.step or run.batches.",
    "keras": "A method of Keras trained, evaluated or predicted with a batch.",
    "optimizer": "An optimizer of PyTorch or Keras updated the parameters.",
    "gradients": "The program took gradients with PyTorch, and no optimizer that is known updated the parameters.",
    "fetches": "The program fetched a batch.",
    "event": "The program recorded goodput events: from the event of its start to that of the next.",
}
"""How a step was found; files have the first seven as they are."""
RULE = pl.Enum([*RULES])

_INT, _ID, _FLOAT, _TEXT = pl.Int64(), pl.UInt64(), pl.Float64(), pl.String()

TERMS: dict[str, str] = {
    "run": "One execution of a training program under a capture.",
    "step": "One pass of the training loop, from one batch to the next, or one step of evaluation or prediction.",
    "window": "A time span in which the profiler traced the run.",
    "budget": "Largest share of run time that windows may cost: 2 to 10 % by the length of the run, if none is given.",
    "event": "One record of a raw profile, such as a function on a host thread or a kernel on a device.",
    "operation": "All events with one canonical name on one side, host or device, such as MatMul or fusion.",
    "host": "A machine that runs a part of the job.",
    "device": "One TPU core, one GPU, or the XLA CPU client of a host.",
    "self time": "Time of an operation without the time of the operations nested inside it.",
    "busy time": "Time in which at least one operation of a device runs.",
    "layer": "A layer of the model, derived from the scopes in the name of a framework op.",
    "phase": "A group of steps with similar operations.",
    "step time without waits": "Step time without callbacks and input wait, of far slower steps the median.",
    "outliers": "Steps that a method assigns to no phase, or that last far longer than their phase, labelled -1.",
    "exclusive time": "Step time without waits for input or ranks, callbacks, saves, evaluation, startup and the like.",
    "comparable steps": "Steps of one phase by the default method.",
    "null": "What a profile does not contain: it is never 0, and left out of means and sums.",
    "sweep": "Measurements of one model at many sizes, its points, on one device.",
    "checkpoint": "The saved state of a training, from which a run can resume.",
}
"""Nouns of the field that are not columns, each in one sentence."""


class Column(NamedTuple):
    """A column of a frame."""

    dtype: pl.DataType
    term: str
    """What the column holds: one sentence with unit and base."""
    windows: Aggregation | None = None
    """How the values of one row that several windows traced become one; None for a key."""
    devices: Aggregation | None = None
    """How the values of the devices of one host become one; None for what is not measured on a device."""
    hosts: Aggregation | None = None
    """How the values of the hosts of a job become one; None as for `devices`."""


class Frame(NamedTuple):
    """A frame: what one row is, and its columns."""

    row: str
    columns: dict[str, Column]
    home: str
    """Module that declares it."""


FRAMES: dict[str, Frame] = {}
"""Every frame by its name, such as "STEPS"; studies add theirs."""


def frame(name: str, row: str, home: str = __name__, /, **columns: Column) -> Schema:
    """Declare a frame of the module `home`: what one row is, and its columns; return its schema."""
    FRAMES[name] = Frame(row, columns, home)
    return {column: dtype for column, (dtype, *_) in columns.items()}


def _in_both(name: str, dtype: pl.DataType, term: str) -> dict[str, Column]:
    """Return a column for each of two runs that are compared."""
    return {name.format(run): Column(dtype, term.format(run)) for run in ("a", "b")}


_HOST = Column(_TEXT, "Name of the host.")
_STEP = Column(_INT, "Number of the step.")
_PHASE = Column(_INT, "Number of the phase, -1 for outliers.")
_NAMED = Column(_TEXT, 'Name of the phase, unique in the run, such as "train (input-bound)".')
_DEVICE = Column(_TEXT, 'Name of the device, such as "/device:TPU:0".')
_SIDE = Column(SIDE, 'Where the operation runs: "host" or "device".')
_OP = Column(NAME, "Canonical name of the operation.")
_KIND = Column(_TEXT, 'Kind of the step: "train", "eval", "predict", or the name of its annotation.', "first")
_KINDS = Column(_TEXT, "Kinds of the steps of the phase, most frequent first.")
_START = Column(_INT, "Start in picoseconds since the origin of the profile.", "min")
_TF_OP = Column(NAME, 'Full name of the framework op, such as "dense/MatMul:MatMul" or "aten::mm", or null.')
_HLO_OP = Column(NAME, "Name of the HLO instruction, or null.")
_PROGRAM = Column(_INT, "Id of the compiled program, or null.")
_SHAPE = Column(
    NAME, "Shape of the HLO instruction's result, such as \"f32[8,128]{1,0}\", or those of PyTorch's operands.", "first"
)
_DTYPE = Column(
    NAME, 'Data type of the products in the HLO instruction, such as "bf16", else that of its result, or null.', "first"
)
_SOURCE = Column(NAME, 'Source line behind the HLO instruction, such as "model.py:41", or null.', "first")
PART = Column(_TEXT, 'Part of the step: "forward", "backward", "recomputation", "update", "mixed", or null.')
_COUNT = Column(_INT, "Number of events of the operation.", "sum")
_TOTAL = Column(_INT, "Total time of the operation in picoseconds.", "sum")
_SELF = Column(_INT, "Self time of the operation in picoseconds.", "sum")
_RANK = Column(_INT, "Rank within the phase, from 1.")
_PLACE = Column(_TEXT, 'Innermost frame of user code, such as "train.py:12 in on_epoch_end ← time.sleep".')
_STALL_KIND = Column(_TEXT, 'Account in which the stall began, such as "callbacks", or null.')


EVENTS = frame(
    "EVENTS",
    "One row per event of a raw profile.",
    host=_HOST._replace(dtype=NAME),
    plane=Column(NAME, 'Device or host CPU of the event, such as "/device:TPU:0" or "/host:CPU".'),
    line=Column(NAME, 'Thread, stream, or line of a device such as "XLA Ops".'),
    lane=Column(pl.UInt32(), "Number of the (host, plane, line), because names of lines repeat."),
    name=Column(NAME, "Name of the event as the profiler recorded it."),
    tf_op=Column(NAME, "Framework op behind the event, or null."),
    hlo_op=Column(NAME, "HLO instruction behind the event, or null."),
    program=_PROGRAM,
    category=Column(NAME, 'XProf\'s category of the HLO instruction, such as "convolution fusion".'),
    step_num=Column(_INT, "Step number of a step annotation, null for other events."),
    start_ps=Column(_INT, "Start by the clock of the host, in picoseconds since the origin of the profile."),
    dur_ps=Column(_INT, "Duration by the clock of the host, in picoseconds."),
    device_dur_ps=Column(_INT, "Duration by the clock of the device, in picoseconds."),
    flops=Column(_INT, "Floating-point operations of this event."),
    bytes=Column(_INT, "Bytes that this event reads and writes."),
    hbm_bytes=Column(_INT, "Bytes that this event reads from and writes to the main memory of the device."),
    flow_out=Column(_ID, "Id of the flow that starts at this event."),
    flow_in=Column(_ID, "Id of the flow that ends at this event."),
    correlation_id=Column(_ID, "Id shared by a launch on the host and the events that it starts on a device."),
)

_DEVICE_STATS: dict[str, Column] = {
    "device_ps": Column(_INT, "Busy time of the device in picoseconds.", "sum", "mean"),
    "idle_ps": Column(_INT, "Step time without busy time, in picoseconds.", "sum", "mean"),
    "host_wait_ps": Column(
        _INT,
        "Idle time before runs that the host launched after the device became idle, in picoseconds.",
        "sum",
        "mean",
    ),
    "sync_wait_ps": Column(_INT, "Idle time after the host waited for the device, in picoseconds.", "sum", "mean"),
    "kernel_wait_ps": Column(
        _INT, "Idle time in gaps of less than 30 us before runs launched in time, in picoseconds.", "sum", "mean"
    ),
    "infeed_ps": Column(_INT, "Time in which a TPU waits for or reads infeed, in picoseconds.", "sum", "mean"),
    "outfeed_ps": Column(_INT, "Time in which a TPU writes outfeed, in picoseconds.", "sum", "mean"),
    "transfer_ps": Column(_INT, "Time of transfers between host and device, in picoseconds.", "sum", "mean"),
    "collective_ps": Column(_INT, "Time of collectives such as all-reduce, in picoseconds.", "sum", "mean"),
    "exposed_transfer_ps": Column(_INT, "Time of transfers beside no computation, in picoseconds.", "sum", "mean"),
    "exposed_collective_ps": Column(_INT, "Time of collectives beside no computation, in picoseconds.", "sum", "mean"),
    "duty_cycle": Column(
        _FLOAT, "Share of step time in which the device is busy and not waiting for its host, 0 to 1.", "mean", "mean"
    ),
    "mxu_util": Column(_FLOAT, "Utilisation of the matrix unit by its hardware counter, 0 to 1.", "mean", "mean"),
    "flops_util": Column(_FLOAT, "Achieved FLOP/s as a share of the peak of the device, 0 to 1.", "mean", "mean"),
    "hbm_util": Column(_FLOAT, "Achieved bytes/s as a share of peak memory bandwidth, 0 to 1.", "mean", "mean"),
    "flops_time_share": Column(
        _FLOAT, "Share of busy time in operations whose FLOPs are known, 0 to 1.", "mean", "mean"
    ),
    "flops": Column(
        _FLOAT,
        "Floating-point operations, summed over devices, of a Keras step without XLA by its graph if shapes are known.",
        "sum",
        "sum",
    ),
    "bytes": Column(_FLOAT, "Bytes read and written by operations, summed over devices.", "sum", "sum"),
}
DEVICE_FACTS = [*_DEVICE_STATS]
"""Columns of STEPS and DEVICES that are measured on devices; STEPS has the mean or the sum over devices."""

STEPS = frame(
    "STEPS",
    "One row per (host, step).",
    host=_HOST,
    step=_STEP,
    kind=_KIND._replace(hosts="first"),
    start_ps=_START._replace(hosts="middle"),
    dur_ps=Column(_INT, "Step time in picoseconds, of the slowest host in a job.", "max", hosts="max"),
    traced=Column(TRACED, 'How much of the step a window traced: "full", "partial" or "none".', "max", hosts="min"),
    rule=Column(
        RULE,
        "How the step was found, one of tpunb.schema.RULES.",
        "first",
        hosts="first",
    ),
    **_DEVICE_STATS,
    imbalance_ps=Column(
        _INT,
        "Step time of the slowest device less the mean over devices, in picoseconds, null for one device.",
        "sum",
        hosts="max",
    ),
    annotation_ps=Column(
        _INT, "Duration of the annotation on the host, in picoseconds, null without one.", "max", hosts="max"
    ),
    input_ps=Column(_INT, "Time in which the host waits for the input pipeline, in picoseconds.", "sum", hosts="max"),
    compile_ps=Column(_INT, "Time in which the host compiles, in picoseconds.", "sum", hosts="max"),
    callbacks_ps=Column(
        _INT, "Time in callbacks of the framework by the host clock, in picoseconds.", "max", hosts="max"
    ),
    dispatch_ps=Column(
        _INT,
        "Time before the step is dispatched, without input wait and callbacks, in picoseconds.",
        "max",
        hosts="max",
    ),
    peers_ps=Column(_INT, "Wait of a rank for the others by its clock, in picoseconds.", "sum", hosts="max"),
    samples=Column(_INT, "Samples in the batches of the step, of all ranks, or null if unknown.", "max", hosts="sum"),
    tokens=Column(_INT, "Tokens in them, without padding that a mask marks, or null.", "max", hosts="sum"),
    step_skew_ps=Column(
        _INT,
        "Longest less shortest time outside collectives over the hosts of a job, in picoseconds, null for one host.",
        "max",
    ),
    slowest_host=Column(_TEXT, "Host with the longest time outside collectives, null for one host.", "first"),
)

OPS = frame(
    "OPS",
    "One row per (host, step, op, side).",
    host=_HOST,
    step=_STEP,
    op=_OP,
    side=_SIDE,
    category=Column(NAME, "Category with the most self time of the operation, or null.", "first"),
    count=_COUNT,
    total_ps=_TOTAL,
    self_ps=_SELF,
)

LAYERS = frame(
    "LAYERS",
    "One row per (host, step, side, layer, framework op, program, HLO instruction, GPU kernel).",
    host=_HOST,
    step=_STEP,
    side=_SIDE,
    layer=Column(NAME, 'Layer of the model, "mixed" for a fusion of several, or null.'),
    tf_op=_TF_OP,
    program=_PROGRAM,
    hlo_op=_HLO_OP,
    kernel=Column(NAME, "Name of the GPU kernel, or null."),
    op=_OP,
    part=PART,
    category=Column(NAME, "Category of the operation, or null."),
    count=_COUNT,
    total_ps=_TOTAL,
    self_ps=_SELF,
    flops=Column(_FLOAT, "Floating-point operations.", "sum"),
    bytes=Column(_FLOAT, "Bytes read and written.", "sum"),
    flops_source=Column(
        NAME,
        'Where the FLOPs come from: "profiler", "program" (from the HLO), "shapes" (of operands), "given", or null.',
        "first",
    ),
    shape=_SHAPE,
    dtype=_DTYPE,
    source=_SOURCE,
)

DEVICES = frame(
    "DEVICES",
    "One row per (host, device, step).",
    host=_HOST,
    device=_DEVICE,
    step=_STEP,
    start_ps=_START,
    dur_ps=Column(_INT, "Step time on this device in picoseconds.", "sum"),
    **_DEVICE_STATS
    | {
        "flops": Column(_FLOAT, "Floating-point operations of the device.", "sum", "sum"),
        "bytes": Column(_FLOAT, "Bytes read and written by operations of the device.", "sum", "sum"),
    },
)

INPUT_STAGES = frame(
    "INPUT_STAGES",
    "One row per (host, stage) of the input pipeline that takes time.",
    host=_HOST,
    stage=Column(_TEXT, 'Stage: "read on demand", "read in advance", "preprocess", "enqueue" or "other".'),
    time_ps=Column(_INT, "Time of all threads of the host in the stage during the profile, in picoseconds."),
    share=Column(_FLOAT, "Share of the time of all stages on the host, 0 to 1."),
)

COLLECTIVES = frame(
    "COLLECTIVES",
    "One row per run of a collective on a device.",
    host=_HOST,
    step=_STEP,
    device=_DEVICE,
    op=_OP,
    program=_PROGRAM,
    name=Column(NAME, 'Name of the HLO instruction or kernel, such as "all-reduce.1".'),
    instance=Column(_INT, "Number of the run of this instruction in the step, from 1, 0 if it began before the step."),
    start_ps=_START,
    dur_ps=Column(_INT, "Duration in picoseconds, to the end of the transfer if it is asynchronous."),
    wait_ps=Column(_INT, "Time until the last device of the group started, in picoseconds, null if it is alone."),
    last=Column(_TEXT, "Device that started last, or null."),
    bytes=Column(_INT, "Size of the whole result of the group in bytes, or null."),
    groups=Column(_TEXT, 'Replica groups as HLO text, such as "{{0,1},{2,3}}", or null.'),
    algorithm_bandwidth=Column(_FLOAT, "Bytes per second from the start of the last device, or null."),
    bus_bandwidth=Column(_FLOAT, "Bytes per second over the links of a device, as in NCCL's tests, or null."),
)

HOST_OPS = frame(
    "HOST_OPS",
    "One row per (host, op, side) of a job, over all its steps.",
    host=_HOST._replace(dtype=NAME),
    op=_OP,
    side=_SIDE,
    count=_COUNT,
    total_ps=_TOTAL,
    self_ps=_SELF,
)

HOST_COLLECTIVES = frame(
    "HOST_COLLECTIVES",
    "One row per (host, step, program, name, instance) of a collective in a job.",
    host=_HOST._replace(dtype=NAME),
    step=_STEP,
    program=_PROGRAM,
    name=Column(NAME, 'Name of the HLO instruction or kernel, such as "all-reduce.1".'),
    instance=Column(_INT, "Number of the run of this instruction in the step, from 1, 0 if it began before the step."),
    device=Column(NAME, "Device of the host that arrived last: the one with the shortest run."),
    start_ps=Column(
        _INT, "Start of that run by the clock of the host, in picoseconds since the origin of the profile."
    ),
    dur_ps=Column(_INT, "Duration of that run in picoseconds, in which the host waits for others."),
    groups=Column(NAME, 'Replica groups as HLO text, such as "{{0,1},{2,3}}", or null.'),
)

HOSTS = frame(
    "HOSTS",
    "One row per host of a job, the one whose delays cost most first, then those that are lost.",
    host=_HOST,
    role=Column(_TEXT, "Role of the host in the job, by the program that it runs, or null."),
    named=Column(pl.Boolean(), "Whether it costs more than the spread of the other hosts explains."),
    last=Column(_FLOAT, "Share of the collectives of the host at which it arrived last, 0 to 1."),
    costs_ps=Column(
        _INT, "Time that the job would gain if the host came second-last where it is last, in picoseconds."
    ),
    together_ps=Column(
        _INT, "Time that the job would gain if no other host waited for it and those above it, in picoseconds."
    ),
    cause=Column(_TEXT, 'Cause: "input", "compute", "host", "pause", "compile" or "unknown", null unless named.'),
    device=Column(_TEXT, "Device that arrives last on the host where the cause is compute, null if several do."),
    op=Column(_TEXT, "Operation with the most extra time where the cause is compute, or null."),
    place=Column(_TEXT, "Line of the program in which the host is more often than the others, or null."),
    recurrence=Column(_TEXT, 'Steps that it delays: "every step", "every 4 steps", "bursts" or "once", or null.'),
    skew_ps=Column(_INT, "Offset of its clock from the median host half-way through the steps, in picoseconds."),
    drift_ppm=Column(_FLOAT, "Rate of its clock less that of the median host, in parts per million."),
    lost=Column(_TEXT, "Why there is no data of the host, or null."),
)

WHAT_IF = frame(
    "WHAT_IF",
    "One row per part of a job with pipeline parallelism, by replay with operations of typical length.",
    part=Column(_TEXT, 'What the part is: "job", "operation", "stage", "data-parallel rank", "worker" or "cause".'),
    name=Column(_TEXT, "Type of operation, number of the stage or rank, name of the worker, or the cause."),
    slowdown=Column(_FLOAT, "Step time with only the part as measured, by that with typical times, null for a cause."),
    gain_ps=Column(_INT, "Time that a step would gain if the part took its typical time, in picoseconds."),
    low_ps=Column(_INT, "Lower end of the 95 % interval of the gain in picoseconds, or null."),
    high_ps=Column(_INT, "Upper end of the 95 % interval of the gain in picoseconds, or null."),
    explained=Column(_FLOAT, "Gain as a share of that of the whole job, or null."),
)

PIPELINE = frame(
    "PIPELINE",
    "One row per operation of a worker of a job with pipeline parallelism.",
    host=_HOST._replace(dtype=NAME),
    step=_STEP,
    stage=Column(_INT, "Number of the stage, from 0."),
    dp_rank=Column(_INT, "Rank among the workers of the stage, which exchange gradients, from 0."),
    op=Column(NAME, 'Type of the operation, such as "forward-compute".'),
    start_ps=_START,
    dur_ps=Column(_INT, "Duration in picoseconds, with the wait for others."),
    chunk=Column(_INT, "Model chunk of the stage, from 0, negative or null without one."),
)

UTILISATION = frame(
    "UTILISATION",
    "One row per (host, epoch) of a storage benchmark.",
    host=_HOST,
    epoch=Column(_TEXT, 'Epoch, with its block if it has several, such as "epoch 2".'),
    steps=Column(_INT, "Number of steps."),
    dur_ps=Column(_INT, "Time of the epoch in picoseconds."),
    first_ps=Column(_INT, "Time of the first step, which readers start in, in picoseconds."),
    compute_ps=Column(_INT, "Time of computation in the other steps, in picoseconds."),
    input_ps=Column(_INT, "Time in which the other steps wait for input, in picoseconds."),
    barrier_ps=Column(_INT, "Time in which the other steps wait for the slowest host, in picoseconds."),
    unrecorded_ps=Column(_INT, "Time of the epoch outside of steps, in picoseconds."),
    utilisation=Column(_FLOAT, "Computation as a share of the epoch without its first step, 0 to 1."),
)

CRITICAL = frame(
    "CRITICAL",
    "One row per (step, segment): the chain of devices, or operations, that others waited for, up to its end.",
    step=_STEP,
    segment=Column(_INT, "Number of the segment in the step, from 1: the time up to the end of a collective."),
    host=Column(_TEXT, "Host that arrived last, or whose operation it is."),
    device=Column(_TEXT, "Device of the host that arrived last, or null."),
    op=Column(NAME, "Collective that waited for it, operation of a pipeline, or null without collectives."),
    dur_ps=Column(_INT, "Time of the segment by the clock of the host, in picoseconds, null for the first."),
    gain_ps=Column(_INT, "Time by which it came later than the second-last host, in picoseconds."),
)

LATENESS = frame(
    "LATENESS",
    "One row per (host, step) with collectives.",
    host=_HOST._replace(dtype=NAME),
    step=_STEP,
    late_ps=Column(_INT, "Time that it came later than the median host, or a pipeline would gain, in picoseconds."),
)

LOST = frame(
    "LOST",
    "One row per host, or file of one, that a job has no data of.",
    what=Column(_TEXT, "Name of the file, or of the host if no file is known."),
    reason=Column(_TEXT, "Reason in one line."),
)

INSTRUCTIONS = frame(
    "INSTRUCTIONS",
    "One row per HLO instruction of a raw profile.",
    host=_HOST,
    program=_PROGRAM,
    hlo_op=Column(NAME, "Name of the HLO instruction."),
    tf_op=Column(NAME, "Framework op, several of a fusion joined by ';', that of a neighbour if it has none, or null."),
    part=PART,
    category=Column(NAME, 'Category of the HLO instruction, such as "loop fusion", or null.'),
    shape=_SHAPE,
    dtype=_DTYPE,
    bytes=Column(_INT, "Size of the result in bytes."),
    source=_SOURCE,
    groups=Column(_TEXT, 'Replica groups of a collective as HLO text, such as "{{0,1},{2,3}}", or null.'),
    flops=Column(_FLOAT, "Floating-point operations of one run, by XLA's rules from the program in the file, or null."),
    transcendentals=Column(_FLOAT, "Transcendental operations of one run, such as tanh, by the same rules, or null."),
    bytes_accessed=Column(_FLOAT, "Bytes that one run reads and writes, by the same rules, or null."),
)

BUFFERS = frame(
    "BUFFERS",
    "One row per buffer of a compiled program, in the memory that is allocated for one run of it.",
    host=_HOST,
    program=_PROGRAM,
    allocation=Column(_INT, "Number of the allocation in the program, whose memory its buffers share."),
    kind=Column(
        _TEXT,
        'Kind of the allocation: "argument", "output", "donated argument" (both), "temporary", "constant" or '
        '"thread-local".',
    ),
    allocation_bytes=Column(_INT, "Size of the whole allocation in bytes."),
    hlo_op=Column(NAME, "HLO instruction whose result the buffer holds, or null."),
    tf_op=_TF_OP,
    layer=Column(NAME, 'Layer of the model, "mixed" for a fusion of several, or null.'),
    part=PART,
    bytes=Column(_INT, "Size of the buffer in bytes."),
    offset_bytes=Column(_INT, "Start of the buffer in the allocation, in bytes."),
)

PROTOS = frame(
    "PROTOS",
    "One row per compiled program of a profile.",
    host=_HOST,
    program=Column(_INT, "Id of the compiled program, as events refer to it."),
    module=Column(_TEXT, "Name of the program."),
    proto=Column(pl.Binary(), "Serialised HloProto of the program."),
)

COUNTERS = frame(
    "COUNTERS",
    "One row per sample of a hardware counter of a device.",
    host=_HOST,
    device=_DEVICE,
    counter=Column(NAME, 'Name of the counter, such as "MXU" or "Vector ALU".'),
    start_ps=_START,
    dur_ps=Column(_INT, "Time that the sample covers, in picoseconds."),
    value=Column(_FLOAT, "Utilisation of the unit, 0 to 1, null where the recorded value is no utilisation."),
)

MEMORY = frame(
    "MEMORY",
    "One row per allocation or deallocation of device or pinned host memory.",
    host=_HOST,
    allocator=Column(NAME, 'Name of the allocator, such as "GPU_0_bfc", or number of the TPU on its host.'),
    start_ps=_START,
    size_bytes=Column(_INT, "Allocated bytes, negative for a deallocation, or null."),
    in_use_bytes=Column(_INT, "Bytes in use afterwards, those reserved for programs included."),
    peak_bytes=Column(_INT, "Most bytes in use so far since the allocator was created, as it reports them."),
    capacity_bytes=Column(_INT, "Bytes in use and available."),
    tf_op=_TF_OP,
)

MESSAGES = frame(
    "MESSAGES",
    "One row per kernel of NCCL whose message PyTorch recorded.",
    host=_HOST,
    device=_DEVICE,
    start_ps=_START,
    bytes=Column(_INT, "Size of the larger of the buffers that go in and out, in bytes, or null."),
    groups=Column(_TEXT, 'Ranks of the process group as a replica group, such as "{{0,1,2,3}}", or null.'),
    size=Column(_INT, "Number of ranks in the process group, or null."),
    collective=Column(_TEXT, 'Collective by its name in PyTorch, such as "allreduce", or null.'),
)

CALLS = frame(
    "CALLS",
    "One row per kernel, copy or memset of a device whose operator PyTorch recorded, or per operator on a CPU.",
    host=_HOST,
    device=_DEVICE,
    start_ps=_START,
    kernel=Column(NAME, "Name of the kernel, copy or memset."),
    operator=Column(NAME, 'Operator around its launch, the innermost of known work, such as "aten::addmm", or null.'),
    parents=Column(NAME, "Operators around that, outermost first, joined by ' > ', or null."),
    module=Column(NAME, 'Modules around it, or around what it differentiates, such as "Net_0/Linear_1", or null.'),
    part=PART,
    shape=_SHAPE,
    dtype=Column(NAME, "Data type of the first tensor that goes in, or null."),
)

HARDWARE = frame(
    "HARDWARE",
    "One row per device of a profile.",
    host=_HOST,
    device=_DEVICE,
    kind=Column(_TEXT, 'Kind of the device, such as "TPU v6 Lite", "GPU" or "CPU".'),
    peak_flops=Column(_FLOAT, "Peak floating-point operations per second."),
    hbm_bandwidth=Column(_FLOAT, "Peak bandwidth of the main memory of the device, in bytes per second."),
    mxu_util=Column(_FLOAT, "Utilisation of the matrix unit during the profile by its hardware counter, 0 to 1."),
)

CLOCKS = frame(
    "CLOCKS",
    "One row per (host, device).",
    host=_HOST,
    device=_DEVICE,
    link=Column(_TEXT, 'What links launches to runs: "flow", "run" or "correlation", or null.'),
    launches=Column(_INT, "Number of module runs or kernels of the device.", "sum"),
    linked=Column(_INT, "Number of launches whose event on the host was matched.", "sum"),
    delay_ps=Column(_INT, "Median time from launch to start after clock correction, in picoseconds.", "mean"),
    skew_ps=Column(_INT, "Lower bound of the delay of the device clock behind the host clock, in picoseconds.", "max"),
    queue_length=Column(_INT, "Most launches that waited for their run to start at one time.", "max"),
)

WINDOWS = frame(
    "WINDOWS",
    "One row per (host, window) requested.",
    host=_HOST,
    window=Column(_INT, "Number of the window."),
    start_ps=Column(_INT, "Start of tracing in picoseconds since the origin of the profile."),
    dur_ps=Column(_INT, "Duration of tracing in picoseconds, 0 for a failed window."),
    latency_ps=Column(_INT, "Time from request to response, collection included, in picoseconds."),
    bytes=Column(_INT, "Size of the raw window in bytes."),
    events=Column(_INT, "Number of events in the window."),
    steps=Column(_INT, "Number of steps traced in full."),
    error=Column(_TEXT, "Error of a failed window, or null."),
    reason=Column(_TEXT, 'Why the scheduler requested the window, such as "start" or "new phase", or null.'),
)

PHASES = frame(
    "PHASES",
    "One row per phase, longest first.",
    phase=_PHASE,
    name=_NAMED,
    steps=Column(_INT, "Number of steps."),
    full=Column(_INT, "Number of steps traced in full."),
    kinds=_KINDS,
    first_step=Column(_INT, "Number of the first step."),
    start_ps=Column(_INT, "Start of the first step in picoseconds since the origin of the profile."),
    dur_ps=Column(_INT, "Sum of step times in picoseconds."),
    productive_ps=Column(
        _INT,
        "Step time without callbacks and input wait, of far slower steps the median, in picoseconds.",
    ),
    share=Column(_FLOAT, "Share of the step time without waits, 0 to 1."),
    step_ps=Column(_INT, "Median step time in picoseconds."),
    device_ps=Column(_INT, "Busy time of devices, summed over steps, in picoseconds."),
    idle_ps=Column(_INT, "Idle time of devices, summed over steps, in picoseconds."),
    input_ps=Column(_INT, "Time in which hosts wait for input, summed over steps, in picoseconds."),
    input=Column(_FLOAT, "Share of step time in which hosts wait for input, of steps where this is measured, 0 to 1."),
    step_time_cv=Column(_FLOAT, "Coefficient of variation of step time, without steps that a window cuts."),
    drift=Column(
        _FLOAT, "Change of median step time without waits from the first to the last tenth of 20 steps or more."
    ),
    idle=Column(_FLOAT, "Share of step time in which devices are idle, of steps where this is measured, 0 to 1."),
    mxu_util=Column(_FLOAT, "Mean utilisation of the matrix unit, weighted by step time, 0 to 1."),
    confidence=Column(_FLOAT, "Confidence that the steps are one phase, see `Phases.confidence`, 0 to 1, or null."),
)


class Account(NamedTuple):
    """An account of the wall time of a run. A new one needs its line below and its measurement, nothing else."""

    name: str
    colour: str
    subject: str
    """Subject of a sentence about its time: "Callbacks" took 14 s."""
    metric: str
    """Its column in `tpunb.analysis.account_metrics`."""
    content: str
    """What its time is; Markdown, as in ``docs/glossary.md``."""
    detail: str = ""
    """What its details name."""
    phrase: str = ""
    """How a list of times names it, if not by its name."""
    clocked: bool = True
    """Whether it is unknown without the record of a capture in the run's process."""
    category: str = "GOODPUT"
    """Its category in ml-goodput-measurement."""
    event: str = ""
    """What of `RUN_EVENT_KINDS` its spans are, where their library does not say so."""


PEERS, STANDING = "waiting for other ranks", "standing still"
ACCOUNTS = {
    account.name: account
    for account in (  # work is cool, waste warm, the tool violet; colour-blind readers can distinguish them
        Account(
            *("productive", "#009E73", "Productive training", "productive"),
            "exclusive time of each step; of one that takes over 1.5 times the median of comparable steps, up to that "
            "median; as far as its devices compute, where these are traced (accelerators, XLA on a CPU)",
            clocked=False,
        ),
        Account(
            *("device idle", "#e28c46", "Waits of the device for the host", "idle"),
            "exclusive time of steps in which traced devices idle, by comparable ones traced in full",
            phrase="of an idle device",
            clocked=False,
        ),
        Account(
            *("step time deviation", "#f4d616", "Steps slower than usual", "deviation"),
            "exclusive time above that median, of steps that take over 1.5 times as long",
            "place of its stall, `garbage collection`, `lines that other steps do not run`, or `other programs` in "
            "seconds in which these used a quarter of the processors",
            clocked=False,
        ),
        Account(
            *("data loading", "#ff567c", "Waiting for input", "loading"),
            "wait for the next batch, as far as it blocks",
            clocked=False,
            category="DATA_LOADING_ASYNC",
            event="fetch",
        ),
        Account(
            *(PEERS, "#66643b", "Waiting for other ranks", "peers"),
            "of a job of several ranks, what each is without work in collectives and backward passes of a step, beyond "
            "the rank that came last; outside of steps, and of one rank, calls of `torch.distributed` that wait",
            "function: `init_process_group`, `barrier`",
            category="OTHER",
        ),
        Account(
            *("callbacks", "#a45600", "Callbacks", "callbacks"),
            "Keras callbacks",
            "class and hook: `ModelCheckpoint.on_epoch_end`; calls under 1 ms are summed",
            "in callbacks",
            event="callback",
        ),
        Account(
            *("checkpoint save", "#CC79A7", "Saving checkpoints", "saving"),
            "saves of Keras, `tf.train.Checkpoint`, Orbax and tpunb; in the background, as far as the program waits",
            "method",
            category="UNPRODUCTIVE_CHECKPOINT_SAVE_TIME",
            event="save",
        ),
        Account(
            *("checkpoint restore", "#da0642", "Restoring a checkpoint", "restoring"),
            "reading a checkpoint by the same",
            "method",
            category="UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME",
            event="restore",
        ),
        Account(
            *("evaluation", "#56B4E9", "Evaluation", "evaluation"),
            "`evaluate`, validation inside `fit`, `predict` beside a training, your functions that evaluate",
            phrase="in evaluation",
            clocked=False,
            category="CUSTOM_BADPUT_EVENTS",
            event="evaluate",
        ),
        Account(
            *("program startup", "#E69F00", "Tracing, compiling and first runs", "startup"),
            "tracing, lowering and compilation; the first run of what was traced; of a first step, what it takes "
            "longer, if nearly all others are faster",
            "function, and the new shapes if it was traced again",
            category="PROGRAM_STARTUP",
            event="trace",
        ),
        Account(
            *("preparation", "#602d55", "Preparation before and between trainings", "preparation"),
            "before the first step, between fits, around the steps of a fit, after the last step",
            "method",
            clocked=False,
            category="TRAINING_PREP",
        ),
        Account(
            *("program code", "#5a3208", "Code of the program", "code"),
            "Python between the steps of a loop of your own, between two such loops, and inside steps, as far as "
            "samples show it: sleeps, logs, work on arrays of the host",
            "`inside steps`",
        ),
        Account(
            *(STANDING, "#691e2d", "Standing still", "standing"),
            "no step ended for the longer of 15 s and ten usual steps, while nothing that may last was at work: "
            "no evaluation, save, compilation or worker",
            phrase="of standing still",
            category="OTHER",
        ),
        Account(
            *("profiler", "#7e71fa", "The profiler", "profiler"),
            "starting, collecting and reducing windows, as far as that held up a step (estimated)",
            phrase="in the profiler",
        ),
        Account("tuning", "#2d2aad", "Tuning", "tuning", "trials of the tuner", category="OTHER", event="try"),
        Account(
            *("resuming", "#4503fa", "Resuming", "resuming", "replay of a position"),
            category="TRAINING_PREP",
            event="restore",
        ),
        Account(
            *("lost progress", "#2d2d78", "Training that was lost and repeated", "lost"),
            "of an attempt of a [job](report.md#jobs), from its first step that a later one trained again to its end",
            "account in which the time of the attempt is",
            phrase="of lost progress",
            clocked=False,
            category="WASTED_PROGRESS_FROM_DISRUPTION",
        ),
        Account(
            *("downtime", "#3c4bf0", "Downtime between attempts", "down"),
            "of a job, from the last record of an attempt to the start of the next",
            phrase="down",
            clocked=False,
            category="INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION",
        ),
        Account(
            *("resizing", "#c3e15a", "Changes of the number of hosts", "resizing"),
            "of a job, attempts that run on fewer hosts than others; waits for slices, and starts with others",
            "what took the time",
            clocked=False,
            category="ELASTIC_SLICE_DOWN",
        ),
        Account("other", "#c7ca7a", "Time of unknown cause", "other", "the rest", clocked=False, category="OTHER"),
    )
}
"""What the wall time of a run is spent on, in the order of charts: every picosecond of a host is in one account."""

SPANS = frame(
    "SPANS",
    "One row per stretch of a run, outside or inside steps, whose cause the host clock knows.",
    host=_HOST,
    start_ps=_START,
    dur_ps=Column(_INT, "Duration in picoseconds."),
    account=Column(_TEXT, 'Account, or "fit", "garbage collection": a method of Keras, the reason of a slow step.'),
    detail=Column(_TEXT, 'What took the time, such as "ModelCheckpoint.on_epoch_end", or null.'),
)

STALLS = frame(
    "STALLS",
    "One row per (stall, place): where the program was while a step or the gap between steps lasted too long.",
    host=_HOST,
    start_ps=_START,
    dur_ps=Column(_INT, "Duration of the stall in picoseconds."),
    step=Column(_INT, "Number of the running step, null between steps."),
    kind=_STALL_KIND,
    place=_PLACE,
    share=Column(_FLOAT, "Share of the samples of the stall at that place, 0 to 1."),
    samples=Column(_INT, "Number of samples at that place."),
    locked=Column(pl.Boolean(), "Whether the sample was late because other code held the interpreter lock."),
)

SAMPLES = frame(
    "SAMPLES",
    "One row per sample of the stack of the thread that trains, about fifty a second.",
    host=_HOST,
    start_ps=_START,
    place=_PLACE,
    loads=Column(pl.Boolean(), "Whether a generator of the program ran, which prepares a batch."),
    code=Column(
        pl.Boolean(),
        "Whether the program's own Python ran, the standard library for it, or arrays of the host, or it slept.",
    ),
    evaluates=Column(pl.Boolean(), "Whether a function of the program ran whose name says that it evaluates."),
    launches=Column(pl.Boolean(), "Whether the program ran a call that launches steps, or null if that is not known."),
    model=Column(_TEXT, "Line of the program whose call of a model ran, or null if none did."),
    python=Column(pl.Boolean(), "Whether no library ran within the program's innermost function, but Python's."),
    worked=Column(_FLOAT, "Share of the time since the sample before in which the thread had or awaited a processor."),
    computes=Column(pl.Boolean(), "Whether work was in flight on a device, or null if that is not known."),
)

_STACK_REFERENCE = {
    "stack": Column(_INT, "Number of the stack in the table of stacks, null if that was full or the thread had none."),
    "others": Column(
        pl.List(_INT),
        "Stacks of other threads that ran, while the training thread was in a library that may wait for them.",
    ),
}

STACKS = frame(
    "STACKS",
    "One row per frame below its caller: a stack has the number of its innermost frame, and shares the outer ones.",
    host=_HOST,
    stack=Column(_INT, "Number of the frame, and of the stack that ends with it."),
    caller=Column(_INT, "Number of the frame that called it, lower than its own, null for the outermost."),
    file=Column(_TEXT, "Path of the source file, or the name that Python has for it."),
    line=Column(_INT, "Line that ran."),
    function=Column(_TEXT, "Qualified name of the function."),
    first_line=Column(_INT, "Line at which the function begins."),
    module=Column(_TEXT, "Name of the module."),
    home=Column(_TEXT, 'Folder of the interpreter that has the file: "python", "tpunb", null for any other.'),
    generator=Column(pl.Boolean(), "Whether the function is a generator."),
    hidden=Column(pl.Boolean(), "Whether the function hides from tracebacks, as patches do."),
    converted=Column(pl.Boolean(), "Whether it ran as converted by AutoGraph: file, line and function are its source."),
    operation=Column(_TEXT, "Name of the instruction that ran, in frames of the program."),
    callee=Column(_TEXT, 'Name in the source of what it called or imported, such as "time.sleep", or null.'),
    callee_scope=Column(
        _TEXT, 'Kind of the first part of that name: "module", or a "global", "free" or "local" variable, or null.'
    ),
    callee_module=Column(_TEXT, "Name of that module, or of the one that defines the value or its type, or null."),
)

STACK_SAMPLES = frame(
    "STACK_SAMPLES",
    "One row per look at the stack of the thread that trains, as recorded, or per call that launched a step.",
    host=_HOST,
    start_ps=_START,
    thread=Column(_INT, "Number of the thread."),
    account=Column(_TEXT, "Account that the host clock was in, or null."),
    computes=Column(pl.Boolean(), "Whether work was in flight on a device."),
    event=Column(_TEXT, 'What launched a step in that stack: "call", "gradient", "update" or "mark", null for a look.'),
    stands_for=Column(_INT, "Number of samples that the look stands for, 0 for an event."),
    late=Column(pl.Boolean(), "Whether other code held the interpreter lock before it."),
    **_STACK_REFERENCE,
    worked=Column(_FLOAT, "Share of the time since the look before in which the thread had or awaited a processor."),
)

STACK_STALLS = frame(
    "STACK_STALLS",
    "One row per (stall, stack), as recorded.",
    host=_HOST,
    start_ps=_START,
    dur_ps=Column(_INT, "Duration of the stall in picoseconds."),
    step=Column(_INT, "Number of the running step, null between steps."),
    kind=_STALL_KIND,
    share=Column(_FLOAT, "Share of the samples of the stall with that stack, 0 to 1."),
    samples=Column(_INT, "Number of samples with that stack."),
    locked=Column(pl.Boolean(), "Whether a sample was late because other code held the interpreter lock."),
    **_STACK_REFERENCE,
)

RUN_EVENT_KINDS: dict[str, str] = {
    "fetch": "A batch was fetched, or the end of the data found.",
    "call": "A compiled function was called, or a model for the first time.",
    "done": "Work of a device was seen to be finished, at the latest then.",
    "update": "An optimizer updated the parameters.",
    "gradient": "Gradients were taken, or a function that takes some was traced.",
    "mode": "A model was set to train or to evaluate.",
    "mark": "The program or a trainer marked a step, or a method that trains.",
    "save": "A checkpoint was saved.",
    "restore": "A checkpoint was restored.",
    "evaluate": "A method evaluated the model.",
    "predict": "A method predicted with the model.",
    "trace": "A function was traced or lowered.",
    "compile": "A function was compiled.",
    "callback": "A callback of a trainer ran.",
    "collect": "Python collected garbage.",
    "import": "A module was imported.",
    "wait": "The program waited for an array, or for other ranks.",
    "move": "Arrays were moved between host and devices.",
    "window": "The profiler recorded a window.",
    "reduce": "The profiler reduced a window.",
    "try": "The tuner tried parameters.",
}
"""What happened, by the name of its kind: a closed list. No module records "import" and "move" so far."""

_ID_OF = "Number of the {} in {}, or null."

RUN_EVENTS = frame(
    "RUN_EVENTS",
    "One row per event of a run: what a library was asked to do, in whole microseconds.",
    host=_HOST,
    thread=Column(_INT, "Thread, as ``threading.get_ident`` numbers it."),
    start_ps=_START,
    end_ps=Column(_INT, "End in picoseconds since the origin of the profile, the start for a moment."),
    event=Column(pl.Enum([*RUN_EVENT_KINDS]), 'Kind of the event, such as "fetch".'),
    what=Column(_INT, _ID_OF.format("function that was called", "`RUN_NAMES`")),
    place=Column(_INT, _ID_OF.format("innermost frame of the program", "`RUN_PLACES`")),
    key=Column(_INT, _ID_OF.format("stream, function, optimizer, model or kind", "`RUN_KEYS`")),
    arrays=Column(
        _INT, _ID_OF.format("signature of a batch, or of a function in its first calls,", "`RUN_SIGNATURES`")
    ),
    end_of=Column(_TEXT, "What a fetch or mark ended with, how a compilation differs, or how work was seen done."),
    number=Column(
        _INT, "Number of the step that the program gives, of a batch the elements that its mask keeps, or null."
    ),
    count=Column(_INT, "Number of events of the row: more than one, where there were over 1,000 in a second."),
    busy_ps=Column(_INT, "Sum of their durations in picoseconds, null for one event."),
)

_NUMBER = Column(_INT, "Number, unique on the host.")

RUN_NAMES = frame(
    "RUN_NAMES",
    "One row per function that was called in events.",
    host=_HOST,
    id=_NUMBER,
    library=Column(_TEXT, 'Library, such as "torch", or null.'),
    module=Column(_TEXT, 'Module that defines it, such as "torch.optim.sgd", or null.'),
    name=Column(_TEXT, 'Qualified name, such as "SGD.step".'),
)

RUN_PLACES = frame(
    "RUN_PLACES",
    "One row per line of the program that events came from.",
    host=_HOST,
    id=_NUMBER,
    file=Column(_TEXT, "Path of the file."),
    line=Column(_INT, "Number of the line."),
    function=Column(_TEXT, "Qualified name of the function."),
)

RUN_KEYS = frame(
    "RUN_KEYS",
    "One row per stream, function, optimizer, model or kind of steps in events.",
    host=_HOST,
    id=_NUMBER,
    name=Column(_TEXT, "Name, null for what has none."),
)

RUN_SIGNATURES = frame(
    "RUN_SIGNATURES",
    "One row per signature of functions and batches in events: types and shapes of arrays, each with its number.",
    host=_HOST,
    id=_NUMBER,
    takes=Column(_TEXT, 'What it takes, such as "2 float32[64,64], int32[]", "" of a batch.'),
    returns=Column(_TEXT, 'What it returns, of a batch with names: "ids:int64[8,128], mask:bool[8,128]".'),
    repeats=Column(_TEXT, 'Whether it took arrays that its last call had "taken" or "returned", or null.'),
)

LOAD = frame(
    "LOAD",
    "One row per second of a run.",
    host=_HOST,
    start_ps=_START,
    cpu=Column(_FLOAT, "Share of all processors of the machine that the processes of the job use, 0 to 1."),
    machine_cpu=Column(_FLOAT, "Share of all processors of the machine in use, 0 to 1."),
    rss_bytes=Column(_INT, "Resident memory of the process in bytes."),
)

RUNS = frame(
    "RUNS",
    "One row per run of a folder, in order of their starts.",
    started=Column(pl.Datetime("us", "UTC"), "Time at which the capture began."),
    name=Column(_TEXT, "Path of the run within the folder, its own name if the folder is the run."),
    program=Column(_TEXT, 'Model that was trained, such as "Sequential of 2 Dense", or null.'),
    device=Column(_TEXT, 'Kind of the devices, such as "TPU v4" or "CPU", or null.'),
    wall_ps=Column(_INT, "Wall time of the captured block in picoseconds."),
    goodput=Column(_FLOAT, "Productive time as a share of wall time, mean over hosts, 0 to 1."),
    step_ps=Column(_INT, "Median duration of the steps in picoseconds."),
    steps=Column(_INT, "Number of steps, null if they were not counted."),
    phases=Column(_INT, "Number of phases, by the default method."),
    samples_per_s=Column(_FLOAT, "Samples per second of step time in training, of all hosts, or null."),
    tokens_per_s=Column(_FLOAT, "Tokens per second of step time in training, of all hosts, or null."),
    mfu=Column(_FLOAT, "Model FLOPs utilisation in training, 0 to 1, or null."),
    state=Column(_TEXT, 'How it ended, "running", "cut", or since when it stands still, null of other profiles.'),
)

RATES = frame(
    "RATES",
    "One row per phase of a run, and first one of its training steps without outliers.",
    phase=Column(_INT, "Label of the phase, null for the training."),
    name=Column(_TEXT, "Name of the phase."),
    steps=Column(_INT, "Number of steps, of all hosts."),
    step_ps=Column(_INT, "Mean step time in picoseconds."),
    samples=Column(_INT, "Samples in the batches of the steps, or null if those of a step are unknown."),
    tokens=Column(_INT, "Tokens in them, or null."),
    samples_per_s=Column(_FLOAT, "Samples per second of step time, of all hosts."),
    tokens_per_s=Column(_FLOAT, "Tokens per second of step time, of all hosts."),
    model_flops=Column(
        _FLOAT, "Floating-point operations of the products of a step on a device, without recomputed ones."
    ),
    flops=Column(_FLOAT, "Floating-point operations of these and of recomputed ones."),
    flops_per_s=Column(_FLOAT, "Floating-point operations of the model per second of step time."),
    mfu=Column(_FLOAT, "Model FLOPs utilisation: `flops_per_s` as a share of the peak of its types, 0 to 1."),
    hfu=Column(_FLOAT, "Hardware FLOPs utilisation: the same with recomputed ones."),
)

ATTEMPTS = frame(
    "ATTEMPTS",
    "One row per attempt of a job, in order of their starts.",
    attempt=Column(_INT, "Number of the attempt, from 0."),
    name=Column(_TEXT, "Name of its run."),
    started=Column(pl.Datetime("us", "UTC"), "Time at which its record begins."),
    wall_ps=Column(_INT, "Time from its start to the end of its record in picoseconds."),
    downtime_ps=Column(_INT, "Time from the end of the attempt before in picoseconds, null for the first."),
    startup_ps=Column(_INT, "Time from its start to the end of its first training step in picoseconds, or null."),
    hosts=Column(_INT, "Number of hosts."),
    steps=Column(_INT, "Number of training steps that ended."),
    first_step=Column(_INT, "Number of its first training step in the job, or null if unknown."),
    lost_steps=Column(_INT, "Number of these steps that a later attempt trained again, or null if unknown."),
    lost_ps=Column(_INT, "Time in lost progress in picoseconds, mean over its hosts, or null if unknown."),
)

CATEGORIES = frame(
    "CATEGORIES",
    "One row per category of ml-goodput-measurement, which but for those within another add up to the wall time.",
    category=Column(_TEXT, "Name of the category in that library, in capitals."),
    detail=Column(_TEXT, "Type of a custom event, else null."),
    time_ps=Column(_INT, "Time in picoseconds, mean over hosts."),
    share=Column(_FLOAT, "Share of the wall time that is not excluded, 0 to 1."),
    within=Column(_TEXT, "Category that contains it, or null."),
)

GOODPUT = frame(
    "GOODPUT",
    "One row per (host, account, phase, detail), which add up to the wall time of the host.",
    host=_HOST,
    account=Column(pl.Enum([*ACCOUNTS]), "Account, see tpunb.schema.ACCOUNTS."),
    phase=Column(_INT, "Number of the phase, null outside of phases."),
    detail=Column(_TEXT, "Callback and hook, place in the program, or reason, or null."),
    time_ps=Column(_INT, "Time in picoseconds, null if the run has no record of it."),
    share=Column(_FLOAT, "Share of the wall time of the host, 0 to 1."),
    count=Column(_INT, "Number of steps, calls or stretches."),
    median_ps=Column(_INT, "Median time of one of them in picoseconds."),
    source=Column(
        pl.Enum(["clock", "windows", "estimated"]),
        'How the time is known: by the host "clock", from traced "windows", or "estimated" from other steps.',
    ),
    low_ps=Column(_INT, "Lower end of the 95 % interval of an estimated time in picoseconds, or null."),
    high_ps=Column(_INT, "Upper end of the 95 % interval of an estimated time in picoseconds, or null."),
)

GOODPUT_PLACES = frame(
    "GOODPUT_PLACES",
    "One row per (account, place) of all hosts: where the thread that trains was, about fifty times a second.",
    account=Column(pl.Enum([*ACCOUNTS]), "Account, see tpunb.schema.ACCOUNTS."),
    place=_PLACE,
    samples=Column(_INT, "Number of samples at that place."),
    share=Column(_FLOAT, "Share of the samples in the account, 0 to 1."),
    worked=Column(_FLOAT, "Mean share of the time in which the thread had or awaited a processor."),
)

GOODPUT_SEGMENTS = frame(
    "GOODPUT_SEGMENTS",
    "One row per stretch of the time of a host in one account, in order and without gaps.",
    host=_HOST,
    start_ps=_START,
    dur_ps=Column(_INT, "Duration in picoseconds."),
    account=Column(pl.Enum([*ACCOUNTS]), "Account, see tpunb.schema.ACCOUNTS."),
    detail=Column(_TEXT, "Callback and hook, place in the program, or reason, or null."),
    step=Column(_INT, "Number of the step, null outside of steps."),
)

GOODPUT_STALLS = frame(
    "GOODPUT_STALLS",
    "One row per (place, kind), most time first.",
    place=_PLACE,
    kind=_STALL_KIND,
    time_ps=Column(_INT, "Time of stalls at that place in picoseconds, by share of samples."),
    count=Column(_INT, "Number of stalls with that place."),
    median_ps=Column(_INT, "Median duration of these stalls in picoseconds."),
    locked=Column(pl.Boolean(), "Whether code that holds the interpreter lock was at that place."),
)

TOP = frame(
    "TOP",
    "One row per (phase, side, rank).",
    phase=_PHASE,
    side=_SIDE,
    rank=_RANK,
    op=_OP,
    count=_COUNT,
    total_ps=_TOTAL,
    self_ps=_SELF,
    share=Column(_FLOAT, "Share of the self time of the phase on that side, 0 to 1."),
    layer=Column(NAME, "Layer of the model in which the operation has the most self time, or null."),
    source=Column(NAME, 'Source line in which it has the most self time, such as "model.py:41", or null.'),
)

ADVICE = frame(
    "ADVICE",
    "One row per (phase, rule) that applies, largest saving first.",
    phase=Column(_INT, "Number of the phase, -1 for outliers, null for the run as a whole."),
    id=Column(_TEXT, "Id of the cause, its anchor in docs/causes.md."),
    rule=Column(_TEXT, "Name of the cause in tpunb.analysis.causes."),
    saves_ps=Column(_INT, "Upper bound of the time saved in picoseconds, or null."),
    saves=Column(
        _FLOAT, "Upper bound of the time saved as a share of total step time, of wall time for the whole run, 0 to 1."
    ),
    sentence=Column(_TEXT, "Observation, with its figures, of what it is, and how much it could save."),
    action=Column(_TEXT, "Action to try."),
    of=Column(_TEXT, "Phase or call that it is of, null for the run as a whole."),
    observed=Column(_TEXT, "Observation alone."),
    place=Column(
        _TEXT, "Lines of the program, or the work, that took most of it, as the observation names them, or null."
    ),
)

ROOFLINE = frame(
    "ROOFLINE",
    "One row per thing on devices at the level of a `Roofline`, most headroom first.",
    what=Column(_TEXT, 'Name of the run, phase, layer, ..., or number of the step, or "unattributed".'),
    program=_PROGRAM,
    part=PART,
    count=Column(_INT, "Number of runs of instructions, of events for what is no instruction."),
    self_ps=_SELF,
    flops=Column(_FLOAT, "Floating-point operations of all calls, or null."),
    bytes=Column(_FLOAT, "Bytes read and written by all calls, or null."),
    flops_time_share=Column(
        _FLOAT, "Share of self time in instructions of known FLOPs and bytes, asynchronous ones left out, 0 to 1."
    ),
    rate=Column(_FLOAT, "Achieved FLOP/s in the time of instructions whose FLOPs and bytes are known."),
    intensity=Column(_FLOAT, "Floating-point operations per byte of these instructions."),
    bound=Column(
        _TEXT, 'Peak that limits these instructions at the roof for most time: "compute" or "memory", or null.'
    ),
    dtype=Column(_TEXT, 'Data type whose peak is the roof of most FLOPs, such as "bf16", or null.'),
    attainable=Column(_FLOAT, "FLOP/s of these instructions if each ran at the roof."),
    efficiency=Column(_FLOAT, "Time at the roof as a share of the self time of these instructions, 0 to 1."),
    headroom_ps=Column(_INT, "Self time that these instructions would save at the roof, in picoseconds."),
    flops_source=Column(
        _TEXT, 'Where the FLOPs come from: "profiler", "program", "graph", "shapes", "given", "several", or null.'
    ),
    above=Column(_TEXT, "Why the instruction that exceeds the roof most may do so, null if none does."),
)

REPRESENTATIVES = frame(
    "REPRESENTATIVES",
    "One row per representative step, longest phase first.",
    host=_HOST,
    step=_STEP,
    phase=_PHASE,
    weight=Column(_FLOAT, "Number of steps that this step represents."),
    kind=_KIND,
    start_ps=_START,
    dur_ps=Column(_INT, "Step time in picoseconds."),
    device_ps=Column(_INT, "Busy time of devices in picoseconds."),
    idle_ps=Column(_INT, "Idle time of devices in picoseconds."),
    mxu_util=Column(_FLOAT, "Utilisation of the matrix unit, 0 to 1."),
    input_ps=Column(_INT, "Time in which the host waits for input, in picoseconds."),
    distance=Column(_FLOAT, "Distance to the centroid of the phase in feature space, null for outliers."),
)

REPRESENTED = frame(
    "REPRESENTED",
    "One row per (side, op), most self time first.",
    side=_SIDE,
    op=_OP,
    self_ps=Column(_INT, "Self time in the whole run estimated from representative steps, in picoseconds."),
    low_ps=Column(_INT, "Lower end of the 95 % interval of the estimate in picoseconds, or null."),
    high_ps=Column(_INT, "Upper end of the 95 % interval of the estimate in picoseconds, or null."),
    true_ps=Column(_INT, "Self time according to all steps traced in full, in picoseconds."),
    share=Column(_FLOAT, "Share of the estimated self time on that side, 0 to 1."),
)

LABEL_AGREEMENT = frame(
    "LABEL_AGREEMENT",
    "One row per pair of methods.",
    a=Column(_TEXT, "First method."),
    b=Column(_TEXT, "Second method."),
    ari=Column(_FLOAT, "Adjusted Rand index, with outliers as one cluster."),
    ami=Column(_FLOAT, "Adjusted mutual information, with outliers as one cluster."),
    ari_inside=Column(_FLOAT, "Adjusted Rand index of the steps that are outliers for neither method, or null."),
)

DISTINGUISHING_OPS = frame(
    "DISTINGUISHING_OPS",
    "One row per (phase, rank).",
    phase=_PHASE,
    rank=_RANK,
    block=Column(_TEXT, "Block of the feature space in which the operation differs, see tpunb.cluster.features."),
    side=Column(_TEXT, 'Where the operation runs: "host" or "device".'),
    op=Column(_TEXT, 'Canonical name of the operation, or "step time".'),
    share=Column(_FLOAT, "Share of the squared distance from the phase to all other steps, 0 to 1."),
    inside_ps=Column(_INT, "Mean self time per step of the phase in picoseconds."),
    outside_ps=Column(_INT, "Mean self time per step of all other phases in picoseconds."),
    inside_ran=Column(
        _FLOAT, "Share of the steps of the phase that contain the operation, 0 to 1, null if it may have been skipped."
    ),
    outside_ran=Column(
        _FLOAT, "Share of all other steps that contain the operation, 0 to 1, null if it may have been skipped."
    ),
)

COMPARED = frame(
    "COMPARED",
    "One row per pair of matched phases of runs a and b, longest first.",
    **_in_both("phase_{}", _INT, "Number of the phase in run {}, -1 for outliers."),
    similarity=Column(_FLOAT, "Similarity of the phases, 0 to 1."),
    by=Column(pl.Enum(["operations", "kinds"]), 'What the phases were matched by: "operations" or "kinds".'),
    kinds=Column(_TEXT, 'Kinds of the steps, most frequent first, "in a / in b" where they differ.'),
    **_in_both("steps_{}", _INT, "Number of steps in run {}."),
    **_in_both("dur_{}_ps", _INT, "Time of the phase in run {}, mean over hosts, in picoseconds."),
    **_in_both("step_{}_ps", _INT, "Geometric mean of step time in run {}, in picoseconds."),
    ratio=Column(_FLOAT, "Step time in run b divided by step time in run a."),
    ratio_low=Column(_FLOAT, "Lower end of the 95 % interval of the ratio."),
    ratio_high=Column(_FLOAT, "Upper end of the 95 % interval of the ratio."),
    **_in_both("idle_{}", _FLOAT, "Share of step time in which devices are idle in run {}, 0 to 1."),
    idle_change=Column(_FLOAT, "Idle share in run b less idle share in run a."),
    idle_low=Column(_FLOAT, "Lower end of the 95 % interval of the change in idle share."),
    idle_high=Column(_FLOAT, "Upper end of the 95 % interval of the change in idle share."),
    **_in_both("mxu_{}", _FLOAT, "Utilisation of the matrix unit in run {}, 0 to 1."),
    **_in_both("duty_{}", _FLOAT, "Duty cycle in run {}, 0 to 1."),
    **_in_both("input_{}", _FLOAT, "Share of step time in which hosts wait for input in run {}, 0 to 1."),
)

COMPARED_OPS = frame(
    "COMPARED_OPS",
    "One row per operation of a pair of matched phases, largest change first.",
    **_in_both("phase_{}", _INT, "Number of the phase in run {}, -1 for outliers."),
    side=_SIDE,
    op=_OP,
    state=Column(
        pl.Enum(["gained", "lost", "both", "unrecorded"]),
        'Whether the operation is only in b ("gained"), a ("lost"), in "both", or perhaps skipped ("unrecorded").',
    ),
    **_in_both("self_{}_ps", _INT, "Self time per step traced in full in run {}, in picoseconds, null if unrecorded."),
    change_ps=Column(_INT, "Self time in run b less self time in run a, in picoseconds."),
    low_ps=Column(_INT, "Lower end of the 95 % interval of the change, in picoseconds."),
    high_ps=Column(_INT, "Upper end of the 95 % interval of the change, in picoseconds."),
)

EXPLAINED = frame(
    "EXPLAINED",
    "One row per phase of either run, and one for outliers.",
    **_in_both("phase_{}", _INT, "Number of the phase in run {}, -1 for outliers, null without a counterpart."),
    kinds=_KINDS,
    **_in_both("steps_{}", _INT, "Number of steps in run {}."),
    **_in_both(
        "dur_{}_ps", _INT, "Time of the phase in run {}, mean over hosts, in picoseconds, 0 without a counterpart."
    ),
    change_ps=Column(_INT, "Time in run b less time in run a, in picoseconds."),
    by_steps_ps=Column(_INT, "Part of the change caused by the number of steps, in picoseconds, or null."),
    by_step_time_ps=Column(_INT, "Part of the change caused by step time, in picoseconds, or null."),
    share=Column(_FLOAT, "Share of the difference between the runs, null where they do not differ."),
)

COMPARED_ACCOUNTS = frame(
    "COMPARED_ACCOUNTS",
    "One row per account of either run, the largest change first.",
    account=Column(_TEXT, "Account, see tpunb.schema.ACCOUNTS."),
    **_in_both("time_{}_ps", _INT, "Time in run {}, mean over hosts, in picoseconds, null without a record of it."),
    change_ps=Column(_INT, "Time in run b less time in run a, in picoseconds."),
    share=Column(_FLOAT, "Share of the difference in wall time, null where the runs do not differ."),
)

COMPARED_RATES = frame(
    "COMPARED_RATES",
    "One row per rate of two runs in training, see RATES.",
    rate=Column(_TEXT, 'Column of RATES, such as "tokens_per_s".'),
    a=Column(_FLOAT, "Its value in run a, or null."),
    b=Column(_FLOAT, "Its value in run b, or null."),
    ratio=Column(_FLOAT, "Value in run b by that in run a, null where one is unknown."),
)

SETTINGS = frame(
    "SETTINGS",
    "One row per fact recorded about either run.",
    fact=Column(_TEXT, 'Name of the fact, such as "optimizer" or "dtype".'),
    a=Column(_TEXT, "Its value in run a, or null."),
    b=Column(_TEXT, "Its value in run b, or null."),
)

_OPTIONAL = {  # columns that a frame may leave out because few captures contain them; they become null
    *("category", "device_dur_ps", "flops", "bytes", "hbm_bytes", "flow_out", "flow_in", "correlation_id", "reason"),
    *("program", "kernel", "part", "shape", "dtype", "source", "confidence", "queue_length"),
    *("call", "recomputed", "chunk", "latency_ps", "error", "launches", "model"),
    *(set(STEPS) - {"host", "step", "kind", "start_ps", "dur_ps", "device_ps", "idle_ps", "traced"}),
}


def check(frame: pl.DataFrame, schema: Schema, name: str) -> pl.DataFrame:
    """Return `frame` with the columns of `schema`, in its order and types; optional columns may be absent.

    Raises BadProfile if a column is missing, or its values do not fit the type.
    """
    if frame.schema == schema:
        return frame
    absent = [column for column in schema if column not in frame.columns]
    if missing := [column for column in absent if column not in _OPTIONAL]:
        declared = FRAMES.get(name.upper())
        hint = f"its columns are listed in {declared.home}.{name.upper()}" if declared else None
        raise BadProfile(f"the {name} frame lacks {missing}; it has {frame.columns}", hint=hint)
    try:
        columns = {name: pl.lit(None) if name in absent else pl.col(name) for name in schema}
        return frame.select(columns[name].cast(dtype).alias(name) for name, dtype in schema.items())
    except pl.exceptions.PolarsError as error:
        raise BadProfile(f"the {name} frame has a column of the wrong type: {format_error(error)}") from error


def compact(frame: pl.DataFrame) -> pl.DataFrame:
    """Return a frame whose columns of nulls are one value each, which takes no memory: a long run has many."""
    empty = {column.name: column.dtype for column in frame if column.null_count() == len(column)}
    if len(empty) == frame.width:
        return frame
    return frame.with_columns(pl.lit(None, dtype).alias(name) for name, dtype in empty.items())
