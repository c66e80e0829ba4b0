"""Tracing, compilation, checkpoints and garbage collections of frameworks become spans of the clock."""

import gc
import threading
import time
from contextlib import contextmanager, nullcontext

import pytest

from tpunb.instrument import listening
from tpunb.profiler.framework_spans import FrameworkSpans
from tpunb.profiler.loop import Loop
from tpunb.profiler.step_clock import StepClock


@contextmanager
def spans_of(found):
    """Collect (account, detail) of the spans of the block in a list."""
    clock = StepClock(lambda kind, number: nullcontext())
    with FrameworkSpans(clock):
        yield clock
    found += [(spent.account, spent.detail) for spent in clock.take_spans()]


def of(found, account):
    return [detail for name, detail in found if name == account]


def test_long_garbage_collections_are_spans():
    found, garbage = [], [[] for _ in range(300_000)]
    with spans_of(found):
        gc.collect()
    assert "generation 2" in of(found, "garbage collection")
    before = len(gc.callbacks)
    del garbage
    with spans_of([]):
        assert len(gc.callbacks) == before + 1
    assert len(gc.callbacks) == before


def test_what_another_thread_does_is_not_the_trainings():
    found, garbage = [], [[] for _ in range(300_000)]
    with spans_of(found):
        thread = threading.Thread(target=gc.collect)
        thread.start()
        thread.join()
    assert found == []
    del garbage


def test_tensorflow_traces_by_name_and_signature():
    tf = pytest.importorskip("tensorflow")
    found = []

    @tf.function
    def train(x):
        time.sleep(0.005)
        return inner(x) + 1

    @tf.function
    def inner(x):
        return x * 2

    with spans_of(found):
        train(tf.ones((2, 3)))
        train(tf.ones((2, 3)))
        train(tf.ones((4, 3)))
    assert of(found, "program startup") == [
        "tracing train",
        "tracing train again for x = float32(4, 3) (before: float32(2, 3))",
    ]


def test_tensorflow_says_which_value_changed_and_that_a_function_is_made_anew():
    tf = pytest.importorskip("tensorflow")
    found = []

    def made():
        @tf.function
        def step(x, epoch):
            time.sleep(0.005)
            return x * (epoch or 1)

        return step

    with spans_of(found):
        first = made()
        first(tf.ones(2), 1)
        first(tf.ones(2), 2)
        first(tf.ones(2), None)
        made()(tf.ones(2), 2)
    assert of(found, "program startup") == [
        "tracing step",
        "tracing step again for epoch = 2 (before: 1)",
        "tracing step again for epoch = NoneType (before: 2)",
        "tracing step again for a new function",
    ]


def test_jax_traces_and_compiles_by_name():
    jax = pytest.importorskip("jax")
    found = []

    @jax.jit
    def train_of_this_test(x):
        time.sleep(0.005)
        return x * 2

    with spans_of(found):
        train_of_this_test(jax.numpy.ones(3))
        train_of_this_test(jax.numpy.ones(3))
        train_of_this_test(jax.numpy.ones(4))
    assert of(found, "program startup").count("tracing train_of_this_test") == 2
    assert of(found, "program startup").count("compiling jit(train_of_this_test)") == 2


def test_an_exception_while_tracing_is_raised_and_timed():
    tf = pytest.importorskip("tensorflow")
    found = []

    @tf.function
    def broken(x):
        time.sleep(0.005)
        raise KeyError("mine")

    with spans_of(found), pytest.raises(KeyError, match="mine"):
        broken(tf.ones(3))
    assert of(found, "program startup") == ["tracing broken"]
    with spans_of(found):
        tf.function(lambda x: x + 1)(tf.ones(3))  # the next is traced as if nothing had happened


def test_checkpoints_of_tensorflow_are_spans(tmp_path):
    tf = pytest.importorskip("tensorflow")
    found, checkpoint = [], tf.train.Checkpoint(weights=tf.Variable(tf.ones(3)))
    manager = tf.train.CheckpointManager(checkpoint, tmp_path / "managed", max_to_keep=1)
    with spans_of(found):
        manager.save()
        path = checkpoint.save(tmp_path / "saved")
        checkpoint.restore(path)
    saves = of(found, "checkpoint save")
    assert "CheckpointManager.save" in saves
    assert saves[-1] == "Checkpoint.save"
    assert of(found, "checkpoint restore")[-1] == "Checkpoint.restore"


def test_positions_that_tpunb_writes_are_no_checkpoints_of_the_program(tmp_path):
    tf = pytest.importorskip("tensorflow")
    from tpunb.tfdata import position

    found, numbers = [], iter(tf.data.Dataset.range(4))
    with spans_of(found):
        assert position.write(tmp_path / "position", numbers) == ""
        position.read(tmp_path / "position", numbers)
    assert of(found, "checkpoint save") == of(found, "checkpoint restore") == []


def test_checkpoints_of_orbax_are_spans(tmp_path):
    checkpoint, jax = pytest.importorskip("orbax.checkpoint"), pytest.importorskip("jax")
    found, saved = [], {"weights": jax.numpy.ones(3)}
    with spans_of(found) as clock, checkpoint.CheckpointManager(tmp_path / "managed") as manager:
        manager.save(0, args=checkpoint.args.StandardSave(saved))
        manager.save(1, args=checkpoint.args.StandardSave(saved))  # waits for the other
        with checkpoint.StandardCheckpointer() as checkpointer:
            checkpointer.save(tmp_path / "saved", saved)
            checkpointer.wait_until_finished()
            checkpointer.restore(tmp_path / "saved", saved)
    waits = "AsyncCheckpointer.wait_until_finished"
    calls = [*["CheckpointManager.save"] * 2, "AsyncCheckpointer.save", waits]
    assert of(found, "checkpoint save")[: len(calls)] == calls
    assert any(detail.endswith("restore") for detail in of(found, "checkpoint restore"))
    assert clock.metadata["saves"] == "background"


def test_checkpoints_of_keras_are_spans(tmp_path):
    keras = pytest.importorskip("keras")
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    found = []
    with spans_of(found) as clock, listening(Loop(clock)):
        model.save(tmp_path / "model.keras")
        model.save_weights(tmp_path / "model.weights.h5")
        model.load_weights(tmp_path / "model.weights.h5")
        keras.models.load_model(tmp_path / "model.keras")
    assert [detail.split(".")[-1] for detail in of(found, "checkpoint save")] == ["save", "save_weights"]
    assert of(found, "checkpoint restore")[0] == "Sequential.load_weights"
    assert len(of(found, "checkpoint restore")) >= 2


def test_everything_is_as_before_afterwards():
    tf = pytest.importorskip("tensorflow")
    from tensorflow.python.eager.polymorphic_function import tracing_compilation

    before = tracing_compilation._create_concrete_function, tf.train.Checkpoint.save
    with spans_of([]):
        assert tracing_compilation._create_concrete_function is not before[0]
    assert (tracing_compilation._create_concrete_function, tf.train.Checkpoint.save) == before
