"""Tracing, compilation, checkpoints and garbage collections of libraries become spans of the clock."""

import gc
import sys
import threading
import time
import types
from contextlib import contextmanager, nullcontext

import pytest

from tpunb.instrument import listening, tensorflow
from tpunb.instrument.sink import What
from tpunb.profiler import step_clock
from tpunb.profiler.loop import Loop
from tpunb.profiler.step_clock import StepClock


@contextmanager
def spans_of(found):
    """Collect (account, detail) of the spans of the block in a list."""
    clock = StepClock(lambda kind, number: nullcontext())
    with listening(Loop(clock)):
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


def test_an_annotated_step_of_tensorflow_evaluates_if_that_is_its_name():
    tf, found = pytest.importorskip("tensorflow"), []
    names = "train", "test", "test-time training", "validation", "variational_inference"
    with spans_of([]) as clock:
        for number, name in enumerate(names):
            with tf.profiler.experimental.Trace(name, step_num=number):
                pass
        found += clock.take(final=True)
    assert [step.kind for step in found] == ["train", "eval", "train", "eval", "train"]


@pytest.mark.parametrize("fetches", [False, True])
def test_batches_that_keras_tests_between_those_of_a_training_are_an_evaluation(fetches):
    tf, keras = pytest.importorskip("tensorflow"), pytest.importorskip("keras")
    if keras.config.backend() != "tensorflow":
        pytest.skip("other libraries compile functions of two names")
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    x, y = tf.ones((16, 4)), tf.ones((16, 2))
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(4)
    clock = StepClock(lambda kind, number: nullcontext())
    loop = Loop(clock)
    with listening(loop):
        for _ in range(3):
            for batch in data if fetches else [(x, y)] * 4:
                model.train_on_batch(*batch)
            for batch in data if fetches else [(x, y)] * 4:
                model.test_on_batch(*batch)
        loop.close()
    assert [step.kind for step in clock.take(final=True)] == [*["train"] * 4, *["eval"] * 4] * 3


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


@pytest.mark.parametrize("within", ["step", "a function of it", "data", None])
def test_whether_a_step_of_tensorflow_calls_python_is_a_fact_of_the_run(within):
    tf = pytest.importorskip("tensorflow")

    def python(x):
        return tf.numpy_function(lambda x: x + 1, [x], tf.float32)

    @tf.function
    def inner(x):
        return python(x) if within == "a function of it" else x * 2

    @tf.function
    def step(x):
        return python(x) if within == "step" else inner(x)

    with spans_of([]) as clock:
        data = tf.data.Dataset.from_tensors(tf.ones(2))
        step(next(iter(data.map(python) if within == "data" else data)))
    assert clock.metadata.get("python") == ("step" if within in ("step", "a function of it") else None)


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
    compiled = [detail for detail in of(found, "program startup") if "compiling jit(train_of_this_test)" in detail]
    assert compiled == [
        "compiling jit(train_of_this_test)",
        "compiling jit(train_of_this_test) again for float32[4] (before: float32[3])",
    ]


def test_what_jax_traced_within_another_function_is_compiled_for_the_first_time_alone():
    jax = pytest.importorskip("jax")
    found = []

    @jax.jit
    def loss_of_this_test(x):
        time.sleep(0.005)
        return (x * 2).sum()

    with spans_of(found):
        jax.jit(lambda x: x - loss_of_this_test(x))(jax.numpy.ones(3))
        loss_of_this_test(jax.numpy.ones(3))
    compiled = [detail for detail in of(found, "program startup") if "compiling jit(loss_of_this_test)" in detail]
    assert compiled == ["compiling jit(loss_of_this_test)"]


def test_what_jax_calls_as_it_takes_gradients_has_its_name_and_is_a_part_if_it_is_of_jax():
    jax = pytest.importorskip("jax")
    calls = set()

    class Calls(Loop):
        def called(self, function, *args, what, **kwargs):
            calls.add((function, what.is_part_of_steps))

    @jax.jit
    def loss_of_this_test(x):
        return (x * x).sum()

    with listening(Calls(StepClock(lambda kind, number: nullcontext()))):
        for _ in range(3):
            jax.grad(lambda x: loss_of_this_test(jax.numpy.where(x > 1, x, 0.5)))(jax.numpy.ones(3))
    assert {("loss_of_this_test", False), ("_where", True)} <= calls
    assert {function for function, is_part in calls if not is_part} == {"loss_of_this_test"}


