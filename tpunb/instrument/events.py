"""What the libraries of a program were asked to do, as it happens: events, without any judgement."""

from __future__ import annotations

from typing import Any, NamedTuple


class What(NamedTuple):
    """What was called: its library, its module, and its qualified name there, as Python has them."""

    library: str
    module: str
    name: str

    @classmethod
    def of(cls, library: str, function: Any) -> What:
        """Return what a function, a method or a class is.

        >>> import json
        >>> What.of("json", json.JSONDecoder.decode)
        What(library='json', module='json.decoder', name='JSONDecoder.decode')
        """
        name = getattr(function, "__qualname__", None) or getattr(function, "__name__", None) or type(function).__name__
        return cls(library, str(getattr(function, "__module__", None) or ""), str(name))
