"""Self time: every instant of a lane counts for the event that began last of those still running."""

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from tpunb.step_stats.self_time import self_times


def own(*events):
    """Self times of (lane, start, dur), in the order given."""
    order = sorted(range(len(events)), key=lambda i: (events[i][0], events[i][1], -events[i][2]))
    lanes, starts, durs = np.array([events[i] for i in order], np.int64).reshape(-1, 3).T
    found = self_times(lanes.astype(np.uint32), starts.copy(), durs.copy())
    return [int(found[order.index(i)]) for i in range(len(events))]


@pytest.mark.parametrize(
    ("events", "answer"),
    [
        ([], []),
        ([(0, 5, 10)], [10]),
        ([(0, 0, 10), (0, 2, 3)], [7, 3]),  # a child
        ([(0, 0, 10), (0, 2, 3), (0, 6, 1)], [6, 3, 1]),  # two children
        ([(0, 0, 10), (0, 2, 6), (0, 3, 2)], [4, 4, 2]),  # a grandchild
        ([(0, 0, 10), (0, 5, 10)], [5, 10]),  # overlapping, not nested: nothing is counted twice
        ([(0, 0, 10), (0, 0, 10)], [0, 10]),  # twins: the inner one counts
        ([(0, 0, 10), (1, 2, 3)], [10, 3]),  # lanes do not touch each other
        ([(0, 0, 4), (0, 4, 4)], [4, 4]),  # one after the other
        ([(0, 0, 0), (0, 0, 5)], [0, 5]),
    ],
)
def test_self_time_by_hand(events, answer):
    assert own(*events) == answer


@examples(200)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 25), st.integers(0, 12)), max_size=20))
def test_self_times_are_those_of_a_brute_force_clock(events):
    answer = [0] * len(events)
    for lane in range(3):
        for instant in range(40):
            running = [
                (start, -dur, i)
                for i, (where, start, dur) in enumerate(events)
                if where == lane and start <= instant < start + dur
            ]
            if running:
                answer[max(running)[2]] += 1
    assert own(*events) == answer
