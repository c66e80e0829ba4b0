"""Listens to Keras' ``fit`` on TensorFlow and JAX: to its data, its turns and its epochs."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

from tpunb.instrument.keras import EPOCH_RESET, EPOCH_TURNS, HOOKS, METHODS, check_fit, unsupported
from tpunb.instrument.registry import Attribute, Hook, Priority
from tpunb.instrument.tensorflow import ITERATOR_CREATION
from tpunb.training.block import Block
from tpunb.training.files import guard
from tpunb.training.fit_start import EndedFit
from tpunb.training.fit_state import Fit
from tpunb.training.jax_fit import JaxFit
from tpunb.training.program import place_of, user_frame


class _Block(Block):
    """The fits of the outermost block."""

    kind = call = "fit"

    def __init__(self) -> None:
        super().__init__()
        self.ended: list[EndedFit] = []  # of the block
        self.fit: Fit | None = None
        self.thread = 0  # of the fit
        self.depth = 0  # evaluations, predictions and fits within the fit

    def enter(self) -> None:
        if self.users == 0:
            check_fit()
            self.ended = []
            _install(self.stack)

    @property
    def is_other_thread(self) -> bool:
        """Whether no fit runs in this thread."""
        return self.fit is None or self.thread != threading.get_ident()

    @property
    def training(self) -> Fit | None:
        """The fit whose own hook is called now."""
        return None if self.depth or self.is_other_thread else self.fit


_block = _Block()
listening, starting = _block.listening, _block.starting


def is_fitting() -> bool:
    """Return whether a fit runs in this thread, whose events are sent."""
    return not _block.is_other_thread


def _install(stack: ExitStack) -> None:
    def begin_fit(fit: Fit, callbacks: Any, logs: Any = None) -> None:
        if fit.start is not None or fit.past is not None:
            fit.model._initial_epoch = None  # BackupAndRestore has set the epoch of its own backup

    def begin_epoch(fit: Fit, callbacks: Any, epoch: int, logs: Any = None) -> None:
        fit.begin_epoch(epoch, callbacks.callbacks)

    def end_epoch(fit: Fit, callbacks: Any, epoch: int, logs: Any = None) -> None:
        fit.end_epoch(epoch)

    def end_step(fit: Fit, callbacks: Any, step: int, logs: Any = None) -> None:
        fit.fingerprints.on_logs(logs)

    def attach(fit: Fit, epochs: Any) -> None:
        fit.attach(epochs)

    hooks: dict[Attribute, Hook] = {
        METHODS["fit"]: _fit,
        METHODS["evaluate"]: _inner_call,
        METHODS["predict"]: _inner_call,
        HOOKS["on_train_begin"]: _event(begin_fit),
        HOOKS["on_epoch_begin"]: _event(begin_epoch, after=False),
        HOOKS["on_epoch_end"]: _event(end_epoch),
        HOOKS["on_train_batch_end"]: _event(end_step, after=False),
        EPOCH_RESET[_backend()]: _event(attach),
        EPOCH_TURNS[_backend()]: _enumerate,
    }
    if not all(attribute.places() for attribute in hooks):
        raise unsupported("the internals of fit in Keras {} are")
    for attribute, hook in hooks.items():
        attribute.listen(hook, Priority.CHECKPOINTS, stack)
    stack.enter_context(ITERATOR_CREATION.listening(_creating, Priority.CHECKPOINTS))


def _backend() -> str:
    import keras

    return str(keras.backend.backend())


def _creating(original: Callable[..., None]) -> Callable[..., None]:
    """Return the function that begins an iterator over ``tf.data`` so that it is reported to the fit."""

    def create(iterator: Any, dataset: Any) -> None:
        original(iterator, dataset)
        if (fit := _block.fit) is not None:
            fit.guarded(fit.on_iterator, dataset)

    return create


def _fit(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    def fit(model: Any, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        if _block.fit is not None:
            return _inner_call(original)(model, *args, **kwargs)
        bound = signature.bind(model, *args, **kwargs)
        place, callbacks = place_of(user_frame()), _listed(bound.arguments.get("callbacks"))
        (number, start, is_skipped), past = _block.begin(), None
        if is_skipped and _block.start is not None:
            drawn = _block.start.metadata["ended"][number]
            past = EndedFit(drawn["iterators"], drawn["used"])
            bound.arguments["initial_epoch"] = bound.arguments.get("epochs", 1)
            bound.arguments["callbacks"] = None  # not called: some write files as a fit begins
            for callback in callbacks:
                callback.set_model(model)
        elif start is not None:
            guard.reached_s = inf  # what its callbacks read as it begins is restored afterwards
            bound.arguments["initial_epoch"] = start.metadata["epoch"]
        validation = bound.arguments.get("validation_data"), bound.arguments.get("validation_steps")
        _block.thread = threading.get_ident()
        _block.fit = fit = (JaxFit if _backend() == "jax" else Fit)(
            model, number, () if past else tuple(_block.listeners), start, validation, past, tuple(_block.ended)
        )
        ended, kept = EndedFit(), start.folder if past is not None and start is not None else None
        try:
            value = original(model, *bound.args[1:], **bound.kwargs)
            if fit.restore_due:  # it was saved after the last epoch
                fit.restore()
                fit.restore_callbacks([*callbacks, value])
            ended = fit.guarded(fit.ended, default=ended)
            if past is None:
                guard.resume_writes()
                _block.steps = fit.steps
                if _block.resumed is not None:
                    _block.resumed.compare_end(fit.number, fit.steps)
        finally:
            fit.guarded(_end, fit, place, kept)  # of an interrupted one, too: the program may continue
            _block.fit = None
            _block.ended.append(ended)
        return value

    return fit


def _end(fit: Fit, place: str, kept: Path | None) -> None:
    for listener in _block.listeners:
        listener.on_end(fit, place, kept=kept)


def _listed(callbacks: Any) -> list[Any]:
    """Return the callbacks of a fit, which takes one, several or a CallbackList."""
    callbacks = getattr(callbacks, "callbacks", callbacks) or []
    return [*callbacks] if isinstance(callbacks, list | tuple) else [callbacks]


def _inner_call(original: Callable[..., Any]) -> Callable[..., Any]:
    def method(model: Any, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        if _block.is_other_thread:
            return original(model, *args, **kwargs)
        _block.depth += 1
        try:
            return original(model, *args, **kwargs)
        finally:
            _block.depth -= 1

    return method


def _event(handle: Callable[..., None], *, after: bool = True) -> Callable[..., Any]:
    """Return a hook that calls `handle` with the running fit and the arguments, before or after the original."""

    def hook(original: Callable[..., None]) -> Callable[..., None]:
        def method(*args: Any, **kwargs: Any) -> None:
            if not after and (fit := _block.training):
                fit.guarded(partial(handle, fit), *args)
            original(*args, **kwargs)
            if after and (fit := _block.training):
                fit.guarded(partial(handle, fit), *args)

        return method

    return hook


def _enumerate(original: Callable[[Any], Iterator[Any]]) -> Callable[[Any], Iterator[Any]]:
    def turns(epochs: Any) -> Iterator[Any]:
        fit = _block.training
        inner = None if _block.depth != 1 or _block.is_other_thread else _block.fit
        if inner is not None and not inner.failed and epochs is getattr(inner.model, "_eval_epoch_iterator", None):
            return inner.validation_turns(epochs, original)
        if fit is None or fit.failed or fit.data.epochs is not epochs:  # the last: Keras builds the model on JAX
            return original(epochs)
        return fit.turns(epochs, original)

    return turns
