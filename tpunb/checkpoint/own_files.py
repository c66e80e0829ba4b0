"""Our own checkpoints: a folder with everything that the next step depends on."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any

from tpunb.checkpoint.from_name import size_of
from tpunb.checkpoint.nouns import HOLDABLE, Checkpoint, Skipped

ABOUT = "tpunb.json"
"""The file that makes a folder one of ours: its name, its format, its step, what it holds."""

FORMAT = 1
_TEMPORARY = re.compile(r"\.tpunb-\d+\.")


def name_of(step: int) -> str:
    """Return the name of the folder of a step.

    >>> name_of(30)
    'tpunb-30'
    """
    return f"tpunb-{step}"


def is_temporary(folder: Path) -> bool:
    """Say whether a folder is one of ours that is still written, or was when its process ended."""
    return bool(_TEMPORARY.match(folder.name))


def of(folder: Path, files: Sequence[str]) -> Checkpoint | Skipped | None:
    """Return the checkpoint that a folder is; None where it is none of ours."""
    if is_temporary(folder):
        return Skipped(folder, "was still being written")
    if ABOUT not in files:
        return None
    try:
        return checkpoint(folder, read(folder))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return Skipped(folder, f"{ABOUT} cannot be read: {error}")


def read(folder: Path) -> dict[str, Any]:
    """Return what is told of one of our checkpoints.

    Raises
    ------
    ValueError
        When it is of a format that is not known here, or no JSON.
    """
    about: dict[str, Any] = json.loads((folder / ABOUT).read_text())
    if about.get("format") != FORMAT:
        raise ValueError(f"format {about.get('format')!r} is not known to this version")
    return about


def checkpoint(folder: Path, about: dict[str, Any]) -> Checkpoint | Skipped:
    """Return the checkpoint of a folder by what is told of it; a file that is not there as it was written is missed."""
    for name, size in about["files"].items():
        file = _within(folder, name)
        if not file.is_file() or file.stat().st_size != size:
            return Skipped(folder, f"lacks {name} as it was written")
    return Checkpoint(
        folder,
        int(about["step"]),
        datetime.fromtimestamp(about["time"], UTC),
        size_of([folder / ABOUT, *(_within(folder, name) for name in about["files"])]),
        "tpunb",
        tuple(one for one in HOLDABLE if one in about["holds"]),
        exact=bool(about["exact"]),
        step_from="counter",
        why=str(about.get("why", "")),
    )


def _within(folder: Path, name: str) -> Path:
    """Return the file of a name within a folder, and none outside."""
    parts = PurePosixPath(name).parts
    if not parts or ".." in parts or PurePosixPath(name).is_absolute():
        raise ValueError(f"{name!r} is no file in it")
    return folder.joinpath(*parts)
