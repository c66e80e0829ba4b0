"""The step clock gives every step a number and a time; Keras' batches need no changed line."""

import asyncio
import threading
import time
import warnings
from contextlib import contextmanager

import numpy as np
import pytest
from optional import lazy

from tpunb.instrument import keras as keras_library
from tpunb.instrument import listening
from tpunb.instrument.keras import keras_metadata
from tpunb.profiler import step_clock
from tpunb.profiler.loop import Loop
from tpunb.profiler.step_clock import StepClock

keras, tf = lazy("keras"), lazy("tensorflow")


class Marks(list):
    """What a framework would have been warned: ("+", mark, step) at a begin, ("-", ...) at an end."""

    @contextmanager
    def __call__(self, kind, step):
        self.append(("+", kind, step))
        yield
        self.append(("-", kind, step))


@pytest.fixture
def kinds():
    return Marks()


@pytest.fixture
def clock(kinds):
    return StepClock(kinds)


def keras_steps(clock):
    return listening(Loop(clock), [keras_library])


def steps_of(clock):
    return [(record.step, record.kind) for record in clock.take()]


def test_a_step_lasts_until_the_next_begins(clock, kinds):
    clock.begin("train")
    clock.begin("train")
    clock.end()
    first, second = clock.take()
    assert (first.step, second.step) == (0, 1)
    assert first.end_ns <= second.start_ns <= second.end_ns
    assert kinds == [("+", "train", 0), ("-", "train", 0), ("+", "train", 1), ("-", "train", 1)]


def test_the_times_are_those_of_the_wall(clock):
    before = time.monotonic_ns()
    clock.begin("train")
    clock.end()
    (record,) = clock.take()
    assert before <= record.start_ns <= record.end_ns <= time.monotonic_ns()


def test_steps_may_bring_their_own_rising_numbers(clock):
    for number in (10, 20, 30):
        clock.begin("train", step=number, rule="mark")
    clock.end()
    assert [step for step, _ in steps_of(clock)] == [10, 20, 30]


def test_used_step_number_is_replaced_with_one_warning(clock):
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        for number in (0, 1, 0, 1):  # two epochs that both count from 0
            clock.begin("train", step=number, rule="mark")
        clock.end()
    assert [step for step, _ in steps_of(clock)] == [0, 1, 2, 3]
    assert [str(warning.message) for warning in shown] == ["step 0 is not above the last; steps are numbered on from 2"]


def test_time_of_an_incomplete_step_counts_to_the_one_before(clock):
    for finishes in (True, True, False):  # Keras begins one more at the end of data of unknown length
        clock.begin("train", complete=False)
        if finishes:
            clock.complete()
    clock.begin("eval", complete=False)
    clock.complete()
    clock.end()
    assert steps_of(clock) == [(0, "train"), (1, "train"), (1, "train"), (2, "eval")]


def test_step_cut_by_an_exception_is_not_recorded(clock, kinds):
    clock.begin("train", complete=False)
    clock.complete()
    clock.begin("train", complete=False)
    clock.discard()
    assert steps_of(clock) == [(0, "train")]
    assert kinds[-1] == ("-", "train", 1)  # the framework's annotation is closed all the same


def test_within_a_step_of_the_users_own_there_are_no_others(clock, kinds):
    mine = clock.begin("train", step=5, explicit=True)
    assert clock.begin("predict", complete=False) is None
    clock.complete()
    clock.exit(done=True)
    clock.end(mine)
    assert steps_of(clock) == [(5, "train")]
    assert kinds == [("+", "train", 5), ("-", "train", 5)]


def test_ending_a_step_that_is_over_ends_no_other(clock):
    first = clock.begin("train", explicit=True)
    clock.end(first)
    clock.begin("train", explicit=True)
    clock.end(first)
    assert clock.open_step().step == 1


def test_take_gives_each_step_once(clock):
    clock.begin("train")
    clock.end()
    assert len(clock.take()) == 1
    assert clock.take() == []
    clock.begin("train")
    assert clock.take() == []
    assert clock.open_step().step == 1


