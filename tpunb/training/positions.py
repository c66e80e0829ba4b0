"""Positions in the data of a fit on disk: with the contents of buffers, or with the batches drawn since the last one.

The latter where writing takes long: buffers are large, or TensorFlow waits for slow calls of a parallel map to end.
What the batches are is known: a position is saved only of data that give the same elements again.
"""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

from tpunb.tfdata import position
from tpunb.tfdata.variables import SeedStates

ITERATOR = "iterator"
"""Prefix of the files of a ``tf.data`` iterator."""

LARGE = 4_000_000
"""Bytes of a position that is not written into every checkpoint."""

_SHARE = 0.01  # share of the time since the last position with its buffers that writing another one may take
_RATE = 1.5e8  # bytes of buffers that are assumed to be written in a second, before the first are
_SLOW = 0.1  # seconds of writing a position from which on that share matters, also without large buffers
_TRIES, _PAUSE = 20, 0.01
_CHANGING = "a map in the data draws from a seed generator, whose state changed each time that the position was read"


class Positions:
    """Positions of the iterator that feeds a fit, whose data buffer so many bytes.

    `seeds`: states of seed generators that the data change; batches that are drawn again would change them again.
    """

    def __init__(self, buffered: int = 0, seeds: SeedStates | None = None, *, are_written: bool = True) -> None:
        self._is_slow, self._cost = buffered > LARGE, buffered / _RATE
        self.are_written = are_written  # or all batches of the pass are drawn again
        self.seeds = SeedStates() if seeds is None else seeds
        self._saved: Path | None = None
        self._drawn, self._since = 0, time.monotonic()

    def begin(self, saved: Path | None = None, drawn: int = 0, seconds: float = 0.0) -> None:
        """Follow a new iterator; one that was restored had `drawn` batches in `saved`, `seconds` of training before."""
        self._saved, self._drawn, self._since = saved, drawn, time.monotonic() - seconds

    def write(self, folder: Path, iterator: Any, drawn: int) -> tuple[str, dict[str, Any]]:
        """Write the position of an iterator; return why it cannot be written, or "", and its metadata.

        These are "redraw", the batches to draw after reading what is written, and the "seconds" of their training.
        """
        if self.seeds:
            return self._write_with_seeds(folder, iterator)
        seconds = time.monotonic() - self._since
        if not self.are_written:
            return "", {"redraw": drawn, "seconds": seconds}
        if self._is_slow and not drawn:
            return "", {"redraw": 0, "seconds": 0.0}
        if self._is_slow and seconds < self._cost / _SHARE and self._link(folder):
            return "", {"redraw": drawn - self._drawn, "seconds": seconds}
        begun = time.monotonic()
        if reason := position.write(folder / ITERATOR, iterator):
            return reason, {}
        self._cost = time.monotonic() - begun
        self._is_slow |= self._cost > max(_SLOW, _SHARE * seconds)
        self._is_slow |= sum(path.stat().st_size for path in folder.glob(f"{ITERATOR}.*")) > LARGE
        self.begin(folder, drawn)
        return "", {"redraw": 0, "seconds": 0.0}

    def _write_with_seeds(self, folder: Path, iterator: Any) -> tuple[str, dict[str, Any]]:
        """Write a position and the states of the seed generators at it; threads of the data may change them."""
        for _ in range(_TRIES):
            before = self.seeds.read()
            reason = position.write(folder / ITERATOR, iterator)
            if reason or self.seeds.read() == before:
                return reason, {"redraw": 0, "seconds": 0.0, "seeds": before}
            time.sleep(_PAUSE)
        return _CHANGING, {}

    def moved(self, folder: Path) -> None:
        """Follow a checkpoint, in whose folder the last position was written, to its final one."""
        if self._saved is not None:
            self._saved = folder

    def _link(self, folder: Path) -> bool:
        """Give a checkpoint the files of the last one, without more space; return whether none is missing."""
        files = [] if self._saved is None else [*self._saved.glob(f"{ITERATOR}.*")]
        for file in files:
            try:
                os.link(file, folder / file.name)
            except OSError:  # of a filesystem without links
                shutil.copyfile(file, folder / file.name)
        return bool(files) or self._saved is None
