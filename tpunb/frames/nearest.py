"""Steps of checkpoints in a run, and the checkpoint nearest to a phase (paper IV.C)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from numbers import Integral
from typing import Any, TypeVar

import numpy as np
import polars as pl

from tpunb.errors import wrong_type
from tpunb.frames.steps import Steps, trained

K = TypeVar("K")

StepSource = Mapping[str, int] | Iterable[Any]
"""Steps by checkpoint name; or steps; or objects with a ``step``, and a ``path`` or ``name``."""


def checkpoint_steps(checkpoints: StepSource | None, verb: str = "explore") -> dict[str, int]:
    """Return the steps of checkpoints by name, in ascending order; `verb` is the function that an error names.

    >>> checkpoint_steps([20, 10])
    {'step 10': 10, 'step 20': 20}
    """
    if checkpoints is None:
        return {}
    if not isinstance(checkpoints, Iterable) or isinstance(checkpoints, str | bytes):
        raise wrong_type(verb, "checkpoints", "be steps, or objects with a step", checkpoints)
    if isinstance(checkpoints, Mapping):
        named = list(checkpoints.items())
    else:
        named = [_named(each) for each in checkpoints if getattr(each, "step", 0) is not None]
    steps = {str(name): step for name, step in named}
    for step in steps.values():
        if isinstance(step, bool) or not isinstance(step, Integral):
            raise wrong_type(verb, "checkpoints", "be steps, or objects with a step", step)
    return {name: int(step) for name, step in sorted(steps.items(), key=lambda pair: pair[1])}


def _named(checkpoint: Any) -> tuple[str, Any]:
    step = getattr(checkpoint, "step", checkpoint)
    name = getattr(checkpoint, "path", None) or getattr(checkpoint, "name", None)
    return str(name or f"step {step}"), step


def nearest_checkpoint(steps: Iterable[int], checkpoints: Mapping[K, int]) -> K | None:
    """Return the key of the checkpoint with the smallest distance to any of `steps`; None if there is none.

    Of two at the same distance it is the one with the earlier step, and of these the first.

    >>> nearest_checkpoint([10, 11, 12], {"a": 2, "b": 9, "c": 13}), nearest_checkpoint([], {"a": 2})
    ('b', None)
    """
    every = np.fromiter(steps, dtype=np.int64)
    if not len(every) or not checkpoints:
        return None
    return min(checkpoints, key=lambda name: (int(np.abs(every - checkpoints[name]).min()), checkpoints[name]))


def checkpoint_times(steps: Steps, checkpoints: Mapping[str, int]) -> dict[str, float]:
    """Return when the step of each checkpoint ended, in seconds of the run; steps of other runs are omitted.

    >>> from tpunb.testing import toy_steps
    >>> checkpoint_times(toy_steps("aab"), {"x": 1, "y": 99})
    {'x': 0.002}
    """
    rows = steps.frame.select("start_ps", "dur_ps", trained())
    saved = rows.filter(pl.col("trained").is_in([*checkpoints.values()]))
    ends = dict(saved.group_by("trained").agg((pl.col("start_ps") + pl.col("dur_ps")).max() / 1e12).iter_rows())
    return {name: ends[step] for name, step in checkpoints.items() if step in ends}
