"""Replaces attributes of other libraries' classes, modules and objects for the time of a block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_INHERITED = object()


@contextmanager
def replaced(owner: Any, name: str, value: object) -> Iterator[None]:
    """Set an attribute in the block; afterwards restore it, or the inherited one that it hid."""
    original = vars(owner).get(name, _INHERITED)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if original is _INHERITED:
            delattr(owner, name)
        else:
            setattr(owner, name, original)
