"""Tuning: its values are parallel, give the same output, and leave nothing behind."""

from __future__ import annotations

import json
from itertools import islice

import numpy as np
import polars as pl
import pytest
from optional import lazy
from slow_jobs import SLEEP, TWO_READERS, at_hand, broken, counting, everything, job, little, reading, reused

from tpunb.checkpoint import checkpointing, checkpoints
from tpunb.cluster import phases
from tpunb.errors import TpunbError
from tpunb.testing import toy_steps
from tpunb.tfdata.graph import AUTOTUNE
from tpunb.tuning import stage_costs, tournament, trial, tuner
from tpunb.tuning.job import Job
from tpunb.tuning.pipeline import Pipeline
from tpunb.tuning.racing import RaceResult
from tpunb.tuning.results import Journal, Message, Speedup, Trial, Tuning, format_values
from tpunb.tuning.search import hill_climb
from tpunb.tuning.stage_costs import StageCost
from tpunb.tuning.tournament import Budget
from tpunb.tuning.trial import TrialResult, TrialRunner
from tpunb.tuning.tuner import Tuner, _budget, tune

tf = lazy("tensorflow")

CALLS = "map:1(fetched) parallel calls"


def elements(data):
    return [[part.numpy().tolist() for part in batch] for batch in data]


def won(pairs, narrow):
    """Run two pairs of trials, of which every candidate wins."""
    return RaceResult("faster", 2.0, 1.8, 2.2, len(list(islice(pairs, 2))))


def clear(patch):
    """Let steps wait for their data, and every candidate win its race, whatever the clock shows."""
    patch.setattr(tournament, "race", won)
    patch.setattr(tuner, "_bound", lambda default, model: None)
    patch.setattr(tuner, "stage_costs", lambda pipeline: (StageCost("map:1(fetched)", 0.016, 0.1),))
    patch.setattr(TrialRunner, "model_only_seconds", lambda runner: 0.001)


@pytest.fixture(scope="module", autouse=True)
def short_trials():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trial, "_SECONDS", 0.1)
        patch.setattr(trial, "_HICCUP", 600)
        yield


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    """Return a tuning of a job that waits, the job, its folder, and the state of its model before and after."""
    one, folder = Job(lambda: (little(), reading(n=240))), tmp_path_factory.mktemp("tuned")
    _ = one.training  # builds the optimizer, as the first step of fit does
    model = one.parts[0]
    before = everything(model)
    with pytest.MonkeyPatch.context() as patch:
        clear(patch)
        found = tune(one, budget=Budget(600, trials=4), folder=folder)
    return found, one, folder, before, everything(model)


@pytest.mark.live
def test_a_pipeline_that_waits_becomes_parallel(tuned):
    found, *_ = tuned
    assert found.best[CALLS] == AUTOTUNE or found.best[CALLS] > 1, [*map(str, found.messages)]
    assert 1 < found.speedup.low <= found.speedup.ratio <= found.speedup.high
    assert "same output" in str(found.messages[-1])


@pytest.mark.live
def test_its_output_is_the_same(tuned):
    found, one, *_ = tuned
    assert all(trial.equal for trial in found.trials)
    assert elements(found.apply(reading())) == elements(reading())
    with TrialRunner(one, sizes=(1, 3)) as runner:
        baseline = runner.calibrate()
        assert runner.trial(found.best).digest == baseline.digest


@pytest.mark.live
def test_nothing_is_left_of_it(tuned):
    _, one, _, before, after = tuned
    assert after == before
    tuned_losses = one.parts[0].fit(reading(), epochs=1, verbose=0).history["loss"]
    assert tuned_losses == little().fit(reading(), epochs=1, verbose=0).history["loss"]


