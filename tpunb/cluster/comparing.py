"""Two runs, phase by phase: what changed, and by how much, with intervals."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from tpunb import schema
from tpunb.cluster import intervals, phasing
from tpunb.cluster.matching import ALIKE, by_operations, likeness, matched, traits_of
from tpunb.errors import Unlike, wrong
from tpunb.frames import Comparison, Phases, Steps
from tpunb.frames.op_matrix import Floats, Ints, op_matrix

if TYPE_CHECKING:
    from scipy.sparse import csr_array


def compare(a: Phases | Steps, b: Phases | Steps, *, unlike: bool = False) -> Comparison:
    """Return what changed from run `a` to run `b`: other data, another batch size, device or setting.

    Phases are matched one to one, by what ran in them; where that tells nothing, as between two kinds of device or of
    steps known by the clock alone, by their marks, their order and their numbers of steps
    (:mod:`tpunb.cluster.matching`). Phases without a counterpart stay alone, and noise is not matched.

    Step times are compared by their logarithms: the ratio is that of geometric means, over all steps of a phase,
    those known by the clock alone too. Shares and operations are of the steps seen in full. Intervals of 95 % are by
    Welch's t (Welch 1947) on the means of up to 20 and some batches of neighbouring steps, which steps that resemble
    their neighbours widen (Schmeiser 1982). They are about the steps of these two runs; that a third would differ
    again they do not know. Where a phase has one step, or nothing varies, they are null.

    Parameters
    ----------
    a, b
        From `tp.phases`; steps are cut by its default method first.
    unlike
        Compare though the runs are of another model or another precision.

    Raises
    ------
    TypeError
        When a run is neither.
    Unlike
        When both are known and differ, or when the longest phases, on one kind of device, share too little of what
        they do to be of one model.

    >>> from tpunb.testing import toy_steps
    >>> compare(toy_steps("aaabbb"), toy_steps("aaaabb"))
    Comparison(2 phases matched, steps of the longest 1.00x as long)
    """
    a, b = _cut(a, "a"), _cut(b, "b")
    traits = traits_of(a), traits_of(b)
    similarity = by_operations(*traits)
    alike = None if similarity is None else likeness(*traits, similarity)
    if not unlike and (differences := [*_differences(a, b, alike)]):
        raise Unlike(
            f"{_name(a, 'the one')} and {_name(b, 'the other')} are unlike: {'; '.join(differences)}",
            hint="compare(a, b, unlike=True) compares them all the same",
        )
    met = matched(*traits, similarity if alike is not None and alike >= ALIKE else None)
    explained = _explained(a, b, met)
    together = met.join(explained, on=["phase_a", "phase_b"], how="left")
    together = together.sort(pl.col("dur_a_ps") + pl.col("dur_b_ps"), "phase_a", descending=[True, False])
    figures = [_figures(_of(a, row["phase_a"]), _of(b, row["phase_b"])) for row in together.iter_rows(named=True)]
    columns = {name: dtype for name, dtype in schema.COMPARED.items() if name not in together.columns}
    frame = pl.concat([together, pl.DataFrame(figures, schema=columns)], how="horizontal")
    return Comparison(a, b, frame, _ops(a, b, frame.select("phase_a", "phase_b").rows()), explained)


def _cut(run: Phases | Steps, name: str) -> Phases:
    if isinstance(run, Steps):
        return phasing.phases(run)
    if not isinstance(run, Phases):
        raise wrong("compare", name, "be Phases or Steps", run, hint="tp.steps(tp.load(...))")
    return run


# -- what may be compared --------------------------------------------------------------------------------------------


def _differences(a: Phases, b: Phases, alike: float | None) -> Iterator[str]:
    """Yield what speaks against comparing two runs, of which `alike` is the likeness by operations, if known."""
    told = {fact: (a.steps.about.get(fact), b.steps.about.get(fact)) for fact in ("model", "dtype")}
    for fact, (one, other) in told.items():
        if one and other and one != other:
            yield f"the {fact} is {one!r} in one, {other!r} in the other"
    devices = {_device(a.steps), _device(b.steps)} - {""}
    if alike is not None and alike < ALIKE and len(devices) < 2 and not all(told["model"]):
        yield (
            f"their longest phases are {alike:.2f} alike by their operations, those of one model {ALIKE} or more "
            f"({_doing(a)} in one, {_doing(b)} in the other)"
        )


def _device(steps: Steps) -> str:
    """Return which kind of device ran the steps; "" where nothing tells."""
    names = steps.devices["device"].str.extract("([A-Z]+)").drop_nulls()
    return steps.about.get("device kind") or " and ".join(sorted(set(names)))


def _doing(run: Phases) -> str:
    top = run.top(2).filter(pl.col("phase") == run.longest.id).sort("side", "rank", descending=[True, False])
    return ", ".join(top["op"].cast(pl.String).head(2)) or "nothing"


def _name(run: Phases, otherwise: str) -> str:
    return run.steps.name or otherwise


# -- the whole -------------------------------------------------------------------------------------------------------


def _explained(a: Phases, b: Phases, met: pl.DataFrame) -> pl.DataFrame:
    """Return ``tpunb.schema.EXPLAINED`` of the phases that have `met` and of all others, the largest change first."""
    rows = met.select("phase_a", "phase_b")
    if -1 in {*a.frame["phase"], *b.frame["phase"]}:
        rows = pl.concat([rows, pl.DataFrame({"phase_a": [-1], "phase_b": [-1]})])
    rows = rows.join(_totals(a, "a"), on="phase_a", how="full", coalesce=True)
    rows = rows.join(_totals(b, "b"), on="phase_b", how="full", coalesce=True)
    mark_a, mark_b = pl.col("marks_a"), pl.col("marks_b")
    two = pl.when(mark_a != mark_b).then(pl.format("{} in a / {} in b", mark_a, mark_b))
    change = pl.col("dur_b_ps").fill_null(0) - pl.col("dur_a_ps").fill_null(0)
    # of both orders of "first more steps, then longer ones" the mean: neither is before the other
    more = pl.col("number_b") - pl.col("number_a")
    step = pl.col("dur_a_ps") / pl.col("number_a") + pl.col("dur_b_ps") / pl.col("number_b")
    by_steps = pl.when(pl.col("phase_a") >= 0).then((more * step / 2).round().cast(pl.Int64))
    rows = rows.with_columns(
        pl.col("steps_a", "steps_b", "dur_a_ps", "dur_b_ps").fill_null(0),
        marks=two.otherwise(pl.coalesce(mark_a, mark_b)),
        change_ps=change,
        by_steps_ps=by_steps,
        by_step_time_ps=change - by_steps,
        share=pl.when(change.sum() != 0).then(change / change.sum()),
    )
    order = [pl.col("change_ps").abs(), pl.col("dur_a_ps") + pl.col("dur_b_ps")]
    return schema.check(
        rows.sort(*order, "phase_a", "phase_b", descending=[True, True, False, False]), schema.EXPLAINED, "explained"
    )


def _totals(run: Phases, name: str) -> pl.DataFrame:
    """Return the phases of a run: their marks, steps, and the number of steps and the time of them, mean over hosts."""
    hosts = max(run.steps.frame["host"].n_unique(), 1)
    rows = run.labelled.group_by("phase").agg(
        pl.col("step").n_unique().cast(pl.Int64).alias(f"steps_{name}"),
        (pl.len() / hosts).alias(f"number_{name}"),
        (pl.col("dur_ps").sum() / hosts).round().cast(pl.Int64).alias(f"dur_{name}_ps"),
    )
    marks = run.frame.select("phase", pl.col("marks").alias(f"marks_{name}"))
    return rows.join(marks, on="phase", how="left").rename({"phase": f"phase_{name}"})


# -- a pair of phases ------------------------------------------------------------------------------------------------


def _figures(a: pl.DataFrame, b: pl.DataFrame) -> dict[str, float | None]:
    """Return what ``tpunb.schema.COMPARED`` says of the steps of two phases, in order of time."""
    logs, row = (_logs(a), _logs(b)), dict[str, float | None]()
    for run, known, steps in zip("ab", logs, (a, b), strict=True):
        typical = float(np.exp(known.mean())) if len(known) else 0.0  # none of them took any time
        row[f"step_{run}_ps"] = round(typical) if steps["dur_ps"].count() else None
    ratios = [_number(np.exp(end)) for end in intervals.difference(*logs)]
    row |= dict(zip(("ratio", "ratio_low", "ratio_high"), ratios, strict=True))
    idle = _known(a, _share("idle_ps")), _known(b, _share("idle_ps"))
    change = [_number(end) for end in intervals.difference(*idle)]
    row |= dict(zip(("idle_change", "idle_low", "idle_high"), change, strict=True))
    facts = {
        "idle": _share("idle_ps"),
        "mxu": pl.col("mxu_util"),
        "duty": pl.col("duty_cycle"),
        "input": _share("input_ps"),
    }
    for fact, expression in facts.items():
        row |= {
            f"{fact}_{run}": _number(intervals.mean(_known(steps, expression))) for run, steps in (("a", a), ("b", b))
        }
    return row


def _of(run: Phases, phase: int) -> pl.DataFrame:
    """Return the steps of a phase, in order of time."""
    return run.labelled.filter(pl.col("phase") == phase).sort("start_ps", "host")


def _logs(steps: pl.DataFrame) -> Floats:
    """Return the logarithms of the step times; those of no time are left out."""
    return np.asarray(np.log(steps.filter(pl.col("dur_ps") > 0)["dur_ps"].to_numpy()), dtype=np.float64)


def _share(column: str) -> pl.Expr:
    return pl.when(pl.col("dur_ps") > 0).then(pl.col(column) / pl.col("dur_ps"))


def _known(steps: pl.DataFrame, fact: pl.Expr) -> Floats:
    """Return a fact of the steps seen in full that tell it."""
    full = steps.filter(pl.col("seen") == "full").select(fact.cast(pl.Float64).fill_nan(None).alias("fact"))
    return np.asarray(full["fact"].drop_nulls().to_numpy(), dtype=np.float64)


def _number(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None


# -- operations ------------------------------------------------------------------------------------------------------


def _ops(a: Phases, b: Phases, together: list[tuple[int, int]]) -> pl.DataFrame:
    """Return ``tpunb.schema.COMPARED_OPS`` of pairs of phases whose operations both runs know."""
    ops = [op_matrix(run.steps.full()) for run in (a, b)]
    times = [one.values("self_ps", scale=1e-6) for one in ops]
    of_a, of_b = _rows(a), _rows(b)
    found = [schema.empty(schema.COMPARED_OPS)]
    for one, other in together:
        if one in of_a and other in of_b:
            left = _of_ops(ops[0].ops, times[0][of_a[one]], "a")
            right = _of_ops(ops[1].ops, times[1][of_b[other]], "b")
            if left.height and right.height:  # else one of them is of a profile that tells no operations
                rows = _changed(left, right, len(of_a[one]), len(of_b[other])).with_columns(phase_a=one, phase_b=other)
                found.append(schema.check(rows, schema.COMPARED_OPS, "compared_ops"))
    return pl.concat(found)


def _rows(run: Phases) -> dict[int, Ints]:
    """Return the rows of the steps seen in full of each phase, in order of time."""
    full = run.labelled.filter(pl.col("seen") == "full").with_row_index("row").sort("start_ps", "host")
    parts = full.partition_by("phase", as_dict=True)
    return {int(phase): part["row"].to_numpy().astype(np.int64) for (phase,), part in parts.items()}


def _of_ops(ops: pl.DataFrame, times: csr_array, run: str) -> pl.DataFrame:
    """Return (side, op, mean, error) of the self time a step in microseconds, of the operations that ran at all."""
    from scipy.sparse import csr_array

    n = times.shape[0]
    size = intervals.batch(n)
    steps = np.arange(n // size * size)
    batches = csr_array((np.full(len(steps), 1 / size), (steps // size, steps)), shape=(n // size, n))
    error = intervals.error((batches @ times).toarray(), n)
    ran = np.bincount(times.indices, minlength=len(error)) > 0
    mean = np.bincount(times.indices, times.data.astype(np.float64), minlength=len(error)) / n
    told = ops.with_columns(pl.Series(f"mean_{run}", mean), pl.Series(f"error_{run}", error))
    return told.filter(pl.Series(ran))


def _changed(a: pl.DataFrame, b: pl.DataFrame, n_a: int, n_b: int) -> pl.DataFrame:
    """Return what a pair of phases of so many steps has in ``tpunb.schema.COMPARED_OPS``, but for their numbers."""
    gained, lost = pl.col("mean_a").is_null(), pl.col("mean_b").is_null()
    state = pl.when(gained).then(pl.lit("gained")).when(lost).then(pl.lit("lost")).otherwise(pl.lit("both"))
    both = a.join(b, on=["side", "op"], how="full", coalesce=True).with_columns(state=state)
    # what did not run took no time, and did not vary in that, where there are steps enough to vary
    still = [pl.col(f"error_{run}").fill_null(0.0 if n > 1 else np.nan) for run, n in (("a", n_a), ("b", n_b))]
    both = both.with_columns(pl.col("mean_a", "mean_b").fill_null(0.0), *still)
    mean_a, mean_b, error_a, error_b = (both[name].to_numpy() for name in ("mean_a", "mean_b", "error_a", "error_b"))
    change = mean_b - mean_a
    low, high = intervals.ends(change, (error_a, n_a), (error_b, n_b))
    figures = {"self_a_ps": mean_a, "self_b_ps": mean_b, "change_ps": change, "low_ps": low, "high_ps": high}
    whole = [
        (pl.Series(name, values, nan_to_null=True) * 1e6).round().cast(pl.Int64) for name, values in figures.items()
    ]
    order = [pl.col("change_ps").abs(), "side", pl.col("op").cast(pl.String)]
    return both.with_columns(whole).sort(order, descending=[True, True, False])
