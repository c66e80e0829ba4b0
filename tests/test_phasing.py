"""The verb that puts phase methods to work: what they see, and what becomes of the steps that they do not."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from tpunb import schema
from tpunb.cluster import DBSCAN, phases
from tpunb.errors import BadProfile, NoSteps
from tpunb.frames import Labels, Steps
from tpunb.testing import toy_steps


def test_a_method_sees_the_full_steps_only():
    seen = []

    def spy(steps):
        seen.extend(steps.frame["step"])
        assert set(steps.ops["step"]) <= set(seen)
        return Labels([0] * len(steps), {"x": pl.DataFrame({"x": [1], "chosen": [True]})})

    found = phases(toy_steps("aaaaa", seen="fptff"), spy)
    assert seen == [0, 3, 4]
    assert found.sweeps["x"]["chosen"].to_list() == [True]


# what is known


def test_the_default_is_dbscan():
    found = phases(toy_steps("aaabbb"))
    assert repr(found).startswith("Phases(2 phases over 6 steps, DBSCAN()")
    assert found.labels.to_list() == [0, 0, 0, 1, 1, 1]


# steps that were not seen in full


def labelled(pattern, seen):
    return phases(toy_steps(pattern, seen=seen), every_step).labels.to_list()


def every_step(steps):
    return range(len(steps))


def test_others_take_the_label_of_the_nearest_full_step():
    assert labelled("aaaaaa", "ftttpf") == [0, 0, 0, 1, 1, 1]


def test_of_two_as_near_the_earlier():
    assert labelled("aaa", "ftf") == [0, 0, 1]


def test_near_is_among_steps_of_the_same_mark():
    steps = toy_steps("aaabba", seen="fftftf")
    marks = pl.Series("mark", ["train", "train", "test", "test", "train", "train"])
    steps = replace(steps, frame=steps.frame.with_columns(marks))
    # step 2 lies beside training, but is evaluation as step 3 is; step 4 the other way round
    assert phases(steps, every_step).labels.to_list() == [0, 1, 2, 2, 3, 3]


def test_noise_does_not_spread():
    steps = toy_steps("aaaa", seen="fftt")
    assert phases(steps, lambda _: [0, -1]).labels.to_list() == [0, -1, 0, 0]
    assert phases(steps, lambda _: [-1, -1]).labels.to_list() == [-1, -1, -1, -1]


def test_before_the_first_and_after_the_last():
    assert labelled("aaaaa", "tpftp") == [0, 0, 0, 0, 0]


def test_near_is_by_the_middle_of_a_step():
    # steps of 1, 1, 10 and 1 ms: the tick's middle, 1.5, lies nearer 0.5 than 7
    assert labelled("aaja", "ftff") == [0, 0, 1, 2]


def test_a_timed_step_goes_with_those_that_took_as_long():
    # steps of 1, 1, 1 and 3 ms seen, then two of 1 ms and one of 3 ms that only the clock knows
    assert labelled("aaacaac", "ffffttt") == [0, 1, 2, 3, 2, 2, 3]


def test_a_step_cut_by_a_window_is_timed_too():
    assert labelled("aaca", "fffp") == [0, 1, 2, 1]


def test_a_step_whose_time_is_unknown_goes_by_when_it_ran():
    steps = toy_steps("aaca", seen="ffft")
    unknown = steps.frame.with_columns(dur_ps=pl.when(pl.col("seen") == "full").then("dur_ps"))
    assert phases(replace(steps, frame=unknown), every_step).labels.to_list() == [0, 1, 2, 2]


def test_hosts_keep_apart_in_time():
    one = toy_steps("aaaa", host="one", seen="fttt")
    two = toy_steps("aaaa", host="two", seen="tttf")
    both = Steps(pl.concat([one.frame, two.frame]), pl.concat([one.ops, two.ops]))
    assert phases(both, every_step).labels.to_list() == [0, 0, 0, 0, 1, 1, 1, 1]


def test_a_host_without_full_steps_asks_the_others():
    one = toy_steps("aaaa", host="one", seen="ffff")
    two = toy_steps("aaaa", host="two", seen="tttt")
    both = Steps(pl.concat([one.frame, two.frame]), pl.concat([one.ops, two.ops]))
    assert phases(both, every_step).labels.to_list() == [0, 1, 2, 3, 0, 1, 2, 3]


# distances


def test_distance_is_to_the_centre_of_the_phase():
    one_phase = phases(toy_steps("aaab"), lambda steps: [0] * 4).distance
    assert one_phase[0] == one_phase[1] == one_phase[2] == pytest.approx(one_phase[3] / 3)
    assert phases(toy_steps("aabb")).distance.to_list() == pytest.approx([0, 0, 0, 0])


def test_noise_and_steps_not_in_full_have_no_distance():
    found = phases(toy_steps("aaat", seen="ftff"), lambda steps: [0, 0, -1])
    assert found.labels.to_list() == [0, 0, 0, -1]
    assert found.distance.is_null().to_list() == [False, True, False, True]
    assert found.representatives(5).frame["step"].to_list() == [3, 0, 2]


# refusals


@pytest.mark.parametrize(
    ("asked", "seen"),
    [
        (lambda steps: phases(phases(steps)), r"The steps parameter of phases must be Steps\. Got Phases\(2 phases"),
        (lambda steps: phases(steps.frame), "The steps parameter of phases must be Steps"),
        (lambda steps: phases(None), r"must be Steps\. Got None instead\."),
        (lambda steps: phases(steps, "dbscan"), r"method such as tp\.DBSCAN\(\)\. Got 'dbscan' instead\."),
        (lambda steps: phases(steps, DBSCAN), r"The method parameter of phases must be a method .* Got <class"),
    ],
)
def test_wrong_arguments(asked, seen):
    with pytest.raises(TypeError, match=seen) as caught:
        asked(toy_steps("aaabbb"))
    assert ("must be Steps" in seen) == (getattr(caught.value, "__notes__", None) == ["Hint: tp.steps(profile)"])


def test_no_steps():
    with pytest.raises(NoSteps, match="toy holds no steps") as error:
        phases(toy_steps(""))
    assert "mark" in error.value.hint


def test_no_full_steps():
    with pytest.raises(NoSteps, match="no step that was seen in full, but 1 partial and 2 tick") as error:
        phases(toy_steps("aaa", seen="tpt"))
    assert "longer windows" in error.value.hint


@pytest.mark.parametrize(
    ("answer", "seen"),
    [
        ([0, 0], "2 labels for 3 steps"),
        ([0, -2, 0], "label -2"),
        ([0, 0.5, 0], "no ints"),
        ([0, None, 0], "no ints"),
        (None, "no ints"),
    ],
)
def test_what_a_method_returns_is_checked(answer, seen):
    with pytest.raises(BadProfile, match=seen) as error:
        phases(toy_steps("aaa"), lambda steps: answer)
    assert "<lambda>" in str(error.value)
    assert "one int a step" in error.value.hint


@pytest.mark.parametrize("answer", [(0, 1, 1), np.array([0, 1, 1]), pl.Series([0, 1, 1]), range(3)], ids=type)
def test_any_sequence_of_ints_will_do(answer):
    assert phases(toy_steps("aaa"), lambda steps: answer).labels.to_list() == list(answer)


def test_steps_of_a_mark_that_no_window_saw_are_a_phase_of_their_own():
    steps = toy_steps("aabbcc", seen="ffffff")
    known = steps.frame.with_columns(
        mark=pl.Series(["train"] * 4 + ["test"] * 2), seen=pl.Series(["full"] * 4 + ["tick"] * 2, dtype=schema.SEEN)
    )
    found = phases(replace(steps, frame=known))
    assert found.labels.to_list() == [0, 0, 1, 1, 2, 2]
    rows = found.frame.sort("phase").select("phase", "steps", "full", "marks").rows()
    assert rows == [(0, 2, 2, "train"), (1, 2, 2, "train"), (2, 2, 0, "test")]


def test_steps_of_a_host_that_no_window_saw_take_the_phase_of_their_mark_elsewhere():
    one, two = toy_steps("aabb", host="one"), toy_steps("aabb", host="two", seen="tttt")
    marked = [each.frame.with_columns(mark=pl.Series(["train", "train", "test", "test"])) for each in (one, two)]
    found = phases(Steps(pl.concat(marked), one.ops))
    by_host = found.labelled.group_by("host", maintain_order=True).agg("phase").rows()
    assert by_host[0][1] == by_host[1][1]


def test_two_steps_of_one_number_are_refused():
    steps = toy_steps("aab")
    twice = Steps(steps.frame.with_columns(step=pl.Series([0, 1, 1])), steps.ops)
    with pytest.raises(BadProfile, match="step 1 of host 'toy' is there 2 times"):
        phases(twice)


@pytest.mark.parametrize(("frame", "column"), [("frame", "seen"), ("ops", "op"), ("ops", "side")])
def test_rows_without_a_name_are_refused(frame, column):
    steps = toy_steps("aab")
    first = pl.int_range(pl.len()) == 0
    holed = getattr(steps, frame).with_columns(pl.when(~first).then(column))
    with pytest.raises(BadProfile, match=f"1 of {holed.height} rows have no {column}"):
        phases(replace(steps, **{frame: holed}))


def test_steps_are_placed_anew_where_others_are_noise():
    steps = toy_steps("aaaa", seen="fttf")
    answers = [[0, 1], [-1, 1], [0, -1], [1, 0]]
    found = [phases(steps, lambda _, answer=answer: answer).labels.to_list() for answer in answers]
    assert found == [[0, 0, 1, 1], [-1, 1, 1, 1], [0, 0, 0, -1], [1, 1, 0, 0]]
