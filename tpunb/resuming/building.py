"""Makes the variables of a Keras model before a batch is drawn."""

from __future__ import annotations

from typing import Any

from tpunb.errors import TpunbError


def build(model: Any, spec: Any) -> None:
    """Make the variables of a model, its optimizer and its metrics, as ``fit`` would by its first batch.

    Parameters
    ----------
    model
        A compiled one.
    spec
        The ``element_spec`` of its data.

    Raises
    ------
    TpunbError
        When it cannot be built of this alone.
    """
    import keras
    import tensorflow as tf

    def symbol(one: Any) -> Any:
        return keras.KerasTensor(tuple(one.shape), one.dtype.name)

    specs = tf.nest.flatten(spec)
    try:
        if all(isinstance(one, tf.TensorSpec) and one.shape.rank is not None for one in specs):
            model._symbolic_build(data_batch=tf.nest.map_structure(symbol, spec))
        elif not model.built:
            raise ValueError("its data are of no known shape")
        if model.optimizer is not None and not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
    except (AttributeError, TypeError, ValueError, RuntimeError) as error:
        told = (str(error).splitlines() or [type(error).__name__])[0]
        raise TpunbError(f"{model.name} cannot be built: {told}", hint="call it on a batch once") from error
