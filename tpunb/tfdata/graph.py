"""Converts tf.data pipelines to graphs and back: everything that depends on how TensorFlow serialises datasets.

The graph's operations, their inputs and the bytes of arrays are internal to TensorFlow. So the first use converts a
small pipeline both ways, and raises `TpunbError` if the result differs.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import psutil

from tpunb.errors import TpunbError, need, wrong_type
from tpunb.instrument.tensorflow import op_def
from tpunb.text import format_error

AUTOTUNE = -1
"""tf.data chooses the value, and adapts it while it runs."""

MAX_ARRAY_BYTES = 200_000_000
"""Largest arrays in a pipeline that is converted: larger graphs take many seconds, and 2 GB is their limit."""

_COPIES = 3  # copies of its arrays that converting a pipeline makes
_HINT = "set its parameters by hand; the rest of tpunb works without"

# operation -> the names of the inputs that rewriting relies on
INPUTS = {
    "ParallelMapDatasetV2": ["input_dataset", "other_arguments", "num_parallel_calls"],
    "InterleaveDataset": ["input_dataset", "other_arguments", "cycle_length", "block_length"],
    "ParallelInterleaveDatasetV4": [
        *("input_dataset", "other_arguments", "cycle_length", "block_length", "buffer_output_elements"),
        *("prefetch_input_elements", "num_parallel_calls"),
    ],
    "PrefetchDataset": ["input_dataset", "buffer_size"],
    "BatchDatasetV2": ["input_dataset", "batch_size", "drop_remainder"],
    "ShuffleDatasetV3": ["input_dataset", "buffer_size", "seed", "seed2", "seed_generator"],
    "CacheDatasetV2": ["input_dataset", "filename", "cache"],
    "AnonymousSeedGenerator": ["seed", "seed2", "reshuffle"],
    "AnonymousMemoryCache": [],
}


def to_graph(dataset: Any) -> Any:
    """Return a dataset as a GraphDef, whose node ``_Retval`` reads its last stage."""
    _check_tensorflow()
    if (size := array_bytes(dataset)) > MAX_ARRAY_BYTES:
        raise TpunbError(
            f"the pipeline holds arrays of {size / 1e6:.0f} MB; pipelines with over {MAX_ARRAY_BYTES / 1e6:.0f} MB of "
            "embedded arrays are not supported",
            hint="read the arrays from files, e.g. TFRecords, or slice indices and look the rows up in a map",
        )
    import tensorflow as tf

    try:
        return _serialise(dataset)
    except (tf.errors.OpError, ValueError, TypeError) as error:
        raise TpunbError(f"TensorFlow cannot serialise this pipeline: {format_error(error)}", hint=_HINT) from error


def graph_or_none(dataset: Any) -> Any:
    """Return a dataset of any size as a GraphDef; None if it cannot be serialised (distributed, or over 2 GB)."""
    import tensorflow as tf

    try:
        return _serialise(dataset)
    except (tf.errors.OpError, AttributeError, TypeError, ValueError):
        return None


def too_large(dataset: Any) -> str:
    """Return a sentence that says why a dataset should not be converted: copies of its arrays would fill memory."""
    try:
        size = array_bytes(dataset)
    except AttributeError:  # distributed
        return ""
    available = psutil.virtual_memory().available
    if size < MAX_ARRAY_BYTES or _COPIES * size < available / 2:
        return ""
    return (
        f"the data hold arrays of {size / 1e6:,.0f} MB, of which {_COPIES} copies are made to read their graph, with "
        f"{available / 1e6:,.0f} MB of memory available (give the arrays to fit as x and y, or read them from files)"
    )


def from_graph(graph: Any, spec: Any) -> Any:
    """Return the dataset of a GraphDef with elements of `spec`."""
    import tensorflow as tf

    try:
        return _rebuild(graph, spec)
    except (tf.errors.OpError, ValueError, TypeError) as error:
        raise TpunbError(f"TensorFlow cannot rebuild this pipeline: {format_error(error)}", hint=_HINT) from error


def read_datasets(dataset: Any) -> Iterator[Any]:
    """Yield a dataset and those that it reads, each once."""
    todo, seen = [dataset], set[int]()
    while todo:
        part = todo.pop()
        if id(part) not in seen:
            seen.add(id(part))
            todo += part._inputs()
            yield part


def array_bytes(dataset: Any) -> int:
    """Return the bytes of arrays that a dataset would put into its graph, without serialising it."""
    sizes: dict[int, int] = {}

    def of(part: Any) -> int:
        if id(part) not in sizes:
            tensors = list(getattr(part, "_tensors", ()))
            for function in part._functions():
                tensors += function.function.captured_inputs
            sizes[id(part)] = sum(map(_tensor_bytes, tensors)) + sum(map(of, part._inputs()))
        return sizes[id(part)]

    return of(dataset)


def check_dataset(value: object) -> Any:
    """Return `value`; a ``TypeError`` if it is not a ``tf.data.Dataset``."""
    tf = need("tensorflow", extra="tensorflow")
    if not isinstance(value, tf.data.Dataset):
        raise wrong_type("Pipeline", "dataset", "be a tf.data.Dataset", value)
    return value


def _serialise(dataset: Any) -> Any:
    import tensorflow as tf

    ignore = 1  # external state: its meaning for the output is judged by `tpunb.tfdata.effects`
    with tf.device("/cpu:0"):
        variant = tf.data.experimental.to_variant(dataset)
    text = tf.raw_ops.DatasetToGraphV2(input_dataset=variant, external_state_policy=ignore)
    return tf.compat.v1.GraphDef.FromString(text.numpy())


def _rebuild(graph: Any, spec: Any) -> Any:
    import tensorflow as tf

    with tf.device("/cpu:0"):
        variant = tf.raw_ops.DatasetFromGraph(graph_def=graph.SerializeToString())
    return tf.data.experimental.from_variant(variant, spec)


def _tensor_bytes(tensor: Any) -> int:
    import tensorflow as tf

    if tensor.dtype == tf.string:
        return int(tf.reduce_sum(tf.strings.length(tensor)))
    return int(tensor.shape.num_elements() or 0) * int(tensor.dtype.size)  # a handle has size 0


@cache
def _check_tensorflow() -> None:
    """Convert a small pipeline both ways, once per process."""
    tf = need("tensorflow", extra="tensorflow")
    try:
        _round_trip(tf)
    except Exception as error:
        raise TpunbError(
            f"the datasets of TensorFlow {tf.__version__} are not supported: {format_error(error)}", hint=_HINT
        ) from error


def _round_trip(tf: Any) -> None:
    def double(x: Any) -> Any:
        return 2 * x

    def expect(condition: bool, problem: str) -> None:
        if not condition:
            raise TypeError(problem)

    def small() -> Any:
        return tf.data.Dataset.from_tensor_slices(list(range(7))).map(double).shuffle(3, seed=1).cache().batch(2)

    for op, names in INPUTS.items():
        definition = op_def(op)
        present = None if definition is None else [arg.name for arg in definition.input_arg]
        expect(present == names, f"{op} has other inputs")
    dataset = small()
    graph = _serialise(dataset)
    ops = [node.op for node in graph.node if node.op.startswith(("Map", "Shuffle", "Cache", "Batch", "_Retval"))]
    expect(ops == ["MapDataset", "ShuffleDatasetV3", "CacheDatasetV2", "BatchDatasetV2", "_Retval"], f"read {ops}")
    expect(array_bytes(dataset) == 28, "the bytes of arrays are stored elsewhere")
    expect(bool(op_def("RandomUniform").is_stateful) and not op_def("Mul").is_stateful, "the registry has changed")
    expect(_elements(_rebuild(graph, dataset.element_spec)) == _elements(small()), "it rebuilt other elements")


def _elements(dataset: Any) -> list[Any]:
    return [batch.tolist() for batch in dataset.as_numpy_iterator()]
