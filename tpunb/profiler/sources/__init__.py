"""Sources of windows: this process, workers by address, a TPU by name, an earlier run."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

from tpunb.errors import TpunbError
from tpunb.profiler.sources.address import Address
from tpunb.profiler.sources.cloud_tpu import TPU
from tpunb.profiler.sources.local import Local
from tpunb.profiler.sources.replay import Replay
from tpunb.profiler.sources.torch import Torch

__all__ = ["TPU", "Address", "Local", "Replay", "Source", "Torch"]


class Source(Protocol):
    """A source of windows."""

    def start(self) -> None:
        """Prepare; raise `TpunbError` if that fails."""

    def facts(self) -> dict[str, Any]:
        """Return entries for ``run.json`` that are available by now: framework, version, devices."""

    def window(self, seconds: float) -> bytes | Mapping[str, bytes | TpunbError]:
        """Profile for `seconds` and return a window: an XSpace, or a Chrome trace as PyTorch writes it.

        With several workers, return one each by name, or its error.

        Raises
        ------
        TpunbError
            If there is no window at all; with the reason in one line.
        """

    def stop(self) -> None:
        """End the running window, if any; called from another thread, possibly repeatedly."""

    def step(self, kind: str, number: int) -> AbstractContextManager[Any]:
        """Annotate a step in the profile; called for steps that begin while a window is requested."""
