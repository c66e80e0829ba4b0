"""Phases: steps in groups, and each group by itself."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tpunb import export, schema
from tpunb.errors import whole
from tpunb.frames.op_matrix import op_matrix
from tpunb.frames.phase_rows import rows
from tpunb.frames.phase_sums import totals
from tpunb.frames.representatives import Population, Representatives, representative, representatives
from tpunb.frames.steps import Steps
from tpunb.frames.words import plural, to_pandas
from tpunb.saved_steps import Checkpoints, nearest_of, steps_of, trained

if TYPE_CHECKING:
    import pandas as pd


PhaseMethod = Callable[[Steps], Sequence[int]]
"""A phase method: the steps seen in full in, one label a step out, -1 for noise."""


class Labels(Sequence[int]):
    """One label a step, with every sweep the choice was made from.

    Parameters
    ----------
    labels
        One int a step, -1 for noise.
    sweeps
        Frames by the name of the parameter that was swept; the column ``chosen`` marks the choice.

    Raises
    ------
    TypeError
        When a label is no int.

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

    def __len__(self) -> int:
        return len(self.values)

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> list[int]: ...

    def __getitem__(self, index: int | slice) -> int | list[int]:
        """Return one label, or some, as Python's ints."""
        found: int | list[int] = self.values[index].tolist()
        return found

    def __iter__(self) -> Iterator[int]:
        return iter(self.values.tolist())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self.values, dtype=dtype, copy=copy is not False)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self.values.tolist() == list(other)

    __hash__ = None  # type: ignore[assignment]  # as a list's

    def __repr__(self) -> str:
        return repr(self.values.tolist())


@dataclass(frozen=True)
class Phase:
    """One phase: its number, its steps and its share of the run's time.

    Parameters
    ----------
    id
        The label; -1 is noise.
    steps
        The rows of ``Steps.frame`` in the phase, and ``trained``: the step as checkpoints count it.
    share
        Of the time of all steps, 0 to 1.
    """

    id: int
    steps: pl.DataFrame
    share: float

    def __repr__(self) -> str:
        name = "noise" if self.id < 0 else f"phase {self.id}"
        return f"Phase({name}, {plural(self.steps.height, 'step')}, {self.share:.1%} of the time)"


