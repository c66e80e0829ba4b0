"""Short real programs with a known waste: it is in its account, by name; margins are wide, since machines are busy."""

import gc
import time

import numpy as np
import pytest

import tpunb as tp

ROWS = np.ones((8, 4), "float32")


def shares(goodput):
    """Share of wall time by account."""
    return {account: goodput.time_ps(account) / goodput.wall_ps for account in goodput.frame["account"].unique()}


def seconds(goodput, account, detail=None):
    rows = goodput.frame.filter(account=account)
    return (rows if detail is None else rows.filter(detail=detail))["time_ps"].sum() / 1e12


def adds_up(goodput):
    return goodput.frame["time_ps"].sum() == goodput.wall_ps == goodput.segments["dur_ps"].sum()


@pytest.fixture
def captured(tmp_path):
    """Capture a function of the run without windows, and return its goodput."""

    def measure(program):
        with tp.capture(tmp_path / "run", schedule=tp.Schedule.ticks(), keep="none") as run:
            program(run)
        goodput = tp.goodput(tp.load(tmp_path / "run"))
        assert adds_up(goodput)
        assert shares(goodput).get("other", 0) < 0.03
        return goodput

    return measure


@pytest.fixture
def model():
    keras = pytest.importorskip("keras")
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(ROWS, ROWS[:, :1], verbose=0)  # traces
    return model


def many(number):
    import tensorflow as tf

    return tf.data.Dataset.from_tensors((ROWS, ROWS[:, :1])).repeat(number)


