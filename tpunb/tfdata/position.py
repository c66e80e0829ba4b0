"""Position of a tf.data iterator: saving and restoring it, and what prevents that."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tpunb.errors import TpunbError
from tpunb.text import format_error
from tpunb.tfdata.effects import effects_of
from tpunb.tfdata.rewrite import is_reshuffling
from tpunb.tfdata.stages import stages, upstream

_STATEFUL = re.compile(r"(\w+) (?:is stateful|does not support checkpointing)")
_NOISE = re.compile(r"\{\{.*?\}\}|\[Op:.*")  # TensorFlow's names of its own functions
_REASONS = {
    "GeneratorDataset": "a Python function (from_generator) feeds it",
    "PyFunc": "a Python function (from_generator, numpy_function, or a Keras PyDataset) feeds it",
    "EagerPyFunc": "a Python function (py_function) feeds it",
    "RandomShuffle": "arrays are shuffled by an operation whose state cannot be saved",
    "DummySeedGenerator": "it is a shuffle inside interleave or flat_map",
    "RngReadAndSkip": "it draws from a tf.random.Generator",
}


def write(prefix: Path, iterator: Any) -> str:
    """Write the position of an iterator, or a variable of TensorFlow; return why it cannot be written, or ""."""
    import tensorflow as tf

    try:
        tf.train.Checkpoint(iterator=iterator).write(str(prefix))
    except (tf.errors.OpError, ValueError, TypeError) as error:  # the last two: distributed data
        for partial in prefix.parent.glob(f"{prefix.name}.*"):
            partial.unlink()
        return explain(error)
    return ""


def read(prefix: Path, iterator: Any) -> None:
    """Restore the position of an iterator from the files of `write`."""
    import tensorflow as tf

    try:
        tf.train.Checkpoint(iterator=iterator).read(str(prefix)).assert_consumed()
    except (tf.errors.OpError, AssertionError, ValueError) as error:
        raise TpunbError(
            f"{prefix.parent.name} was saved with a different dataset: {format_error(error)}",
            hint="run the same cell as when it was saved",
        ) from error


def explain(error: Exception) -> str:
    """Return TensorFlow's reason why a position cannot be saved, with the operation that prevents it."""
    import tensorflow as tf

    if not isinstance(error, tf.errors.OpError):
        return "the position of distributed data cannot be saved"
    if match := _STATEFUL.search(str(error)):
        return _explain_op(match[1])
    reason = _NOISE.sub("", str(error.message).partition("\n")[0]).strip()
    return reason or type(error).__name__


def _explain_op(op: str) -> str:
    return f"{op}: {_REASONS.get(op, 'an operation in it has state that cannot be saved')}"


def external_state(graph: Any) -> str:
    """Return a sentence that names an operation in a graph whose state no position holds, or ""."""
    if graph is None:
        return "the options of the data ignore external state, and their graph cannot be read"
    functions = {function.signature.name: function for function in graph.library.function}
    op = effects_of(functions, *functions).external_state
    return _explain_op(op) if op else ""


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


def late_shuffle(graph: Any) -> str:
    """Return a sentence if a shuffle begins after another part ends, so that no position holds its order; or ""."""
    pipeline, nodes = stages(graph), {node.name: node for node in graph.node}
    by_node = {stage.node: stage for stage in pipeline}
    later = (by_node[name] for stage in pipeline if stage.kind == "concatenate" for name in stage.inputs[1:])
    if any(is_reshuffling(nodes[stage.node]) for part in later for stage in upstream(part, pipeline)):
        return "ConcatenateDataset: it contains a shuffle that begins when the part before it ends"
    return ""
