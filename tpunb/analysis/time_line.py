"""The time line of a run: each moment of a host belongs to one stretch of one account, without gaps or overlaps.

Of what is nested, what began last owns the time: a callback its own and not that of the step it runs in, an evaluation
that a callback starts its own. What is left of a step is its exclusive time, which is split by what is known of the
step, and then by what samples show.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tpunb import schema
from tpunb.frames.exclusive_time import clock_measures_input, covered, deviates, input_wait, phase_medians, stall_places
from tpunb.frames.op_matrix import Ints, factorize
from tpunb.schema import PEERS
from tpunb.signals import UNSURE

_GC = "garbage collection"  # a reason of step time deviation
FIRST = "first run of what was traced"
EACH = "first run in each step"  # of what each step traces anew: code of the program may be a part of it
SHORT = "calls under 1 ms"
REDUCTION = "reduction of a window"  # work of the profiler beside the training
BOUNDARY = "begin or end of a window"
INSIDE_STEPS = "inside steps"
DRAWN = "a generator of the program"
VALIDATING = "waiting for input"  # of an evaluation
_ACTS = "a policy acts"  # until samples divide its time
OTHERS = "other programs"  # a reason of step time deviation
ALONE = "lines that other steps do not run"  # another
IDLE = "device idle"
COMPUTING = ("step time deviation", IDLE, "productive")  # what samples in steps divide

_OUTER, _INNER = ["fit", "other"], ["tuning", "resuming"]  # spans of rank 0 and 2: others, and steps, are of 1
_BESIDE = ["profiler", _GC]  # spans that are beside the training, or within a step
_HOLDING = [BOUNDARY, "begin of the capture"]  # what the profiler does in the thread that trains
_DATA = "tracing Dataset_"  # begins what TensorFlow does to make an iterator
_INSIDE = ["fit", "evaluation", "program code"]  # where a stall may be time of a step itself

_PARTS = {
    "wait": ("data loading", None, False),
    "usual": ("productive", None, False),
    "startup": ("program startup", FIRST, True),
    "each": ("program startup", EACH, True),
    "peers": (PEERS, None, False),
    "profiler": ("profiler", None, True),
    "garbage": ("step time deviation", _GC, False),
    "deviation": ("step time deviation", None, False),
    "calls": ("callbacks", SHORT, False),
}
"""What the exclusive time of a step is split into, in this order: account, detail, and whether it is estimated."""

SHOWN = (
    ("evaluates", "evaluation", None),
    ("loads", "data loading", DRAWN),
    ("launches", "productive", None),
    ("code", "program code", INSIDE_STEPS),
)
"""What a sample shows, by the first of these columns of SAMPLES that is true: account and detail.

