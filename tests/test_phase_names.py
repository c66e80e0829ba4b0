"""Names of phases: what a person would call them, unique in a run."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from simulate.scenarios import scenario

import tpunb as tp
from tpunb.frames.phase_names import phase_names
from tpunb.testing import toy_steps

PHASE = {
    **{"phase": 0, "steps": 100, "kinds": "train", "productive_ps": 100, "start_ps": 0, "last_ps": 9, "step_ps": 10},
    **{"saving": 0.0, "compiling": 0.0, "input": None},
}


def named(*phases):
    """The names of phases that differ from a common one in what is given."""
    return phase_names(
        [{**PHASE, "phase": i, "productive_ps": 100 - i, "start_ps": i, **of} for i, of in enumerate(phases)]
    )


@pytest.mark.parametrize(
    ("kinds", "name"),
    [
        ("train", "train"),
        ("eval", "evaluation"),
        ("predict", "prediction"),
        ("generator", "generator"),
        ("train, eval", "train and evaluation"),
        (None, "steps"),
        ("a\x1b\u202eb", "a\ufffd\ufffdb"),
    ],
)
def test_one_phase_is_named_for_its_kind(kinds, name):
    assert named({"kinds": kinds}) == [name]


@pytest.mark.parametrize(
    ("other", "name"),
    [
        ({"saving": 0.9}, "checkpoint"),
        ({"compiling": 0.9}, "first steps"),
        ({"start_ps": -9, "last_ps": -1, "steps": 10}, "first steps"),
        ({"start_ps": -9, "last_ps": -1, "steps": 11}, "train 2"),
        ({"input": 0.3}, "train (input-bound)"),
        ({"step_ps": 13}, "train (slower)"),
        ({"step_ps": 7}, "train (faster)"),
        ({"step_ps": None}, "train 2"),
        ({"kinds": "eval"}, "evaluation"),
        ({"phase": -1}, "outliers"),
    ],
)
def test_another_phase_is_named_for_what_distinguishes_it(other, name):
    assert named({}, other) == ["train", name]


def test_phases_that_would_share_a_name_are_numbered_by_their_first_steps():
    assert named({}, {"start_ps": 9}, {"start_ps": 5}) == ["train", "train 3", "train 2"]
    slow = [{"step_ps": time} for time in (20, 21, 40)]
    assert named({}, *slow) == ["train", "train 2", "train 3", "train 4"]
    assert named({}, *slow[:2]) == ["train", "train 2", "train 3"]
    assert named({}, {}, {"kinds": "train 2"}) == ["train", "train 3", "train 2"]


def test_of_two_other_paces_the_farther_is_the_slowest_or_fastest():
    assert named({}, {"step_ps": 30}, {"step_ps": 20}) == ["train", "train (slowest)", "train (slower)"]
    assert named({}, {"step_ps": 6}, {"step_ps": 3}) == ["train", "train (faster)", "train (fastest)"]
    assert named({}, {"step_ps": 20}, {"step_ps": 3}) == ["train", "train (slower)", "train (faster)"]


def test_evaluation_has_checkpoints_and_first_steps_of_its_own():
    evaluation = {"kinds": "eval"}
    assert named({}, evaluation, {**evaluation, "compiling": 1.0})[2] == "first steps of evaluation"


@pytest.mark.parametrize("name", ["60 steps of two kinds", "checkpoints and evaluation", "input stalls"])
@pytest.mark.parametrize("seed", range(2))
def test_the_phases_of_scenarios_have_the_names_that_a_person_would_give(name, seed):
    run = scenario(name, seed=seed)
    phases = tp.phases(run.steps)
    assert [phases.names[label] for label in phases.labels] == [run.names[number] for number in run.phase]


def test_the_names_of_many_phases_are_unique():
    phases = tp.phases(toy_steps("abcdefgh" * 3), lambda steps: np.arange(24))
    assert len({*phases.names.values()}) == len(phases.names) == 24
    assert phases[3].name == phases.names[3]


def test_names_of_the_samples():
    for sample in ("keras_cnn", "keras_transformer"):
        names = tp.phases(tp.steps(tp.sample(sample))).frame["name"].to_list()
        assert sorted(names) == ["checkpoint", "evaluation", "outliers", "train"]


def test_a_slow_down_is_one_phase_with_its_drift():
    row = tp.phases(scenario("slow-down").steps).frame.row(0, named=True)
    assert row["drift"] == pytest.approx(1.57 / 1.03 - 1, abs=0.03), "medians of the last and the first 100 of 1,000"
    assert tp.phases(scenario("60 equal steps").steps).frame["drift"].item() == pytest.approx(0, abs=0.1)
    assert tp.phases(toy_steps("a" * 19)).frame["drift"].item() is None


def test_the_variation_is_of_all_steps_that_the_clock_timed():
    steps = toy_steps("aaa", traced="fnp")
    steps = replace(steps, frame=steps.frame.with_columns(dur_ps=pl.Series([10, 30, 1000])))
    assert tp.phases(steps, lambda steps: [0]).frame["step_time_cv"].item() == pytest.approx(0.5)
