"""Counters of Keras' own callbacks, by which they stop, save or slow down a training."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

_CLASSES = ("EarlyStopping", "ReduceLROnPlateau", "ModelCheckpoint")
_COUNTERS = (
    *("wait", "best", "best_epoch", "stopped_epoch", "cooldown_counter", "epochs_since_last_save"),
    *("_batches_seen_since_last_saving", "_last_batch_seen", "_current_epoch"),
)  # not their arguments: Keras changes the sign of min_delta in the first epoch


def callback_counters(callbacks: Iterable[Any]) -> list[dict[str, Any]]:
    """Return the counters of Keras' own callbacks, in order, as JSON values."""
    return [{"kind": type(each).__name__, "numbers": _counters(each)} for each in callbacks if _is_supported(each)]


def restore_counters(callbacks: Iterable[Any], saved: Sequence[Mapping[str, Any]]) -> None:
    """Restore counters of `callback_counters`: the n-th of a class to the n-th callback of that class."""
    by_class: dict[str, list[Mapping[str, Any]]] = {}
    for counters in saved:
        by_class.setdefault(counters["kind"], []).append(counters["numbers"])
    for callback in callbacks:
        if _is_supported(callback) and (waiting := by_class.get(type(callback).__name__)):
            vars(callback).update(waiting.pop(0))


def unsaved_state(callbacks: Iterable[Any]) -> str:
    """Return a sentence that names state of callbacks that is not saved, or ""."""
    if any(getattr(callback, "restore_best_weights", False) for callback in callbacks if _is_supported(callback)):
        return "EarlyStopping(restore_best_weights=True) keeps the best weights in memory; they are not saved"
    return ""


def _is_supported(callback: Any) -> bool:
    return type(callback).__name__ in _CLASSES and type(callback).__module__.partition(".")[0] == "keras"


def _counters(callback: Any) -> dict[str, Any]:
    values = {name: vars(callback).get(name) for name in _COUNTERS}
    numbers = {name: value for name, value in values.items() if isinstance(value, bool | int | float | np.number)}
    return {name: value.item() if isinstance(value, np.number) else value for name, value in numbers.items()}
