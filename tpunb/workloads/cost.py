"""What a step of a Keras model costs: the operations and bytes of its matrix arithmetic, counted in its program."""

from __future__ import annotations

import math
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from tpunb.errors import TpunbError, need
from tpunb.workloads.scaling import SPLITS


@dataclass(frozen=True)
class Cost:
    """Of one step.

    Attributes
    ----------
    flops
        Floating-point operations, of matrix products and convolutions alone: what a matrix unit would do. An addition
        and a multiplication are two.
    bytes
        That these read and write, if each read its operands and wrote its result once, and all else were fused into
        them: what a memory would move at least.
    """

    flops: float
    bytes: float


def cost(model: Any, data: Any, split: str = "train") -> Cost:
    """Return what a step of a compiled Keras model costs: counted in the traced graph, nothing is run.

    Parameters
    ----------
    model
        With TensorFlow as its backend.
    data
        A ``tf.data.Dataset`` of its batches, of which one is taken for its shape.
    split
        "train" for ``train_step``, gradients and all; "eval" for ``test_step``.

    Raises
    ------
    ValueError
        When the split is another.
    TpunbError
        When a shape is not known before the program runs.
    """
    if split not in SPLITS:
        raise ValueError(f"The split parameter of cost must be one of {SPLITS}. Got {split!r} instead.")
    tf = need("tensorflow", extra="tensorflow")
    step = model.train_step if split == "train" else model.test_step
    shapes = tf.nest.map_structure(lambda one: tf.TensorSpec(one.shape, one.dtype), next(iter(data)))
    graph = tf.function(lambda batch: step(batch), autograph=False).get_concrete_function(shapes).graph
    counted = [op for op in graph.get_operations() if op.type in _FLOPS]
    flops, moved = sum(_FLOPS[op.type](op) for op in counted), sum(_bytes(op) for op in counted)
    return Cost(float(flops), float(moved))


def _shape(tensor: Any) -> list[int]:
    if not tensor.shape.is_fully_defined():
        raise TpunbError(
            f"the shape of {tensor.op.name} is {tensor.shape}: what it costs is not known before it runs",
            hint="give batches of one shape: batch(n, drop_remainder=True), padded_batch with padded_shapes",
        )
    return list(tensor.shape)


def _size(tensor: Any) -> int:
    return math.prod(_shape(tensor))


def _bytes(op: Any) -> int:
    return sum(_size(one) * one.dtype.size for one in (*op.inputs, *op.outputs))


def _matmul(op: Any) -> int:
    inner = _shape(op.inputs[0])[0 if op.get_attr("transpose_a") else 1]
    return 2 * _size(op.outputs[0]) * inner


def _batch_matmul(op: Any) -> int:
    inner = _shape(op.inputs[0])[-2 if op.get_attr("adj_x") else -1]
    return 2 * _size(op.outputs[0]) * inner


def _einsum(op: Any) -> int:
    """Count a product for each combination of the indices; one operand alone is moved or summed, not multiplied."""
    if len(op.inputs) < 2:
        return 0
    sides = op.get_attr("equation").decode().split("->")[0].split(",")
    sizes: dict[str, int] = {}
    for letters, tensor in zip(sides, op.inputs, strict=True):
        shape = _shape(tensor)
        before, _, after = letters.partition("...")
        rest = len(shape) - len(before) - len(after)
        dots = string.digits[:rest]  # the dimensions that "..." stands for, counted from the last
        sizes.update(zip((*before, *reversed(dots), *after), shape, strict=True))
    return 2 * math.prod(sizes.values())


def _convolution(filters: Callable[[Any], Any], there: Callable[[Any], Any], *, deep: bool) -> Callable[[Any], int]:
    """Return what counts a convolution, or one of its gradients: each does what the other two do.

    Parameters
    ----------
    filters, there
        The tensor of the filters' shape, and that on the far side of the convolution.
    deep
        Whether each filter reads all channels, not one.
    """

    def count(op: Any) -> int:
        height, width, channels, _ = _shape(filters(op))
        return 2 * _size(there(op)) * height * width * (channels if deep else 1)

    return count


def _input(number: int) -> Callable[[Any], Any]:
    return lambda op: op.inputs[number]


def _output(op: Any) -> Any:
    return op.outputs[0]


_FLOPS: Mapping[str, Callable[[Any], int]] = MappingProxyType(
    {
        "MatMul": _matmul,
        "BatchMatMulV2": _batch_matmul,
        "BatchMatMulV3": _batch_matmul,
        "Einsum": _einsum,
        "Conv2D": _convolution(_input(1), _output, deep=True),
        "Conv2DBackpropInput": _convolution(_input(1), _input(2), deep=True),
        "Conv2DBackpropFilter": _convolution(_output, _input(2), deep=True),
        "DepthwiseConv2dNative": _convolution(_input(1), _output, deep=False),
        "DepthwiseConv2dNativeBackpropInput": _convolution(_input(1), _input(2), deep=False),
        "DepthwiseConv2dNativeBackpropFilter": _convolution(_output, _input(2), deep=False),
    }
)
