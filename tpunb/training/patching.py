"""Replaces attributes of other libraries' classes and modules for the time of a block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

_INHERITED = object()


@contextmanager
def replaced(owner: type | ModuleType, name: str, value: object) -> Iterator[None]:
    """Set an attribute of a class or a module in the block; afterwards restore it, or the inherited one that it hid."""
    original = vars(owner).get(name, _INHERITED)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if original is _INHERITED:
            delattr(owner, name)
        else:
            setattr(owner, name, original)
