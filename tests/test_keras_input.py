"""The timed input of Keras trains bit for bit as without a capture, and its waits are recorded."""

import contextlib
import gc
import queue
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from exact_fits import reused
from optional import lazy

import tpunb as tp
from tpunb.instrument import keras as keras_library
from tpunb.instrument import listening
from tpunb.instrument.keras import _drawn as one_batch
from tpunb.instrument.keras import timed
from tpunb.profiler import step_clock
from tpunb.profiler.loop import Loop
from tpunb.profiler.sources.frameworks import annotation
from tpunb.profiler.step_clock import StepClock

keras, tf = lazy("keras"), lazy("tensorflow")
pytestmark = pytest.mark.live

ROWS = np.random.default_rng(0).normal(size=(50, 4)).astype("float32")
TARGETS = ROWS.sum(1, keepdims=True)
WEIGHTS = np.linspace(0.5, 1.5, 50).astype("float32")


def keras_steps(clock):
    return listening(Loop(clock), [keras_library])


def model(**compiled):
    keras.utils.set_random_seed(7)
    inputs = keras.Input((4,), name="rows")
    hidden = keras.layers.Dropout(0.3)(keras.layers.Dense(8, "tanh")(inputs))
    built = keras.Model(inputs, keras.layers.Dense(1)(hidden))
    built.compile("adam", "mse", **compiled)
    return built


def dataset(*parts):
    return tf.data.Dataset.from_tensor_slices(parts)


def pairs(batch=8):
    return dataset(ROWS, TARGETS).batch(batch)


def generated():
    return tf.data.Dataset.from_generator(
        lambda: zip(ROWS, TARGETS, strict=True),
        output_signature=(tf.TensorSpec((4,)), tf.TensorSpec((1,))),
    ).batch(8)


CASES = {
    "shuffled": lambda: ({"x": dataset(ROWS, TARGETS).shuffle(50, seed=3).batch(10), "epochs": 3}, {}),
    "last batch is short": lambda: ({"x": pairs(), "epochs": 3}, {}),
    "unknown cardinality": lambda: ({"x": generated(), "epochs": 3}, {}),
    "repeated": lambda: ({"x": pairs().repeat(), "epochs": 3, "steps_per_epoch": 5}, {}),
    "ends early": lambda: ({"x": pairs(), "epochs": 2, "steps_per_epoch": 5}, {}),
    "sample weights": lambda: ({"x": dataset(ROWS, TARGETS, WEIGHTS).batch(8), "epochs": 3}, {}),
    "dict of inputs": lambda: ({"x": dataset({"rows": ROWS}, TARGETS).batch(8), "epochs": 3}, {}),
    "arrays": lambda: ({"x": ROWS, "y": TARGETS, "batch_size": 8, "epochs": 3, "shuffle": True}, {}),
    "validation": lambda: ({"x": pairs(), "epochs": 3, "validation_data": pairs(16)}, {}),
    "validation split": lambda: ({"x": ROWS, "y": TARGETS, "batch_size": 8, "epochs": 3, "validation_split": 0.3}, {}),
    "four steps a call": lambda: ({"x": pairs(), "epochs": 3}, {"steps_per_execution": 4}),
    "run eagerly": lambda: ({"x": pairs(), "epochs": 2}, {"run_eagerly": True}),
}  # fmt: skip


def fitted(make, clock=None):
    keras.utils.set_random_seed(7)  # of the order of the data
    arguments, compiled = make()
    built = model(**compiled) if compiled else reused(model)
    with contextlib.nullcontext() if clock is None else keras_steps(clock):
        history = built.fit(verbose=0, **arguments).history
    return history, int(built.optimizer.iterations), [weights.tolist() for weights in built.get_weights()]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.filterwarnings("ignore:.*ran out of data")
def test_a_fit_is_the_same_bit_for_bit(case):
    clock = StepClock(annotation)
    plain = _, steps, _ = fitted(CASES[case])
    assert fitted(CASES[case], clock) == plain
    records = clock.take()
    if "steps_per_execution" in CASES[case]()[1]:  # drawn as the steps compute
        assert [record.input_ns for record in records] == [None] * len(records)
    else:
        assert all(record.input_ns is not None and record.input_ns >= 0 for record in records)
        extra = 3 if case == "unknown cardinality" else 0  # Keras counts the end of the data as an iteration
        assert len({record.step for record in records if record.kind == "train"}) == steps - extra


def test_evaluate_and_predict_are_the_same():
    built, clock = reused(model), StepClock(annotation)
    loss, outputs = built.evaluate(pairs(), verbose=0), built.predict(pairs(), verbose=0)
    with keras_steps(clock):
        assert built.evaluate(pairs(), verbose=0) == loss
        assert np.array_equal(built.predict(pairs(), verbose=0), outputs)
    assert [record.kind for record in clock.take()] == ["eval"] * 7 + ["predict"] * 7


def test_the_wait_for_a_slow_batch_is_input_wait_of_its_step(monkeypatch):
    now_ns = [10**18]  # a clock that stands still but for the sixth batch
    monkeypatch.setattr(step_clock, "monotonic_ns", lambda: now_ns[0])

    def load(number):
        now_ns[0] += 500_000_000 * (number == 5)
        return ROWS[:8], TARGETS[:8]

    def loaded(number):
        x, y = tf.numpy_function(load, [number], [tf.float32, tf.float32])
        return tf.ensure_shape(x, (8, 4)), tf.ensure_shape(y, (8, 1))

    options = tf.data.Options()
    options.autotune.enabled = False  # no prefetch hides the wait
    clock = StepClock(annotation)
    with keras_steps(clock):
        reused(model).fit(tf.data.Dataset.range(10).map(loaded).with_options(options), verbose=0)
    assert [record.input_ns for record in clock.take()] == [0] * 5 + [500_000_000] + [0] * 4


