"""Which phase of one run is which of another."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from run_pairs import by_letter, matched, metadata_of, renamed, stretched
from simulate.synthetic_runs import KINDS, synthetic_run

import tpunb as tp
from tpunb.analysis.compare import compare
from tpunb.frames import Steps
from tpunb.testing import toy_steps


def test_labels_of_phases_do_not_matter():
    a, b = by_letter("aabbcc"), by_letter("aabbcc")
    b = replace(b, labels=b.labels.replace_strict({0: 7, 1: 0, 2: 3}))
    assert matched(compare(a, b)) == [(0, 7), (1, 0), (2, 3)]


def test_steps_that_run_the_same_but_are_marked_otherwise_are_other_phases():
    steps = toy_steps("aaaaaa")
    steps = replace(steps, frame=steps.frame.with_columns(kind=pl.Series(["train"] * 4 + ["eval"] * 2)))
    a = tp.phases(steps, lambda steps: [0] * 4 + [1] * 2)
    b = tp.phases(steps, lambda steps: [1] * 4 + [0] * 2)
    assert matched(compare(a, b)) == [(0, 1), (1, 0)]
    only = replace(b, labels=b.labels.replace_strict({1: -1, 0: 0}))
    assert matched(compare(a, only)) == [(1, 0)]  # training has no counterpart: it is not the test


def test_phases_are_matched_in_a_longer_and_slower_run():
    one, other = synthetic_run(1000, 60, seed=3, hard=True), synthetic_run(1500, 60, seed=3, hard=True)
    a = tp.phases(one.steps, lambda steps: one.phase)
    b = stretched(tp.phases(other.steps, lambda steps: np.where(other.phase < 0, -1, 5 - other.phase)), 1.3)
    comparison = compare(a, b)
    assert matched(comparison) == [(number, 5 - number) for number in range(len(KINDS))]
    assert comparison.frame["similarity"].min() > 0.9
    assert comparison.frame["ratio"].to_list() == pytest.approx([1.3] * 6, rel=0.15)


def test_a_phase_without_a_counterpart_stays_alone():
    run = synthetic_run(1000, 60, seed=5)
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
    run = synthetic_run(1000, 60, seed=6)
    a = metadata_of(tp.phases(run.steps, lambda steps: run.phase), device_kind="TPU v2")
    b = metadata_of(renamed(stretched(a, 4)), device_kind="GPU")
    comparison = compare(a, b)
    assert set(comparison.frame["by"]) == {"kinds"}
    assert matched(comparison) == [(number, number) for number in range(len(KINDS))]
    assert set(comparison.ops.filter(side="device")["state"]) == {"gained", "lost"}
    assert "both" not in comparison.ops["state"]


@pytest.mark.parametrize(("kind", "found"), [("train", 1), ("jit_step", 1), ("eval", 0)])
def test_where_no_mark_is_common_order_and_numbers_tell(kind, found):
    def marked(run, word):
        return replace(run, steps=replace(run.steps, frame=run.steps.frame.with_columns(kind=pl.lit(word))))

    a = metadata_of(by_letter("aaa"), device_kind="TPU v2")
    b = metadata_of(renamed(a), device_kind="GPU")
    b = marked(b, kind)
    if kind == "eval":  # which the first run knows too, and does not do there
        a = replace(
            a, steps=replace(a.steps, frame=a.steps.frame.with_columns(kind=pl.Series(["train"] * 2 + ["eval"])))
        )
        a = replace(a, labels=pl.Series([0, 0, -1]))
    assert len(compare(a, b)) == found


def test_place_separates_phases_of_the_same_operations():
    steps = toy_steps("aaaaaaaa")
    a = tp.phases(steps, lambda steps: [0] * 5 + [1] * 3)
    b = tp.phases(steps, lambda steps: [1] * 4 + [0] * 4)
    assert matched(compare(a, b)) == [(0, 1), (1, 0)]