@pytest.mark.parametrize(
    ("durations_ms", "typical_ms"),
    [
        ([], 200),  # a stall lasts five times as long
        ([5], 5),
        ([1500], 200),  # the first step compiles
        ([1500, 5], 5),
        ([60_000, 2_000], 2_000),
        ([1500, 5, 300, 4], 4),
        ([1500, 5, 300, 4, 6], 6),
        ([1500, *[100] * 10, *[7] * 30], 7),  # of the last 31 steps
    ],
)
def test_the_typical_step_time_is_the_shortest_of_the_first_steps_then_the_median(
    clock, monkeypatch, durations_ms, typical_ms
):
    now_ns = [0]
    monkeypatch.setattr(step_clock, "monotonic_ns", lambda: now_ns[0])
    for duration_ms in durations_ms:
        clock.begin("train")
        now_ns[0] += duration_ms * 1_000_000
        clock.end()
    assert clock.progress().typical_ns == typical_ms * 1_000_000


def test_the_typical_step_time_is_that_of_the_open_steps_kind_and_the_shortest_between_steps(clock, monkeypatch):
    now_ns = [0]
    monkeypatch.setattr(step_clock, "monotonic_ns", lambda: now_ns[0])
    for kind, duration_ms in [*[("train", 5)] * 6, *[("eval", 100)] * 40]:
        clock.begin(kind)
        now_ns[0] += duration_ms * 1_000_000
        clock.end()
    typical_ms = [clock.progress().typical_ns // 1_000_000]
    for kind in ("train", "eval", "predict"):
        clock.begin(kind)
        typical_ms.append(clock.progress().typical_ns // 1_000_000)
        with clock.within("callbacks", "Slow.on_batch_begin"):
            assert clock.progress().typical_ns == 5_000_000
        clock.discard()
    assert typical_ms == [5, 5, 100, 5]


@pytest.fixture(scope="module")
def model():
    built = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    built.compile("sgd", "mse")
    return built


@pytest.fixture
def rows():
    return np.ones((12, 2), "float32"), np.ones((12, 1), "float32")


@pytest.mark.live
def test_keras_batches_are_steps(clock, model, rows):
    with keras_steps(clock):
        model.fit(*rows, batch_size=4, epochs=2, verbose=0)
    assert steps_of(clock) == [(i, "train") for i in range(6)]


@pytest.mark.live
def test_keras_evaluation_inside_fit_has_steps_of_its_own(clock, model, rows):
    with keras_steps(clock):
        model.fit(*rows, batch_size=4, epochs=2, validation_data=rows, validation_batch_size=6, verbose=0)
    assert [kind for _, kind in steps_of(clock)] == ["train"] * 3 + ["eval"] * 2 + ["train"] * 3 + ["eval"] * 2


@pytest.mark.live
def test_keras_data_of_unknown_length_makes_no_step_too_many(clock, model, rows):
    data = tf.data.Dataset.from_tensor_slices(rows).filter(lambda x, y: True).batch(4)
    with keras_steps(clock):
        model.fit(data, epochs=2, verbose=0)
    assert sorted({step for step, _ in steps_of(clock)}) == list(range(6))


@pytest.mark.live
def test_keras_evaluate_and_predict_end_their_last_step(clock, model, rows):
    with keras_steps(clock):
        model.evaluate(*rows, batch_size=6, verbose=0)
        assert clock.open_step() is None
        model.predict(rows[0], batch_size=6, verbose=0)
        assert clock.open_step() is None
    assert steps_of(clock) == [(0, "eval"), (1, "eval"), (2, "predict"), (3, "predict")]


@pytest.mark.live
def test_keras_is_restored_afterwards(clock, model, rows):
    from keras.callbacks import CallbackList

    before = dict(vars(CallbackList))
    with pytest.raises(RuntimeError, match="in the block"), keras_steps(clock):
        raise RuntimeError("in the block")
    assert dict(vars(CallbackList)) == before
    model.fit(*rows, batch_size=4, verbose=0)
    assert steps_of(clock) == []


@pytest.mark.live
def test_an_evaluation_in_a_callback_leaves_no_time_without_a_step(clock, model, rows, monkeypatch):
    now_ns = [0]
    monkeypatch.setattr(step_clock, "monotonic_ns", lambda: now_ns[0])

    def evaluate(batch, logs):
        model.evaluate(*rows, batch_size=12, verbose=0)
        now_ns[0] += 20_000_000

    with keras_steps(clock):
        model.fit(
            *rows, batch_size=6, verbose=0, callbacks=[keras.callbacks.LambdaCallback(on_train_batch_end=evaluate)]
        )
    assert [(record.kind, record.end_ns - record.start_ns) for record in clock.take()] == [
        *(("train", 0), ("eval", 20_000_000)),
        *(("train", 0), ("eval", 20_000_000)),
    ]


@pytest.mark.live
def test_predictions_inside_a_step_of_the_users_own_are_part_of_it(clock, model, rows):
    with keras_steps(clock):
        for number in range(3):
            mine = clock.begin("train", step=number, explicit=True)
            model.predict(rows[0], batch_size=6, verbose=0)
            clock.end(mine)
    assert steps_of(clock) == [(0, "train"), (1, "train"), (2, "train")]


@pytest.mark.live
def test_a_fit_that_raised_does_not_mislead_the_next_evaluation(clock, model, rows):
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            raise RuntimeError("stop here")

    with keras_steps(clock):
        with pytest.raises(RuntimeError, match="stop here"):
            model.fit(*rows, batch_size=4, verbose=0, callbacks=[Stop()])
        model.evaluate(*rows, batch_size=12, verbose=0)
        assert clock.open_step() is None
    assert [kind for _, kind in steps_of(clock)] == ["train", "eval"]


# -- what runs ------------------------------------------------------------------------------------------------------


@pytest.mark.live
def test_job_is_taken_from_fit_before_evaluate(clock, model, rows):
    assert clock.metadata == {}
    with keras_steps(clock):
        model.evaluate(*rows, batch_size=6, verbose=0)
        assert clock.metadata["batch"] == "6"
        model.fit(*rows, batch_size=4, validation_data=rows, verbose=0)
        model.predict(rows[0], batch_size=12, verbose=0)
    assert clock.metadata == {
        "model": "Sequential of 1 Dense",
        "weights": "3",
        "dtype": "float32",
        "optimizer": "SGD",
        "batch": "4",
        "data": "arrays",
    }


@pytest.mark.live
def test_the_weights_of_a_model_that_its_first_batch_makes_are_counted_then(clock, rows):
    inner = keras.Sequential([keras.layers.Dense(4), keras.layers.BatchNormalization()])
    late = keras.Sequential([inner, keras.layers.Dense(1)])
    late.compile("adam", "mse")
    assert "weights" not in keras_metadata(late)
    with keras_steps(clock):
        late.fit(*rows, verbose=0)
    assert clock.metadata["weights"] == "33"
    assert clock.metadata["model"] == "Sequential of 2 Dense, 1 BatchNormalization"  # whatever holds them
    assert clock.metadata["batch"] == "32"  # Keras' own default


def test_a_model_runs_eagerly_where_all_functions_do(model):
    assert "eager" not in keras_metadata(model)
    tf.config.run_functions_eagerly(True)
    try:
        assert keras_metadata(model)["eager"] == "Keras"
    finally:
        tf.config.run_functions_eagerly(False)


def test_the_precision_is_that_of_most_layers_with_weights():
    layers = keras.layers
    half = [layers.Dense(2, dtype="mixed_bfloat16"), layers.ReLU(), layers.ReLU(), layers.ReLU()]
    built = keras.Sequential([layers.Input((2,)), *half, layers.Dense(2, dtype="mixed_bfloat16"), layers.Dense(1)])
    assert keras_metadata(built)["dtype"] == "mixed_bfloat16"


def test_a_batch_is_known_without_a_look_at_the_data(model, rows):
    data = tf.data.Dataset.from_tensor_slices(rows)

    class Loader:
        batch_size = 7

    def batch(*args, **kwargs):
        return keras_metadata(model, *args, **kwargs).get("batch")

    assert batch(data.batch(3, drop_remainder=True)) == "3"
    assert batch(data.map(lambda x, y: ({"x": x}, y)).batch(3, drop_remainder=True)) == "3"
    assert batch(data.batch(3)) is None  # the last may be smaller: only the data would tell
    assert batch(Loader()) == "7"
    assert batch(*rows, batch_size=5) == "5"
    assert batch(rows[0]) == "32"
    assert batch(iter([])) is None
    assert batch() is None


@pytest.mark.live
def test_model_without_readable_properties_is_trained(clock, model, rows, monkeypatch):
    monkeypatch.setattr(type(model), "count_params", lambda self: 1 / 0)
    monkeypatch.setattr(type(model), "layers", property(lambda self: {}["none"]))
    with keras_steps(clock):
        model.fit(*rows, batch_size=4, verbose=0)
        with pytest.raises(TypeError, match="unexpected keyword"):
            model.fit(*rows, model=1)
    assert len(steps_of(clock)) == 3
    assert set(clock.metadata) == {"optimizer", "batch", "data"}
    assert keras_metadata(None) == {}


def test_a_second_thread_that_marks_steps_is_warned_of_once(clock):
    step = clock.begin("train", explicit=True, rule="mark")

    def train():
        for _ in range(2):
            assert clock.begin("train", explicit=True, rule="mark") is None

    with pytest.warns(UserWarning, match="two threads or tasks mark steps at once: those inside step 0") as caught:
        thread = threading.Thread(target=train)
        thread.start()
        thread.join()
    clock.end(step)
    assert len(caught) == 1
    assert steps_of(clock) == [(0, "train")]


def test_a_second_task_that_marks_steps_is_warned_of_and_a_nested_mark_is_not(clock):
    async def train(first):
        step = clock.begin("train", explicit=True, rule="mark")
        assert (step is not None) == first
        assert clock.begin("train", explicit=True, rule="mark") is None
        await asyncio.sleep(0)
        clock.end(step)

    async def two():
        await asyncio.gather(train(True), train(False))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asyncio.run(train(True))
    with pytest.warns(UserWarning, match="two threads or tasks"):
        asyncio.run(two())


class Array:
    """The result of a launch, which is ready."""

    def is_ready(self):
        return True


def test_launches_between_marks_are_of_no_step_once_the_devices_were_idle(clock, monkeypatch):
    now, loop = [0], Loop(clock)
    monkeypatch.setattr(step_clock, "monotonic_ns", lambda: now[0])

    def launch(ms):
        loop.called("step", ms * 10**6, ms * 10**6, Array())

    def mark(begin_ms, end_ms, *launches_ms):
        now[0] = begin_ms * 10**6
        step = clock.begin("train", explicit=True, rule="mark")
        launch(begin_ms)
        now[0] = end_ms * 10**6
        clock.end(step)
        for ms in launches_ms:
            launch(ms)

    mark(0, 10, 12, 13)  # of the step: the devices worked until then
    mark(40, 50, 70, 71)  # what the program prepares for the next, after a pause
    mark(80, 90)
    ends_ms = [(step.start_ns // 10**6, step.end_ns // 10**6) for step in clock.take(final=True)]
    assert ends_ms == [(0, 13), (40, 50), (80, 90)]


@pytest.mark.parametrize(("rule", "at_once"), [("mark", [0, 1, 2, 3]), ("keras", [0, 1])])
def test_steps_are_handed_on_as_they_end_but_short_ones_of_a_library_as_steps_are_taken(monkeypatch, rule, at_once):
    clock, now_ns, seen = StepClock(lambda kind, number: None), [10**18], []
    monkeypatch.setattr(step_clock, "monotonic_ns", lambda: now_ns[0])
    clock.on_step = lambda record: seen.append(record.step)
    for dur_ms in (20, 20, 1, 1):
        step = clock.begin("train", explicit=rule == "mark", rule=rule)
        now_ns[0] += dur_ms * 1_000_000
        clock.end(step)
    assert seen == at_once
    clock.take()
    assert seen == [0, 1, 2, 3]
