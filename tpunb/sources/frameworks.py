"""Which frameworks this process computes with, and how each marks a step; none is imported here."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from importlib.util import find_spec
from typing import Any

from tpunb import marking

KNOWN = ("jax", "tensorflow")


def loaded(name: str) -> Any | None:
    """Return a module if it has been imported, in whole."""
    module = sys.modules.get(name)
    return None if module is None or getattr(module.__spec__, "_initializing", False) else module


def installed() -> bool:
    """Say whether any of the frameworks is there to be imported."""
    return any(
        loaded(name) is not None or (sys.modules.get(name, "") is not None and find_spec(name) is not None)
        for name in KNOWN
    )


def in_use() -> tuple[str, ...]:
    """Return the frameworks that this process may be computing with, most likely first; none where none is awake.

    While Keras runs, the one that it computes with. Else those that have found their devices. That one is imported
    says nothing: TensorFlow imports JAX and Keras.
    """
    keras = loaded("keras") if marking.keras_runs() else None
    if keras is not None and (backend := keras.config.backend()) in KNOWN:
        return (str(backend),)
    return tuple(name for name in KNOWN if _AWAKE[name]())


def _jax_is_awake() -> bool:
    if loaded("jax") is None:
        return False
    asked = getattr(sys.modules.get("jax._src.xla_bridge"), "backends_are_initialized", None)
    return bool(asked()) if callable(asked) else True  # where this version does not tell: once it is imported


def _tensorflow_is_awake() -> bool:
    if loaded("tensorflow") is None:
        return False
    asked = getattr(sys.modules.get("tensorflow.python.eager.context"), "context_safe", None)
    if not callable(asked):
        return True
    return bool(getattr(asked(), "_initialized", True)) if asked() is not None else False


_AWAKE: dict[str, Callable[[], bool]] = {"jax": _jax_is_awake, "tensorflow": _tensorflow_is_awake}


def annotation(mark: str, number: int) -> AbstractContextManager[Any]:
    """Return the annotation of a step by every framework in use; one that does nothing where there is none."""
    both = ExitStack()
    for framework in in_use():
        both.enter_context(_ANNOTATIONS[framework](mark, number))
    return both


def _by_jax(mark: str, number: int) -> AbstractContextManager[Any]:
    trace: AbstractContextManager[Any] = sys.modules["jax"].profiler.StepTraceAnnotation(mark, step_num=number)
    return trace


def _by_tensorflow(mark: str, number: int) -> AbstractContextManager[Any]:
    trace: AbstractContextManager[Any] = sys.modules["tensorflow"].profiler.experimental.Trace(
        mark, step_num=number, _r=1
    )
    return trace


_ANNOTATIONS = {"jax": _by_jax, "tensorflow": _by_tensorflow}
