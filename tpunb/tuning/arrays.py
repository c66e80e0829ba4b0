"""Arrays given to ``fit`` in place of a dataset: the batches that Keras makes of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tpunb.errors import need
from tpunb.tuning.parameters import Value
from tpunb.tuning.pipeline import Pipeline

BATCH = 32
"""Rows of a batch, as in ``fit`` by default."""


def are_arrays(data: object) -> bool:
    """Return whether data are (x, y) or (x, y, sample weights)."""
    return isinstance(data, tuple) and len(data) in (2, 3)


def batched(data: tuple[Any, ...], *, shuffle: bool) -> Any:
    """Return the dataset from which ``fit(*data)`` takes its batches, in the order of the rows unless shuffled.

    Raises
    ------
    TypeError
        If they are not arrays with the same number of rows.
    """
    need("keras", extra="tensorflow")
    from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter

    x, y, weights = (*data, None)[:3]
    try:
        return ArrayDataAdapter(x, y, weights, batch_size=BATCH, shuffle=shuffle).get_tf_dataset()
    except (ValueError, AttributeError, TypeError) as error:
        raise TypeError(f"The data of a Job must be a dataset, or a tuple of arrays: {error}") from error


class ArrayPipeline(Pipeline):
    """The batches of arrays as adjustable parameters, in the order of the rows, so that trials are alike."""

    def __init__(self, data: tuple[Any, ...]) -> None:
        super().__init__(batched(data, shuffle=False))

    def as_code(self, values: Mapping[str, Value]) -> str:
        """Return the lines of code that set these values: Keras makes the dataset, so no code of the program does."""
        return "data = tuning.apply((x, y))\nmodel.fit(data)  # in place of model.fit(x, y)" if values else ""


def shuffled(data: tuple[Any, ...], values: Mapping[str, Value]) -> Any:
    """Return the shuffled batches of arrays, as ``fit`` makes them, with other values."""
    pipeline = Pipeline(batched(data, shuffle=True))
    free = {parameter.name for parameter in pipeline.parameters if parameter.verdict != "locked"}
    return pipeline.in_place({name: value for name, value in values.items() if name in free})
