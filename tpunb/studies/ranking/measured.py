"""Measured configurations of a graph: what a cost model learns from, and how repeatable the measurement is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from tpunb import schema
from tpunb.costs import hlo_cost
from tpunb.errors import BadProfile
from tpunb.protobuf.table import Messages, text
from tpunb.studies.ranking.columns import CONFIGURATIONS
from tpunb.studies.ranking.graphs import joined, of_bytes
from tpunb.studies.ranking.kernels import Kernels
from tpunb.studies.ranking.loops import COSTS
from tpunb.text import percent, plain, plural

Floats = npt.NDArray[np.float64]

_REPEATABILITY = 0.02
"""Relative difference between measurements of one configuration, where none was repeated."""

_SUM = 3.0
"""Weight of the sum of all costs beside each: ridge changes what is large last."""


@dataclass(frozen=True, eq=False, repr=False)
class Measured:
    """Configurations of one graph, each with its time.

    Parameters
    ----------
    name, family
        Names of the graph, and of the graphs that are like it.
    frame
        A row for each configuration: ``CONFIGURATIONS``.
    inputs
        What a model sees of the configurations, shape (configurations, n), relative to their median: "graph" before
        anything is compiled, and "program" of the compiled programs.
    graph
        The graph: `ProgramGraph` or `TpuGraph`.
    programs, hlo
        ``HloModuleProto`` of each configuration, and before the compiler's passes; empty if unknown.
    numbers
        Numbers of the configurations by TpuGraphs' description, shape (configurations, 24) or (configurations,
        configurable nodes, 18); None for other graphs.
    """

    name: str
    family: str
    frame: pl.DataFrame
    inputs: Mapping[str, Floats]
    graph: Any = None
    programs: Sequence[bytes] = ()
    hlo: bytes = b""
    numbers: npt.NDArray[np.float32] | None = None

    def __post_init__(self) -> None:
        frame = schema.check(self.frame, CONFIGURATIONS, "configurations")
        object.__setattr__(self, "frame", frame)
        if (frame["time_ps"] <= 0).any():
            worst = frame["time_ps"].to_numpy().min()
            raise BadProfile(f"{plain(self.name)} has a time of {worst} ps; times are above 0")
        for name, values in self.inputs.items():
            if len(values) != len(frame) or not np.isfinite(values).all():
                problem = plural(len(values), "row") if len(values) != len(frame) else "numbers that are not finite"
                raise BadProfile(
                    f"{plain(self.name)}: the {name} features have {problem} of {len(frame)} configurations"
                )

    def __len__(self) -> int:
        return len(self.frame)

    @cached_property
    def times(self) -> Floats:
        """Times in picoseconds; of graphs measured on several machines, relative to the default on each."""
        times, default = (self.frame[name].cast(pl.Float64).to_numpy() for name in ("time_ps", "default_ps"))
        complete = np.isfinite(default).all() and (default > 0).all()
        return times * np.median(default) / default if complete else times

    @cached_property
    def halves(self) -> tuple[Floats, Floats] | None:
        """Medians of the even and of the odd rounds, shape (configurations,); None unless all had two rounds."""
        rounds = self.frame["rounds_ps"].to_list()
        if not rounds or any(each is None or len(each) < 2 for each in rounds):
            return None
        even, odd = (np.array([np.median(each[k::2]) for each in rounds]) for k in (0, 1))
        return even, odd

    @property
    def repeatability(self) -> float:
        """Median relative difference between the halves of the rounds; 0.02 where nothing was repeated."""
        if self.halves is None:
            return _REPEATABILITY
        even, odd = self.halves
        return float(np.median(np.abs(even - odd) / self.times))

    @property
    def nothing_to_rank(self) -> str | None:
        """Why no order of the configurations can be learnt or judged; None if one can."""
        if len(self) < 2:
            return "one configuration: nothing to rank"
        spread = float(self.times.max() / self.times.min() - 1)
        if spread == 0:
            return "all times are equal: nothing to rank"
        if spread < self.repeatability:
            return f"spread below repeatability: {percent(spread, 1)} of {percent(self.repeatability, 1)}"
        return None

    def __repr__(self) -> str:
        best = self.times.max() / self.times.min() if len(self) else 1
        return f"Measured({plain(self.name)}, {plural(len(self), 'configuration')}, slowest/best {best:.2f})"


def of_programs(name: str, family: str, frame: pl.DataFrame, hlo: bytes, programs: Sequence[bytes]) -> Measured:
    """Return configurations of a function from its program before the compiler's passes, and those after them."""
    compiled = Kernels(_protos(programs))
    work = hlo_cost.work(compiled.protos).filter(pl.Series(compiled.entry))
    moved = work.group_by("proto", maintain_order=True).agg(pl.col("bytes").sum())["bytes"]
    inputs = {"program": relative(compiled.compiled()), "graph": inputs_of_graph(hlo, frame["layouts"].to_list())}
    return Measured(
        name, family, frame.with_columns(bytes=moved, tile=pl.lit(None)), inputs, of_bytes(hlo), programs, hlo
    )


def inputs_of_programs(programs: Sequence[bytes]) -> Floats:
    """Return what a model sees of compiled programs."""
    return relative(Kernels(_protos(programs)).compiled())


def inputs_of_graph(hlo: bytes, orders: Sequence[Sequence[Sequence[int]]]) -> Floats:
    """Return what a model sees of orders of the arguments of a program before the compiler's passes."""
    kernels = Kernels(_protos([hlo]), compiled=False)
    return relative(np.concatenate([kernels.planned(each) for each in orders]))


def _protos(modules: Sequence[bytes]) -> Messages:
    return Messages.of(joined([joined([module]) for module in modules]), source="programs").sub(text(1))


def relative(counts: Floats) -> Floats:
    """Return the costs of configurations by the prior figures, relative to the median and the spread of their sum."""
    costs = counts * [*COSTS.values()]
    costs -= np.median(costs, axis=0)
    total = costs.sum(axis=1, keepdims=True)
    spread = float(total.std())
    return np.hstack([_SUM * total, costs]) / spread if spread > 0 else np.zeros((len(costs), 1 + costs.shape[1]))
