"""Marking: every step gets a number and a time of our own clock, Keras batches without a changed line."""

import time
import warnings
from contextlib import contextmanager

import pytest

from tpunb.marking import StepClock, keras_about, keras_marks


class Marks(list):
    """What a framework would have been told: ("+", mark, step) at a begin, ("-", ...) at an end."""

    @contextmanager
    def __call__(self, mark, step):
        self.append(("+", mark, step))
        yield
        self.append(("-", mark, step))


@pytest.fixture
def marks():
    return Marks()


@pytest.fixture
def clock(marks):
    return StepClock(marks)


def steps_of(clock):
    return [(tick.step, tick.mark) for tick in clock.take()]


def test_a_step_lasts_until_the_next_begins(clock, marks):
    clock.begin("train")
    clock.begin("train")
    clock.end()
    first, second = clock.take()
    assert (first.step, second.step) == (0, 1)
    assert first.end_ns <= second.start_ns <= second.end_ns
    assert marks == [("+", "train", 0), ("-", "train", 0), ("+", "train", 1), ("-", "train", 1)]


def test_the_times_are_those_of_the_wall(clock):
    before = time.time_ns()
    clock.begin("train")
    clock.end()
    (tick,) = clock.take()
    assert before <= tick.start_ns <= tick.end_ns <= time.time_ns()


def test_steps_may_bring_their_own_rising_numbers(clock):
    for number in (10, 20, 30):
        clock.begin("train", step=number)
    clock.end()
    assert [step for step, _ in steps_of(clock)] == [10, 20, 30]


def test_a_number_that_was_used_is_replaced_and_told_once(clock):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for number in (0, 1, 0, 1):  # two epochs that both count from 0
            clock.begin("train", step=number)
        clock.end()
    assert [step for step, _ in steps_of(clock)] == [0, 1, 2, 3]
    assert [str(warning.message) for warning in told] == ["step 0 is not above the last; steps are numbered on from 2"]


def test_a_step_that_never_did_its_work_is_given_to_the_one_before(clock):
    for finishes in (True, True, False):  # Keras begins one more at the end of data of unknown length
        clock.begin("train", complete=False)
        if finishes:
            clock.finished()
    clock.begin("test", complete=False)
    clock.finished()
    clock.end()
    assert steps_of(clock) == [(0, "train"), (1, "train"), (1, "train"), (2, "test")]


def test_what_an_exception_cut_short_is_no_step(clock, marks):
    clock.begin("train", complete=False)
    clock.finished()
    clock.begin("train", complete=False)
    clock.abandon()
    assert steps_of(clock) == [(0, "train")]
    assert marks[-1] == ("-", "train", 1)  # the framework's annotation is closed all the same


def test_within_a_step_of_the_users_own_there_are_no_others(clock, marks):
    mine = clock.begin("train", step=5, explicit=True)
    assert clock.begin("predict", complete=False) is None
    clock.finished()
    clock.leave(done=True)
    clock.end(mine)
    assert steps_of(clock) == [(5, "train")]
    assert marks == [("+", "train", 5), ("-", "train", 5)]


def test_ending_a_step_that_is_over_ends_no_other(clock):
    first = clock.begin("train", explicit=True)
    clock.end(first)
    clock.begin("train", explicit=True)
    clock.end(first)
    assert clock.open_tick().step == 1


def test_take_gives_each_step_once(clock):
    clock.begin("train")
    clock.end()
    assert len(clock.take()) == 1
    assert clock.take() == []
    clock.begin("train")
    assert clock.take() == []
    assert clock.open_tick().step == 1


@pytest.fixture(scope="module")
def model():
    keras = pytest.importorskip("keras")
    built = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    built.compile("sgd", "mse")
    return built


@pytest.fixture
def rows():
    import numpy as np

    return np.ones((12, 2), "float32"), np.ones((12, 1), "float32")


def test_keras_batches_are_steps(clock, model, rows):
    with keras_marks(clock):
        model.fit(*rows, batch_size=4, epochs=2, verbose=0)
    assert steps_of(clock) == [(i, "train") for i in range(6)]


def test_keras_evaluation_inside_fit_has_steps_of_its_own(clock, model, rows):
    with keras_marks(clock):
        model.fit(*rows, batch_size=4, epochs=2, validation_data=rows, validation_batch_size=6, verbose=0)
    assert [mark for _, mark in steps_of(clock)] == ["train"] * 3 + ["test"] * 2 + ["train"] * 3 + ["test"] * 2


def test_keras_data_of_unknown_length_makes_no_step_too_many(clock, model, rows):
    tf = pytest.importorskip("tensorflow")
    data = tf.data.Dataset.from_tensor_slices(rows).filter(lambda x, y: True).batch(4)
    with keras_marks(clock):
        model.fit(data, epochs=2, verbose=0)
    assert sorted({step for step, _ in steps_of(clock)}) == list(range(6))


def test_keras_evaluate_and_predict_end_their_last_step(clock, model, rows):
    with keras_marks(clock):
        model.evaluate(*rows, batch_size=6, verbose=0)
        assert clock.open_tick() is None
        model.predict(rows[0], batch_size=6, verbose=0)
        assert clock.open_tick() is None
    assert steps_of(clock) == [(0, "test"), (1, "test"), (2, "predict"), (3, "predict")]


