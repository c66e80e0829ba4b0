"""Kinds of steps of recorded trainings: what trains in turns, what acts, and whom the training waits for."""

import json
import zipfile
from pathlib import Path

import pytest
from judged_runs import CORPUS
from optional_schema import errors

import tpunb as tp
from tpunb.analysis.kinds import kinds_of
from tpunb.analysis.verdict import verdict

SCHEMA = json.loads((Path(__file__).parents[1] / "docs" / "report.schema.json").read_text(encoding="utf-8"))


@pytest.fixture
def recorded(tmp_path):
    def load(name):
        with zipfile.ZipFile(CORPUS / f"{name}.zip") as entry:
            entry.extractall(tmp_path / name)
        return tp.phases(tmp_path / name)

    return load


KINDS = {
    # two optimizers that update once in each step
    "page_torch_dcgan": {
        "Adam.step at torch_pages.py:235 in train": 18,
        "Adam.step at torch_pages.py:239 in train": 18,
    },
    # one that updates in each step, and another in each fifth
    "refuted_torch_updates_a_critic_more_often": {
        "SGD.step at torch_loops.py:203 in torch_updates_a_critic_more_often": 280,
        "SGD.step at torch_loops.py:208 in torch_updates_a_critic_more_often": 56,
    },
    "evaluated_ppo": {"train": 32, "a model in its mode to evaluate": 3},  # the first acts before the first step
    "refuted_jax_trains_in_two_stages": {"train": 120, "refine": 80},
    # one that trains and an evaluation, and two threads, whose steps overlap
    "evaluated_torch_loop": {},
    "refuted_torch_trains_two_models_in_threads": {},
}


@pytest.mark.parametrize("name", KINDS)
def test_kinds_of_steps_are_counted_and_divide_the_time_of_the_steps(recorded, name):
    phases = recorded(name)
    found = kinds_of(phases)
    assert dict(found.select("kind", "count").iter_rows()) == KINDS[name]
    if KINDS[name]:
        assert found["time_ps"].sum() == pytest.approx(phases.steps.frame["dur_ps"].sum(), rel=0.01)
        assert (found["every_ps"] * found["count"]).max() <= phases.steps.wall.span_ps


def test_report_and_summary_have_the_kinds_of_steps(recorded):
    phases = recorded("evaluated_ppo")
    report, (acts, trains) = tp.report(phases), kinds_of(phases).rows()
    assert errors(report.content, SCHEMA) == []
    assert [each["kind"] for each in report.content["kinds"]] == [acts[0], trains[0]]
    assert "Kinds of steps\n  3.1 s (19 % of run time) a model in its mode to evaluate: 3, once in 1.2 s" in str(report)
    assert (
        "\nKinds of steps: a model in its mode to evaluate 3.1 s (19 % of run time), once in 1.2 s; train 1.3 s"
        in repr(tp.summary(phases))
    )
    assert "kinds" not in tp.report(recorded("evaluated_torch_loop")).content


def test_a_training_that_waits_for_a_queue_is_told_who_fills_it(recorded):
    judged = verdict(recorded("refuted_jax_waits_for_a_queue"))
    assert judged.cause == "T410"
    assert judged.sentence.startswith(
        "The training waited 2.6 s of 3.7 s (71 % of run time) for _produce in another thread:"
    )
    assert judged.action == "make what it waits for faster, or share its work among processes"
