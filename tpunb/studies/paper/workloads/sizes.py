"""Scaling of a run from a minute on two cores to the paper's size, and the plan of a run."""

from __future__ import annotations

import math
from dataclasses import dataclass

SPLITS = ("train", "eval")
"""Splits of a dataset."""


def between(small: float, paper: float, scale: float, *, of: int = 1) -> int:
    """Return the multiple of `of` at `scale` between `small` and the paper's value, interpolated geometrically.

    >>> [between(64, 768, scale, of=64) for scale in (0, 0.5, 1)]
    [64, 192, 768]
    """
    return of * max(1, round(rate(small, paper, scale) / of))


def rate(small: float, paper: float, scale: float) -> float:
    """Return the number at `scale` between `small` and the paper's, interpolated geometrically.

    >>> rate(1e-3, 2e-5, 1)
    2e-05
    """
    if scale in (0, 1):  # exactly
        return paper if scale else small
    return math.exp((1 - scale) * math.log(small) + scale * math.log(paper))


@dataclass(frozen=True)
class Plan:
    """Length of a training, and size of its data."""

    batch: int  # examples per step
    epochs: int  # each ends with a checkpoint
    epoch_steps: int  # of an epoch
    eval_steps: int  # of an evaluation
    examples: int  # records of synthetic training data, repeated if an epoch needs more
    eval_every: int = 1  # epochs between evaluations

    @property
    def steps(self) -> int:
        """Steps of the whole training."""
        return self.epochs * self.epoch_steps

    def steps_of(self, split: str) -> int:
        """Return the steps of an epoch or of an evaluation."""
        return self.epoch_steps if split == "train" else self.eval_steps

    def records_of(self, split: str) -> int:
        """Return the number of records of a split."""
        return self.examples if split == "train" else min(self.eval_steps * self.batch, self.examples)