A call that launches a step is productive between steps, where libraries report it once it is over.
"""

_BETWEEN, _ACTING = -2, -3  # numbers of the time between steps and in which a policy acts, in place of `alike`
_SLOWED = 5  # steps beside the profiler that show how much it slows them down
_HARDLY = 0.1  # share of samples
BUSY = 0.25  # share of the processors that other programs use on a busy machine
FEWEST_SAMPLES = 5  # of which a share is right within about 0.4; doubled, a healthy run of the corpus alarms
_PLACES = 10  # within steps, by which samples are weighed
_AROUND = 4  # steps before and after one
_SLOWEST = 0.95  # share of the steps than which a first one is slower that makes what later ones need
FEWEST_TRACED = 3  # steps whose work on devices is that of those like them


class HostRun(NamedTuple):
    """What is known of one host.

    `steps` has the columns of STEPS and ``alike``, the number of the steps that one is compared with, -1 for outliers;
    the other frames those of their schemas. `clocked` says whether the clock of the host recorded steps, `complete`
    whether it recorded spans.
    """

    steps: pl.DataFrame
    spans: pl.DataFrame
    stalls: pl.DataFrame
    windows: pl.DataFrame
    start_ps: int
    end_ps: int
    clocked: bool
    complete: bool
    samples: pl.DataFrame = pl.DataFrame(schema=schema.SAMPLES)
    traced_devices: bool = False  # whether `device_ps` is the time of accelerators, or of XLA on a CPU
    recorded: float = 1.0  # share of their work, at least, that a profiler records
    load: pl.DataFrame = pl.DataFrame(schema=schema.LOAD)
    first_compiles: bool = False  # whether the first step does, though no span says so
    peers_ps: Ints | None = None  # wait of each step beyond that of the rank that came last; None if not known
    read_work: Callable[[], pl.DataFrame] | None = None  # (step, work_ps): operations of steps traced in full


class _Cells(NamedTuple):
    """Cells of time: start, width, index of the step around it, of its span, -1 for none, and whether each owns it."""

    start: Ints
    width: Ints
    step: Ints
    span: Ints
    of_step: NDArray[np.bool_]
    of_span: NDArray[np.bool_]


def segments(run: HostRun) -> pl.DataFrame:
    """Return the stretches of a host in order, without gaps: they add up to its wall time.

    Columns: ``start_ps``, ``dur_ps``, ``account``, ``detail``, ``step``, ``alike``, ``unit`` (the number of the step,
    span or gap that it is a part of) and ``source``.
    """
    start, end = _disjoint(run.steps, run.start_ps, run.end_ps)
    spans = _owning_spans(run, start, end)
    loop_end = _loop_end(run, start, end)
    cells = _sweep(run, start, end, spans, loop_end)
    owned = [
        _of_steps(run, cells, start, end, spans),
        _of_spans(run, cells, spans),
        _gaps(run, cells, start, end, spans, loop_end),
    ]
    steps = run.steps.select("step", "alike").with_row_index("index").with_columns(pl.col("index").cast(pl.Int64))
    pieces = pl.concat(owned, how="diagonal").join(steps, on="index", how="left", maintain_order="left")
    apart = pl.col("account").is_in(["evaluation", "tuning", "resuming"]) | pl.col("fits").fill_null(value=False)
    within = pl.when(~(apart & (pl.col("unit") >= run.steps.height))).then("alike")
    pieces = pieces.with_columns(alike=within).select(_COLUMNS).sort("start_ps")
    return _named_deviations(_divided(pieces, run), run)


_COLUMNS = ["start_ps", "dur_ps", "account", "detail", "step", "alike", "unit", "source"]


def _disjoint(steps: pl.DataFrame, low: int, high: int) -> tuple[Ints, Ints]:
    """Return start and end of the steps within the run; a step that begins before the last ended is cut."""
    start = steps["start_ps"].fill_null(low).to_numpy().astype(np.int64).clip(low, high)
    end = (start + steps["dur_ps"].fill_null(0).to_numpy().clip(0)).clip(low, high)
    before = np.maximum.accumulate(np.concatenate([[low], end]))[:-1]
    start = np.maximum(start, before)
    return start, np.maximum(end, start)


def _owning_spans(run: HostRun, start: Ints, end: Ints) -> pl.DataFrame:
    """Return the spans that own time, in the order in which later ones win."""
    collections = pl.Series("collects", _between_steps(run, start, end), dtype=pl.Boolean)
    beside = pl.col("account").is_in(_BESIDE) & ~pl.col("detail").is_in(_HOLDING).fill_null(value=False)
    predicts = pl.lit(_trains(run)) & (pl.col("account") == "fit") & pl.col("detail").eq_missing("predict")
    if run.peers_ps is not None:  # the waits of steps are known against the other ranks
        begins = run.spans["start_ps"].to_numpy().astype(np.int64)
        in_steps = covered(_until(run.steps), begins, begins + 1) > 0
        beside |= pl.lit(pl.Series(in_steps)) & (pl.col("account") == PEERS)
    account = pl.when("collects").then(pl.lit("step time deviation")).otherwise("account")
    spans = (
        run.spans.with_columns(collections)
        .filter(~beside | pl.col("collects"))
        .with_columns(
            account=pl.when(predicts).then(pl.lit("evaluation")).otherwise(account),
            detail=pl.when("collects").then(pl.lit(_GC)).otherwise("detail"),
            start_ps=pl.col("start_ps").clip(run.start_ps, run.end_ps),
            end_ps=(pl.col("start_ps") + pl.col("dur_ps")).clip(run.start_ps, run.end_ps),
        )
        .filter(pl.col("end_ps") > pl.col("start_ps"))
        .sort("start_ps")
    )
    evaluations = spans.filter(account="evaluation").select("start_ps", until_ps=pl.col("end_ps").cum_max())
    data = (pl.col("account") == "data loading") | pl.col("detail").str.starts_with(_DATA).fill_null(value=False)
    of_evaluation = data & (pl.col("end_ps") <= pl.col("until_ps").fill_null(run.start_ps))
    outer = pl.col("account").is_in(_OUTER) & pl.col("detail").ne_missing(UNSURE)
    rank = 1 + pl.col("account").is_in(_INNER).cast(pl.Int64) - outer.cast(pl.Int64)
    spans = spans.join_asof(evaluations, on="start_ps").with_columns(rank=rank)
    spans = spans.with_columns(account=pl.when(of_evaluation).then(pl.lit("evaluation")).otherwise("account"))
    return spans.sort("rank", "start_ps", "end_ps", descending=[False, False, True])


def _between_steps(run: HostRun, start: Ints, end: Ints) -> NDArray[np.bool_]:
    """Return which spans collect garbage between two steps, where nothing else is known of the time."""
    begins, ends = (column.to_numpy().astype(np.int64) for column in _until(run.spans))
    others = _until(run.spans.filter(~pl.col("account").is_in([*_BESIDE, *_OUTER])))
    steps = pl.DataFrame({"start_ps": start, "end_ps": end})
    collects = (run.spans["account"] == _GC).fill_null(value=False).to_numpy()
    if not collects.any() or not len(start):
        return np.zeros(len(begins), np.bool_)
    inside = (begins >= start[0]) & (begins < end.max())
    taken = covered(others, begins, ends) + covered(steps, begins, ends)
    return np.asarray(collects & inside & (taken == 0))


def _loop_end(run: HostRun, start: Ints, end: Ints) -> int:
    """Return when the last step ends, or what runs after it at lines that run between other steps, too."""
    if not len(start):
        return run.start_ps
    samples = run.samples.sort("start_ps").filter(pl.col("start_ps") >= start[0])
    at, last = samples["start_ps"].to_numpy(), int(end.max())
    between = pl.Series(at >= end[np.searchsorted(start, at, side="right") - 1]) & (samples["start_ps"] < last)
    lines = samples.filter(between)["place"].drop_nulls()
    later = samples.filter(pl.col("start_ps") >= last).with_columns(pl.col("place").is_in(lines.implode()).cum_min())
    return max(last, int(later.filter("place")["start_ps"].max() or 0))  # type: ignore[arg-type]


def _sweep(run: HostRun, start: Ints, end: Ints, spans: pl.DataFrame, loop_end: int) -> _Cells:
    """Return the time between any two bounds, and its owner: of the highest rank, and of these what began last."""
    begins, ends, rank = (spans[name].to_numpy().astype(np.int64) for name in ("start_ps", "end_ps", "rank"))
    bounds = np.unique(np.concatenate([[run.start_ps, loop_end, run.end_ps], start, end, begins, ends]))
    at, width = bounds[:-1], np.diff(bounds)
    step = np.searchsorted(start, at, side="right") - 1
    if len(start):
        step[at >= end[step]] = -1
    span = np.full(len(at), -1)
    low, high = np.searchsorted(bounds, begins), np.searchsorted(bounds, ends)
    for number in range(len(begins)):
        span[low[number] : high[number]] = number
    in_step, of_span = step >= 0, span >= 0
    both = in_step & of_span
    of_span[both] = rank[span[both]] + (begins[span[both]] >= start[step[both]]) > 1
    return _Cells(at, width, step, span, in_step & ~of_span, of_span)


def _of_steps(run: HostRun, cells: _Cells, start: Ints, end: Ints, spans: pl.DataFrame) -> pl.DataFrame:
    """Return the exclusive time of the steps: both cells and parts are cut where the other ends."""
    at, width, step = (column[cells.of_step] for column in (cells.start, cells.width, cells.step))
    cell_ends, part_ends = np.cumsum(width), np.cumsum(_parts(run, start, end, spans, cells).reshape(-1))
    ends = np.unique(np.concatenate([cell_ends, part_ends]))
    ends = ends[ends > 0]
    cell, part = np.searchsorted(cell_ends, ends), np.searchsorted(part_ends, ends)
    dur = np.diff(ends, prepend=0)
    begin = at[cell] + (ends - dur - (cell_ends[cell] - width[cell])) if len(ends) else ends
    pieces = _frame(begin, dur, step[cell] if len(ends) else part).with_columns(
        pl.col("index").alias("unit"), part=pl.Series(part % len(_PARTS), dtype=pl.Int64)
    )
    kinds = [(number, *kind) for number, kind in enumerate(_PARTS.values())]
    table = pl.DataFrame(
        kinds, {"part": pl.Int64, "account": pl.String, "detail": pl.String, "guess": pl.Boolean}, orient="row"
    )
    in_steps = run.stalls.filter(pl.col("kind").is_null() | pl.col("kind").is_in(_INSIDE))
    facts = run.steps.select(
        has_input=pl.col("input_ps").is_not_null(),
        by_clock=clock_measures_input(),
        evaluates=_evaluates(run),
        reason=stall_places(run.steps, in_steps),
        wait_place=stall_places(run.steps, run.stalls.filter(kind="data loading")),
    ).with_row_index("index")
    account, loads = pl.col("account"), pl.col("account") == "data loading"
    of_evaluation = pl.col("evaluates") & account.is_in(["productive", "data loading"])
    wait = pl.when("evaluates").then(pl.lit(VALIDATING)).otherwise("wait_place")
    place = pl.when(loads).then(wait).when(account == "step time deviation").then("reason")
    by_windows = pl.lit(not run.clocked) | (loads & ~pl.col("by_clock"))
    source = pl.when(by_windows).then(pl.lit("windows")).otherwise(pl.lit("clock"))
    guessed = pl.col("guess") | (loads & ~pl.col("has_input"))
    return (
        pieces.join(table, on="part", how="left", maintain_order="left")
        .join(facts.with_columns(pl.col("index").cast(pl.Int64)), on="index", how="left", maintain_order="left")
        .with_columns(
            account=pl.when(of_evaluation).then(pl.lit("evaluation")).otherwise(account),
            detail=pl.coalesce("detail", place),
            source=pl.when(guessed).then(pl.lit("estimated")).otherwise(source),
        )
        .select("start_ps", "dur_ps", "index", "account", "detail", "unit", "source")
    )


def _parts(run: HostRun, start: Ints, end: Ints, spans: pl.DataFrame, cells: _Cells) -> Ints:
    """Return how the exclusive time of each step is split into `_PARTS`: (steps, parts)."""
    at, width, step = (column[cells.of_step] for column in (cells.start, cells.width, cells.step))
    left = np.zeros(len(start), np.int64)
    np.add.at(left, step, width)
    parts = dict[str, Ints]()

    def take(part: str, time: Ints) -> None:
        parts[part] = np.minimum(time.clip(0), left)
        np.subtract(left, parts[part], out=left)

    take("wait", run.steps.select(input_wait()).to_series().to_numpy().astype(np.int64))
    take("peers", np.zeros(len(left), np.int64) if run.peers_ps is None else run.peers_ps)
    calls = run.steps["callbacks_ps"].fill_null(0).to_numpy().astype(np.int64).copy()
    called = spans.filter(account="callbacks")
    around = np.searchsorted(start, called["start_ps"].to_numpy(), side="right") - 1
    np.subtract.at(calls, around[around >= 0], (called["end_ps"] - called["start_ps"]).to_numpy()[around >= 0])
    take("calls", calls)
    garbage = np.zeros(len(left), np.int64)
    np.add.at(garbage, step, covered(_until(run.spans.filter(account=_GC)), at, at + width))
    take("garbage", garbage)

    kind = factorize(run.steps["kind"].fill_null("").rank("dense").to_numpy().astype(np.int64))[1]
    medians = phase_medians(left, run.steps["alike"].fill_null(-1).to_numpy(), kind)
    starts_up = np.zeros(len(left), np.bool_)
    of_startup = np.flatnonzero(spans["account"] == "program startup")
    starts_up[cells.step[(cells.step >= 0) & cells.of_span & np.isin(cells.span, of_startup)]] = True
    slowest, unexplained = np.sort(left)[int(_SLOWEST * left.size) :][:1], _unexplained(run)
    starts_up[:1] |= run.first_compiles | (unexplained[:1] & (left[:1] > slowest))
    without, each = _without_startup(run, left, starts_up, kind, medians)
    startup = np.where(starts_up, left - without, 0).clip(0)
    excess = (left - medians - startup).clip(0)
    delays, beside = _delays(run, start, end, left)
    profiler = np.minimum(excess, delays)
    deviation = np.where(deviates(left, medians), excess - profiler, 0)
    if run.traced_devices and left.size:
        # where the host runs ahead, what one step seems to take longer the steps around it make up for
        net = np.convolve(np.pad(left - medians - startup - profiler, _AROUND), np.ones(2 * _AROUND + 1), "valid")
        deviation = np.minimum(deviation, net.clip(0).astype(np.int64))
    take("each", np.where(each, startup, 0))
    take("startup", np.where(each, 0, startup))
    slower = np.where(unexplained & ~_crowded(run, start), np.minimum(deviation, beside), 0)
    take("profiler", profiler + slower)
    take("deviation", deviation - slower)
    take("usual", left.copy())
    return np.stack([parts[name] for name in _PARTS], axis=1)


def _without_startup(
    run: HostRun, left: Ints, starts_up: NDArray[np.bool_], kind: Ints, medians: Ints
) -> tuple[Ints, NDArray[np.bool_]]:
    """Return what steps would take that did not trace: at most the median of those of their kind that do not."""
    # if all of them trace, it is what the operations of those traced in full take, if any are: the second array is true
    usual, all_trace = medians.copy(), np.zeros(left.size, np.bool_)
    for number in np.unique(kind[starts_up]):
        of_kind = kind == number
        others = left[of_kind & ~starts_up]
        if not len(others) and run.read_work is not None and of_kind.sum() >= FEWEST_TRACED:
            work = run.steps.filter(pl.Series(of_kind)).join(run.read_work(), on="step")["work_ps"]
            others = work.drop_nulls().to_numpy()
            all_trace |= of_kind & (len(others) > 0)
        if len(others):
            usual[of_kind] = np.minimum(usual[of_kind], int(np.median(others)))
    return usual, all_trace


def _until(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.select("start_ps", end_ps=pl.col("start_ps") + pl.col("dur_ps"))


def _unexplained(run: HostRun) -> NDArray[np.bool_]:
    """Return of which steps code of the program hardly runs in comparable ones."""
    times = {"waited_ps": pl.col("start_ps") + input_wait(), "end_ps": pl.col("start_ps") + pl.col("dur_ps")}
    order = run.steps.select("start_ps", "alike", **times).drop_nulls("start_ps")
    found = run.samples.sort("start_ps").join_asof(order.sort("start_ps"), on="start_ps", check_sortedness=False)
    computes = found.filter((pl.col("start_ps") >= pl.col("waited_ps")) & (pl.col("start_ps") < pl.col("end_ps")))
    shares = computes.group_by("alike").agg(pl.col("code").mean())
    code = run.steps.select("alike").join(shares, on="alike", how="left", maintain_order="left", nulls_equal=True)
    return np.asarray((code["code"].fill_null(0.0) < _HARDLY).to_numpy())


def _delays(run: HostRun, start: Ints, end: Ints, exclusive: Ints) -> tuple[Ints, Ints]:
    """Return the most that the profiler can have held up each step, and the most if nothing else has."""
    # all of the time in which it starts and collects a window; of a step that is traced, or beside which a window is
    # reduced, what the median one of these takes longer than others like it; second, all of the time beside it if that
    # median is longer, else half: a single step has half of a processor, at least
    busy, windows = run.spans.filter(account="profiler"), _until(run.windows)
    reductions = _until(busy.filter(pl.col("detail").is_in([REDUCTION, "loading"]).fill_null(value=False)))
    tracing, reducing = covered(windows, start, end), covered(reductions, start, end)
    both, all_busy = pl.concat([reductions, windows]), pl.concat([_until(busy), windows])
    collecting = np.where(busy.is_empty(), 0, covered(all_busy, start, end) - covered(both, start, end))
    beside = np.where(busy.is_empty(), 0, np.maximum(tracing, reducing))
    how = np.where(beside == 0, 0, np.where(reducing > tracing, 2, 1))
    frame = run.steps.select("alike", exclusive=pl.Series(exclusive, dtype=pl.Int64), how=pl.Series(how))
    median = pl.col("exclusive").median()
    free = frame.filter(how=0).group_by("alike").agg(free=median)
    # a stall in one of a few is no median
    slowed = frame.filter(pl.col("how") > 0).group_by("alike", "how").agg(pl.when(pl.len() >= _SLOWED).then(median))
    medians = slowed.join(free, on="alike").select("alike", "how", more=pl.col("exclusive") - pl.col("free"))
    more = frame.join(medians, on=["alike", "how"], how="left", maintain_order="left")["more"].fill_null(0).clip(0)
    outlier = frame["alike"].fill_null(-1) < 0
    longer = pl.select(pl.when(outlier).then(more.max()).otherwise(more).cast(pl.Int64)).to_series().to_numpy()
    return np.asarray(collecting + np.minimum(longer, beside), dtype=np.int64), np.where(longer, beside, beside // 2)


def _of_spans(run: HostRun, cells: _Cells, spans: pl.DataFrame) -> pl.DataFrame:
    """Return the time of spans; that of a method of Keras around its steps prepares them."""
    of = cells.of_span
    chosen = spans[cells.span[of]]
    fits = ~chosen["account"].is_in([*schema.ACCOUNTS])
    acting = pl.lit(acts(run.spans, run.steps)) & (pl.col("account") == "evaluation")
    return (
        _frame(cells.start[of], cells.width[of], cells.step[of])
        .with_columns(
            account=pl.when(fits).then(pl.lit("preparation")).otherwise(chosen["account"]),
            detail=chosen["detail"],
            unit=pl.Series(cells.span[of], dtype=pl.Int64) + run.steps.height,
            source=pl.lit("clock" if run.clocked else "windows"),
            fits=fits,
        )
        .with_columns(detail=pl.when(acting).then(pl.lit(_ACTS)).otherwise("detail"))
    )


def acts(spans: pl.DataFrame, steps: pl.DataFrame) -> bool:
    """Return whether models are in their mode to evaluate while no batch is evaluated, as a policy that acts."""
    spans = spans.filter(account="evaluation")
    return spans.height > 0 and spans["detail"].null_count() == spans.height and "eval" not in steps["kind"]


def _gaps(run: HostRun, cells: _Cells, start: Ints, end: Ints, spans: pl.DataFrame, loop_end: int) -> pl.DataFrame:
    """Return the time outside of steps and spans."""
    gap = ~cells.of_step & ~cells.of_span
    at = cells.start[gap]
    after, before = np.searchsorted(start, at), np.searchsorted(start, at, side="right") - 1
    loop = np.ones(len(start) + 1, np.bool_)  # steps of a loop of the program, not of a method of Keras
    methods = spans.filter(pl.col("account").is_in(["fit", "evaluation"])).select("start_ps", "end_ps")
    loop[:-1] = covered(methods, start, np.maximum(end, start + 1)) == 0
    inside = (before >= 0) & (at < loop_end) & loop[before] & loop[np.minimum(after, len(start))]
    if run.complete:
        account = np.where(inside, "program code", "preparation")
    else:
        outer = (before < 0) | (after >= len(start))
        account = np.where(outer & run.clocked & (len(start) > 0), "preparation", "other")
    return _frame(at, cells.width[gap], np.full(len(at), -1)).with_columns(
        account=pl.Series(account, dtype=pl.String),
        unit=pl.Series(run.steps.height + spans.height + after, dtype=pl.Int64),
        source=pl.lit("clock" if run.clocked else "windows"),
    )


def _frame(start: Ints, width: Ints, step: Ints) -> pl.DataFrame:
    """Return pieces of the steps of these indices, -1 for none."""
    columns = dict.fromkeys(["start_ps", "dur_ps", "index"], pl.Int64)
    return pl.DataFrame({"start_ps": start, "dur_ps": width, "index": step}, schema=columns)


def _group() -> pl.Expr:
    """Return which time samples divide together: `alike` of steps as far as they compute, or another; null for none."""
    computes = pl.col("account").is_in(COMPUTING) & ~pl.col("detail").eq_missing(_GC)
    computes |= pl.col("detail").eq_missing(EACH)
    between = pl.when(pl.col("account") == "program code").then(pl.lit(_BETWEEN))
    return between.when(pl.col("detail") == _ACTS).then(pl.lit(_ACTING)).when(computes).then("alike")


def _divided(pieces: pl.DataFrame, run: HostRun) -> pl.DataFrame:
    """Return the pieces divided by what samples in them show, and traced devices."""
    samples, traced = _placed(run.samples, pieces), list[int]()
    acting = _shares(samples.filter(pl.col("group") == _ACTING), "python")  # what it moves in, and is beside
    pieces = pieces if acting.is_empty() else _moved(_parted(pieces, acting, traced), "program code")
    pieces = pieces.with_columns(detail=pl.when(pl.col("detail").ne_missing(_ACTS)).then("detail"))
    samples = samples.filter(pl.col("group") != _ACTING)
    for flag, account, detail in SHOWN:
        if account == "program code":  # which time between steps is anyway
            samples, (pieces, traced) = samples.filter(pl.col("group") != _BETWEEN), _by_device(pieces, run)
        of_flag = samples if flag != "launches" else samples.filter(pl.col("group") == _BETWEEN)
        shares = _shares(of_flag, flag)
        pieces = pieces if shares.is_empty() else _moved(_parted(pieces, shares, traced), account, detail)
        samples = samples.filter(~pl.col(flag).fill_null(value=False))
    return pieces


def _placed(samples: pl.DataFrame, pieces: pl.DataFrame) -> pl.DataFrame:
    """Return the samples in time that they divide, with its group and the time that each stands for."""
    dur_ps = pl.when(_group().is_not_null()).then("dur_ps").otherwise(0)
    order = pieces.select("start_ps", "unit", "dur_ps", group=_group(), since_ps=dur_ps.cum_sum().over("unit") - dur_ps)
    order = order.with_columns(pl.col("since_ps") - pl.col("start_ps")).sort("start_ps")
    placed = samples.sort("start_ps").join_asof(order, on="start_ps", check_sortedness=False).drop_nulls("group")
    placed = placed.with_columns(pl.col("since_ps") + pl.col("start_ps"))
    units = order.drop_nulls("group").group_by("group", "unit").agg(pl.col("dur_ps").sum())
    lengths, stands_ps = units.partition_by("group", as_dict=True), np.zeros(placed.height)
    for group, rows in placed.with_row_index().group_by("group"):
        times = _time_of_samples(rows["since_ps"].to_numpy(), lengths[group]["dur_ps"].to_numpy())
        stands_ps[rows["index"]] = times
    return placed.with_columns(stands_ps=pl.Series(stands_ps))


def _time_of_samples(since_ps: Ints, lengths: Ints) -> NDArray[np.float64]:
    """Return the time that each sample in steps of these lengths stands for."""
    # those of each tenth, by the time since their step began, share the time there: samples may beat with the steps,
    # and none is right after the program takes the interpreter lock
    places = min(_PLACES, len(since_ps) // FEWEST_SAMPLES)
    edges = np.unique(np.quantile(since_ps, np.arange(1, places) / places)) if places else np.zeros(0)
    before = np.minimum.outer([0, *edges, lengths.max()], lengths).sum(axis=1)
    place = np.searchsorted(edges, since_ps, side="right")
    return np.asarray(np.diff(before)[place] / np.bincount(place)[place])


def _by_device(pieces: pl.DataFrame, run: HostRun) -> tuple[pl.DataFrame, list[int]]:
    """Split off the time in steps in which devices idle, and return the `alike` of steps where that is known."""
    # the work of a step on devices is that of those like it traced in full, which may themselves last longer,
    # or be shorter than others where the host runs ahead: no larger share of time is idle than in them
    if not run.traced_devices:
        return pieces, []
    full, computes = pl.col("traced") == "full", pl.col("account") == "productive"
    work = run.steps.group_by("alike").agg(
        n=pl.col("device_ps").filter(full).count(),
        work_ps=pl.col("device_ps").filter(full).mean() * pl.len() / run.recorded,
        seen=1 - (pl.col("device_ps").filter(full).sum() / run.recorded / pl.col("dur_ps").filter(full).sum()),
    )
    work = work.filter(pl.col("n") >= FEWEST_TRACED)
    usual = pieces.filter(computes).group_by("alike").agg(usual_ps=pl.col("dur_ps").sum())
    part = 1 - (pl.col("work_ps") / pl.col("usual_ps")).fill_nan(1)
    shares = usual.join(work, on="alike").select("alike", part=pl.min_horizontal(part, "seen").fill_nan(0).clip(0))
    split = pieces.join(shares, on="alike", how="left", maintain_order="left")
    part = pl.when(computes).then((pl.col("dur_ps") * pl.col("part")).round().cast(pl.Int64))
    return _moved(split.with_columns(part_ps=part), IDLE), shares["alike"].to_list()


def _shares(samples: pl.DataFrame, flag: str) -> pl.DataFrame:
    """Return (group, flagged): the share of time in which samples have a flag, where they have."""
    flagged = (pl.col(flag).fill_null(value=False) * pl.col("stands_ps")).sum() / pl.col("stands_ps").sum()
    shares = samples.group_by("group").agg(n=pl.len(), flagged=flagged.fill_nan(0.0))
    return shares.filter(pl.col("n") >= FEWEST_SAMPLES, pl.col("flagged") > 0).select("group", "flagged")


def _parted(pieces: pl.DataFrame, shares: pl.DataFrame, traced: list[int]) -> pl.DataFrame:
    """Return the pieces with ``part_ps``: what of each has the flag of the shares."""
    # a step is longer for it: that is in its deviation and, in `traced` ones, in the time in which devices idle
    parts = pieces.with_columns(group=_group()).join(shares, on="group", how="left", maintain_order="left")
    mine, dur_ps = pl.col("flagged").is_not_null(), pl.col("dur_ps")
    spare = pl.col("account").is_in(["step time deviation", IDLE]) | pl.col("detail").eq_missing(EACH)
    flagged_ps = (pl.col("flagged") * dur_ps.sum()).over("group")
    spare_ps, rest_ps = (dur_ps.filter(of).sum().over("group") for of in (spare, ~spare))
    rest = pl.when(~pl.col("group").is_in(traced)).then((flagged_ps - spare_ps) / rest_ps)
    share = pl.when(spare).then(flagged_ps / spare_ps).otherwise(rest)
    return parts.with_columns(
        part_ps=pl.when(mine).then((dur_ps * share.fill_nan(0).clip(0, 1)).round().cast(pl.Int64))
    )


def _evaluates(run: HostRun) -> pl.Expr:
    """Return which steps evaluate: a prediction does beside a training."""
    return (pl.col("kind") == "eval") | ((pl.col("kind") == "predict") & _trains(run))


def _trains(run: HostRun) -> bool:
    return bool((run.steps["kind"] == "train").any())


def _others(run: HostRun) -> pl.DataFrame:
    """Return (start_ps, others): of each second of load whether other programs kept the machine busy."""
    return run.load.select("start_ps", others=pl.col("machine_cpu") - pl.col("cpu") > BUSY).sort("start_ps")


def _crowded(run: HostRun, start: Ints) -> NDArray[np.bool_]:
    """Return which steps began while other programs kept the machine busy."""
    begins = pl.DataFrame({"start_ps": start}, {"start_ps": pl.Int64})  # in order
    others = begins.join_asof(_others(run), on="start_ps")["others"]
    return np.asarray(others.fill_null(value=False).to_numpy())


def _named_deviations(pieces: pl.DataFrame, run: HostRun) -> pl.DataFrame:
    """Name other programs and lines as reasons of slow steps; what evaluations deviate for is theirs."""
    # functions and data of an evaluation may differ from step to step
    pieces = pieces.join_asof(_others(run), on="start_ps", check_sortedness=False)
    deviation = (pl.col("account") == "step time deviation") & pl.col("detail").ne_missing(_GC)
    evaluates = pl.col("step").is_in(run.steps.filter(_evaluates(run))["step"].implode()) & pl.col("detail").is_null()
    alone = pl.col("unit").is_in(_alone(pieces, run.samples).implode())
    named = pl.when(pl.col("others").fill_null(value=False)).then(pl.lit(OTHERS)).otherwise("detail")
    reason = pl.when(alone).then(pl.coalesce("detail", pl.lit(ALONE))).otherwise(named)
    return pieces.with_columns(
        account=pl.when(deviation & evaluates).then(pl.lit("evaluation")).otherwise("account"),
        detail=pl.when(deviation & ~evaluates).then(reason).otherwise("detail"),
    ).select(_COLUMNS)


def _alone(pieces: pl.DataFrame, samples: pl.DataFrame) -> pl.Series:
    """Return the units of slow steps that are often at places where other steps hardly ever are."""
    slow = (pl.col("account") == "step time deviation").any().over("unit")
    order = pieces.select("start_ps", "unit", slow=slow, inside=pl.col("account").is_in(COMPUTING)).sort("start_ps")
    found = samples.sort("start_ps").join_asof(order, on="start_ps", check_sortedness=False)
    found = found.filter("inside").drop_nulls("place")
    n_slow, n_usual = pl.col("slow").sum().over("place"), (~pl.col("slow")).sum().over("place")
    rare = n_usual * pl.col("slow").sum() < _HARDLY * n_slow * (~pl.col("slow")).sum()
    found = found.with_columns(alone=rare & (n_slow >= FEWEST_SAMPLES))
    units = found.filter("slow").group_by("unit").agg(pl.col("alone").mean())
    return units.filter(pl.col("alone") > _HARDLY)["unit"]


def _moved(pieces: pl.DataFrame, account: str, detail: str | None = None) -> pl.DataFrame:
    """Return the pieces without the last ``part_ps`` of each, which are pieces of another account, estimated."""
    kept = pieces.with_columns(pl.col("dur_ps") - pl.col("part_ps").fill_null(0))
    moved = kept.with_columns(
        pl.col("start_ps") + pl.col("dur_ps"),
        dur_ps=pl.col("part_ps"),
        account=pl.lit(account),
        detail=pl.lit(detail, pl.String),
        source=pl.lit("estimated"),
    )
    return pl.concat([each.filter(pl.col("dur_ps") > 0).select(_COLUMNS) for each in (kept, moved)]).sort("start_ps")
