"""Which phase of one run is which of another."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from test_comparing import about, by_letter, matched, renamed, stretched

import tpunb as tp
from tpunb.cluster.comparing import compare
from tpunb.frames import Steps
from tpunb.testing import KINDS, known_run, toy_steps


def test_numbers_of_phases_say_nothing():
    a, b = by_letter("aabbcc"), by_letter("aabbcc")
    b = replace(b, labels=b.labels.replace_strict({0: 7, 1: 0, 2: 3}))
    assert matched(compare(a, b)) == [(0, 7), (1, 0), (2, 3)]


def test_steps_that_run_the_same_but_are_marked_otherwise_are_other_phases():
    steps = toy_steps("aaaaaa")
    steps = replace(steps, frame=steps.frame.with_columns(mark=pl.Series(["train"] * 4 + ["test"] * 2)))
    a = tp.phases(steps, lambda steps: [0] * 4 + [1] * 2)
    b = tp.phases(steps, lambda steps: [1] * 4 + [0] * 2)
    assert matched(compare(a, b)) == [(0, 1), (1, 0)]
    only = replace(b, labels=b.labels.replace_strict({1: -1, 0: 0}))
    assert matched(compare(a, only)) == [(1, 0)]  # training has no counterpart: it is not the test


@pytest.mark.parametrize("seed", [3, 4])
def test_the_phases_of_a_known_run_are_found_in_a_longer_and_slower_one(seed):
    one, other = known_run(1500, 90, seed=seed, hard=True), known_run(2500, 90, seed=seed, hard=True)
    a = tp.phases(one.steps, lambda steps: one.phase)
    b = stretched(tp.phases(other.steps, lambda steps: np.where(other.phase < 0, -1, 5 - other.phase)), 1.3)
    told = compare(a, b)
    assert matched(told) == [(number, 5 - number) for number in range(len(KINDS))]
    assert told.frame["similarity"].min() > 0.9
    assert told.frame["ratio"].to_list() == pytest.approx([1.3] * 6, rel=0.15)


def test_a_phase_without_a_counterpart_stays_alone():
    run = known_run(1500, 90, seed=5)
    a = tp.phases(run.steps, lambda steps: run.phase)
    left = [KINDS.index(kind) for kind in ("summary", "evaluation", "warm-up")]
    kept = ~np.isin(run.phase, left)
    b = tp.phases(steps_at(run.steps, kept), lambda steps: run.phase[kept])
    assert sorted(compare(a, b).unmatched["phase_a"]) == sorted(left)
    assert sorted(compare(b, a).unmatched["phase_b"]) == sorted(left)


def steps_at(steps, where):
    frame = steps.frame.filter(pl.Series(where))
    return Steps(frame, steps.ops.join(frame.select("host", "step"), on=["host", "step"], how="semi"))


def test_on_another_kind_of_device_marks_order_and_numbers_tell():
    run = known_run(1500, 90, seed=6)
    a = about(tp.phases(run.steps, lambda steps: run.phase), device_kind="TPU v2")
    b = about(renamed(stretched(a, 4)), device_kind="GPU")
    told = compare(a, b)
    assert set(told.frame["by"]) == {"marks"}
    assert matched(told) == [(number, number) for number in range(len(KINDS))]
    assert set(told.ops["state"]) == {"gained", "lost"}


@pytest.mark.parametrize(("mark", "found"), [("train", 1), ("jit_step", 1), ("test", 0)])
def test_where_no_mark_is_common_order_and_numbers_tell(mark, found):
    def marked(run, word):
        return replace(run, steps=replace(run.steps, frame=run.steps.frame.with_columns(mark=pl.lit(word))))

    a = about(by_letter("aaa"), device_kind="TPU v2")
    b = about(renamed(a), device_kind="GPU")
    b = marked(b, mark)
    if mark == "test":  # which the first run knows too, and does not do there
        a = replace(
            a, steps=replace(a.steps, frame=a.steps.frame.with_columns(mark=pl.Series(["train"] * 2 + ["test"])))
        )
        a = replace(a, labels=pl.Series([0, 0, -1]))
    assert len(compare(a, b)) == found


def test_of_phases_that_run_the_same_their_place_in_the_run_tells_which_is_which():
    steps = toy_steps("aaaaaaaa")
    a = tp.phases(steps, lambda steps: [0] * 5 + [1] * 3)
    b = tp.phases(steps, lambda steps: [1] * 4 + [0] * 4)
    assert matched(compare(a, b)) == [(0, 1), (1, 0)]
