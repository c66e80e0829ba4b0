"""Split the wall time of one host into stretches of one account each, without gaps or overlaps.

A stretch of time belongs to what began last: a callback to itself and not to the step it runs in, an evaluation that a
callback starts to the evaluation. What is left of a step is its exclusive time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tpunb import schema
from tpunb.frames.exclusive_time import clock_measures_input, covered, deviates, input_wait, phase_medians, stall_places
from tpunb.frames.op_matrix import Ints, factorize
from tpunb.schema import PEERS

_OUTER, _INNER = ["fit", "other"], ["tuning", "resuming"]  # of spans that begin together
_BESIDE = ["profiler", "garbage collection"]  # beside the training, or within a step
_GC = "garbage collection"  # a reason of step time deviation
EACH = "first run in each step"  # of what each step traces anew: code of the program may be a part of it
_PARTS = (
    *("data loading", "productive", "program startup", EACH, PEERS),
    *("profiler", _GC, "step time deviation", "callbacks"),
)
"""What the exclusive time of a step is split into, in this order."""
SHORT = "calls under 1 ms"
_DATA = "tracing Dataset_"  # begins what TensorFlow does to make an iterator
REDUCTION = "reduction of a window"  # work of the profiler beside the training
BOUNDARY = "begin or end of a window"
_HOLDING = [BOUNDARY, "begin of the capture"]  # what the profiler does in the thread that trains
_SLOWED = 5  # steps beside the profiler that show how much it slows them down
_GENERATOR = "a generator of the program"
INSIDE_STEPS = "inside steps"
OTHERS = "other programs"  # a reason of step time deviation
ALONE = "lines that other steps do not run"  # another
_FEWEST_ALONE, _RARE = 5, 0.1  # samples of a place in slow steps; the share of them that others may have in their time
_ALONE = 0.25  # share of the samples of a slow step
_LOADED_PS = 5 * 10**12  # after the begin of a second of load, at most, of which there may be no record
_HARDLY = 0.1  # share of samples
BUSY = 0.25  # share of the processors that other programs use on a busy machine
IDLE = "device idle"
COMPUTING = ("step time deviation", IDLE, "productive")  # what samples in steps divide
_FEWEST_SAMPLES = 10  # of which a share is right within about 0.3
_PLACES, _FEWEST_OF_PLACE = 10, 5  # within steps, by which samples are weighed, and samples of each
_AROUND = 4  # steps before and after one
_SLOWEST = 0.95  # share of the steps than which a first one is slower that makes what later ones need
FEWEST_TRACED = 3  # steps of a phase whose work on devices is that of its others
_INSIDE = ["fit", "evaluation", "program code"]  # where a stall may be time of a step itself


class HostRun(NamedTuple):
    """What is known of one host.

    `steps` has the columns of STEPS and ``alike``, the number of the steps that one is compared with, -1 for outliers;
    the other frames those of their schemas. `clocked`
    says whether the clock of the host recorded steps, `complete` whether it recorded spans.
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
    """Cells of time: start, width, index of the step around it, of its span, -1 for none, and its owner."""

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
    spans = _sorted_spans(run)
    cells = _cells(run, start, end, spans)
    exclusive = np.zeros(len(start), np.int64)
    np.add.at(exclusive, cells.step[cells.of_step], cells.width[cells.of_step])
    parts = _parts(run, start, end, exclusive, spans, cells)
    pieces = pl.concat(
        [
            _step_pieces(run, cells, exclusive, parts),
            _span_pieces(run, cells, spans),
            _gaps(run, cells, start, end, spans),
        ]
    ).sort("start_ps")
    placed = _placed(run.samples, pieces)
    others = placed.filter(~pl.col("evaluates").fill_null(value=False))  # what an evaluation reads is its own
    pieces = _between_steps(pieces, placed, "evaluates", "evaluation")
    pieces = _between_steps(pieces, others, "loads", "data loading", _GENERATOR)
    pieces = _in_steps(pieces, placed, "evaluates", "evaluation")
    pieces = _in_steps(pieces, others, "loads", "data loading", _GENERATOR)
    pieces, phases = _by_device(pieces, run)
    others = others.filter(~pl.col("loads").fill_null(value=False))
    pieces = _in_steps(pieces, others, "code", "program code", INSIDE_STEPS, phases)
    return _slow_steps(pieces, run)


