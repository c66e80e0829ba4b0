"""Decides when a fit or a custom loop is saved, and saves it."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from tpunb import signals
from tpunb.checkpoint.catalog import Checkpoint
from tpunb.checkpoint.formats import native
from tpunb.errors import library_warnings_ignored, warn_user
from tpunb.text import format_error, plain, plural
from tpunb.training import seeds
from tpunb.training.fit_start import ENDS, TOTAL

if TYPE_CHECKING:
    from tpunb.checkpoint.resume.loops import Loop
    from tpunb.checkpoint.resume.trainers import Run
    from tpunb.training.fit_state import Fit

    Training: TypeAlias = Fit | Loop[Any] | Run


class Saving:
    """Checkpoints of the fits and custom loops in a block of `checkpointing`, which documents the arguments.

    `saved` are those so far, without the removed ones; saving took `seconds`.
    """

    def __init__(
        self, folder: Path, every: int | None, *, at_phases: bool, keep: int | None, ends_gb: float = 10.0
    ) -> None:
        self.folder, self.every, self.at_phases, self.keep = folder, every, at_phases, keep
        self._ends_folder = folder / f"{ENDS}{os.urandom(4).hex()}"
        self._ends: dict[str, Any] = {}  # of trainings that have ended: where their last state is, or why it is not
        self._ends_left = ends_gb * 1e9  # bytes
        self._totals: dict[str, dict[str, int]] = {}  # by kind of training
        self.saved: list[Checkpoint] = []
        self.seconds = 0.0
        self._phase_began = threading.Event()
        self._of_phases = set[Path]()  # checkpoints that are kept
        self._last = 0  # step of the last checkpoint, or the first step
        self._has_failed = False
        self._has_warned = False  # that resuming will not be exact
        self._random: list[Any] = []  # what the cell draws before a fit
        self._unread = ""  # why that is unknown
        try:
            self._random = [seeds.host_random_state(), seeds.tensorflow_random_state()]
        except Exception as error:  # noqa: BLE001  the training must begin
            self._unread = f"what the cell draws before its training was not saved: {format_error(error)}"

    def __repr__(self) -> str:
        return f"Saving({plain(str(self.folder))}, {plural(len(self.saved), 'checkpoint')}, {self.seconds:.2f} s)"

    def on_phase(self, phase: int) -> None:
        """Note that a phase has begun: save at the next step, or keep the checkpoints before and after."""
        self._phase_began.set()

    def on_data(self, fit: Training, data: Any) -> Any:
        """Return the data unchanged."""
        return data

    def on_begin(self, fit: Training) -> None:
        """Warn, before the first batch is drawn, of what cannot be saved."""
        self._last, self._has_warned = fit.steps, bool(fit.data.reason)
        if fit.data.reason:
            warn_user(
                f"the position in the data cannot be saved, so that resuming will not be exact: {fit.data.reason}",
                stacklevel=2,
            )
        elif unsaved := fit.unsaved_beside:
            self._has_warned = True
            warn_user(f"resuming will not be exact: {unsaved}", stacklevel=2)
        elif fit.varying:
            warn_user(f"resuming is exact but for the results of validation: {fit.varying}", stacklevel=2)
        if self.at_phases and not signals.spent.receivers:
            warn_user("at_phases=True saves nothing without a capture: put `with tp.capture(...)` around", stacklevel=2)

    def on_step(self, fit: Training, *, repeated: bool) -> None:
        """Save the state that the next step begins with, if due; a capture accounts for the time."""
        is_again = repeated and bool(self.saved) and self.saved[-1].step == fit.steps == self._last
        if is_again or self._is_due(fit):
            with signals.spending("checkpoint save", "tpunb"):
                self._save(fit, replacing=self.saved.pop().path if is_again else None)

    def on_end(self, fit: Training, place: str, *, kept: Path | None = None, unseen: str = "") -> None:
        """Keep the state in which a training ends: a resumption that skips the training restores it.

        `place` is its line in the program, `kept` the state of a training that was skipped itself, `unseen` why it is
        not the present one.
        """
        with signals.spending("checkpoint save", "tpunb"):
            begun, end = time.perf_counter(), {"place": place, "name": "", "reason": unseen}
            self._ends[str(fit.number)] = end
            try:
                if unseen:
                    return
                if kept is None and self._ends_left <= 0:
                    raise OSError("the states of ended loops take more than ends_gb allows")
                if kept is not None and kept.parent.parent != self.folder:
                    kept = Path(shutil.copytree(kept, self._ends_folder / f"{kept.parent.name[1:]}-{kept.name}"))
                if kept is None:
                    one = native.save(self._ends_folder, fit.steps, self._write(fit))
                    kept, end["reason"] = one.path, one.reason
                    self._ends_left -= one.size
                end["name"] = f"{kept.parent.name}/{kept.name}"
            except Exception as error:  # noqa: BLE001  the training must continue
                end["reason"] = str(error) if isinstance(error, OSError) else format_error(error)
                with suppress(OSError):  # others are in it, or it is not there
                    self._ends_folder.rmdir()
            self.seconds += time.perf_counter() - begun

    def note_total(self, kind: str, counts: dict[str, int]) -> None:
        """Note, at the end of the block, how often it trained and how many steps were taken."""
        self._totals[kind] = counts
        with suppress(OSError):
            if self._ends_folder.is_dir():
                (self._ends_folder / TOTAL).write_text(json.dumps(self._totals))

    def _is_due(self, fit: Training) -> bool:
        if self.every is None and not self.at_phases:
            return fit.step_in_epoch == 0
        if self.at_phases and self._phase_began.is_set():
            return True
        return self.every is not None and fit.steps // self.every > self._last // self.every

    def _save(self, fit: Training, *, replacing: Path | None = None) -> None:
        """Save; an error, as of a full disk, does not end the training."""
        begun = time.perf_counter()
        of_phase, before = self._phase_began.is_set(), [checkpoint.path for checkpoint in self.saved[-1:]]
        self._phase_began.clear()
        self._last = fit.steps
        try:
            with library_warnings_ignored():
                self.saved.append(native.save(self.folder, fit.steps, self._write(fit), replacing=replacing))
            if self._unread:
                unread, self._unread = self._unread, ""
                warn_user(unread, stacklevel=2)
            fit.fingerprints.begin(self.folder)
            fit.data.positions.moved(self.saved[-1].path)
            if of_phase:
                self._of_phases.update([*before, self.saved[-1].path])
            if self.keep is not None:
                self._remove(self.keep)
            if self.saved[-1].reason and not self._has_warned:
                self._has_warned = True
                warn_user(f"resuming will not be exact: {self.saved[-1].reason}", stacklevel=2)
        except Exception as error:  # noqa: BLE001  the training must continue
            if not self._has_failed:
                self._has_failed = True
                problem = str(error) if isinstance(error, OSError) else format_error(error)
                warn_user(f"step {fit.steps} was not saved, and training continues: {problem}", stacklevel=2)
        finally:
            self.seconds += time.perf_counter() - begun

    def _write(self, fit: Training) -> Callable[[Path], dict[str, Any]]:
        """Return a function that writes a checkpoint, and the random state with which the block began."""
        block: dict[str, Any] = {"block_random": self._random} if self._random else {}
        block |= {"ends": self._ends, "ends_folder": self._ends_folder.name}
        return lambda folder: {**fit.write(folder), **block}

    def _remove(self, keep: int) -> None:
        """Remove the checkpoints of the block but the last ones and those of phases."""
        for checkpoint in [each for each in self.saved if each.path not in self._of_phases][:-keep]:
            shutil.rmtree(checkpoint.path)
            self.saved.remove(checkpoint)
