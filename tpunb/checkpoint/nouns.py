"""Checkpoints: states of a run on disk, and the one that is nearest to a phase."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import NamedTuple, overload

import polars as pl

from tpunb.errors import whole
from tpunb.frames import Phase
from tpunb.frames.words import count, plain, plural
from tpunb.saved_steps import nearest_of

WEIGHTS, OPTIMIZER, METRICS = "weights", "optimizer", "metrics"
DATA, RANDOM = "data position", "random state"
HOLDABLE = (WEIGHTS, OPTIMIZER, METRICS, DATA, RANDOM)
"""What a checkpoint may hold, in the order in which it is told."""

_COLUMNS: dict[str, pl.DataType | type[pl.DataType]] = {
    "path": pl.String,
    "step": pl.Int64,
    "step_from": pl.String,
    "time": pl.Datetime("us", "UTC"),
    "size": pl.Int64,
    "kind": pl.String,
    "holds": pl.List(pl.String),
    "exact": pl.Boolean,
}


@dataclass(frozen=True)
class Checkpoint:
    """A state of a run on disk; a path for whatever restores it.

    Parameters
    ----------
    path
        As its own framework wants it: a file, a folder, or the prefix that TensorFlow's files share.
    step
        How many steps the optimizer had taken: a run that goes on from here begins with the step of this number,
        counted from 0. None where neither the files nor their name tell.
    time
        When it was written, UTC.
    size
        Of its files, in bytes.
    kind
        Who wrote it: "tensorflow", "keras", "backup" (Keras' ``BackupAndRestore``), "orbax" or "tpunb".
    holds
        Of `HOLDABLE`, what is in it.
    exact
        Whether a run that goes on from here is bit for bit the one that was never cut.
    step_from
        Where the step was read: "optimizer", a "counter" of the program's own, its "name", or "" where nowhere.
    why
        It is not exact, in a sentence, where whoever wrote it said so.
    """

    path: Path
    step: int | None
    time: datetime
    size: int
    kind: str
    holds: tuple[str, ...]
    exact: bool = False
    step_from: str = ""
    why: str = ""

    def __fspath__(self) -> str:
        return str(self.path)

    def __repr__(self) -> str:
        step = "step unknown" if self.step is None else f"step {self.step}"
        if self.step_from == "name":
            step += " by its name"
        facts = [plain(self.path.name), step, self.kind, " + ".join(self.holds) or "contents unknown"]
        return f"Checkpoint({', '.join([*facts, f'{count(self.size)}B', *['exact'] * self.exact])})"


class Skipped(NamedTuple):
    """What looks like a checkpoint and cannot be read as one."""

    path: Path
    reason: str


@dataclass(frozen=True, eq=False, repr=False)
class Checkpoints(Sequence[Checkpoint]):
    """What lies in a folder, in order of step, then of path; those of unknown step come last.

    Parameters
    ----------
    folder
        Where it was looked for.
    found
        The checkpoints.
    skipped
        Half-written and unreadable ones: the reason by the name within the folder.
    """

    folder: Path
    found: tuple[Checkpoint, ...] = ()
    skipped: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, folder: Path, found: Iterable[Checkpoint | Skipped]) -> Checkpoints:
        """Return what was found in `folder`, in order."""
        every = list(found)
        good = [one for one in every if isinstance(one, Checkpoint)]
        bad = sorted((one for one in every if isinstance(one, Skipped)), key=lambda one: one.path)
        good.sort(key=lambda one: (one.step is None, one.step or 0, str(one.path)))
        return cls(folder, tuple(good), {str(one.path.relative_to(folder)): one.reason for one in bad})

    def __len__(self) -> int:
        return len(self.found)

    @overload
    def __getitem__(self, index: int) -> Checkpoint: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Checkpoint]: ...

    def __getitem__(self, index: int | slice) -> Checkpoint | Sequence[Checkpoint]:
        """Return one checkpoint, or some."""
        return self.found[index]

    def __repr__(self) -> str:
        steps = [one.step for one in self.found if one.step is not None]
        over = f", steps {steps[0]} to {steps[-1]}" if len(steps) > 1 else f", step {steps[0]}" if steps else ""
        exact = sum(one.exact for one in self.found)
        told = [f", {exact} exact"] * bool(exact) + [f", {len(self.skipped)} skipped"] * bool(self.skipped)
        return f"Checkpoints({plain(self.folder.name)}, {plural(len(self), 'checkpoint')}{over}{''.join(told)})"

    @property
    def frame(self) -> pl.DataFrame:
        """One row a checkpoint: path, step and where it was read, time, size (bytes), kind, holds, exact."""
        rows = [
            {**{name: getattr(one, name) for name in _COLUMNS}, "path": str(one.path), "holds": list(one.holds)}
            for one in self.found
        ]
        return pl.DataFrame(rows, schema=_COLUMNS)

    def nearest(self, phase: Phase) -> Checkpoint | None:
        """Return the checkpoint of the smallest distance to the steps of a phase (paper IV.C).

        Of two as near it is the earlier; of two of the same step one that is exact, then the one written last. None
        where no checkpoint has a known step, or the phase no step.
        """
        return nearest_of(phase.steps["trained"], self._steps)

    def before(self, step: int) -> Checkpoint | None:
        """Return the last checkpoint from which a run still comes to `step`: at that step or before; None if none is.

        Raises
        ------
        ValueError
            When `step` is no whole number of 0 or more.
        """
        step = whole("before", "step", step, 0)
        reaching = {one: own for one, own in self._steps.items() if own <= step}
        return max(reaching, key=reaching.__getitem__, default=None)

    @property
    def _steps(self) -> dict[Checkpoint, int]:
        """The known steps; of those of one step, the exact ones first, and of these the latest."""
        known = [one for one in self.found if one.step is not None]
        known.sort(key=lambda one: (one.exact, one.time), reverse=True)
        return {one: one.step for one in known if one.step is not None}
