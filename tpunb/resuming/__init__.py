"""Training that is saved so that it goes on as if it had never been cut: ``fit`` as it is, or a loop of one's own.

A checkpoint of ours holds all that the next step depends on: weights, optimizer and metrics, Keras' seed generators,
Python's and NumPy's random state, the position in the data, in the middle of an epoch too, and the counts by which
Keras' own callbacks decide (``EarlyStopping``, ``ReduceLROnPlateau``, ``ModelCheckpoint``). What callbacks of one's own
remember, and what operations within a model keep outside of its variables, is not in it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tpunb import news
from tpunb.checkpoint import Checkpoint, own_files
from tpunb.errors import TpunbError, whole
from tpunb.resuming import folders, keras_fit
from tpunb.resuming.fits import Start
from tpunb.resuming.loops import restore, save
from tpunb.resuming.saving import Saving

__all__ = ["Saving", "checkpointing", "restore", "resume", "save"]


@contextmanager
def checkpointing(
    dir: str | os.PathLike[str],  # noqa: A002  the word everybody looks for
    *,
    every: int | None = None,
    at_phases: bool = False,
) -> Iterator[Saving]:
    """Save an unmodified ``model.fit(data, ...)`` in the block, so that `resume` goes on from there (paper IV.C).

    Where the position in the data cannot be saved (a Python generator, arrays that Keras shuffles, random operations
    of a map), a warning names the operation before training begins; what is saved then is marked as not exact. A
    shuffle without a seed is given one that is drawn at random, and saved. Nothing is overwritten or removed.

    Parameters
    ----------
    dir
        The folder for the checkpoints, on this machine; made where it is not there.
    every
        So many steps. If None, and not at phases: at the end of each epoch.
    at_phases
        At the first step after the capture around the block has seen a phase open; a warning says so where no
        capture runs.

    Raises
    ------
    ValueError
        When `every` is no whole number of 1 or more.
    TpunbError
        Keras runs on another backend than TensorFlow, or its inside is not known to this version.
    """
    if every is not None:
        every = whole("checkpointing", "every", every, 1)
    if not isinstance(at_phases, bool):
        raise TypeError(f"The at_phases parameter of checkpointing must be a bool. Got {at_phases!r} instead.")
    if "://" in os.fspath(dir):
        raise TpunbError(f"{os.fspath(dir)} is not on this machine", hint="save here, and copy what is to stay")
    saving = Saving(Path(dir), every, at_phases=at_phases)
    with ExitStack() as stack:
        if at_phases:
            stack.enter_context(news.opened.heard(saving.opened))
        stack.enter_context(keras_fit.listening(saving))
        yield saving


@contextmanager
def resume(checkpoint: Checkpoint | str | os.PathLike[str], *, exact: bool = True) -> Iterator[None]:
    """Let the ``model.fit(data, ...)`` of the block go on from a checkpoint, as if it had never been cut.

    The cell is the one that was saved, in the same process or a new one: `fit` keeps its arguments, and begins with
    the epoch and the step of the checkpoint. Its history holds the epochs from there on. It may be saved further:
    ``with resume(checkpoint), checkpointing(dir, every=100): ...``.

    Parameters
    ----------
    checkpoint
        One of `checkpointing`: of ``tp.checkpoints``, or its folder.
    exact
        Whether the run must be bit for bit the one that was not cut. If False, where the position in the data could
        not be saved, as many batches are drawn as were drawn before.

    Raises
    ------
    TpunbError
        The checkpoint is of another kind, or not exact; or, in the block, of another model or other data.
    """
    if isinstance(checkpoint, Checkpoint) and checkpoint.kind != "tpunb":
        lacking = " and ".join(what for what in ("data position", "random state") if what not in checkpoint.holds)
        raise TpunbError(
            f"{checkpoint.path.name} is of {checkpoint.kind}: it lacks {lacking or 'what fit needs to go on'}",
            hint="restore it as its own framework does; one of tp.checkpointing can be resumed exactly",
        )
    found = folders.read(Path(checkpoint))
    about = own_files.read(found.path)
    if "fit" not in about:
        raise TpunbError(f"{found.path.name} is of a loop, not of fit", hint="tpunb.resuming.restore puts it back")
    if about["fit"]:
        raise TpunbError(
            f"{found.path.name} was saved in fit number {about['fit'] + 1} of its block",
            hint="give each fit a block of its own",
        )
    if exact and not found.exact:
        raise TpunbError(
            f"{found.path.name} cannot be resumed exactly: {found.why}",
            hint="resume(..., exact=False) draws as many batches as were drawn before, which are others where they are "
            "random",
        )
    with keras_fit.starting(Start(found.path, about)):
        yield
