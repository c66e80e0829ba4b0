"""Steps that the program annotates for a profiler, whether one runs or not."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import wraps
from numbers import Integral
from typing import Any

from tpunb.profiler.keras import keras_runs
from tpunb.profiler.loop import TRAIN, Loop
from tpunb.training.patching import replaced

_NUMBER, _STEP = "_tpunb_number", "_tpunb_step"


def _annotated(annotation: type, loop: Loop, stack: ExitStack) -> None:
    """Begin a step as an annotation with a step number is entered."""
    clock = loop.clock
    init, enter, leave = (getattr(annotation, name) for name in ("__init__", "__enter__", "__exit__"))

    @wraps(init)
    def begins(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        number = kwargs.get("step_num")
        if isinstance(number, Integral) and 0 <= int(number) < 2**62:
            setattr(self, _NUMBER, int(number))

    @wraps(enter)
    def entered(self: Any, *args: Any) -> Any:
        number = getattr(self, _NUMBER, None)
        if number is not None and not clock.annotates and not keras_runs():
            setattr(self, _STEP, clock.begin(TRAIN, step=number, explicit=True, rule="annotation"))
        return enter(self, *args)

    @wraps(leave)
    def left(self: Any, *error: Any) -> Any:
        try:
            return leave(self, *error)
        finally:
            clock.end(getattr(self, _STEP, None))

    for name, method in (("__init__", begins), ("__enter__", entered), ("__exit__", left)):
        stack.enter_context(replaced(annotation, name, method))


def _jax(loop: Loop, stack: ExitStack) -> None:
    _annotated(sys.modules["jax"].profiler.StepTraceAnnotation, loop, stack)


def _tensorflow(loop: Loop, stack: ExitStack) -> None:
    if (trace := sys.modules.get("tensorflow.python.profiler.trace")) is not None:
        _annotated(trace.Trace, loop, stack)


def _torch(loop: Loop, stack: ExitStack) -> None:
    """Begin a step with each call of ``step`` of the program's own profiler."""
    clock, profiler = loop.clock, sys.modules["torch"].profiler.profile
    opened: list[Any] = []

    def stepping(original: Callable[..., Any], *, begins: bool) -> Callable[..., Any]:
        @wraps(original)
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
        original = getattr(profiler, name)
        stack.enter_context(replaced(profiler, name, stepping(original, begins=begins)))


PATCHES = {"jax": _jax, "tensorflow": _tensorflow, "torch": _torch}
