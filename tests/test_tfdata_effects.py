"""Effects of a pipeline's functions, by their operations."""

from __future__ import annotations

import numpy as np
import pytest
from optional import lazy

from tpunb.tfdata import effects as module
from tpunb.tfdata.effects import Effects, effects_of
from tpunb.tfdata.graph import to_graph
from tpunb.tfdata.stages import stages

tf = lazy("tensorflow")


def effects(function):
    """Return the effects of a map's function."""
    graph = to_graph(tf.data.Dataset.range(3).map(function))
    library = {one.signature.name: one for one in graph.library.function}
    return effects_of(library, *stages(graph)[-1].functions)


@pytest.fixture(scope="module")
def table():
    return tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(tf.constant([1], tf.int64), tf.constant([2], tf.int64)), -1
    )


@pytest.fixture(scope="module")
def variable():
    return tf.Variable(3, dtype=tf.int64)


def test_arithmetic_has_no_effects():
    assert effects(lambda x: tf.cast(x, tf.float32) / 255 + 1) == Effects()
    assert Effects().verdict == "safe"


def test_reads_have_no_effects(table, variable, tmp_path):
    assert effects(table.lookup).verdict == "safe"
    assert effects(lambda x: x + variable).verdict == "safe"
    assert effects(lambda x: tf.io.read_file(str(tmp_path / "a"))).verdict == "safe"


def test_stateless_random_numbers_have_no_effects():
    assert effects(lambda x: tf.random.stateless_uniform((), seed=(x, 1))).verdict == "safe"


def test_assertions_have_no_effects():
    def asserted(x):
        tf.debugging.assert_non_negative(x)
        return x

    assert effects(asserted).verdict == "safe"


@pytest.mark.parametrize(
    ("draw", "op"),
    [
        (lambda x: tf.random.uniform(()), "RandomUniform"),
        (lambda x: tf.random.shuffle([x, x]), "RandomShuffle"),
        (lambda x: tf.random.normal((), seed=4), "RandomStandardNormal"),
        (lambda x: tf.image.random_flip_left_right(tf.zeros((2, 2, 1))), "RandomUniform"),
    ],
)
def test_random_ops_are_named(draw, op):
    done = effects(draw)
    assert done.draws == (op,)
    assert done.verdict == "locked"
    assert op in done.reason


def test_random_ops_in_branches_and_loops_are_found():
    def loop(x):
        return tf.while_loop(
            lambda i: i < 3,
            lambda i: tf.cond(i > 1, lambda: i + 1, lambda: i + tf.random.uniform((), 1, 2, tf.int64)),
            [x],
        )[0]

    assert effects(loop).draws == ("RandomUniformInt",)


def test_a_loop_without_random_ops_has_no_effects():
    assert effects(lambda x: tf.while_loop(lambda i: i < 9, lambda i: i + 2, [x])[0]).verdict == "safe"


def test_assigning_a_variable_changes_state(variable):
    done = effects(lambda x: variable.assign_add(x))
    assert done.verdict == "locked"
    assert "AssignAddVariableOp" in done.keeps


def test_a_random_generator_keeps_state():
    generator = tf.random.Generator.from_seed(1)
    assert effects(lambda x: generator.normal(())).keeps == ("RngReadAndSkip",)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: tf.py_function(lambda y: y, [x], tf.int64),
        lambda x: tf.numpy_function(lambda y: y, [x], tf.int64),
        lambda x: tf.numpy_function(lambda y: y, [x], tf.int64, stateful=False),
    ],
)
def test_python_must_be_verified_even_if_stateless(call):
    assert effects(call).verdict == "verify"


def test_printing_is_an_effect():
    def show(x):
        tf.print(x)
        return x

    assert effects(show).prints == ("PrintV2",)
    assert effects(show).verdict == "locked"


def test_an_op_missing_from_the_registry_is_unknown(monkeypatch):
    known = module.op_def
    monkeypatch.setattr(module, "op_def", lambda op: None if op == "AddV2" else known(op))
    done = effects(lambda x: x + 1)
    assert done.unknown == ("AddV2",)
    assert done.verdict == "locked"


def test_a_missing_function_is_unknown():
    assert effects_of({}, "gone").unknown == ("gone",)


def test_a_nested_dataset_has_effects_only_if_it_shuffles():
    def of(make):
        graph = to_graph(tf.data.Dataset.range(3).flat_map(make))
        return effects_of({one.signature.name: one for one in graph.library.function}, *stages(graph)[-1].functions)

    assert of(lambda x: tf.data.Dataset.range(x).map(lambda y: 2 * y).batch(2)).verdict == "safe"
    assert of(lambda x: tf.data.Dataset.range(x).shuffle(3, seed=1)).verdict == "locked"


def test_the_strictest_effect_decides():
    assert Effects(python=("PyFunc",), draws=("RandomUniform",)).verdict == "locked"
    assert Effects(python=("PyFunc",)).verdict == "verify"


def test_external_state_names_an_op_whose_state_no_position_holds():
    assert Effects(draws=("DummySeedGenerator", "ShuffleDatasetV3")).external_state == "DummySeedGenerator"
    assert Effects(draws=("RandomDataset",), python=("PyFuncStateless",), prints=("PrintV2",)).external_state == ""
    assert Effects(keeps=("AssignVariableOp",)).external_state == "AssignVariableOp"


def read(number):
    return np.float32(number)


def becomes_parallel(function):
    """Return whether tf.data's default optimization makes a map of a function parallel."""
    dataset = tf.data.Dataset.range(5).map(function)
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
    (kind,) = nodes & {"MapDataset", "ParallelMapDatasetV2"}
    return kind == "ParallelMapDatasetV2"


def test_is_auto_parallel_agrees_with_tf_data(table, variable):
    maps = {
        "arithmetic": lambda x: x + 1,
        "assert": lambda x: (tf.debugging.Assert(x >= 0, [x]), x)[1],
        "cond": lambda x: tf.cond(x > 3, lambda: x + 1, lambda: x),
        "loop": lambda x: tf.while_loop(lambda y: y < 9, lambda y: y + 1, [x]),
        "checked": lambda x: tf.debugging.check_numerics(tf.cast(x, tf.float32), "x"),
        "table": table.lookup,
        "variable": lambda x: x + variable,
        "random": lambda x: tf.random.uniform([], seed=1),
        "stateless random": lambda x: tf.random.stateless_uniform([], [x, x]),
        "Python": lambda x: tf.numpy_function(read, [x], tf.float32),
        "stateless Python": lambda x: tf.numpy_function(read, [x], tf.float32, stateful=False),
        "nested data": lambda x: tf.data.Dataset.range(x).reduce(np.int64(0), lambda a, b: a + b),
        "printing": lambda x: (tf.print(x), x)[1],
    }
    parallel = {name: becomes_parallel(function) for name, function in maps.items()}
    assert {name: effects(function).is_auto_parallel for name, function in maps.items()} == parallel
    assert set(parallel.values()) == {True, False}