def test_an_iterator_of_tensorflow_that_ends_with_python_is_left_alone(monkeypatch):
    ended = []
    sink = types.SimpleNamespace(is_training=lambda: ended.append(True))
    for is_exit in (False, True):
        monkeypatch.setattr(tensorflow._End, "_is_exit", staticmethod(lambda is_exit=is_exit: is_exit))
        iterator = type("Iterator", (), {})()
        iterator.end = tensorflow._End(sink, iterator)
        del iterator
        gc.collect()
    assert ended == [True]


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
    with spans_of(found):
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


@pytest.fixture
def library(monkeypatch):
    """Return a function that makes modules of a library, from their names and what they hold."""

    def make(**modules):
        for name, attributes in modules.items():
            module = types.ModuleType(name.replace("__", "."))
            module.__dict__.update(attributes)
            monkeypatch.setitem(sys.modules, module.__name__, module)

    gc.disable()  # a collection is a span, too
    yield make
    gc.enable()


def lasting(*_, **__):
    time.sleep(0.005)


def test_of_calls_within_each_other_the_outer_one_is_the_event(library):
    class Trainer:
        def _save_checkpoint(self):
            self.save_model()

        def save_model(self):
            lasting()

        def evaluate(self):
            lasting()

        predict = evaluate

    library(transformers={}, transformers__trainer={"Trainer": Trainer})
    found = []
    with spans_of(found):
        Trainer()._save_checkpoint()
        Trainer().save_model()
        Trainer().evaluate()
    assert found == [
        ("checkpoint save", "Trainer._save_checkpoint"),
        ("checkpoint save", "Trainer.save_model"),
        ("evaluation", "Trainer.evaluate"),
    ]


def test_callbacks_of_transformers_are_spans_and_may_add_another(library):
    class Slow:
        on_save = lasting

    class Handler:
        def __init__(self):
            self.callbacks = [Slow()]

        def call_event(self, event, args):
            for callback in self.callbacks:
                getattr(callback, event)(args)
            self.callbacks.append(None)

    library(transformers={}, transformers__trainer_callback={"CallbackHandler": Handler})
    found, handler = [], Handler()
    callbacks = handler.callbacks
    with spans_of(found):
        handler.call_event("on_save", 1)
    assert found == [("callbacks", "Slow.on_save")]
    assert handler.callbacks is callbacks
    assert len(callbacks) == 2


def test_hooks_of_lightning_are_spans_by_class_and_name(library):
    class Profiler:
        @contextmanager
        def profile(self, action_name):
            yield action_name

    names = {"lightning": {}, "lightning__pytorch__profilers__profiler": {"Profiler": Profiler}}
    library(**names)
    found = []
    with spans_of(found):
        for action in ("[Callback]Stop{'monitor': 'loss'}.on_validation_end", "run_training_batch"):
            with Profiler().profile(action) as value:
                assert value == action
                lasting()
    assert found == [("callbacks", "Stop.on_validation_end")]


def test_saves_of_orbax_in_the_background_are_a_fact_of_the_run(library):
    class AsyncCheckpointer:
        save = wait_until_finished = lasting

    home = "orbax__checkpoint___src__checkpointers__async_checkpointer"
    library(orbax={}, **{home: {"AsyncCheckpointer": AsyncCheckpointer}})
    found = []
    with spans_of(found) as clock:
        AsyncCheckpointer().save()
        AsyncCheckpointer().wait_until_finished()
    assert found == [
        ("checkpoint save", "AsyncCheckpointer.save"),
        ("checkpoint save", "AsyncCheckpointer.wait_until_finished"),
    ]
    assert clock.metadata == {"saves": "background"}


def test_a_wait_for_other_ranks_is_what_the_thread_does_not_work(monkeypatch):
    clock = StepClock(lambda kind, number: nullcontext())
    now_ns, worked_ns = iter([10, 100, 100]), iter([0, 30])
    monkeypatch.setattr(step_clock, "monotonic_ns", lambda: 1_000_000 * next(now_ns))
    monkeypatch.setattr(step_clock, "thread_time_ns", lambda: 1_000_000 * next(worked_ns))
    with clock.during("wait", What("torch", "torch", "barrier")):
        pass
    assert clock.take_spans() == [("waiting for other ranks", "barrier", 40_000_000, 100_000_000)]
