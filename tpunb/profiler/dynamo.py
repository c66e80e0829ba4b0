"""What torch.compile must not see of a capture: Dynamo traces hooks and wrappers as a part of the program.

With ``fullgraph=True`` these would end the program, and a compiled module warns of global hooks.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any

from tpunb.instrument.registry import around, wrapped

_handles = list[Any]()


def is_compiling() -> Callable[[], bool]:
    """Return a function that Dynamo takes for True, so that of a wrapper it traces the original alone."""
    return getattr(getattr(sys.modules["torch"], "compiler", None), "is_compiling", None) or (lambda: False)


def add_hook(register: str, hook: Callable[..., Any], **options: Any) -> Callable[[], None]:
    """Add a global hook of modules, unless something is compiled; return what removes it."""
    if compiles():
        return lambda: None
    handle = getattr(sys.modules["torch"].nn.modules.module, register)(hook, **options)
    _handles.append(handle)

    def remove() -> None:
        handle.remove()
        with suppress(ValueError):
            _handles.remove(handle)

    return remove


def compiles() -> bool:
    """Return whether the program has asked torch.compile for something, as far as that can be known."""
    utils, frames = (sys.modules.get(f"torch._dynamo.{name}") for name in ("utils", "eval_frame"))
    if utils is None or frames is None:  # optimizers import them, too
        return False
    try:
        return bool(utils.counters.get("frames")) or any(map(callable, [*frames.cached_backends.values()]))
    except AttributeError:  # a version with other names
        return True


def watch(stack: ExitStack, on_compile: Callable[[], None]) -> None:
    """Remove all hooks as the program asks torch.compile for something; call back at the first compilation."""

    def begin(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
        if callable(args[0] if args else kwargs.get("callback")):  # else it disables compilation
            while _handles:
                _handles.pop().remove()
        return original(self, *args, **kwargs)

    waiting = [on_compile]

    def compiled(_: Any) -> None:  # stays: a list from which it were removed now would skip the next
        if waiting:
            waiting.pop()()

    with suppress(AttributeError, KeyError):  # a version with other names
        context = sys.modules["torch._dynamo.eval_frame"]._TorchDynamoContext
        stack.enter_context(wrapped(context, "__init__", around(begin)))
        handler = sys.modules["torch._dynamo.callback"].callback_handler
        handler.start_callbacks.append(compiled)
        stack.callback(lambda: compiled in handler.start_callbacks and handler.start_callbacks.remove(compiled))
