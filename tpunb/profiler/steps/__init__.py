"""Sources of steps, one a file: what programs, frameworks and readers of data say about the steps of a training.

Each maps names of modules to functions that patch them once they are imported, for the time of a capture.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial

from tpunb.profiler.keras import keras_marks
from tpunb.profiler.loop import Loop
from tpunb.profiler.sources.frameworks import loaded
from tpunb.profiler.step_clock import StepClock
from tpunb.profiler.steps import calls, fetches, marks, optimizers
from tpunb.text import format_error
from tpunb.training.patching import on_import

_log = logging.getLogger("tpunb")

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
    """Find the steps of a training while the block runs, of each framework as soon as it is imported."""

    def __init__(self, clock: StepClock) -> None:
        self.loop = Loop(clock)
        self._stack = ExitStack()
        self._lock = threading.RLock()  # a patch may import
        self._open = False
        self._waiting = {name for patches in _PATCHES for name in patches}

    def __enter__(self) -> StepSources:
        self._open = True
        self._stack.enter_context(on_import({name: partial(self._patch, name) for name in self._waiting}))
        self.patch_loaded()
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._open = False
        self._stack.close()

    def patch_loaded(self) -> None:
        """Patch what has been imported since the last call, such as what was being imported as the block began."""
        for name in [name for name in self._waiting.copy() if loaded(name) is not None]:
            self._patch(name)

    def _patch(self, name: str) -> None:
        with self._lock:
            if self._open and name in self._waiting:
                self._waiting.discard(name)
                for patches in _PATCHES:
                    if name in patches:
                        try:
                            patches[name](self.loop, self._stack)
                        except Exception as error:  # noqa: BLE001  of another version: the program must go on
                            _log.info("steps of %s are not found: %s", name, format_error(error))
