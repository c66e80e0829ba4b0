"""Marks the steps of a running program: our own clock for every step, and the framework's annotation.

A step that Keras runs lasts until the next one begins, so that what happens between batches (a checkpoint saved, a
callback) belongs to the step after which it happened. Within a step that the user marked himself, Keras marks none.
"""

from __future__ import annotations

import math
import time
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import wraps
from typing import Any, NamedTuple

_KINDS = ("train", "test", "predict")
_INHERITED = object()

_keras_depth = 0  # of the methods of Keras that run, one within another


def keras_runs() -> bool:
    """Say whether a method of a Keras model that is being marked runs now."""
    return _keras_depth > 0


Annotate = Callable[[str, int], AbstractContextManager[Any]]
"""Opens the framework's own step annotation: (mark, step number) -> context manager."""


class Tick(NamedTuple):
    """One step, by our own clock."""

    step: int
    mark: str
    start_ns: int  # since the epoch
    end_ns: int
    input_ns: int | None = None  # of it, waiting for input, where that is known


@dataclass(eq=False, slots=True)
class _Open:
    step: int
    mark: str
    start_ns: int
    annotation: AbstractContextManager[Any]
    complete: bool
    explicit: bool
    input_ns: int | None = None


class StepClock:
    """Notes every step of a run: its number, mark, begin and end. One thread at a time marks.

    Parameters
    ----------
    annotate
        Opens the framework's step annotation, so that a profile knows the step too.
    until
        The step at which marking ends, if any.
    reached
        Called once when that step would begin.
    """

    def __init__(
        self, annotate: Annotate, *, until: int | None = None, reached: Callable[[], None] = lambda: None
    ) -> None:
        self._annotate = annotate
        self._until = math.inf if until is None else until
        self._reached = reached
        self._closed = False
        self._open: _Open | None = None
        self._next = 0
        self.count = 0  # steps that ended
        self.about: dict[str, str] = {}  # what runs, as far as it is known
        self.fitted: tuple[Any, Any] | None = None  # the model and the data of the last fit
        self._ticks: deque[Tick] = deque()
        self._warned = False

    def begin(self, mark: str, *, step: int | None = None, complete: bool = True, explicit: bool = False) -> object:
        """Begin a step, which ends the one before; return it, for `end`.

        Within a step that the user marked himself there are no others: None comes back, and nothing changes. Nor are
        there once the clock is closed.

        Parameters
        ----------
        mark
            What kind of step: "train", "test", ...
        step
            Its number; numbers rise through a run, so one that does not is replaced by the next, with a warning.
        complete
            False where `finished` will tell that the step did its work.
        explicit
            Whether the user marked it himself.
        """
        if self._open is not None and self._open.explicit:
            return None
        self.end()
        if self._closed:
            return None
        number = self._next if step is None else step
        if number < self._next:
            if not self._warned:
                self._warned = True
                warnings.warn(
                    f"step {number} is not above the last; steps are numbered on from {self._next}", stacklevel=4
                )
            number = self._next
        if number >= self._until:
            self.close()
            self._reached()
            return None
        self._next = number + 1
        annotation = self._annotate(mark, number)
        start_ns = time.time_ns()
        annotation.__enter__()
        self._open = _Open(number, mark, start_ns, annotation, complete, explicit)
        return self._open

    def close(self) -> None:
        """Mark no step from now on; the one that is open is none of ours any more."""
        self._closed = True

    def finished(self) -> None:
        """Tell that the open step did its work; it goes on until the next begins."""
        if self._open is not None:
            self._open.complete = True

    def fed(self) -> None:
        """Tell that the open step has waited for its input until now."""
        if self._open is not None:
            self._open.complete = True
            self._open.input_ns = time.time_ns() - self._open.start_ns

    def end(self, step: object = None) -> None:
        """End the open step, if there is one; where `step` is given, only if it is that one.

        A step that never did its work (Keras begins one more at the end of data of unknown length) is no step: its
        time is given to the one before, and the next takes its number.
        """
        ending = self._open
        if ending is None or (step is not None and step is not ending):
            return
        self._open = None
        ending.annotation.__exit__(None, None, None)
        number = ending.step
        if not ending.complete:
            self._next = number
            number -= 1
        if number >= 0 and not self._closed:
            end_ns = max(ending.start_ns, time.time_ns())  # the machine's clock may be set back
            self._ticks.append(Tick(number, ending.mark, ending.start_ns, end_ns, ending.input_ns))
            self.count += ending.complete

    def leave(self, *, done: bool) -> None:
        """End the open step of a framework's loop that is over; a step cut short by an exception is forgotten."""
        if self._open is not None and not self._open.explicit:
            (self.end if done else self.abandon)()

    def abandon(self) -> None:
        """End the open step; one that did not finish its work is forgotten."""
        step = self._open
        if step is not None and not step.complete:
            self._open = None
            self._next = step.step
            step.annotation.__exit__(None, None, None)
        self.end()

    def open_tick(self) -> Tick | None:
        """Return the open step, as if it ended now."""
        step = self._open
        return None if step is None else Tick(step.step, step.mark, step.start_ns, time.time_ns(), step.input_ns)

    def take(self) -> list[Tick]:
        """Return the steps that ended since the last call, in order."""
        taken = []
        while self._ticks:  # one by one: the training may end a step at any moment
            taken.append(self._ticks.popleft())
        return taken


