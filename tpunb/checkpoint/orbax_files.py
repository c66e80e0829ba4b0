"""Checkpoints of Orbax: a folder a step, with what it holds by name."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tpunb.checkpoint.from_name import last_number, size_of, step_in, time_of
from tpunb.checkpoint.nouns import DATA, HOLDABLE, METRICS, OPTIMIZER, RANDOM, WEIGHTS, Checkpoint, Skipped

_ABOUT, _TREE = "_CHECKPOINT_METADATA", "_METADATA"
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


def of(folder: Path, files: Sequence[str]) -> Checkpoint | Skipped | None:
    """Return the checkpoint that a folder is; None where it is none of Orbax'."""
    if _TEMPORARY in folder.name:
        return Skipped(folder, "was still being written")
    if _ABOUT not in files:
        return None
    try:
        about = json.loads((folder / _ABOUT).read_text())
        committed = about.get("commit_timestamp_nsecs")
        handlers = about.get("item_handlers") or {}
        items = handlers if isinstance(handlers, dict) else {"": handlers}
        holds = _holds(folder, items)
    except (ValueError, AttributeError, OSError) as error:
        return Skipped(folder, f"{_ABOUT} cannot be read: {error}")
    if committed is None:
        return Skipped(folder, "was begun and never committed")
    if missing := sorted(name for name in items if not (folder / name).is_dir()):
        return Skipped(folder, f"lacks {', '.join(missing)}")
    every = [path for path in folder.rglob("*") if path.is_file()]
    time = datetime.fromtimestamp(committed / 1e9, UTC) if isinstance(committed, int) else time_of(every)
    step = int(folder.name) if re.fullmatch(r"\d{1,18}", folder.name) else step_in(folder.name)
    step = last_number(folder.name) if step is None else step
    # a manager's folders bear the step as their name: that is no guess
    step_from = "" if step is None else "counter" if isinstance(handlers, dict) else "name"
    return Checkpoint(folder, step, time, size_of(every), "orbax", holds, step_from=step_from)


def _holds(folder: Path, items: dict[str, Any]) -> tuple[str, ...]:
    held: set[str] = set()
    for name, handler in items.items():
        kinds = [kind for kind, word in _HANDLERS.items() if word.search(str(handler))]
        held |= set(kinds) or _in_tree(folder / name / _TREE, name)
    return tuple(one for one in HOLDABLE if one in held)


def _in_tree(path: Path, item: str) -> set[str]:
    """Return what the arrays of a tree are, by the names on the way to them; those of no known name are weights."""
    if not path.exists():
        return set()
    tree = json.loads(path.read_text()).get("tree_metadata", {})
    held: set[str] = set()
    for leaf in tree.values():
        if leaf.get("value_metadata", {}).get("value_type") == "scalar":
            continue
        names = [item, *(str(key.get("key")) for key in leaf.get("key_metadata", []))]
        kinds = (kind for kind, word in _WORDS.items() if any(word.search(name) for name in names))
        held.add(next(kinds, WEIGHTS))
    return held
