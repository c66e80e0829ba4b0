"""Steps: the operations and the step-time breakdown of each step of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from tpunb import schema
from tpunb.errors import TpunbError, not_kept
from tpunb.frames.conversion import Tabular
from tpunb.frames.hardware import Device
from tpunb.text import plural

_INFERRED = {"module": "module runs", "calls": "function calls", "whole": "the whole capture"}
"""What steps without annotation or record of their bounds were inferred from, by their rule."""

_SHOWN = 20  # operations of a capture without steps


class RunEvents(NamedTuple):
    """What libraries were asked to do in a run, and what these events refer to by numbers of a host."""

    events: pl.DataFrame  # ``tpunb.schema.RUN_EVENTS``, in the order in which they ended
    names: pl.DataFrame  # ``tpunb.schema.RUN_NAMES``
    places: pl.DataFrame  # ``tpunb.schema.RUN_PLACES``
    keys: pl.DataFrame  # ``tpunb.schema.RUN_KEYS``
    signatures: pl.DataFrame  # ``tpunb.schema.RUN_SIGNATURES``


@dataclass(frozen=True, eq=False, repr=False)
class Steps(Tabular):
    """Steps of a run, one row per (host, step), with their operations.

    Parameters
    ----------
    frame
        One row per (host, step), sorted by host and start: ``tpunb.schema.STEPS``.
    ops
        One row per (host, step, op, side): ``tpunb.schema.OPS``; or a function that reads them on access.
    devices
        Figures of `frame` by device: ``tpunb.schema.DEVICES``.
    windows
        Capture windows: ``tpunb.schema.WINDOWS``.
    name
        Name of the run, for titles.
    read_layers
        Function that reduces the raw events to `layers` on access; None if none were kept.
    read_collectives
        Function that returns `collectives` on access, from raw events or a run folder; None if neither has them.
    metadata
        Known facts of the run: "model", "weights", "dtype", "optimizer", "batch", "device kind", "cpu".
    input_stages
        Host time of the input pipeline by stage, of the whole run: ``tpunb.schema.INPUT_STAGES``.
    wall
        Wall time of the run, and what the host clock knows beside steps; None if there is no record of it.
    whole
        All steps of the run, if these are the ones traced in full.
    device
        Peaks of its device that were measured for the run, if any.
    source
        Path or URL that the run was read from.
    read_events
        Function that decodes the raw events on access; None if none were kept.
    read_explanations
        Function that returns, in order of the steps' numbers, why each is one; None if the run holds no events.
    read_run_events
        Function that returns what the libraries of the program were asked to do; None if that was not recorded.
    by_host
        The hosts of a job, if these are the steps of the job as a whole.
    lost
        Hosts and files without data: ``tpunb.schema.LOST``.
    pipeline
        Operations of the workers of a job with pipeline parallelism: ``tpunb.schema.PIPELINE``; empty for others.
    steps_before
        Training steps that the job had taken before step 0 of the run, 0 if the program numbers the steps; None if
        unknown.
    """

    frame: pl.DataFrame
    ops: pl.DataFrame
    devices: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=schema.DEVICES))
    windows: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=schema.WINDOWS))
    name: str = ""
    read_layers: Callable[[], pl.DataFrame] | None = None
    read_collectives: Callable[[], pl.DataFrame] | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    wall: WallClock | None = None
    input_stages: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=schema.INPUT_STAGES))
    whole: Steps | None = None
    device: Device | None = None
    source: Path | str = ""
    read_events: Callable[[], pl.DataFrame] | None = None
    read_explanations: Callable[[], Sequence[str]] | None = None
    read_run_events: Callable[[], RunEvents] | None = None
    by_host: HostTables | None = None
    lost: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=schema.LOST))
    pipeline: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=schema.PIPELINE))
    steps_before: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "frame", _sorted(schema.check(self.frame, schema.STEPS, "steps")))
        if callable(self.ops):
            object.__setattr__(self, "_read_ops", self.__dict__.pop("ops"))
        else:
            object.__setattr__(self, "ops", _checked(self.ops))
        for name in ("devices", "windows", "input_stages", "pipeline"):
            object.__setattr__(self, name, schema.check(getattr(self, name), getattr(schema, name.upper()), name))

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> pl.DataFrame:
            """Return `ops` on first access, which are read then."""
            if name != "ops" or "_read_ops" not in self.__dict__:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            ops = _checked(self.__dict__["_read_ops"]())
            self.__dict__.update(ops=ops, _read_ops=lambda: ops)  # another thread may ask, too
            return ops

    @cached_property
    def layers(self) -> pl.DataFrame:
        """Self time by step, layer, framework op and HLO instruction: ``tpunb.schema.LAYERS``.

        Raises
        ------
        TpunbError
            If the capture kept statistics only.
        """
        return self._read(self.read_layers, "layers")

    @cached_property
    def collectives(self) -> pl.DataFrame:
        """Runs of collectives by device, with wait and bandwidth: ``tpunb.schema.COLLECTIVES``; raises as `layers`."""
        return self._read(self.read_collectives, "collectives")

    def _read(self, read: Callable[[], pl.DataFrame] | None, name: str) -> pl.DataFrame:
        if read is None:
            raise not_kept(self.name, name, job=self.by_host is not None)
        rows = schema.check(read(), getattr(schema, name.upper()), name)
        if rows["step"].null_count():  # sums of the whole run, as XProf's tables have them
            return rows
        return rows.join(self.frame.select("host", "step"), on=["host", "step"], how="semi", maintain_order="left")

    def explain(self, number: int) -> str:
        """Return which rule and which events of the program make a step, and why it is of its kind.

        Raises
        ------
        TpunbError
            If no step has this number, or the run has no events of its libraries, or not all.
        """
        explanations = self._explanations
        if not explanations:
            raise not_kept(self.name, "events of libraries", job=self.by_host is not None)
        numbers = (self.whole or self).frame["step"].unique().sort()
        if number not in numbers:
            raise TpunbError(f"{self.name} has no step {number}", hint=f"its steps are {numbers[0]} to {numbers[-1]}")
        if len(explanations) != len(numbers):
            found = f"{self.name} has {plural(len(numbers), 'step')}, but its events make {len(explanations):,}"
            raise TpunbError(found, hint="record the run again: an older version, or a run that was cut, differs")
        return f"step {number} is {explanations[numbers.search_sorted(number)]}"

    @cached_property
    def _explanations(self) -> Sequence[str]:
        return () if self.read_explanations is None else self.read_explanations()

    @property
    def count(self) -> int:
        """Number of steps, which all hosts of a job take together."""
        return self.frame["step"].n_unique()

    @property
    def are_counted(self) -> bool:
        """Whether steps were found; else a run that was observed from outside counts as one, which no window traced."""
        uncounted = (pl.col("rule") == "whole") & (pl.col("traced") == "none")
        return self.frame.is_empty() or not self.frame.select(uncounted.fill_null(value=False).all()).item()

    def __repr__(self) -> str:
        full = self.frame.filter(pl.col("traced") == "full")["step"].n_unique()
        parts = [plural(self.count, "step"), plural(self.ops["op"].n_unique(), "op"), f"{full} traced in full"]
        rules = self.frame["rule"].unique().to_list()
        parts += [f"inferred from {source}" for rule, source in _INFERRED.items() if rule in rules]
        return f"Steps({', '.join(parts)})"

    def _repr_html_(self) -> str | None:
        """Return the longest operations, if the whole capture is one step: there is nothing else to show."""
        if self.frame["rule"].ne_missing("whole").any() or self.ops.is_empty():
            return None
        longest = self.ops.sort("self_ps", "op", descending=[True, False]).head(_SHOWN).drop("step")
        return f"<p>{escape(repr(self))}</p>{longest._repr_html_()}"

    def full(self) -> Steps:
        """Return the steps that were traced in full, with their operations."""
        return self._full

    @cached_property
    def _full(self) -> Steps:  # one object: results are memoised per Steps
        if (self.frame["traced"] == "full").all():
            return self
        frame = self.frame.filter(pl.col("traced") == "full")
        key = frame.select("host", "step")
        return replace(
            self,
            frame=frame,
            ops=self.ops.join(key, on=["host", "step"], how="semi"),
            devices=self.devices.join(key, on=["host", "step"], how="semi"),
            whole=self,
        )


def _sorted(frame: pl.DataFrame) -> pl.DataFrame:
    """Return STEPS by host, start and step: as they are if they have this order, since a long run has many."""
    order = "host", "start_ps", "step"
    host, start_ps, step = (pl.col(name).shift() for name in order)
    later = (pl.col("start_ps") > start_ps) | ((pl.col("start_ps") == start_ps) & (pl.col("step") >= step))
    placed = frame.select(((pl.col("host") > host) | ((pl.col("host") == host) & later)).sum()).item()
    return frame if placed >= len(frame) - 1 else frame.sort(order)


def _checked(ops: pl.DataFrame) -> pl.DataFrame:
    """Return ``tpunb.schema.OPS`` in one chunk: columns of millions of rows are often read as arrays."""
    return schema.check(ops, schema.OPS, "ops").rechunk()


def trained() -> pl.Expr:
    """Return the step number by which checkpoints count, for each row of ``Steps.frame``.

    It is the step number less the steps before it of other kinds than "train", if the run has steps of that kind.

    >>> from tpunb.testing import toy_steps
    >>> run = toy_steps("aba").frame.with_columns(kind=pl.Series(["train", "test", "train"]))
    >>> run.select("step", trained()).rows()
    [(0, 0), (1, 1), (2, 1)]
    """
    train = (pl.col("kind").cast(pl.String) == "train").fill_null(value=False)
    others = (~train).cast(pl.Int64)
    return (pl.col("step") - train.any() * (others.cum_sum() - others).over("host")).alias("trained")


@dataclass(frozen=True, eq=False)
class WallClock:
    """The wall time of a run, and where the host clock saw it go outside of computation."""

    span_ps: int  # of the captured block
    complete: bool = False  # whether `spans` were recorded: runs before layout 3, and other processes, did not
    # stretches of known cause, which may be nested; where the program was in stalls; load of process and machine
    spans: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=schema.SPANS))
    stalls: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=schema.STALLS))
    load: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=schema.LOAD))
    samples: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=schema.SAMPLES))  # of the training thread

    def __post_init__(self) -> None:
        for name in ("spans", "stalls", "load", "samples"):
            object.__setattr__(self, name, schema.check(getattr(self, name), getattr(schema, name.upper()), name))


@dataclass(frozen=True, eq=False, repr=False)
class HostTables:
    """Statistics of the hosts of a job; never one row per (host, step, op)."""

    frame: pl.DataFrame  # `tpunb.schema.STEPS`, with step numbers of the job
    ops: pl.DataFrame  # `tpunb.schema.HOST_OPS`
    collectives: pl.DataFrame  # `tpunb.schema.HOST_COLLECTIVES`
    roles: dict[str, str] = field(default_factory=dict)  # of each host, by the program that it runs
    lost: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=schema.LOST))
    # steps of the job without waits for slow hosts, by role, which phases use: `tpunb.step_stats.roles`
    typical: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=schema.STEPS))
    typical_ops: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=schema.OPS))

    def __post_init__(self) -> None:
        columns = {"frame": "STEPS", "ops": "HOST_OPS", "collectives": "HOST_COLLECTIVES", "lost": "LOST"}
        for name, frame in columns.items():
            object.__setattr__(self, name, schema.check(getattr(self, name), getattr(schema, frame), name))


NO_STEPS = Steps(pl.DataFrame(schema=schema.STEPS), pl.DataFrame(schema=schema.OPS))
