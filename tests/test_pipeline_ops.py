"""Every dataset operation in common use: rebuilt with other parameters, element for element the same, or refused."""

from __future__ import annotations

import random

import numpy as np
import pytest
from optional import lazy

from tpunb.errors import TpunbError
from tpunb.tuning.pipeline import Pipeline

tf = lazy("tensorflow")


def double(x):
    return 2 * x


def epochs(dataset, n=2):
    """Return the elements of some epochs as plain values with their types."""
    return [[tf.nest.map_structure(_plain, element) for element in dataset] for _ in range(n)]


def _plain(part):
    if isinstance(part, tf.RaggedTensor | tf.SparseTensor):
        part = tf.sparse.to_dense(part) if isinstance(part, tf.SparseTensor) else part
        return part.dtype.name, part.to_list() if hasattr(part, "to_list") else part.numpy().tolist()
    if isinstance(part, tf.data.Dataset):
        return [tf.nest.map_structure(_plain, element) for element in part]
    array = np.asarray(part)
    return array.dtype.name, array.shape, array.tolist()


def twenty():
    return tf.data.Dataset.range(20).map(double)


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """Four TFRecord files of five records each."""
    folder = tmp_path_factory.mktemp("shards")
    for shard in range(4):
        with tf.io.TFRecordWriter(str(folder / f"{shard}.tfrecord")) as writer:
            for row in range(5):
                writer.write(f"{shard}-{row}".encode())
    return sorted(str(path) for path in folder.iterdir())


@pytest.fixture(scope="module")
def table():
    keys, numbers = tf.constant(["0", "1", "2"]), tf.constant([7, 8, 9], tf.int64)
    return tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, numbers), -1)


def counting():
    yield from range(20)


def as_options(dataset):
    options = tf.data.Options()
    options.threading.private_threadpool_size = 2
    options.experimental_optimization.map_and_batch_fusion = False
    return dataset.with_options(options)


def evens_then_odds():
    choice = tf.data.Dataset.from_tensor_slices(np.array([0, 1, 1, 0] * 5, np.int64))
    return tf.data.Dataset.choose_from_datasets([twenty(), twenty().map(lambda x: x + 1)], choice)


PROVED = {
    "range": lambda: tf.data.Dataset.range(20).batch(8),
    "from_tensor_slices": lambda: tf.data.Dataset.from_tensor_slices({"x": np.eye(5), "y": np.arange(5)}).map(
        lambda row: (row["x"] * 2, row["y"])
    ),
    "batch": lambda: twenty().batch(8),
    "batch, the rest dropped": lambda: twenty().batch(8, drop_remainder=True),
    "batch in parallel": lambda: twenty().batch(8, num_parallel_calls=2),
    "padded_batch": lambda: twenty().map(lambda x: tf.range(x % 5)).padded_batch(8),
    "ragged_batch": lambda: twenty().map(lambda x: tf.range(x % 5)).ragged_batch(8),
    "window": lambda: twenty().window(4, shift=2).flat_map(lambda window: window.batch(4)),
    "window of datasets": lambda: twenty().window(8),
    "filter": lambda: twenty().filter(lambda x: x % 3 == 0).map(double).batch(8),
    "flat_map": lambda: twenty().flat_map(lambda x: tf.data.Dataset.range(x % 4)).batch(8),
    "zip": lambda: tf.data.Dataset.zip(twenty(), (twenty().shuffle(5, seed=1), twenty().batch(1))).batch(8),
    "concatenate": lambda: twenty().shuffle(20, seed=1).concatenate(twenty().map(double)).batch(8),
    "sample_from_datasets": lambda: tf.data.Dataset.sample_from_datasets(
        [twenty(), twenty().map(double)], [0.3, 0.7], seed=4
    ).batch(8),
    "choose_from_datasets": evens_then_odds,
    "cache": lambda: twenty().cache().shuffle(20, seed=1).repeat(2).batch(8),
    "group_by_window": lambda: twenty().group_by_window(lambda x: x % 3, lambda key, rows: rows.batch(4), 4),
    "bucket_by_sequence_length": lambda: (
        twenty().map(lambda x: tf.range(x % 7)).bucket_by_sequence_length(tf.size, [3, 5], [4, 2, 2])
    ),
    "scan": lambda: twenty().scan(np.int64(0), lambda total, x: (total + x, total)).batch(8),
    "unbatch": lambda: twenty().batch(8).map(double).unbatch().batch(3),
    "rebatch": lambda: twenty().batch(8).rebatch(3),
    "shuffle and repeat": lambda: twenty().shuffle(7, seed=2).repeat(2).batch(8),
    "shuffle between map and batch": lambda: twenty().shuffle(7, seed=2).map(double).batch(8),
    "shuffle once": lambda: twenty().shuffle(7, seed=2, reshuffle_each_iteration=False).map(double).batch(8),
    "take and skip": lambda: twenty().skip(3).map(double).take(10).batch(8),
    "take_while": lambda: twenty().take_while(lambda x: x < 20).map(double),
    "shard": lambda: twenty().shard(3, 1).map(double).batch(2),
    "enumerate": lambda: twenty().enumerate(3).map(lambda i, x: i * x).batch(8),
    "unique": lambda: twenty().map(lambda x: x % 5).unique(),
    "options": lambda: as_options(twenty().batch(8)),
    "prefetch": lambda: twenty().prefetch(2).batch(8).prefetch(tf.data.AUTOTUNE),
    "stateless augmentation": lambda: (
        tf.data.Dataset.range(20)
        .map(lambda i: tf.image.stateless_random_flip_left_right(tf.ones((2, 2, 1)), tf.stack([i, i])))
        .batch(8)
    ),
    "sparse": lambda: tf.data.Dataset.from_tensor_slices(tf.sparse.eye(6)).map(lambda row: row),
    "ignore_errors": lambda: twenty().map(lambda x: tf.debugging.check_numerics(1 / (x - 4), "")).ignore_errors(),
    "nested structures": lambda: twenty().map(lambda x: {"a": (x, tf.strings.as_string(x)), "b": ()}).batch(8),
}
TO_BE_VERIFIED = {
    "from_generator": lambda: tf.data.Dataset.from_generator(
        counting, output_signature=tf.TensorSpec((), tf.int64)
    ).batch(8),
    "py_function": lambda: twenty().map(lambda x: tf.py_function(double, [x], tf.int64)).batch(8),
    "numpy_function": lambda: twenty().map(lambda x: tf.numpy_function(double, [x], tf.int64)).map(double).batch(8),
}


