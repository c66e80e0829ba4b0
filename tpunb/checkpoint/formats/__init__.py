"""Checkpoint formats: each module finds the checkpoints of one in a folder.

``find(folder, files)`` yields a `Checkpoint` for each, or a `Skipped` for an incomplete one.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from tpunb.checkpoint.catalog import Checkpoint
from tpunb.training.state import STATE_PARTS

_NUMBERED = re.compile(r"(?:^|[^a-z])(?:steps?|iter(?:ation)?s?|global_step)[-_=.]?(\d{1,18})(?!\d)", re.IGNORECASE)
_LAST = re.compile(r"[-_](\d{1,18})$")


def step_in(name: str) -> int | None:
    """Return the step that a file name states, or None; a bare number or an epoch is not a step.

    >>> step_in("model_step=120.keras"), step_in("run-iter-7"), step_in("epoch-03.keras"), step_in("02.weights.h5")
    (120, 7, None, None)
    """
    match = _NUMBERED.search(name)
    return int(match[1]) if match else None


def last_number(name: str) -> int | None:
    """Return the number after the last dash, where TensorFlow writes ``global_step``; None if there is none.

    >>> last_number("ckpt-30"), last_number("ckpt"), last_number("epoch-3")
    (30, None, None)
    """
    match = None if re.search(r"epoch", name, re.IGNORECASE) else _LAST.search(name)
    return int(match[1]) if match else None


def step_by_name(path: Path) -> tuple[int | None, str]:
    """Return the step that the name of a file states, and its source."""
    step = step_in(path.name)
    return step, "" if step is None else "name"


def of_files(
    path: Path, files: Sequence[Path], kind: str, parts: Container[str], step: tuple[int | None, str]
) -> Checkpoint:
    """Return the checkpoint in some files, of a kind, with parts of the state, a step and the source of that."""
    holds = tuple(part for part in STATE_PARTS if part in parts)
    return Checkpoint(path, step[0], time_of(files), size_of(files), kind, holds, step_from=step[1])


def size_of(files: Iterable[Path]) -> int:
    """Return the total size of files, in bytes."""
    return sum(file.stat().st_size for file in files)


def time_of(files: Iterable[Path]) -> datetime:
    """Return when the last of some files was written, UTC."""
    return datetime.fromtimestamp(max(file.stat().st_mtime for file in files), UTC)
