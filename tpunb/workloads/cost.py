"""Cost of a step of a Keras model: FLOPs and bytes of its matrix operations, counted in its graph."""

from __future__ import annotations

import math
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tpunb.errors import TpunbError
from tpunb.workloads.frameworks import tf
from tpunb.workloads.scaling import SPLITS


@dataclass(frozen=True)
class Cost:
    """Cost of one step.

    Attributes
    ----------
    flops
        Floating-point operations of matrix products and convolutions, which run on a matrix unit. A multiplication and
        an addition are two.
    bytes
        Bytes that these read and write if each moves its operands and results once and all other operations are fused:
        a lower bound.
    """

    flops: float
    bytes: float


def cost(model: Any, data: Any, split: str = "train") -> Cost:
    """Return the cost of a step of a compiled Keras model, counted in the traced graph without running it.

    Parameters
    ----------
    model
        Model on the TensorFlow backend.
    data
        ``tf.data.Dataset`` of its batches; the shapes of the first are used.
    split
        "train" for ``train_step`` with gradients, "eval" for ``test_step``.

    Raises
    ------
    ValueError
        The split is neither.
    TpunbError
        A shape is dynamic.
    """
    if split not in SPLITS:
        raise ValueError(f"The split parameter of cost must be one of {SPLITS}. Got {split!r} instead.")
    step = model.train_step if split == "train" else model.test_step
    shapes = tf.nest.map_structure(lambda each: tf.TensorSpec(each.shape, each.dtype), next(iter(data)))
    graph = tf.function(lambda batch: step(batch), autograph=False).get_concrete_function(shapes).graph
    counted = [op for op in graph.get_operations() if op.type in _FLOPS]
    flops, moved = sum(_FLOPS[op.type](op) for op in counted), sum(_bytes(op) for op in counted)
    return Cost(float(flops), float(moved))


def _shape(tensor: Any) -> list[int]:
    if not tensor.shape.is_fully_defined():
        raise TpunbError(
            f"the shape of {tensor.op.name} is {tensor.shape}: the cost of dynamic shapes is unknown",
            hint="give batches of one shape: batch(n, drop_remainder=True), padded_batch with padded_shapes",
        )
    return list(tensor.shape)


def _size(tensor: Any) -> int:
    return math.prod(_shape(tensor))


def _bytes(op: Any) -> int:
    return sum(_size(each) * each.dtype.size for each in (*op.inputs, *op.outputs))


def _matmul(op: Any) -> int:
    transposed = op.get_attr("transpose_a" if op.type == "MatMul" else "adj_x")
    return 2 * _size(op.outputs[0]) * _shape(op.inputs[0])[-2 if transposed else -1]


def _einsum(op: Any) -> int:
    """Count a product per combination of the indices; one operand alone is not multiplied."""
    if len(op.inputs) < 2:
        return 0
    sides = op.get_attr("equation").decode().split("->")[0].split(",")
    sizes: dict[str, int] = {}
    for letters, tensor in zip(sides, op.inputs, strict=True):
        shape = _shape(tensor)
        before, _, after = letters.partition("...")
        rest = len(shape) - len(before) - len(after)
        dots = string.digits[:rest]  # the dimensions of "...", from the last
        sizes.update(zip((*before, *reversed(dots), *after), shape, strict=True))
    return 2 * math.prod(sizes.values())


def _convolution(op: Any) -> int:
    """Count a convolution or one of its gradients: the product of filters and the tensor at their far side."""
    filters = op.outputs[0] if op.type.endswith("BackpropFilter") else op.inputs[1]
    result = op.inputs[2] if "Backprop" in op.type else op.outputs[0]
    height, width, channels, _ = _shape(filters)
    return 2 * _size(result) * height * width * (1 if op.type.startswith("Depthwise") else channels)


_GRADIENTS = ("", "BackpropInput", "BackpropFilter")
_FLOPS: Mapping[str, Callable[[Any], int]] = {
    **dict.fromkeys(("MatMul", "BatchMatMulV2", "BatchMatMulV3"), _matmul),
    "Einsum": _einsum,
    **dict.fromkeys((f"Conv2D{gradient}" for gradient in _GRADIENTS), _convolution),
    **dict.fromkeys((f"DepthwiseConv2dNative{gradient}" for gradient in _GRADIENTS), _convolution),
}
