"""Checkpoints as values: one state of a run on disk, and those of a folder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import NamedTuple, overload

import polars as pl

from tpunb.errors import check_whole
from tpunb.frames.nearest import nearest_checkpoint
from tpunb.frames.phases import Phase
from tpunb.text import count, plain, plural

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
    """State of a run on disk; usable as the path that its framework restores from.

    Parameters
    ----------
    path
        File, folder, or prefix of TensorFlow's files.
    step
        Number of steps that the optimizer had taken, so that a resumed run begins with the step of this number, counted
        from 0. None if neither the files nor their names contain it.
    time
        Time of writing, UTC.
    size
        Size of its files, in bytes.
    kind
        Writer: "tensorflow", "keras", "backup" (Keras' ``BackupAndRestore``), "orbax", "hugging face", "lightning",
        "torch" (``torch.save``) or "tpunb".
    holds
        Parts of the state in it, of `tpunb.training.state.STATE_PARTS`.
    exact
        Whether a resumed run is bit for bit the uninterrupted one.
    step_from
        Source of the step: "optimizer", a "counter" of the program, its "name", or "".
    reason
        Sentence that says why it is not exact, or "".
    """

    path: Path
    step: int | None
    time: datetime
    size: int
    kind: str
    holds: tuple[str, ...]
    exact: bool = False
    step_from: str = ""
    reason: str = ""

    def __fspath__(self) -> str:
        return str(self.path)

    def __repr__(self) -> str:
        step = "step unknown" if self.step is None else f"step {self.step}"
        if self.step_from == "name":
            step += " by its name"
        facts = [plain(self.path.name), step, self.kind, " + ".join(self.holds) or "contents unknown"]
        return f"Checkpoint({', '.join([*facts, f'{count(self.size)}B', *['exact'] * self.exact])})"


class Skipped(NamedTuple):
    """Files that look like a checkpoint and cannot be read as one."""

    path: Path
    reason: str


@dataclass(frozen=True, eq=False, repr=False)
class Checkpoints(Sequence[Checkpoint]):
    """Checkpoints of a folder, in order of step, then of path; those of unknown step are last.

    Parameters
    ----------
    folder
        Folder that was searched.
    entries
        Checkpoints in it.
    skipped
        Reasons by name within the folder, of incomplete and unreadable checkpoints.
    """

    folder: Path
    entries: tuple[Checkpoint, ...] = ()
    skipped: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, folder: Path, results: Iterable[Checkpoint | Skipped]) -> Checkpoints:
        """Return the checkpoints of a folder from the results of its formats."""
        every = sorted(results, key=lambda result: str(result.path))
        good = [result for result in every if isinstance(result, Checkpoint)]
        good.sort(key=lambda checkpoint: (checkpoint.step is None, checkpoint.step or 0))
        bad = {str(result.path.relative_to(folder)): result.reason for result in every if isinstance(result, Skipped)}
        return cls(folder, tuple(good), bad)

    def __len__(self) -> int:
        return len(self.entries)

    @overload
    def __getitem__(self, index: int) -> Checkpoint: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Checkpoint]: ...

    def __getitem__(self, index: int | slice) -> Checkpoint | Sequence[Checkpoint]:
        """Return one checkpoint, or a slice of them."""
        return self.entries[index]

    def __repr__(self) -> str:
        steps = [each.step for each in self.entries if each.step is not None]
        over = f", steps {steps[0]} to {steps[-1]}" if len(steps) > 1 else f", step {steps[0]}" if steps else ""
        exact = sum(each.exact for each in self.entries)
        counts = [f", {exact} exact"] * bool(exact) + [f", {len(self.skipped)} skipped"] * bool(self.skipped)
        return f"Checkpoints({plain(self.folder.name)}, {plural(len(self), 'checkpoint')}{over}{''.join(counts)})"

    @property
    def frame(self) -> pl.DataFrame:
        """One row per checkpoint: path, step and its source, time, size (bytes), kind, holds, exact."""
        rows = [
            {**{name: getattr(each, name) for name in _COLUMNS}, "path": str(each.path), "holds": list(each.holds)}
            for each in self.entries
        ]
        return pl.DataFrame(rows, schema=_COLUMNS)

    def nearest(self, phase: Phase) -> Checkpoint | None:
        """Return the checkpoint with the smallest distance to the steps of a phase (paper IV.C).

        Of two at the same distance it is the earlier; of two of the same step an exact one, then the one written last.
        None if no checkpoint has a known step, or the phase has no step.

        Parameters
        ----------
        phase
            Phase of the run.
        """
        return nearest_checkpoint(phase.steps["trained"], self._steps)

    def before(self, step: int) -> Checkpoint | None:
        """Return the last checkpoint at or before a step; None if there is none.

        Parameters
        ----------
        step
            Step of the run, 0 or more.

        Raises
        ------
        ValueError
            When `step` is not an int of 0 or more.
        """
        step = check_whole("before", "step", step, 0)
        earlier = {checkpoint: saved for checkpoint, saved in self._steps.items() if saved <= step}
        return max(earlier, key=earlier.__getitem__, default=None)

    @property
    def _steps(self) -> dict[Checkpoint, int]:
        """Known steps; of the same step, exact checkpoints first, then the latest."""
        newest = sorted(self.entries, key=lambda each: (each.exact, each.time), reverse=True)
        return {each: each.step for each in newest if each.step is not None}
