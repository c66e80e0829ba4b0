"""Where trials of a job start: at the checkpoint of a phase, or at the beginning, and why."""

from __future__ import annotations

import os
from typing import NamedTuple

from tpunb.checkpoint import Checkpoint, Checkpoints, checkpoints
from tpunb.errors import TpunbError, wrong
from tpunb.frames import Phase
from tpunb.frames.words import cut, plain, plural
from tpunb.tuning.job import Job
from tpunb.tuning.trial import Track


class Start(NamedTuple):
    """A checkpoint, or None for the beginning; and what there is to say of it."""

    checkpoint: Checkpoint | None
    said: str


def saved_of(saved: Checkpoints | str | os.PathLike[str] | None) -> Checkpoints | None:
    """Return checkpoints, where their folder may be given; None where none is.

    Raises
    ------
    TypeError
        When it is something else.
    """
    if saved is None or isinstance(saved, Checkpoints):
        return saved
    if not isinstance(saved, str | os.PathLike):
        raise wrong("tuning_panel", "saved", "be checkpoints of tp.checkpoints(dir), or their folder", saved)
    return checkpoints(saved)


def start_of(job: Job, phase: Phase | None, saved: Checkpoints | None) -> Start:
    """Return where trials for a phase start.

    Of the checkpoints from which a trial can go on exactly it is the nearest to the phase (paper IV.C).

    Parameters
    ----------
    job
        What is run.
    phase
        Of a run of it; None for the beginning.
    saved
        By that run; None where nothing was.
    """
    if phase is None:
        return Start(None, "at the beginning: no phases of a run were given")
    if saved is None:
        return Start(None, "at the beginning: no checkpoints were given")
    whole = Checkpoints(saved.folder, tuple(one for one in saved if one.kind == "tpunb"))
    near = whole.nearest(phase) or saved.nearest(phase)
    if near is None:
        return Start(None, f"at the beginning: no checkpoint of a known step in {plain(saved.folder.name)}")
    try:
        Track(job, near)
    except TpunbError as error:
        return Start(None, f"at the beginning: {plain(str(error))}")
    return Start(near, f"{_place(near.step or 0, phase)} ({cut(plain(near.path.name))})")


def _place(step: int, phase: Phase) -> str:
    """Return where a step lies, seen from a phase.

    >>> from tpunb.testing import toy_steps
    >>> from tpunb.cluster import phases
    >>> _place(2, phases(toy_steps("aaabbb"))[1])
    'step 2, 1 step before it'
    """
    away = min(phase.steps["step"] - step, key=abs)
    if away == 0:
        return f"step {step:,}, within it"
    return f"step {step:,}, {plural(abs(away), 'step')} {'before' if away > 0 else 'after'} it"
