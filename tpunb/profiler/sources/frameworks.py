"""Frameworks that this process computes with, and their step annotations; none is imported here."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from types import ModuleType
from typing import Any

from tpunb.errors import TpunbError
from tpunb.frames.hardware import this_cpu
from tpunb.instrument import jax, keras, tensorflow, torch
from tpunb.signals import STEP_TIMES_ONLY

SUPPORTED = jax, tensorflow


class NotInUse(TpunbError):
    """No framework with a profiler came into use while a window was due."""

    def __init__(self) -> None:
        what, do = "no TensorFlow or JAX in use", "compute with one of them in the block for operations"
        if torch.LIBRARY.module() is not None:
            what, do = "PyTorch", "load a torch.profiler trace for operations"
        super().__init__(f"{what}: {STEP_TIMES_ONLY}; {do}")


def in_use() -> tuple[ModuleType, ...]:
    """Return the frameworks that this process may be computing with, most likely first.

    While Keras runs, its backend; else those with initialised devices: TensorFlow imports JAX and Keras.
    """
    backend = keras.running_backend()
    running = tuple(framework for framework in SUPPORTED if framework.LIBRARY.name == backend)
    return running or tuple(framework for framework in SUPPORTED if framework.computes())


def facts_of(framework: ModuleType) -> dict[str, Any]:
    """Return the entries for ``run.json`` of a framework that is in use: its version and devices, and the CPU."""
    facts = {"framework": framework.LIBRARY.name, "framework_version": framework.LIBRARY.version}
    return facts | {"devices": framework.devices(), "cpu": this_cpu()}


def annotation(kind: str, number: int) -> AbstractContextManager[Any]:
    """Return the annotation of a step by every framework in use; one that does nothing without any."""
    annotations = ExitStack()
    for framework in in_use():
        annotations.enter_context(framework.annotation(kind, number))
    return annotations
