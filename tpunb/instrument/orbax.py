"""Orbax: its checkpoints; one in the background counts as far as the program waits for it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from tpunb.instrument.hooks import listen_to_calls
from tpunb.instrument.registry import Evidence, Library, around
from tpunb.instrument.sink import Sink

LIBRARY = Library("orbax", "orbax-checkpoint", ("0.12.8", "0.12.8"))

_MANAGER, _CHECKPOINTERS = "orbax.checkpoint.checkpoint_manager", "orbax.checkpoint._src.checkpointers"
_V1 = "orbax.checkpoint.experimental.v1._src.training.checkpointer"

_ASYNC = f"{_CHECKPOINTERS}.async_checkpointer"
ASYNC_SAVE, *_OTHERS = FILES = tuple(
    LIBRARY.attribute(home, path, evidence=Evidence(event))
    for home, path, event in (
        (_ASYNC, "AsyncCheckpointer.save", "save"),
        (_MANAGER, "CheckpointManager.save", "save"),
        (_MANAGER, "CheckpointManager.wait_until_finished", "save"),
        (f"{_CHECKPOINTERS}.checkpointer", "Checkpointer.save", "save"),
        (_ASYNC, "AsyncCheckpointer.wait_until_finished", "save"),
        (_MANAGER, "CheckpointManager.restore", "restore"),
        (f"{_CHECKPOINTERS}.checkpointer", "Checkpointer.restore", "restore"),
        (_V1, "Checkpointer.load", "restore"),
        (_V1, "Checkpointer.load_checkpointables", "restore"),
    )
)


def listen(sink: Sink, stack: ExitStack) -> None:
    """Listen to it until the stack is closed."""

    def save(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        sink.clock.metadata["saves"] = "background"
        return original(*args, **kwargs)

    listen_to_calls(sink, FILES, stack)
    stack.enter_context(ASYNC_SAVE.listening(around(save)))
