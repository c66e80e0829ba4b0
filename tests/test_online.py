"""Tuning while it runs: the fit goes on with other values, and everything that comes out is what it would have been."""

from __future__ import annotations

import random
import re
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
from forced_tuning import Lost, Won, force
from optional import lazy
from resumed_fits import FITS, cell
from slow_jobs import at_hand, reading, reused

import tpunb as tp
from tpunb.checkpoint import checkpointing, checkpoints
from tpunb.checkpoint.resume import resume
from tpunb.profiler.capture import Schedule
from tpunb.tfdata import position, rewrite
from tpunb.training import keras_hooks
from tpunb.tuning import live, online
from tpunb.tuning.model_based import model_based
from tpunb.tuning.online import tuned
from tpunb.tuning.pipeline import Pipeline
from tpunb.tuning.results import Tuning
from tpunb.tuning.search import StepCosts
from tpunb.tuning.stage_costs import StageCost

keras, tf = lazy("keras"), lazy("tensorflow")

pytestmark = pytest.mark.live

CALLS = "map:1(fetched) parallel calls"


class Idle:
    """A listener that does nothing: fits are hooked, and their shuffles get seeds."""

    def on_data(self, fit, data):
        return data

    def on_begin(self, fit):
        pass

    def on_end(self, fit, place, *, kept=None):
        """Do nothing."""

    def on_step(self, fit, *, repeated):
        pass

    def note_total(self, kind, counts):
        pass


@pytest.fixture(autouse=True)
def the_same_seeds(monkeypatch):
    """Shuffles without a seed get the same in every run; TensorFlow's global seed is unset, as in a new process."""
    monkeypatch.setattr(
        position, "present_seeds", lambda graph: [77 + i for i in range(len(rewrite.unseeded_shuffles(graph)))]
    )
    tf.random.set_seed(None)


@pytest.fixture
def at(monkeypatch):
    """Let a fit be tuned at a step, whatever it gains."""
    return lambda step, race=Won: force(monkeypatch, step, race)


def seen(name):
    keras.utils.set_random_seed(3)
    tf.random.set_seed(None)
    return cell(name)


@cache
def untuned(name):
    with keras_hooks.listening(Idle()):
        return seen(name)


QUICK = {  # where 12 steps are an epoch, but 10 of "repeated": at the edge of one, the next step is waited for
    "shuffled": (11,),  # what is read ahead has come to the end of the epoch already
    "repeated": (10,),
    "unknown length": (5,),
    "several a turn": (12,),
}
EVERY = [
    (name, step, race)
    for name, (data, _) in FITS.items()
    if data is not None and name != "by index"  # those are no pipelines
    for race, steps in ((Won, (5, 10, 11, 12, 17)), (Lost, (5, 11, 12)))
    for step in steps
]


def comes_out_the_same(name, step, at, race=Won):
    at(step, race)
    with tuned(budget=1e6) as found:
        result = seen(name)
    assert found.tuning is not None, sentences(found)
    trials = found.tuning.trials[1:]
    assert all(trial.equal and trial.values for trial in trials), sentences(found)
    assert trials or found.messages[-1].code == "fit ends", "its end came within the race"
    assert found.values == found.tuning.best == (dict(trials[0].values) if race is Won else {})
    assert result == untuned(name)


@pytest.mark.parametrize(("name", "step"), [(name, step) for name, steps in QUICK.items() for step in steps])
def test_the_output_is_the_same(name, step, at):
    comes_out_the_same(name, step, at)


@pytest.mark.parametrize("name", ["shuffled", "unknown length"])
def test_the_output_is_the_same_while_values_alternate(name, at):
    comes_out_the_same(name, 5, at, Lost)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "step", "race"), EVERY)
def test_the_output_is_the_same_at_every_step(name, step, race, at):
    comes_out_the_same(name, step, at, race)


def sentences(found):
    return [*map(str, found.messages)]


def fitted(data, *, epochs=2, **more):
    """Return the weights and losses of a fit."""
    model = reused()
    tf.random.set_seed(None)  # which `reused` set: it goes into the seeds of shuffles
    losses = model.fit(data, epochs=epochs, verbose=0, **more).history["loss"]
    return [weight.tolist() for weight in model.get_weights()], losses


@pytest.fixture(scope="module")
def plain():
    """What a fit of the data at hand comes to without tuning."""
    return fitted(at_hand())


