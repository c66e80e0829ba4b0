"""Phases: the steps of a run in groups."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from tpunb import schema
from tpunb.errors import check_whole
from tpunb.frames import export
from tpunb.frames.conversion import to_pandas
from tpunb.frames.exclusive_time import outlier_reasons
from tpunb.frames.nearest import StepSource, checkpoint_steps, nearest_checkpoint
from tpunb.frames.op_matrix import op_matrix
from tpunb.frames.phase_rows import rows
from tpunb.frames.steps import Steps, trained
from tpunb.text import coverage, phases_over, plural, share_of_steps

if TYPE_CHECKING:
    import pandas as pd


PhaseMethod = Callable[[Steps], Sequence[int]]
"""Phase method: from the steps traced in full to one label per step, -1 for outliers."""


class Labels(list[int]):
    """One label per step, with the sweeps that its parameters were chosen from.

    Parameters
    ----------
    labels
        One int per step, -1 for outliers.
    sweeps
        Frames by the name of the swept parameter; the column ``chosen`` marks the choice.

    Raises
    ------
    TypeError
        If a label is not an int.

    >>> labels = Labels([0, 0, -1])
    >>> labels, labels == [0, 0, -1], labels.values.dtype
    ([0, 0, -1], True, dtype('int64'))
    """

    def __init__(self, labels: Iterable[int], sweeps: Mapping[str, pl.DataFrame] | None = None) -> None:
        if not isinstance(labels, np.ndarray) or labels.dtype.kind not in "iu":
            labels = np.array([operator.index(label) for label in labels], dtype=np.int64)
        self.values = labels.astype(np.int64)
        self.values.setflags(write=False)
        self.sweeps = dict(sweeps or {})
        super().__init__(self.values.tolist())


@dataclass(frozen=True)
class Phase:
    """One phase: its label, its steps and its share of step time without waits."""

    id: int  # label; -1 for outliers
    steps: pl.DataFrame  # rows of `Steps.frame`, with `trained`, the step number that checkpoints use
    share: float  # of the step time without waits, 0 to 1
    name: str = ""  # unique in the run, such as "train (input-bound)"

    def __repr__(self) -> str:
        steps = plural(self.steps.height, "step")
        return f"Phase({self.id}, {self.name!r}, {steps}, {share_of_steps(self.share)})"


@dataclass(frozen=True, eq=False, repr=False)
class Phases:
    """Steps grouped into phases.

    Parameters
    ----------
    steps
        Steps that were grouped.
    labels
        One label per row of ``steps.frame``; -1 for outliers.
    method
        Method that made the labels.
    distances
        `distance`, or a function that computes it on access.
    sweeps
        Sweeps that parameters were chosen from, by the name of the parameter.
    confidences
        Function that computes the confidence in each phase and in all, by label and None, on access.
    """

    steps: Steps
    labels: pl.Series
    method: PhaseMethod
    distances: pl.Series | Callable[[], pl.Series]
    sweeps: Mapping[str, pl.DataFrame] = field(default_factory=dict)
    confidences: Callable[[], Mapping[int | None, float | None]] = dict

    @cached_property
    def distance(self) -> pl.Series:
        """Distance of each step to the centre of its phase in feature space; null if it was not traced in full."""
        distances = self.distances if isinstance(self.distances, pl.Series) else self.distances()
        return distances.cast(pl.Float64).alias("distance")

    @cached_property
    def labelled(self) -> pl.DataFrame:
        """``steps.frame`` with ``phase``, ``distance``, ``trained`` (step number of checkpoints) and ``reason``.

        The reason says why a step is an outlier: the account that took most of it, such as "program startup", the
        place of a stall, "operations" if the method left it out, or "slow step"; null for the steps of phases.
        """
        labels = self.labels.cast(pl.Int64).alias("phase")
        return self.steps.frame.with_columns(labels, self.distance, trained(), outlier_reasons(self.steps, labels))

    @cached_property
    def fitted(self) -> pl.Series:
        """Labels of the steps traced in full: one per row of ``steps.full().frame``."""
        return self.labels.filter(self.steps.frame["traced"] == "full")

    @cached_property
    def frame(self) -> pl.DataFrame:
        """One row per phase, longest first: ``tpunb.schema.PHASES``."""
        of_phase = [self._confidences.get(phase) for phase in self.aggregates["phase"]]
        return self.aggregates.with_columns(confidence=pl.Series(of_phase, dtype=pl.Float64))

    @cached_property
    def aggregates(self) -> pl.DataFrame:
        """`frame` with null in place of the confidence, which takes longer."""
        return rows(self.steps, self.labels)

    @cached_property
    def _confidences(self) -> Mapping[int | None, float | None]:
        return self.confidences()

    @property
    def confidence(self) -> float | None:
        """Confidence in the phases, 0 to 1, or None if unknown: :mod:`tpunb.cluster.assign`."""
        return self._confidences.get(None)

    @cached_property
    def names(self) -> dict[int, str]:
        """Name of each phase, unique in the run, by label."""
        return dict(zip(self.aggregates["phase"], self.aggregates["name"], strict=True))

    def __len__(self) -> int:
        return int((self.aggregates["phase"] >= 0).sum())

    def __iter__(self) -> Iterator[Phase]:
        return (self[phase] for phase in self.aggregates["phase"])

    def __getitem__(self, phase: int) -> Phase:
        """Return one phase by its label; raises KeyError if no step has it."""
        valid = isinstance(phase, int) and not isinstance(phase, bool)
        row = self.aggregates.filter(pl.col("phase") == phase) if valid else self.aggregates.clear()
        if row.is_empty():
            raise KeyError(f"no phase {phase!r}; there are {sorted(self.aggregates['phase'].to_list())}")
        steps = self.steps.frame.with_columns(trained()).filter(self.labels == phase)
        return Phase(int(phase), steps, row["share"].item(), row["name"].item())

    def __repr__(self) -> str:
        return f"Phases({phases_over(len(self), len(self.steps))}, {self.method!r}, {coverage(self.coverage(3))})"

    @property
    def headline(self) -> str:
        """The result of the clustering in one line: numbers of phases and steps, and coverage."""
        return f"{phases_over(len(self), len(self.steps))}; {coverage(self.coverage(3))}"

    @property
    def longest(self) -> Phase:
        """Phase with the largest share of step time without waits; the outliers only if there is no phase."""
        real = self.aggregates.filter(pl.col("phase") >= 0)
        return self[(real if real.height else self.aggregates)["phase"][0]]

    def coverage(self, n: int = 3) -> float:
        """Return the share of step time without waits in the `n` longest phases, 0 to 1.

        Outliers are not covered. Productive time of a step is its time without callbacks and input wait; if that is
        over 1.5 times the median of its phase, of outliers of their kind, it is that median.
        """
        n = check_whole("coverage", "n", n, 1)
        return float(self.aggregates["share"].filter(self.aggregates["phase"] >= 0).head(min(n, len(self.names))).sum())

    @property
    def noise(self) -> float:
        """Share of step time without waits in outliers, 0 to 1."""
        return float(self.aggregates.filter(pl.col("phase") < 0)["share"].sum())

    @cached_property
    def explained_variance(self) -> float | None:
        """Share of the variance between the run's steps that the phases explain, 0 to 1; None if there is only one.

        A step is the vector of the square roots of its operations' shares of self time (Hellinger distance). The
        variance of a set of steps is the mean squared distance to their centre, weighted by step time; the value is 1
        minus the variance left inside the phases by that of the run. A phase per step gives 1.0. The variance of the
        run is taken to be at least that of operations whose times vary by 10 %, so alike steps give 1.0.

        The outliers count as a phase. Steps not traced in full are left out.
        """
        from tpunb.frames.phase_sums import explained_variance  # compiled

        return explained_variance(self.steps, self.labels) if self.fitted.n_unique() > 1 else None

    def top(self, n: int = 5, *, sources: bool = True) -> pl.DataFrame:
        """Return the `n` operations of each phase with the most self time, host and device separately.

        Sums over the steps traced in full (paper VI.B, Tables II and III): ``tpunb.schema.TOP``.

        Parameters
        ----------
        n
            Number of operations, 1 or more.
        sources
            Whether to read layer and source line of the operations from the raw events; else they are null.
        """
        n = check_whole("top", "n", n, 1)
        rows = (
            self.totals.select("phase", "count", "total_ps", "self_ps")
            .with_columns(op_matrix(self.steps.full()).ops[self.totals["column"]])
            .with_columns(share=pl.col("self_ps") / pl.col("self_ps").sum().clip(1).over("phase", "side"))
            .sort("phase", "side", "self_ps", "op", descending=[False, False, True, False])
            .with_columns(rank=pl.int_range(1, pl.len() + 1).over("phase", "side"))
            .filter(pl.col("rank") <= min(n, self.steps.ops.height))
        )
        if sources and self.steps.read_layers is not None:
            rows = rows.join(self._sources, on=["phase", "side", "op"], how="left", maintain_order="left")
        else:
            rows = rows.with_columns(layer=None, source=None)
        return schema.check(rows, schema.TOP, "top")

    @cached_property
    def _sources(self) -> pl.DataFrame:
        """The layer and source line in which each operation of each phase has the most self time."""
        op, line = ["phase", "side", "op"], ["layer", "source"]
        full = self.labelled.filter(traced="full").select("host", "step", "phase")
        lines = self.steps.layers.join(full, on=["host", "step"]).group_by(*op, *line).agg(pl.col("self_ps").sum())
        return lines.sort("self_ps", *line, descending=[True, False, False]).group_by(op).agg(pl.col(line).first())

    @cached_property
    def totals(self) -> pl.DataFrame:
        """Totals of each operation in each phase, over the full steps: :func:`tpunb.frames.phase_sums.totals`."""
        from tpunb.frames.phase_sums import totals  # compiled: half a second that importing need not wait

        return totals(self.steps.full(), self.fitted.to_numpy())

    def to_chrome_trace(
        self,
        path: str | os.PathLike[str],
        checkpoints: StepSource | None = None,
        accounts: pl.DataFrame | None = None,
    ) -> Path:
        """Write the phases as a trace for chrome://tracing and Perfetto (paper IV.B and C, Figure 3).

        On the time axis of the run: one track of the profiler's windows; one of the phases, each with its operations
        and its nearest checkpoint; one of the accounts, if they are given.

        Parameters
        ----------
        path
            Target file, gzipped if it ends in ``.gz``.
        checkpoints
            Checkpoints of ``tp.checkpoints``, or steps by checkpoint name, or steps.
        accounts
            Stretches of time by account: ``tp.goodput(phases).segments``.
        """
        saved = checkpoint_steps(checkpoints, "to_chrome_trace")
        by_phase = self.labelled.group_by("phase").agg("trained").iter_rows()
        near = {phase: name for phase, steps in by_phase if (name := nearest_checkpoint(steps, saved)) is not None}
        nearest = {phase: f"{name} (step {saved[name]})" for phase, name in near.items()}
        described = export.descriptions(self.frame, self.top(5), nearest)
        return export.chrome_trace(Path(path), self.labelled, self.steps.windows, described, accounts)

    def to_csv(self, folder: str | os.PathLike[str]) -> list[Path]:
        """Write ``phases.csv`` and the operations of each phase, host and device separately, into `folder`."""
        return export.csv(Path(folder), self.frame, self.top(max(self.steps.ops.height, 1)))

    def to_pandas(self) -> pd.DataFrame:
        """Convert `frame` to a pandas DataFrame (requires the extra ``pandas``)."""
        return to_pandas(self.frame)
