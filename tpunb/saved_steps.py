"""At which steps a run was saved, whoever saved it; and which of them is nearest (paper IV.C)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from numbers import Integral
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import polars as pl

from tpunb.errors import wrong

if TYPE_CHECKING:
    from tpunb.frames import Steps

K = TypeVar("K")

Checkpoints = Mapping[str, int] | Iterable[Any]
"""The step of each by its name; or the steps alone; or objects that bear a ``step``, and a ``path`` or a ``name``."""


def steps_of(checkpoints: Checkpoints | None, verb: str = "explore") -> dict[str, int]:
    """Return the step of each checkpoint by its name, in order of the steps.

    Raises
    ------
    TypeError
        When they are something else.

    >>> steps_of([20, 10])
    {'step 10': 10, 'step 20': 20}
    """
    if checkpoints is None:
        return {}
    if not isinstance(checkpoints, Mapping | Iterable) or isinstance(checkpoints, str | bytes):
        raise wrong(verb, "checkpoints", "be steps, or objects with a step", checkpoints)
    if isinstance(checkpoints, Mapping):
        named = list(checkpoints.items())
    else:  # not every checkpoint tells its step
        named = [_named(one) for one in checkpoints if getattr(one, "step", 0) is not None]
    found = {str(name): step for name, step in named}
    for step in found.values():
        if isinstance(step, bool) or not isinstance(step, Integral):
            raise wrong(verb, "checkpoints", "be steps, or objects with a step", step)
    return dict(sorted(((name, int(step)) for name, step in found.items()), key=lambda one: one[1]))


def _named(one: Any) -> tuple[str, Any]:
    step = getattr(one, "step", one)
    return str(getattr(one, "path", None) or getattr(one, "name", None) or f"step {step}"), step


def trained() -> pl.Expr:
    """Return the step by which checkpoints count, of each row of ``Steps.frame``.

    That is its number less the steps before it, of its host, that trained nothing, as those of an evaluation. In a run
    without steps of the mark "train" it is the number.

    >>> from tpunb.testing import toy_steps
    >>> run = toy_steps("aba").frame.with_columns(mark=pl.Series(["train", "test", "train"]))
    >>> run.select("step", trained()).rows()
    [(0, 0), (1, 1), (2, 1)]
    """
    train = (pl.col("mark").cast(pl.String) == "train").fill_null(value=False)
    others = (~train).cast(pl.Int64)
    return (pl.col("step") - train.any() * (others.cum_sum() - others).over("host")).alias("trained")


def nearest_of(steps: Iterable[int], saved: Mapping[K, int]) -> K | None:
    """Return the key of the step of the smallest distance to any of `steps` (paper IV.C); None where there is none.

    Of two as near it is the earlier step, and of two of that step the one that comes first.

    >>> nearest_of([10, 11, 12], {"a": 2, "b": 9, "c": 13}), nearest_of([], {"a": 2})
    ('b', None)
    """
    own = np.fromiter(steps, dtype=np.int64)
    if not len(own) or not saved:
        return None
    return min(saved, key=lambda name: (int(np.abs(own - saved[name]).min()), saved[name]))


def ends_of(steps: Steps, checkpoints: Mapping[str, int]) -> dict[str, float]:
    """Return when the step of each checkpoint ended, in seconds since the run began; those of other runs are left out.

    >>> from tpunb.testing import toy_steps
    >>> ends_of(toy_steps("aab"), {"x": 1, "y": 99})
    {'x': 0.002}
    """
    if not checkpoints:
        return {}
    rows = steps.frame.select("start_ps", "dur_ps", trained())
    own = rows.filter(pl.col("trained").is_in([*checkpoints.values()]))
    ends = own.group_by("trained").agg((pl.col("start_ps") + pl.col("dur_ps")).max() / 1e12)
    known = dict(ends.iter_rows())
    return {name: known[step] for name, step in checkpoints.items() if step in known}
