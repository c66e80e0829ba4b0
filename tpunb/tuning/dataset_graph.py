"""tf.data pipelines as graphs, there and back: all that rests on how TensorFlow keeps them.

A dataset is serialised and rebuilt by public operations, but the names and inputs of the operations in that graph, the
registry that tells which of them keep state, and what a dataset's arrays weigh are TensorFlow's own affair. So the
first use takes a tiny pipeline there and back, and declines with a sentence when TensorFlow answers otherwise.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from tpunb.errors import TpunbError, need, wrong

MOST_BYTES = 200_000_000
"""Arrays inside a pipeline up to which it is taken apart: a graph of more takes many seconds, and 2 GB is its end."""

_HINT = "set its parameters by hand; everything else of tpunb works without"

# operation -> the names of its inputs that the rewriting counts on
INPUTS = {
    "ParallelMapDatasetV2": ["input_dataset", "other_arguments", "num_parallel_calls"],
    "InterleaveDataset": ["input_dataset", "other_arguments", "cycle_length", "block_length"],
    "ParallelInterleaveDatasetV4": [
        "input_dataset",
        "other_arguments",
        "cycle_length",
        "block_length",
        "buffer_output_elements",
        "prefetch_input_elements",
        "num_parallel_calls",
    ],
    "PrefetchDataset": ["input_dataset", "buffer_size"],
    "BatchDatasetV2": ["input_dataset", "batch_size", "drop_remainder"],
    "ShuffleDatasetV3": ["input_dataset", "buffer_size", "seed", "seed2", "seed_generator"],
    "CacheDatasetV2": ["input_dataset", "filename", "cache"],
}


def op_def(op: str) -> Any:
    """Return how TensorFlow registered an operation, an OpDef; None where it knows no such operation."""
    from tensorflow.python.framework import op_def_registry

    return op_def_registry.get(op)


def there(dataset: Any) -> Any:
    """Return a dataset as a GraphDef, whose node ``_Retval`` is what it ends in.

    Raises
    ------
    TpunbError
        When TensorFlow keeps datasets otherwise than known, the dataset holds too large arrays, or something in it
        cannot be serialised.
    """
    _self_check()
    if (size := weight(dataset)) > MOST_BYTES:
        raise TpunbError(
            f"the pipeline holds arrays of {size / 1e6:.0f} MB in itself; it is taken apart up to "
            f"{MOST_BYTES / 1e6:.0f} MB",
            hint="read the arrays from files, e.g. TFRecords, or slice indices and look the rows up in a map",
        )
    import tensorflow as tf

    try:
        return _there(dataset)
    except (tf.errors.OpError, ValueError, TypeError) as error:
        raise TpunbError(f"TensorFlow cannot write this pipeline down: {_line(error)}", hint=_HINT) from error


def back(graph: Any, spec: Any) -> Any:
    """Return the dataset of a GraphDef whose elements are of `spec`.

    Raises
    ------
    TpunbError
        When TensorFlow refuses the graph.
    """
    import tensorflow as tf

    try:
        return _back(graph, spec)
    except (tf.errors.OpError, ValueError, TypeError) as error:
        raise TpunbError(f"TensorFlow does not rebuild this pipeline: {_line(error)}", hint=_HINT) from error


def weight(dataset: Any) -> int:
    """Return how many bytes of arrays a dataset would put into its graph, without serialising it."""
    known: dict[int, int] = {}

    def of(part: Any) -> int:
        if id(part) not in known:
            tensors = list(getattr(part, "_tensors", ()))
            for function in part._functions():
                tensors += function.function.captured_inputs
            known[id(part)] = sum(map(_bytes, tensors)) + sum(map(of, part._inputs()))
        return known[id(part)]

    return of(dataset)


def seed_generator(seed: int, seed2: int, *, reshuffle: bool) -> tuple[Any, Any]:
    """Return a fresh generator of shuffle seeds: its TensorProto for a Const, and what keeps it alive."""
    import tensorflow as tf

    with tf.device("/cpu:0"):
        kept = tf.raw_ops.AnonymousSeedGenerator(seed=seed, seed2=seed2, reshuffle=reshuffle)
        probe = tf.raw_ops.ShuffleDatasetV3(
            input_dataset=tf.data.experimental.to_variant(tf.data.Dataset.range(1)),
            buffer_size=1,
            seed=0,
            seed2=0,
            seed_generator=kept[0],
            output_types=[tf.int64],
            output_shapes=[[]],
        )
    return _resource(probe), kept


def memory_cache() -> tuple[Any, Any]:
    """Return a fresh place for a cache in memory: its TensorProto for a Const, and what keeps it alive."""
    import tensorflow as tf

    with tf.device("/cpu:0"):
        kept = tf.raw_ops.AnonymousMemoryCache()
        probe = tf.raw_ops.CacheDatasetV2(
            input_dataset=tf.data.experimental.to_variant(tf.data.Dataset.range(1)),
            filename="",
            cache=kept[0],
            output_types=[tf.int64],
            output_shapes=[[]],
        )
    return _resource(probe), kept


def _there(dataset: Any) -> Any:
    import tensorflow as tf

    with tf.device("/cpu:0"):
        return _graph(tf.data.experimental.to_variant(dataset))


def _graph(variant: Any) -> Any:
    import tensorflow as tf

    ignore = 1  # state outside the graph: what it means for the output, the purity of each function tells
    text = tf.raw_ops.DatasetToGraphV2(input_dataset=variant, external_state_policy=ignore)
    return tf.compat.v1.GraphDef.FromString(text.numpy())


def _back(graph: Any, spec: Any) -> Any:
    import tensorflow as tf

    with tf.device("/cpu:0"):
        variant = tf.raw_ops.DatasetFromGraph(graph_def=graph.SerializeToString())
    return tf.data.experimental.from_variant(variant, spec)


def _resource(probe: Any) -> Any:
    import tensorflow as tf

    held = [n for n in _graph(probe).node if n.op == "Const" and n.attr["dtype"].type == tf.resource.as_datatype_enum]
    return held[0].attr["value"].tensor


def _bytes(tensor: Any) -> int:
    import tensorflow as tf

    if tensor.dtype == tf.string:
        return int(tf.reduce_sum(tf.strings.length(tensor)))
    return int(tensor.shape.num_elements() or 0) * int(tensor.dtype.size)  # a handle has size 0


def _line(error: Exception) -> str:
    return (str(getattr(error, "message", error)).strip().splitlines() or [type(error).__name__])[0][:300]


@cache
def _self_check() -> None:
    """Take a tiny pipeline there and back, once a process."""
    tf = need("tensorflow", extra="tensorflow")
    try:
        _takes_apart(tf)
    except Exception as error:
        raise TpunbError(
            f"TensorFlow {tf.__version__} keeps its pipelines otherwise than tpunb knows: {_line(error)}", hint=_HINT
        ) from error


def _takes_apart(tf: Any) -> None:
    def double(x: Any) -> Any:
        return 2 * x

    def expect(told: bool, what: str) -> None:
        if not told:
            raise TypeError(what)

    def tiny() -> Any:
        return tf.data.Dataset.from_tensor_slices(list(range(7))).map(double).shuffle(3, seed=1).cache().batch(2)

    for op, names in INPUTS.items():
        known = op_def(op)
        expect(known is not None and [arg.name for arg in known.input_arg] == names, f"{op} has other inputs")
    dataset = tiny()
    graph = _there(dataset)
    ops = [node.op for node in graph.node if node.op.startswith(("Map", "Shuffle", "Cache", "Batch", "_Retval"))]
    expect(ops == ["MapDataset", "ShuffleDatasetV3", "CacheDatasetV2", "BatchDatasetV2", "_Retval"], f"read {ops}")
    expect(weight(dataset) == 28, "what arrays weigh is kept elsewhere")
    expect(bool(op_def("RandomUniform").is_stateful) and not op_def("Mul").is_stateful, "the registry changed")
    seed_generator(1, 2, reshuffle=True)
    memory_cache()
    expect(_elements(_back(graph, dataset.element_spec)) == _elements(tiny()), "it rebuilt other elements")


def _elements(dataset: Any) -> list[Any]:
    return [batch.tolist() for batch in dataset.as_numpy_iterator()]


def is_dataset(value: object) -> Any:
    """Return `value`, which must be a ``tf.data.Dataset``.

    Raises
    ------
    TypeError
        When it is not.
    """
    tf = need("tensorflow", extra="tensorflow")
    if not isinstance(value, tf.data.Dataset):
        raise wrong("Pipeline", "dataset", "be a tf.data.Dataset", value)
    return value
