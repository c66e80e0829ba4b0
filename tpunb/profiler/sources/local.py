"""Profile this process, by the profiler of the framework that it uses."""

from __future__ import annotations

import re
import threading
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any

from tpunb.errors import MissingExtra
from tpunb.instrument import jax, torch
from tpunb.profiler.limits import LIMITS
from tpunb.profiler.sources import xla_sessions
from tpunb.profiler.sources.frameworks import SUPPORTED, NotInUse, annotation, facts_of, in_use
from tpunb.profiler.sources.torch import Torch

_COMPUTED = re.compile(rb"Pjit|PjRt")  # host events of JAX when it computes


class Local:
    """The process itself, whichever framework it uses; wait for one that is used later.

    `Torch` takes the windows while neither TensorFlow nor JAX is in use and the program has imported PyTorch.

    Raises
    ------
    MissingExtra
        On start, if neither TensorFlow nor JAX nor PyTorch is installed.
    """

    def __init__(self) -> None:
        self._programs = b""  # an XSpace of those of TensorFlow, in its last window
        self._jax_rests = 0  # windows left to TensorFlow, if both are in use
        self._stopped = threading.Event()
        self._facts: dict[str, Any] = {}
        self._torch = Torch()

    def __repr__(self) -> str:
        return "Local()"

    def start(self) -> None:
        """Check that a framework is installed; none is imported."""
        if not any(framework.LIBRARY.is_installed for framework in (*SUPPORTED, torch)):
            raise MissingExtra(
                "neither tensorflow nor jax nor torch is installed",
                hint="pip install jax, or the one that the program trains with",
            )
        self._torch.silence()
        for framework in in_use()[:1]:
            self._facts = facts_of(framework)

    def facts(self) -> dict[str, Any]:
        """Return the framework that was profiled last, its version and devices, and the CPU."""
        return dict(self._facts)

    def _choose(self, frameworks: tuple[ModuleType, ...]) -> ModuleType:
        """Return the framework to profile: of both JAX, unless its last window showed no computation."""
        # TensorFlow often reads the data of JAX, and JAX may have been used earlier in a notebook
        if len(frameworks) == 1 or not self._jax_rests:
            return frameworks[0]
        self._jax_rests -= 1
        return frameworks[1]

    def announce(self, reason: str) -> None:
        """Say why the next window is requested."""
        self._torch.announce(reason)

    def window(self, seconds: float) -> bytes:
        """Profile for `seconds`, once a framework is in use.

        Raises
        ------
        NotInUse
            When `stop` is called before.
        TpunbError
            When the profiler refuses.
        """
        self._stopped.clear()
        while not (frameworks := in_use()):
            if torch.profiles_all_threads():
                self._facts = self._torch.facts()
                return self._torch.window(seconds)
            if self._stopped.wait(LIMITS.import_look_s):
                raise NotInUse
        framework = self._choose(frameworks)
        self._facts = facts_of(framework)
        data = xla_sessions.window(framework, seconds, self._torch.between, self._stopped)
        if framework is jax:
            self._jax_rests = 0 if _COMPUTED.search(data) else LIMITS.jax_rest_windows
        else:
            data, self._programs = xla_sessions.split_programs(data)
        return data

    def programs(self) -> bytes:
        """Return an XSpace that holds the compiled programs of the framework that was profiled last."""
        if self._facts.get("framework") == jax.LIBRARY.name:
            return xla_sessions.programs_of_jax(self._torch.between, self._stopped)
        return self._programs

    def stop(self) -> None:
        """End the running window; it returns what it has recorded."""
        self._stopped.set()
        self._torch.stop()

    def boundary(self) -> None:
        """Do what is due between steps; for the thread that trains."""
        self._torch.boundary()

    @property
    def is_due(self) -> bool:
        """Whether a session waits for a boundary."""
        return self._torch.is_due

    def step(self, kind: str, number: int) -> AbstractContextManager[Any]:
        """Annotate a step by every framework in use."""
        return annotation(kind, number) if in_use() else self._torch.step(kind, number)
