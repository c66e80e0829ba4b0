"""Metrics of phases: what their steps spend time on, by operations and by waits."""

from __future__ import annotations

import re
from contextlib import suppress

import numpy as np
import polars as pl

from tpunb.analysis.causes import HANDOVER_PS, LISTED_SHARE
from tpunb.analysis.goodput import computing, crowding
from tpunb.errors import TpunbError
from tpunb.frames import Phases, Steps
from tpunb.frames.cache import memoised
from tpunb.frames.op_matrix import distinct_ops, of_ops, op_matrix, self_times
from tpunb.step_stats.launches import sync_place

_OPS = {
    "formatting": r"device (data formatting|device copy|copy|transpose|reshape):"
    # of its fusions, XLA's CPU client names the last operations alone: others of them may compute
    r"|device [^:]*: (?i:(((loop|input|wrapped|fused)_)+((copy|transpose|reshape|bitcast)_?)+(fusion)?"
    r"|((copy|transpose|reshape|bitcast)_?)+))\Z",
    "copies": r"device (copy-done:|[^:]*: copy-done\Z)",
    "callbacks": r"\w+ [^:]*: .*(debug_print|(debug|pure|io|host)_callback|python_\w*callback|XlaHostCompute)",
    "python": r"\w+ [^:]*: .*PyFunc",
    "checkpoint": r"host [^:]*: (SaveV2|MergeV2Checkpoints)\Z",
    "summary": r"host [^:]*: (Write\w*Summary|FlushSummaryWriter|(Merge|Scalar|Histogram|Image|Tensor)Summary(V2)?)\Z",
    "overhead": r"host profiler: ",
    "transfers": r"host transfer: (?!.*Outfeed)",  # dequeuing an outfeed, the host waits for the device
    "iterators": r"host [^:]*: Iterator::(?!.*(Parallel|MapAndBatch))",
    "parallel": r"host [^:]*: (Iterator::.*(Parallel|MapAndBatch)|Parallel\w+Produce)",
    "reads": r"host [^:]*: (aten::(item|_local_scalar_dense)|(cuda|hip)(Stream|Device|Event)Synchronize)\Z",
}
"""Patterns of ``side category: op``, by the metric that the operations count for."""

_RARE = {"checkpoint": r"(?i)check.?point|\bsav(e|ing)\b", "summary": r"(?i)\bsummar(y|ies)\b"}
"""Work of some steps only, and patterns of the kinds of such steps."""

_TIMES = ["device", "idle", "infeed", "outfeed", "transfer", "collective", "input", "compile"]
_SHARES = [
    *("input", "idle", "any_idle", "busy", "infeed", "outfeed", "transfer", "collective", "formatting", "copies"),
    *("late", "reads", "recompile", "callbacks", "checkpoint", "summary", "mxu", "hbm", "flops_counted"),
]

_MEANS = (pl.col("of_devices", "launched").cast(pl.Float64).mean(),)
_LAUNCH_US = 10.0  # the host may take as long to launch a kernel; ours
_LONGEST = 300  # characters of a name that are matched


