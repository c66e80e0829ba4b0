"""Fingerprints of the constants in a training's data and step: another program has others."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

_WHOLE = 1 << 17  # bytes of a constant that are all hashed; of a larger one, as many of its first and last


def of_data(graph: Any) -> str:
    """Return a fingerprint of the constants in the graph of a dataset, among them arrays and names of files."""
    return _digest(map(_of_node, _constants(graph)))


def of_arrays(tensors: Iterable[Any], about: str) -> str:
    """Return a fingerprint of arrays, of large ones from samples, and of a text about their use."""
    import tensorflow as tf

    def sample(tensor: Any) -> bytes:
        if tensor.shape.rank:
            count, size = len(tensor), max(1, tensor.shape.num_elements() * tensor.dtype.size)
            rows = max(1, min(count, _WHOLE * count // size))
            tensor = tf.gather(tensor, np.linspace(0, max(count - 1, 0), rows if count else 0, dtype=np.int64))
        return bytes(tf.io.serialize_tensor(tensor).numpy())

    with tf.device("/cpu:0"):
        facts = [f"{tensor.dtype.name}{tensor.shape}".encode() + _sample(sample(tensor)) for tensor in tensors]
    return _digest([about.encode(), *facts])


def of_rows(readers: Iterable[Callable[[Any], NDArray[Any]]], count: int, about: str) -> str:
    """Return a fingerprint of `count` rows that functions read by their numbers, as `of_arrays` does of tensors."""

    def sample(rows: Callable[[Any], NDArray[Any]]) -> bytes:
        size = max(1, rows([0]).nbytes) if count else 1
        array = rows(np.linspace(0, max(count - 1, 0), max(1, min(count, _WHOLE // size)) if count else 0, dtype=int))
        return f"{array.dtype}{array.shape}".encode() + _sample(np.ascontiguousarray(array).tobytes())

    return _digest([f"{about}{count}".encode(), *map(sample, readers)])


def of_jaxpr(step: Any) -> str:
    """Return a fingerprint of the constants in the jaxpr of a compiled step."""
    import jax

    literals = (each for part in jaxprs(step) for equation in part.eqns for each in equation.invars)
    values = [each.val for each in literals if hasattr(each, "val")]
    values += [each for part in jaxprs(step) for each in getattr(part, "consts", ())]
    values = [
        jax.random.key_data(each) if str(getattr(each, "dtype", "")).startswith("key<") else each for each in values
    ]
    return _digest(_sample(f"{each.dtype}{each.shape}".encode() + each.tobytes()) for each in map(np.asarray, values))


def jaxprs(step: Any) -> Iterator[Any]:
    """Yield a jaxpr and those in the parameters of its equations, the closed ones too."""
    yield step
    if (inner := getattr(step, "jaxpr", step)) is not step:  # closed; from JAX 0.12 on none is apart from its constants
        yield from jaxprs(inner)
        return
    for equation in step.eqns:
        for value in equation.params.values():
            for part in value if isinstance(value, list | tuple) else [value]:
                if hasattr(part, "eqns"):
                    yield from jaxprs(part)


def of_step(function: Any, iterator: Any) -> str:
    """Return a fingerprint of the constants that a compiled step computes with; "" for another function.

    It is compiled for the iterator if necessary, and not run.
    """
    import tensorflow as tf

    compiled = compiled_step(function, iterator)
    if compiled is None:
        return ""
    captured = [each for each in compiled.captured_inputs if each.dtype not in (tf.resource, tf.variant)]
    values = [_sample(np.asarray(each).tobytes()) for each in captured]
    return _digest([*map(_of_node, _constants(compiled.graph.as_graph_def())), *values])


def compiled_step(function: Any, iterator: Any) -> Any:
    """Return a ``train_function`` compiled for an iterator; None if it is not compiled."""
    inner = (getattr(cell, "cell_contents", None) for cell in getattr(function, "__closure__", None) or ())
    step = next((part for part in (function, *inner) if hasattr(part, "get_concrete_function")), None)
    return None if step is None else step.get_concrete_function(iterator)


def _constants(graph: Any) -> list[Any]:
    import tensorflow as tf

    handles = (tf.resource.as_datatype_enum, tf.variant.as_datatype_enum)
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    return [node for node in nodes if node.op == "Const" and node.attr["dtype"].type not in handles]


def _of_node(node: Any) -> bytes:
    tensor = node.attr["value"].tensor
    if tensor.tensor_content:
        return _sample(tensor.tensor_content)
    return _sample(tensor.SerializeToString(deterministic=True))


def _sample(content: bytes) -> bytes:
    if len(content) > 2 * _WHOLE:
        content = content[:_WHOLE] + content[-_WHOLE:] + str(len(content)).encode()
    return hashlib.blake2b(content, digest_size=16).digest()


def _digest(parts: Iterable[bytes]) -> str:
    """Return a digest in which the order of parts does not matter: functions are numbered as they are traced."""
    return hashlib.blake2b(b"".join(sorted(parts)), digest_size=16).hexdigest()