def test_faster_values_take_over(tmp_path, at, monkeypatch):
    at(20)
    costs = StepCosts(0.001, (StageCost("map:1(fetched)", 0.016, 0.1),))
    monkeypatch.setattr(live.LiveTuning, "_costs", lambda tuning, reference: costs)
    monkeypatch.setattr(online, "model_based", model_based)
    with tuned(budget=600, folder=tmp_path) as found:
        result = fitted(reading(n=480), epochs=1)
    assert found.tuning.best.get(CALLS, 1) != 1, [sentences(found), found.tuning.frame.to_dicts()]
    assert found.tuning.speedup.low > 1
    assert Tuning.read(tmp_path).best == found.tuning.best
    assert result == fitted(reading(n=480), epochs=1)
    assert found.seconds > 0
    assert repr(found).startswith(f"Online({len(found.tuning.trials)} trials, ")
    assert CALLS in repr(found)
    assert re.match(r"Tuned: about [\d.]+ s → [\d.]+ s, tuning included; steps .* output equal: ", found.headline)
    assert CALLS in found.headline
    (facts,) = found.facts
    assert facts.startswith(f"tuning: {len(found.tuning.trials)} trials, ")


def test_a_later_fit_of_the_same_data_is_unchanged(at):
    def two():
        data = at_hand().shuffle(40, seed=4)
        return [fitted(data, epochs=2), fitted(data, epochs=1)]

    plain = two()
    at(5)
    with tuned(budget=1e6) as found:
        assert two() == plain
    assert found.tuning.best


def test_random_numbers_are_what_they_would_be(at):
    def after():
        data, model = at_hand(), reused()
        keras.utils.set_random_seed(9)
        model.fit(data, verbose=0)
        return (
            random.random(),
            np.random.random(),
            float(tf.random.uniform(())),
            keras.random.uniform((2,)).numpy().tolist(),
        )

    plain = after()
    at(5)
    with tuned(budget=1e6) as found:
        assert after() == plain
    assert found.tuning.best


