"""What a pipeline's functions do, by the operations they are made of."""

from __future__ import annotations

import numpy as np
import pytest

from tpunb.tuning import purity as module
from tpunb.tuning.dataset_graph import there
from tpunb.tuning.purity import Purity, purity
from tpunb.tuning.stages import stages

tf = pytest.importorskip("tensorflow")


def purity_of(function):
    """Return what a map's function does."""
    graph = there(tf.data.Dataset.range(3).map(function))
    library = {one.signature.name: one for one in graph.library.function}
    return purity(library, *stages(graph)[-1].functions)


@pytest.fixture(scope="module")
def table():
    return tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(tf.constant([1], tf.int64), tf.constant([2], tf.int64)), -1
    )


@pytest.fixture(scope="module")
def variable():
    return tf.Variable(3, dtype=tf.int64)


def test_arithmetic_is_proved():
    assert purity_of(lambda x: tf.cast(x, tf.float32) / 255 + 1) == Purity()
    assert Purity().verdict == "proved"


def test_what_only_reads_is_proved(table, variable, tmp_path):
    assert purity_of(table.lookup).verdict == "proved"
    assert purity_of(lambda x: x + variable).verdict == "proved"
    assert purity_of(lambda x: tf.io.read_file(str(tmp_path / "a"))).verdict == "proved"


def test_random_numbers_from_a_given_seed_are_proved():
    assert purity_of(lambda x: tf.random.stateless_uniform((), seed=(x, 1))).verdict == "proved"


def test_assertions_are_let_be():
    def asserted(x):
        tf.debugging.assert_non_negative(x)
        return x

    assert purity_of(asserted).verdict == "proved"


@pytest.mark.parametrize(
    ("draw", "op"),
    [
        (lambda x: tf.random.uniform(()), "RandomUniform"),
        (lambda x: tf.random.shuffle([x, x]), "RandomShuffle"),
        (lambda x: tf.random.normal((), seed=4), "RandomStandardNormal"),
        (lambda x: tf.image.random_flip_left_right(tf.zeros((2, 2, 1))), "RandomUniform"),
    ],
)
def test_random_numbers_are_refused_by_name(draw, op):
    done = purity_of(draw)
    assert done.draws == (op,)
    assert done.verdict == "refused"
    assert op in done.why


def test_a_draw_within_a_branch_and_a_loop_is_found():
    def loop(x):
        return tf.while_loop(
            lambda i: i < 3,
            lambda i: tf.cond(i > 1, lambda: i + 1, lambda: i + tf.random.uniform((), 1, 2, tf.int64)),
            [x],
        )[0]

    assert purity_of(loop).draws == ("RandomUniformInt",)


def test_a_loop_without_a_draw_is_proved():
    assert purity_of(lambda x: tf.while_loop(lambda i: i < 9, lambda i: i + 2, [x])[0]).verdict == "proved"


def test_changing_a_variable_is_refused(variable):
    done = purity_of(lambda x: variable.assign_add(x))
    assert done.verdict == "refused"
    assert "AssignAddVariableOp" in done.keeps


def test_a_generator_of_random_numbers_keeps_its_state():
    generator = tf.random.Generator.from_seed(1)
    assert purity_of(lambda x: generator.normal(())).keeps == ("RngReadAndSkip",)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: tf.py_function(lambda y: y, [x], tf.int64),
        lambda x: tf.numpy_function(lambda y: y, [x], tf.int64),
        lambda x: tf.numpy_function(lambda y: y, [x], tf.int64, stateful=False),
    ],
)
def test_python_is_to_be_verified_whatever_it_claims(call):
    assert purity_of(call).verdict == "to be verified"


def test_printing_is_refused_for_its_order():
    def show(x):
        tf.print(x)
        return x

    assert purity_of(show).prints == ("PrintV2",)
    assert purity_of(show).verdict == "refused"


def test_what_the_registry_does_not_know_is_refused(monkeypatch):
    known = module.op_def
    monkeypatch.setattr(module, "op_def", lambda op: None if op == "AddV2" else known(op))
    done = purity_of(lambda x: x + 1)
    assert done.unknown == ("AddV2",)
    assert done.verdict == "refused"


def test_a_function_that_is_not_there_is_refused():
    assert purity({}, "gone").unknown == ("gone",)


def test_a_dataset_within_a_function_is_pure_unless_it_shuffles():
    def of(make):
        graph = there(tf.data.Dataset.range(3).flat_map(make))
        return purity({one.signature.name: one for one in graph.library.function}, *stages(graph)[-1].functions)

    assert of(lambda x: tf.data.Dataset.range(x).map(lambda y: 2 * y).batch(2)).verdict == "proved"
    assert of(lambda x: tf.data.Dataset.range(x).shuffle(3, seed=1)).verdict == "refused"


def test_the_worst_of_a_function_gives_the_verdict():
    assert Purity(python=("PyFunc",), draws=("RandomUniform",)).verdict == "refused"
    assert Purity(python=("PyFunc",)).verdict == "to be verified"


def read(number):
    return np.float32(number)


TABLE = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([1, 2], [3, 4]), 0)
COUNT = tf.Variable(1.0)
MAPS = {
    "arithmetic": lambda x: x + 1,
    "assert": lambda x: (tf.debugging.Assert(x >= 0, [x]), x)[1],
    "cond": lambda x: tf.cond(x > 3, lambda: x + 1, lambda: x),
    "loop": lambda x: tf.while_loop(lambda y: y < 9, lambda y: y + 1, [x]),
    "checked": lambda x: tf.debugging.check_numerics(tf.cast(x, tf.float32), "x"),
    "table": lambda x: TABLE.lookup(tf.cast(x, tf.int32)),
    "variable": lambda x: tf.cast(x, tf.float32) + COUNT,
    "random": lambda x: tf.random.uniform([], seed=1),
    "stateless random": lambda x: tf.random.stateless_uniform([], [x, x]),
    "Python": lambda x: tf.numpy_function(read, [x], tf.float32),
    "stateless Python": lambda x: tf.numpy_function(read, [x], tf.float32, stateful=False),
    "nested data": lambda x: tf.data.Dataset.range(x).reduce(np.int64(0), lambda a, b: a + b),
    "printing": lambda x: (tf.print(x), x)[1],
}


@pytest.mark.parametrize("name", MAPS)
def test_what_tf_data_itself_calls_in_parallel(name):
    """By the optimization that it runs by default, over the graph."""
    dataset = tf.data.Dataset.range(5).map(MAPS[name])
    optimized = tf.raw_ops.OptimizeDatasetV2(
        input_dataset=tf.data.experimental.to_variant(dataset),
        optimizations_enabled=["map_parallelization"],
        optimizations_disabled=[],
        optimizations_default=[],
        output_types=[tf.int64],
        output_shapes=[tf.TensorShape(())],
        optimization_configs=["map_parallelization:autotune:true"],
    )
    graph = tf.raw_ops.DatasetToGraphV2(input_dataset=optimized, external_state_policy=1).numpy()
    nodes = {node.op for node in tf.compat.v1.GraphDef.FromString(graph).node}
    assert len(nodes & {"MapDataset", "ParallelMapDatasetV2"}) == 1
    assert purity_of(MAPS[name]).is_made_parallel == ("ParallelMapDatasetV2" in nodes)
