"""Short programs with a known waste: all of it is in its account, by name, on a simulated clock."""

import gc
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from optional import lazy
from stand_in import StandIn

import tpunb as tp
from tpunb import instrument
from tpunb.profiler import loop, step_clock

keras, tf = lazy("keras"), lazy("tensorflow")
ROWS = np.ones((8, 4), "float32")


class SimulatedClock:
    """A clock on which only what the program spends takes time, and each look at it a microsecond."""

    def __init__(self):
        self._now_ns, self._lock = time.monotonic_ns(), threading.RLock()

    def __call__(self):
        self.spend(1e-6)
        return self._now_ns

    def spend(self, seconds):
        with self._lock:
            self._now_ns += round(seconds * 1e9)


@pytest.fixture
def clock(monkeypatch):
    clock = SimulatedClock()
    monkeypatch.setattr(time, "monotonic_ns", clock)
    for module in (step_clock, loop, *instrument.LIBRARIES):
        monkeypatch.setattr(module, "monotonic_ns", clock, raising=False)
    return clock


def seconds(goodput, account, detail=None):
    rows = goodput.frame.filter(account=account)
    return (rows if detail is None else rows.filter(detail=detail))["time_ps"].sum() / 1e12


def near(expected):
    """Return what a time is compared with: thousands of looks at the clock are part of it."""
    return pytest.approx(expected, abs=0.05)


@pytest.fixture
def captured(tmp_path):
    """Capture a function of the run without windows, and return its goodput."""

    def measure(program, **options):
        options = {"source": StandIn(), "schedule": tp.Schedule.ticks(), "keep": "none"} | options
        with tp.capture(tmp_path / "run", **options) as run:
            program(run)
        goodput = tp.goodput(tp.load(tmp_path / "run"))
        assert goodput.frame["time_ps"].sum() == goodput.wall_ps == goodput.segments["dur_ps"].sum()
        return goodput

    return measure


@pytest.fixture
def simulated(captured, clock):
    """Capture a function of the run on the simulated clock, and return its goodput."""

    def measure(program):
        goodput = captured(program, stacks=False)
        assert seconds(goodput, "other") == near(0)
        return goodput

    return measure


@pytest.fixture(scope="module")
def model():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(ROWS, ROWS[:, :1], verbose=0)  # traces
    return model


def many(number):
    return tf.data.Dataset.from_tensors((ROWS, ROWS[:, :1])).repeat(number)


