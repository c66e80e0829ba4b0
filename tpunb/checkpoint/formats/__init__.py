"""Checkpoint formats: each module finds the checkpoints of one in a folder.

``find(folder, files)`` yields a `Checkpoint` for each, or a `Skipped` for an incomplete one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

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


def size_of(files: Iterable[Path]) -> int:
    """Return the total size of files, in bytes."""
    return sum(file.stat().st_size for file in files)


def time_of(files: Iterable[Path]) -> datetime:
    """Return when the last of some files was written, UTC."""
    return datetime.fromtimestamp(max(file.stat().st_mtime for file in files), UTC)
