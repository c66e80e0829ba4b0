"""Checkpoints of Hugging Face's Trainer: folders ``checkpoint-STEP``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from tpunb.checkpoint.catalog import Checkpoint, Skipped
from tpunb.checkpoint.formats import of_files
from tpunb.frames.conversion import read_file
from tpunb.text import format_error
from tpunb.training.snapshot import DAMAGED
from tpunb.training.state import OPTIMIZER, RANDOM, WEIGHTS

_STATE = "trainer_state.json"
_FILES = {  # names of files, by part of the state
    WEIGHTS: re.compile(r"(model|adapter_model|pytorch_model)\b.*\.(safetensors|bin)"),
    OPTIMIZER: re.compile(r"optimizer\.(pt|bin)"),
    RANDOM: re.compile(r"rng_state\w*\.pth"),
}


def find(folder: Path, files: Sequence[str]) -> Iterator[Checkpoint | Skipped]:
    """Yield the checkpoint that a folder is, if it is one."""
    parts = {part for part, names in _FILES.items() if any(map(names.fullmatch, files))}
    if not re.fullmatch(r"checkpoint-\d+", folder.name) or not (parts or _STATE in files):
        return
    if _STATE not in files:
        yield Skipped(folder, f"lacks {_STATE}, which is written last")
        return
    try:
        step = int(json.loads(read_file(folder / _STATE))["global_step"])
    except DAMAGED as error:
        yield Skipped(folder, f"{_STATE} cannot be read: {format_error(error)}")
        return
    yield of_files(folder, [folder / name for name in files], "hugging face", parts, (step, "counter"))
