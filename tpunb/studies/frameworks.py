"""TensorFlow and Keras, imported on first use."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from tpunb.errors import need


class _Lazy:
    """A module that is imported when an attribute is first read."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # inspection asks what it wraps
            raise AttributeError(name)
        return getattr(need(self._module, extra="tensorflow"), name)


keras, tf = _Lazy("keras"), _Lazy("tensorflow")


def strategy(tpu: str | None) -> AbstractContextManager[Any]:
    """Return the scope of the distribution strategy for a Cloud TPU, or none."""
    if tpu is None:
        return nullcontext()
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=tpu)
    tf.config.experimental_connect_to_cluster(resolver)
    tf.tpu.experimental.initialize_tpu_system(resolver)
    return tf.distribute.TPUStrategy(resolver).scope()  # type: ignore[no-any-return]
