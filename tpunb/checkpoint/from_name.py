"""What the files of a checkpoint tell by their names, sizes and times."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

_NUMBERED = re.compile(r"(?:^|[^a-z])(?:steps?|iter(?:ation)?s?|global_step)[-_=.]?(\d{1,18})(?!\d)", re.IGNORECASE)
_LAST = re.compile(r"[-_](\d{1,18})$")


def step_in(name: str) -> int | None:
    """Return the step that a name states; None where it states none. A bare number or an epoch's is none.

    >>> step_in("model_step=120.keras"), step_in("run-iter-7"), step_in("epoch-03.keras"), step_in("02.weights.h5")
    (120, 7, None, None)
    """
    found = _NUMBERED.search(name)
    return int(found[1]) if found else None


def last_number(name: str) -> int | None:
    """Return the number after the last dash, as TensorFlow's ``global_step`` writes it; None where there is none.

    >>> last_number("ckpt-30"), last_number("ckpt"), last_number("epoch-3")
    (30, None, None)
    """
    found = None if re.search(r"epoch", name, re.IGNORECASE) else _LAST.search(name)
    return int(found[1]) if found else None


def size_of(files: Iterable[Path]) -> int:
    """Return the bytes of some files together."""
    return sum(file.stat().st_size for file in files)


def time_of(files: Iterable[Path]) -> datetime:
    """Return when the last of some files was written, UTC."""
    return datetime.fromtimestamp(max(file.stat().st_mtime for file in files), UTC)