def _disjoint(steps: pl.DataFrame, low: int, high: int) -> tuple[Ints, Ints]:
    """Return start and end of the steps within the run; a step that begins before the last ended is cut."""
    start = steps["start_ps"].fill_null(low).to_numpy().astype(np.int64).clip(low, high)
    end = (start + steps["dur_ps"].fill_null(0).to_numpy().clip(0)).clip(low, high)
    before = np.maximum.accumulate(np.concatenate([[low], end]))[:-1]
    start = np.maximum(start, before)
    return start, np.maximum(end, start)


def _sorted_spans(run: HostRun) -> pl.DataFrame:
    """Return the spans within the run in the order in which later ones win."""
    low, high = run.start_ps, run.end_ps
    beside = pl.col("account").is_in(_BESIDE) & ~pl.col("detail").is_in(_HOLDING).fill_null(value=False)
    predicts = pl.lit(_trains(run)) & (pl.col("account") == "fit") & pl.col("detail").eq_missing("predict")
    account = pl.when(predicts).then(pl.lit("evaluation")).otherwise("account")
    if run.peers_ps is not None:  # the waits of steps are known against the other ranks
        begins = run.spans["start_ps"].to_numpy().astype(np.int64)
        steps = run.steps.select("start_ps", end_ps=pl.col("start_ps") + pl.col("dur_ps"))
        beside |= pl.lit(pl.Series(covered(steps, begins, begins + 1) > 0)) & (pl.col("account") == PEERS)
    spans = (
        run.spans.filter(~beside)
        .with_columns(account=account)
        .with_columns(
            start_ps=pl.col("start_ps").clip(low, high),
            end_ps=(pl.col("start_ps") + pl.col("dur_ps")).clip(low, high),
            rank=pl.when(pl.col("account").is_in(_OUTER))
            .then(0)
            .when(pl.col("account").is_in(_INNER))
            .then(2)
            .otherwise(1),
        )
    )
    spans = spans.filter(pl.col("end_ps") > pl.col("start_ps"))
    evaluations = spans.filter(account="evaluation").sort("start_ps")
    evaluations = evaluations.select("start_ps", until_ps=pl.col("end_ps").cum_max())
    within = pl.col("end_ps") <= pl.col("until_ps").fill_null(low)
    data = (pl.col("account") == "data loading") | pl.col("detail").str.starts_with(_DATA).fill_null(value=False)
    account = pl.when(within & data).then(pl.lit("evaluation")).otherwise("account")  # its data, too
    spans = spans.sort("start_ps").join_asof(evaluations, on="start_ps").with_columns(account=account)
    return spans.sort("rank", "start_ps", "end_ps", descending=[False, False, True])


def _cells(run: HostRun, start: Ints, end: Ints, spans: pl.DataFrame) -> _Cells:
    begins, ends, rank = (spans[name].to_numpy().astype(np.int64) for name in ("start_ps", "end_ps", "rank"))
    bounds = np.unique(np.concatenate([[run.start_ps, run.end_ps], start, end, begins, ends]))
    at, width = bounds[:-1], np.diff(bounds)
    step = np.searchsorted(start, at, side="right") - 1
    if len(start):
        step[at >= end[step]] = -1
    span = np.full(len(at), -1)
    low, high = np.searchsorted(bounds, begins), np.searchsorted(bounds, ends)
    for number in range(len(begins)):
        span[low[number] : high[number]] = number
    in_step, in_span = step >= 0, span >= 0
    of_span = in_span & ~in_step
    both = in_step & in_span
    later = (begins[span[both]] >= start[step[both]]) & (rank[span[both]] > 0)
    of_span[both] = later | (rank[span[both]] == 2)
    return _Cells(at, width, step, span, in_step & ~of_span, of_span)


