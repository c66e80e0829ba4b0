"""What a step of a model costs: counted by hand, and by TensorFlow's own profiler."""

import math
import string
from types import SimpleNamespace

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from optional import lazy

from tpunb.errors import TpunbError
from tpunb.studies.paper.workloads.cost import Cost, cost
from tpunb.training.graph_work import step_flops

tf, keras = lazy("tensorflow"), lazy("keras")


def model_of(function):
    """A model of one function."""
    return SimpleNamespace(test_step=lambda batch: function(*batch))


def of(function, *shapes):
    batch = tuple(tf.zeros(shape) for shape in shapes)
    return cost(model_of(function), tf.data.Dataset.from_tensors(batch), "eval")


def test_a_matrix_product_counts_two_operations_per_term():
    assert of(tf.matmul, (4, 5), (5, 3)) == Cost(flops=2 * 4 * 5 * 3, bytes=4 * (4 * 5 + 5 * 3 + 4 * 3))
    assert of(lambda a, b: tf.matmul(a, b, transpose_a=True), (5, 4), (5, 3)).flops == 120
    assert of(lambda a, b: tf.matmul(a, b, adjoint_a=True), (7, 5, 4), (7, 5, 3)).flops == 7 * 120
    assert of(lambda a, b: a + b, (4, 5), (4, 5)) == Cost(0.0, 0.0)


def test_training_counts_gradients():
    data = tf.data.Dataset.from_tensors((tf.zeros((4, 5)), tf.zeros((4, 2))))
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3), keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    first, second = 2 * 4 * 5 * 3, 2 * 4 * 3 * 2
    assert cost(model, data, "eval").flops == first + second
    assert cost(model, data).flops == 2 * first + 3 * second, "nobody asks for the gradient of the input"


@pytest.mark.live
@pytest.mark.parametrize(
    ("options", "counted"),
    [
        ({"jit_compile": False}, 1),
        ({"jit_compile": True}, None),
        ({"run_eagerly": True}, None),
        ({"jit_compile": False, "steps_per_execution": 2}, None),
    ],
)
def test_a_training_without_xla_has_the_work_of_the_graph_that_fit_traced(options, counted):
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3), keras.layers.Dense(2)])
    model.compile("sgd", "mse", **options)
    model.fit(tf.zeros((8, 5)), tf.zeros((8, 2)), batch_size=4, verbose=0)
    before = [variable.numpy().tolist() for variable in model.variables]
    first, second = 2 * 4 * 5 * 3, 2 * 4 * 3 * 2
    assert step_flops(model) == (counted and 2 * first + 3 * second)
    assert [variable.numpy().tolist() for variable in model.variables] == before


@pytest.mark.live
def test_the_work_of_a_graph_for_any_batch_size_is_unknown():
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3)])
    model.compile("sgd", "mse", jit_compile=False)
    assert step_flops(model) is None  # not fitted
    model.fit(tf.zeros((10, 5)), tf.zeros((10, 3)), batch_size=4, verbose=0)  # the last batch is one of 2
    assert step_flops(model) is None


def test_einsum_counts_each_combination_of_indices():
    assert of(lambda a, b: tf.einsum("abc,cd->abd", a, b), (2, 3, 4), (4, 5)).flops == 2 * 2 * 3 * 4 * 5
    assert of(lambda a, b: tf.einsum("...c,cd->...d", a, b), (2, 3, 4), (4, 5)).flops == 2 * 2 * 3 * 4 * 5
    assert of(lambda a: tf.einsum("ab->ba", a), (2, 3)).flops == 0


@examples(30)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.integers(0, 2))
def test_einsum_is_the_product_of_its_sizes(sizes, shared):
    letters = string.ascii_lowercase[: len(sizes)]
    other = letters[: min(shared, len(sizes))]
    of_other = [sizes[letters.index(one)] for one in other]
    found = of(lambda a, b: tf.einsum(f"{letters},{other}->{letters}", a, b), sizes, of_other)
    assert found.flops == 2 * math.prod(sizes)


def convolved(strides, padding):
    """A convolution and both its gradients."""

    def step(images, filters):
        with tf.GradientTape() as tape:
            tape.watch((images, filters))
            made = tf.nn.conv2d(images, filters, strides, padding)
        return tape.gradient(made, (images, filters))

    return step


@pytest.mark.parametrize("strides", [1, 2])
def test_convolutions_and_gradients_agree_with_tensorflows_profiler(strides):
    shapes = [(2, 8, 8, 3), (3, 3, 3, 4)]
    kinds = ("Conv2D", "Conv2DBackpropInput", "Conv2DBackpropFilter")
    assert of(convolved(strides, "SAME"), *shapes).flops == counted(convolved(strides, "SAME"), shapes, kinds)


def test_convolutions_without_padding_count_inner_positions():
    """TensorFlow's profiler takes the gradients' padding for "SAME" (6 x 6 places here, not 8 x 8)."""
    assert of(convolved(1, "VALID"), (2, 8, 8, 3), (3, 3, 3, 4)).flops == 3 * 2 * (2 * 6 * 6 * 4) * (3 * 3 * 3)


def test_depthwise_convolutions_read_one_channel_each():
    found = of(
        lambda images, filters: tf.nn.depthwise_conv2d(images, filters, [1] * 4, "SAME"), (2, 8, 8, 3), (3, 3, 3, 1)
    )
    assert found.flops == 2 * (2 * 8 * 8 * 3) * 3 * 3


def counted(function, shapes, kinds):
    """What ``tf.compat.v1.profiler`` says."""
    v1 = tf.compat.v1.profiler
    specs = [tf.TensorSpec(shape, tf.float32) for shape in shapes]
    graph = tf.function(function).get_concrete_function(*specs).graph
    asked = v1.ProfileOptionBuilder(v1.ProfileOptionBuilder.float_operation()).with_empty_output().build()
    node, total = v1.profile(graph, cmd="op", options=asked), 0
    while node.children:
        (node,) = node.children
        total += node.float_ops if node.name in kinds else 0
    assert total
    return total


def test_a_dynamic_shape_is_rejected():
    asked = model_of(lambda one: tf.matmul(tf.boolean_mask(one, [True] * 4), tf.zeros((5, 3))))
    with pytest.raises(TpunbError, match=r"the shape of .* is \(None, "):
        cost(asked, tf.data.Dataset.from_tensors((tf.zeros((4, 5)),)), "eval")


def test_an_unknown_split_is_rejected():
    with pytest.raises(ValueError, match=r"split parameter of cost must be one of .* Got 'test' instead"):
        cost(None, None, "test")