def test_what_a_fit_takes_to_free_its_iterator_as_it_returns_is_the_end_of_its_data(monkeypatch):
    from keras.src.trainers.epoch_iterator import EpochIterator

    monkeypatch.setattr(EpochIterator, "__del__", lambda _: time.sleep(0.05), raising=False)
    clock = StepClock(annotation)
    with keras_steps(clock):
        reused(model).fit(pairs(), verbose=0)
    spans = [spent for spent in clock.take_spans() if spent.detail == "end of the data"]
    assert [spent.account for spent in spans] == ["data loading"]
    assert spans[0].end_ns - spans[0].start_ns >= 50_000_000


def test_an_iterator_that_is_freed_once_the_next_is_drawn_is_the_end_of_its_epoch(monkeypatch):
    """So a loop frees what its variable held, where the steps of a call draw their batches."""
    now_ns = [10**18]
    monkeypatch.setattr(step_clock, "monotonic_ns", lambda: now_ns[0])
    clock = StepClock(annotation)
    for freed_ns in (0, 500_000_000):
        clock.request("train")
        clock.draw(int, "7")
        now_ns[0] += freed_ns
        clock.begin_batch("train", "the end")
        now_ns[0] += 1_000_000
        clock.computed()
    assert [(spent.account, spent.detail, spent.end_ns - spent.start_ns) for spent in clock.take_spans()] == [
        ("data loading", "the end", 500_000_000)
    ]


def test_an_error_of_the_model_is_raised_as_it_is():
    def broken(target, output):
        with tf.control_dependencies([tf.debugging.assert_less(tf.reduce_sum(target), -1e9, "too much")]):
            return (target - output) ** 2

    built = model()
    built.compile("sgd", broken, jit_compile=False)
    with keras_steps(StepClock(annotation)), pytest.raises(tf.errors.InvalidArgumentError, match="too much"):
        built.fit(pairs(), verbose=0)


@pytest.mark.slow
def test_a_fit_with_checkpoints_resumes_exactly_from_a_capture(tmp_path):
    def trained(folder):
        keras.utils.set_random_seed(7)
        data, built = dataset(ROWS, TARGETS).shuffle(50, seed=3).batch(10), model()
        with tp.capture(tmp_path / folder, keep="none"):
            built.fit(data, epochs=3, verbose=0)
        return built.get_weights()

    with tp.checkpointing(tmp_path / "saved", every=4):
        whole = trained("whole")
    with tp.resume(tp.checkpoints(tmp_path / "saved").before(10)):
        again = trained("again")
    assert all(np.array_equal(one, other) for one, other in zip(whole, again, strict=True))
    assert len(tp.steps(tp.load(tmp_path / "again"))) < 15


@pytest.mark.parametrize("kind", ["pairs", "composite", "unknown rank"])
def test_a_batch_is_drawn_without_a_look_at_the_lengths_of_shapes(monkeypatch, kind):
    """TensorFlow takes an interrupt there for an unknown length, and writes past the end of a buffer."""

    def interrupted(_):
        raise KeyboardInterrupt

    rows = {"ragged": tf.ragged.constant([[1, 2], [3], []]), "sparse": tf.sparse.from_dense(np.eye(3)), "x": ROWS[:3]}
    unknown = tf.data.Dataset.range(3).map(lambda number: tf.numpy_function(np.ones, [number], tf.double))
    sources = {"pairs": pairs, "composite": lambda: tf.data.Dataset.from_tensor_slices(rows).batch(2)}
    data = sources.get(kind, lambda: unknown)()
    plain, drawn = iter(data), iter(data)
    expected = [plain.get_next_as_optional() for _ in range(len(data) + 1)]
    with monkeypatch.context() as patch:
        patch.setattr(tf.TensorShape, "__len__", interrupted)
        found = [one_batch()(drawn).optional for _ in expected]
    assert [bool(one.has_value()) for one in found] == [True] * len(data) + [False]
    assert [one.element_spec for one in found] == [one.element_spec for one in expected]
    for one, other in zip(found[:-1], expected, strict=False):
        for part, same in zip(*(tf.nest.flatten(each.get_value(), True) for each in (one, other)), strict=True):
            assert np.array_equal(part, same)


def test_an_iterator_of_another_kind_is_asked_for_its_batch():
    plain = iter(pairs())
    batch = one_batch()(SimpleNamespace(get_next_as_optional=plain.get_next_as_optional))
    assert batch.optional.has_value()


def test_an_iterator_that_keras_replaces_ends_in_another_thread(monkeypatch):
    """Its end waits for what it prepares, and for its autotuning: seconds, in which nothing is trained."""
    ended = queue.Queue()

    class Data:
        """Stands in for an iterator that prepares batches."""

        def __del__(self):
            ended.put(threading.get_ident())

    class Epochs:
        def __init__(self):
            self.num_batches, self.steps_per_execution, self._epoch_iterator, self.data = 2, 1, object(), Data()

        def __next__(self):
            return 0, 1, self.data

    monkeypatch.setattr(keras_library, "_is_of_tensorflow", lambda kind: kind is Data)
    clock = StepClock(annotation)
    epochs, draw = Epochs(), timed(clock, lambda: "train", Epochs.__next__)
    draw(epochs)
    epochs.data = Data()
    assert ended.empty()
    draw(epochs)
    assert ended.get(timeout=60) != threading.get_ident()
    del epochs  # as the fit ends
    gc.collect()
    assert ended.get(timeout=60) != threading.get_ident()