def _parts(run: HostRun, start: Ints, end: Ints, exclusive: Ints, spans: pl.DataFrame, cells: _Cells) -> Ints:
    """Return how the exclusive time of each step is split: (steps, parts), whose rows add up to `exclusive`."""
    steps, left = run.steps, exclusive.copy()
    waits = np.minimum(steps.select(input_wait()).to_series().to_numpy().astype(np.int64), left)
    slowed = _slowed(run, start, end, waits)
    waits -= slowed
    left -= waits + slowed
    peers = np.minimum(np.zeros(len(left), np.int64) if run.peers_ps is None else run.peers_ps, left)
    left -= peers
    calls = steps["callbacks_ps"].fill_null(0).to_numpy().astype(np.int64).copy()
    called = spans.filter(account="callbacks")
    within = np.searchsorted(start, called["start_ps"].to_numpy(), side="right") - 1
    np.subtract.at(calls, within[within >= 0], (called["end_ps"] - called["start_ps"]).to_numpy()[within >= 0])
    calls = np.minimum(calls.clip(0), left)
    left -= calls
    garbage = np.zeros(len(exclusive), np.int64)
    at, width = cells.start[cells.of_step], cells.width[cells.of_step]
    np.add.at(garbage, cells.step[cells.of_step], covered(_intervals(run, _GC), at, at + width))
    garbage = np.minimum(garbage, left)
    left -= garbage
    kind = factorize(steps["kind"].fill_null("").rank("dense").to_numpy().astype(np.int64))[1]
    medians = phase_medians(left, steps["alike"].fill_null(-1).to_numpy(), kind)
    excess = np.maximum(left - medians, 0)

    starts_up = np.zeros(len(exclusive), np.bool_)
    is_startup = (spans["account"] == "program startup").to_numpy()
    starts_up[cells.step[(cells.step >= 0) & cells.of_span & np.isin(cells.span, np.flatnonzero(is_startup))]] = True
    slowest, unexplained = np.sort(left)[int(_SLOWEST * left.size) :][:1], _unexplained(run)
    starts_up[:1] |= run.first_compiles | (unexplained[:1] & (left[:1] > slowest))
    without, each = _without_startup(run, left, starts_up, kind, medians)
    startup = np.where(starts_up, left - without, 0).clip(0)
    excess = (excess - startup).clip(0)
    delays, beside = _delays(run, start, end, left)
    profiler = np.minimum(excess, delays)
    rest = np.where(deviates(left, medians), excess - profiler, 0)
    if run.traced_devices and left.size:
        # where the host runs ahead, what one step seems to take longer the steps around it make up for
        net = np.convolve(np.pad(left - medians - startup - profiler, _AROUND), np.ones(2 * _AROUND + 1), "valid")
        rest = np.minimum(rest, net.clip(0).astype(np.int64))
    slower = np.where(unexplained, np.minimum(rest, beside), 0)
    profiler, rest = profiler + slower, rest - slower
    usual = left - startup - profiler - rest
    once, again = np.where(each, 0, startup), np.where(each, startup, 0)
    return np.stack([waits, usual, once, again, peers, profiler + slowed, garbage, rest, calls], axis=1)


def _without_startup(
    run: HostRun, left: Ints, starts_up: NDArray[np.bool_], kind: Ints, medians: Ints
) -> tuple[Ints, NDArray[np.bool_]]:
    """Return what steps would take that did not trace: at most the median of those of their kind that do not."""
    # if all of them trace, it is what the operations of those traced in full take, if any are: the second array is true
    usual, all_trace = medians.copy(), np.zeros(left.size, np.bool_)
    for each in np.unique(kind[starts_up]):
        of_kind = kind == each
        others = left[of_kind & ~starts_up]
        if not len(others) and run.read_work is not None and of_kind.sum() >= FEWEST_TRACED:
            work = run.steps.filter(pl.Series(of_kind)).join(run.read_work(), on="step")["work_ps"]
            others = work.drop_nulls().to_numpy()
            all_trace |= of_kind & (len(others) > 0)
        if len(others):
            usual[of_kind] = np.minimum(usual[of_kind], int(np.median(others)))
    return usual, all_trace


