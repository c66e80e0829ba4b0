"""The phase that is worth tuning."""

from __future__ import annotations

from tpunb.cluster import phases
from tpunb.testing import spelled_steps, toy_steps
from tpunb.tuning.job import hot_phase

COMPUTES = ({"MatMul": 6, "fusion": 3}, {"Dataset": 1})
FED = ({"infeed": 5, "reshape": 2, "MatMul": 1}, {"TransferBufferToInfeedLocked": 4})


def labelled(steps, labels):
    return phases(steps, lambda _: labels)


def test_over_half_of_the_time_is_hot():
    found = labelled(toy_steps("aaab"), [0, 0, 0, 1])
    assert hot_phase(found).id == 0


def test_the_longest_is_hot_by_what_it_does_too():
    steps = spelled_steps(COMPUTES, COMPUTES, FED, FED, COMPUTES, COMPUTES)
    assert hot_phase(labelled(steps, [0, 0, 1, 1, 2, 2])).id == 1


def test_none_is_hot_where_all_compute():
    steps = spelled_steps(COMPUTES, COMPUTES, COMPUTES, COMPUTES, COMPUTES, COMPUTES)
    assert hot_phase(labelled(steps, [0, 0, 1, 1, 2, 2])) is None


def test_noise_is_no_phase():
    assert hot_phase(labelled(toy_steps("aaaa"), [-1, -1, -1, -1])) is None


def test_one_step_is_all_of_the_time():
    assert hot_phase(phases(toy_steps("a"))).share == 1
