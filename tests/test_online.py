"""Tuning while it runs: the fit goes on with other values, and everything that comes out is what it would have been."""

from __future__ import annotations

import random

import numpy as np
import pytest
from resumed_fits import FITS, cell
from slow_jobs import at_hand, little, reading

import tpunb as tp
from tpunb.checkpoint import checkpoints
from tpunb.recorder import Schedule
from tpunb.resuming import checkpointing, datasets, keras_fit, resume
from tpunb.tuning import online, trial
from tpunb.tuning.nouns import Speedup, Trial, Tuning
from tpunb.tuning.online import tuned
from tpunb.tuning.pipeline import Pipeline
from tpunb.tuning.trial import Track

tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")

CALLS = "map:1(fetched) parallel calls"


class Idle:
    """A listener that does nothing: fits are hooked, and their shuffles get seeds."""

    def taken(self, fit, data):
        return data

    def begun(self, fit):
        pass

    def stepped(self, fit, *, anew):
        pass


class Chosen:
    """A tuner that runs a trial of the present values and one of others, and chooses these whatever they gain."""

    def __init__(self, job, start, search, budget, journal):
        self.job, self.start, self.said, self.tuning = job, start, [], Tuning(())

    def trials(self):
        knobs = [knob for knob in self.job.pipeline.knobs if knob.verdict != "refused"]
        values = {knob.name: other(knob) for knob in knobs if not knob.name.endswith((" order", " cached"))}
        with Track(self.job, self.start, warm=1, window=4) as track:
            assert track.run({}).digest == track.run(values).digest
            yield Trial(0, {}, "default", 1.0)
        self.tuning = Tuning((), values, Speedup(2.0, 1.5, 3.0), tuple(self.said))


def other(knob):
    return next(value for value in reversed(knob.domain) if value != knob.present)


@pytest.fixture(autouse=True)
def the_same_seeds(monkeypatch):
    """Shuffles without a seed get the same in every run; TensorFlow's global seed is unset, as in a new process."""
    monkeypatch.setattr(datasets, "draw_seeds", lambda graph: [77 + i for i in range(len(datasets.unseeded(graph)))])
    tf.random.set_seed(None)


@pytest.fixture
def at(monkeypatch):
    """Let a fit be tuned by `Chosen` at a step."""

    def after(step):
        monkeypatch.setattr(online, "_SECONDS", 0.0)
        monkeypatch.setattr(online, "_FIRST", step)
        monkeypatch.setattr(online, "Tuner", Chosen)
        monkeypatch.setattr(online._Tunable, "rest", lambda fit, step: 1e6)  # as if it paid

    return after


def seen(name):
    keras.utils.set_random_seed(3)
    tf.random.set_seed(None)
    return cell(name)


def untuned(name):
    with keras_fit.listening(Idle()):
        return seen(name)


QUICK = {  # where 12 steps are an epoch, but 10 of "repeated": at the edge of one, the next step is waited for
    "shuffled": (11,),  # what is read ahead has come to the end of the epoch already
    "repeated": (10,),
    "unknown length": (5,),
    "several a turn": (12,),
}
EVERY = [(name, step) for name, (data, _) in FITS.items() if data is not None for step in (5, 10, 11, 12, 17)]


def comes_out_the_same(name, step, at):
    at(step)
    with tuned(budget=1e6) as found:
        told = seen(name)
    assert found.tuning is not None, found.said
    assert found.values == found.tuning.best != {}
    assert told == untuned(name)


@pytest.mark.parametrize(("name", "step"), [(name, step) for name, steps in QUICK.items() for step in steps])
def test_what_comes_out_is_what_it_would_have_been(name, step, at):
    comes_out_the_same(name, step, at)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "step"), EVERY)
def test_so_it_is_wherever_it_is_tuned(name, step, at):
    comes_out_the_same(name, step, at)


def fitted(data, *, epochs=2, model=None, **more):
    """Return the weights and losses of a fit."""
    model = model or little()
    tf.random.set_seed(None)  # which `little` set: it goes into the seeds of shuffles
    losses = model.fit(data, epochs=epochs, verbose=0, **more).history["loss"]
    return [weight.tolist() for weight in model.get_weights()], losses


def test_values_that_are_shown_to_be_faster_are_taken_over(tmp_path, monkeypatch):
    monkeypatch.setattr(trial, "_SECONDS", 0.1)
    with tuned(budget=30, folder=tmp_path) as found:
        told = fitted(reading(n=400), epochs=3)
    assert found.tuning.best[CALLS] != 1, found.said
    assert found.tuning.speedup.low > 1
    assert Tuning.read(tmp_path).best == found.tuning.best
    assert told == fitted(reading(n=400), epochs=3)
    assert found.seconds > 0
    assert repr(found).startswith(f"Online({len(found.tuning.trials)} trials, ")
    assert CALLS in repr(found)
    chosen, whole = found.facts
    assert CALLS in chosen
    assert "in all, tuning included; at the pace before: about" in whole


