"""Comparison of two runs, phase by phase, with intervals."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl

from tpunb import schema
from tpunb.analysis.goodput import goodput
from tpunb.analysis.phase_matching import SAME, by_operations, match, run_similarity, traits_of
from tpunb.analysis.rates import rates_of
from tpunb.analysis.run import Run, loaded, phases
from tpunb.cluster.limits import LIMITS
from tpunb.cluster.recorded import incidental, skippable
from tpunb.errors import IncompatibleRuns
from tpunb.frames import Phases, Profile, Steps
from tpunb.frames.conversion import Tabular
from tpunb.frames.op_matrix import Floats, Ints, op_matrix
from tpunb.frames.phases import PhaseMethod
from tpunb.step_stats import batch_means, op_names
from tpunb.text import duration, plain, plural

_ALONE = 3  # most unmatched phases that are named
_LEAST_CHANGE = 0.005  # of the wall time of run a, of an account in a line


@dataclass(frozen=True, eq=False, repr=False)
class Comparison(Tabular):
    """Two runs with their phases matched one to one; a change is always b minus a, a ratio b by a.

    Each interval alone covers 95 %: of many, some miss.

    Parameters
    ----------
    a, b
        Phases of each run.
    frame
        One row per pair of phases, longest first: ``tpunb.schema.COMPARED``.
    ops
        Operations of each pair, the largest change first: ``tpunb.schema.COMPARED_OPS``.
    explained
        Contribution of each phase, matched or not, to the difference in run time: ``tpunb.schema.EXPLAINED``.
    accounts
        Contribution of each account to the difference in wall time: ``tpunb.schema.COMPARED_ACCOUNTS``.
    profiles
        Profiles of the runs, None where only their steps are known: these lack FLOPs of compiled programs.
    """

    a: Phases
    b: Phases
    frame: pl.DataFrame
    ops: pl.DataFrame
    explained: pl.DataFrame
    accounts: pl.DataFrame
    profiles: tuple[Profile | None, Profile | None] = (None, None)

    def __post_init__(self) -> None:
        tables = {"frame": "compared", "ops": "compared_ops", "accounts": "compared_accounts"}
        for name, table in {**tables, "explained": "explained"}.items():
            checked = schema.check(getattr(self, name), getattr(schema, table.upper()), table)
            object.__setattr__(self, name, checked)

    def __repr__(self) -> str:
        return f"Comparison(b against a: {self.sentence})"

    @property
    def sentence(self) -> str:
        """What changed from a to b, in one sentence."""
        text = f"{plural(len(self), 'phase')} matched"
        if len(self) and (ratio := self.frame["ratio"][0]) is not None:
            low, high = self.frame["ratio_low"][0], self.frame["ratio_high"][0]
            interval = "" if low is None else f" [{low:.2f}, {high:.2f}]"
            text += f", step time ratio of the longest {ratio:.2f}{interval}"
        if self.a.steps.wall is not None and self.b.steps.wall is not None:
            wall_ps = self.b.steps.wall.span_ps - self.a.steps.wall.span_ps
            text += f", wall time {_signed(wall_ps)}"
            change = pl.col("change_ps")
            most = self.accounts.filter((change > 0) if wall_ps > 0 else (change < 0)).head(2)
            named = [f"{account} {_signed(change)}" for account, change in most.select("account", "change_ps").rows()]
            text += f": {', '.join(named)}" if named else ""
        alone = [
            plain(self.a.names[a] if b is None else self.b.names[b]) + f" only in {'a' if b is None else 'b'}"
            for a, b in self.unmatched.select("phase_a", "phase_b").iter_rows()
        ]
        text += f", unmatched: {', '.join(alone[:_ALONE])}" if alone else ""
        text += f" and {len(alone) - _ALONE} more" if len(alone) > _ALONE else ""
        return text

    @property
    def lines(self) -> list[str]:
        """What changed in the wall time, b against a: its accounts, most first; nothing without a record of it."""
        before, after = self.a.steps.wall, self.b.steps.wall
        if before is None or after is None:
            return []
        changed = self.accounts.filter(pl.col("change_ps").abs() >= _LEAST_CHANGE * before.span_ps)
        rows = changed.select("account", "time_a_ps", "time_b_ps").rows()
        rows.insert(0, ("run time", before.span_ps, after.span_ps))
        return [f"  {name}: {duration(a)} → {duration(b)} ({_signed(b - a)})" for name, a, b in rows]

    @property
    def ratio(self) -> float | None:
        """Time of all steps of b by that of a, means over their hosts; None if a has none."""
        a, b = int(self.explained["dur_a_ps"].sum()), int(self.explained["dur_b_ps"].sum())
        return b / a if a > 0 else None

    @cached_property
    def rates(self) -> pl.DataFrame:
        """Samples/s, tokens/s, FLOP/s a device, MFU and HFU in training: ``tpunb.schema.COMPARED_RATES``."""
        rows = [
            rates_of(run, profile).frame.head(1) for run, profile in zip((self.a, self.b), self.profiles, strict=True)
        ]
        names = ("samples_per_s", "tokens_per_s", "flops_per_s", "mfu", "hfu")
        values = [(name, *(row[name].first() if len(row) else None for row in rows)) for name in names]
        frame = pl.DataFrame(values, {"rate": pl.String(), "a": pl.Float64(), "b": pl.Float64()}, orient="row")
        return schema.check(
            frame.with_columns(ratio=pl.col("b") / pl.col("a")), schema.COMPARED_RATES, "compared_rates"
        )

    @property
    def seconds(self) -> list[dict[str, Any]]:
        """The rows of `accounts` in seconds, by names of ``docs/report.md``."""
        times = (pl.col(f"{name}_ps").truediv(1e12).round(6) for name in ("time_a", "time_b", "change"))
        return self.accounts.select("account", *times).rename(lambda name: re.sub("^time_|_ps$", "", name)).to_dicts()

    @property
    def unmatched(self) -> pl.DataFrame:
        """The rows of `explained` of phases without a counterpart; outliers are not a phase."""
        return self.explained.filter(pl.col("phase_a").is_null() | pl.col("phase_b").is_null())

    @property
    def settings(self) -> pl.DataFrame:
        """Metadata of both runs, ``tpunb.schema.SETTINGS``: null where a run lacks it."""
        a, b = self.a.steps.metadata, self.b.steps.metadata
        rows = [(fact, a.get(fact), b.get(fact)) for fact in dict.fromkeys([*a, *b])]
        return pl.DataFrame(rows, schema=schema.SETTINGS, orient="row")


def _signed(time_ps: int) -> str:
    return f"{'-' if time_ps < 0 else '+'}{duration(abs(time_ps))}"


def compare(
    a: Run,
    b: Run,
    *,
    method: PhaseMethod | str | None = None,
    allow_different_models: bool = False,
) -> Comparison:
    """Compare run `b` with run `a`: other data, batch size, device or settings.

    Phases are matched one to one by their operations; if these say nothing, as on different kinds of device or
    without traced steps, by their kinds, order and numbers of steps (:mod:`tpunb.analysis.phase_matching`). Phases
    without a counterpart stay alone, and outliers are not matched. The difference in wall time is explained by accounts
    (`tp.goodput`) before phases.

    Step times are compared by their logarithms: the ratio is that of geometric means over all steps of a phase,
    untraced ones included. Shares and operations are over the steps traced in full. 95 % intervals are by Welch's t
    (Welch 1947) on the means of 20 to 39 batches of adjacent steps, widened if steps are correlated (Schmeiser 1982).
    They cover the steps of these two runs, not the differences between repeated runs. If a phase has one step, or
    nothing varies, they are null.

    An operation of one run alone is gained or lost if it is in most steps of the phase there, and its events are long
    enough to be recorded in any window (:mod:`tpunb.cluster.recorded`) or take 10 % of the step time. The profiler may
    have skipped any other in the other run: its state is "unrecorded", and its change null.

    Parameters
    ----------
    a, b
        Paths of runs, their Profiles, Steps or Phases.
    method
        Phase method of both runs or its name; if None, that of the phases, ``DBSCAN()`` for the others.
    allow_different_models
        Whether to compare runs of different models or precisions.

    Raises
    ------
    TypeError
        If a run or the method is something else.
    IncompatibleRuns
        If model or precision are known and differ, or if the longest phases, on one kind of device, share too few
        operations to be of one model.

    >>> from tpunb.testing import toy_steps
    >>> compare(toy_steps("aaabbb"), toy_steps("aaaabb"))
    Comparison(b against a: 2 phases matched, step time ratio of the longest 1.00)
    """
    runs = loaded(a, "compare", "a"), loaded(b, "compare", "b")
    a, b = (phases(run, method) for run in runs)
    traits = traits_of(a), traits_of(b)
    matrix = by_operations(*traits)
    similarity = None if matrix is None else run_similarity(*traits, matrix)
    if not allow_different_models and (differences := [*_differences(a, b, similarity)]):
        raise IncompatibleRuns(
            f"{a.steps.name or 'run a'} and {b.steps.name or 'run b'} are not of one model: {'; '.join(differences)}",
            hint="to compare them anyway: compare(a, b, allow_different_models=True)",
        )
    pairs = match(*traits, matrix if similarity is not None and similarity >= SAME else None)
    explained = _explained(a, b, pairs)
    rows = pairs.join(explained, on=["phase_a", "phase_b"], how="left")
    rows = rows.sort(pl.col("dur_a_ps") + pl.col("dur_b_ps"), "phase_a", descending=[True, False])
    changes = [_changes(_of(a, row["phase_a"]), _of(b, row["phase_b"])) for row in rows.iter_rows(named=True)]
    columns = {name: dtype for name, dtype in schema.COMPARED.items() if name not in rows.columns}
    frame = pl.concat([rows, pl.DataFrame(changes, schema=columns)], how="horizontal")
    ops = _ops(a, b, frame.select("phase_a", "phase_b").rows())
    first, second = (run if isinstance(run, Profile) else None for run in runs)
    return Comparison(a, b, frame, ops, explained, _accounts(a, b), (first, second))


def _differences(a: Phases, b: Phases, similarity: float | None) -> Iterator[str]:
    """Yield the reasons why two runs are of different models, given their similarity by operations."""
    values = {fact: (a.steps.metadata.get(fact), b.steps.metadata.get(fact)) for fact in ("model", "dtype")}
    for fact, (in_a, in_b) in values.items():
        if in_a and in_b and in_a != in_b:
            yield f"{fact} is {in_a!r} in a, {in_b!r} in b"
    devices = {_device(a.steps), _device(b.steps)} - {""}
    if similarity is not None and similarity < SAME and len(devices) < 2 and not all(values["model"]):
        yield (
            f"similarity of operations in the longest phases is {similarity:.2f}, {SAME} or more in one model "
            f"({_top_ops(a)} in a, {_top_ops(b)} in b)"
        )


def _device(steps: Steps) -> str:
    """Return the kind of device that ran the steps; "" if unknown."""
    names = steps.devices["device"].str.extract("([A-Z]+)").drop_nulls()
    return steps.metadata.get("device kind") or " and ".join(sorted(set(names)))


def _top_ops(run: Phases) -> str:
    top = (
        run.top(2, sources=False)
        .filter(pl.col("phase") == run.longest.id)
        .sort("side", "rank", descending=[True, False])
    )
    return ", ".join(top["op"].cast(pl.String).head(2)) or "nothing"


def _accounts(a: Phases, b: Phases) -> pl.DataFrame:
    """Return ``tpunb.schema.COMPARED_ACCOUNTS``; what a run with a record of it does not have took no time."""
    runs = goodput(a), goodput(b)
    rows = pl.DataFrame({"account": [*schema.ACCOUNTS]})
    for run, name in zip(runs, "ab", strict=True):
        unknown = run.frame.filter(pl.col("time_ps").is_null())["account"].cast(pl.String).to_list()
        time = pl.col("account").map_elements(run.time_ps, return_dtype=pl.Int64)
        rows = rows.with_columns(pl.when(~pl.col("account").is_in(unknown)).then(time).alias(f"time_{name}_ps"))
    change = pl.col("time_b_ps") - pl.col("time_a_ps")
    wall_ps = runs[1].wall_ps - runs[0].wall_ps
    rows = rows.filter(pl.any_horizontal(pl.col("time_a_ps", "time_b_ps") > 0)).with_columns(
        change_ps=change, share=change / wall_ps if wall_ps else None
    )
    rows = rows.sort(pl.col("change_ps").abs(), descending=True, nulls_last=True, maintain_order=True)
    return schema.check(rows, schema.COMPARED_ACCOUNTS, "compared_accounts")


def _explained(a: Phases, b: Phases, pairs: pl.DataFrame) -> pl.DataFrame:
    """Return ``tpunb.schema.EXPLAINED`` of the matched phases and of all others, the largest change first."""
    rows = pairs.select("phase_a", "phase_b")
    if -1 in {*a.frame["phase"], *b.frame["phase"]}:
        rows = pl.concat([rows, pl.DataFrame({"phase_a": [-1], "phase_b": [-1]})])
    rows = rows.join(_totals(a, "a"), on="phase_a", how="full", coalesce=True)
    rows = rows.join(_totals(b, "b"), on="phase_b", how="full", coalesce=True)
    kinds_a, kinds_b = pl.col("kinds_a"), pl.col("kinds_b")
    different = pl.when(kinds_a != kinds_b).then(pl.format("{} in a / {} in b", kinds_a, kinds_b))
    change = pl.col("dur_b_ps").fill_null(0) - pl.col("dur_a_ps").fill_null(0)
    # mean of both orders of "first more steps, then longer ones"
    more = pl.col("number_b") - pl.col("number_a")
    step = pl.col("dur_a_ps") / pl.col("number_a") + pl.col("dur_b_ps") / pl.col("number_b")
    by_steps = pl.when(pl.col("phase_a") >= 0).then((more * step / 2).round().cast(pl.Int64))
    rows = rows.with_columns(
        pl.col("steps_a", "steps_b", "dur_a_ps", "dur_b_ps").fill_null(0),
        kinds=different.otherwise(pl.coalesce(kinds_a, kinds_b)),
        change_ps=change,
        by_steps_ps=by_steps,
        by_step_time_ps=change - by_steps,
        share=pl.when(change.sum() != 0).then(change / change.sum()),
    )
    order = [pl.col("change_ps").abs(), pl.col("dur_a_ps") + pl.col("dur_b_ps"), "phase_a", "phase_b"]
    return schema.check(rows.sort(order, descending=[True, True, False, False]), schema.EXPLAINED, "explained")


def _totals(run: Phases, name: str) -> pl.DataFrame:
    """Return the phases of a run with their steps, and number and time of steps as means over hosts."""
    hosts = max(run.steps.frame["host"].n_unique(), 1)
    rows = run.labelled.group_by("phase").agg(
        pl.col("step").n_unique().cast(pl.Int64).alias(f"steps_{name}"),
        (pl.len() / hosts).alias(f"number_{name}"),
        (pl.col("dur_ps").sum() / hosts).round().cast(pl.Int64).alias(f"dur_{name}_ps"),
    )
    kinds = run.frame.select("phase", pl.col("kinds").alias(f"kinds_{name}"))
    return rows.join(kinds, on="phase", how="left").rename({"phase": f"phase_{name}"})


def _changes(a: pl.DataFrame, b: pl.DataFrame) -> dict[str, float | None]:
    """Return the columns of ``tpunb.schema.COMPARED`` for the steps of two phases, in order of time."""
    logs, row = (_logs(a), _logs(b)), dict[str, float | None]()
    for run, log, steps in zip("ab", logs, (a, b), strict=True):
        typical = float(np.exp(log.mean())) if len(log) else 0.0
        row[f"step_{run}_ps"] = round(typical) if steps["dur_ps"].count() else None
    ratio = [np.exp(end) for end in batch_means.difference(*logs)]
    shares = {"mxu": pl.col("mxu_util"), "duty": pl.col("duty_cycle")}
    shares |= {
        name: pl.when(pl.col("dur_ps") > 0).then(pl.col(f"{name}_ps") / pl.col("dur_ps")) for name in ("idle", "input")
    }
    values_of = {name: (_values(a, share), _values(b, share)) for name, share in shares.items()}
    idle = batch_means.difference(*values_of["idle"])
    row |= {name: _number(end) for name, end in zip(("ratio", "ratio_low", "ratio_high"), ratio, strict=True)}
    row |= {name: _number(end) for name, end in zip(("idle_change", "idle_low", "idle_high"), idle, strict=True)}
    for name, values in values_of.items():
        row |= {f"{name}_{run}": _number(batch_means.mean(sample)) for run, sample in zip("ab", values, strict=True)}
    return row


def _of(run: Phases, phase: int) -> pl.DataFrame:
    """Return the steps of a phase, in order of time."""
    return run.labelled.filter(pl.col("phase") == phase).sort("start_ps", "host")


def _logs(steps: pl.DataFrame) -> Floats:
    """Return the logarithms of the step times above 0."""
    return np.asarray(np.log(steps.filter(pl.col("dur_ps") > 0)["dur_ps"].to_numpy()), dtype=np.float64)


def _values(steps: pl.DataFrame, expression: pl.Expr) -> Floats:
    """Return the values of an expression for the steps traced in full, without nulls and NaNs."""
    full = steps.filter(pl.col("traced") == "full").select(value=expression.cast(pl.Float64).fill_nan(None))
    return np.asarray(full["value"].drop_nulls().to_numpy(), dtype=np.float64)


def _number(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None


def _ops(a: Phases, b: Phases, pairs: list[tuple[int, int]]) -> pl.DataFrame:
    """Return ``tpunb.schema.COMPARED_OPS`` of pairs of phases whose operations are known in both runs."""
    rows_a, rows_b = _rows(a), _rows(b)
    frames = [pl.DataFrame(schema=schema.COMPARED_OPS)]
    for phase_a, phase_b in pairs:
        if phase_a in rows_a and phase_b in rows_b:
            left = _of_ops(a.steps.full(), rows_a[phase_a], "a")
            right = _of_ops(b.steps.full(), rows_b[phase_b], "b")
            if left.height and right.height:  # else a profile has no operations
                rows = _changed_ops(left, right, len(rows_a[phase_a]), len(rows_b[phase_b]))
                rows = rows.with_columns(phase_a=phase_a, phase_b=phase_b)
                frames.append(schema.check(rows, schema.COMPARED_OPS, "compared_ops"))
    return pl.concat(frames)


def _rows(run: Phases) -> dict[int, Ints]:
    """Return the rows of the steps traced in full of each phase, in order of time."""
    full = run.labelled.filter(pl.col("traced") == "full").with_row_index("row").sort("start_ps", "host")
    parts = full.partition_by("phase", as_dict=True)
    return {int(phase): part["row"].to_numpy().astype(np.int64) for (phase,), part in parts.items()}


def _of_ops(full: Steps, rows: Ints, run: str) -> pl.DataFrame:
    """Return op, self time per step in us, its error, and whether no step can lack it by the profiler (`steady`)."""
    from scipy.sparse import csr_array

    matrix, n = op_matrix(full), len(rows)
    times = matrix.values("self_ps", scale=1e-6)[rows]
    size = batch_means.batch(n)
    steps = np.arange(n // size * size)
    batches = csr_array((np.full(len(steps), 1 / size), (steps // size, steps)), shape=(n // size, n))
    error = batch_means.error((batches @ times).toarray(), n)
    ran = np.bincount(times.indices, minlength=len(error))
    spent = np.bincount(times.indices, times.data.astype(np.float64), minlength=len(error))
    skipped = incidental(full) & (ran < n)  # steps without a record of it say nothing
    step_us = full.frame["dur_ps"].fill_null(0).to_numpy()[rows].mean() * 1e-6
    steady = (2 * ran > n) & (~skippable(full) | (spent > LIMITS.skippable_evidence * n * step_us))
    columns = {
        f"mean_{run}": spent / np.where(skipped, np.maximum(ran, 1), n),
        f"error_{run}": np.where(skipped, np.nan, error),
        f"steady_{run}": steady,
    }
    return matrix.ops.with_columns(pl.Series(name, values) for name, values in columns.items()).filter(
        pl.Series(ran > 0)
    )


def _with_names_of(a: pl.DataFrame, b: pl.DataFrame) -> pl.DataFrame:
    """Return the operations of `b`; a collective has its name in `a` if each has one of its sort, by two names."""
    alone = [
        ops.filter(side="device").join(other, on=["side", "op"], how="anti")["op"].cast(pl.String)
        for ops, other in ((a, b), (b, a))
    ]
    sorts = [[op_names.collective(name) for name in names] for names in alone]
    once = {sort for sort in sorts[0] if sort and sorts[0].count(sort) == sorts[1].count(sort) == 1}
    renamed = {alone[1][sorts[1].index(sort)]: alone[0][sorts[0].index(sort)] for sort in once}
    return b.with_columns(pl.col("op").cast(pl.String).replace(renamed).cast(schema.NAME)) if renamed else b


def _changed_ops(a: pl.DataFrame, b: pl.DataFrame, n_a: int, n_b: int) -> pl.DataFrame:
    """Return the columns of ``tpunb.schema.COMPARED_OPS`` for two phases of so many steps, without their labels."""
    both = a.join(_with_names_of(a, b), on=["side", "op"], how="full", coalesce=True)
    gained, lost = pl.col("mean_a").is_null(), pl.col("mean_b").is_null()
    state = pl.when(gained).then(pl.lit("gained")).when(lost).then(pl.lit("lost")).otherwise(pl.lit("both"))
    unrecorded = (gained | lost) & ~pl.coalesce("steady_a", "steady_b")
    both = both.with_columns(state=pl.when(unrecorded).then(pl.lit("unrecorded")).otherwise(state))
    # an operation that did not run took no time in each step; one step alone has no error
    absent = pl.when(pl.col("state") == "unrecorded").then(np.nan)
    errors = [
        pl.col(f"error_{run}").fill_null(absent.otherwise(0.0 if n > 1 else np.nan))
        for run, n in (("a", n_a), ("b", n_b))
    ]
    both = both.with_columns(pl.col("mean_a", "mean_b").fill_null(absent.otherwise(0.0)), *errors)
    mean_a, mean_b, error_a, error_b = (both[name].to_numpy() for name in ("mean_a", "mean_b", "error_a", "error_b"))
    change = mean_b - mean_a
    low, high = batch_means.ends(change, (error_a, n_a), (error_b, n_b))
    micros = {"self_a_ps": mean_a, "self_b_ps": mean_b, "change_ps": change, "low_ps": low, "high_ps": high}
    times = [
        (pl.Series(name, values, nan_to_null=True) * 1e6).round().cast(pl.Int64) for name, values in micros.items()
    ]
    order = [pl.col("change_ps").abs(), "side", pl.col("op").cast(pl.String)]
    return both.with_columns(times).sort(order, descending=[True, True, False], nulls_last=True)
