"""The outermost block of `checkpointing` or `resume`: who saves in it, and the checkpoint that it starts from."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tpunb.checkpoint.resume.policy import Saving
from tpunb.errors import TpunbError
from tpunb.training.files import guard
from tpunb.training.fit_start import FitStart


class Block:
    """A block, entered by each `listening` and `starting` within it; a subclass says what is trained there."""

    noun = ""
    """What starts from a checkpoint."""

    kind = ""
    """Its name in metadata."""

    def __init__(self) -> None:
        self.users = self.calls = self.steps = 0
        self.listeners: list[Saving] = []
        self.start: FitStart | None = None

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

    def missed(self, start: FitStart) -> str:
        """Return that nothing was resumed: how often the block trained, and which time the checkpoint is of."""
        raise NotImplementedError

    @contextmanager
    def listening(self, saving: Saving) -> Iterator[None]:
        """Save what trains in the block."""
        with self._entered():
            self.listeners.append(saving)
            try:
                yield
                self.finish()
                saving.note_total(self.kind, self.counts)
            finally:
                self.listeners.remove(saving)

    @contextmanager
    def starting(self, start: FitStart) -> Iterator[None]:
        """Start from a checkpoint what was saved in it."""
        with self._entered():
            if self.start is not None:
                problem = f"a {self.noun} cannot be resumed from two checkpoints"
                raise TpunbError(problem, hint="remove one of the resume blocks")
            self.start = start
            try:
                yield
                guard.check()
                if self.start is not None:
                    raise TpunbError(self.missed(start), hint="run the same cell as when it was saved")
                start.resumed.compare_total(self.counts)
            finally:
                self.start = None

    @contextmanager
    def _entered(self) -> Iterator[None]:
        self.enter()
        self.users += 1
        try:
            yield
        finally:
            self.users -= 1
            if self.users == 0:
                self.leave()
