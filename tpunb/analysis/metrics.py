"""Metrics of each phase that advice is based on."""

from __future__ import annotations

import math
import re
from contextlib import suppress

import numpy as np
import polars as pl

from tpunb.analysis.causes import HANDOVER_PS, LISTED_SHARE, NAMED_SHARE, WAITS
from tpunb.analysis.goodput import Goodput, crowding, goodput, others_used, totals
from tpunb.analysis.roofline import Roofline, device_of
from tpunb.analysis.run import Run, loaded, steps
from tpunb.analysis.time_line import EACH, FEWEST_SAMPLES, FIRST, OTHERS, VALIDATING, acts
from tpunb.errors import TpunbError
from tpunb.frames import Phases, Steps
from tpunb.frames.cache import memoised
from tpunb.frames.exclusive_time import covered
from tpunb.frames.hardware import Device
from tpunb.frames.hardware import device as device_named
from tpunb.frames.op_matrix import distinct_ops, op_matrix, self_times
from tpunb.frames.steps import WallClock
from tpunb.instrument.sink import NEW_FUNCTION, What
from tpunb.schema import ACCOUNTS, SPANS, UTILISATION, check
from tpunb.signals import DATA_END, NEW_ITERATOR, WORKERS_START
from tpunb.step_stats.batch_size import padding_of
from tpunb.step_stats.boundaries import is_primitive
from tpunb.step_stats.launches import sync_place
from tpunb.step_stats.sample_places import WORKS, line_of
from tpunb.step_stats.step_fold import LOOP_CALLS
from tpunb.text import plural

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
_FEWEST_LOADS, _STEADY, _GROWN = 3, 0.75, 0.2  # seconds of load; share of them in which memory grows; by how much
_FEWEST_SLOWING, _RISES = 20, 0.7  # steps; rank correlation of their processor time with their number
_IMPORTS = r" ← import | \(imports\)$"
_SLEEP = " ← time.sleep"  # which no processor shortens
_COLLECTS = r" ← (gc\.)?collect$"
_CALLS = r" ← .*\bmodel(\.predict|\.predict_on_batch)?$"  # in a callback
_TEXTS = {  # metrics of the run that are no figures
    *("callback", "retraced", "reason", "changed", "models", "data", "saves", "waits", "evaluates", "eager", "debug"),
    *("again", "framework", "backend", "collects", "calls", "others", "frozen_at", "cache", "threads", "processors"),
    "awaited_at",
}
_EAGER_CALLS = 40  # of compiled functions of JAX in a step, most of them single operations
_SMALL_PS, _SMALL_SHARE = 10e6, 0.8  # of PyTorch on a CPU: 3 us each in loops over examples
_MANY_OPS = 200  # for each gradient of a parameter: 20 to 45 in models of any depth, 800 in a loop over examples
_GRADIENT, _BACKWARD = "torch::autograd::AccumulateGrad", r"^(.*)Backward\d*$"
_OF_PYTORCH = r"^aten::|Backward\d*$"
_FROZEN = 0.2  # of the operations of a kind, without gradients
_LARGE_PS = 100e6  # of an operation of PyTorch that several threads compute faster
_SLOWER = 1.25  # step time of a stalled phase by that of its twin


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
    ``flops_counted``, the share of busy time whose FLOPs are known where ``mxu`` is of peak FLOP/s;
    ``crowding``, the share of the processors that other programs used while none was free; ``step_ps``, the mean step
    time, and ``typical_ps``, that times the number of steps; ``compiled_ps``, compile time
    of the first steps of kinds, and ``compile``, its share of the phase's time; ``formatting_op`` and the like, the
    operation with most of that share; ``twin``, ``twin_ps``, ``stall_ps``, ``stalled_side`` and ``stalled``: the phase
    that a stall is measured against, and the kind of wait.

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


def _of_names(steps: Steps, chosen: pl.DataFrame, columns: list[str]) -> pl.DataFrame:
    """Return columns of the operations with such a (side, category, op), and these."""
    key = ["side", "category", "op"]
    if chosen.is_empty():
        return steps.ops.select(*columns, *key).clear()
    by_op = steps.ops.filter(pl.col("op").is_in(chosen["op"].unique().implode()))  # a join is slower
    return by_op.select(*columns, *key).join(chosen, on=key, how="semi", nulls_equal=True)


def _matched_ops(steps: Steps) -> pl.DataFrame:
    """Return (host, step, metric, op, self_ps) of the operations that match a pattern."""
    named = distinct_ops(steps)
    columns = (pl.col(name).cast(pl.String).fill_null("") for name in named.columns)
    texts = named.select(pl.format("{} {}: {}", *columns)).to_series()
    metrics = [
        next((metric for metric, pattern in _OPS.items() if re.match(pattern, text[:_LONGEST])), None) for text in texts
    ]
    matched = named.with_columns(metric=pl.Series(metrics, dtype=pl.String)).drop_nulls("metric")
    rows = _of_names(steps, matched, ["host", "step", "total_ps", "self_ps"])
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
    stalled = (pl.col("step_ps") > _SLOWER * pl.col("step_ps_twin")) & (waited * 2 >= longer)
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


def importing_ps(run: Goodput) -> int:
    """Return the time of imports, by samples of preparation."""
    imports = run.places.filter(pl.col("account") == "preparation", pl.col("place").str.contains(_IMPORTS))
    return round(run.time_ps("preparation") * imports["share"].sum())


