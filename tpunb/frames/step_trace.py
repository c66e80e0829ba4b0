"""A step in a trace file, and how to open it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tpunb.text import plain, short_time


@dataclass(frozen=True, repr=False)
class StepTrace:
    """A step of a phase in a trace file.

    Parameters
    ----------
    path
        The trace.
    phase
        Name of the phase.
    host, step
        The step.
    dur_ps
        Step time in picoseconds.
    logdir
        Folder in which XProf and TensorBoard open the raw capture, if there is one.
    window
        Number of the window of the step, as XProf names it, if the run was captured in windows.
    """

    path: Path
    phase: str
    host: str
    step: int
    dur_ps: int
    logdir: str | None = None
    window: int | None = None

    def __repr__(self) -> str:
        lines = [
            f"step {self.step:,} of {plain(self.phase)} ({short_time(self.dur_ps)}) is in {self.path}",
            "Perfetto: open https://ui.perfetto.dev and drop the file there",
        ]
        if self.logdir is not None:
            session = "" if self.window is None else f", then choose {self.window:05d}"
            lines.append(f"XProf: tensorboard --logdir {self.logdir}{session}")
        return "\n".join(lines)
