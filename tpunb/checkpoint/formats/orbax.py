"""Checkpoints of Orbax: one folder per step, with named items."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tpunb.checkpoint.catalog import Checkpoint, Skipped
from tpunb.checkpoint.formats import last_number, size_of, step_in, time_of
from tpunb.frames.conversion import read_file
from tpunb.text import format_error
from tpunb.training.snapshot import DAMAGED
from tpunb.training.state import DATA, METRICS, OPTIMIZER, RANDOM, STATE_PARTS, WEIGHTS

_METADATA, _TREE = "_CHECKPOINT_METADATA", "_METADATA"
_TEMPORARY = ".orbax-checkpoint-tmp"
_WORDS = {
    METRICS: re.compile(r"metric", re.IGNORECASE),
    OPTIMIZER: re.compile(r"opt(_?state|imizer|\Z)|(^|_)(mu|nu|momentum|velocity)\Z", re.IGNORECASE),
    RANDOM: re.compile(r"(^|_)(p?rng|rngs|seeds?|keys?)(_|\Z)|random", re.IGNORECASE),
}
_HANDLERS = {
    DATA: re.compile(r"grain|iterator|dataset", re.IGNORECASE),
    RANDOM: re.compile(r"random|prng", re.IGNORECASE),
}


def find(folder: Path, files: Sequence[str]) -> Iterator[Checkpoint | Skipped]:
    """Yield the checkpoint that a folder is, if it is one."""
    if _TEMPORARY in folder.name:
        yield Skipped(folder, "was still being written")
    elif _METADATA in files:
        yield _read(folder)


def _read(folder: Path) -> Checkpoint | Skipped:
    try:
        metadata = json.loads(read_file(folder / _METADATA))
        committed = metadata.get("commit_timestamp_nsecs")
        handlers = metadata.get("item_handlers") or {}
        items = handlers if isinstance(handlers, dict) else {"": handlers}
        holds = _holds(folder, items)
    except DAMAGED as error:
        return Skipped(folder, f"{_METADATA} cannot be read: {format_error(error)}")
    if committed is None:
        return Skipped(folder, "was not committed")
    if missing := sorted(name for name in items if not (folder / name).is_dir()):
        return Skipped(folder, f"lacks {', '.join(missing)}")
    every = [path for path in folder.rglob("*") if path.is_file()]
    time = datetime.fromtimestamp(committed / 1e9, UTC) if isinstance(committed, int) else time_of(every)
    step = int(folder.name) if re.fullmatch(r"\d{1,18}", folder.name) else step_in(folder.name)
    step = last_number(folder.name) if step is None else step
    # CheckpointManager names its folders by step
    step_from = "" if step is None else "counter" if isinstance(handlers, dict) else "name"
    return Checkpoint(folder, step, time, size_of(every), "orbax", holds, step_from=step_from)


def _holds(folder: Path, items: dict[str, Any]) -> tuple[str, ...]:
    parts: set[str] = set()
    for name, handler in items.items():
        kinds = [kind for kind, word in _HANDLERS.items() if word.search(str(handler))]
        parts |= set(kinds) or _in_tree(folder / name / _TREE, name)
    return tuple(part for part in STATE_PARTS if part in parts)


def _in_tree(path: Path, item: str) -> set[str]:
    """Return the parts of the state in a tree of arrays, by the names in their paths; by default weights."""
    if not path.exists():
        return set()
    tree = json.loads(read_file(path)).get("tree_metadata", {})
    parts: set[str] = set()
    for leaf in tree.values():
        if leaf.get("value_metadata", {}).get("value_type") == "scalar":
            continue
        names = [item, *(str(key.get("key")) for key in leaf.get("key_metadata", []))]
        kinds = (kind for kind, word in _WORDS.items() if any(word.search(name) for name in names))
        parts.add(next(kinds, WEIGHTS))
    return parts
