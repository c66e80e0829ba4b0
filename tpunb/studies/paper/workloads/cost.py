"""Cost of a step of a Keras model: FLOPs and bytes of its matrix operations, counted in its graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tpunb.studies.frameworks import tf
from tpunb.studies.paper.workloads.sizes import SPLITS
from tpunb.training.graph_work import graph_work


@dataclass(frozen=True)
class Cost:
    """Cost of one step: of its matrix products and convolutions, which run on a matrix unit."""

    flops: float  # a multiplication and an addition are two
    bytes: float  # a lower bound: each moves its operands and results once, and all other operations are fused
    roof_s: float | None = None  # each compiled instruction at the device's roof for it; None if counted in the graph


def cost(model: Any, data: Any, split: str = "train") -> Cost:
    """Return the cost of a step of a compiled Keras model, counted in the traced graph without running it.

    `data` is a dataset of its batches, of the first's shapes; `split` is "train", with gradients, or "eval".
    """
    if split not in SPLITS:
        raise ValueError(f"The split parameter of cost must be one of {SPLITS}. Got {split!r} instead.")
    step = model.train_step if split == "train" else model.test_step
    shapes = tf.nest.map_structure(lambda each: tf.TensorSpec(each.shape, each.dtype), next(iter(data)))
    graph = tf.function(lambda batch: step(batch), autograph=False).get_concrete_function(shapes).graph
    return Cost(*graph_work(graph))
