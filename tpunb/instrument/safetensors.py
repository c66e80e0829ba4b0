"""Safetensors: files of weights that it saves and loads."""

from __future__ import annotations

from contextlib import ExitStack

from tpunb.instrument.hooks import listen_to_calls
from tpunb.instrument.registry import Evidence, Library
from tpunb.instrument.sink import Sink

LIBRARY = Library("safetensors", "safetensors", ("0.8.0", "0.8.0"))

FILES = tuple(
    LIBRARY.attribute("safetensors.torch", name, evidence=Evidence(event))
    for name, event in (("save_file", "save"), ("save_model", "save"), ("load_model", "restore"))
)
WRITE_FILE = LIBRARY.attribute("safetensors.torch", "serialize_file")  # without Python's `open`


def listen(sink: Sink, stack: ExitStack) -> None:
    """Listen to it until the stack is closed."""
    listen_to_calls(sink, FILES, stack)
