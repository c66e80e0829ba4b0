"""The verb that puts phase methods to work: what they see, and what becomes of the steps that they do not."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

import tpunb as tp
from tpunb import schema
from tpunb.cluster import DBSCAN, KMeans, phases
from tpunb.errors import BadProfile, NoSteps
from tpunb.frames import Steps
from tpunb.frames.phases import Labels
from tpunb.frames.steps import WallClock
from tpunb.testing import toy_steps


def test_a_method_sees_the_full_steps_only():
    seen = []

    def spy(steps):
        seen.extend(steps.frame["step"])
        assert set(steps.ops["step"]) <= set(seen)
        return Labels([0] * len(steps), {"x": pl.DataFrame({"x": [1], "chosen": [True]})})

    found = phases(toy_steps("aaaaa", traced="fpnff"), spy)
    assert seen == [0, 3, 4]
    assert found.sweeps["x"]["chosen"].to_list() == [True]


# what is known


def test_the_default_is_dbscan():
    found = phases(toy_steps("aaabbb"))
    assert repr(found).startswith("Phases(2 phases over 6 steps, DBSCAN()")
    assert found.labels.to_list() == [0, 0, 0, 1, 1, 1]


# steps that were not traced in full


def labelled(pattern, seen):
    return phases(toy_steps(pattern, traced=seen), every_step).labels.to_list()


def every_step(steps):
    return range(len(steps))


def test_others_take_the_label_of_the_nearest_full_step():
    assert labelled("aaaaaa", "fnnnpf") == [0, 0, 0, 1, 1, 1]


def test_of_two_as_near_the_earlier():
    assert labelled("aaa", "fnf") == [0, 0, 1]


def test_near_is_among_steps_of_the_same_mark():
    steps = toy_steps("aaabba", traced="ffnfnf")
    kinds = pl.Series("kind", ["train", "train", "eval", "eval", "train", "train"])
    steps = replace(steps, frame=steps.frame.with_columns(kinds))
    # step 2 lies beside training, but is evaluation as step 3 is; step 4 the other way round
    assert phases(steps, every_step).labels.to_list() == [0, 1, 2, 2, 3, 3]


def test_outliers_do_not_lend_their_label():
    steps = toy_steps("aaaa", traced="ffnn")
    assert phases(steps, lambda _: [0, -1]).labels.to_list() == [0, -1, 0, 0]
    assert phases(steps, lambda _: [-1, -1]).labels.to_list() == [-1, -1, -1, -1]


def test_before_the_first_and_after_the_last():
    assert labelled("aaaaa", "npfnp") == [0, 0, 0, 0, 0]


def test_near_is_by_the_middle_of_a_step():
    # steps of 1, 1, 10 and 1 ms: the tick's middle, 1.5, lies nearer 0.5 than 7
    assert labelled("aaja", "fnff") == [0, 0, 1, 2]


def test_a_timed_step_takes_the_label_of_similar_step_time():
    # steps of 1, 1, 1 and 3 ms seen, then two of 1 ms and one of 3 ms that only the clock knows
    assert labelled("aaacaac", "ffffnnn") == [0, 1, 2, 3, 2, 2, 3]


def test_a_step_cut_by_a_window_is_timed_too():
    assert labelled("aaca", "fffp") == [0, 1, 2, 1]


def test_an_untimed_step_takes_the_label_of_the_nearest():
    steps = toy_steps("aaca", traced="fffn")
    unknown = steps.frame.with_columns(dur_ps=pl.when(pl.col("traced") == "full").then("dur_ps"))
    assert phases(replace(steps, frame=unknown), every_step).labels.to_list() == [0, 1, 2, 2]


def test_a_step_of_the_job_is_traced_in_full_if_any_host_traced_it():
    one = toy_steps("aaaa", host="one", traced="fnnn")
    two = toy_steps("aaaa", host="two", traced="nnnf")
    both = Steps(pl.concat([one.frame, two.frame]), pl.concat([one.ops, two.ops]))
    assert phases(both, every_step).labels.to_list() == [0, 0, 1, 1, 0, 0, 1, 1]


def test_a_host_without_full_steps_takes_labels_of_the_others():
    one = toy_steps("aaaa", host="one", traced="ffff")
    two = toy_steps("aaaa", host="two", traced="nnnn")
    both = Steps(pl.concat([one.frame, two.frame]), pl.concat([one.ops, two.ops]))
    assert phases(both, every_step).labels.to_list() == [0, 1, 2, 3, 0, 1, 2, 3]


# distances


def test_distance_is_to_the_centre_of_the_phase():
    one_phase = phases(toy_steps("aaab"), lambda steps: [0] * 4).distance
    assert one_phase[0] == one_phase[1] == one_phase[2] == pytest.approx(one_phase[3] / 3)
    assert phases(toy_steps("aabb")).distance.to_list() == pytest.approx([0, 0, 0, 0])


def test_outliers_and_steps_not_in_full_have_no_distance():
    found = phases(toy_steps("aaat", traced="fnff"), lambda steps: [0, 0, -1])
    assert found.labels.to_list() == [0, 0, 0, -1]
    assert found.distance.is_null().to_list() == [False, True, False, True]
    assert tp.analysis.representatives(found, 5).frame["step"].to_list() == [3, 0, 2]


# refusals


@pytest.mark.parametrize(
    ("asked", "seen"),
    [
        (
            lambda steps: tp.phases(steps.frame),
            "The run parameter of phases must be the path of a run, a Profile",
        ),
        (lambda steps: tp.phases(None), r"must be the path of a run, a Profile, Steps or Phases\. Got None instead\."),
        (lambda steps: phases(steps, DBSCAN), r"The method parameter of phases must be a method .* Got <class"),
    ],
)
def test_wrong_arguments(asked, seen):
    with pytest.raises(TypeError, match=seen):
        asked(toy_steps("aaabbb"))


def test_phases_are_returned_as_they_are_or_grouped_anew():
    found = phases(toy_steps("aaabbb"))
    assert tp.phases(found) is found
    assert tp.phases(found, "kmeans").method == KMeans()


def test_a_method_has_a_name():
    assert phases(toy_steps("aaabbb"), "kmeans").method == KMeans()
    with pytest.raises(ValueError, match=r"must be one of dbscan, .*, olsplus\. Got 'db' instead"):
        phases(toy_steps("aaabbb"), "db")


def test_a_profile_is_grouped_by_its_steps():
    profile = tp.sample("keras_cnn")
    labels = phases(tp.steps(profile)).labels.to_list()
    assert tp.phases(profile).labels.to_list() == tp.phases(profile.source).labels.to_list() == labels


def test_no_steps():
    with pytest.raises(NoSteps, match="toy has no steps") as error:
        phases(toy_steps(""))
    assert "mark steps" in error.value.hint


def test_where_no_step_was_traced_in_full_each_kind_that_the_clock_timed_is_a_phase():
    steps = toy_steps("aaa", traced="npn")
    frame = steps.frame.with_columns(kind=pl.Series(["train", "train", "eval"]))
    assert phases(Steps(frame, steps.ops, steps.devices, steps.windows)).labels.to_list() == [0, 0, 1]


def test_no_full_and_no_timed_steps():
    steps = toy_steps("aaa", traced="npn")
    untimed = steps.frame.with_columns(dur_ps=pl.lit(None, pl.Int64))
    with pytest.raises(NoSteps, match="no step traced in full or timed, but 1 partial and 2 none") as error:
        phases(Steps(untimed, steps.ops, steps.devices, steps.windows))
    assert "longer windows" in error.value.hint


@pytest.mark.parametrize(
    ("answer", "seen"),
    [
        ([0, 0], "2 labels for 3 steps"),
        ([0, -2, 0], "label -2"),
        ([0, 0.5, 0], "not ints"),
        ([0, None, 0], "not ints"),
        (None, "not ints"),
    ],
)
def test_labels_of_a_method_are_checked(answer, seen):
    with pytest.raises(BadProfile, match=seen) as error:
        phases(toy_steps("aaa"), lambda steps: answer)
    assert "<lambda>" in str(error.value)
    assert "one int per step" in error.value.hint


@pytest.mark.parametrize("answer", [(0, 1, 1), np.array([0, 1, 1]), pl.Series([0, 1, 1]), range(3)], ids=type)
def test_any_sequence_of_ints_will_do(answer):
    assert phases(toy_steps("aaa"), lambda steps: answer).labels.to_list() == list(answer)


def test_a_kind_without_full_steps_is_a_phase():
    steps = toy_steps("aabbcc", traced="ffffff")
    known = steps.frame.with_columns(
        kind=pl.Series(["train"] * 4 + ["eval"] * 2), traced=pl.Series(["full"] * 4 + ["none"] * 2, dtype=schema.TRACED)
    )
    found = phases(replace(steps, frame=known))
    assert found.labels.to_list() == [0, 0, 1, 1, 2, 2]
    rows = found.frame.sort("phase").select("phase", "steps", "full", "kinds").rows()
    assert rows == [(0, 2, 2, "train"), (1, 2, 2, "train"), (2, 2, 0, "eval")]


def test_steps_of_a_host_that_no_window_saw_take_the_phase_of_their_mark_elsewhere():
    one, two = toy_steps("aabb", host="one"), toy_steps("aabb", host="two", traced="nnnn")
    marked = [each.frame.with_columns(kind=pl.Series(["train", "train", "eval", "eval"])) for each in (one, two)]
    found = phases(Steps(pl.concat(marked), one.ops))
    by_host = found.labelled.group_by("host", maintain_order=True).agg("phase").rows()
    assert by_host[0][1] == by_host[1][1]


def test_two_steps_of_one_number_are_refused():
    steps = toy_steps("aab")
    twice = Steps(steps.frame.with_columns(step=pl.Series([0, 1, 1])), steps.ops)
    with pytest.raises(BadProfile, match="step 1 of host 'toy' is there 2 times"):
        phases(twice)


@pytest.mark.parametrize(("frame", "column"), [("frame", "traced"), ("ops", "op"), ("ops", "side")])
def test_rows_without_a_name_are_refused(frame, column):
    steps = toy_steps("aab")
    first = pl.int_range(pl.len()) == 0
    holed = getattr(steps, frame).with_columns(pl.when(~first).then(column))
    with pytest.raises(BadProfile, match=f"{column} is missing in 1 of {holed.height} rows"):
        phases(replace(steps, **{frame: holed}))


def test_labels_are_assigned_again_if_outliers_change():
    steps = toy_steps("aaaa", traced="fnnf")
    answers = [[0, 1], [-1, 1], [0, -1], [1, 0]]
    found = [phases(steps, lambda _, answer=answer: answer).labels.to_list() for answer in answers]
    assert found == [[0, 0, 1, 1], [-1, 1, 1, 1], [0, 0, 0, -1], [1, 1, 0, 0]]


# steps that lasted far longer than their phase


def with_times(steps, **columns):
    """Return steps with columns in milliseconds, None where unknown."""
    times = {name: [None if value is None else value * 1_000_000_000 for value in of] for name, of in columns.items()}
    return replace(steps, frame=steps.frame.with_columns(pl.Series(name, of) for name, of in times.items()))


def test_an_untraced_step_that_saved_a_checkpoint_goes_with_those_that_did():
    steps = with_times(
        toy_steps("ababaa", traced="ffffnn"), dur_ps=[9, 9, 9, 9, 9, 9], start_ps=[0, 10, 20, 30, 40, 50]
    )
    saves = [("toy", at * 10**9, 10**9, "checkpoint save", "Checkpoint.save") for at in (12, 32, 42)]
    spans = pl.DataFrame(saves, schema=schema.SPANS, orient="row")
    wall = WallClock(60 * 10**9, complete=True, spans=spans)
    assert phases(replace(steps, wall=wall), lambda full: [0, 1, 0, 1]).labels.to_list() == [0, 1, 0, 1, 1, 0]


def test_untraced_steps_that_saved_a_checkpoint_are_a_phase_if_no_window_traced_one():
    steps = with_times(
        toy_steps("aaaaaa", traced="ffnnnn"), dur_ps=[9, 9, 9, 9, 9, 9], start_ps=[0, 10, 20, 30, 40, 50]
    )
    saves = [("toy", at * 10**9, 10**9, "checkpoint save", "Checkpoint.save") for at in (32, 52)]
    spans = pl.DataFrame(saves, schema=schema.SPANS, orient="row")
    found = phases(replace(steps, wall=WallClock(60 * 10**9, complete=True, spans=spans)))
    assert found.labels.to_list() == [0, 0, 0, 1, 0, 1]
    assert found.names == {0: "train", 1: "checkpoint"}


def outliers(steps, method=lambda full: [0] * len(full)):
    """Return (step, reason) of the outliers."""
    return phases(steps, method).labelled.filter(phase=-1).select("step", "reason").rows()


def test_a_step_far_longer_than_its_phase_is_an_outlier():
    # full steps of 5, 5 and 6 ms: over 25 ms and over 20 ms more than 5 is far
    steps = with_times(toy_steps("aaaaaaa", traced="fffnnpn"), dur_ps=[5, 5, 6, 25, 26, 300, 4])
    assert outliers(steps) == [(4, "slow step"), (5, "slow step")]
    assert phases(steps, lambda _: [0] * 3).labels.to_list() == [0, 0, 0, 0, -1, -1, 0]


def test_a_step_traced_in_full_keeps_its_label():
    steps = with_times(toy_steps("aaa"), dur_ps=[5, 5, 500])
    assert outliers(steps) == []
    assert outliers(steps, lambda _: [0, 0, -1]) == [(2, "operations")]


def test_times_long_in_themselves_must_be_five_times_as_long():
    assert outliers(with_times(toy_steps("aaaa", traced="ffnn"), dur_ps=[100, 100, 499, 501])) == [(3, "slow step")]


def test_callbacks_and_known_input_wait_make_no_outlier():
    callbacks = [0, None, 200, 0, 0]
    inputs = [1, 1, 0, 200, None]
    steps = toy_steps("aaaaa", traced="ffnnn")
    steps = with_times(steps, dur_ps=[5, 5, 205, 205, 205], callbacks_ps=callbacks, input_ps=inputs)
    assert outliers(steps) == [(4, "slow step")]  # of which it is not known that it waited


def test_a_step_of_unknown_input_wait_is_compared_with_steps_that_waited():
    steps = with_times(toy_steps("aaa", traced="ffn"), dur_ps=[105, 105, 105], input_ps=[100, 100, None])
    assert outliers(steps) == []


def test_a_kind_without_full_steps_has_outliers_too():
    steps = with_times(toy_steps("aaa", traced="fnn"), dur_ps=[5, 5, 3150])
    kinds = pl.Series("kind", ["train", "eval", "eval"])
    assert outliers(replace(steps, frame=steps.frame.with_columns(kinds))) == [(2, "slow step")]


def test_among_phases_as_near_input_wait_decides():
    # computing for 9 ms is one phase, waiting for 6 of 9 ms the other
    steps = with_times(toy_steps("aaaa", traced="ffnn"), dur_ps=[9, 9, 9, 9], input_ps=[0, 6, 6, 0])
    assert phases(steps, every_step).labels.to_list() == [0, 1, 1, 0]


SPANS = [
    (0, 250, "program startup"),  # in step 2
    (0, 3000, "fit"),
    (400, 390, "callbacks"),  # in step 3, which knows
    (400, 390, "checkpoint save"),  # in that callback
    (850, 140, "garbage collection"),  # in step 4
    (1000, 200, "profiler"),  # around step 5
]
"""Milliseconds from the beginning of step 2, for and account."""


def slow_steps(stalls=()):
    """Return two steps of 5 ms and slow ones at 0, 400, 800, 1000, 1200 ms, with the clock of the run."""
    steps = toy_steps("aaaaaaa", traced="ffnnnnn")
    steps = with_times(
        steps,
        start_ps=[-10, -5, 0, 400, 800, 1000, 1200],
        dur_ps=[5, 5, 400, 400, 200, 200, 200],
        callbacks_ps=[0, 0, 0, 390, 0, 0, 0],
    )
    spans = pl.DataFrame(
        [("toy", start * 10**9, dur * 10**9, account, None) for start, dur, account in SPANS],
        schema=schema.SPANS,
        orient="row",
    )
    rows = [("toy", at * 10**9, 150 * 10**9, None, kind, place, 1.0, 3, False) for at, kind, place in stalls]
    stalled = pl.DataFrame(rows, schema=schema.STALLS, orient="row")
    wall = WallClock(3 * 10**12, complete=True, spans=spans, stalls=stalled)
    return replace(steps, wall=wall, windows=pl.DataFrame(schema=schema.WINDOWS))


def test_the_reason_of_an_outlier_is_what_took_most_of_it():
    assert outliers(slow_steps()) == [
        (2, "program startup"),
        (4, "garbage collection"),
        (5, "profiler"),
        (6, "slow step"),
    ]


def test_the_place_of_a_stall_is_a_reason_where_the_clock_has_none():
    stalls = [(1010, None, "a.py:1 in f"), (1210, None, "b.py:2 in g"), (1220, "callbacks", "c.py:3 in h")]
    assert outliers(slow_steps(stalls))[-2:] == [(5, "profiler"), (6, "b.py:2 in g")]


def test_a_step_that_compiled_is_an_outlier_by_program_startup():
    steps = with_times(toy_steps("aaa", traced="pff"), dur_ps=[988, 5, 5], compile_ps=[300, 0, 0])
    assert outliers(steps) == [(0, "program startup")]


def test_the_slow_steps_of_the_sample_are_no_phase():
    found = phases(tp.steps(tp.sample("keras_cnn")))
    slow = found.labelled.filter(pl.col("reason").is_not_null(), traced="full").height
    by_clock = found.labelled.filter(pl.col("phase") < 0, pl.col("traced") != "full")
    assert slow == 6
    place = "record.py:95 in record ← model.fit"
    assert by_clock.select("kind", (pl.col("dur_ps") // 10**9), "reason").rows() == [
        ("train", 957, "program startup"),
        ("eval", 204, "evaluation"),
        ("eval", 37, "profiler"),
        ("train", 121, "profiler"),
        ("eval", 160, "evaluation"),
        ("train", 1326, place),
        ("train", 1250, place),
    ]
    goodput = tp.goodput(found).frame
    evaluation = found.frame.row(by_predicate=pl.col("name") == "evaluation", named=True)
    spent = goodput.filter(account="evaluation", phase=evaluation["phase"])["time_ps"].sum()
    assert 0.8 < spent / (evaluation["steps"] * evaluation["step_ps"]) < 1.2
    slow = tp.goodput(found).segments.filter(pl.col("step").is_in([339, 459]))
    longer = slow.filter(pl.col("account").is_in(["step time deviation", "profiler"]))  # a part of it beside a window
    assert (1326 + 1250 - 200) * 10**9 < longer["dur_ps"].sum() < (1326 + 1250) * 10**9


def test_phases_explain_the_own_time_of_steps_whose_callbacks_sleep():
    # 200 steps of 3 ms, the first of which traces for 1 s, each 50th sleeps for 200 ms in a callback
    callbacks = [200 if step % 50 == 49 else 0 for step in range(200)]
    dur = [1000 if step == 0 else 3 + step % 3 + callbacks[step] for step in range(200)]
    steps = with_times(toy_steps("a" * 200, traced="n" * 20 + "f" * 20 + "n" * 160), dur_ps=dur, callbacks_ps=callbacks)
    found = phases(steps, lambda full: [0] * len(full)).labelled
    own = pl.col("dur_ps") - pl.col("callbacks_ps")
    explained = 1 - found.select(((own - own.mean().over("phase")) ** 2).sum() / ((own - own.mean()) ** 2).sum()).item()
    assert explained > 0.99
    assert found.filter(phase=-1)["step"].to_list() == [0]