def test_a_later_fit_of_the_same_data_goes_on_as_it_would(at):
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
        data, model = at_hand(), little()
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


def test_callbacks_hear_of_no_trial(at):
    heard = []

    class Hears(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            heard.append((batch, int(self.model.optimizer.iterations), logs["loss"]))

    def fit():
        heard.clear()
        fitted(at_hand(n=64), callbacks=[Hears()])
        return list(heard)

    plain = fit()
    at(5)
    with tuned(budget=1e6) as found:
        assert fit() == plain
    assert found.tuning.best


def breaking(error):
    class Breaks(Chosen):
        def trials(self):
            yield from super().trials()
            with Track(self.job, self.start, warm=1, window=2) as track:
                track.run({})
                raise error

    return Breaks


def test_what_goes_wrong_in_tuning_leaves_the_fit_alone(at, monkeypatch):
    plain = fitted(at_hand())
    at(5)
    monkeypatch.setattr(online, "Tuner", breaking(ValueError("ours")))
    with tuned(budget=1e6) as found:
        assert fitted(at_hand()) == plain
    assert found.said[-1] == "Tuning ended early, and the training went on as it was: ValueError: ours."
    assert found.values == {}
    assert found.facts[-1].endswith(found.said[-1])


def test_data_that_cannot_be_rebuilt_for_whatever_reason_stay_as_they_are(at, monkeypatch):
    def fails(pipeline, values):
        raise RuntimeError("ours")

    plain = fitted(at_hand())
    at(5)
    monkeypatch.setattr(Pipeline, "in_place", fails)
    with tuned(budget=1e6) as found:
        assert fitted(at_hand()) == plain
    assert found.said == ["Nothing was tried: RuntimeError: ours."]


def test_an_interrupt_ends_the_fit_as_it_does(at, monkeypatch):
    at(5)
    monkeypatch.setattr(online, "Tuner", breaking(KeyboardInterrupt()))
    model = little()
    with tuned(budget=1e6), pytest.raises(KeyboardInterrupt):
        model.fit(at_hand(), verbose=0)
    assert int(model.optimizer.iterations) == 5
    other = little()
    other.fit(at_hand().take(5), verbose=0)
    for one, same in zip(model.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(one, same)


# ---- where nothing is tried


def test_too_little_a_budget_is_told_before_it_is_spent():
    class Ends(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = batch >= 150

    with tuned() as found:
        fitted(reading(n=640), epochs=12, callbacks=[Ends()])
    assert found.tuning is None
    assert "5% of the run" in found.said[0], found.said
    assert "is too little" in found.said[0]
    assert "--tune-budget" in found.said[0]
    assert repr(found).startswith("Online(nothing was tried, ")
    assert found.facts == [f"tuning while it ran: {found.said[0]}"]


def test_what_hardly_lasts_is_left_alone(monkeypatch):
    monkeypatch.setattr(online, "_SECONDS", 0.0)
    with tuned(budget=1e6) as found:
        fitted(reading(n=4 * 40), epochs=1)
    assert found.said[0].startswith("Nothing was tried: what is left of the fit takes")
    with tuned(budget=1e6) as found:
        fitted(reading(n=8), epochs=1)
    assert found.said == ["Nothing was tried: the fit was over before."]
    with tuned() as found:
        pass
    assert (found.said, found.tuning) == ([], None)


def with_variable():
    factor = tf.Variable(1.0)
    return at_hand().map(lambda x, y: (x * factor, y))


def generated():
    spec = (tf.TensorSpec((4,)), tf.TensorSpec((1,)))
    rows = [(np.ones(4, "f"), np.ones(1, "f"))] * 64
    return tf.data.Dataset.from_generator(lambda: iter(rows), output_signature=spec).batch(4)


STAYS = {
    "no tf.data.Dataset": lambda: (np.ones((64, 4), "f"), np.ones((64, 1), "f")),
    "a function reads a variable": with_variable,
    "draws random numbers": lambda: at_hand().map(lambda x, y: (x + tf.random.uniform((), seed=1), y)),
    "a Python generator feeds it": generated,
    "concatenate:4 stands above a shuffle": lambda: at_hand().concatenate(at_hand().shuffle(3, seed=1)),
    "cache:4 keeps what the first epoch made": lambda: at_hand().shuffle(9, seed=1).cache(),
}


@pytest.mark.parametrize("why", STAYS)
def test_what_cannot_be_moved_in_its_midst_stays_as_it_is(why, at):
    at(5)
    data = STAYS[why]()
    x, y = data if isinstance(data, tuple) else (data, None)
    with tuned(budget=1e6) as found:
        little().fit(x, y, batch_size=4 if y is not None else None, epochs=2, verbose=0)
    assert found.tuning is None
    assert found.said[0].startswith("Nothing was tried: ")
    assert why in found.said[0]


def test_beside_checkpoints_the_place_is_reached_by_drawing(at, tmp_path):
    def data():
        return at_hand().shuffle(20)  # with a seed it might have been begun elsewhere

    with keras_fit.listening(Idle()):
        plain = fitted(data())
    at(5)
    with tuned(budget=1e6) as found, checkpointing(tmp_path, every=4):
        assert fitted(data()) == plain
    assert found.tuning.best
    saved = checkpoints(tmp_path)
    assert [one.exact for one in saved] == [True] + [False] * 7
    assert saved[1].why == "the pipeline was tuned in the midst of the fit"
    with resume(saved[1], exact=False):
        assert fitted(data())[0] == plain[0]


def test_a_resumed_fit_is_tuned_too(at, tmp_path):
    plain = fitted(at_hand())
    with checkpointing(tmp_path, every=4):
        fitted(at_hand())
    at(5)
    with tuned(budget=1e6) as found, resume(checkpoints(tmp_path)[0]):
        assert fitted(at_hand())[0] == plain[0]
    assert found.tuning.best


@pytest.mark.parametrize(
    ("wrong", "kind", "words"),
    [
        ({"budget": 0}, ValueError, "budget parameter of tuned"),
        ({"budget": True}, ValueError, "budget parameter of tuned"),
        ({"search": 3}, TypeError, "search parameter of tuned"),
    ],
)
def test_wrong_arguments_are_told(wrong, kind, words):
    with pytest.raises(kind, match=words), tuned(**wrong):
        pass


def test_under_a_capture_the_tuning_is_a_step_of_its_own(at):
    at(5)
    with tp.capture(schedule=Schedule.ticks()) as run, tuned(budget=1e6, run=run) as found:
        found._is_hot = lambda now: True
        fitted(at_hand())
    marks = tp.load(run).stored.frame.sort("step")["mark"].to_list()
    assert marks == ["train"] * 5 + ["tune"] + ["train"] * 27


def test_a_capture_tells_when_the_hot_phase_runs(monkeypatch):
    monkeypatch.setattr(online, "Tuner", Chosen)
    with tp.capture(schedule=Schedule.fixed(0.3, 0.4)) as run, tuned(budget=30, run=run) as found:
        fitted(reading(n=400), epochs=5)
    assert found.tuning is not None, found.said
    assert found.tuning.best
    (said,) = [said for said in found.tuning.said if said.startswith("Phase ")]
    assert "is worth tuning" in said


def shuffled_by_a_seed():
    return reading(n=64).unbatch().shuffle(16, seed=3).batch(4)


def test_a_shuffle_that_was_begun_before_goes_on_from_there(at):
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
def test_a_shuffle_with_a_seed_is_left_alone_while_its_fit_is_saved(tmp_path, at, also):
    def data():
        return shuffled_by_a_seed().shuffle(2) if also else shuffled_by_a_seed()  # one without a seed above it

    with keras_fit.listening(Idle()):
        plain = fitted(data())
    at(5)
    with checkpointing(tmp_path), tuned(budget=1e6) as found:
        told = fitted(data())
    assert "how often its shuffle was begun is not known" in found.said[0]
    assert told == plain


def test_what_a_cache_keeps_is_not_made_anew(at):
    at(5)
    calls = []

    def fetch(i):
        calls.append(i)
        return np.full(4, i, "f")

    rows = tf.data.Dataset.range(64).map(lambda i: tf.ensure_shape(tf.numpy_function(fetch, [i], tf.float32), [4]))
    with tuned(budget=1e6) as found:
        fitted(rows.cache().map(lambda x: (x, x[:1])).batch(4))
    assert "keeps what the first epoch made" in found.said[0]
    assert len(calls) == 64


class Random(keras.layers.Layer):
    """Draws by an operation of TensorFlow's that keeps its own state."""

    def call(self, x, training=False):
        return x + tf.random.normal(tf.shape(x)) if training else x


def drawing():
    keras.utils.set_random_seed(5)
    model = keras.Sequential([keras.Input((4,)), Random(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def test_a_model_that_draws_by_itself_is_left_alone(at):
    def run():
        model = drawing()
        tf.random.set_seed(11)
        return model.fit(reading(n=64), epochs=2, verbose=0).history["loss"]

    at(5)
    with tuned(budget=1e6) as found:
        told = run()
    assert found.values == {}
    assert told == run()


def test_a_model_without_an_optimizer_is_fitted_all_the_same():
    class Still(keras.Model):
        def call(self, x):
            return x

        def train_step(self, data):
            return {"loss": tf.reduce_sum(data[0])}

    model = Still()
    model.compile(optimizer=None)
    with tuned(budget=1e6):
        model.fit(at_hand(), verbose=0)
