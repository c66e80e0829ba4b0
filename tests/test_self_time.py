"""Self time: every instant of a lane counts for the event that began last of those still running."""

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from tpunb.step_stats.self_time import numbered, placed, self_times


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


@given(st.lists(st.integers(0, 3) | st.integers(0, 2**64 - 1), max_size=200))
def test_numbered_keys_have_the_order_of_their_first_rows(keys):
    numbers, rows = numbered(np.array(keys, np.uint64))
    first = list(dict.fromkeys(keys))
    assert numbers.tolist() == [first.index(key) for key in keys]
    assert rows.tolist() == [keys.index(key) for key in first]


@given(st.data())
def test_an_event_runs_in_the_intervals_of_its_group_that_it_overlaps(data):
    edges = [sorted(data.draw(st.lists(st.integers(0, 60), max_size=12, unique=True))) for _ in range(3)]
    intervals = [(group, *pair) for group, at in enumerate(edges) for pair in zip(at[::2], at[1::2], strict=False)]
    events = data.draw(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 70), st.integers(0, 40)), max_size=30))
    groups, starts, durs = np.array(events, np.int64).reshape(-1, 3).T.copy()
    of_group, begins, ends = np.array(intervals, np.int64).reshape(-1, 3).T.copy()
    bounds = np.searchsorted(of_group, np.arange(4))
    first, until = placed(groups.astype(np.uint32), starts, durs, bounds, begins, ends)
    for row, (group, start, dur) in enumerate(events):
        stop = start + max(dur, 1)
        during = [n for n, (of, at, end) in enumerate(intervals) if of == group and at < stop and end > start]
        assert list(range(first[row], until[row])) == during
