"""Position of a tf.data iterator: saving and restoring it, and what prevents that."""

from __future__ import annotations

import re
import secrets
from pathlib import Path
from typing import Any

from tpunb.errors import TpunbError
from tpunb.instrument.tensorflow import CHECKPOINT_READ, CHECKPOINT_WRITE
from tpunb.text import format_error
from tpunb.tfdata import rewrite
from tpunb.tfdata.graph import read_datasets
from tpunb.tfdata.restored import explain_op

_STATEFUL = re.compile(r"(\w+) (?:is stateful|does not support checkpointing)")
_NOISE = re.compile(r"\{\{.*?\}\}|\[Op:.*")  # TensorFlow's names of its own functions


def write(prefix: Path, iterator: Any) -> str:
    """Write the position of an iterator, or a variable of TensorFlow; return why it cannot be written, or ""."""
    import tensorflow as tf

    try:
        CHECKPOINT_WRITE.unwrapped()(tf.train.Checkpoint(iterator=iterator), str(prefix))
    except (tf.errors.OpError, ValueError, TypeError) as error:  # the last two: distributed data
        for partial in prefix.parent.glob(f"{prefix.name}.*"):
            partial.unlink()
        return explain(error)
    return ""


def read(prefix: Path, iterator: Any) -> None:
    """Restore the position of an iterator from the files of `write`."""
    import tensorflow as tf

    try:
        CHECKPOINT_READ.unwrapped()(tf.train.Checkpoint(iterator=iterator), str(prefix)).assert_consumed()
    except (tf.errors.OpError, AssertionError, ValueError) as error:
        raise TpunbError(
            f"{prefix.parent.name} was saved with a different dataset: {format_error(error)}",
            hint="run the same cell as when it was saved",
        ) from error


def state_of(iterator: Any) -> Any:
    """Return the position of an iterator, in memory; stateful functions are ignored."""
    import tensorflow as tf

    ignore = 1
    return tf.raw_ops.SerializeIterator(resource_handle=iterator._iterator_resource, external_state_policy=ignore)


def set_state(iterator: Any, state: Any) -> None:
    """Restore the position of an iterator from `state_of`."""
    import tensorflow as tf

    tf.raw_ops.DeserializeIterator(resource_handle=iterator._iterator_resource, serialized=state)


def explain(error: Exception) -> str:
    """Return TensorFlow's reason why a position cannot be saved, with the operation that prevents it."""
    import tensorflow as tf

    if not isinstance(error, tf.errors.OpError):
        return "the position of distributed data cannot be saved"
    if match := _STATEFUL.search(str(error)):
        return f"a stage of the data: {explain_op(match[1])}"
    reason = _NOISE.sub("", str(error.message).partition("\n")[0]).strip()
    return reason or type(error).__name__


def ignores_external_state(dataset: Any) -> bool:
    """Return whether the options of a dataset let its position be saved despite stateful operations."""
    import tensorflow as tf

    policy = tf.data.experimental.ExternalStatePolicy
    try:
        return dataset.options().experimental_external_state_policy in (policy.IGNORE, policy.WARN)
    except AttributeError:
        return False


def with_external_state_policy(dataset: Any, policy: str) -> Any:
    """Return a dataset whose position is saved under a policy: "IGNORE", "WARN" or "FAIL" for stateful operations."""
    import tensorflow as tf

    options = tf.data.Options()
    options.experimental_external_state_policy = tf.data.experimental.ExternalStatePolicy[policy]
    return dataset.with_options(options)


def begun(iterator: Any) -> list[int]:
    """Return how often each shuffle that feeds an iterator has begun, by whichever iterators, in a fixed order.

    Shuffles that ended are left out. A generator of seeds draws two numbers each time that its shuffle begins.
    """
    return [int(each["epoch_num_random_samples"]) // 2 for each in _shuffles(iterator)]


def present_seeds(graph: Any) -> list[int | list[int]]:
    """Return seeds for the unseeded shuffles of a graph: those that order every pass, new ones of the others.

    New ones are drawn from the system, so that no random state advances.
    """

    def present(node: Any) -> int | list[int]:
        if node.op not in rewrite.SHUFFLES or rewrite.is_reshuffling(node):
            return secrets.randbelow(2**62) + 1
        (state,) = _shuffles(iter(rewrite.with_generator(graph, node.name)))
        return [int(state["seed"]), int(state["seed2"])]

    return [*map(present, rewrite.unseeded_shuffles(graph))]


def _shuffles(iterator: Any) -> list[dict[str, Any]]:
    """Return the states of the shuffles that feed an iterator."""
    import tensorflow as tf
    from tensorflow.core.framework import dataset_pb2, tensor_pb2

    saved = state_of(iterator)
    states = {}
    for at in range(int(saved.shape[0])):
        content = tensor_pb2.TensorProto.FromString(tf.io.serialize_tensor(saved[at]).numpy()).tensor_content
        if b"@@epoch_num_random_samples" not in content:
            continue
        stage = _variant(content)
        name, *keys = stage.metadata.decode().split("@@")
        compressed = dataset_pb2.CompressedElement.FromString(stage.tensors[0].variant_val[0].metadata)
        values = tf.raw_ops.UncompressElement(
            compressed=tf.io.parse_tensor(stage.tensors[0].SerializeToString(), tf.variant),
            output_types=[part.dtype for part in compressed.component_metadata],
            output_shapes=[part.tensor_shape for part in compressed.component_metadata],
        )
        states[name] = dict(zip(keys, values, strict=True))
    return [states[name] for name in sorted(states)]


def seeded_shuffles(dataset: Any) -> list[Any]:
    """Return the seeded shuffles that a dataset of a program reads and that other iterators over them advance."""
    shuffles = []
    for part in read_datasets(dataset):
        is_shuffle = type(part).__name__ == "_ShuffleDataset" and part._reshuffle_each_iteration is not False
        if is_shuffle and (int(part._seed) or int(part._seed2)):
            shuffles.append(part)
    return shuffles


def _variant(content: bytes) -> Any:
    """Return the message of a serialised variant, which follows its size as a varint."""
    from tensorflow.core.framework.tensor_pb2 import VariantTensorDataProto

    start = next(at for at, byte in enumerate(content) if byte < 0x80) + 1
    return VariantTensorDataProto.FromString(content[start:])
