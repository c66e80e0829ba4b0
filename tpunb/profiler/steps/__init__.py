"""Sources of steps, one a file: what programs, frameworks and readers of data say about the steps of a training.

Each maps names of modules to functions that patch them once they are imported, for the time of a capture.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial

from tpunb.instrument.registry import watching
from tpunb.profiler.keras import keras_marks
from tpunb.profiler.loop import Loop
from tpunb.profiler.step_clock import StepClock
from tpunb.profiler.steps import calls, fetches, marks, optimizers

Patch = Callable[[Loop, ExitStack], None]
"""Patches a module that has been imported; the stack undoes it."""


def _keras(loop: Loop, stack: ExitStack) -> None:
    stack.enter_context(keras_marks(loop.clock))


_PATCHES: tuple[Mapping[str, Patch], ...] = (
    {"keras": _keras},
    marks.PATCHES,
    optimizers.PATCHES,
    fetches.PATCHES,
    calls.PATCHES,
)


class StepSources:
    """Find the steps of a training while the block runs, of each library as soon as it is imported."""

    def __init__(self, clock: StepClock) -> None:
        self.loop = Loop(clock)
        self._stack = ExitStack()

    def __enter__(self) -> StepSources:
        for patches in _PATCHES:
            for name, patch in patches.items():
                self._stack.enter_context(watching(name, partial(patch, self.loop)))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