def phase_metrics(phases: Phases) -> pl.DataFrame:
    """Return metrics of each phase, longest first; null if unknown.

    Shares of the step time of its steps traced in full, 0 to 1: ``input`` (infeed wait of the device, and its idle time
    while the host waits for input longer than that), ``any_idle``, ``idle`` (without the causes here, null for a whole
    capture), ``late`` (idle before late launches), ``busy``, ``infeed``, ``outfeed``, ``transfer`` and ``collective``
    (what no computation hides, if that is known), ``formatting`` (reshapes, transposes and copies on the device),
    ``copies`` (waits for copies to end), ``waits`` (sum of the waits), ``reads`` (idle after the host waited for the
    device), ``recompile`` (in all but the first step of a kind), ``callbacks``, ``checkpoint``, ``summary``, and
    ``stall`` (waits beyond those of a longer phase of the same operations). Host work counts as far as the device idles
    meanwhile; in full if nothing is known of a device.

    Other columns: ``name``; ``kinds``, ``share`` (of all step time), ``dur_ps``, ``steps`` and ``full`` as in
    ``tpunb.schema.PHASES``; ``mxu`` (utilisation of the MXU, else of the device's peak FLOP/s) and ``hbm``, 0 to 1;
    ``flops_counted``, the share of busy time whose FLOPs are known where ``mxu`` is of peak FLOP/s; ``crowding``, the
    share of the processors that other programs used while none was free, ``computing``, that which the job used;
    ``working`` (without input) and ``handing`` (a batch over, if a worker did), shares of step time; ``step_ps``, the
    mean step time, and ``typical_ps``, that times the number of steps; ``compiled_ps``, compile time of the first steps
    of kinds, and ``compile``, its share of the phase's time; ``formatting_op`` and the like, the operation with most of
    that share; ``twin``, ``twin_ps``, ``stall_ps``, ``stalled_side`` and ``stalled``: the phase that a stall is
    measured against, and the kind of wait.

    >>> from tpunb.cluster import phases
    >>> from tpunb.testing import toy_steps
    >>> phase_metrics(phases(toy_steps("aaab"))).select("phase", "busy", "idle", "input").row(0)
    (0, 0.5, 0.5, None)
    """
    shares, ops, firsts = (
        frame.with_columns(phases.labels.cast(pl.Int64).gather(frame["row"]).alias("phase"))
        for frame in _step_metrics(phases.steps)
    )
    dur = pl.col("dur_ps")

    def share(name: str) -> pl.Expr:
        valid = pl.col(name).is_not_null()
        return pl.when(valid.any()).then(pl.col(name).sum() / dur.filter(valid).sum()).alias(name)

    frequency = ((pl.col(work) > 0).mean().alias(f"{work}_frequency") for work in _RARE)
    means = shares.group_by("phase").agg(*(share(name) for name in _SHARES), *frequency, *_MEANS, step_ps=dur.mean())
    compiled = firsts.group_by("phase").agg(pl.col("compiled_ps").sum().cast(pl.Float64))
    rows = phases.aggregates.select("phase", "name", "steps", "full", "kinds", "dur_ps", share=dur / dur.sum().clip(1))
    rows = rows.join(means, on="phase", how="left", maintain_order="left").with_columns(
        waits=pl.sum_horizontal("infeed", "outfeed", "transfer", "collective", "copies"),
        typical_ps=pl.min_horizontal(pl.col("step_ps") * pl.col("steps"), pl.col("dur_ps").cast(pl.Float64)),
    )
    rows = rows.join(compiled, on="phase", how="left", maintain_order="left")
    rows = rows.with_columns(compile=pl.col("compiled_ps") / pl.col("dur_ps"))
    rows = _with_stalls(_with_rare_work(rows), _signatures(phases))
    rows = rows.join(_top_ops(ops), on="phase", how="left", maintain_order="left")
    each_us = pl.col("of_devices") / pl.col("launched") / 1e6
    short = pl.format(
        "since {} kernels of {} us are launched late", pl.col("launched").cast(pl.Int64), each_us.round(1)
    )
    is_short = phases.steps.devices["device"].cast(pl.String).str.contains("GPU").any() & (each_us < _LAUNCH_US)
    late = pl.when(is_short).then(short).otherwise(pl.lit("since the host launches its work late"))
    late = pl.when(pl.col("late") > pl.col("idle") / 2).then(late)
    rows = rows.with_columns(idle_cause=late.otherwise(pl.lit("without a known cause")))
    rows = rows.with_columns(crowding=pl.lit(0.0 if phases.steps.wall is None else crowding(phases.steps.wall.load)))
    rows = rows.with_columns(
        computing=pl.lit(computing(phases.steps), pl.Float64),
        working=1 - pl.col("input"),
        handing=HANDOVER_PS / pl.col("step_ps"),
    )
    place = _sync_place(phases.steps) if (rows["reads"] > LISTED_SHARE).any() else None
    return rows.with_columns(pl.col("reads_op").fill_null("a synchronous call") + (f" at {place}" if place else ""))


@memoised
def _sync_place(steps: Steps) -> str | None:
    with suppress(TpunbError):  # advice needs no raw windows, which may be damaged
        return None if steps.read_events is None else sync_place(steps.read_events())
    return None


@memoised
def _step_metrics(steps: Steps) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """Return the shares of full steps, their matched operations, and the compile time of first steps, by ``row``."""
    first = pl.int_range(pl.len()).over("host", "kind") == 0
    frame = steps.frame.with_row_index("row").with_columns(first=first)
    compiled = pl.min_horizontal("compile_ps", "dur_ps").clip(0)
    firsts = frame.filter("first").drop_nulls("compile_ps").select("row", compiled_ps=compiled)
    ops = _matched_ops(steps.full())
    full = _full_steps(steps, frame, ops)
    ops = ops.join(full.select("host", "step", "row"), on=["host", "step"])
    in_step = steps.metadata.get("python") == "step"
    return _shares(full, python_in_step=in_step), ops.select("row", "metric", "op", "self_ps"), firsts


