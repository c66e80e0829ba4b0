"""What every phase method needs: parameters that name themselves, and labels in order of time."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tpunb.errors import whole
from tpunb.frames import Steps


def in_order(labels: NDArray[np.integer[Any]], steps: Steps) -> list[int]:
    """Return `labels` numbered 0, 1, 2, ... by first appearance in time; -1, noise, stays.

    >>> from tpunb.testing import toy_steps
    >>> in_order(np.array([7, -1, 3, 7]), toy_steps("abca"))
    [0, -1, 1, 0]
    """
    in_time = labels[np.argsort(steps.frame["start_ps"].to_numpy(), kind="stable")]
    found, first = np.unique(in_time[in_time >= 0], return_index=True)
    number = dict(zip(found[np.argsort(first)].tolist(), range(len(found)), strict=True))
    return [number.get(label, -1) for label in labels.tolist()]


class Parameters:
    """A phase method's parameters; its repr names those that are not the default."""

    def __repr__(self) -> str:
        told = [
            f"{field.name}={getattr(self, field.name)!r}"
            for field in fields(self)  # type: ignore[arg-type]  # every child is a dataclass
            if getattr(self, field.name) != field.default
        ]
        return f"{type(self).__name__}({', '.join(told)})"

    def _hold_whole(self, **least: int) -> None:
        """Hold parameters as Python's ints, each of its `least` or more; None where that is the default."""
        for name, low in least.items():
            value = getattr(self, name)
            if value is not None or getattr(type(self), name) is not None:
                object.__setattr__(self, name, whole(type(self).__name__, name, value, low))
