"""Trainers of Hugging Face and Lightning on the processor, which neither print, report nor save by themselves."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any


def hugging_face(
    folder: Path,
    model: Any,
    data: Any,
    held: Any = None,
    *,
    callbacks: Sequence[Any] = (),
    kind: Callable[..., Any] | None = None,
    **options: Any,
) -> Any:
    """Return a ``Trainer`` of Transformers, or one of its kind, for `data` and an evaluation on those held out."""
    from transformers import Trainer, TrainingArguments

    quiet = {"report_to": [], "use_cpu": True, "disable_tqdm": True, "save_strategy": "no"}
    arguments = TrainingArguments(str(folder / "output"), dataloader_pin_memory=False, **quiet | options)
    return (kind or Trainer)(model, arguments, train_dataset=data, eval_dataset=held, callbacks=[*callbacks])


def lightning(folder: Path, **options: Any) -> Any:
    """Return a ``Trainer`` of Lightning."""
    from lightning import Trainer

    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    return Trainer(**{"enable_checkpointing": False, "default_root_dir": folder, **quiet, **options})
