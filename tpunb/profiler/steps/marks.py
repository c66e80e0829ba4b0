"""Steps that the program annotates for a profiler, whether one runs or not."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from numbers import Integral
from typing import Any

from tpunb.instrument.registry import around, wrapped
from tpunb.profiler.keras import keras_runs
from tpunb.profiler.loop import TRAIN, Loop

_NUMBER, _STEP = "_tpunb_number", "_tpunb_step"


def _annotated(annotation: type, loop: Loop, stack: ExitStack) -> None:
    """Begin a step as an annotation with a step number is entered."""
    clock = loop.clock

    def begins(init: Callable[..., None], self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        number = kwargs.get("step_num")
        if isinstance(number, Integral) and 0 <= int(number) < 2**62:
            setattr(self, _NUMBER, int(number))

    def entered(enter: Callable[..., Any], self: Any, *args: Any) -> Any:
        number = getattr(self, _NUMBER, None)
        if number is not None and not clock.annotates and not keras_runs():
            setattr(self, _STEP, clock.begin(TRAIN, step=number, explicit=True, rule="annotation"))
        return enter(self, *args)

    def left(leave: Callable[..., Any], self: Any, *error: Any) -> Any:
        try:
            return leave(self, *error)
        finally:
            clock.end(getattr(self, _STEP, None))

    for name, hook in (("__init__", begins), ("__enter__", entered), ("__exit__", left)):
        stack.enter_context(wrapped(annotation, name, around(hook)))


def _jax(loop: Loop, stack: ExitStack) -> None:
    _annotated(sys.modules["jax"].profiler.StepTraceAnnotation, loop, stack)


def _tensorflow(loop: Loop, stack: ExitStack) -> None:
    if (trace := sys.modules.get("tensorflow.python.profiler.trace")) is not None:
        _annotated(trace.Trace, loop, stack)


def _torch(loop: Loop, stack: ExitStack) -> None:
    """Begin a step with each call of ``step`` of the program's own profiler."""
    clock, profiler = loop.clock, sys.modules["torch"].profiler.profile
    opened: list[Any] = []

    def stepping(begins: bool, original: Callable[..., Any]) -> Callable[..., Any]:
        def patched(self: Any, *args: Any, **kwargs: Any) -> Any:
            while opened:
                clock.end(opened.pop())
            result = original(self, *args, **kwargs)
            if begins and clock.opened is None:
                opened.append(clock.begin(TRAIN, explicit=True, rule="annotation"))
                if opened[-1] is not None:
                    opened[-1].lasts = True
            return result

        return patched

    for name, begins in (("step", True), ("stop", False)):
        stack.enter_context(wrapped(profiler, name, partial(stepping, begins)))


PATCHES = {"jax": _jax, "tensorflow": _tensorflow, "torch": _torch}
