"""Creates the variables of a Keras model before the first batch."""

from __future__ import annotations

from typing import Any

from tpunb.errors import TpunbError
from tpunb.text import format_error
from tpunb.training.state import optimizers_of


def build(model: Any, spec: Any) -> bool:
    """Create the variables of a compiled model, its optimizer and metrics, as the first batch of ``fit`` would.

    Return False if some may be missing: of a model without ``call``, or whose ``train_step`` calls it in another way.
    """
    import keras
    import tensorflow as tf

    def symbol(part: Any) -> Any:
        return keras.KerasTensor(tuple(part.shape), part.dtype.name)

    specs = tf.nest.flatten(spec)
    try:
        if all(isinstance(part, tf.TensorSpec) and part.shape.rank is not None for part in specs):
            model._symbolic_build(data_batch=tf.nest.map_structure(symbol, spec))
        elif not model.built:
            raise ValueError("the shape of its data is unknown")
        if model.optimizer is not None and not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
    except (AttributeError, TypeError, ValueError, RuntimeError, NotImplementedError) as error:
        own_step = type(model).train_step is not keras.Model.train_step or type(model).call is keras.Model.call
        if model.variables and own_step:
            return False
        raise TpunbError(
            f"{model.name} cannot be built: {format_error(error)}", hint="call it on a batch once"
        ) from error
    return all(getattr(each, "built", True) for each in optimizers_of(model))