def test_callbacks_see_no_trial(at):
    heard = []

    class Hears(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            heard.append((batch, int(self.model.optimizer.iterations), logs["loss"]))

    def fit():
        heard.clear()
        fitted(at_hand(), callbacks=[Hears()])
        return list(heard)

    plain = fit()
    at(5)
    with tuned(budget=1e6) as found:
        assert fit() == plain
    assert found.tuning.best


def breaking(error):
    def search(space):
        raise error
        yield

    return search


def test_an_error_in_tuning_does_not_affect_the_fit(at, plain):
    at(5)
    with tuned(budget=1e6, search=breaking(ValueError("ours"))) as found:
        assert fitted(at_hand()) == plain
    assert str(found.messages[-1]) == "Tuning ended with an error, and training continued unchanged: ValueError: ours."
    assert found.values == {}
    assert found.headline.endswith(str(found.messages[-1]))


def test_data_that_cannot_be_rebuilt_stay_as_they_are(at, plain, monkeypatch):
    def fails(pipeline, values):
        raise RuntimeError("ours")

    at(5)
    monkeypatch.setattr(Pipeline, "in_place", fails)
    with tuned(budget=1e6) as found:
        assert fitted(at_hand()) == plain
    assert sentences(found) == ["Not tuned: RuntimeError: ours."]


def test_an_interrupt_ends_the_fit_as_it_does(at):
    at(5)
    model = reused()
    with tuned(budget=1e6, search=breaking(KeyboardInterrupt())), pytest.raises(KeyboardInterrupt):
        model.fit(at_hand(), verbose=0)
    assert int(model.optimizer.iterations) == 5
    interrupted = model.get_weights()
    reused().fit(at_hand().take(5), verbose=0)
    for one, same in zip(interrupted, model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, same)


# ---- where nothing is tried


def test_a_budget_that_is_too_small_is_not_spent():
    with tuned(budget=0.01) as found:
        fitted(reading(n=160), epochs=1)
    assert found.tuning is None
    (sentence,) = sentences(found)
    assert "Not tuned: the budget of 0.0 s is below the " in sentence
    assert "--tune-budget" in sentence
    assert repr(found).startswith("Online(nothing was tried, ")
    assert found.headline == f"Tuning changed nothing. {sentence}"
    assert found.facts == []


def test_the_seconds_needed_are_stated_before_they_are_spent(at):
    at(5)
    with tuned(budget=1e6) as found:
        fitted(at_hand())
    assert (
        sentences(found)[0]
        == f"Tuning takes {found.messages[0].facts['needed']:.1f} s at least, and 1000000.0 s at most."
    )


def test_seconds_are_saved_by_steps_after_the_change(monkeypatch):
    clock = iter([1, 3, 5, 6, 7])
    monkeypatch.setattr(live, "time", SimpleNamespace(perf_counter=lambda: next(clock), process_time=lambda: 0.0))
    timer = live.StepTimer()
    for step in (1, 2, 3):
        timer.record(step, within_epoch=True)
    assert timer.step == 2
    timer.swap()
    timer.record(4, within_epoch=True)
    timer.record(5, within_epoch=True)
    assert timer.saved == 2


def test_a_short_fit_is_not_tuned():
    with tuned(budget=1e6) as found:
        fitted(reading(n=4 * 40), epochs=1)
    assert sentences(found)[0].startswith("Not tuned: the rest of the fit takes")
    with tuned(budget=1e6) as found:
        fitted(reading(n=8), epochs=1)
    assert sentences(found) == ["Not tuned: the fit ended before its steps were measured."]
    with tuned() as found:
        pass
    assert (found.messages, found.tuning) == ([], None)


def with_variable():
    factor = tf.Variable(1.0)
    return at_hand().map(lambda x, y: (x * factor, y))


def generated():
    spec = (tf.TensorSpec((4,)), tf.TensorSpec((1,)))
    rows = [(np.ones(4, "f"), np.ones(1, "f"))] * 64
    return tf.data.Dataset.from_generator(lambda: iter(rows), output_signature=spec).batch(4)


def drawn_from_an_iterator():
    rows = iter(range(1000))

    def draw(i):
        return np.full(4, next(rows), "f")

    read = tf.data.Dataset.range(64).map(lambda i: tf.ensure_shape(tf.numpy_function(draw, [i], tf.float32), [4]))
    return read.map(lambda x: (x, x[:1])).batch(4)


STAYS = {
    "map:1 calls draw, which draws from the iterator 'rows'": drawn_from_an_iterator,
    "not a tf.data.Dataset": lambda: (np.ones((64, 4), "f"), np.ones((64, 1), "f")),
    "a function reads a variable": with_variable,
    "draws random numbers": lambda: at_hand().map(lambda x, y: (x + tf.random.uniform((), seed=1), y)),
    "a Python generator feeds it": generated,
    "concatenate:4 reads a shuffle": lambda: at_hand().concatenate(at_hand().shuffle(3, seed=1)),
    "cache:4 keeps the elements of the first epoch": lambda: at_hand().shuffle(9, seed=1).cache(),
}


def test_data_whose_position_cannot_be_moved_stay_as_they_are(at):
    at(5)
    wrong = {}
    for why, make in STAYS.items():
        data = make()
        x, y = data if isinstance(data, tuple) else (data, None)
        with tuned(budget=1e6) as found:
            reused().fit(x, y, batch_size=4 if y is not None else None, epochs=2, verbose=0)
        sentence = sentences(found)[0]
        if found.tuning is not None or not sentence.startswith("Not tuned: ") or why not in sentence:
            wrong[why] = sentences(found)
    assert not wrong


def unseeded():
    return at_hand().shuffle(20)  # with a seed it might have been begun elsewhere


@pytest.mark.parametrize("race", [Won, Lost])
@pytest.mark.parametrize("step", [5, 19])  # an epoch has 16
def test_a_fit_that_is_saved_too_is_tuned_and_its_checkpoints_stay_exact(step, race, at, tmp_path):
    with keras_hooks.listening(Idle()):
        plain = fitted(unseeded())
    at(step, race)
    with tuned(budget=1e6) as found, checkpointing(tmp_path, every=3):
        assert fitted(unseeded()) == plain
    assert found.tuning.trials[1].equal, sentences(found)
    assert bool(found.tuning.best) is (race is Won)
    saved = checkpoints(tmp_path)
    assert len(saved) == 10
    assert all(one.exact for one in saved)
    for one in saved[1], saved[4], saved[-1]:  # the first may be before the change
        with resume(one) as resumed:
            assert fitted(unseeded())[0] == plain[0]
        assert str(resumed).startswith("resumed exactly"), resumed


@pytest.mark.slow
@pytest.mark.parametrize(("step", "race"), [(5, Won), (17, Lost)])
@pytest.mark.parametrize("name", sorted({name for name, *_ in EVERY}))
def test_saved_fits_resume_from_every_checkpoint(name, step, race, at, tmp_path):
    with checkpointing(tmp_path / "plain"):
        plain = seen(name)
    at(step, race)
    with tuned(budget=1e6), checkpointing(tmp_path / "tuned", every=5):
        assert seen(name) == plain
    for one in checkpoints(tmp_path / "tuned"):
        with resume(one) as resumed:
            assert seen(name)["state"] == plain["state"]
        assert one.exact
        assert str(resumed).startswith("resumed exactly"), resumed


def test_a_resumed_fit_is_tuned_too(at, tmp_path):
    with checkpointing(tmp_path, every=4):
        plain = fitted(unseeded())
    for at_step, one in [(2, checkpoints(tmp_path)[0]), (2, checkpoints(tmp_path)[5])]:
        at(at_step)
        with tuned(budget=1e6) as found, resume(one):
            assert fitted(unseeded())[0] == plain[0]
        assert found.tuning.best, sentences(found)


@pytest.mark.parametrize(
    ("wrong", "kind", "words"),
    [
        ({"budget": 0}, ValueError, "budget parameter of tuned"),
        ({"budget": True}, ValueError, "budget parameter of tuned"),
        ({"search": 3}, TypeError, "search parameter of tuned"),
    ],
)
def test_wrong_arguments_raise(wrong, kind, words):
    with pytest.raises(kind, match=words), tuned(**wrong):
        pass


def test_under_a_capture_the_tuning_is_an_account_and_no_step(at):
    at(5)
    with tp.capture(schedule=Schedule.ticks()) as run, tuned(budget=1e6, run=run):
        fitted(at_hand())
    steps = tp.load(run).stored
    assert steps.frame["kind"].to_list() == ["train"] * 32
    assert steps.frame["step"].to_list() == [*range(32)]
    first, *_ = steps.wall.spans.filter(account="tuning").select("start_ps", "dur_ps").rows()
    before, after = steps.frame["start_ps"][4], steps.frame["start_ps"][5]
    assert before < first[0] < sum(first) <= after


def shuffled_by_a_seed():
    return reading(n=64).unbatch().shuffle(16, seed=3).batch(4)


def test_a_shuffle_that_began_earlier_continues(at):
    at(5)

    def run(*, tune):
        data = shuffled_by_a_seed()
        next(iter(data))  # a look at the first batch
        if not tune:
            return fitted(data), fitted(data)
        with tuned(budget=1e6) as found:
            first = fitted(data)
        assert found.values
        return first, fitted(data)  # and a second fit on the same data

    assert run(tune=True) == run(tune=False)


@pytest.mark.parametrize("also", [False, True])
def test_a_seeded_shuffle_is_not_rebuilt_while_its_fit_is_saved(tmp_path, at, also):
    def data():
        return shuffled_by_a_seed().shuffle(2) if also else shuffled_by_a_seed()  # one without a seed above it

    with keras_hooks.listening(Idle()):
        plain = fitted(data())
    at(5)
    with checkpointing(tmp_path), tuned(budget=1e6) as found:
        result = fitted(data())
    assert "how often its shuffle was started is unknown" in sentences(found)[0]
    assert result == plain


def test_what_a_cache_keeps_is_not_made_anew(at):
    at(5)
    calls = []

    def fetch(i):
        calls.append(i)
        return np.full(4, i, "f")

    rows = tf.data.Dataset.range(64).map(lambda i: tf.ensure_shape(tf.numpy_function(fetch, [i], tf.float32), [4]))
    with tuned(budget=1e6) as found:
        fitted(rows.cache().map(lambda x: (x, x[:1])).batch(4))
    assert "keeps the elements of the first epoch" in sentences(found)[0]
    assert len(calls) == 64


def drawing():
    class Random(keras.layers.Layer):
        """Draws by an operation of TensorFlow's that keeps its own state."""

        def call(self, x, training=False):
            return x + tf.random.normal(tf.shape(x)) if training else x

    keras.utils.set_random_seed(5)
    model = keras.Sequential([keras.Input((4,)), Random(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def test_a_model_with_random_numbers_of_its_own_is_tuned(at):
    def run():
        model = drawing()
        tf.random.set_seed(11)
        return model.fit(reading(n=64), epochs=2, verbose=0).history["loss"]

    at(5)
    with tuned(budget=1e6) as found:
        result = run()
    assert found.values
    assert result == run()


def test_a_model_without_an_optimizer_is_fitted():
    class Still(keras.Model):
        def call(self, x):
            return x

        def train_step(self, data):
            return {"loss": tf.reduce_sum(data[0])}

    model = Still()
    model.compile(optimizer=None)
    with tuned(budget=1e6):
        model.fit(at_hand(), verbose=0)
