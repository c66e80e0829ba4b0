"""Cost of a step of a Keras model: FLOPs and bytes of its matrix operations, counted in its graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tpunb.studies.frameworks import tf
from tpunb.studies.paper.workloads.sizes import SPLITS
from tpunb.training.graph_work import graph_work


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
    roof_s
        Seconds at the roof of the device that ran it, each instruction of the compiled program at its own; None if
        counted in the graph.
    """

    flops: float
    bytes: float
    roof_s: float | None = None


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
    return Cost(*graph_work(graph))