def _intervals(run: HostRun, account: str) -> pl.DataFrame:
    spans = run.spans.filter(account=account)
    return spans.select("start_ps", end_ps=pl.col("start_ps") + pl.col("dur_ps"))


def _slowed(run: HostRun, start: Ints, end: Ints, waits: Ints) -> Ints:
    """Return how much longer each traced step waited for input since it was traced: the difference of the medians."""
    windows = run.windows.select("start_ps", end_ps=pl.col("start_ps") + pl.col("dur_ps"))
    traced = covered(windows, start, end) > 0
    rows = run.steps.select("alike", wait=pl.Series(waits), traced=pl.Series(traced))
    wait, at = pl.col("wait"), pl.col("traced")
    enough = (at.sum() >= _SLOWED) & ((~at).sum() >= _SLOWED)
    more = rows.group_by("alike").agg(
        more=pl.when(enough).then(wait.filter(at).median() - wait.filter(~at).median()),
        usual=wait.filter(~at).median(),
    )
    rows = rows.join(more, on="alike", how="left", maintain_order="left")
    excess = pl.min_horizontal(pl.col("more").fill_null(0), wait - pl.col("usual")).clip(0)
    return np.asarray(rows.select(pl.when(at).then(excess).otherwise(0).cast(pl.Int64)).to_series().to_numpy())


def _unexplained(run: HostRun) -> NDArray[np.bool_]:
    """Return in which steps no stall is at a place of its own, of phases in which code of the program hardly runs."""
    steps = run.steps.select("start_ps", "dur_ps", "alike")
    times = {"waited_ps": pl.col("start_ps") + input_wait(), "end_ps": pl.col("start_ps") + pl.col("dur_ps")}
    order = run.steps.select("start_ps", "alike", **times).drop_nulls("start_ps")
    found = run.samples.sort("start_ps").join_asof(order.sort("start_ps"), on="start_ps", check_sortedness=False)
    computes = found.filter((pl.col("start_ps") >= pl.col("waited_ps")) & (pl.col("start_ps") < pl.col("end_ps")))
    shares = computes.group_by("alike").agg(pl.col("code").mean())
    code = steps.join(shares, on="alike", how="left", maintain_order="left", nulls_equal=True)["code"]
    places = stall_places(steps, run.stalls.filter(pl.col("kind").is_null() | pl.col("kind").is_in(_INSIDE)))
    usual = run.samples.group_by("place").agg(of_code=pl.col("code").mean() > 0.5).filter(~pl.col("of_code"))["place"]
    nowhere = places.is_null() | places.is_in(usual.implode())  # a call of the framework, in each step
    return np.asarray((nowhere.fill_null(value=True) & (code.fill_null(0.0) < _HARDLY)).to_numpy())


