"""Frameworks that this process computes with, and their step annotations; none is imported here."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from importlib.util import find_spec
from typing import Any

from tpunb.errors import TpunbError
from tpunb.instrument.keras import keras_runs

SUPPORTED = ("jax", "tensorflow")


STEP_TIMES_ONLY = "step times only"
"""In the message of a window that waited in vain for a supported framework."""


class NotInUse(TpunbError):
    """No framework with a profiler came into use while a window was due."""

    def __init__(self) -> None:
        what, do = "no TensorFlow or JAX in use", "compute with one of them in the block for operations"
        if loaded("torch") is not None:
            what, do = "PyTorch", "load a torch.profiler trace for operations"
        super().__init__(f"{what}: {STEP_TIMES_ONLY}; {do}")


def loaded(name: str) -> Any | None:
    """Return a module if its import is complete."""
    module = sys.modules.get(name)
    return None if module is None or getattr(module.__spec__, "_initializing", False) else module


def can_import(name: str) -> bool:
    """Return whether a framework can be imported."""
    return loaded(name) is not None or (sys.modules.get(name, "") is not None and find_spec(name) is not None)


def installed() -> bool:
    """Return whether any of the frameworks can be imported."""
    return any(map(can_import, (*SUPPORTED, "torch")))


def in_use() -> tuple[str, ...]:
    """Return the frameworks that this process may be computing with, most likely first.

    While Keras runs, its backend; else those with initialised devices: TensorFlow imports JAX and Keras.
    """
    keras = loaded("keras") if keras_runs() else None
    if keras is not None and (backend := keras.config.backend()) in SUPPORTED:
        return (str(backend),)
    return tuple(name for name in SUPPORTED if loaded(name) is not None and _INITIALIZED[name]())


def _jax_initialized() -> bool:
    check = getattr(sys.modules.get("jax._src.xla_bridge"), "backends_are_initialized", None)
    return bool(check()) if callable(check) else True  # unknown in this version: assume it once it is imported


def _tensorflow_initialized() -> bool:
    context = getattr(sys.modules.get("tensorflow.python.eager.context"), "context_safe", None)
    if not callable(context):
        return True
    return bool(getattr(context(), "_initialized", True)) if context() is not None else False


_INITIALIZED: dict[str, Callable[[], bool]] = {"jax": _jax_initialized, "tensorflow": _tensorflow_initialized}


_ANNOTATIONS: dict[str, Callable[[str, int], AbstractContextManager[Any]]] = {
    "jax": lambda kind, number: sys.modules["jax"].profiler.StepTraceAnnotation(kind, step_num=number),
    "tensorflow": lambda kind, number: sys.modules["tensorflow"].profiler.experimental.Trace(
        kind, step_num=number, _r=1
    ),
}


def annotation(kind: str, number: int) -> AbstractContextManager[Any]:
    """Return the annotation of a step by every framework in use; one that does nothing without any."""
    annotations = ExitStack()
    for framework in in_use():
        annotations.enter_context(_ANNOTATIONS[framework](kind, number))
    return annotations
