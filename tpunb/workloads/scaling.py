"""One number from a minute on two cores to the paper's own sizes: what lies between, and the plan of a run."""

from __future__ import annotations

import math
from dataclasses import dataclass

SPLITS = ("train", "eval")
"""The parts of a dataset."""


def between(small: float, paper: float, scale: float, *, of: int = 1) -> int:
    """Return the whole number that lies `scale` of the way from `small` to the paper's, each step a like factor.

    Parameters
    ----------
    small, paper
        At scale 0 and at scale 1.
    scale
        From 0 to 1.
    of
        What the number is a multiple of.

    >>> [between(64, 768, scale, of=64) for scale in (0, 0.5, 1)]
    [64, 192, 768]
    """
    return of * max(1, round(rate(small, paper, scale) / of))


def rate(small: float, paper: float, scale: float) -> float:
    """Return the number that lies `scale` of the way from `small` to the paper's, each step a like factor.

    >>> rate(1e-3, 2e-5, 1)
    2e-05
    """
    if scale in (0, 1):  # to the last digit
        return paper if scale else small
    return math.exp((1 - scale) * math.log(small) + scale * math.log(paper))


@dataclass(frozen=True)
class Plan:
    """How long a run trains, and on how much.

    Attributes
    ----------
    batch
        Examples a step.
    epochs
        Each ends with a checkpoint.
    epoch_steps
        Steps of an epoch.
    eval_steps
        Steps of an evaluation.
    eval_every
        Epochs from one evaluation to the next.
    examples
        Records of the training data, where the data are made here. An epoch reads them as often as its steps need.
    """

    batch: int
    epochs: int
    epoch_steps: int
    eval_steps: int
    examples: int
    eval_every: int = 1

    @property
    def steps(self) -> int:
        """Steps of the whole training."""
        return self.epochs * self.epoch_steps

    def steps_of(self, split: str) -> int:
        """Return the steps of one pass: an epoch's in training, an evaluation's else."""
        return self.epoch_steps if split == "train" else self.eval_steps

    def records_of(self, split: str) -> int:
        """Return how many records a split has."""
        return self.examples if split == "train" else min(self.eval_steps * self.batch, self.examples)
