"""What is known of each phase: the figures that advice is given by."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
import polars as pl

from tpunb.export import phase_name
from tpunb.frames import Phases, Steps
from tpunb.frames.memory import remembered
from tpunb.frames.op_matrix import op_matrix

_SPOKEN_OF = {
    "formatting": r"device (data formatting|device copy|copy|transpose|reshape):"
    r"|device [^:]*: (?i:((loop|input|wrapped|fused)_)*((copy|transpose|reshape|bitcast)_?)+(fusion)?)\Z",
    "copies": r"device (copy-done:|[^:]*: copy-done\Z)",
    "callbacks": r"\w+ [^:]*: .*(debug_print|(debug|pure|io|host)_callback|python_\w*callback|PyFunc|XlaHostCompute)",
    "checkpoint": r"host [^:]*: (SaveV2|MergeV2Checkpoints)\Z",
    "summary": r"host [^:]*: (Write\w*Summary|FlushSummaryWriter|(Merge|Scalar|Histogram|Image|Tensor)Summary(V2)?)\Z",
    "transfers": r"host transfer: (?!.*Outfeed)",  # who dequeues an outfeed waits for the device, not the other way
}
"""Operations that advice speaks of, as ``side category: op``."""

_NOW_AND_THEN = {"checkpoint": r"(?i)check.?point|\bsav(e|ing)\b", "summary": r"(?i)\bsummar(y|ies)\b"}
"""Work that is not done in every step, by what marks such steps."""

_TIMES = ["device", "idle", "infeed", "outfeed", "transfer", "collective", "input", "compile"]
_SHARES = [
    *("input", "idle", "any_idle", "busy", "infeed", "outfeed", "transfer", "collective", "formatting", "copies"),
    *("recompile", "callbacks", "checkpoint", "summary", "mxu", "hbm"),
]
_LONGEST = 300  # letters of a name that are looked at
_SLOWER = 1.25  # than its twin, where a phase is called stalled


def facts(phases: Phases) -> pl.DataFrame:
    """Return what is known of each phase, one row a phase, longest first; null where nothing is.

    Shares of the time of its steps seen in full, 0 to 1: ``input`` (the device waits in its infeed, or idles while
    the host waits for input), ``any_idle``, ``idle`` (with no known wait that explains it), ``busy``, ``infeed``,
    ``outfeed``, ``transfer``, ``collective``, ``formatting`` (reshapes, transposes and copies on the device),
    ``copies`` (the device waits for copies to end), ``waits`` (all of those that are waits), ``recompile`` (in other
    steps than the first of a mark), ``callbacks``, ``checkpoint``, ``summary``, and ``stall`` (waiting that a longer
    phase of the same operations does not know). What a host does counts as far as the device idles meanwhile; in full
    where nothing is known of a device.

    Besides: ``name``, ``marks``, ``share`` (of the run), ``dur_ps``, ``steps`` and ``full`` as in
    ``tpunb.schema.PHASES``; ``mxu`` (of the matrix unit, else of the device's peak FLOP/s) and ``hbm``, 0 to 1;
    ``step_ps``, the mean step, and ``typical_ps``, as many of them as the phase has steps; ``compiled_ps``, by the
    first steps of marks, and ``compile``, the same as a share of the phase's time; ``formatting_op`` and the like, the
    operation that takes most of that share; ``twin``, ``twin_ps``, ``stall_ps``, ``stalled_side`` and ``stalled``,
    which phase a stalled one is held against, and how.

    >>> from tpunb.cluster import phases
    >>> from tpunb.testing import toy_steps
    >>> facts(phases(toy_steps("aaab"))).select("phase", "busy", "idle", "input").row(0)
    (0, 0.5, 0.5, None)
    """
    known = _known(phases.steps)
    steps, spoken = (frame.with_columns(_phase(phases, frame["row"])) for frame in (known.shares, known.spoken))
    dur = pl.col("dur_ps")

    def share(name: str) -> pl.Expr:
        known = pl.col(name).is_not_null()
        return pl.when(known.any()).then(pl.col(name).sum() / dur.filter(known).sum()).alias(name)

    often = ((pl.col(kind) > 0).mean().alias(f"{kind}_often") for kind in _NOW_AND_THEN)
    told = steps.group_by("phase").agg(*(share(name) for name in _SHARES), *often, step_ps=dur.mean())
    rows = phases.frame.select("phase", "steps", "full", "marks", "share", "dur_ps")
    rows = rows.join(told, on="phase", how="left", maintain_order="left").with_columns(
        name=pl.col("phase").map_elements(phase_name, return_dtype=pl.String),
        waits=pl.sum_horizontal("infeed", "outfeed", "transfer", "collective", "copies"),
        typical_ps=pl.min_horizontal(pl.col("step_ps") * pl.col("steps"), pl.col("dur_ps").cast(pl.Float64)),
    )
    rows = rows.join(_compiled(phases), on="phase", how="left", maintain_order="left")
    rows = rows.with_columns(compile=pl.col("compiled_ps") / pl.col("dur_ps"))
    rows = _with_stalls(_with_work(rows), _signatures(phases))
    return rows.join(_culprits(spoken), on="phase", how="left", maintain_order="left")


def _phase(phases: Phases, rows: pl.Series) -> pl.Series:
    """Return the phase of each of some rows of ``steps.frame``."""
    return phases.labels.cast(pl.Int64).gather(rows).alias("phase")


class _Known(NamedTuple):
    """What is known of steps, whatever their phases.

    Parameters
    ----------
    shares
        One row a step seen in full: its ``row`` in ``steps.frame``, and its time by what it goes to.
    spoken
        (row, kind, op, self_ps): what these steps do that advice speaks of.
    firsts
        (row, compiled_ps): what the first steps of each mark compiled, were they seen in full or not.
    """

    shares: pl.DataFrame
    spoken: pl.DataFrame
    firsts: pl.DataFrame


@remembered
def _known(steps: Steps) -> _Known:
    first = pl.int_range(pl.len()).over("host", "mark") == 0
    frame = steps.frame.with_row_index("row").with_columns(first=first)
    compiled = pl.min_horizontal("compile_ps", "dur_ps").clip(0)
    firsts = frame.filter("first").drop_nulls("compile_ps").select("row", compiled_ps=compiled)
    spoken = _spoken_of(steps.full())
    full = _full_steps(steps, frame, spoken)
    spoken = spoken.join(full.select("host", "step", "row"), on=["host", "step"])
    return _Known(_shared_out(full), spoken.select("row", "kind", "op", "self_ps"), firsts)


def _compiled(phases: Phases) -> pl.DataFrame:
    """Return (phase, compiled_ps): what the first steps of each mark compiled."""
    firsts = _known(phases.steps).firsts
    firsts = firsts.with_columns(_phase(phases, firsts["row"]))
    return firsts.group_by("phase").agg(pl.col("compiled_ps").sum().cast(pl.Float64))


def _spoken_of(steps: Steps) -> pl.DataFrame:
    """Return (host, step, kind, op, self_ps) of the operations that advice speaks of."""
    names = steps.ops.select("side", "category", "op").unique()
    texts = names.select(
        pl.format("{} {}: {}", *(pl.col(name).cast(pl.String).fill_null("") for name in names.columns))
    )
    kinds = [
        next((kind for kind, pattern in _SPOKEN_OF.items() if re.match(pattern, text[:_LONGEST])), None)
        for text in texts.to_series()
    ]
    spoken = names.with_columns(kind=pl.Series(kinds, dtype=pl.String)).drop_nulls("kind")
    rows = steps.ops.select("host", "step", "side", "category", "op", "self_ps")
    rows = rows.join(spoken, on=["side", "category", "op"], nulls_equal=True)
    return rows.select("host", "step", "kind", "op", pl.col("self_ps").clip(0))


def _full_steps(steps: Steps, frame: pl.DataFrame, spoken: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of `frame` seen in full and of some time, with what their devices and what `spoken` took."""
    matrix = op_matrix(steps.full())
    of_devices = matrix.values("self_ps") @ matrix.sides.astype(np.float32)
    took = spoken.group_by("host", "step").agg(
        pl.col("self_ps").filter(pl.col("kind") == kind).sum().alias(kind) for kind in _SPOKEN_OF
    )
    full = frame.filter(pl.col("seen") == "full").with_columns(of_devices=pl.Series(of_devices, dtype=pl.Float64))
    full = full.join(took, on=["host", "step"], how="left", maintain_order="left")
    return full.filter(pl.col("dur_ps") > 0).with_columns(
        pl.col([*_SPOKEN_OF]).cast(pl.Float64).fill_null(0), pl.col("dur_ps").cast(pl.Float64)
    )


def _shared_out(steps: pl.DataFrame) -> pl.DataFrame:
    """Return `steps` with the time of each that goes to each of the shares, in picoseconds."""
    dur = pl.col("dur_ps")
    time = {name: pl.col(f"{name}_ps").cast(pl.Float64).clip(0, dur) for name in _TIMES}
    host = {kind: pl.min_horizontal(kind, dur) for kind in _SPOKEN_OF}
    idle, handed = time["idle"], time["transfer"].fill_null(0)

    def held(wait: pl.Expr, room: pl.Expr = idle) -> pl.Expr:
        return pl.when(wait.is_not_null()).then(pl.min_horizontal(wait, room))  # an unknown room bounds nothing

    def either(one: pl.Expr, other: pl.Expr) -> pl.Expr:
        known = one.is_not_null() | other.is_not_null()
        return pl.when(known).then(pl.min_horizontal(pl.sum_horizontal(one, other), dur))

    def of_device(kind: str) -> pl.Expr:
        return pl.when(pl.col("of_devices") > 0).then(pl.col(kind) / pl.col("of_devices") * time["device"])

    def used(*names: str) -> pl.Expr:
        return pl.coalesce(pl.col(f"{name}_util").fill_nan(None) for name in names) * dur

    waiting = (time["input"], time["compile"], *(host[kind] for kind in ("checkpoint", "summary", "transfers")))
    explained = pl.sum_horizontal(*(held(wait) for wait in waiting), host["callbacks"])
    other = (idle - pl.sum_horizontal(*(held(wait) for wait in waiting[:-1]))).clip(0)  # than for what has a name
    return steps.select(
        *("row", "dur_ps"),
        *(time[name].alias(name) for name in ("infeed", "outfeed", "collective")),
        busy=time["device"],
        any_idle=idle,
        idle=(idle - explained).clip(0),
        input=either(time["infeed"], held(time["input"])),
        transfer=either(time["transfer"], held(host["transfers"], other)),
        formatting=of_device("formatting"),
        copies=of_device("copies"),
        recompile=held(pl.when("first").then(time["compile"] * 0).otherwise(time["compile"])),
        callbacks=held(host["callbacks"], idle + handed),  # a device may wait for its host by receiving from it
        checkpoint=held(host["checkpoint"]),
        summary=held(host["summary"]),
        mxu=used("mxu", "flops"),
        hbm=used("hbm"),
    )


def _with_work(rows: pl.DataFrame) -> pl.DataFrame:
    """Return `rows` where steps that do more than others of their mark are charged with all that they take longer."""
    rows = rows.with_columns(main=pl.col("marks").str.split(", ").list.first())
    does = {
        kind: ((pl.col(f"{kind}_often") >= 0.5) & (pl.col("phase") >= 0)).fill_null(False) for kind in _NOW_AND_THEN
    }
    plain = rows.filter(pl.col("phase") >= 0, ~pl.any_horizontal(does.values()))
    plain = plain.unique("main", keep="first", maintain_order=True).select("main", plain_ps="step_ps")
    rows = rows.join(plain, on="main", how="left", nulls_equal=True, maintain_order="left")
    more = 1 - pl.col("plain_ps") / pl.col("step_ps")
    return rows.with_columns(
        pl.when(pl.col("main").str.contains(mark))
        .then(1.0)
        .when(does[kind] & (more > 0))
        .then(more)
        .otherwise(kind)
        .alias(kind)
        for kind, mark in _NOW_AND_THEN.items()
    )


def _signatures(phases: Phases) -> pl.DataFrame:
    """Return (phase, signature, stalled_side): what runs in at least half of a phase's full steps, as a number.

    Those of devices, if there are any: hosts do this and that besides. Noise has none, nor has a phase without any.
    """
    sides = op_matrix(phases.steps.full()).sides
    side = "device" if sides.any() else "host"
    size = phases.fitted.cast(pl.Int64).alias("phase").value_counts(name="size")
    often = phases.totals.filter(pl.Series(sides[phases.totals["column"]] == sides.max(initial=0)))
    often = often.join(size, on="phase", maintain_order="left").filter(
        pl.col("phase") >= 0, pl.col("ran") * 2 >= pl.col("size")
    )
    rows = often.group_by("phase", maintain_order=True).agg("column")
    known: dict[bytes, int] = {}
    signatures = [known.setdefault(ops.to_numpy().tobytes(), len(known)) for ops in rows["column"]]
    return rows.select(
        "phase", signature=pl.Series(signatures, dtype=pl.Int64), stalled_side=pl.lit(side, dtype=pl.String)
    )


def _with_stalls(rows: pl.DataFrame, signatures: pl.DataFrame) -> pl.DataFrame:
    """Return `rows` with `stall`, `twin`, `twin_ps`, `stall_ps` and `stalled`, against the longest of the same ops."""
    known = pl.col("input").is_not_null() | pl.col("idle").is_not_null()
    waits = pl.when(known).then(pl.sum_horizontal("input", "idle"))
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
    fed = pl.col("input_ps") - pl.col("input_ps_twin")
    return rows.with_columns(
        stall=pl.col("stall_ps") / pl.col("step_ps"),
        stalled=pl.when(fed * 2 >= pl.col("stall_ps")).then(pl.lit("waiting for input")).otherwise(pl.lit("idling")),
        twin_ps="step_ps_twin",
    )


def _culprits(spoken: pl.DataFrame) -> pl.DataFrame:
    """Return (phase, formatting_op, ...): of each kind the operation that takes most of its time in each phase."""
    took = spoken.group_by("phase", "kind", "op").agg(pl.col("self_ps").sum())
    took = took.with_columns(pl.col("op").cast(pl.String)).sort("self_ps", "op", descending=[True, False])
    return took.group_by("phase").agg(
        pl.col("op").filter(pl.col("kind") == kind).first().alias(f"{kind}_op") for kind in _SPOKEN_OF
    )