def test_keras_is_as_it_was_afterwards(clock, model, rows):
    from keras.callbacks import CallbackList

    before = dict(vars(CallbackList))
    with pytest.raises(RuntimeError, match="in the block"), keras_marks(clock):
        raise RuntimeError("in the block")
    assert dict(vars(CallbackList)) == before
    model.fit(*rows, batch_size=4, verbose=0)
    assert steps_of(clock) == []


def test_an_evaluation_in_a_callback_leaves_no_time_without_a_step(clock, model, rows):
    import keras

    def evaluate(batch, logs):
        model.evaluate(*rows, batch_size=12, verbose=0)
        time.sleep(0.02)

    with keras_marks(clock):
        model.fit(
            *rows, batch_size=6, verbose=0, callbacks=[keras.callbacks.LambdaCallback(on_train_batch_end=evaluate)]
        )
    ticks = clock.take()
    assert [tick.mark for tick in ticks] == ["train", "test", "train", "test"]
    assert all(tick.end_ns - tick.start_ns >= 20_000_000 for tick in ticks if tick.mark == "test")


def test_predictions_inside_a_step_of_the_users_own_are_part_of_it(clock, model, rows):
    with keras_marks(clock):
        for number in range(3):
            mine = clock.begin("train", step=number, explicit=True)
            model.predict(rows[0], batch_size=6, verbose=0)
            clock.end(mine)
    assert steps_of(clock) == [(0, "train"), (1, "train"), (2, "train")]


def test_a_fit_that_raised_does_not_mislead_the_next_evaluation(clock, model, rows):
    import keras

    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            raise RuntimeError("stop here")

    with keras_marks(clock):
        with pytest.raises(RuntimeError, match="stop here"):
            model.fit(*rows, batch_size=4, verbose=0, callbacks=[Stop()])
        model.evaluate(*rows, batch_size=12, verbose=0)
        assert clock.open_tick() is None
    assert [mark for _, mark in steps_of(clock)] == ["train", "test"]


# -- what runs ------------------------------------------------------------------------------------------------------


def test_what_is_fitted_is_noted_and_what_is_evaluated_only_where_nothing_is(clock, model, rows):
    assert clock.about == {}
    with keras_marks(clock):
        model.evaluate(*rows, batch_size=6, verbose=0)
        assert clock.about["batch"] == "6"
        model.fit(*rows, batch_size=4, validation_data=rows, verbose=0)
        model.predict(rows[0], batch_size=12, verbose=0)
    assert clock.about == {
        "model": "Sequential of 1 Dense",
        "weights": "3",
        "dtype": "float32",
        "optimizer": "SGD",
        "batch": "4",
    }


def test_the_weights_of_a_model_that_its_first_batch_makes_are_counted_then(clock, rows):
    import keras

    inner = keras.Sequential([keras.layers.Dense(4), keras.layers.BatchNormalization()])
    late = keras.Sequential([inner, keras.layers.Dense(1)])
    late.compile("adam", "mse")
    assert "weights" not in keras_about(late)
    with keras_marks(clock):
        late.fit(*rows, verbose=0)
    assert clock.about["weights"] == "33"
    assert clock.about["model"] == "Sequential of 2 Dense, 1 BatchNormalization"  # whatever holds them
    assert clock.about["batch"] == "32"  # Keras' own default


def test_the_precision_is_that_of_most_layers_with_weights():
    keras = pytest.importorskip("keras")
    layers = keras.layers
    half = [layers.Dense(2, dtype="mixed_bfloat16"), layers.ReLU(), layers.ReLU(), layers.ReLU()]
    built = keras.Sequential([layers.Input((2,)), *half, layers.Dense(2, dtype="mixed_bfloat16"), layers.Dense(1)])
    assert keras_about(built)["dtype"] == "mixed_bfloat16"


def test_a_batch_is_known_without_a_look_at_the_data(model, rows):
    tf = pytest.importorskip("tensorflow")
    data = tf.data.Dataset.from_tensor_slices(rows)

    class Loader:
        batch_size = 7

    def batch(*args, **kwargs):
        return keras_about(model, *args, **kwargs).get("batch")

    assert batch(data.batch(3, drop_remainder=True)) == "3"
    assert batch(data.map(lambda x, y: ({"x": x}, y)).batch(3, drop_remainder=True)) == "3"
    assert batch(data.batch(3)) is None  # the last may be smaller: only the data would tell
    assert batch(Loader()) == "7"
    assert batch(*rows, batch_size=5) == "5"
    assert batch(rows[0]) == "32"
    assert batch(iter([])) is None
    assert batch() is None


def test_a_model_that_cannot_be_asked_is_trained_all_the_same(clock, model, rows, monkeypatch):
    monkeypatch.setattr(type(model), "count_params", lambda self: 1 / 0)
    monkeypatch.setattr(type(model), "layers", property(lambda self: {}["none"]))
    with keras_marks(clock):
        model.fit(*rows, batch_size=4, verbose=0)
        with pytest.raises(TypeError, match="unexpected keyword"):
            model.fit(*rows, model=1)
    assert len(steps_of(clock)) == 3
    assert set(clock.about) == {"optimizer", "batch"}
    assert keras_about(None) == {}
