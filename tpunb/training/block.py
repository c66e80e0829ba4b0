"""The outermost block of `checkpointing` or `resume`: who listens in it, and the checkpoint that it starts from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from tpunb.errors import TpunbError, library_warnings_ignored, warn_user
from tpunb.text import format_error, plural
from tpunb.training.files import guard
from tpunb.training.fingerprints import Diverged, Resumed
from tpunb.training.fit_start import FitStart


class Guarded:
    """What is saved as it trains: the training continues where saving fails."""

    failed = False  # what is `guarded` has ended with an error
    guards = "saving"

    def must_end(self, error: Exception) -> bool:
        """Return whether an error is to end the training, as that it is not the saved one."""
        return isinstance(error, Diverged)

    def guarded(self, action: Callable[..., Any], *args: Any, default: Any = None) -> Any:
        """Call a part of saving; an error in it is reported once, and the training continues without."""
        if self.failed:
            return default
        try:
            with library_warnings_ignored():
                return action(*args)
        except Exception as error:
            if self.must_end(error):
                raise
            self.failed = True
            warn_user(f"{self.guards} ended with an error, and training continues: {format_error(error)}", stacklevel=2)
            return default


class Block:
    """A block, entered by each `listening` and `starting` within it; a subclass says what is trained there."""

    kind = ""
    """Its name in metadata."""

    call = ""
    """What the program calls to train."""

    def __init__(self) -> None:
        self.users = self.calls = self.steps = 0  # steps of the last training
        self.listeners: list[Any] = []
        self.start: FitStart | None = None  # of a training to come
        self.resumed: Resumed | None = None
        self.stack = ExitStack()  # closed as the outermost block ends

    def enter(self) -> None:
        """Begin a block; `users` is 0 at the outermost."""

    def leave(self) -> None:
        """End the outermost block."""

    def finish(self) -> None:
        """Handle the end of the last training before the block ends."""

    @property
    def counts(self) -> dict[str, int]:
        """Numbers of trainings and steps of the block."""
        return {"trainings": self.calls, "steps": self.steps}

    def begin(self) -> tuple[int, FitStart | None, bool]:
        """Count a training; return its number, where it starts, and whether it had ended there and is skipped."""
        number, start = self.calls, self.start
        self.calls += 1
        if start is None or number >= start.number:
            self.start = None
            return number, start, False
        if (end := start.end(number)) is not None:
            guard.reached_s = end.metadata["time"]
        return number, end, True

    @contextmanager
    def listening(self, listener: Any) -> Iterator[None]:
        """Send the events of what trains in the block to a listener."""
        with self._entered():
            self.listeners.append(listener)
            try:
                yield
                self.finish()
                listener.note_total(self.kind, self.counts)
            finally:
                self.listeners.remove(listener)

    @contextmanager
    def starting(self, start: FitStart) -> Iterator[None]:
        """Start the training that a checkpoint was saved in from there; those before it are not trained again."""
        with self._entered():
            if self.start is not None:
                problem = "a training cannot be resumed from two checkpoints"
                raise TpunbError(problem, hint="remove one of the resume blocks")
            self.start, self.resumed = start, start.resumed
            try:
                yield
                guard.check()
                if self.start is not None:
                    called = f"{self.call} {plural(self.calls, 'time')}" if self.calls else f"no {self.call}"
                    problem = f"the block called {called}, and the checkpoint is of call {start.number + 1}"
                    raise TpunbError(f"nothing was resumed: {problem}", hint="run the same cell as when it was saved")
                start.resumed.compare_total(self.counts)
            finally:
                self.start = self.resumed = None

    @contextmanager
    def _entered(self) -> Iterator[None]:
        if self.users == 0:
            self.calls = self.steps = 0
        self.enter()
        self.users += 1
        try:
            yield
        finally:
            self.users -= 1
            if self.users == 0:
                self.stack.close()
                self.leave()
