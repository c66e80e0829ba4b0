"""What every phase method holds to, ours and yours: for tests of your own."""

from __future__ import annotations

import operator

import numpy as np
import polars as pl

from tpunb.frames import PhaseMethod, Steps
from tpunb.testing.toys import toy_steps

_PATTERNS = ("", "a", "aa", "aaabbb", "abcdefgh", "ab" * 20)


def check_method(method: PhaseMethod) -> None:
    """Fail where a phase method does not hold to the rules.

    It gives one int of -1 or more a step; the same twice; none for no steps; and is at ease with one step, two hosts,
    steps that are all unlike, and steps that ran nothing.

    Parameters
    ----------
    method
        Any function from `Steps` to one int a step, -1 for noise.

    Raises
    ------
    AssertionError
        In one line: which rule, on which steps, and what was seen.

    >>> from tpunb.cluster import DBSCAN
    >>> check_method(DBSCAN())
    >>> check_method(lambda steps: [0])
    Traceback (most recent call last):
    AssertionError: one label a step: 1 for Steps(0 steps, 0 ops, 0 seen in full)
    """
    for steps in (*map(toy_steps, _PATTERNS), _two_hosts(), _idle()):
        labels = _ints(method(steps))
        again = _ints(method(Steps(steps.frame, steps.ops)))
        if len(labels) != len(steps):
            raise AssertionError(f"one label a step: {len(labels)} for {steps!r}")
        if min(labels, default=0) < -1:
            raise AssertionError(f"no label below -1: {min(labels)} for {steps!r}")
        if labels != again:
            raise AssertionError(f"the same twice: {np.sum(np.array(labels) != again)} differ for {steps!r}")


def _ints(labels: object) -> list[int]:
    try:
        return [operator.index(label) for label in labels]  # type: ignore[attr-defined]  # that is the question
    except TypeError as error:
        raise AssertionError(f"one int a step: {error}") from error


def _two_hosts() -> Steps:
    one, two = toy_steps("aaabbb", host="one"), toy_steps("ababab", host="two")
    return Steps(pl.concat([two.frame, one.frame]), pl.concat([two.ops, one.ops]))


def _idle() -> Steps:
    steps = toy_steps("aaa")
    return Steps(steps.frame, steps.ops.clear())
