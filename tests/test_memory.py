"""What is found out of steps is worked out once, and dies with them."""

import gc
import weakref

import pytest

from tpunb.cluster import DBSCAN, OLS, KMeans, phases
from tpunb.cluster.advice import advise
from tpunb.cluster.quality import apart
from tpunb.frames.memory import last_remembered, remembered
from tpunb.testing import toy_steps


def spy():
    """A function of steps, and what it was asked."""
    asked = []

    def names(steps, number=0):
        asked.append((steps.name, number))
        return [number]

    return names, asked


def test_an_answer_is_worked_out_once():
    names, asked = spy()
    names = remembered(names)
    steps, other = toy_steps("ab"), toy_steps("ab")
    assert names(steps, 1) is names(steps, 1)
    assert names(steps, 2) == [2]
    assert names(steps, 1) == [1]
    assert names(other, 1) is not names(steps, 1)  # equal steps are not the same
    assert [number for _, number in asked] == [1, 2, 1]


def test_the_last_answer_alone_stays():
    names, asked = spy()
    names = last_remembered(names)
    steps = toy_steps("ab")
    for number in (1, 1, 2, 1):
        assert names(steps, number) == [number]
    assert [number for _, number in asked] == [1, 2, 1]


def test_an_answer_of_none_is_an_answer():
    asked = []
    steps = toy_steps("a")
    check = remembered(asked.append)
    check(steps)
    check(steps)
    assert len(asked) == 1


def test_what_is_raised_is_not_remembered():
    asked = []

    @remembered
    def fails(steps):
        asked.append(steps.name)
        raise ValueError("no")

    steps = toy_steps("a")
    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            fails(steps)
    assert len(asked) == 2


@pytest.mark.parametrize("seen", ["", "ffffftffpfff"], ids=["all full", "not all full"])
def test_what_is_remembered_dies_with_the_steps(seen):
    steps = toy_steps("aaaabbbbcccc", seen=seen) if seen else toy_steps("aaaabbbbcccc")
    for method in (DBSCAN(), DBSCAN(min_samples=2, eps=1.0), KMeans(), KMeans(k=2), OLS()):
        found = phases(steps, method)
        found.top(), found.homogeneity, apart(found), advise(found)
    known = weakref.ref(steps), weakref.ref(steps.full())
    del steps, found
    gc.collect()
    assert [reference() for reference in known] == [None, None]