def _matched_ops(steps: Steps) -> pl.DataFrame:
    """Return (host, step, metric, op, self_ps) of the operations that match a pattern."""
    named = distinct_ops(steps)
    columns = (pl.col(name).cast(pl.String).fill_null("") for name in named.columns)
    texts = named.select(pl.format("{} {}: {}", *columns)).to_series()
    metrics = [
        next((metric for metric, pattern in _OPS.items() if re.match(pattern, text[:_LONGEST])), None) for text in texts
    ]
    matched = named.with_columns(metric=pl.Series(metrics, dtype=pl.String)).drop_nulls("metric")
    rows = of_ops(steps, matched, ["host", "step", "total_ps", "self_ps"])
    rows = rows.join(matched, on=["side", "category", "op"], nulls_equal=True)
    time = pl.when(pl.col("metric") == "reads").then("total_ps").otherwise("self_ps")  # its caller rather than the wait
    return rows.select("host", "step", "metric", "op", time.clip(0).alias("self_ps"))


def _full_steps(steps: Steps, frame: pl.DataFrame, ops: pl.DataFrame) -> pl.DataFrame:
    """Return the full steps of `frame` longer than 0, with the self time of devices and of matched operations."""
    matrix = op_matrix(steps.full())
    on_device = matrix.sides.astype(np.float32)
    of_devices, launched = self_times(steps.full())[0] @ on_device, matrix.values("count") @ on_device
    times = ops.group_by("host", "step").agg(
        pl.col("self_ps").filter(pl.col("metric") == metric).sum().alias(metric) for metric in _OPS
    )
    columns = (pl.Series(name, values) for name, values in (("of_devices", of_devices), ("launched", launched)))
    full = frame.filter(pl.col("traced") == "full").with_columns(*columns)
    full = full.join(times, on=["host", "step"], how="left", maintain_order="left")
    return full.filter(pl.col("dur_ps") > 0).with_columns(
        pl.col([*_OPS]).cast(pl.Float64).fill_null(0), pl.col("dur_ps").cast(pl.Float64)
    )


def _shares(steps: pl.DataFrame, *, python_in_step: bool = False) -> pl.DataFrame:
    """Return the time of each step by what it is spent on, in picoseconds."""
    dur = pl.col("dur_ps")
    time = {name: pl.col(f"{name}_ps").cast(pl.Float64).clip(0, dur) for name in _TIMES}
    host = {metric: pl.min_horizontal(metric, dur) for metric in _OPS}
    idle = time["idle"]
    for name in ("transfer", "collective"):
        time[name] = pl.coalesce(pl.col(f"exposed_{name}_ps").cast(pl.Float64).clip(0, dur), time[name])

    def within(wait: pl.Expr, limit: pl.Expr = idle) -> pl.Expr:
        return pl.when(wait.is_not_null()).then(pl.min_horizontal(wait, limit))  # a null limit does not bound

    def total(a: pl.Expr, b: pl.Expr) -> pl.Expr:
        return pl.when(a.is_not_null() | b.is_not_null()).then(pl.min_horizontal(pl.sum_horizontal(a, b), dur))

    def of_device(metric: str) -> pl.Expr:
        return pl.when(pl.col("of_devices") > 0).then(pl.col(metric) / pl.col("of_devices") * time["device"])

    def used(*names: str) -> pl.Expr:
        return pl.coalesce(pl.col(f"{name}_util").fill_nan(None) for name in names) * dur

    # Python functions of the input pipeline run while its iterators wait for them; if it is parallel, in other threads
    of_step = pl.when(pl.col("parallel").sum() == 0).then((host["python"] - host["iterators"]).clip(0)).otherwise(0.0)
    python = host["python"] if python_in_step else of_step
    callbacks = host["callbacks"] + python
    waits = (
        time["input"],
        time["compile"],
        *(host[metric] for metric in ("checkpoint", "summary", "overhead", "transfers")),
    )
    explained = pl.sum_horizontal(*(within(wait) for wait in waits), callbacks)
    rest = (idle - pl.sum_horizontal(*(within(wait) for wait in waits[:-1]))).clip(0)
    unexplained = (idle - explained).clip(0)
    reads = within(pl.col("sync_wait_ps").cast(pl.Float64), unexplained)
    return steps.select(
        *("row", "dur_ps", "of_devices", "launched"),
        *(time[name].alias(name) for name in ("infeed", "outfeed", "collective")),
        busy=time["device"],
        any_idle=idle,
        late=within(pl.col("host_wait_ps").cast(pl.Float64), unexplained),
        idle=pl.when(pl.col("rule").ne_missing("whole")).then(unexplained - reads.fill_null(0)),
        reads=reads,
        # the host waits for the same data while a device waits in an infeed
        input=total(time["infeed"], within((time["input"] - time["infeed"].fill_null(0)).clip(0))),
        transfer=total(time["transfer"], within(host["transfers"], rest)),
        formatting=of_device("formatting"),
        copies=of_device("copies"),
        recompile=within(pl.when("first").then(time["compile"] * 0).otherwise(time["compile"])),
        callbacks=within(callbacks, idle + time["transfer"].fill_null(0)),  # a wait may be a transfer
        checkpoint=within(host["checkpoint"]),
        summary=within(host["summary"]),
        mxu=used("mxu", "flops"),
        flops_counted=pl.when(pl.col("mxu_util").fill_nan(None).is_null()).then(pl.col("flops_time_share")) * dur,
        hbm=used("hbm"),
    )


