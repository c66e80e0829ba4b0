"""Saves a training so that it can be resumed exactly: an unmodified ``fit`` or Trainer, or a custom loop.

A checkpoint holds weights, optimizer, metrics, random state, the position in the data, and numbers and arrays that
callbacks keep. It is exact only if everything that the next step depends on is of a kind that is proved to be restored.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import get_args

from tpunb import signals
from tpunb.checkpoint.catalog import Checkpoint
from tpunb.checkpoint.resume import loops, trainers
from tpunb.checkpoint.resume.custom_loops import restore, save
from tpunb.checkpoint.resume.policy import Saving
from tpunb.errors import TpunbError, check_whole, warn_user, wrong_type
from tpunb.instrument import jax, keras, torch
from tpunb.training import seeds, snapshot
from tpunb.training.files import guard
from tpunb.training.fingerprints import OnDivergence, Resumed
from tpunb.training.fit_start import FitStart
from tpunb.training.state import DATA, RANDOM

__all__ = ["Resumed", "Saving", "checkpointing", "restore", "resume", "save"]


_STARTING = {"loop": loops.starting, "trainer": trainers.starting}
"""How a checkpoint is resumed, by what its metadata have."""


@contextmanager
def checkpointing(
    dir: str | os.PathLike[str],  # noqa: A002  the usual word
    *,
    every: int | None = None,
    at_phases: bool = False,
    keep: int | None = None,
    ends_gb: float = 10,
) -> Iterator[Saving]:
    """Save an unmodified ``model.fit(data, ...)`` in the block, for `resume` (paper IV.C).

    So are trainings by the Trainers of Hugging Face and Lightning, if these are imported before, and a loop that draws
    its batches by ``run.batches(data, state=state)``.

    If the position in the data cannot be saved (a Python generator, random operations in a map), a warning names the
    operation before training begins, and the checkpoints are not exact. An unseeded shuffle gets a random seed, which
    is saved. Nothing is overwritten, and without `keep` nothing is removed.

    Parameters
    ----------
    dir
        Folder of the checkpoints, on this machine; created if necessary.
    every
        Number of steps between checkpoints. By default, without `at_phases`: one checkpoint at the end of each epoch.
    at_phases
        Whether to save at the first step after the surrounding capture detects a new phase; without a capture, a
        warning is given.
    keep
        Number of checkpoints of the block to keep: the last ones, and besides, of each phase that the surrounding
        capture detects, those before and after its begin. By default all are kept.
    ends_gb
        Size of the states of loops and fits that have ended, at most, in gigabytes. A resumption restores them before
        the code that follows a skipped loop; checkpoints of loops after the last one kept cannot be resumed exactly.

    Raises
    ------
    ValueError
        When `every` or `keep` is not an int of 1 or more.
    TpunbError
        Keras runs on another backend than TensorFlow and JAX, or its internals have changed.
    """
    if every is not None:
        every = check_whole("checkpointing", "every", every, 1)
    if keep is not None:
        keep = check_whole("checkpointing", "keep", keep, 1)
    if not isinstance(at_phases, bool):
        raise TypeError(f"The at_phases parameter of checkpointing must be a bool. Got {at_phases!r} instead.")
    if "://" in os.fspath(dir):
        raise TpunbError(f"{os.fspath(dir)} is not on this machine", hint="save to a local folder, and copy it there")
    if isinstance(ends_gb, bool) or not isinstance(ends_gb, int | float) or not ends_gb >= 0:
        raise ValueError(f"The ends_gb parameter of checkpointing must be 0 or more. Got {ends_gb!r} instead.")
    saving = Saving(Path(dir), every, at_phases=at_phases, keep=keep, ends_gb=ends_gb)
    with (
        signals.phase_opened.connect(saving.on_phase),
        loops.listening(saving),
        trainers.listening(saving),
        _in_fit(saving),
    ):
        yield saving


@contextmanager
def _in_fit(saving: Saving) -> Iterator[None]:
    """Save fits in the block, unless the program computes with JAX or PyTorch without Keras, or has no Keras."""
    from tpunb.training import keras_hooks  # which a capture without Keras needs not

    has_other = any(library.LIBRARY.module() is not None for library in (jax, torch))
    if keras.LIBRARY.module() is not None or (not has_other and find_spec("keras") and find_spec("tensorflow")):
        with keras_hooks.listening(saving):
            yield
        return
    yield
    if keras.LIBRARY.module() is not None and not saving.saved:
        warn_user("fits were not saved: import keras before the block of tp.checkpointing", stacklevel=3)


@contextmanager
def resume(
    checkpoint: Checkpoint | str | os.PathLike[str], *, exact: bool = True, on_divergence: OnDivergence = "warn"
) -> Iterator[Resumed]:
    """Continue the ``model.fit(data, ...)`` of the block from a checkpoint, as if it had not been interrupted.

    Trainers of Hugging Face and Lightning continue likewise, and a loop over ``run.batches(data, state=state)``, whose
    `state` is restored.

    Run the cell that was saved, in the same process or a new one: `fit` keeps its arguments, and begins with the epoch
    and step of the checkpoint. Its history holds all epochs. Fits of the block before it return their saved history,
    train nothing, and leave the model as they ended. It may be saved again:
    ``with resume(checkpoint), checkpointing(dir, every=100): ...``.

    Files that are there are kept while the program repeats what came before the checkpoint: what it writes over them
    goes to a copy, or the resumption ends before one is changed. ``run.skipping`` is true meanwhile.

    Batches and logs of the first 8 steps after each checkpoint, and of the first step of each epoch, are compared with
    those of the saved run; the result is ``resumed.verified_steps`` and ``print(resumed)``.

    Parameters
    ----------
    checkpoint
        Checkpoint of `checkpointing`: from ``tp.checkpoints``, or its folder.
    exact
        Whether the run must be bit for bit the uninterrupted one. If False and the position in the data was not saved,
        as many batches are drawn as before.
    on_divergence
        At the first step that differs from the saved run: "warn", or "raise" an error. Both name the step, and whether
        its data or its computation differ.

    Raises
    ------
    ValueError
        When `on_divergence` is neither "warn" nor "raise".
    TpunbError
        The checkpoint is of another kind, or not exact; or, in the block, the model or the data differ, or a file of
        the program would be changed.
    """
    if not isinstance(checkpoint, Checkpoint | str | os.PathLike):
        raise wrong_type("resume", "checkpoint", "be a Checkpoint or the path of one", checkpoint)
    if isinstance(checkpoint, Checkpoint) and checkpoint.kind != "tpunb":
        missing = " and ".join(part for part in (DATA, RANDOM) if part not in checkpoint.holds)
        raise TpunbError(
            f"{checkpoint.path.name} is a checkpoint of {checkpoint.kind} without {missing or 'the state of fit'}",
            hint="restore it with its own framework; tp.resume needs one of tp.checkpointing",
        )
    if on_divergence not in get_args(OnDivergence):
        raise ValueError(
            f"The on_divergence parameter of resume must be 'warn' or 'raise'. Got {on_divergence!r} instead."
        )
    folder = Path(checkpoint)
    metadata, name = snapshot.read_metadata(folder), folder.name
    starting = next((each for kind, each in _STARTING.items() if kind in metadata), None)
    if starting is not None:
        start = FitStart(folder, metadata, Resumed.read(folder, metadata, on_divergence))
    else:
        from tpunb.training import keras_hooks

        start, starting = FitStart.read(checkpoint, on_divergence), keras_hooks.starting
    if exact and not metadata["exact"]:
        raise TpunbError(
            f"{name} cannot be resumed exactly: {metadata['why']}",
            hint="resume(..., exact=False) draws as many batches as before; random ones differ",
        )
    try:
        start.check_ends()
    except TpunbError as error:
        if exact:
            raise
        start.resumed.reason = start.resumed.reason or str(error).partition("exactly: ")[2]
    start.read_counts()
    with guard.watching(folder, metadata["time"], start.resumed.diverge), starting(start):
        if "block_random" in metadata:  # so that the cell draws as it did, such as the order of its files
            host, tensorflow = (*metadata["block_random"], None, None)[:2]
            seeds.set_host_random_state(host)
            seeds.set_tensorflow_random_state(tensorflow)
        yield start.resumed
    signals.resumed.send(str(start.resumed))
