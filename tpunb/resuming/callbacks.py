"""What Keras' own callbacks remember from epoch to epoch: they decide by it when to stop, to save, to slow down."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

_KNOWN = ("EarlyStopping", "ReduceLROnPlateau", "ModelCheckpoint")
_COUNTS = (
    *("wait", "best", "best_epoch", "stopped_epoch", "cooldown_counter", "epochs_since_last_save"),
    *("_batches_seen_since_last_saving", "_last_batch_seen", "_current_epoch"),
)  # not what they were told: Keras turns the sign of min_delta at the first epoch
_PLAIN = (bool, int, float, np.number)


def remembered(callbacks: Iterable[Any]) -> list[dict[str, Any]]:
    """Return the numbers that Keras' own callbacks keep, in order, as JSON takes them."""
    return [{"kind": type(one).__name__, "numbers": _numbers(one)} for one in callbacks if _is_known(one)]


def remind(callbacks: Iterable[Any], saved: Sequence[Mapping[str, Any]]) -> None:
    """Give the numbers back, to the first callback of that kind to the first and so on; what is missing is let be."""
    of_kind: dict[str, list[Mapping[str, Any]]] = {}
    for one in saved:
        of_kind.setdefault(one["kind"], []).append(one["numbers"])
    for callback in callbacks:
        if _is_known(callback) and (waiting := of_kind.get(type(callback).__name__)):
            vars(callback).update(waiting.pop(0))


def forgotten(callbacks: Iterable[Any]) -> str:
    """Return what a callback keeps that is not saved, in a sentence, or ""."""
    if any(getattr(one, "restore_best_weights", False) for one in callbacks if _is_known(one)):
        return "EarlyStopping(restore_best_weights=True) keeps weights that are not saved: those of epochs before"
    return ""


def _is_known(callback: Any) -> bool:
    return type(callback).__name__ in _KNOWN and type(callback).__module__.partition(".")[0] == "keras"


def _numbers(callback: Any) -> dict[str, Any]:
    plain = {name: value for name in _COUNTS if isinstance(value := vars(callback).get(name), _PLAIN)}
    return {name: value.item() if isinstance(value, np.number) else value for name, value in plain.items()}
