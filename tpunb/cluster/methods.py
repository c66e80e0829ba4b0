"""What every phase method needs: parameters that name themselves, and labels in order of time."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tpunb.errors import whole
from tpunb.frames import Steps
from tpunb.frames.op_matrix import Ints


def in_order(labels: NDArray[np.integer[Any]], steps: Steps) -> Ints:
    """Return `labels` numbered 0, 1, 2, ... by first appearance in time; -1, noise, stays.

    >>> from tpunb.testing import toy_steps
    >>> in_order(np.array([7, -1, 3, 7]), toy_steps("abca")).tolist()
    [0, -1, 1, 0]
    """
    backwards = labels[np.argsort(steps.frame["start_ps"].to_numpy(), kind="stable")[::-1]]
    first = np.full(int(labels.max(initial=-1)) + 2, len(labels))  # and, for noise, a last one that none is before
    first[backwards] = np.arange(len(labels))[::-1]  # of several the last to be written stays
    first[-1] = len(labels)
    number = np.empty(len(first), dtype=np.int64)
    number[np.argsort(first, kind="stable")] = np.arange(len(first))
    number[-1] = -1
    return np.asarray(number[labels])


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