def _with_rare_work(rows: pl.DataFrame) -> pl.DataFrame:
    """Charge phases of rare work with all the time that they take longer than the others of their kind."""
    rows = rows.with_columns(main=pl.col("kinds").str.split(", ").list.first())
    phase = pl.col("phase") >= 0
    does = {work: ((pl.col(f"{work}_frequency") >= 0.5) & phase).fill_null(False) for work in _RARE}
    usual = rows.filter(phase, ~pl.any_horizontal(does.values()))
    usual = usual.unique("main", keep="first", maintain_order=True).select("main", usual_ps="step_ps")
    rows = rows.join(usual, on="main", how="left", nulls_equal=True, maintain_order="left")
    extra = 1 - pl.col("usual_ps") / pl.col("step_ps")
    return rows.with_columns(
        pl.when(pl.col("main").str.contains(pattern))
        .then(1.0)
        .when(does[work] & (extra > 0))
        .then(extra)
        .otherwise(work)
        .alias(work)
        for work, pattern in _RARE.items()
    )


def _signatures(phases: Phases) -> pl.DataFrame:
    """Return (phase, signature, stalled_side): the operations in at least half of its full steps, as a number."""
    # operations of devices if there are any; outliers have no signature, nor has a phase without such operations
    sides = op_matrix(phases.steps.full()).sides
    side = "device" if sides.any() else "host"
    size = phases.fitted.cast(pl.Int64).alias("phase").value_counts(name="size")
    usual = phases.totals.filter(pl.Series(sides[phases.totals["column"]] == sides.max(initial=0)))
    usual = usual.join(size, on="phase", maintain_order="left")
    usual = usual.filter(pl.col("phase") >= 0, pl.col("ran") * 2 >= pl.col("size"))
    rows = usual.group_by("phase", maintain_order=True).agg("column")
    numbers: dict[bytes, int] = {}
    signatures = [numbers.setdefault(ops.to_numpy().tobytes(), len(numbers)) for ops in rows["column"]]
    return rows.select(
        "phase", signature=pl.Series(signatures, dtype=pl.Int64), stalled_side=pl.lit(side, dtype=pl.String)
    )


def _with_stalls(rows: pl.DataFrame, signatures: pl.DataFrame) -> pl.DataFrame:
    """Return `rows` with the columns of stalls: the twin is the longest phase of the same operations."""
    valid = pl.col("input").is_not_null() | pl.col("idle").is_not_null()
    waits = pl.when(valid).then(pl.sum_horizontal("input", "idle"))
    rows = rows.join(signatures, on="phase", how="left", maintain_order="left").with_columns(
        wait_ps=waits * pl.col("step_ps"), input_ps=pl.col("input").fill_null(0) * pl.col("step_ps")
    )
    twins = rows.drop_nulls("signature").unique("signature", keep="first", maintain_order=True)
    twins = twins.select(
        "signature", *(pl.col(name).name.suffix("_twin") for name in ("step_ps", "wait_ps", "input_ps")), twin="name"
    )
    rows = rows.join(twins, on="signature", how="left", maintain_order="left")
    longer = pl.col("step_ps") - pl.col("step_ps_twin")
    waited = pl.col("wait_ps") - pl.col("wait_ps_twin")
    stalled = (longer > 0) & (waited * 2 >= longer)
    rows = rows.with_columns(stall_ps=pl.when(stalled).then(pl.min_horizontal(waited, longer)))
    input_ps = pl.col("input_ps") - pl.col("input_ps_twin")
    return rows.with_columns(
        stall=pl.col("stall_ps") / pl.col("step_ps"),
        stalled=pl.when(input_ps * 2 >= pl.col("stall_ps"))
        .then(pl.lit("waiting for input"))
        .otherwise(pl.lit("idling")),
        twin_ps="step_ps_twin",
    )


def _top_ops(ops: pl.DataFrame) -> pl.DataFrame:
    """Return (phase, formatting_op, ...): of each metric the operation with the most self time."""
    ops = ops.with_columns(pl.col("metric").replace("python", "callbacks"))
    times = ops.group_by("phase", "metric", "op").agg(pl.col("self_ps").sum())
    times = times.with_columns(pl.col("op").cast(pl.String)).sort("self_ps", "op", descending=[True, False])
    return times.group_by("phase").agg(
        pl.col("op").filter(pl.col("metric") == metric).first().alias(f"{metric}_op") for metric in _OPS
    )