@pytest.mark.live
def test_it_has_a_frame_and_code(tuned):
    found, *_ = tuned
    assert found.frame.height == len(found.trials)
    assert found.frame["verdict"][0] == "default"
    assert found.frame["values"][0] == "as written"
    assert found.frame.filter(pl.col("verdict") == "faster").height >= 1
    assert "ds.map(fetched, num_parallel_calls=" in found.as_code()
    assert repr(found).startswith(f"Tuning({len(found.trials)} trials, {found.speedup.brief}, ")
    assert found.seconds > 0


@pytest.mark.live
def test_it_is_read_again_from_its_folder(tuned):
    found, _, folder, *_ = tuned
    again = Tuning.read(folder)
    assert again.frame.equals(found.frame)
    assert again.messages == found.messages
    assert (again.best, again.speedup, again.code) == (found.best, found.speedup, found.code)
    assert repr(again) == repr(found)


@pytest.mark.live
def test_where_nothing_waits_it_stops_at_once(monkeypatch):
    monkeypatch.setattr(TrialRunner, "model_only_seconds", lambda runner: 600.0)
    found = tune(job(at_hand), budget=600)
    assert found.messages[1].code == "model-bound"
    assert [trial.verdict for trial in found.trials] == ["default"]
    assert found.best == {}
    data = at_hand()
    assert found.apply(data) is data
    assert found.as_code() == ""
    assert found.speedup == (1, 1, 1)


@pytest.mark.parametrize(
    ("step", "busy", "words"),
    [
        (0.011, 0.5, "Nothing to gain: a step takes 11 ms, the model alone 10 ms."),
        (0.030, 1.9, "Nothing to gain: a step takes 30 ms, and keeps 1.9 of 2 cores busy."),
        (0.030, 1.5, "None"),
    ],
)
def test_the_bound_of_a_step_is_reported(monkeypatch, step, busy, words):
    monkeypatch.setattr(tuner, "_CORES", 2)
    assert str(tuner._bound(TrialResult(step, "", 1.0, busy), 0.01)) == words


@pytest.mark.live
def test_the_seconds_needed_are_announced_and_a_smaller_budget_is_refused_at_once(capsys):
    found = tune(job(), budget=0.01)
    needs, refusal = found.messages
    assert capsys.readouterr().out == f"{needs}\n"
    assert str(needs).startswith("Tuning takes ")
    assert needs.facts["needed"] > 16 * 0.016, "sixteen readings for each of eight trials"
    assert str(refusal).startswith("Not tuned: the budget of 0.0 s is below the ")
    assert refusal.facts["needed"] == needs.facts["needed"]
    assert found.trials == ()


@pytest.mark.live
def test_a_budget_that_ends_before_the_first_race_is_reported(monkeypatch):
    monkeypatch.setattr(tuner, "least_seconds", lambda *seconds: -600.0)  # the first check passes
    found = tune(job(), search=hill_climb, budget=0.3)
    assert [message.code for message in found.messages] == ["needs", "budget too small"]
    assert found.messages[-1].facts["needed"] > 5 * 16 * 0.016, "five more trials"


@pytest.mark.live
def test_stages_that_cannot_be_timed_count_as_a_step(monkeypatch):
    clear(monkeypatch)
    monkeypatch.setattr(tuner, "stage_costs", lambda pipeline: [][0])
    costs = []

    def search(space):
        costs.extend(space.costs.stages)
        yield {CALLS: 4}

    found = tune(job(), search=search, budget=Budget(600, trials=2))
    assert found.best == {CALLS: 4}
    assert [cost.stage for cost in costs] == ["map:1(fetched)"]
    assert {cost.seconds for cost in costs} == {found.trials[0].seconds}
    message = next(message for message in found.messages if message.code == "stages unknown")
    assert str(message) == "The stages of the input could not be timed: IndexError: list index out of range."


@pytest.mark.live
def test_outputs_that_are_not_repeatable_are_reported(monkeypatch):
    monkeypatch.setattr(trial, "_FEWEST_EXECUTIONS", 20)  # longer than what has been read ahead
    found = tune(job(counting), budget=600)
    assert found.trials == ()
    assert "not deterministic" in str(found.messages[-1])
    assert repr(found) == "Tuning(0 trials, the values stay as they are)"


