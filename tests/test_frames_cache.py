"""What is found out of steps is worked out once, and dies with them."""

import gc
import weakref

import pytest

from tpunb.analysis.advice import advise
from tpunb.analysis.quality import distinguishing_ops
from tpunb.cluster import DBSCAN, OLS, KMeans, phases
from tpunb.frames.cache import memoised, memoised_last
from tpunb.testing import toy_steps


def spy():
    """A function of steps, and what it was asked."""
    asked = []

    def names(steps, number=0):
        asked.append((steps.name, number))
        return [number]

    return names, asked


def test_a_result_is_computed_once():
    names, asked = spy()
    names = memoised(names)
    steps, other = toy_steps("ab"), toy_steps("ab")
    assert names(steps, 1) is names(steps, 1)
    assert names(steps, 2) == [2]
    assert names(steps, 1) == [1]
    assert names(other, 1) is not names(steps, 1)  # equal steps are not the same
    assert [number for _, number in asked] == [1, 2, 1]


def test_only_the_last_result_is_kept():
    names, asked = spy()
    names = memoised_last(names)
    steps = toy_steps("ab")
    for number in (1, 1, 2, 1):
        assert names(steps, number) == [number]
    assert [number for _, number in asked] == [1, 2, 1]


def test_a_result_of_none_is_cached():
    asked = []
    steps = toy_steps("a")
    check = memoised(asked.append)
    check(steps)
    check(steps)
    assert len(asked) == 1


def test_exceptions_are_not_cached():
    asked = []

    @memoised
    def fails(steps):
        asked.append(steps.name)
        raise ValueError("no")

    steps = toy_steps("a")
    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            fails(steps)
    assert len(asked) == 2


@pytest.mark.parametrize("seen", ["", "fffffnffpfff"], ids=["all full", "not all full"])
def test_results_are_freed_with_the_steps(seen):
    steps = toy_steps("aaaabbbbcccc", traced=seen) if seen else toy_steps("aaaabbbbcccc")
    for method in (DBSCAN(), DBSCAN(min_samples=2, eps=1.0), KMeans(), KMeans(k=2), OLS()):
        found = phases(steps, method)
        found.top(), found.explained_variance, distinguishing_ops(found), advise(found)
    known = weakref.ref(steps), weakref.ref(steps.full())
    del steps, found
    gc.collect()
    assert [reference() for reference in known] == [None, None]