def account_metrics(phases: Phases, failure_every_h: float | None = None, run: Goodput | None = None) -> pl.DataFrame:
    """Return one row of metrics of the whole run, none without a record of its wall time; null if unknown.

    ``wall_ps``; of each account by its ``metric`` in ``tpunb.schema.ACCOUNTS``, of ``retracing`` (tracing and compiling
    a function after its first time, within startup) and of ``rebuilding`` (tracing the step of three models or more,
    but for the first), of ``first`` (the rest of startup), ``collecting`` (garbage), ``anew`` (iterators of Keras, with
    ``awaiting``, the waits for their first batches, and ``of_arrays``, those of arrays), ``validating`` (waits for
    input of evaluations), ``ended`` (iterators of tf.data), ``starting`` and ``restarting`` (workers of a DataLoader,
    in its first pass and later), ``importing`` (modules, by samples of preparation), ``refitting`` (around and before
    the steps of fits of one batch), ``stepping`` (steps without waits), ``working`` (with code and callbacks),
    ``handing`` (batches over, if workers did), ``dispatching`` (of it, what a compiled step
    would not take; see ``eager``), ``slowing`` (of steps, beyond those of the first quarter) and ``frozen`` (a model
    without gradients, called at ``frozen_at``), ``padding`` (of batches that all have one width), ``double`` (what
    double precision costs at most) and ``unthreaded`` (what ``processors`` beyond the ``threads`` of PyTorch would save
    at most) the share of wall time, 0 to 1, and the time such as ``callbacks_ps``; ``growth`` of memory in bytes an
    hour, if steady, to ``memory`` in bytes;
    ``crowding``, the share of the processors that other programs used while none was free; ``eager``, what runs steps
    operation by operation; ``debug``, what checks each operation; ``data``, the kind of the data; ``waits``,
    "collector" if code between steps collects garbage; ``awaited_at``, what it waits for, ``waited``;
    ``collects``, "program" if that collects garbage itself;
    ``calls``, "model" if callbacks mostly call one; ``evaluates``: "predict", "mode" if no batch is evaluated, or
    "batches"; ``saves``, "background" if Orbax does not hold up the training for them; ``callback`` and ``retraced``,
    what took most of it, with ``callback_ps``, the ``reason`` of retracing, how often ``again``, and what had
    ``changed``: function, value, shape or growth; ``models``, how many steps of models were traced; ``unplanned``,
    ``saving`` without a known time between failures; ``save_ps``, time to save once; ``save_every_ps``, wall time
    by number of saves; ``save_best_ps``, the interval of least loss by Young.

    Parameters
    ----------
    phases
        Phases of the run.
    failure_every_h
        Mean time between failures in hours, if known.
    run
        ``tp.goodput(phases)``, if it is at hand.
    """
    if phases.steps.wall is None:
        return pl.DataFrame()
    run = run or goodput(phases)
    times = dict(totals(run).select("account", pl.col("time_ps").round().cast(pl.Int64)).iter_rows())
    row: dict[str, object] = {"wall_ps": run.wall_ps}
    retraced, reason, retracing_ps, again = _retraced(phases.steps, run.hosts)
    if retraced is not None:
        startup = run.segments.filter(account="program startup")
        again_in = startup.filter(pl.col("detail").str.contains(" again")).drop_nulls("step")
        first = startup.filter(pl.col("detail") == FIRST).join(again_in, on=["host", "step"], how="semi")
        each = startup.filter(pl.col("detail") == EACH)
        retracing_ps += int(pl.concat([first, each])["dur_ps"].sum()) // run.hosts
    taken = {account.metric: times.get(name, 0) for name, account in ACCOUNTS.items()}
    models, rebuilding_ps = _rebuilt(phases.steps, run.hosts)
    taken |= {"retracing": min(retracing_ps, taken["startup"]), "rebuilding": min(rebuilding_ps, taken["startup"])}
    taken["first"] = taken["startup"] - max(taken["retracing"], taken["rebuilding"])
    collecting = run.frame.filter(account="step time deviation", detail="garbage collection")
    anew = run.frame.filter(account="data loading", detail=NEW_ITERATOR)
    taken["anew"] = int(anew["time_ps"].sum()) // run.hosts
    ends = run.frame.filter(account="data loading", detail=DATA_END)
    taken["ended"] = int(ends["time_ps"].sum()) // run.hosts if _reads_tf_data(phases.steps) else 0
    most_ps = taken["loading"] - taken["anew"] - taken["ended"]
    workers = _starts(phases.steps, WORKERS_START).with_columns(
        pl.sum_horizontal("span_ps", "wait_ps").alias("time_ps")
    )
    begun_ps = {
        "starting": workers.filter(~pl.col("later"))["time_ps"].sum(),
        "restarting": workers.filter("later")["time_ps"].sum(),
        "awaiting": _starts(phases.steps, NEW_ITERATOR)["wait_ps"].sum(),
    }
    for name, time_ps in begun_ps.items():
        taken[name] = min(int(time_ps) // run.hosts, most_ps)
        most_ps -= taken[name]
    taken["anew"] += taken["awaiting"]
    validating = run.frame.filter(account="evaluation", detail=VALIDATING)
    taken["validating"] = int(validating["time_ps"].sum()) // run.hosts
    taken["of_arrays"] = taken["anew"] if traits(phases.steps)["data"] == "arrays" else 0  # Keras' own, no slow input
    taken["importing"] = importing_ps(run)
    waits = run.places.filter(WAITS, account="program code")
    taken["waited"] = round(taken["code"] * waits["share"].sum())
    awaited = waits["place"].str.extract(r" waits for .* in (\w+)").drop_nulls()  # those with most samples are first
    awaited_at = f"{awaited[0]} in another thread" if len(awaited) else "another thread or process"
    fits = phases.steps.wall.spans.filter(account="fit", detail="fit").height
    is_fitted = 1 < phases.steps.frame.filter(kind="train").height <= fits
    around_ps = int(run.frame.filter(account="preparation", detail="fit")["time_ps"].sum()) // run.hosts
    taken["refitting"] = around_ps + taken["loading"] if is_fitted else 0
    taken["stepping"] = taken["productive"] + taken["idle"] + times.get("step time deviation", 0)
    taken["working"] = taken["stepping"] + taken["code"] + taken["callbacks"]
    taken["handing"] = round(HANDOVER_PS * phases.steps.frame.filter(pl.col("rule") != "whole").height) // run.hosts
    eager = _eager(phases.steps)
    taken["dispatching"] = round(taken["stepping"] * (1 - _in_kernels(phases.steps, eager)))
    frozen_at, taken["frozen"] = _frozen(run, phases.steps)
    taken["padding"] = round(taken["productive"] * _padding(phases.steps))
    taken["double"] = taken["productive"] // 2 if _is_double(phases.steps) else 0
    taken["unthreaded"] = round(taken["productive"] * _unthreaded(phases.steps))
    taken["collecting"] = int(collecting["time_ps"].sum()) // run.hosts
    taken["slowing"] = _slowing_ps(phases.steps) // run.hosts
    others, slow = others_used(run), run.frame.filter(account="step time deviation")
    unknown_ps = slow.filter(pl.col("detail").is_null() | (pl.col("detail") == OTHERS))["time_ps"].sum() // run.hosts
    slow_ps = slow["time_ps"].sum() // run.hosts
    taken["crowded"] = slow_ps if others is not None and 2 * unknown_ps >= slow_ps else 0
    for name, time_ps in taken.items():
        row |= {f"{name}_ps": time_ps, name: time_ps / max(run.wall_ps, 1)}
    most = totals(run, "detail").filter(account="callbacks").drop_nulls("detail").head(1).to_dicts()
    saves = _saves(phases.steps) / run.hosts
    row |= {
        "callback": most[0]["detail"] if most else None,
        "callback_ps": round(most[0]["time_ps"]) if most else None,
        "retraced": retraced,
        "again": "once" if again == 1 else plural(again, "time"),
        "reason": reason or "arguments that were not seen",
        "changed": next(
            (cause for pattern, cause in _CHANGED.items() if re.search(pattern, f"{retraced}: {reason}")), None
        ),
        **_growth(phases.steps),
        "crowding": crowding_of_waits(run),
        "others": others,
        "eager": eager,
        "debug": phases.steps.metadata.get("debug"),
        **traits(phases.steps),
        "models": str(models),
        "frozen_at": frozen_at,
        **{name: phases.steps.metadata.get(name) for name in ("threads", "processors")},
        "saves": phases.steps.metadata.get("saves"),
        "waits": "collector" if _is_mostly_at(run.places, "program code", _COLLECTS) else None,
        "awaited_at": awaited_at,
        "evaluates": _evaluates(phases.steps),
        "collects": "program" if _collects(phases.steps, run) else None,
        "calls": "model" if _is_mostly_at(run.places, "callbacks", _CALLS) else None,
        "save_ps": taken["saving"] / saves if saves else None,
        "save_every_ps": run.wall_ps / saves if saves else None,
        "save_best_ps": None,
        "unplanned": row["saving"] if failure_every_h is None else None,
    }
    if failure_every_h is not None and saves:
        row["save_best_ps"] = math.sqrt(2 * taken["saving"] / saves * failure_every_h * 3.6e15)
    return pl.DataFrame([row], schema={name: pl.String() if name in _TEXTS else pl.Float64() for name in row})


def crowding_of_waits(run: Goodput) -> float:
    """Return `crowding` of the time in which the program waits for input, but for its sleeps and its own work.

    Others slow that work as they slow the steps; they keep what is prepared beside these from being ready.
    """
    places = run.places.filter(account="data loading").drop_nulls("place")
    is_not_excused = pl.col("place").str.ends_with(_SLEEP) | (pl.col("worked") > WORKS).fill_null(value=False)
    return crowding(run.load) * (
        1 - int(places.filter(is_not_excused)["samples"].sum()) / max(int(places["samples"].sum()), 1)
    )


def _is_mostly_at(places: pl.DataFrame, account: str, pattern: str) -> bool:
    """Return whether most samples in an account are at places of a pattern."""
    sampled = places.filter(account=account).drop_nulls("place")
    return bool(sampled.filter(pl.col("place").str.contains(pattern))["samples"].sum() > sampled["samples"].sum() / 2)


def _collects(steps: Steps, run: Goodput) -> bool:
    """Return whether most of the time of collections is of lines that call gc.collect(), where a sample saw that."""
    seen = run.places.filter(pl.col("place").str.contains(_COLLECTS))
    if steps.read_run_events is None:  # of an earlier version
        share = int(seen["samples"].sum()) / max(int(run.places["samples"].sum()), 1)
        collecting = run.frame.filter(account="step time deviation", detail="garbage collection")
        return bool(2 * share * run.wall_ps > int(collecting["time_ps"].sum()) / run.hosts)
    lines = seen["place"].str.replace(_COLLECTS, "").to_list()
    found = steps.read_run_events()
    places = {(host, number): line_of(*place) for host, number, *place in found.places.rows()}
    time = pl.col("end_ps") - pl.col("start_ps")
    events = found.events.filter(pl.col("event") == "collect").select("host", "place", time=time)
    there_ps = sum(time_ps for host, place, time_ps in events.rows() if places.get((host, place)) in lines)
    return bool(2 * there_ps > events["time"].sum())


def _evaluates(steps: Steps) -> str:
    """Return "predict" if that takes most, "mode" if models are in their mode for it without a batch, or "batches"."""
    times = dict(steps.frame.group_by("kind").agg(pl.col("dur_ps").sum()).iter_rows())
    if times.get("predict", 0) > times.get("eval", 0):
        return "predict"
    return "mode" if steps.wall is not None and acts(steps.wall.spans, steps.frame) else "batches"


def _reads_tf_data(steps: Steps) -> bool:
    """Return whether batches come from tf.data, as those do that Keras on TensorFlow makes of other data."""
    of = traits(steps)
    return (of["data"] or "").endswith("tf.data") or of["framework"] in ("TensorFlow", "Keras")


def _starts(steps: Steps, what: str) -> pl.DataFrame:
    """Return (later, span_ps, wait_ps) of each start of what gives batches: its time, and that until the first batch.

    The wait is that beyond a usual one, of steps that train; the first start on a host is not later.
    """
    wall, waits = steps.wall or WallClock(0), steps.frame.drop_nulls("input_ps").filter(pl.col("kind") != "eval")
    beyond = (pl.col("input_ps") - pl.col("input_ps").median().over("host")).clip(0).cast(pl.Int64)
    until = pl.col("start_ps") + pl.col("input_ps")
    waits = waits.select("host", "step", wait_ps=beyond, start_ps=until).sort("start_ps")
    starts = wall.spans.filter(detail=what).sort("start_ps")
    starts = starts.with_columns(later=pl.int_range(pl.len()).over("host") > 0, span_ps="dur_ps")
    found = starts.join_asof(waits, on="start_ps", by="host", strategy="forward", check_sortedness=False)
    is_first = pl.struct("host", "step").is_first_distinct()  # of several starts before one batch
    return found.select("later", "span_ps", wait_ps=pl.when(is_first).then("wait_ps"))


def _operations(steps: Steps) -> float:
    """Return how many compiled functions of JAX itself a step calls: single operations."""
    if steps.read_run_events is None:
        calls = steps.full().ops.filter(pl.col("op") == "PjitFunction")["count"].sum()
        return float(calls) / max(len(steps.full()), 1)
    run = steps.read_run_events()
    named = run.names.rename({"id": "what"}).join(run.events.filter(event="call"), on=["host", "what"])
    of_library = [What(*what).is_part_of_steps for what in named.select("library", "module", "name").iter_rows()]
    return int(named.filter(pl.Series(of_library, dtype=pl.Boolean))["count"].sum()) / max(steps.frame.height, 1)


def _padding(steps: Steps) -> float:
    """Return the share of padding in the batches of a run, as their masks have it; 0 where they differ in width."""
    if steps.read_run_events is None:
        return 0.0
    run = steps.read_run_events()
    texts = run.signatures.select("host", "returns", arrays="id")
    fetched = run.events.filter(event="fetch").drop_nulls("number").join(texts, on=["host", "arrays"])
    sums = fetched.group_by("returns").agg(pl.len(), pl.col("number").sum())
    found = [each for row in sums.iter_rows() if (each := padding_of(*row)) is not None]
    positions = sum(each[1] for each in found)
    return sum(each[2] for each in found) / positions if len({each[0] for each in found}) == 1 else 0.0


@memoised
def _eager(steps: Steps) -> str | None:
    """Return what runs the steps operation by operation: "Keras", "TensorFlow" or "JAX"; "PyTorch" if they are tiny."""
    full = steps.full()
    if steps.metadata.get("eager") or _operations(steps) >= _EAGER_CALLS:
        return steps.metadata.get("eager") or "JAX"
    ops = full.ops.filter(pl.col("op").cast(pl.String).str.contains(_OF_PYTORCH), pl.col("count") > 0)
    each = (pl.col("self_ps") / pl.col("count")).min()  # in the step that other programs held up least
    ops = ops.group_by("op").agg(pl.col("count", "self_ps", "total_ps").sum(), each=each)
    # an operation that takes as much in one call loops itself, such as that of a recurrent layer
    whole = (ops["total_ps"] / ops["count"]).max() or 0.0
    small_ps = ops.filter(pl.col("each") < _SMALL_PS)["self_ps"].sum()
    gradients = full.ops.filter(pl.col("op") == _GRADIENT)["count"].sum()
    many = ops["count"].sum() >= _MANY_OPS * gradients > 0 and not steps.devices.height
    many &= float(whole) * len(full) < NAMED_SHARE * float(ops["self_ps"].sum())  # type: ignore[arg-type]
    return "PyTorch" if many and float(small_ps) > _SMALL_SHARE * float(ops["self_ps"].sum()) else None


def _frozen(run: Goodput, steps: Steps) -> tuple[str | None, int]:
    """Return the line that calls a model of PyTorch without gradients in steps, and its time; None for none.

    No forward pass takes longer than its gradients: a call that does so has none, if operations without any are traced
    of each kind that takes a tenth of the time: gradients themselves call some kinds, but not all.
    """
    full = steps.full()
    trained = full.frame.filter(pl.col("kind") != "eval").select("host", "step")
    of_op = full.ops.join(trained, on=["host", "step"], how="semi").group_by(pl.col("op").cast(pl.String))
    ops = of_op.agg(pl.col("count", "self_ps").sum())
    back = pl.col("op").str.extract(_BACKWARD).str.to_lowercase()
    backward = ops.select(name=back, back=pl.col("count") / 2).drop_nulls()  # each has an event of the engine around it
    name = pl.col("op").str.strip_prefix("aten::").str.replace_all("_", "")
    forward = ops.filter(pl.col("op").str.starts_with("aten::")).with_columns(name=name).join(backward, on="name")
    kinds = forward.filter(pl.col("self_ps") > NAMED_SHARE * pl.col("self_ps").sum())
    without = kinds.select((1 - pl.col("back") / pl.col("count")).min()).item()
    gradients = ops.filter(pl.col("op") == _GRADIENT)["count"].sum()
    of_pytorch = ops.filter(pl.col("op").str.contains(_OF_PYTORCH))["count"].sum()
    moves = of_pytorch >= _MANY_OPS * gradients > 0  # of a policy, whose inputs follow from what it returns
    if steps.read_run_events is None or moves or not (without or 0) > _FROZEN:
        return None, 0
    events = steps.read_run_events().events.filter(pl.col("event") == "gradient")
    gradients_ps = int(events.select((pl.col("end_ps") - pl.col("start_ps")).sum()).item())
    order = run.segments.select("host", "start_ps", "account").sort("start_ps")
    samples = (steps.wall or WallClock(0)).samples.sort("start_ps")
    samples = samples.join_asof(order, on="start_ps", by="host", check_sortedness=False).filter(account="productive")
    each_ps = run.time_ps("productive") * run.hosts / max(samples.height, 1)
    lines = samples.drop_nulls("model").group_by("model").agg(n=pl.len(), time_ps=pl.len() * each_ps)
    if lines.filter(pl.col("n") >= FEWEST_SAMPLES).height < 2:  # the model that trains is called, too
        return None, 0
    lines = lines.drop("n")
    most = lines.filter(pl.col("time_ps") > gradients_ps).sort("time_ps", "model", descending=True).head(1).rows()
    return (most[0][0], round(most[0][1]) // run.hosts) if most and gradients_ps else (None, 0)


def _is_double(steps: Steps) -> bool:
    """Return whether a training is in double precision throughout: its parameters, or the state that JAX updates."""
    if steps.metadata.get("dtype") == "float64" or steps.read_run_events is None:
        return steps.metadata.get("dtype") == "float64"
    takes = steps.read_run_events().signatures.filter(repeats="returned")["takes"]
    single = takes.str.contains_any(["float32[", "float16["])
    return bool((takes.str.contains("float64[", literal=True) & ~single).any())


def _unthreaded(steps: Steps) -> float:
    """Return the share of steps of PyTorch on a CPU that all of its processors would save, of its large operations."""
    threads, processors = (steps.metadata.get(name, "") for name in ("threads", "processors"))
    ops = steps.full().ops.group_by("op").agg(pl.col("count", "self_ps").sum()).filter(pl.col("count") > 0)
    if not (threads.isdecimal() and processors.isdecimal() and ops.height) or steps.devices.height:
        return 0.0
    large = ops.filter(pl.col("self_ps") > _LARGE_PS * pl.col("count"))["self_ps"]
    return (
        float(large.sum())
        / max(float(ops["self_ps"].sum()), 1.0)
        * max(0.0, 1 - int(threads) / max(int(processors), 1))
    )


def _in_kernels(steps: Steps, eager: str | None) -> float:
    """Return the share of the steps in which operations run, other than PyTorch's: a compiled step runs them, too."""
    full = steps.full()
    if eager not in ("Keras", "TensorFlow", "JAX") or not len(full):
        return 0.0
    ops = full.ops.filter(side="device") if eager == "JAX" else full.ops
    kernels = full.frame["device_ps"] if full.devices.height else ops["self_ps"]
    return min(float(kernels.sum()) / max(float(full.frame["dur_ps"].sum()), 1.0), 1.0)


def _saves(steps: Steps) -> int:
    """Return how often the hosts saved: the files of one save follow one another at once, without a step between."""
    if steps.wall is None or not steps.are_counted:  # short ones may not have been seen
        return 0
    waits = pl.col("detail").str.ends_with("wait_until_finished").fill_null(value=False)
    spans = steps.wall.spans.filter(pl.col("account") == "checkpoint save", ~waits).sort("start_ps")
    begun = steps.frame.select("host", "start_ps", "step").sort("start_ps")
    found = spans.join_asof(begun, on="start_ps", by="host", check_sortedness=False)
    start, dur, before = pl.col("start_ps"), pl.col("dur_ps"), pl.col("step").shift()
    same = pl.col("step").eq_missing(before) & (start - (start + dur).shift() <= dur.shift())
    return int(found.select((~same.fill_null(value=False)).over("host").sum()).item())


def _slowing_ps(steps: Steps) -> int:
    """Return how much longer steps beside no profiler take than at first, if their processor time rises."""
    wall, slower_ps = steps.wall or WallClock(0), 0
    computes = pl.col("dur_ps") - pl.sum_horizontal(pl.col("input_ps", "callbacks_ps").fill_null(0))
    profiler = _profiling(wall).with_columns(end_ps=pl.col("start_ps") + pl.col("dur_ps"))
    for host, rows in steps.frame.filter(kind="train").with_columns(exclusive_ps=computes).group_by("host"):
        start, dur = (rows[name].fill_null(0).to_numpy() for name in ("start_ps", "dur_ps"))
        beside = covered(profiler.filter(host=host[0]).select("start_ps", "end_ps"), start, start + dur)
        rows = rows.filter(pl.Series(beside == 0))
        of_host = wall.load.filter(host=host[0]).sort("start_ps").select("start_ps", "cpu")
        rows = rows.sort("start_ps").join_asof(of_host, on="start_ps", strategy="nearest")
        rows = rows.drop_nulls(["exclusive_ps", "cpu"])
        if len(rows) < _FEWEST_SLOWING:
            continue
        exclusive_ps, quarter = rows["exclusive_ps"].to_numpy(), len(rows) // 4
        work = exclusive_ps * rows["cpu"].to_numpy()
        rank = np.corrcoef(np.argsort(np.argsort(work)), np.arange(len(rows)))[0, 1]
        if rank > _RISES and np.median(work[-quarter:]) >= 2 * np.median(work[:quarter]):
            slower_ps += int((exclusive_ps - np.median(exclusive_ps[:quarter])).clip(0).sum())
    return slower_ps


def _growth(steps: Steps) -> dict[str, object]:
    """Return by how many bytes an hour the host memory that grows fastest grows steadily, and what it has."""
    # seconds beside the profiler, whose events take memory too, are left out
    grown: dict[str, object] = {"growth": None, "memory": None}
    wall, end = steps.wall or WallClock(0), (pl.col("start_ps") + pl.col("dur_ps")).alias("end_ps")
    profiler = pl.concat([each.select("host", "start_ps", end) for each in (_profiling(wall), steps.windows)])
    begin = pl.col("start_ps").min()
    trained = steps.frame.group_by("host").agg(begin=begin + (end.max() - begin) // 3, end=end.max())
    training = wall.load.join(trained, on="host").filter(pl.col("start_ps").is_between("begin", "end"))  # after loading
    for host, rows in training.drop_nulls("rss_bytes").sort("start_ps").group_by("host"):
        if len(rows) < _FEWEST_LOADS:
            continue
        rss, start = rows["rss_bytes"].to_numpy().astype(float), rows["start_ps"].to_numpy()
        until = np.append(start[1:], start[-1] + 10**12)
        apart = covered(profiler.filter(host=host[0]), start, until)[1:] == 0
        rises, hours = np.where(apart, np.diff(rss), 0.0), ((until - start)[1:] * apart).sum() / 3.6e15
        steady = apart.any() and (rises[apart] > 0).mean() >= _STEADY
        later, but_one = rises[len(rises) // 2 :].sum(), rises.sum() - rises.max()  # once is no leak
        steady &= min(later, but_one) > _GROWN * rss[0] / 3
        if steady and rises.sum() > _GROWN * rss[0] and rises.sum() / hours > float(grown["growth"] or 0):  # type: ignore[arg-type]
            grown = {"growth": float(rises.sum() / hours), "memory": float(rss[-1])}
    return grown


def _profiling(wall: WallClock) -> pl.DataFrame:
    return wall.spans.filter(account="profiler")


_FRAMEWORKS = {
    "PyTorch": r"^(aten::|autograd::|torch[.:]|Torch-Compiled)",
    "JAX": r"^(PjitFunction|jit_|jit\()",
    "TensorFlow": r"^(Eager[A-Z]|IteratorGetNext|(Read|Assign\w*)VariableOp|Resource(Apply|Gather)|tf\.)",
}
"""Operations that only one framework has; the first that has any wins."""


_PIPELINE = ("PyFunc", "^Iterator::")  # operations of tf.data's functions in Python, and of its stages


@memoised
def traits(steps: Steps) -> dict[str, str | None]:
    """Return ``data``, ``framework``, ``backend`` of operations, and ``cache``, the programs that JAX keeps, if known.

    Data are "tuned tf.data" after trials, and "Python tf.data" where functions in Python take half of the pipeline.
    """
    data, named = steps.metadata.get("data"), distinct_ops(steps)
    ops = named["op"].unique().cast(pl.String)
    tuned = steps.wall is not None and bool((steps.wall.spans["account"] == "tuning").any())
    backend = next((name for name, pattern in _FRAMEWORKS.items() if ops.str.contains(pattern).any()), None)
    if backend is None and steps.read_run_events is not None and "jax" in steps.read_run_events().names["library"]:
        backend = "JAX"  # no step was traced
    framework = backend
    if framework != "PyTorch" and (steps.frame["rule"] == "keras").any():  # on any backend with such parameters
        framework = "Keras"
    if framework is None and (steps.frame["rule"] == "gradients").any():
        framework = "PyTorch"
    if data and tuned:
        data = f"tuned {data.removesuffix(' with workers')}"
    elif data == "tf.data":
        op = pl.col("op").cast(pl.String)
        of_kinds = (_of_names(steps, named.filter(op.str.contains(kind)), ["self_ps"]) for kind in _PIPELINE)
        in_python, all_ps = (int(rows["self_ps"].sum()) for rows in of_kinds)
        in_step = steps.metadata.get("python") == "step"  # not of the input
        data = "Python tf.data" if in_python > all_ps / 2 and not in_step else data
    return {"data": data, "framework": framework, "backend": backend, "cache": steps.metadata.get("cache")}


_CHANGED = {
    r"^jit\((append|concatenate|[hv]?stack)\): ": "growth",
    ": a new function": "function",
    r": .*\w[\[(]": "shape",
    r": .* = |: another static argument": "value",
}
"""What has changed, by patterns of a function and the reasons why it is compiled again."""


def _retraced(steps: Steps, hosts: int) -> tuple[str | None, str | None, int, int]:
    """Return which function was traced or compiled again, the last reason, the time of all per host, and how often."""
    if steps.wall is None:
        return None, None, 0, 0
    work, again = r"^(tracing|lowering|compiling) ", r" again for (.*)$"
    spans = (
        steps.wall.spans.filter(pl.col("account") == "program startup", pl.col("detail").str.contains(work))
        .sort("start_ps")
        .with_columns(work=pl.col("detail").str.replace(again, ""), reason=pl.col("detail").str.extract(again))
        .with_columns(name=pl.col("work").str.replace(work, ""))
    )
    # TensorFlow's are marked; JAX compiles as well, and functions without a name of their own are many
    compiled = pl.col("detail").str.starts_with("compiling").any().over("host", "name")
    repeated = compiled & (pl.int_range(pl.len()).over("host", "work") > 0) & ~pl.col("name").str.contains("^<|^a func")
    # what makes parameters is compiled for the shape of each, once, and operations on their own for that of each layer
    begun = steps.frame["start_ps"].drop_nulls().sort()
    of_library = pl.Series(
        map(is_primitive, spans["name"].str.extract(r"^jit\((.*)\)$").fill_null("")), dtype=pl.Boolean
    )
    first, later = (begun.slice(at).first() for at in (0, LOOP_CALLS))
    loops = pl.col("start_ps") >= pl.when(of_library).then(later).otherwise(first or 0)
    more = spans.filter(loops, repeated | pl.col("reason").is_not_null()).group_by("name", maintain_order=True)
    often = pl.struct("host", "work").unique_counts().max()
    times = more.agg(pl.col("dur_ps").sum(), pl.col("reason").drop_nulls().last(), often=often)
    # a library has functions of one name for training, evaluation and prediction
    is_other = (pl.col("reason") == NEW_FUNCTION).fill_null(value=False) & (pl.col("often") < LOOP_CALLS)
    times = times.filter(~is_other).sort("dur_ps", descending=True, maintain_order=True)
    if times.is_empty():
        return None, None, 0, 0
    return times["name"][0], times["reason"][0], int(times["dur_ps"].sum()) // hosts, times["often"][0]


def _rebuilt(steps: Steps, hosts: int) -> tuple[int, int]:
    """Return of how many models a step was traced, and the time of all but the first, per host; 0 s for one or two."""
    if steps.wall is None:
        return 0, 0
    spans = steps.wall.spans.filter(account="program startup", detail="tracing the step of fit").sort("start_ps")
    later = spans.filter(pl.int_range(pl.len()).over("host") > 0)
    models = spans.height // hosts
    return models, int(later["dur_ps"].sum()) // hosts if models > 2 else 0


# times that each weight is read or written: weight, gradient and moments; for LARS the norms of weight and gradient too
_PASSES = {"sgd": 3, "momentum": 5, "rmsprop": 5, "adagrad": 5, "lars": 7, "adam": 7, "adamw": 7}
_REDUCE, _SCATTER = r"(?i)all.?reduce", r"(?i)reduce.?scatter"


def accelerator_utilisation(run: Run) -> pl.DataFrame:
    """Return the utilisation of accelerators in each epoch of a storage benchmark, as MLPerf Storage defines it.

    It is the computation as a share of the wall time of the epoch, both without the first step [1]_. The official
    figure of an epoch is the mean over processes; of one with checkpoints, that of its parts, weighted by their steps.
    It is null for a process that lacks steps of the epoch.
    Evaluations are left out: only process 0 records their wall time, and no other waits for it.

    Parameters
    ----------
    run
        Folder with the ``N_output.json`` of DLIO's processes and their ``per_epoch_stats.json``, its Profile, Steps or
        Phases.

    Returns
    -------
    polars.DataFrame
        ``tpunb.schema.UTILISATION``, in order of hosts and time.

    Raises
    ------
    TypeError
        When `run` is something else.
    TpunbError
        When the wall time of epochs is unknown.

    References
    ----------
    .. [1] https://github.com/argonne-lcf/dlio_benchmark
    """
    found = steps(loaded(run, "accelerator_utilisation"))
    spans = pl.DataFrame(schema=SPANS) if found.wall is None else found.wall.spans
    epochs = spans.filter(pl.col("detail").str.starts_with("epoch "), account="fit")
    if epochs.is_empty():
        raise TpunbError(
            f"{found.name or 'the run'} has no wall time of epochs", hint="load a folder of DLIO's results"
        )
    epochs = epochs.select(begin_ps="start_ps", epoch="detail", epoch_ps="dur_ps").unique().sort("begin_ps")
    frame = (found.frame if found.by_host is None else found.by_host.frame).filter(kind="train")
    rows = frame.with_columns(end_ps=pl.col("start_ps") + pl.col("dur_ps")).sort("end_ps")
    rows = rows.join_asof(epochs, left_on="end_ps", right_on="begin_ps").sort("host", "start_ps")
    dur, others = pl.col("dur_ps"), {"compute": "device", "input": "input", "barrier": "collective"}
    of_epoch = rows.drop_nulls("epoch").group_by("host", "epoch", maintain_order=True)
    sums = of_epoch.agg(
        steps=pl.len(),
        dur_ps=pl.col("epoch_ps").first(),
        first_ps=(dur - pl.col("collective_ps")).first(),
        unrecorded_ps=(pl.col("begin_ps") + pl.col("epoch_ps")).first() - pl.col("end_ps").max(),
        **{f"{name}_ps": pl.col(f"{column}_ps").slice(1).sum() for name, column in others.items()},
    )
    whole = pl.col("steps") == pl.col("steps").max().over("epoch")
    sums = sums.with_columns(utilisation=pl.when(whole).then(pl.col("compute_ps") / (dur - pl.col("first_ps"))))
    return check(sums, UTILISATION, "utilisation")


def weight_update_ps(weights: int, optimizer: str, device: Device | str) -> float | None:
    """Return the modelled time to update all weights on one core, in picoseconds; None for another optimizer.

    Each weight and moment is in float32, and each is read from or written to the main memory of the chip, of whose
    bandwidth a core has an equal share: 4 bytes x weights x passes / bandwidth. Passes are 3 for SGD, 5 with momentum,
    7 for LARS and Adam, after the update rules in https://arxiv.org/abs/1708.03888 and https://arxiv.org/abs/1412.6980.

    Parameters
    ----------
    weights
        Number of weights.
    optimizer
        Name of the optimizer: "sgd", "momentum", "rmsprop", "adagrad", "lars", "adam" or "adamw", in any case.
    device
        Chip, or its name in ``tpunb.analysis.DEVICES``.

    >>> round(weight_update_ps(25_600_000, "LARS", "TPU v3") / 1e9, 2)  # ResNet-50, in milliseconds
    1.59
    """
    chip = device_named(device) if isinstance(device, str) else device
    passes = _PASSES.get(optimizer.casefold())
    return None if passes is None else 4 * weights * passes / (chip.bandwidth / chip.cores) * 1e12


def scale_metrics(metrics: pl.DataFrame, phases: Phases, roof: Roofline | None = None) -> pl.DataFrame:
    """Return the metrics of phases with those of many devices; null if unknown.

    ``devices`` busy in a step of the phase, and ``train_devices``, the most in a phase of training steps; ``replicas``,
    the devices that all-reduce; ``update``, share of step time in the weight update, and ``update_source``:
    "measured" with a roofline if raw events were kept, else "modelled"; with a roofline ``intensity``, ``ridge``
    (FLOP/byte) and ``device_batch``, examples of a step per device.
    """
    steps, train = phases.steps, pl.col("main") == "train"
    used = _used_devices(steps).join(phases.labelled.select("host", "step", "phase"), on=["host", "step"])
    used = used.group_by("phase").agg(pl.col("devices").median().cast(pl.Int64), pl.col("reduces").all())
    weights, optimizer, batch = (steps.metadata.get(name, "") for name in ("weights", "optimizer", "batch"))
    chip = device_of(steps)
    update_ps = weight_update_ps(int(weights), optimizer, chip) if weights.isdecimal() and chip else None
    modelled = pl.when(train).then(pl.lit(update_ps, pl.Float64) / pl.col("step_ps"))
    metrics = metrics.join(used, on="phase", how="left", maintain_order="left").with_columns(
        train_devices=pl.col("devices").filter(train).max(),
        replicas=pl.when("reduces").then("devices"),
        update=pl.when(modelled < 1).then(modelled),
        update_source=pl.when(modelled < 1).then(pl.lit("modelled")),
        device_batch=pl.lit(float(batch) if batch.isdecimal() else None, pl.Float64) / pl.col("devices"),
        **dict.fromkeys(("intensity", "ridge"), pl.lit(None, pl.Float64)),
    )
    if roof is None:
        return metrics
    ridge = pl.lit(None, pl.Float64)
    if roof.device is not None:
        peak = pl.col("dtype").replace_strict(dict(roof.device.peaks), default=roof.device.peak_flops)
        ridge = peak / roof.device.bandwidth
    by_name = roof.frame.select("intensity", name="what", ridge=ridge)
    metrics = metrics.drop("intensity", "ridge").join(by_name, on="name", how="left", maintain_order="left")
    if steps.read_layers is None or not steps.layers["part"].count():
        return metrics
    is_update = pl.col("self_ps").filter(pl.col("part") == "update")
    parts = steps.layers.filter(pl.col("side") == "device").join(phases.labelled, on=["host", "step"])
    parts = parts.group_by("phase").agg(measured=is_update.sum() / pl.col("self_ps").sum())
    metrics = metrics.join(parts, on="phase", how="left", maintain_order="left")
    measured = pl.col("measured") * pl.col("busy")
    source = pl.when(measured.is_null()).then("update_source").otherwise(pl.lit("measured"))
    return metrics.with_columns(update=pl.coalesce(measured, "update"), update_source=source)


@memoised
def _used_devices(steps: Steps) -> pl.DataFrame:
    """Return (host, step, devices, reduces) of full steps: devices in use, and whether they only all-reduce."""
    full = steps.full()
    used = full.devices.filter(pl.col("device_ps") > 0).group_by("step")
    rows = full.frame.select("host", "step").join(used.agg(devices=pl.struct("host", "device").n_unique()), on="step")
    text = pl.concat_str(pl.col("op", "category").cast(pl.String), separator=" ", ignore_nulls=True)
    ops = distinct_ops(full).filter(pl.col("side") == "device").with_columns(text=text)
    reducing, scattering = (
        _of_names(full, ops.filter(pl.col("text").str.contains(pattern)), ["host", "step"])
        .select("host", "step", pl.lit(value=True).alias(name))
        .unique()
        for name, pattern in (("reduces", _REDUCE), ("scatters", _SCATTER))
    )
    rows = rows.join(reducing, on=["host", "step"], how="left").join(scattering, on=["host", "step"], how="left")
    return rows.with_columns(reduces=pl.col("reduces").fill_null(False) & pl.col("scatters").is_null())