@pytest.mark.live
def test_values_whose_trial_fails_are_rejected_with_the_error(monkeypatch):
    monkeypatch.setattr(trial, "_FEWEST_EXECUTIONS", 30)  # longer than what has been read ahead
    monkeypatch.setattr(tuner, "_bound", lambda default, model: None)

    def search(_):
        yield TWO_READERS

    found = tune(job(broken), search=search, budget=600)
    assert found.best != TWO_READERS
    assert "no more than one reader" in found.rejected[format_values(TWO_READERS)]


@pytest.mark.live
def test_pipelines_that_cannot_be_rebuilt_are_not_tuned():
    generator = tf.random.Generator.from_seed(1)

    def data():
        return at_hand().map(lambda x, y: (x + generator.normal(()), y))

    found = tune(job(data), budget=5)
    assert found.trials == ()
    assert str(found.messages[0]).startswith(
        "Not tuned: map:3: it draws from a tf.random.Generator (use tf.random.stateless_*"
    )


@pytest.mark.live
def test_a_checkpoint_is_a_start(tmp_path, monkeypatch):
    def data():
        return reading(n=80).shuffle(3)

    with checkpointing(tmp_path, every=8):
        reused().fit(data(), epochs=1, verbose=0)
    clear(monkeypatch)
    saved = checkpoints(tmp_path)
    found = tune(job(data), start=saved[0], budget=Budget(600, trials=3))
    assert len(found.trials) <= 3
    assert all(trial.equal for trial in found.trials)
    assert found.trials[1].values.get(CALLS, 1) != 1


@pytest.mark.live
def test_it_may_be_stopped_between_trials(tmp_path):
    tuner = Tuner(job(), None, hill_climb, Budget(600), Journal(tmp_path))
    trials = tuner.trials()
    first = next(trials)
    trials.close()
    assert (first.number, first.verdict) == (0, "default")
    assert tuner.tuning.trials == (first,)
    assert tuner.tuning.messages[-1] == Message("stopped")
    assert Tuning.read(tmp_path).messages == tuner.tuning.messages


def test_an_interrupted_tuning_is_read_with_its_finished_trials(tmp_path):
    journal = Journal(tmp_path)
    journal.record(Trial(0, {}, "default", 0.5))
    journal.record(Trial(1, {CALLS: 8}, "faster", 0.25, 0, 2.0, 1.9, 2.1, 3, True))
    with (tmp_path / "tuning.jsonl").open("a") as file:
        file.write('{"trial": {"num')
    found = Tuning.read(tmp_path)
    assert found.trials[1].values == {CALLS: 8}
    assert found.best == {}
    assert [*map(str, found.messages)] == ["Interrupted after 2 trials: no values were chosen."]


def test_folders_without_a_tuning_raise(tmp_path):
    with pytest.raises(TpunbError, match="no tuning in"):
        Tuning.read(tmp_path)
    (tmp_path / "tuning.jsonl").write_text(json.dumps({"trial": {"warp": 9}}) + "\n")
    with pytest.raises(TpunbError, match="cannot be read"):
        Tuning.read(tmp_path)


def test_unknown_fields_are_null_in_the_frame():
    frame = Tuning((Trial(0, {"a": -1, "b": True}, "failed", error="no"),)).frame
    assert frame["values"].to_list() == ["a = AUTOTUNE, b = True"]
    assert frame["ratio"].to_list() == [None]
    assert Tuning(()).frame.height == 0
    assert repr(Tuning((), {"prefetch": 8}, Speedup(1.31, 1.27, 1.35))) == (
        "Tuning(0 trials, 1.31x [1.27, 1.35], {'prefetch': 8})"
    )


# ---- arguments


