"""Decides when a fit is saved, and saves it."""

from __future__ import annotations

import threading
import time
import warnings
from pathlib import Path
from typing import Any

from tpunb import news
from tpunb.checkpoint import Checkpoint
from tpunb.frames.words import plain, plural
from tpunb.resuming import folders
from tpunb.resuming.callbacks import forgotten
from tpunb.resuming.fits import Fit


class Saving:
    """What a block of `checkpointing` saves.

    Parameters
    ----------
    folder
        Where to.
    every
        So many steps; None for never.
    at_phases
        Whether `opened` is heeded. Where both are not, every end of an epoch is.
    """

    def __init__(self, folder: Path, every: int | None, *, at_phases: bool) -> None:
        self.folder, self.every, self.at_phases = folder, every, at_phases
        self.saved: list[Checkpoint] = []
        self.seconds = 0.0  # that it took
        self._wished = threading.Event()
        self._last = 0  # the step at which it was saved last, or the first
        self._failed = False
        self._told = False  # of what is missing

    def __repr__(self) -> str:
        return f"Saving({plain(str(self.folder))}, {plural(len(self.saved), 'checkpoint')}, {self.seconds:.2f} s)"

    def opened(self, phase: int) -> None:
        """Take notice that the run has come to a phase that it had not seen: the next step is saved."""
        self._wished.set()

    def taken(self, fit: Fit, data: Any) -> Any:
        """Return the data as they are: they are saved as the program makes them."""
        return data

    def begun(self, fit: Fit) -> None:
        """Warn, before a batch is drawn, of what will be missing."""
        self._last, self._told = fit.steps, bool(fit.why)
        if fit.why:
            warnings.warn(
                f"the position in the data cannot be saved, so that resuming will not be exact. {fit.why}", stacklevel=2
            )
        if lost := forgotten(fit.callbacks):
            warnings.warn(lost, stacklevel=2)
        if self.at_phases and not news.opened.is_told:
            warnings.warn(
                "no capture runs, so that no phase will be seen to open and nothing saved for it: "
                "put `with tp.capture(...)` around",
                stacklevel=2,
            )

    def stepped(self, fit: Fit, *, anew: bool) -> None:
        """Save what the next step begins with, where it is due."""
        if anew and self.saved and self.saved[-1].step == fit.steps == self._last:
            self._save(fit, instead_of=self.saved.pop().path)
        elif self._is_due(fit):
            self._save(fit)

    def _is_due(self, fit: Fit) -> bool:
        if self.every is None and not self.at_phases:
            return fit.step_in_epoch == 0
        if self._wished.is_set():
            return True
        return self.every is not None and fit.steps // self.every > self._last // self.every

    def _save(self, fit: Fit, *, instead_of: Path | None = None) -> None:
        """Save; a disk that is full does not end the training."""
        begun = time.perf_counter()
        self._wished.clear()
        self._last = fit.steps
        try:
            with news.saving():
                self.saved.append(folders.write(self.folder, fit.steps, fit.fill, instead_of=instead_of))
            if self.saved[-1].why and not self._told:
                self._told = True
                warnings.warn(f"resuming will not be exact. {self.saved[-1].why}", stacklevel=2)
        except OSError as error:
            if not self._failed:
                self._failed = True
                warnings.warn(f"step {fit.steps} was not saved, and training goes on: {error}", stacklevel=2)
        finally:
            self.seconds += time.perf_counter() - begun
