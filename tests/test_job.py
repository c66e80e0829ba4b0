"""Jobs: a model and its data, stepped as the program steps them, and put back as if no step had been taken."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
import pytest
from optional import lazy
from slow_jobs import everything

from tpunb.errors import TpunbError
from tpunb.training.state import arrays, digest
from tpunb.tuning.grain import GrainPipeline
from tpunb.tuning.job import Job, as_job, read
from tpunb.tuning.pipeline import Pipeline
from tpunb.tuning.results import Tuning

grain, keras, tf = lazy("grain"), lazy("keras"), lazy("tensorflow")


def data(n=24):
    numbers = np.random.default_rng(7)
    x, y = numbers.normal(size=(n, 6)).astype("f"), numbers.normal(size=(n, 1)).astype("f")
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(4)


def little(*, built=True, **compiled):
    keras.utils.set_random_seed(3)
    first = [keras.Input((6,))] if built else []
    layers = [
        keras.layers.Dense(5),
        keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.4),
        keras.layers.Dense(1),
    ]
    model = keras.Sequential([*first, *layers], name="little")
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse", metrics=["mae"], **compiled)
    return model


@pytest.fixture(scope="module")
def fitted():
    """The history of a fit of two epochs."""
    return little().fit(data(), epochs=2, shuffle=False, verbose=0).history


# ---- Keras


@pytest.mark.live
@pytest.mark.parametrize("built", [True, False])
def test_an_execution_is_a_step_of_fit(built, fitted):
    training = Job(lambda: (little(built=built), data())).training
    iterator = iter(data())
    for _ in range(6):
        outputs = training.execute(iterator)
    assert {name: float(value) for name, value in outputs.items()} == {name: fitted[name][0] for name in fitted}


@pytest.mark.live
def test_after_trials_the_run_is_what_it_would_have_been(fitted):
    job = Job(lambda: (little(), data()))
    training = job.training
    model = job.parts[0]
    before, state = everything(model), training.state()
    assert len(before[0]) > 15
    for _ in range(2):
        iterator = iter(data())
        for _ in range(3):
            training.execute(iterator)
        random.random(), np.random.random()
        assert everything(model) != before
        training.restore(state)
        assert everything(model) == before
    assert model.fit(data(), epochs=2, verbose=0).history == fitted


def test_keras_global_seeds_are_restored():
    training = Job(lambda: (little(), data())).training

    def drawn():
        state = training.state()
        first = keras.random.normal((2,)).numpy().tolist()
        training.restore(state)
        return first

    assert drawn() == drawn()
    keras.utils.set_random_seed(4)
    assert keras.random.normal((2,)).numpy().tolist() != drawn()


@pytest.mark.live
def test_an_execution_has_as_many_steps_as_the_model_is_compiled_with():
    training = Job(lambda: (little(steps_per_execution=3), data())).training
    assert training.steps == 3
    iterator = iter(data())
    training.execute(iterator)
    training.execute(iterator)
    assert int(training.model.optimizer.iterations) == 6
    with pytest.raises(StopIteration):
        training.execute(iterator)


@pytest.mark.live
def test_the_digest_differs_if_the_last_bit_does():
    training = Job(lambda: (little(), data())).training
    state = training.state()

    def run():
        training.restore(state)
        return digest(training.values([training.execute(iter(data()))]))

    assert run() == run()
    loss, more = np.float32(1), np.nextafter(np.float32(1), np.float32(2))
    training.restore(state)
    first = digest(training.values([loss]))
    assert digest(training.values([more])) != first
    weight = state.values[0]
    weight[0, 0] = np.nextafter(weight[0, 0], 9, dtype="f")
    training.restore(state)
    assert digest(training.values([loss])) != first


# ---- custom loops


@pytest.mark.live
def test_a_tensorflow_loop_is_restored():
    model, optimizer = little(), keras.optimizers.SGD(0.1, momentum=0.9)
    parts = {"model": model, "optimizer": optimizer, "traced": [0]}

    def step(parts, batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((parts["model"](x, training=True) - y) ** 2)
        variables = parts["model"].trainable_variables
        parts["optimizer"].apply(tape.gradient(loss, variables), variables)
        parts["traced"][0] += 1
        return loss

    training = Job(lambda: (parts, data()), step).training
    state, before = training.state(), everything(model)
    momenta = [variable.numpy().tolist() for variable in optimizer.variables]
    digests = []
    for _ in range(2):
        training.restore(state)
        iterator = iter(data())
        digests.append(digest(training.values([training.execute(iterator) for _ in range(3)])))
    assert digests[0] == digests[1]
    assert everything(model) != before
    training.restore(state)
    assert everything(model) == before
    assert [variable.numpy().tolist() for variable in optimizer.variables] == momenta
    assert parts["traced"] == [0]


@dataclass
class Counting:
    weights: np.ndarray
    steps: int = 0


def test_a_loop_of_other_objects_runs_on_a_copy():
    own = Counting(np.zeros(2))

    def step(model, batch):
        model.weights += batch[0].numpy().mean()
        model.steps += 1
        return model.weights.sum()

    training = Job(lambda: (own, data()), step).training
    state = training.state()
    digests = []
    for _ in range(2):
        training.restore(state)
        iterator = iter(data())
        digests.append(digest(training.values([training.execute(iterator), training.execute(iterator)])))
    assert digests[0] == digests[1]
    training.restore(state)
    assert digest(training.values([])) != digests[0]
    assert own.steps == 0
    assert own.weights.tolist() == [0, 0]


# ---- pairs and arrays


def arrays_of(n=70):
    numbers = np.random.default_rng(7)
    return numbers.normal(size=(n, 6)).astype("f"), numbers.normal(size=(n, 1)).astype("f")


def test_a_pair_is_a_job():
    model, pair = little(), data()
    job = Job((model, pair))
    assert job.parts == (model, pair)
    assert repr(job) == "Job(little, tf.data, 1 model)"


@pytest.mark.live
@pytest.mark.parametrize("weights", [(), (np.ones(70, "f"),)])
def test_arrays_are_stepped_as_fit_steps_them(weights):
    given = (*arrays_of(), *weights)
    model = little()
    job = Job(lambda: (model, given))
    training, iterator = job.training, iter(job.parts[1])
    for _ in range(3):
        outputs = training.execute(iterator)
    with pytest.raises(StopIteration):
        training.execute(iterator)
    sample = {"sample_weight": weights[0]} if weights else {}
    history = little().fit(*given[:2], **sample, epochs=1, shuffle=False, verbose=0)
    assert float(outputs["loss"]) == history.history["loss"][0]
    assert repr(job) == "Job(little, arrays, 1 model)"


def test_the_code_for_arrays_applies_the_tuning():
    x, y = (np.arange(40, dtype="f") + offset for offset in (0, 100))
    job = Job((little(), (x, y)))
    assert job.pipeline.as_code({"end prefetch": 4}).startswith("data = tuning.apply((x, y))")
    assert job.pipeline.as_code({}) == ""
    tf.random.set_seed(None)  # which `little` set: with it, fit repeats the same order too
    values = {"map:5(grab_batch) parallel calls": 2, "1/map:1(permutation) parallel calls": 2}
    applied = Tuning((), values).apply((x, y))
    first, second = ([batch[0].numpy().tolist() for batch in applied] for _ in range(2))
    assert [len(rows) for rows in first] == [32, 8]
    assert first != second, "it shuffles in each epoch, as fit does"
    assert sorted(row for batch in first for row in batch) == x.tolist()


# ---- names and errors


def test_a_job_builds_when_it_is_needed_and_once():
    built = []

    def bert():
        built.append(1)
        return little(), data()

    job = Job(bert)
    assert repr(job) == "Job(bert, not built yet)"
    assert built == []
    assert isinstance(job.pipeline, Pipeline)
    assert job.training
    assert built == [1]
    assert repr(job) == "Job(little, tf.data, 1 model)"


def test_grain_data_need_a_step_function():
    grain = pytest.importorskip("grain")
    job = Job(lambda: (little(), grain.MapDataset.range(9)))
    assert isinstance(job.pipeline, GrainPipeline)
    assert repr(job) == "Job(little, Grain, 1 model)"
    with pytest.raises(TpunbError, match="Grain"):
        _ = job.training


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: 3, r"return \(model, data\)"),
        ((3,), r"return \(model, data\)"),
        ((little, ("text", 3)), "a dataset, or a tuple of arrays"),
        ((little, (np.zeros(3), np.zeros(4))), "a dataset, or a tuple of arrays"),
        (lambda: (3, data()), "a compiled Keras model"),
        (lambda: (keras.Sequential([keras.layers.Dense(1)]), data()), "a compiled Keras model"),
    ],
)
def test_invalid_jobs_raise(build, words):
    with pytest.raises(TypeError, match=words):
        _ = Job(build).training


def test_arguments_that_are_not_callable_raise_at_once():
    with pytest.raises(TypeError, match="build parameter"):
        Job(3)
    with pytest.raises(TypeError, match="step parameter") as found:
        Job(little(), data())
    assert found.value.__notes__ == ["Hint: pass the model and its data as a pair: tp.tuning.Job((model, data))"]
    with pytest.raises(TypeError, match="step parameter"):
        Job(little, 3)


def test_a_model_of_other_data_raises():
    with pytest.raises(TpunbError, match="little cannot be built"):
        _ = Job(
            lambda: (little(), tf.data.Dataset.from_tensors((np.zeros((4, 7), "f"), np.zeros((4, 1), "f"))))
        ).training


def test_arrays_are_found_where_they_lie():
    assert [a.tolist() for a in arrays([Counting(np.ones(2)), "a", {"b": np.float32(3)}])] == [[1, 1], 0, 3]
    assert digest([1.0], []) != digest([1], [])


@pytest.mark.parametrize("given", [np.zeros((999, 3)), [np.zeros((999, 3))] * 50, {"x": np.zeros((999, 3))}])
def test_data_of_no_pipeline_are_refused_in_one_line(given):
    for job in (Job((little(), given)), Job((None, given), lambda model, batch: batch)):
        with pytest.raises(TypeError, match=r"must hold a tf\.data\.Dataset.*ndarray of shape \(999, 3\)") as raised:
            _ = job.training
        assert "\n" not in str(raised.value)
        assert len(str(raised.value)) < 500


@pytest.mark.live
@pytest.mark.parametrize("strategy", ["MirroredStrategy", "OneDeviceStrategy"])
def test_a_model_of_one_replica_is_built_in_the_scope_of_its_strategy(strategy):
    kind = getattr(tf.distribute, strategy)
    with kind(*[["CPU:0"] if strategy == "MirroredStrategy" else "CPU:0"]).scope():
        model = little(built=False)
    training = Job((model, data())).training
    outputs = training.execute(iter(data()))
    alone = Job((little(built=False), data())).training.execute(iter(data()))
    assert {name: float(value) for name, value in outputs.items()} == {k: float(v) for k, v in alone.items()}


# ---- data alone


def test_data_alone_are_a_job_whose_step_is_a_digest_of_the_batch():
    def rows():
        return grain.MapDataset.range(24).map(lambda n: {"n": n, "text": f"row {n}"}).batch(4).to_iter_dataset()

    job = as_job(rows())
    assert repr(job) == "Job(Grain, read without a model)"
    first, second = (job.training.execute(iter(rows())) for _ in range(2))
    assert first.tolist() == second.tolist()
    other = job.training.execute(iter(rows().map(lambda batch: batch | {"text": [*batch["text"][:-1], "row 4"]})))
    assert other.tolist() != first.tolist()
    assert repr(as_job(data())) == "Job(tf.data, read without a model)"
    with pytest.raises(TypeError, match="be omitted"):
        as_job(job, rows())


@pytest.mark.parametrize(
    "other", [[2], [1.0], (np.int64(1), 1), ["1"], {"a": 2}, {"b": 1}, np.array([None, "a"], object)]
)
def test_whatever_a_batch_holds_is_in_its_digest(other):
    batches = [[1], {"a": 1}, np.array([None, "b"], object)]
    assert [read(None, batch).tolist() for batch in batches] == [read(None, batch).tolist() for batch in batches]
    assert read(None, other).tolist() not in [read(None, batch).tolist() for batch in batches]