@pytest.mark.live
@pytest.mark.parametrize("data", [at_hand, lambda: (np.zeros((64, 4), "f"), np.zeros((64, 1), "f"))])
def test_a_model_and_its_data_are_tuned(data):
    model = reused()
    before = [weight.tolist() for weight in model.get_weights()]
    found = tune(model, data(), budget=Budget(600, trials=1))
    assert [trial.verdict for trial in found.trials] == ["default"]
    assert found.trials[0].equal
    assert [weight.tolist() for weight in model.get_weights()] == before


def test_data_of_a_model_alone_are_asked_for():
    with pytest.raises(TypeError, match="a model followed by its data"):
        tune(little())
    with pytest.raises(TypeError, match="data parameter"):
        tune(job(), at_hand())


def test_the_budget_is_a_part_of_the_run():
    run = phases(toy_steps("aaabbb"))
    assert _budget(None, run).seconds == pytest.approx(0.05 * 9e-3)
    assert _budget(None, None) == Budget(60)
    assert _budget(7, run) == Budget(7)
    assert _budget(Budget(7, 3), None) == Budget(7, 3)


@pytest.mark.parametrize(
    ("wrong", "kind", "words"),
    [
        ({"budget": 0}, ValueError, "budget parameter"),
        ({"budget": True}, ValueError, "budget parameter"),
        ({"phases": 3}, TypeError, "phases parameter"),
        ({"search": 3}, TypeError, "search parameter"),
        ({"start": 3}, TypeError, "start parameter"),
    ],
)
def test_wrong_arguments_raise(wrong, kind, words):
    with pytest.raises(kind, match=words):
        tune(job(), **wrong)


# ---- stage costs


def test_the_cost_of_a_stage_excludes_those_below(monkeypatch):
    measured = iter([(0.001, 0.0005), (0.021, 0.0025)])  # seconds, and of the processors: to the range, to the map
    monkeypatch.setattr(stage_costs, "_measured", lambda dataset, needed: next(measured))
    below, stage = stage_costs.stage_costs(Pipeline(reading()))
    assert (below.stage, below.seconds, below.busy, below.waits) == ("range:0", 0.001, 0.5, False)
    assert (stage.stage, stage.waits) == ("map:1(fetched)", True)
    assert (stage.seconds, stage.busy) == pytest.approx((0.02, 0.1))


@pytest.mark.live
def test_a_stage_is_measured_for_all_elements_of_a_batch():
    below, stage = stage_costs.stage_costs(Pipeline(reading(batch=4)))
    assert below.seconds + stage.seconds >= 3 * SLEEP, "four readings, of which one may have begun before"


def test_stages_of_all_kinds_have_costs():
    def rows():
        return tf.data.Dataset.range(50)

    data = tf.data.Dataset.zip(
        rows().map(lambda x: x + 1, num_parallel_calls=4).shuffle(40).prefetch(8),
        rows().interleave(lambda x: tf.data.Dataset.range(x, x + 3), cycle_length=2).filter(lambda x: x % 2 == 0),
    ).batch(5)
    costs = stage_costs.stage_costs(Pipeline(data))
    assert [cost.stage.split(":")[0] for cost in costs] == ["1/range", "1/map", "2/range", "2/interleave", "2/filter"]
    assert all(cost.seconds >= 0 for cost in costs)
    assert [cost.certain for cost in costs] == [True, True, False, False, True], "an interleave makes many of one"
    assert stage_costs.stage_costs(Pipeline(tf.data.Dataset.range(0).map(lambda x: x)))[0].seconds == 0


@pytest.mark.live
def test_functions_that_are_not_safe_in_parallel_are_named():
    rows = iter(range(100_000))

    def draw(i):
        return np.full(4, next(rows), "f")

    def data():
        read = tf.data.Dataset.range(64).map(lambda i: tf.ensure_shape(tf.numpy_function(draw, [i], tf.float32), [4]))
        return read.map(lambda x: (x, x[:1])).batch(4)

    found = tune(job(data), budget=5)
    assert str(found.messages[0]) == "Not safe in parallel: map:1 calls draw, which draws from the iterator 'rows'."
    assert found.best == {}
