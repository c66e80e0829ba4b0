"""Hydra: the jobs of a search, which run mostly one after the other in a process."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from tpunb.instrument.registry import Library, Priority, around

LIBRARY = Library("hydra", "hydra-core", ("1.3.8", "1.3.8"))

RUN_JOB = LIBRARY.attribute("hydra.core.utils", "run_job")


def before_each_job(call: Callable[[], None], stack: ExitStack) -> None:
    """Call before each job of an imported Hydra, until the stack is closed."""

    def run_job(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        call()
        return original(*args, **kwargs)

    RUN_JOB.listen(around(run_job), Priority.CAPTURE, stack)