def test_a_slow_callback_is_named_by_class_and_hook(captured, model):
    import keras

    class Slow(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            time.sleep(0.5)

        def on_train_batch_end(self, batch, logs=None):
            time.sleep(0.3 * (batch == 10))

    goodput = captured(lambda run: model.fit(many(20), epochs=3, callbacks=[Slow()], verbose=0))
    assert 1.45 < seconds(goodput, "callbacks", "Slow.on_epoch_end") < 2.5
    assert 0.85 < seconds(goodput, "callbacks", "Slow.on_train_batch_end") < 1.6
    assert "Slow.on_epoch_end" in goodput.sentence
    assert any("in on_epoch_end" in place for place in goodput.stalls["place"])


def test_an_exception_in_a_hook_ends_in_its_callback(captured, model):
    import keras

    class Broken(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            time.sleep(0.5)
            raise KeyError("mine")

    def program(run):
        with pytest.raises(KeyError, match="mine"):
            model.fit(many(5), callbacks=[Broken()], verbose=0)
        with run.step(100):  # the clock is as before
            time.sleep(0.2)

    goodput = captured(program)
    assert 0.45 < seconds(goodput, "callbacks", "Broken.on_epoch_end") < 1.5
    assert seconds(goodput, "productive") + seconds(goodput, "step time deviation") > 0.15


def test_validation_within_fit_is_evaluation(captured, model):
    import keras

    class Slow(keras.callbacks.Callback):
        def on_test_batch_end(self, batch, logs=None):
            time.sleep(0.05)

    goodput = captured(
        lambda run: model.fit(many(10), epochs=2, validation_data=many(5), callbacks=[Slow()], verbose=0)
    )
    assert 0.45 < seconds(goodput, "callbacks", "Slow.on_test_batch_end") < 1.5
    assert seconds(goodput, "evaluation") > 0


def test_saves_in_a_callback_are_checkpoint_saves(captured, model, tmp_path):
    import keras

    class Slow(keras.layers.Dense):
        def save_own_variables(self, store):
            time.sleep(0.4)
            super().save_own_variables(store)

    slow = keras.Sequential([keras.Input((4,)), Slow(1)])
    slow.compile("sgd", "mse")
    saves = keras.callbacks.ModelCheckpoint(tmp_path / "{epoch}.weights.h5", save_weights_only=True)
    goodput = captured(lambda run: slow.fit(many(10), epochs=2, callbacks=[saves], verbose=0))
    assert 0.75 < seconds(goodput, "checkpoint save") < 2
    assert seconds(goodput, "callbacks") < 0.3


def test_all_time_of_a_save_is_a_checkpoint_save(captured, model, tmp_path, monkeypatch):
    from tpunb.training import snapshot
    from tpunb.training.fingerprints import Fingerprints

    def slowly(function):
        def slow(*arguments):
            time.sleep(0.25)
            return function(*arguments)

        return slow

    monkeypatch.setattr(snapshot, "write_arrays", slowly(snapshot.write_arrays))
    monkeypatch.setattr(Fingerprints, "begin", slowly(Fingerprints.begin))
    with tp.checkpointing(tmp_path, every=6, keep=1) as saving:
        goodput = captured(lambda run: model.fit(many(10), epochs=2, verbose=0))
    assert seconds(goodput, "checkpoint save", "tpunb") > 0.99 * saving.seconds > 1.48
    assert goodput.frame.filter(account="checkpoint save")["count"].sum() == 3


def test_time_between_steps_and_fits_has_its_account(captured, model):
    def program(run):
        for number in range(20):
            with run.step(number):
                time.sleep(0.005)
            time.sleep(0.3 * (number == 10))
        model.fit(many(5), verbose=0)
        time.sleep(0.5)
        model.fit(many(5), verbose=0)

    goodput = captured(program)
    assert 0.25 < seconds(goodput, "between steps") < 0.8
    assert 0.45 < seconds(goodput, "preparation") < 1.5


def test_a_loop_over_batches_knows_its_wait_and_its_stalls(captured):
    def batches():
        for number in range(50):
            if number == 30:
                time.sleep(0.5)
            yield number

    def program(run):
        for number in run.batches(batches()):
            time.sleep(0.002)
            if number == 40:
                time.sleep(0.4)

    goodput = captured(program)
    assert 0.45 < seconds(goodput, "data loading") < 1
    assert 0.3 < seconds(goodput, "step time deviation") < 1
    assert any("in batches ← time.sleep" in place for place in goodput.stalls["place"])
    assert any("in program ← time.sleep" in place for place in goodput.stalls["place"])


def test_garbage_collections_are_the_reason_of_slow_steps(captured):
    garbage = [[] for _ in range(500_000)]

    def program(run):
        for number in range(30):
            with run.step(number):
                time.sleep(0.01)
                if number % 3 == 0:
                    gc.collect()

    goodput = captured(program)
    assert seconds(goodput, "step time deviation", "garbage collection") > 0.1
    assert goodput.ideal_step_ps < 0.03e12
    del garbage


def test_a_jax_loop_that_recompiles_names_what_it_compiles(captured):
    jax = pytest.importorskip("jax")

    @jax.jit
    def train(x):
        time.sleep(0.3)
        return x * 2

    inputs = [jax.numpy.ones(3), jax.numpy.ones(4)]

    def program(run):
        for number in range(20):
            with run.step(number):
                train(inputs[number > 10]).block_until_ready()

    goodput = captured(program)
    assert 0.55 < seconds(goodput, "program startup") < 2.5
    details = goodput.frame.filter(account="program startup")["detail"].to_list()
    assert {"tracing train", "compiling jit(train)"} <= set(details)


def test_a_capture_that_ends_in_a_callback_adds_up(captured, model):
    import keras

    def program(run):
        class Stops(keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                if batch == 3:
                    time.sleep(0.2)
                    run.stop()

        model.fit(many(10), callbacks=[Stops()], verbose=0)

    captured(program)


def test_a_model_with_a_fit_of_its_own_adds_up(captured):
    keras = pytest.importorskip("keras")

    class Mine(keras.Sequential):
        def fit(self, data, **_):
            for x, y in data:
                self.train_on_batch(x, y)

    mine = Mine([keras.Input((4,)), keras.layers.Dense(1)])
    mine.compile("sgd", "mse")
    goodput = captured(lambda run: mine.fit(many(5)))
    assert seconds(goodput, "productive") == 0