def generating():
    generator = tf.random.Generator.from_seed(3)
    return twenty().map(lambda x: x + generator.uniform((), maxval=5, dtype=tf.int64)).batch(8)


def counted():
    counter = tf.Variable(0, dtype=tf.int64)
    return twenty().map(lambda x: counter.assign_add(x)).batch(8)


NOT_REBUILT = {
    "cache in a file": (lambda: twenty().cache("never-written").batch(8), "caches in files"),
    "a generator's state": (generating, "draws from a tf.random.Generator"),
    "a variable that is changed": (counted, "changes a variable"),
}


def drawn(pipeline, verdict, seed):
    """Return a value for each parameter of a verdict, drawn from its domain."""
    dice = random.Random(seed)
    return {
        parameter.name: dice.choice(parameter.domain)
        for parameter in pipeline.parameters
        if parameter.verdict == verdict
    }


def same_elements(make, verdict):
    pipeline = Pipeline(make())
    assert pipeline.refusal is None
    expected = epochs(make())
    assert expected[0]
    for values in ({}, drawn(pipeline, verdict, 1), drawn(pipeline, verdict, 2)):
        built = pipeline.build(values)
        assert built.element_spec == pipeline.dataset.element_spec
        assert epochs(built) == expected, values
    return pipeline


@pytest.mark.parametrize("name", PROVED)
def test_rewritten_and_the_same(name):
    pipeline = same_elements(PROVED[name], "safe")
    assert {parameter.verdict for parameter in pipeline.parameters} <= {"safe", "verify", "locked"}
    assert any(parameter.verdict == "safe" for parameter in pipeline.parameters)


@pytest.mark.parametrize("name", TO_BE_VERIFIED)
def test_nothing_is_proved_and_still_the_same(name):
    pipeline = same_elements(TO_BE_VERIFIED[name], "verify")
    assert not any(parameter.verdict == "safe" for parameter in pipeline.parameters)


def test_elements_that_may_come_in_any_order_are_all_there():
    pipeline = Pipeline(twenty().map(double, num_parallel_calls=1, deterministic=False))
    assert not any(parameter.verdict == "safe" for parameter in pipeline.parameters)
    built = pipeline.build({"map:2(double) parallel calls": 8})
    assert sorted(built.as_numpy_iterator()) == [4 * x for x in range(20)]


@pytest.mark.parametrize("name", NOT_REBUILT)
def test_refused_with_the_reason(name):
    make, words = NOT_REBUILT[name]
    pipeline = Pipeline(make())
    assert all(words in parameter.reason for parameter in pipeline.parameters)
    with pytest.raises(TpunbError, match=words):
        pipeline.build({})


def test_interleave_over_files(shards):
    def make():
        files = tf.data.Dataset.from_tensor_slices(shards)
        return files.interleave(tf.data.TFRecordDataset, cycle_length=3).map(tf.strings.length).shuffle(6, seed=1)

    pipeline = same_elements(make, "safe")
    assert "interleave:1 parallel calls" in [parameter.name for parameter in pipeline.parameters]


def test_files_read_in_parallel_already(shards):
    def make():
        files = tf.data.Dataset.list_files(shards, seed=5)
        return files.interleave(tf.data.TFRecordDataset, num_parallel_calls=2, cycle_length=2).batch(3)

    same_elements(make, "safe")


def test_records_of_several_files_at_once(shards):
    same_elements(lambda: tf.data.TFRecordDataset(shards, num_parallel_reads=2).batch(3), "safe")


def test_a_lookup_table(table):
    same_elements(lambda: tf.data.Dataset.from_tensor_slices(["2", "0", "?"]).map(table.lookup).batch(2), "safe")


def test_random_draws_leave_their_map_alone():
    def make():
        tf.random.set_seed(1)
        return twenty().map(lambda x: x + tf.random.uniform((), maxval=9, dtype=tf.int64, seed=2)).map(double).batch(8)

    verdicts = {parameter.name: parameter.verdict for parameter in same_elements(make, "verify").parameters}
    assert verdicts["map:2 parallel calls"] == "locked"
    assert verdicts["map:3(double) parallel calls"] == "verify"
