"""TensorFlow and Keras, imported on first use."""

from __future__ import annotations

from typing import Any

from tpunb.errors import need


class _Lazy:
    """A module that is imported when an attribute is first read."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(need(self._module, extra="tensorflow"), name)


keras, tf = _Lazy("keras"), _Lazy("tensorflow")
