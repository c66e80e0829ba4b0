"""Orbax: its checkpoints; one in the background counts as far as the program waits for it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from tpunb.instrument.hooks import listen_to_calls
from tpunb.instrument.registry import Library, around
from tpunb.instrument.sink import Sink

LIBRARY = Library("orbax", "orbax-checkpoint", ("0.12.8", "0.12.8"))

_MANAGER, _CHECKPOINTERS = "orbax.checkpoint.checkpoint_manager", "orbax.checkpoint._src.checkpointers"
_V1 = "orbax.checkpoint.experimental.v1._src.training.checkpointer"

ASYNC_SAVE = LIBRARY.attribute(f"{_CHECKPOINTERS}.async_checkpointer", "AsyncCheckpointer.save")
SAVES = (
    LIBRARY.attribute(_MANAGER, "CheckpointManager.save"),
    LIBRARY.attribute(_MANAGER, "CheckpointManager.wait_until_finished"),
    LIBRARY.attribute(f"{_CHECKPOINTERS}.checkpointer", "Checkpointer.save"),
    ASYNC_SAVE,
    LIBRARY.attribute(f"{_CHECKPOINTERS}.async_checkpointer", "AsyncCheckpointer.wait_until_finished"),
)
RESTORES = (
    LIBRARY.attribute(_MANAGER, "CheckpointManager.restore"),
    LIBRARY.attribute(f"{_CHECKPOINTERS}.checkpointer", "Checkpointer.restore"),
    LIBRARY.attribute(_V1, "Checkpointer.load"),
    LIBRARY.attribute(_V1, "Checkpointer.load_checkpointables"),
)


def listen(sink: Sink, stack: ExitStack) -> None:
    """Listen to it until the stack is closed."""

    def save(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        sink.clock.metadata["saves"] = "background"
        return original(*args, **kwargs)

    listen_to_calls(sink, "save", SAVES, stack)
    listen_to_calls(sink, "restore", RESTORES, stack)
    stack.enter_context(ASYNC_SAVE.listening(around(save)))
