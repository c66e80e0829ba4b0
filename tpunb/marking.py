"""Marks the steps of a running program: our own clock for every step, and the framework's annotation.

A step that Keras runs lasts until the next one begins, so that what happens between batches (a checkpoint saved, a
callback) belongs to the step after which it happened and no time is lost.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

Annotate = Callable[[str, int], AbstractContextManager[Any]]
"""Opens the framework's own step annotation: (mark, step number) -> context manager."""


class Tick(NamedTuple):
    """One step, by our own clock."""

    step: int
    mark: str
    start_ns: int  # since the epoch
    end_ns: int


@dataclass
class _Open:
    step: int
    mark: str
    start_ns: int
    annotation: AbstractContextManager[Any]
    complete: bool


class StepClock:
    """Notes every step of a run: its number, mark, begin and end.

    Parameters
    ----------
    annotate
        Opens the framework's step annotation, so that a profile knows the step too.
    """

    def __init__(self, annotate: Annotate) -> None:
        self._annotate = annotate
        self._open: _Open | None = None
        self._next = 0
        self._ticks: list[Tick] = []
        self._warned = False

    def begin(self, mark: str, step: int | None = None, *, complete: bool = True) -> None:
        """Begin a step, which ends the one before.

        Parameters
        ----------
        mark
            What kind of step: "train", "test", ...
        step
            Its number; numbers rise through a run, so one that does not is replaced by the next, with a warning.
        complete
            False where `finished` will tell that the step did its work.
        """
        self.end()
        number = self._next if step is None else int(step)
        if number < self._next:
            if not self._warned:
                self._warned = True
                warnings.warn(f"step {number} was marked before; steps are numbered on from {self._next}", stacklevel=4)
            number = self._next
        self._next = number + 1
        annotation = self._annotate(mark, number)
        start_ns = time.time_ns()
        annotation.__enter__()
        self._open = _Open(number, mark, start_ns, annotation, complete)

    def finished(self) -> None:
        """Tell that the open step did its work; it goes on until the next begins."""
        if self._open is not None:
            self._open.complete = True

    def end(self) -> None:
        """End the open step, if there is one.

        A step that never did its work (Keras begins one more at the end of data of unknown length) is no step: its
        time is given to the one before, and the next takes its number.
        """
        step, self._open = self._open, None
        if step is None:
            return
        step.annotation.__exit__(None, None, None)
        number = step.step
        if not step.complete:
            self._next = number
            number -= 1
        if number >= 0:
            self._ticks.append(Tick(number, step.mark, step.start_ns, time.time_ns()))

    def abandon(self) -> None:
        """End the open step; one that did not finish its work is forgotten."""
        step = self._open
        if step is not None and not step.complete:
            self._open = None
            step.annotation.__exit__(None, None, None)
        self.end()

    def open_tick(self) -> Tick | None:
        """Return the open step, as if it ended now."""
        step = self._open
        return None if step is None else Tick(step.step, step.mark, step.start_ns, time.time_ns())

    def take(self) -> list[Tick]:
        """Return the steps that ended since the last call, in order."""
        taken, self._ticks = self._ticks, []
        return taken


@contextmanager
def keras_marks(clock: StepClock) -> Iterator[None]:
    """Mark every batch of ``fit``, ``evaluate`` and ``predict`` while the block runs.

    Every list of Keras callbacks goes through ``keras.callbacks.CallbackList``; for the time of the block its hooks
    tell the clock too, and then they are as they were. The hooks run in the training thread even where Keras hands
    its callbacks to another.
    """
    from keras.callbacks import CallbackList

    training: list[Any] = []

    def begin(mark: str) -> Callable[..., None]:
        return lambda _: clock.begin(mark, complete=False)

    def end_of(kind: str) -> Callable[..., None]:
        def ended(callbacks: Any) -> None:
            if kind == "train":
                training.clear()
            # an evaluation inside `fit` shares its list: the run goes on, and with it the last step
            if not any(callbacks is outer for outer in training):
                clock.end()

        return ended

    def train_begins(callbacks: Any) -> None:
        training[:] = [callbacks]

    before: dict[str, Callable[[Any], None]] = {"on_train_begin": train_begins}
    after: dict[str, Callable[[Any], None]] = {}
    for kind in ("train", "test", "predict"):
        before[f"on_{kind}_batch_begin"] = begin(kind)
        before[f"on_{kind}_batch_end"] = lambda _: clock.finished()
        after[f"on_{kind}_end"] = end_of(kind)

    originals = {name: CallbackList.__dict__[name] for name in (*before, *after)}

    def told(name: str) -> Callable[..., Any]:
        original, first, last = originals[name], before.get(name), after.get(name)

        def hook(self: Any, *args: Any, **kwargs: Any) -> Any:
            if first is not None:
                first(self)
            try:
                return original(self, *args, **kwargs)
            finally:
                if last is not None:
                    last(self)

        return hook

    for name in originals:
        setattr(CallbackList, name, told(name))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(CallbackList, name, original)
