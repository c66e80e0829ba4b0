"""The processes that train together: what this one knows of its group."""

from __future__ import annotations

import os
from typing import Any

from tpunb.instrument import jax, torch
from tpunb.profiler import child_capture


class ProcessGroup:
    """Rank of this process and size of its group, as frameworks have it, else the environment."""

    def __init__(self) -> None:
        self.spawned_by = ""  # number of the process that started this one by ``multiprocessing``
        self._initialised: tuple[int, int] | None = None

    def look(self) -> None:
        """Take rank and size from a group that is initialised now: it may be gone when the run ends."""
        for library in (torch, jax):
            self._initialised = library.process_group() or self._initialised

    def facts(self) -> dict[str, Any]:
        """Return ``group`` of ``run.json``: rank and size are null where the process trains alone, or unknown."""
        self.look()
        rank, size = (int(text) if text.isdecimal() else None for text in child_capture.process_group())
        if self._initialised is not None:
            rank, size = self._initialised
        restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "")
        return {
            "rank": rank if size != 1 else None,
            "size": size,
            "attempt": int(restart) if restart.isdecimal() else None,
            "spawned_by": self.spawned_by or None,
        }