@pytest.mark.live
def test_a_slow_callback_is_named_by_class_and_hook(simulated, clock, model):
    class Slow(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            clock.spend(5)

        def on_train_batch_end(self, batch, logs=None):
            clock.spend(3 * (batch == 10))

    goodput = simulated(lambda run: model.fit(many(20), epochs=3, callbacks=[Slow()], verbose=0))
    assert seconds(goodput, "callbacks", "Slow.on_epoch_end") == near(15)
    assert seconds(goodput, "callbacks", "Slow.on_train_batch_end") == near(9)
    assert "Slow.on_epoch_end" in goodput.sentence


@pytest.mark.live
def test_an_exception_in_a_hook_ends_in_its_callback(simulated, clock, model):
    class Broken(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            clock.spend(5)
            raise KeyError("mine")

    def program(run):
        with pytest.raises(KeyError, match="mine"):
            model.fit(many(5), callbacks=[Broken()], verbose=0)
        with run.step(100):  # the clock is as before
            clock.spend(2)

    goodput = simulated(program)
    assert seconds(goodput, "callbacks", "Broken.on_epoch_end") == near(5)
    assert seconds(goodput, "productive") + seconds(goodput, "step time deviation") == near(2)


@pytest.mark.live
def test_validation_within_fit_is_evaluation(simulated, clock, model):
    class Slow(keras.callbacks.Callback):
        def on_test_batch_end(self, batch, logs=None):
            clock.spend(0.5)

    class Checks(keras.Sequential):
        def test_step(self, data):
            tf.py_function(lambda: clock.spend(0.25), [], [])
            return super().test_step(data)

    checks = Checks([keras.Input((4,)), keras.layers.Dense(1)])
    checks.compile("sgd", "mse", run_eagerly=True)
    goodput = simulated(
        lambda run: checks.fit(many(10), epochs=2, validation_data=many(5), callbacks=[Slow()], verbose=0)
    )
    assert seconds(goodput, "callbacks", "Slow.on_test_batch_end") == near(5)
    assert seconds(goodput, "evaluation") == near(2.5)


@pytest.mark.live
def test_saves_in_a_callback_are_checkpoint_saves(simulated, clock, tmp_path):
    class Slow(keras.layers.Dense):
        def save_own_variables(self, store):
            clock.spend(4)
            super().save_own_variables(store)

    slow = keras.Sequential([keras.Input((4,)), Slow(1)])
    slow.compile("sgd", "mse")
    saves = keras.callbacks.ModelCheckpoint(tmp_path / "{epoch}.weights.h5", save_weights_only=True)
    goodput = simulated(lambda run: slow.fit(many(10), epochs=2, callbacks=[saves], verbose=0))
    assert seconds(goodput, "checkpoint save") == near(8)
    assert seconds(goodput, "callbacks") == near(0)


@pytest.mark.live
def test_all_time_of_a_save_is_a_checkpoint_save(simulated, clock, model, tmp_path, monkeypatch):
    from tpunb.checkpoint.resume import policy
    from tpunb.training import snapshot
    from tpunb.training.fingerprints import Fingerprints

    def slowly(function):
        def slow(*arguments):
            clock.spend(2.5)
            return function(*arguments)

        return slow

    monkeypatch.setattr(snapshot, "write_arrays", slowly(snapshot.write_arrays))
    monkeypatch.setattr(Fingerprints, "begin", slowly(Fingerprints.begin))
    monkeypatch.setattr(policy, "time", SimpleNamespace(perf_counter=lambda: clock() / 1e9))
    with tp.checkpointing(tmp_path, every=6, keep=1) as saving:
        goodput = simulated(lambda run: model.fit(many(10), epochs=2, verbose=0))
    assert seconds(goodput, "checkpoint save", "tpunb") == near(saving.seconds) == near(17.5)  # the end of the fit, too
    assert goodput.frame.filter(account="checkpoint save")["count"].sum() == 4


@pytest.mark.live
def test_time_between_steps_and_fits_has_its_account(simulated, clock, model):
    def program(run):
        for number in range(20):
            with run.step(number):
                clock.spend(0.05)
            clock.spend(3 * (number == 10))
        model.fit(many(5), verbose=0)
        clock.spend(5)
        model.fit(many(5), verbose=0)

    goodput = simulated(program)
    assert seconds(goodput, "program code") == near(3)
    assert seconds(goodput, "preparation") == near(5)


def test_a_loop_over_batches_knows_its_wait_and_its_deviation(simulated, clock):
    def batches():
        for number in range(50):
            clock.spend(5 * (number == 30))
            yield number

    def program(run):
        for number in run.batches(batches()):
            clock.spend(0.02)
            clock.spend(4 * (number == 40))

    goodput = simulated(program)
    assert seconds(goodput, "data loading") == near(5)
    assert seconds(goodput, "step time deviation") == near(4)
    assert seconds(goodput, "productive") == near(1)


def test_garbage_collections_are_the_reason_of_slow_steps(simulated, clock):
    def collect(phase, facts):
        clock.spend(0.5 * (phase == "stop"))

    def program(run):
        for number in range(30):
            with run.step(number):
                clock.spend(0.1)
                if number % 3 == 0:
                    gc.collect(0)

    gc.disable()  # there are no others
    gc.callbacks.insert(0, collect)
    try:
        goodput = simulated(program)
    finally:
        gc.callbacks.remove(collect)
        gc.enable()
    assert seconds(goodput, "step time deviation", "garbage collection") == near(5)
    assert goodput.ideal_step_ps == pytest.approx(0.1e12, rel=0.01)


@pytest.mark.live
def test_a_jax_loop_that_recompiles_names_what_it_compiles(captured):
    jax = pytest.importorskip("jax")

    @jax.jit
    def train(x):
        time.sleep(0.01)
        return x * 2

    inputs = [jax.numpy.ones(3), jax.numpy.ones(4)]

    def program(run):
        for number in range(20):
            with run.step(number):
                train(inputs[number > 10]).block_until_ready()

    goodput = captured(program)
    assert seconds(goodput, "program startup", "tracing train") >= 0.02
    assert {"tracing train", "compiling jit(train)"} <= set(goodput.frame["detail"])


@pytest.mark.live
def test_a_capture_that_ends_in_a_callback_adds_up(simulated, clock, model):
    def program(run):
        class Stops(keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                if batch == 3:
                    clock.spend(2)
                    run.stop()

        model.fit(many(10), callbacks=[Stops()], verbose=0)

    goodput = simulated(program)
    assert goodput.wall_ps / 1e12 == near(2)


@pytest.mark.live
def test_a_model_with_a_fit_of_its_own_has_steps_and_adds_up(captured):
    class Mine(keras.Sequential):
        def fit(self, data, **_):
            for x, y in data:
                self.train_on_batch(x, y)

    mine = Mine([keras.Input((4,)), keras.layers.Dense(1)])
    mine.compile("sgd", "mse")
    goodput = captured(lambda run: mine.fit(many(5)))
    assert seconds(goodput, "productive") > 0


@pytest.mark.live
def test_stalls_in_callbacks_batches_and_steps_have_places(captured, model):
    """Each stall lasts until the sampler has seen it twice."""

    def until_sampled(run):
        sampler, until = run._session.recorder.stalls, time.monotonic() + 120
        before = sampler._open
        seen = 0 if before is None else before.samples
        while (stall := sampler._open) is None or stall.samples < 2 + seen * (stall is before):
            assert time.monotonic() < until
            yield

    def program(run):
        class Slow(keras.callbacks.Callback):
            def on_epoch_end(self, epoch, logs=None):
                for _ in until_sampled(run):
                    time.sleep(0.05)

        def batches():
            for number in range(50):
                for _ in until_sampled(run) if number == 30 else ():
                    time.sleep(0.05)
                yield number

        model.fit(many(20), callbacks=[Slow()], verbose=0)
        for number in run.batches(batches()):
            for _ in until_sampled(run) if number == 40 else ():
                time.sleep(0.05)

    goodput = captured(program)
    for place in ("in on_epoch_end ← time.sleep", "in batches ← time.sleep", "in program ← time.sleep"):
        assert any(place in text for text in goodput.stalls["place"].drop_nulls()), place
