"""Safetensors: files of weights that it saves and loads."""

from __future__ import annotations

from contextlib import ExitStack

from tpunb.instrument.hooks import listen_to_calls
from tpunb.instrument.registry import Library
from tpunb.instrument.sink import Sink

LIBRARY = Library("safetensors", "safetensors", ("0.8.0", "0.8.0"))

SAVES = tuple(LIBRARY.attribute("safetensors.torch", name) for name in ("save_file", "save_model"))
WRITE_FILE = LIBRARY.attribute("safetensors.torch", "serialize_file")  # without Python's `open`
RESTORES = (LIBRARY.attribute("safetensors.torch", "load_model"),)


def listen(sink: Sink, stack: ExitStack) -> None:
    """Listen to it until the stack is closed."""
    listen_to_calls(sink, "save", SAVES, stack)
    listen_to_calls(sink, "restore", RESTORES, stack)