@contextmanager
def keras_marks(clock: StepClock) -> Iterator[None]:
    """Mark every batch of ``fit``, ``evaluate`` and ``predict`` while the block runs.

    Every list of Keras callbacks goes through ``keras.callbacks.CallbackList``; for the time of the block its hooks
    tell the clock too, in the training thread even where Keras hands its callbacks to another. The last step ends
    when the outermost of the three methods does. Afterwards all is as it was.
    """
    import keras

    def batches(kind: str, hook: str) -> Callable[[], object]:
        return lambda: clock.begin(kind, complete=False) if hook == "begin" else clock.finished()

    def told(original: Callable[..., Any], tell: Callable[[], object]) -> Callable[..., Any]:
        @wraps(original)
        def hook(self: Any, *args: Any, **kwargs: Any) -> Any:
            tell()
            return original(self, *args, **kwargs)

        return hook

    def note(model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        with suppress(TypeError):  # arguments that Keras itself is about to refuse
            clock.about = keras_about(model, *args[:3], **kwargs)

    def enclosed(original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            global _keras_depth
            __tracebackhide__ = True
            _keras_depth += 1
            done = False
            known = clock.about
            if _keras_depth == 1 and (original.__name__ == "fit" or not known):
                note(self, args, kwargs)
            if _keras_depth == 1 and original.__name__ == "fit":
                clock.fitted = self, args[0] if args else kwargs.get("x")
            try:
                value = original(self, *args, **kwargs)
                done = True
            finally:
                if clock.about is not known and "weights" not in clock.about:  # they are made by its first batch
                    note(self, args, kwargs)
                _keras_depth -= 1
                if _keras_depth == 0:
                    clock.leave(done=done)
            return value

        return method

    hooks = {f"on_{kind}_batch_{hook}": batches(kind, hook) for kind in _KINDS for hook in ("begin", "end")}
    with ExitStack() as stack:
        for name, tell in hooks.items():
            owner = keras.callbacks.CallbackList
            stack.enter_context(replaced(owner, name, told(getattr(owner, name), tell)))
        for name in ("fit", "evaluate", "predict"):
            stack.enter_context(replaced(keras.Model, name, enclosed(getattr(keras.Model, name))))
        yield


def keras_about(
    model: Any, x: object = None, y: object = None, batch_size: object = None, **_: object
) -> dict[str, str]:
    """Return what is known of a Keras model and of how it is trained; what cannot be told is left out.

    Its name is not: Keras numbers the models of a process. So "model" is its class and what its layers are; data are
    looked at from outside only.

    Parameters
    ----------
    model
        The model.
    x, y, batch_size
        As ``fit`` was given them.
    """
    about: dict[str, str] = {}

    def tell(fact: str, word: Callable[[], object]) -> None:
        with suppress(Exception):  # a model may do anything when it is asked, and its training must go on
            if (told := word()) is not None:
                about[fact] = str(told)

    tell("model", lambda: _architecture(model))
    tell("weights", lambda: model.count_params() if model.built else None)
    tell("dtype", lambda: _dtype(model))
    tell("optimizer", lambda: None if model.optimizer is None else type(model.optimizer).__name__)
    tell("batch", lambda: _batch(x, batch_size))
    return about


def _layers(model: Any) -> Iterator[Any]:
    """Yield the layers of a model that hold no others."""
    for layer in model.layers:
        if getattr(layer, "layers", None):
            yield from _layers(layer)
        elif type(layer).__name__ != "InputLayer":
            yield layer


def _architecture(model: Any) -> str:
    kinds = Counter(type(layer).__name__ for layer in _layers(model))
    return f"{type(model).__name__} of {', '.join(f'{number} {kind}' for kind, number in kinds.items())}"


def _dtype(model: Any) -> str:
    """Return the policy of most layers that have weights: a model of one may hold layers of another."""
    policies = Counter(layer.dtype_policy.name for layer in _layers(model) if layer.weights)
    return str((policies.most_common(1) or [(model.dtype_policy.name, 1)])[0][0])


def _batch(x: Any, batch_size: object) -> object:
    """Return how many samples a batch holds; None where only the data themselves would tell."""
    if batch_size is not None:
        return batch_size
    if hasattr(x, "batch_size"):  # a loader
        return x.batch_size
    if not hasattr(x, "element_spec"):
        return 32 if hasattr(x, "shape") else None  # Keras' default for arrays
    spec = x.element_spec  # of a dataset
    while isinstance(spec, (tuple, list, dict)):
        spec = next(iter(spec.values() if isinstance(spec, dict) else spec))
    return spec.shape[0]


@contextmanager
def replaced(owner: type, name: str, value: object) -> Iterator[None]:
    """Give a class an attribute for the time of the block, its own or one that hides an inherited one."""
    own = vars(owner).get(name, _INHERITED)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if own is _INHERITED:
            delattr(owner, name)
        else:
            setattr(owner, name, own)
