"""The online scan finds phases, and recognises those that come back."""

from hypothesis import given
from hypothesis import strategies as st

from tpunb.cluster.ols import OnlineOLS


def scanned(*steps):
    scan = OnlineOLS(recall=0.7)
    return [scan.feed(ops, kind) for kind, ops in steps]


def test_a_phase_returns():
    assert scanned(("t", "abc"), ("t", "abc"), ("t", "xyz"), ("t", "abc"), ("t", "xyz")) == [0, 0, 1, 0, 1]


def test_another_kind_is_another_phase():
    assert scanned(("train", "abc"), ("eval", "abc"), ("train", "abc")) == [0, 1, 0]


def test_a_step_with_more_operations_stays_as_the_paper_has_it():
    assert scanned(("t", "abc"), ("t", "abcd"), ("t", "abc")) == [0, 0, 0]


def test_a_subset_that_came_by_another_way_is_another_phase():
    # equation 1 opens one at xyz; back at ab, a third of abcdef, it is not taken for it
    assert scanned(("t", "abcdef"), ("t", "xyz"), ("t", "ab")) == [0, 1, 2]


def test_steps_without_operations_are_a_phase():
    assert scanned(("t", ""), ("t", ""), ("t", "ab")) == [0, 0, 0]


def test_the_number_of_phases_is_bounded():
    scan = OnlineOLS(recall=0.7)
    labels = [scan.feed([f"op{i}"], "t") for i in range(1000)]
    assert len(scan) == 256
    assert set(labels) == set(range(256))


@given(st.lists(st.tuples(st.sampled_from("uv"), st.frozensets(st.sampled_from("abcdef"), max_size=4)), max_size=60))
def test_labels_count_up_from_0_and_equal_steps_in_a_row_stay_together(steps):
    labels = scanned(*steps)
    assert list(dict.fromkeys(labels)) == list(range(len(set(labels))))
    for (before, label), (now, next_label) in zip(
        zip(steps, labels, strict=True), zip(steps[1:], labels[1:], strict=True), strict=False
    ):
        assert before != now or label == next_label
