"""Checkpoints of tpunb: folders with everything that the next step depends on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tpunb.checkpoint.catalog import Checkpoint, Skipped
from tpunb.training.snapshot import METADATA, BadSnapshot, is_temporary, read_metadata, write
from tpunb.training.state import STATE_PARTS


def find(folder: Path, files: Sequence[str]) -> Iterator[Checkpoint | Skipped]:
    """Yield the checkpoint that a folder is, if it is one."""
    if METADATA in files or is_temporary(folder):
        try:
            yield _checkpoint(folder)
        except BadSnapshot as error:
            yield Skipped(folder, error.reason)


def save(
    folder: Path, step: int, write_parts: Callable[[Path], Mapping[str, Any]], *, replacing: Path | None = None
) -> Checkpoint:
    """Write a checkpoint, as `tpunb.training.snapshot.write` does, and return it."""
    return _checkpoint(write(folder, step, write_parts, replacing=replacing))


def _checkpoint(folder: Path) -> Checkpoint:
    metadata = read_metadata(folder)
    return Checkpoint(
        folder,
        metadata["step"],
        datetime.fromtimestamp(metadata["time"], UTC),
        metadata["size"],
        "tpunb",
        tuple(part for part in STATE_PARTS if part in metadata.get("holds", ())),
        exact=bool(metadata.get("exact")),
        step_from="counter",
        reason=metadata.get("why", ""),
    )