@dataclass(frozen=True, eq=False, repr=False)
class Phases:
    """Steps grouped into phases.

    Parameters
    ----------
    steps
        What was grouped.
    labels
        One label a row of ``steps.frame``; -1 is noise.
    method
        The method that gave them.
    far
        `distance`, or what finds it when it is asked for.
    sweeps
        Every sweep a choice was made from, by the name of the parameter.
    """

    steps: Steps
    labels: pl.Series
    method: PhaseMethod
    far: pl.Series | Callable[[], pl.Series]
    sweeps: Mapping[str, pl.DataFrame] = field(default_factory=dict)

    @cached_property
    def distance(self) -> pl.Series:
        """Of each step to the centre of its phase, in feature space; null where the step was not seen in full."""
        found = self.far if isinstance(self.far, pl.Series) else self.far()
        return found.cast(pl.Float64).alias("distance")

    @cached_property
    def labelled(self) -> pl.DataFrame:
        """``steps.frame`` with ``phase``, ``distance`` and ``trained``, which is the step as checkpoints count it."""
        return self.steps.frame.with_columns(self.labels.cast(pl.Int64).alias("phase"), self.distance, trained())

    @cached_property
    def fitted(self) -> pl.Series:
        """The labels of the steps seen in full, which are those of ``steps.full().frame``."""
        return self.labels.filter(self.steps.frame["seen"] == "full")

    @cached_property
    def frame(self) -> pl.DataFrame:
        """One row a phase, longest first: ``tpunb.schema.PHASES``."""
        return rows(self.steps, self.labels)

    def __len__(self) -> int:
        return int((self.frame["phase"] >= 0).sum())

    def __iter__(self) -> Iterator[Phase]:
        return (self[phase] for phase in self.frame["phase"])

    def __getitem__(self, phase: int) -> Phase:
        """Return one phase by its label.

        Raises
        ------
        KeyError
            When no step bears that label.
        """
        known = isinstance(phase, int) and not isinstance(phase, bool)
        row = self.frame.filter(pl.col("phase") == phase) if known else self.frame.clear()
        if row.is_empty():
            raise KeyError(f"no phase {phase!r}; there are {sorted(self.frame['phase'].to_list())}")
        steps = self.steps.frame.with_columns(trained()).filter(self.labels == phase)
        return Phase(int(phase), steps, row["share"].item())

    def __repr__(self) -> str:
        return (
            f"Phases({plural(len(self), 'phase')} over {plural(len(self.steps), 'step')}, {self.method!r}, "
            f"top 3 cover {self.coverage(3):.1%})"
        )

    @property
    def longest(self) -> Phase:
        """The phase with the largest share of the time; noise only where there is nothing else."""
        real = self.frame.filter(pl.col("phase") >= 0)
        return self[(real if real.height else self.frame)["phase"][0]]

    def coverage(self, n: int = 3) -> float:
        """Return the share of the time of all steps in the `n` longest phases, 0 to 1.

        Noise counts as a group of its own (paper VI.A, Figures 7 to 9).
        """
        n = whole("coverage", "n", n, 1)
        return float(self.frame["share"].head(min(n, self.frame.height)).sum())

    @property
    def noise(self) -> float:
        """Share of the time of all steps that is noise, 0 to 1."""
        return float(self.frame.filter(pl.col("phase") < 0)["share"].sum())

    @cached_property
    def homogeneity(self) -> float:
        """How much of what sets the run's steps apart the phases tell, 0 to 1: what `coverage` alone does not say.

        A step is where its time goes: the square roots of its operations' shares of self time, between which a
        distance is Hellinger's. The scatter of a set of steps is the mean squared distance to their centre, weighted
        by step time; homogeneity is 1 less the scatter left inside the phases by that of the run. One phase for
        everything has 0.0, a phase for each step 1.0. A run that scatters less than one whose operations' times
        vary by 10 % is held to be of that scatter: where all steps are alike, one phase for all has 1.0 too.

        Noise counts as a group of its own, as in `coverage`. Steps not seen in full are left out.
        """
        return self._population.homogeneity()

    def top(self, n: int = 5) -> pl.DataFrame:
        """Return the `n` most time-consuming operations of each phase, host and device apart.

        By self time in the steps seen in full (paper VI.B, Tables II and III): ``tpunb.schema.TOP``.
        """
        n = whole("top", "n", n, 1)
        rows = (
            self.totals.select("phase", "count", "total_ps", "self_ps")
            .with_columns(op_matrix(self.steps.full()).ops[self.totals["column"]])
            .with_columns(share=pl.col("self_ps") / pl.col("self_ps").sum().clip(1).over("phase", "side"))
            .sort("phase", "side", "self_ps", "op", descending=[False, False, True, False])
            .with_columns(rank=pl.int_range(1, pl.len() + 1).over("phase", "side"))
            .filter(pl.col("rank") <= min(n, self.steps.ops.height))
        )
        return schema.check(rows, schema.TOP, "top")

    @cached_property
    def totals(self) -> pl.DataFrame:
        """What each operation adds up to in each phase: :func:`tpunb.frames.phase_sums.totals`, of the full steps."""
        return totals(self.steps.full(), self.fitted.to_numpy())

    def representatives(self, n: int | None = None, *, seed: int | None = None) -> Representatives:
        """Return the fewest steps to look at to know the run, and how far they can be trusted.

        Noise is a group like the phases. Only steps seen in full can be looked at.

        Parameters
        ----------
        n
            How many, 1 or more; one a phase, and one for noise, if None. More than these go where they help most;
            of fewer, the phases of the most time have one.
        seed
            Draws the steps of each phase at random, and tells the 95 % interval of what they say of the run. If
            None, they are the ones that stand for their phase best, which no interval is for.

        Raises
        ------
        ValueError
            When `n` or `seed` is out of its range.

        >>> from tpunb.testing import toy_steps
        >>> import tpunb as tp
        >>> chosen = tp.phases(toy_steps("aaabbb")).representatives()
        >>> chosen, chosen.frame.select("phase", "step", "weight").rows()
        (Representatives(2 of 6 steps, op profile within 0.0 %), [(1, 3, 3.0), (0, 0, 3.0)])
        """
        if n is not None:
            n = whole("representatives", "n", n, 1)
        if seed is not None:
            seed = whole("representatives", "seed", seed, 0)
        return representatives(self._population, n, seed)

    def representative(self, phase: int) -> pl.DataFrame:
        """Return the step to look at to know one phase, as ``representatives().frame`` has it.

        No row where none of its steps was seen in full. How far it can be trusted is not asked, which takes longer.

        Raises
        ------
        KeyError
            When no step bears that label.
        """
        return representative(self._population, self[phase].id)

    @cached_property
    def _population(self) -> Population:
        return Population(self.steps, self.labelled)

    def to_chrome_trace(self, path: str | os.PathLike[str], checkpoints: Checkpoints | None = None) -> Path:
        """Write the phases as a trace for chrome://tracing and Perfetto (paper IV.B and C, Figure 3).

        Time runs as it ran: one track of the windows in which the profiler watched, one of the phases, each with its
        operations and its nearest checkpoint.

        Parameters
        ----------
        path
            Where to; gzipped where it ends in ``.gz``.
        checkpoints
            Those of ``tp.checkpoints``; or the step of each by its name, or the steps alone.
        """
        saved = steps_of(checkpoints, "to_chrome_trace")
        by_phase = self.labelled.group_by("phase").agg("trained").iter_rows()
        near = {phase: name for phase, steps in by_phase if (name := nearest_of(steps, saved)) is not None}
        told = {phase: f"{name} (step {saved[name]})" for phase, name in near.items()}
        return export.chrome_trace(Path(path), self.labelled, self.frame, self.top(5), self.steps.windows, told)

    def to_csv(self, folder: str | os.PathLike[str]) -> list[Path]:
        """Write ``phases.csv`` and the operations of each phase, host and device apart, into `folder`."""
        every = self.top(max(self.steps.ops.height, 1))
        return export.csv(Path(folder), self.frame, every)

    def to_pandas(self) -> pd.DataFrame:
        """Return `frame` as a pandas DataFrame (needs the extra ``pandas``)."""
        return to_pandas(self.frame)
