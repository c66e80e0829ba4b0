"""Work of TensorFlow graphs: FLOPs and bytes of matrix products and convolutions, counted from shapes."""

from __future__ import annotations

import math
import string
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tpunb.errors import TpunbError

_DEEPEST = 4  # wrappers around a traced function


def graph_work(graph: Any) -> tuple[float, float]:
    """Return FLOPs and bytes of a graph's matrix products and convolutions; raise a TpunbError for dynamic shapes."""
    counted = [op for op in graph.get_operations() if op.type in _FLOPS]
    return float(sum(_FLOPS[op.type](op) for op in counted)), float(sum(_bytes(op) for op in counted))


def _used(graph: Any) -> list[Any]:
    """Return the operations that results need: those of gradients that nobody asked for are traced, and left out."""
    ends = [*getattr(graph, "control_outputs", ()), *(tensor.op for tensor in getattr(graph, "outputs", ()))]
    if not ends:
        return [*graph.get_operations()]
    used, waiting = dict[str, Any](), ends
    while waiting:
        if (op := waiting.pop()).name not in used:
            used[op.name] = op
            waiting += [*op.control_inputs, *(tensor.op for tensor in op.inputs)]
    return [*used.values()]


def step_flops(model: Any) -> float | None:
    """Return the FLOPs of a training step of a Keras model, from the largest static shapes that ``fit`` traced.

    None if XLA compiles the step, whose program has them, if nothing was traced, or if one call takes several steps.
    """
    if model.jit_compile or model.steps_per_execution != 1:
        return None
    counted = list[float]()
    for function in _traced(model.train_function, _DEEPEST):
        for concrete in function._list_all_concrete_functions():
            try:
                counted.append(float(sum(_FLOPS[op.type](op) for op in _used(concrete.graph) if op.type in _FLOPS)))
            except TpunbError:  # traced again for any batch size
                continue
    return max(counted, default=0.0) or None


def _traced(function: Any, depth: int) -> Iterator[Any]:
    """Yield the ``tf.function`` objects among a function and those that it refers to."""
    if hasattr(function, "_list_all_concrete_functions"):
        yield function
    for cell in (getattr(function, "__closure__", None) or ()) if depth else ():
        if callable(inner := getattr(cell, "cell_contents", None)):
            yield from _traced(inner, depth - 1)


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
