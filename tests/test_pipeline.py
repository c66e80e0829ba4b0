"""A pipeline's parameters, and that what they build gives the same elements."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from optional import lazy

from tpunb.errors import TpunbError
from tpunb.tfdata.graph import to_graph
from tpunb.tuning.pipeline import Pipeline

tf = lazy("tensorflow")


def double(x):
    return 2 * x


def halved(x):
    return tf.cast(x, tf.float32) / 2


def epochs(dataset, n=2):
    """Return the elements of some epochs: each a list of arrays with their types."""
    return [[tf.nest.map_structure(_plain, element) for element in dataset] for _ in range(n)]


def _plain(part):
    if isinstance(part, tf.RaggedTensor):
        return "ragged", part.dtype.name, part.to_list()
    if isinstance(part, tf.data.Dataset):
        return [tf.nest.map_structure(_plain, element) for element in part]
    array = np.asarray(part)
    return array.dtype.name, array.shape, array.tolist()


def named(pipeline):
    return {parameter.name: parameter for parameter in pipeline.parameters}


def safe(pipeline):
    return [parameter for parameter in pipeline.parameters if parameter.verdict == "safe"]


def ranged():
    return tf.data.Dataset.range(11)


# ---- what is read


def test_a_pipeline_is_read_stage_by_stage():
    data = ranged().map(double).shuffle(4, seed=1).map(lambda x: x + 1, num_parallel_calls=3).batch(2).prefetch(5)
    parameters = named(Pipeline(data))
    assert list(parameters) == [
        "map:1(double) parallel calls",
        "shuffle:2 buffer",
        "map:3 parallel calls",
        "batch:4 parallel copy",
        "batch:4 size",
        "prefetch:5 buffer",
        "options private threads",
    ]
    current = {name: parameter.current for name, parameter in parameters.items()}
    assert current["map:3 parallel calls"] == 3
    assert current["shuffle:2 buffer"] == 4
    assert current["prefetch:5 buffer"] == 5
    assert [name for name, parameter in parameters.items() if parameter.verdict == "locked"] == [
        "shuffle:2 buffer",
        "batch:4 size",
    ]
    assert all(
        parameter.current in parameter.domain for parameter in parameters.values() if parameter.verdict != "locked"
    )
    assert all(not parameter.domain for parameter in parameters.values() if parameter.verdict == "locked")
    assert parameters["map:3 parallel calls"].stage == "map:3"


def test_a_plain_map_is_what_tf_data_makes_of_it():
    assert named(Pipeline(ranged().map(double)))["map:1(double) parallel calls"].current == -1
    options = tf.data.Options()
    options.experimental_optimization.map_parallelization = False
    off = Pipeline(ranged().map(double).with_options(options))
    assert named(off)["map:1(double) parallel calls"].current == 1


def test_an_interleave_runs_no_more_calls_than_its_cycle_is_long():
    parameters = named(Pipeline(ranged().interleave(nested, cycle_length=3, block_length=2)))
    assert parameters["interleave:1(nested) parallel calls"].domain == (1, 2, 3, -1)
    assert parameters["interleave:1(nested) cycle length"].verdict == "locked"
    assert parameters["interleave:1(nested) block length"].current == 2


def test_every_input_of_a_zip_is_walked():
    left, right = ranged().map(double), ranged().batch(2).map(halved)
    data = tf.data.Dataset.zip(left, tf.data.Dataset.zip(right, ranged())).map(lambda x, y: x)
    names = [stage.name for stage in Pipeline(data).stages]
    assert names == [
        "1/range:0",
        "1/map:1(double)",
        "2.1/range:0",
        "2.1/batch:1",
        "2.1/map:2(halved)",
        "2.2/range:0",
        "2/zip:3",
        "zip:4",
        "map:5",
    ]


def test_two_stages_never_share_a_name():
    data = ranged().map(double)
    pipeline = Pipeline(tf.data.Dataset.zip(data, data.concatenate(data), data.enumerate()))
    assert len({parameter.name for parameter in pipeline.parameters}) == len(pipeline.parameters)
    assert len({stage.name for stage in pipeline.stages}) == len(pipeline.stages)


def generating():
    generator = tf.random.Generator.from_seed(1)
    return ranged().map(lambda x: generator.normal(()))


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: ranged().map(double).cache("never-written"), "caches in files"),
        (generating, "draws from a tf.random.Generator"),
        (lambda: tf.data.Dataset.random(seed=1, rerandomize_each_iteration=True).take(3), "random"),
    ],
)
def test_a_pipeline_with_outside_state_cannot_be_rebuilt(build, words):
    pipeline = Pipeline(build())
    assert words in pipeline.refusal
    assert {parameter.verdict for parameter in pipeline.parameters} == {"locked"}
    with pytest.raises(TpunbError, match="this pipeline cannot be rebuilt"):
        pipeline.build({})


def test_python_makes_every_parameter_of_the_pipeline_need_verification():
    pipeline = Pipeline(ranged().map(double).map(lambda x: tf.py_function(double, [x], tf.int64)).batch(2))
    verdicts = {parameter.name: parameter.verdict for parameter in pipeline.parameters}
    assert verdicts["map:2 parallel calls"] == "verify"
    assert verdicts["map:1(double) parallel calls"] == "verify"
    assert verdicts["end prefetch"] == "verify"
    assert "map:2 runs Python" in named(pipeline)["end prefetch"].reason


def test_a_map_that_draws_random_numbers_is_locked():
    pipeline = Pipeline(ranged().map(lambda x: tf.random.uniform(())).shuffle(3))
    parameter = named(pipeline)["map:1 parallel calls"]
    assert parameter.verdict == "locked"
    assert "RandomUniform" in parameter.reason


def test_a_map_that_reads_a_variable_needs_verification():
    variable = tf.Variable(2, dtype=tf.int64)
    pipeline = Pipeline(ranged().map(lambda x: x * variable))
    assert {parameter.verdict for parameter in pipeline.parameters} == {"verify"}
    built = pipeline.build({})
    variable.assign(5)
    assert next(iter(built.skip(1))) == 2
    assert variable.numpy() == 5


def test_a_nondeterministic_pipeline_needs_verification():
    data = ranged().map(double, num_parallel_calls=4, deterministic=False)
    assert {parameter.verdict for parameter in Pipeline(data).parameters} <= {"verify", "locked"}


def test_invalid_values_raise():
    pipeline = Pipeline(ranged().map(double).shuffle(3, seed=1).batch(2))
    with pytest.raises(ValueError, match="no parameter is named 'map:9 parallel calls'"):
        pipeline.build({"map:9 parallel calls": 2})
    with pytest.raises(ValueError, match=r"must be an integer from 1 to \d+ or -1"):
        pipeline.build({"map:1(double) parallel calls": 0})
    with pytest.raises(ValueError, match="must be an integer"):
        pipeline.build({"map:1(double) parallel calls": True})
    with pytest.raises(TpunbError, match="the batch size changes the training"):
        pipeline.build({"batch:3 size": 4})
    with pytest.raises(ValueError, match="one of False, True"):
        pipeline.build({"batch:3 parallel copy": "backwards"})
    pipeline.build({"batch:3 size": 2, "map:1(double) parallel calls": 3})  # as it is; and between two of the domain


def test_only_a_dataset_is_a_pipeline():
    with pytest.raises(TypeError, match=r"tf\.data\.Dataset"):
        Pipeline([1, 2])


# ---- what is built


def test_the_shuffle_of_the_program_does_not_advance():
    def make():
        return ranged().shuffle(11, seed=3).batch(4)

    data, untouched = make(), make()
    pipeline = Pipeline(data)
    built = pipeline.build({"end prefetch": 2})
    assert epochs(built, 3) == epochs(untouched, 3)
    assert epochs(data, 3) == epochs(make(), 3)
    assert epochs(pipeline.build({}), 2) == epochs(make(), 2)  # every build begins anew


def test_two_uses_of_one_shuffle_still_share_it():
    def make():
        shuffled = ranged().shuffle(11, seed=3)
        return tf.data.Dataset.zip(shuffled, shuffled.map(double))

    assert epochs(Pipeline(make()).build({}), 3) == epochs(make(), 3)


def test_the_cache_of_the_program_is_not_filled():
    seen = []

    def note(x):
        seen.append(int(x))
        return x

    data = ranged().map(lambda x: tf.py_function(note, [x], tf.int64)).cache()
    list(Pipeline(data).build({}))
    assert len(seen) == 11
    list(data)
    assert len(seen) == 22  # its own is filled by itself


def test_options_of_the_program_are_kept():
    options = tf.data.Options()
    options.threading.max_intra_op_parallelism = 1
    options.threading.private_threadpool_size = 3
    pipeline = Pipeline(ranged().map(double).with_options(options))
    assert named(pipeline)["options private threads"].current == 3
    for values, threads in (({}, 3), ({"options private threads": 8}, 8)):
        built = pipeline.build(values).options()
        assert built.threading.private_threadpool_size == threads
        assert built.threading.max_intra_op_parallelism == 1


def test_what_is_built_outlives_the_pipeline():
    def build():
        return Pipeline(ranged().map(lambda x: tf.numpy_function(double, [x], tf.int64)).shuffle(3, seed=1)).build({})

    assert len(epochs(build().batch(2), 1)[0]) == 6


def test_spec_and_cardinality_stay():
    data = ranged().map(lambda x: {"x": x, "y": (halved(x), tf.strings.as_string(x))}).padded_batch(3)
    built = Pipeline(data).build({"end prefetch": 2})
    assert built.element_spec == data.element_spec
    assert int(built.cardinality()) == int(data.cardinality()) == 4


# ---- one iterator checkpoint for all values


def checkpoint_chain():
    return (
        tf.data.Dataset.range(6)
        .interleave(lambda i: tf.data.Dataset.range(i, i + 4), cycle_length=3)
        .map(double)
        .shuffle(7, seed=5)
        .repeat(3)
        .batch(5)
    )


PARAMETERS = {
    "interleave:1 parallel calls": (1, 3),
    "map:2(double) parallel calls": (1, -1),
    "batch:5 parallel copy": (True,),
    "end prefetch": (0, 4, -1),
    "options private threads": (0, 2),
}


@pytest.mark.parametrize("position", [1, 9])
def test_one_iterator_checkpoint_restores_into_every_value(tmp_path, position):
    pipeline = Pipeline(checkpoint_chain())
    iterator = iter(pipeline.build({}))
    for _ in range(position):
        next(iterator)
    path = tf.train.Checkpoint(it=iterator).write(str(tmp_path / "at"))
    rest = [batch.numpy().tolist() for batch in iterator]
    assert len(rest) == 15 - position
    for combination in itertools.product(*PARAMETERS.values()):
        values = dict(zip(PARAMETERS, combination, strict=True))
        other = iter(pipeline.build(values))
        tf.train.Checkpoint(it=other).read(path).assert_consumed()
        assert [batch.numpy().tolist() for batch in other] == rest, values


@pytest.mark.parametrize("seed", [None, 3])
def test_later_epochs_are_unchanged(tmp_path, seed):
    def make():
        return ranged().shuffle(11, seed=seed).map(double).batch(3)

    pipeline = Pipeline(make())
    current = pipeline.build({})
    list(current)
    iterator = iter(current)
    next(iterator)
    path = tf.train.Checkpoint(it=iterator).write(str(tmp_path / "at"))
    rest = [batch.numpy().tolist() for batch in iterator]
    later = epochs(current)
    same = Pipeline(make())  # as in another process
    same.entropy = pipeline.entropy
    for built in (pipeline.build({"map:2(double) parallel calls": 4, "end prefetch": 2}), same.build({})):
        other = iter(built)
        tf.train.Checkpoint(it=other).read(path).assert_consumed()
        assert [batch.numpy().tolist() for batch in other] == rest
        assert epochs(built) == later
    assert (epochs(Pipeline(make()).build({}), 3)[2] == later[0]) == (seed is not None)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: ranged().shuffle(4, seed=1).cache().take(5).map(double), "take:3 may end before cache:2 does"),
        (lambda: ranged().shuffle(4, seed=1).repeat().take(30).map(double), "take:3 may end before repeat:2 does"),
        (lambda: ranged().concatenate(ranged().shuffle(4, seed=1)).take(9).map(double), "before concatenate:2 does"),
        (lambda: tf.data.Dataset.zip(ranged(), ranged().shuffle(4, seed=1).repeat()), "before 2/repeat:2 does"),
    ],
    ids=["cache", "repeat", "concatenate", "zip"],
)
def test_a_shuffle_that_may_restart_early_needs_verification(build, words):
    """How far a stage reads ahead then says how often the shuffle begins, and its next order with it."""
    pipeline = Pipeline(build())
    assert {parameter.verdict for parameter in pipeline.parameters} == {"verify", "locked"}
    assert words in named(pipeline)["end prefetch"].reason


@pytest.mark.parametrize(
    "build",
    [
        lambda: ranged().cache().take(5).map(double),
        lambda: ranged().shuffle(4, seed=1).cache().map(double),
        lambda: ranged().shuffle(4, seed=1).take(5).map(double),
        lambda: ranged().shuffle(4, seed=1).repeat(2).map(double),
        lambda: ranged().concatenate(ranged().shuffle(4, seed=1)).map(double),
    ],
)
def test_a_shuffle_that_no_stage_cuts_short_is_safe(build):
    assert safe(Pipeline(build()))


@pytest.mark.parametrize("size", [-1, 0, 2])
def test_a_buffer_that_tf_data_sizes_is_never_without_a_place(size):
    """While it has none, who asks takes elements past it, and may overtake those that are put in as it grows."""
    built = Pipeline(ranged().prefetch(-1).map(double).batch(2)).build({"end prefetch": size})
    nodes = [node for node in to_graph(built).node if node.op == "PrefetchDataset"]
    assert len(nodes) == 2
    assert all(node.attr["buffer_size_min"].i == 1 for node in nodes)
    assert epochs(built) == epochs(ranged().map(double).batch(2))


# ---- as code


def test_code_names_the_stages():
    data = ranged().interleave(nested, cycle_length=4).map(double).map(lambda x: x + 1).batch(2)
    values = {
        "interleave:1(nested) parallel calls": 4,
        "map:2(double) parallel calls": 8,
        "map:3 parallel calls": 2,
        "end prefetch": 2,
        "options private threads": 32,
    }
    assert Pipeline(data).as_code(values).splitlines() == [
        "ds = ds.interleave(nested, ..., num_parallel_calls=4)  # stage 1 from the source",
        "ds = ds.map(double, num_parallel_calls=8)  # stage 2 from the source",
        "ds = ds.map(..., num_parallel_calls=2)  # stage 3 from the source",
        "options = tf.data.Options()",
        "options.threading.private_threadpool_size = 32",
        "ds = ds.with_options(options)",
        "ds = ds.prefetch(2)",
    ]
    assert Pipeline(data).as_code({}) == ""


def test_code_of_stages_and_options():
    pipeline = Pipeline(ranged().map(double).batch(2).prefetch(1))
    values = {"batch:2 parallel copy": True, "prefetch:3 buffer": -1}
    assert pipeline.as_code(values).splitlines() == [
        "ds = ds.prefetch(tf.data.AUTOTUNE)  # stage 3 from the source",
        "options = tf.data.Options()",
        "options.experimental_optimization.parallel_batch = True  # for all batch stages",
        "ds = ds.with_options(options)",
    ]


# ---- random chains


def nested(x):
    return tf.data.Dataset.range(x % 4)


def drawn(x):
    return tf.random.stateless_uniform((), seed=tf.stack([x, x]), maxval=50, dtype=tf.int64)


FLAT = {
    "map": lambda ds: ds.map(double),
    "drawn": lambda ds: ds.map(drawn),
    "parallel": lambda ds: ds.map(lambda x: x + 7, num_parallel_calls=3),
    "shuffle": lambda ds: ds.shuffle(4, seed=3),
    "fixed": lambda ds: ds.shuffle(6, seed=4, reshuffle_each_iteration=False),
    "repeat": lambda ds: ds.repeat(2),
    "take": lambda ds: ds.take(13),
    "skip": lambda ds: ds.skip(2),
    "filter": lambda ds: ds.filter(lambda x: x % 3 > 0),
    "cache": lambda ds: ds.cache(),
    "prefetch": lambda ds: ds.prefetch(1),
    "interleave": lambda ds: ds.interleave(nested, cycle_length=3, block_length=2),
    "flat": lambda ds: ds.flat_map(nested),
    "rebatched": lambda ds: ds.batch(3).map(double).unbatch(),
    "scan": lambda ds: ds.scan(np.int64(0), lambda s, x: (s + x, s + x)),
    "zip": lambda ds: tf.data.Dataset.zip(ds, ranged().repeat()).map(lambda x, y: x - y),
    "concatenate": lambda ds: ds.concatenate(ranged().map(double).shuffle(3, seed=9)),
}


@examples(8)
@given(
    st.lists(st.sampled_from(sorted(FLAT)), min_size=1, max_size=6),
    st.booleans(),
    st.data(),
)
def test_random_chains_give_the_same_elements_with_random_safe_values(names, batched, data):
    def make():
        dataset = ranged()
        for name in names:
            dataset = FLAT[name](dataset).take(60)
        return dataset.batch(4) if batched else dataset

    pipeline = Pipeline(make())
    assert pipeline.refusal is None
    expected = epochs(make(), 3)
    for _ in range(2):
        values = {
            parameter.name: data.draw(st.sampled_from(parameter.domain), label=parameter.name)
            for parameter in safe(pipeline)
        }
        assert epochs(pipeline.build(values), 3) == expected
        pipeline.as_code(values)