def _delays(run: HostRun, start: Ints, end: Ints, exclusive: Ints) -> tuple[Ints, Ints]:
    """Return the most that the profiler can have held up each step, and the most if nothing else has."""
    # all of the time in which it starts and collects a window; of a step that is traced, or beside which a window is
    # reduced, what the median one of these in its phase takes longer than the others; second, all of the time beside
    # it if that median is longer, else half: a single step has half of a processor, at least
    busy = _intervals(run, "profiler")
    if busy.is_empty():
        return np.zeros(len(start), np.int64), np.zeros(len(start), np.int64)
    windows = run.windows.select("start_ps", end_ps=pl.col("start_ps") + pl.col("dur_ps"))
    reductions = busy.filter(
        run.spans.filter(account="profiler")["detail"].is_in([REDUCTION, "loading"]).fill_null(False)
    )
    tracing, reducing = covered(windows, start, end), covered(reductions, start, end)
    collecting = covered(pl.concat([busy, windows]), start, end) - covered(pl.concat([reductions, windows]), start, end)
    beside = np.maximum(tracing, reducing)
    how = np.where(beside == 0, 0, np.where(reducing > tracing, 2, 1))
    frame = run.steps.select("alike", exclusive=pl.Series(exclusive, dtype=pl.Int64), how=pl.Series(how))
    median = pl.col("exclusive").median()
    free = frame.filter(how=0).group_by("alike").agg(free=median)
    # a stall in one of a few is no median
    slowed = frame.filter(pl.col("how") > 0).group_by("alike", "how").agg(pl.when(pl.len() >= _SLOWED).then(median))
    medians = slowed.join(free, on="alike").select("alike", "how", more=pl.col("exclusive") - pl.col("free"))
    more = frame.join(medians, on=["alike", "how"], how="left", maintain_order="left")["more"].fill_null(0).clip(0)
    outlier = frame["alike"].fill_null(-1) < 0
    more = pl.select(pl.when(outlier).then(more.max()).otherwise(more)).to_series()
    longer = more.cast(pl.Int64).to_numpy()
    return np.asarray(collecting + np.minimum(longer, beside), dtype=np.int64), np.where(longer, beside, beside // 2)


def _step_pieces(run: HostRun, cells: _Cells, exclusive: Ints, parts: Ints) -> pl.DataFrame:
    """Return the exclusive time of the steps: both the cells and the parts are cut where the other ends."""
    at, width, step = cells.start[cells.of_step], cells.width[cells.of_step], cells.step[cells.of_step]
    cell_ends, part_ends = np.cumsum(width), np.cumsum(parts.reshape(-1))
    ends = np.unique(np.concatenate([cell_ends, part_ends]))
    ends = ends[ends > 0]
    pieces = np.diff(ends, prepend=0)
    cell = np.searchsorted(cell_ends, ends)
    part = np.searchsorted(part_ends, ends)
    begin = at[cell] + (ends - pieces - (cell_ends[cell] - width[cell])) if len(ends) else ends
    which, of = part % len(_PARTS), step[cell] if len(ends) else part
    return (
        _frame(run, begin, pieces, of)
        .with_columns(account=pl.Series(np.array(_PARTS)[which]), unit=pl.Series(of, dtype=pl.Int64))
        .pipe(_explained, run)
    )


def _explained(pieces: pl.DataFrame, run: HostRun) -> pl.DataFrame:
    """Name evaluation, and the reason of deviations and the source of each piece."""
    steps = run.steps.with_row_index("unit").select(
        pl.col("unit").cast(pl.Int64),
        "kind",
        "start_ps",
        "dur_ps",
        has_input=pl.col("input_ps").is_not_null(),
        by_clock=clock_measures_input(),
    )
    inside = run.stalls.filter(pl.col("kind").is_null() | pl.col("kind").is_in(_INSIDE))
    waits = run.stalls.filter(kind="data loading")
    reasons = steps.select("unit", reason=stall_places(steps, inside), wait_place=stall_places(steps, waits))
    account = pl.col("account")
    evaluates = _evaluates(run)
    estimated = account.is_in(["program startup", EACH, "profiler"]) | (
        (account == "data loading") & ~pl.col("has_input")
    )
    windows = pl.lit(not run.clocked) | ((account == "data loading") & ~pl.col("by_clock"))
    return (
        pieces.drop("detail", "source")
        .join(steps.drop("start_ps", "dur_ps"), on="unit", how="left", maintain_order="left")
        .join(reasons, on="unit", how="left", maintain_order="left")
        .with_columns(
            account=pl.when(account.is_in(["productive", "data loading"]) & evaluates)
            .then(pl.lit("evaluation"))
            .when(account == _GC)
            .then(pl.lit("step time deviation"))
            .when(account == EACH)
            .then(pl.lit("program startup"))
            .otherwise(account),
            detail=pl.when(account.is_in([_GC, EACH]))
            .then(account)
            .when(account == "step time deviation")
            .then("reason")
            .when(account == "callbacks")
            .then(pl.lit(SHORT))
            .when((account == "data loading") & evaluates)
            .then(pl.lit("waiting for input"))
            .when(account == "data loading")
            .then("wait_place")
            .when(account == "program startup")
            .then(pl.lit("first run of what was traced")),
            source=pl.when(estimated)
            .then(pl.lit("estimated"))
            .when(windows)
            .then(pl.lit("windows"))
            .otherwise(pl.lit("clock")),
        )
        .select(_COLUMNS)
    )


def _span_pieces(run: HostRun, cells: _Cells, spans: pl.DataFrame) -> pl.DataFrame:
    of = cells.of_span
    chosen = spans[cells.span[of]]
    # the time of a method of Keras around its steps prepares them
    is_account = chosen["account"].is_in([*schema.ACCOUNTS])
    return _frame(run, cells.start[of], cells.width[of], cells.step[of]).with_columns(
        account=pl.when(is_account).then(chosen["account"]).otherwise(pl.lit("preparation")),
        detail=chosen["detail"],
        alike=pl.when(chosen["account"].is_in(["evaluation", "tuning", "resuming", "fit"]))
        .then(pl.lit(None, pl.Int64))
        .otherwise("alike"),
        unit=pl.Series(cells.span[of], dtype=pl.Int64) + run.steps.height,
    )


def _gaps(run: HostRun, cells: _Cells, start: Ints, end: Ints, spans: pl.DataFrame) -> pl.DataFrame:
    """Return the time outside of steps and spans."""
    gap = ~cells.of_step & ~cells.of_span
    at = cells.start[gap]
    after, before = np.searchsorted(start, at), np.searchsorted(start, at, side="right") - 1
    loop = np.ones(len(start) + 1, np.bool_)  # steps of a loop of the program, not of a method of Keras
    methods = spans.filter(pl.col("account").is_in(["fit", "evaluation"])).select("start_ps", "end_ps")
    loop[:-1] = covered(methods, start, np.maximum(end, start + 1)) == 0
    inside = (before >= 0) & (after < len(start)) & loop[before] & loop[np.minimum(after, len(start))]
    if run.complete:
        account = np.where(inside, "program code", "preparation")
    else:
        outer = (before < 0) | (after >= len(start))
        account = np.where(outer & run.clocked & (len(start) > 0), "preparation", "other")
    unit = run.steps.height + spans.height + after
    return _frame(run, at, cells.width[gap], np.full(len(at), -1)).with_columns(
        account=pl.Series(account, dtype=pl.String), unit=pl.Series(unit, dtype=pl.Int64)
    )


def _divided() -> pl.Expr:
    """Return which pieces of steps are divided by samples."""
    computes = pl.col("account").is_in(COMPUTING) & ~pl.col("detail").eq_missing(_GC)
    return computes | pl.col("detail").eq_missing(EACH)


def _placed(samples: pl.DataFrame, pieces: pl.DataFrame) -> pl.DataFrame:
    """Return samples with their piece's phase, whether it is in a step, and `stands_ps`: the time they stand for."""
    inside, dur_ps = _divided(), pl.col("dur_ps")
    since_ps = pl.when(inside).then(dur_ps).otherwise(0).cum_sum().over("unit") - dur_ps
    between = pl.col("account") == "program code"
    order = pieces.select("start_ps", "alike", since_ps=since_ps, at_ps="start_ps", between=between, inside=inside)
    placed = samples.sort("start_ps").join_asof(order.sort("start_ps"), on="start_ps", check_sortedness=False)
    placed = placed.with_columns(pl.col("since_ps") + pl.col("start_ps") - pl.col("at_ps"))
    steps = pieces.filter(inside).group_by("alike", "unit").agg(dur_ps.sum()).partition_by("alike", as_dict=True)
    stands_ps = np.zeros(placed.height)
    for alike, group in placed.with_row_index().filter("inside").group_by("alike"):
        lengths = steps[alike]["dur_ps"].to_numpy()
        stands_ps[group["index"]] = _time_of_samples(group["since_ps"].to_numpy(), lengths)
    return placed.with_columns(stands_ps=pl.Series(stands_ps))


def _time_of_samples(since_ps: Ints, lengths: Ints) -> NDArray[np.float64]:
    """Return the time that each sample in steps of these lengths stands for."""
    # those of each tenth, by the time since their step began, share the time there: samples may beat with the steps,
    # and none is right after the program takes the interpreter lock
    places = min(_PLACES, len(since_ps) // _FEWEST_OF_PLACE)
    edges = np.unique(np.quantile(since_ps, np.arange(1, places) / places)) if places else np.zeros(0)
    before = np.minimum.outer([0, *edges, lengths.max()], lengths).sum(axis=1)
    place = np.searchsorted(edges, since_ps, side="right")
    return np.asarray(np.diff(before)[place] / np.bincount(place)[place])


def _between_steps(
    pieces: pl.DataFrame, samples: pl.DataFrame, flag: str, account: str, detail: str | None = None
) -> pl.DataFrame:
    """Split off time between steps, by the share of samples there that have a flag."""
    between = pl.col("account") == "program code"
    found = samples.filter("between")
    flagged = int(found[flag].fill_null(value=False).sum())
    if len(found) < _FEWEST_SAMPLES or flagged == 0:
        return pieces
    part = pl.when(between).then((pl.col("dur_ps") * (flagged / len(found))).round().cast(pl.Int64))
    return _moved(pieces.with_columns(part_ps=part), account, detail)


def _by_device(pieces: pl.DataFrame, run: HostRun) -> tuple[pl.DataFrame, list[int]]:
    """Split off the time in steps in which the devices were idle, and return the phases where that is known."""
    # the work of a step on devices is that of the steps of its phase traced in full, which may themselves last longer,
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


def _in_steps(
    pieces: pl.DataFrame,
    samples: pl.DataFrame,
    flag: str,
    account: str,
    detail: str | None = None,
    traced: Sequence[int] = (),
) -> pl.DataFrame:
    """Split off time in steps, by the share of the samples in the steps of each phase that have a flag."""
    # a step is longer for it: that is in its deviation and, in `traced` phases, in the time in which devices idle
    flagged = (pl.col(flag).fill_null(value=False) * pl.col("stands_ps")).sum() / pl.col("stands_ps").sum()
    shares = samples.filter("inside").group_by("alike").agg(n=pl.len(), flagged=flagged.fill_nan(0.0))
    shares = shares.filter(pl.col("n") >= _FEWEST_SAMPLES, pl.col("flagged") > 0).select("alike", "flagged")
    if shares.is_empty():
        return pieces
    dur_ps, more = pl.col("dur_ps"), pl.col("account").is_in(["step time deviation", IDLE])
    spare = more | pl.col("detail").eq_missing(EACH)
    parts = pieces.join(shares, on="alike", how="left", maintain_order="left")
    mine = _divided() & pl.col("flagged").is_not_null()
    flagged_ps = (pl.col("flagged") * dur_ps.filter(mine).sum()).over("alike")
    spare_ps = dur_ps.filter(mine & spare).sum().over("alike")
    rest_ps = dur_ps.filter(mine & ~spare).sum().over("alike")
    rest = pl.when(~pl.col("alike").is_in(traced)).then((flagged_ps - spare_ps) / rest_ps)
    share = pl.when(spare).then(flagged_ps / spare_ps).otherwise(rest)
    part = pl.when(mine).then((dur_ps * share.fill_nan(0).clip(0, 1)).round().cast(pl.Int64))
    return _moved(parts.with_columns(part_ps=part), account, detail)


def _evaluates(run: HostRun) -> pl.Expr:
    """Return which steps evaluate: a prediction does beside a training."""
    return (pl.col("kind") == "eval") | ((pl.col("kind") == "predict") & _trains(run))


def _trains(run: HostRun) -> bool:
    return bool((run.steps["kind"] == "train").any())


def _slow_steps(pieces: pl.DataFrame, run: HostRun) -> pl.DataFrame:
    """Return the pieces with deviations at places of the program's code as such, others on a busy machine named."""
    # what an evaluation takes is its own: its functions and data may differ from step to step
    deviation = pl.col("account") == "step time deviation"
    places = run.samples.group_by(detail="place").agg(of_code=pl.col("code").mean() > 0.5).drop_nulls()
    load = run.load.select("start_ps", others=pl.col("machine_cpu") - pl.col("cpu") > BUSY).sort("start_ps")
    pieces = pieces.join(places, on="detail", how="left", maintain_order="left").sort("start_ps")
    pieces = pieces.join_asof(load, on="start_ps", tolerance=_LOADED_PS, check_sortedness=False)
    of_code = deviation & pl.col("of_code").fill_null(value=False)
    evaluation = run.steps.filter(_evaluates(run))["step"].implode()
    evaluates = deviation & pl.col("step").is_in(evaluation) & pl.col("detail").is_null()
    others = deviation & pl.col("others").fill_null(value=False) & pl.col("detail").ne_missing(_GC)
    alone = deviation & pl.col("detail").ne_missing(_GC) & pl.col("unit").is_in(_alone(pieces, run.samples).implode())
    return pieces.with_columns(
        account=pl.when(of_code)
        .then(pl.lit("program code"))
        .when(evaluates)
        .then(pl.lit("evaluation"))
        .otherwise("account"),
        detail=pl.when(of_code)
        .then(pl.lit(INSIDE_STEPS))
        .when(alone & ~evaluates)
        .then(pl.coalesce("detail", pl.lit(ALONE)))
        .when(others & ~evaluates)
        .then(pl.lit(OTHERS))
        .otherwise("detail"),
    ).select(_COLUMNS)


def _alone(pieces: pl.DataFrame, samples: pl.DataFrame) -> pl.Series:
    """Return the units of slow steps that are often at places where other steps hardly ever are."""
    slow = (pl.col("account") == "step time deviation").any().over("unit")
    order = pieces.select("start_ps", "unit", slow=slow, inside=pl.col("account").is_in(COMPUTING)).sort("start_ps")
    found = samples.sort("start_ps").join_asof(order, on="start_ps", check_sortedness=False)
    found = found.filter("inside").drop_nulls("place")
    n_slow, n_usual = pl.col("slow").sum().over("place"), (~pl.col("slow")).sum().over("place")
    rare = n_usual * pl.col("slow").sum() < _RARE * n_slow * (~pl.col("slow")).sum()
    found = found.with_columns(alone=rare & (n_slow >= _FEWEST_ALONE))
    units = found.filter("slow").group_by("unit").agg(pl.col("alone").mean())
    return units.filter(pl.col("alone") > _ALONE)["unit"]


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


_COLUMNS = ["start_ps", "dur_ps", "account", "detail", "step", "alike", "unit", "source"]


def _frame(run: HostRun, start: Ints, width: Ints, step: Ints) -> pl.DataFrame:
    """Return pieces of the steps of these indices, -1 for none, without account and unit."""
    named = run.steps.select("step", "alike").with_row_index("index").with_columns(pl.col("index").cast(pl.Int64))
    pieces = pl.DataFrame(
        {"start_ps": start, "dur_ps": width, "index": step},
        schema=dict.fromkeys(["start_ps", "dur_ps", "index"], pl.Int64),
    )
    return (
        pieces.join(named, on="index", how="left", maintain_order="left")
        .with_columns(
            account=pl.lit(None, pl.String),
            detail=pl.lit(None, pl.String),
            unit=pl.lit(None, pl.Int64),
            source=pl.lit("clock" if run.clocked else "windows"),
        )
        .select(_COLUMNS)
    )
