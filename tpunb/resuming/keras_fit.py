"""The inside of Keras' ``fit`` on TensorFlow: when its data are known, its turns begin and its epochs end.

What is hooked rests on Keras' internals. Before the first use a little epoch is run to see that they are as they were;
where they are not, `TpunbError` says so.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, wraps
from typing import Any

from tpunb.errors import TpunbError, need
from tpunb.marking import replaced
from tpunb.resuming import keras_seeds
from tpunb.resuming.fits import Counted, Fit, Listener, Start

_HINT = "a loop of one's own can be saved with tpunb.resuming.save"


class _Hooks:
    """What runs now: who listens, where the next fit goes on from, and whether Keras is about something else."""

    def __init__(self) -> None:
        self.stack = ExitStack()
        self.users = 0
        self.listeners: list[Listener] = []
        self.start: Start | None = None
        self.fits = 0
        self.fit: Fit | None = None
        self.thread = 0  # of the fit
        self.inner = 0  # evaluations, predictions and fits within the fit

    @property
    def is_elsewhere(self) -> bool:
        """Whether the thread that asks is not the fit's."""
        return self.fit is None or self.thread != threading.get_ident()

    @property
    def training(self) -> Fit | None:
        """The fit whose own hook is called now."""
        return None if self.inner or self.is_elsewhere else self.fit


_hooks = _Hooks()


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Tell `listener` of every fit in the block.

    Raises
    ------
    TpunbError
        Keras runs on another backend, or its inside is not known here.
    """
    with _installed():
        _hooks.listeners.append(listener)
        try:
            yield
        finally:
            _hooks.listeners.remove(listener)


@contextmanager
def starting(start: Start) -> Iterator[None]:
    """Let the first fit of the block go on from a checkpoint.

    Raises
    ------
    TpunbError
        As `listening`; or the block ends without a fit, or is within another that resumes.
    """
    with _installed():
        if _hooks.start is not None:
            raise TpunbError("a fit is resumed from one checkpoint, and here are two", hint="leave one of them out")
        _hooks.start = start
        try:
            yield
            if _hooks.start is not None:
                raise TpunbError("nothing was resumed: the block called no fit", hint="call model.fit(...) in it")
        finally:
            _hooks.start = None


@contextmanager
def _installed() -> Iterator[None]:
    """Put the hooks into Keras while the outermost block runs; afterwards all is as it was."""
    if _hooks.users == 0:
        _check()
        _hooks.fits = 0
        _install(_hooks.stack)
    _hooks.users += 1
    try:
        yield
    finally:
        _hooks.users -= 1
        if _hooks.users == 0:
            _hooks.stack.close()


def _install(stack: ExitStack) -> None:
    import keras
    from keras.src.backend.tensorflow.trainer import TFEpochIterator

    callbacks = keras.callbacks.CallbackList
    for owner, name, hook in (
        (keras.Model, "fit", _fit),
        (keras.Model, "evaluate", _elsewhere),
        (keras.Model, "predict", _elsewhere),
        (callbacks, "on_epoch_begin", _on_epoch_begin),
        (callbacks, "on_epoch_end", _on_epoch_end),
        (TFEpochIterator, "reset", _reset),
        (TFEpochIterator, "_enumerate_iterator", _enumerate),
    ):
        original = getattr(owner, name)
        stack.enter_context(replaced(owner, name, wraps(original)(hook(original))))


def _fit(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    def fit(model: Any, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        if _hooks.fit is not None:
            return _elsewhere(original)(model, *args, **kwargs)
        start, _hooks.start = _hooks.start, None
        if start is not None:
            bound = signature.bind(model, *args, **kwargs)
            bound.arguments["initial_epoch"] = start.about["epoch"]
            args, kwargs = bound.args[1:], bound.kwargs
        _hooks.thread = threading.get_ident()
        _hooks.fit = fit = Fit(model, _hooks.fits, tuple(_hooks.listeners), start)
        _hooks.fits += 1
        try:
            value = original(model, *args, **kwargs)
            if fit.is_due:  # it was saved when all epochs were over
                fit.put_back()
        finally:
            _hooks.fit = None
        return value

    return fit


def _elsewhere(original: Callable[..., Any]) -> Callable[..., Any]:
    def method(model: Any, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        if _hooks.is_elsewhere:  # in a thread beside it, or before and after
            return original(model, *args, **kwargs)
        _hooks.inner += 1
        try:
            return original(model, *args, **kwargs)
        finally:
            _hooks.inner -= 1

    return method


def _on_epoch_begin(original: Callable[..., Any]) -> Callable[..., Any]:
    def hook(callbacks: Any, epoch: int, logs: Any = None) -> None:
        if fit := _hooks.training:
            fit.begin_epoch(epoch, callbacks.callbacks)
        original(callbacks, epoch, logs)

    return hook


def _on_epoch_end(original: Callable[..., Any]) -> Callable[..., Any]:
    def hook(callbacks: Any, epoch: int, logs: Any = None) -> None:
        original(callbacks, epoch, logs)
        if fit := _hooks.training:
            fit.end_epoch(epoch)

    return hook


def _reset(original: Callable[[Any], None]) -> Callable[[Any], None]:
    def reset(epochs: Any) -> None:
        original(epochs)
        if fit := _hooks.training:
            fit.attach(epochs)

    return reset


def _enumerate(original: Callable[[Any], Iterator[Any]]) -> Callable[[Any], Iterator[Any]]:
    def turns(epochs: Any) -> Iterator[Any]:
        fit = _hooks.training
        return original(epochs) if fit is None else fit.turns(epochs, original)

    return turns


@cache
def _check() -> None:
    """See that Keras is as it was when this was written.

    Raises
    ------
    TpunbError
        It is not, or runs on another backend than TensorFlow.
    """
    keras = need("keras", extra="tensorflow")
    if keras.backend.backend() != "tensorflow":
        raise TpunbError(f"Keras runs on {keras.backend.backend()}: its fit can be resumed on TensorFlow", hint=_HINT)
    keras_seeds.generator()
    try:
        known = _little_epoch() and {"data_batch"} <= {*inspect.signature(keras.Model._symbolic_build).parameters}
    except (ImportError, AttributeError, TypeError, ValueError, NotImplementedError):
        known = False
    if not known:
        raise TpunbError(f"the inside of fit of Keras {keras.__version__} is not known to this version", hint=_HINT)


def _little_epoch() -> bool:
    """Say whether an epoch of three batches begins its data twice, yields three turns and keeps account of them."""
    import tensorflow as tf
    from keras.src.backend.tensorflow.trainer import TFEpochIterator

    epochs = TFEpochIterator(
        x=tf.data.Dataset.range(3), shuffle=False, distribute_strategy=tf.distribute.get_strategy()
    )
    epochs.reset()
    data = epochs._distributed_dataset = Counted(epochs._distributed_dataset)
    turns = [(first, last, epochs._steps_seen) for first, last, _ in epochs._enumerate_iterator()]
    return bool(
        turns == [(0, 0, 1), (1, 1, 2), (2, 2, 3)]
        and (data.begun, epochs._steps_seen, epochs._num_batches, epochs.steps_per_epoch) == (2, 0, 3, None)
        and epochs._current_iterator is not None
    )
