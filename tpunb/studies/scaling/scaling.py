"""Scaling: one training on several numbers of chips, and the fit of its serial share."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from html import escape
from typing import Any

import polars as pl

from tpunb import schema
from tpunb.frames.conversion import Tabular
from tpunb.studies.scaling.columns import SCALING, SCALING_RUNS
from tpunb.text import cut, percent, plain, plural, short_time

KIND = ["benchmark", "ruleset", "submitter", "series"]
"""Columns of the frame whose sizes have one base."""

_NUMBER = r"([^A-Za-z0-9.]n?)\d+([^A-Za-z0-9.]|$)"  # of chips, cores or nodes in the name of a system
_MEDIANS = ("block_s", "step_ps", "examples_per_s", "startup_minutes", "evaluation_minutes", "to_quality")


@dataclass(frozen=True, eq=False, repr=False)
class Scaling(Tabular):
    """Runs of trainings on several numbers of chips.

    Rulesets, submitters and kinds of systems are never compared with each other: each has its own base.

    Parameters
    ----------
    runs
        One row per run: ``SCALING_RUNS``.
    notes
        What was not as expected in the logs, one line each.
    """

    runs: pl.DataFrame
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "runs", schema.check(self.runs, SCALING_RUNS, "scaling_runs"))

    @cached_property
    def frame(self) -> pl.DataFrame:  # type: ignore[override]
        """One row per (benchmark, system, batch): ``SCALING``."""
        chips, batch, rate = pl.col("chips"), pl.col("batch"), pl.col("examples_per_s_per_chip")

        def base(of: str) -> pl.Expr:
            return pl.when(chips.is_not_null()).then(pl.col(of).filter(chips.is_not_null()).first().over(KIND))

        rows = self._sizes.with_columns(examples_per_s_per_chip=pl.col("examples_per_s") / chips)
        rows = rows.sort(*KIND, "chips", "batch", nulls_last=True)
        rows = rows.with_columns(pl.col("batch", "chips").shift().over(KIND).name.suffix("_before"))
        before, size = pl.col("batch_before"), pl.col("chips_before")
        batch_scaling = (
            pl.when(before.is_null() | batch.is_null() | chips.is_null() | (chips == size))
            .then(None)
            .when(batch == before)
            .then(pl.lit("strong"))
            .when(batch * size == before * chips)
            .then(pl.lit("weak"))
            .otherwise(pl.lit("mixed"))
        )
        rows = rows.with_columns(
            batch_scaling=batch_scaling,
            base_chips=base("chips"),
            speedup=base("minutes") / pl.col("minutes"),
            efficiency=rate / base("examples_per_s_per_chip"),
        )
        return schema.check(rows, SCALING, "scaling")

    @property
    def _sizes(self) -> pl.DataFrame:
        """The runs of each size: their olympic mean as in mlperf-logging's summary, and medians of the finished."""
        success, finished = pl.col("status") == "success", pl.col("status").is_in(["success", "capture"])
        most = pl.when(pl.col("benchmark").first() == "unet3d").then(4).otherwise(1)
        drop = pl.when(pl.len() > 2 * most).then(most).otherwise(0)  # so few runs have no best and worst
        scored = success.any() & ((~finished).sum() <= drop)
        shares = (pl.col(f"{name}_minutes") / pl.col("minutes") for name in ("startup", "evaluation"))
        return self.runs.group_by("system", "chips", "cores", "batch", *KIND[:3]).agg(
            *(pl.col(name).filter(finished).median() for name in _MEDIANS),
            *(share.filter(finished).median().name.replace("minutes", "share") for share in shares),
            runs=pl.len(),
            unfinished=(~finished).sum(),
            scored=pl.when(scored).then(pl.len() - 2 * drop),
            minutes=pl.when(scored).then(
                pl.col("minutes").filter(success).sort().slice(drop, pl.len() - 2 * drop).mean()
            ),
            series=pl.col("system").first().str.replace_all(_NUMBER, "${1}N$2"),
            unit=pl.col("unit").drop_nulls().first(),
            official_factor=pl.col("official_factor").first(),
        )

    def filter(self, *predicates: pl.Expr, **values: Any) -> Scaling:
        """Return the runs that a filter of Polars keeps of `runs`, such as ``filter(benchmark="resnet")``."""
        return replace(self, runs=self.runs.filter(*predicates, **values))

    def __str__(self) -> str:
        texts = []
        for _, rows in self.frame.drop_nulls("chips").group_by(KIND, maintain_order=True):
            most = rows.row(-1, named=True)
            speedup = f", {most['speedup']:.1f} times as fast to quality" if most["speedup"] else ""
            kept = f", {percent(most['efficiency'])} of the throughput per chip" if most["efficiency"] else ""
            name = cut(plain(" ".join(filter(None, [most["benchmark"], most["series"], most["ruleset"]]))))
            sizes = f"{most['base_chips']:,} to {plural(most['chips'], 'chip')}{speedup}{kept}"
            texts.append(f"{name}: {sizes if len(rows) > 1 else plural(most['chips'], 'chip')}")
        return "\n".join((*texts, *self.notes)) or plural(len(self.runs), "run")

    def __repr__(self) -> str:
        names = ", ".join(cut(plain(name)) for name in self.frame["benchmark"].unique().sort())
        return f"Scaling({plural(len(self), 'size')} of {names}, {plural(len(self.runs), 'run')})"

    def _repr_html_(self) -> str:
        return f"<p>{escape(str(self)).replace(chr(10), '<br>')}</p>{self.frame._repr_html_()}"


@dataclass(frozen=True, eq=False, repr=False)
class ScalingFit(Tabular):
    """Step time of one batch by number of chips: serial time, and time that is divided by the chips.

    Parameters
    ----------
    frame
        One row per size: ``SCALING_FIT``.
    serial_ps
        Serial time of a step in picoseconds; below 0 where more chips gain more than their number.
    divided_ps
        The rest of a step on one chip in picoseconds.
    serial_share
        Serial time as a share of step time on the most chips.
    interval
        95 % interval of `serial_share` by the spread of the runs; None where a fitted size has one run.
    """

    frame: pl.DataFrame
    serial_ps: float
    divided_ps: float
    serial_share: float
    interval: tuple[float, float] | None

    def step_ps(self, chips: int) -> float:
        """Return the step time on a number of chips in picoseconds, by the fit."""
        return self.serial_ps + self.divided_ps / chips

    def __str__(self) -> str:
        low, high = self.interval or (None, None)
        interval = "" if low is None or high is None else f" ({100 * low:.1f} to {percent(high, 1)})"
        share = f"{percent(self.serial_share, 1)}{interval} of the step on {plural(self.frame['chips'][-1], 'chip')}"
        return f"{share} is serial, {short_time(max(self.serial_ps, 0))}"

    def __repr__(self) -> str:
        return f"ScalingFit({self})"
