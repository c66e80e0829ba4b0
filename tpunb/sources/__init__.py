"""Where a capture's windows come from: this process, workers at their addresses, a TPU by its name, an earlier run."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

from tpunb.errors import TpunbError
from tpunb.sources.address import Address
from tpunb.sources.cloud_tpu import TPU
from tpunb.sources.local import Local
from tpunb.sources.replay import Replay

__all__ = ["TPU", "Address", "Local", "Replay", "Source"]


class Source(Protocol):
    """Where windows come from."""

    def start(self) -> None:
        """Get ready; `TpunbError` where it cannot."""

    def facts(self) -> dict[str, Any]:
        """Return what is known by now, for ``run.json``: framework, its version, devices."""

    def window(self, seconds: float) -> bytes | Mapping[str, bytes | TpunbError]:
        """Watch for `seconds` and return an XSpace; of several workers one each by name, or why there is none.

        Raises
        ------
        TpunbError
            With one line of why there is no window at all.
        """

    def stop(self) -> None:
        """End the window that is being watched, if there is one; called from another thread, maybe again and again."""

    def step(self, mark: str, number: int) -> AbstractContextManager[Any]:
        """Mark a step in the profile; called for those that begin while a window is under way."""
