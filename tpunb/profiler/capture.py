"""Capture the whole of a running block (paper III.A).

Windows of the framework's profiler have gaps between them; a host clock records every step.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import polars as pl

from tpunb import signals
from tpunb.errors import CaptureBusy, TpunbError, check_whole, warn_user, wrong_type
from tpunb.instrument import jax, listening, tensorflow, torch
from tpunb.instrument.batches import Batches
from tpunb.instrument.profiler_sessions import ProfilerArbiter
from tpunb.instrument.registry import check_imports
from tpunb.instrument.sink import END_OF_DATA, What
from tpunb.io.run_writer import RunWriter
from tpunb.profiler.loop import Loop
from tpunb.profiler.recorder import Keep
from tpunb.profiler.schedule import Schedule
from tpunb.profiler.session import CaptureSession, Status
from tpunb.profiler.sources import TPU, Address, Local, Replay, Source, Torch
from tpunb.profiler.trackers import Trackers
from tpunb.signals import DATA_END
from tpunb.text import format_error
from tpunb.training.files import guard

if TYPE_CHECKING:
    from tpunb.checkpoint import Checkpoint

__all__ = [
    "TPU",
    "Address",
    "Keep",
    "Local",
    "NullRun",
    "Replay",
    "Run",
    "Schedule",
    "Source",
    "Status",
    "Torch",
    "capture",
    "null_run",
]

T = TypeVar("T")


class Run:
    """A capture in progress; also the path of its run for ``tp.load``."""

    def __init__(self, session: CaptureSession) -> None:
        self.path = session.writer.source
        self._session = session  # with its writer: a run in memory lives as long as that
        self._clock = session.clock
        self.variable = "run"  # its name in hints

    def __fspath__(self) -> str:
        return str(self.path)

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    @property
    def status(self) -> Status:
        """The state of the capture: steps, windows, observed share, estimated overhead."""
        return self._session.status

    @property
    def earlier_run(self) -> Path | str | None:
        """New path of the earlier run that was in this folder; None without one."""
        moved = self._session.writer.moved
        return moved if moved is None or isinstance(self.path, str) else Path(moved)

    @property
    def resumed(self) -> tuple[str, ...]:
        """A sentence for each block of ``tp.resume`` that has ended: the steps verified."""
        return tuple(self._session.resumed)

    @property
    def fitted(self) -> tuple[Any, Any] | None:
        """The model and the data of the last ``fit`` in the block; None without any."""
        return self._clock.fitted

    def stop(self) -> None:
        """End the capture here; the block continues, and the run is complete when it ends."""
        self._session.stop("stopped")

    def save(self, step: int, dir: str | os.PathLike[str] | None = None, **parts: Any) -> Checkpoint:  # noqa: A002
        """Save a checkpoint of a custom loop, as `tpunb.checkpoint.save` does, and charge it to the budget.

        Parameters
        ----------
        step
            Number of steps taken: in a loop that counts from 0, the number of the next.
        dir
            Folder of the checkpoints; "checkpoints" in the run folder, if None.
        **parts
            Everything that the next step depends on, by names of your choice.

        Raises
        ------
        ValueError, MissingExtra
            As `tpunb.checkpoint.save`.
        TpunbError
            If the run is not in a folder on this machine, and `dir` is not given.
        """
        if dir is None and not isinstance(self.path, Path):
            raise TpunbError(
                f"{self.path} is not a folder on this machine", hint=f"give one: {self.variable}.save(step, dir, ...)"
            )
        from tpunb.checkpoint import save

        return save(Path(self.path) / "checkpoints" if dir is None else dir, step, **parts)

    @property
    def skipping(self) -> bool:
        """Whether the code that runs now repeats what came before the checkpoint of ``tp.resume``."""
        return guard.is_skipping

    def between(self, kind: str) -> AbstractContextManager[None]:
        """Mark the block, between two steps of a framework, as a step of this kind."""
        return self._mark(kind, None)

    def step(self, number: int, kind: str = "train") -> AbstractContextManager[None]:
        """Mark the block as one step: ``with run.step(i): ...``; an inner one is part of the outer."""
        if not isinstance(number, Integral) or not 0 <= number < 2**62:
            raise ValueError(f"The number parameter of step must be an int of 0 or more. Got {number!r} instead.")
        return self._mark(kind, int(number))

    @contextmanager
    def _mark(self, kind: str, number: int | None) -> Iterator[None]:
        what = What.of("tpunb", Run.between if number is None else Run.step)
        step = self._clock.begin(_checked(kind), step=number, explicit=True, rule="mark", what=what)
        try:
            yield
        finally:
            self._clock.end(step)

    def batches(self, data: Iterable[T], kind: str = "train", *, state: dict[str, Any] | None = None) -> Iterator[T]:
        """Mark each iteration of a loop as a step, with its wait for data: ``for batch in run.batches(data): ...``.

        Parameters
        ----------
        data
            Batches to iterate over.
        kind
            Kind of the steps.
        state
            What the next step depends on, by name: trees of arrays, or what else `tpunb.checkpoint.save` takes. The
            loop assigns its new values to ``state[...]``. In a block of ``tp.checkpointing`` it is saved with the
            position in the data, in a block of ``tp.resume`` restored; elsewhere it has no effect.
        """
        _checked(kind)
        what = What.of("tpunb", Run.batches)
        with self._clock.within("data loading", "start of the data", what=what):
            batches, step, holds = _iterator(data, state), None, Batches()
        try:
            while True:
                step = self._clock.begin(kind, complete=False, explicit=True, rule="mark", what=what)
                # no exception, which would refer to the iterator, is handled when that ends
                batch = next(batches, _END) if step is None else self._clock.draw(_next, batches, what, holds.of)
                if batch is _END:
                    with self._clock.within("data loading", DATA_END, what=what, end_of=END_OF_DATA):
                        del batches  # which may end threads
                    return
                if step is not None:
                    step.lasts = True
                    self._clock.complete()
                yield batch
                if state is not None and (end_step := getattr(batches, "end_step", None)):  # saving is part of the step
                    end_step()
                self._clock.end(step)
        finally:
            self._clock.end(step)


_END: Any = object()


def _iterator(data: Iterable[T], state: dict[str, Any] | None) -> Iterator[T]:
    """Return an iterator over data, which saves what is given as a state."""
    if state is None:
        return iter(data)
    from tpunb.checkpoint.resume import loops  # what checkpoints need, only in a program that may write them

    return loops.batches(data, state)


def _next(batches: Iterator[T]) -> T:
    return next(batches, _END)


class NullRun:
    """A run that records nothing: a loop written for a capture also runs without one."""

    skipping = Run.skipping

    def step(self, number: int, kind: str = "train") -> AbstractContextManager[None]:
        """Do nothing: a capture would mark the block as one step."""
        return nullcontext()

    def batches(self, data: Iterable[T], kind: str = "train", *, state: dict[str, Any] | None = None) -> Iterator[T]:
        """Return the iterator of `data`, which saves `state` as `Run.batches` does, and marks no steps."""
        return _iterator(data, state)


null_run = NullRun()
"""The `NullRun` to use before and without a capture: ``tpu = tp.testing.null_run``."""


def _checked(kind: str) -> str:
    """Return `kind` if a profiler accepts it: it would parse what follows a ``#``."""
    if not isinstance(kind, str) or not kind or "#" in kind or not kind.isprintable():
        raise ValueError(f"The kind parameter of step must be a word without '#'. Got {kind!r} instead.")
    return kind


_SOURCE = ("start", "facts", "window", "stop", "step")
_running: list[CaptureSession] = []
_lock = threading.Lock()

on_other_capture: list[Callable[[], None]] = []
"""Functions that end the capture of a whole program when the program begins one of its own."""


class ProgramCapture(NamedTuple):
    """What the capture of a whole program differs in from that of a block."""

    began_ns: int  # by the monotonic clock, when what it records began
    spawned_by: str = ""  # the process that started this one by ``multiprocessing`` or a fork
    has_journal_only: bool = False  # in a fork, which lacks the threads of the library that makes tables


of_program: list[ProgramCapture] = []
"""How the next capture is to be begun, if it is that of the program."""


def forget_parent() -> None:
    """Let a forked process capture: the run that began before the fork is its parent's."""
    _running.clear()


@contextmanager
def capture(
    dir: str | os.PathLike[str] | None = None,  # noqa: A002  the word everybody looks for
    *,
    source: Source | None = None,
    schedule: Schedule | None = None,
    keep: Keep = "phases",
    until: int | None = None,
    stacks: bool = True,
    to: Iterable[str] = (),
) -> Iterator[Run]:
    """Capture the block from its first line to its last into a run folder.

    An exception or an interrupt in the block ends the capture, keeps what was recorded, and is raised unchanged. A
    block that the program leaves open ends with the process.

    Nothing but the errors below ends the program: the rest is reported as a warning of one line. If the folder cannot
    be written, the run is kept in memory; if no thread can start, no windows are recorded; if the capture cannot begin
    at all, ``run.status.state`` says so.

    Parameters
    ----------
    dir
        Run folder, local or at any URL that fsspec supports; an earlier run there is renamed, not overwritten.
        If None, the run is in memory: ``tp.load(run)`` reads it while `run` is referenced.
    source
        Source of the windows: ``Local()``, if None; also ``Torch``, ``Address``, ``TPU`` and ``Replay``.
    schedule
        Schedule of the windows: ``Schedule()``, if None, which allows 2 % overhead, more in a run under a minute.
    keep
        Raw windows to keep beside the statistics: "none", "phases" (one per phase), or "all".
    until
        Step at which to stop, as ``run.stop()`` does.
    stacks
        Whether to sample the Python stack of the training while a step takes far longer than usual.
    to
        Trackers that get the rates each 30 s and the verdict at the end, through the client that the program has
        imported: "tensorboard", "mlflow", "wandb", "prometheus". In a job of several processes, rank 0 sends.

    Raises
    ------
    CaptureBusy
        If another capture runs in this process, or another process captures into that folder.
    MissingExtra
        If neither TensorFlow nor JAX nor PyTorch is installed, or a package that the source requires.
    TpunbError
        If the source cannot be reached.
    """
    if schedule is not None and not isinstance(schedule, Schedule):
        raise wrong_type("capture", "schedule", "be a Schedule", schedule)
    if source is not None and not all(callable(getattr(source, name, None)) for name in _SOURCE):
        raise wrong_type("capture", "source", "be a source, as Address(...) is", source)
    if keep not in ("none", "phases", "all"):
        raise ValueError(f"The keep parameter of capture must be 'none', 'phases' or 'all'. Got {keep!r} instead.")
    session = CaptureSession(
        RunWriter(dir),
        Local() if source is None else source,
        Schedule() if schedule is None else schedule,
        keep=keep,
        until=None if until is None else check_whole("capture", "until", until, 1),
    )
    session.stacks = stacks
    session.trackers = Trackers(to, None if isinstance(session.writer.source, str) else session.writer.source)
    if of_program:
        program = of_program.pop()
        session.begin_at(program.began_ns)
        session.spawned_by, session.writer.has_journal_only = program.spawned_by, program.has_journal_only
    while on_other_capture:
        on_other_capture.pop()()
    with ExitStack() as stack:
        stack.callback(_send_verdict, session)
        stack.enter_context(_exclusive(session))
        session.open()
        try:
            with ExitStack() as begun:
                _begin(session, begun)
                stack.push(begun.pop_all())
        except (Exception, pl.exceptions.PanicException) as error:  # noqa: BLE001  a guest ends no training
            session.give_up(error)
        session.leave = stack.__exit__
        try:
            yield Run(session)
        except GeneratorExit:  # collected as garbage, or already left at the end of the program
            session.leave = stack.pop_all().__exit__
            session.drop()


def _send_verdict(session: CaptureSession) -> None:
    """Send the verdict of a run that has ended to its trackers."""
    if not (session.trackers and session.sends and session.is_over):
        return
    from tpunb.analysis import report  # groups the steps: only for those who ask

    try:
        found = report(session.writer.source)
        session.trackers.send(found.to_metrics(), session.clock.count, found.content["verdict"]["sentence"])
    except Exception as error:  # noqa: BLE001  a verdict that cannot be sent ends no training
        warn_user(f"the trackers get no verdict: {format_error(error)}", RuntimeWarning, 3)


def _begin(session: CaptureSession, stack: ExitStack) -> None:
    """Start the threads, and watch what the program and its frameworks do."""
    stack.enter_context(session)
    stack.enter_context(signals.spent.connect(session.on_spent))
    stack.enter_context(signals.resumed.connect(session.resumed.append))
    profilers = [library.SESSIONS for library in (tensorflow, jax, torch)]
    stack.enter_context(ProfilerArbiter(session.on_profiler_start, session.on_profiler_stop, profilers))
    session.loop = loop = Loop(session.clock)
    stack.enter_context(listening(loop))
    session.on_end = loop.close
    loop.on_launch = session.recorder.stalls.on_launch
    session.recorder.group.spawned_by = session.spawned_by
    session.import_watchers += check_imports, session.recorder.group.look, partial(torch.find_peers, session.clock)
    session.note_begin()


@contextmanager
def _exclusive(session: CaptureSession) -> Iterator[None]:
    with _lock:
        if busy := next((other for other in _running if not other.is_over), None):
            raise CaptureBusy(
                f"a capture into {busy.writer.source} is running", hint="end it first: one process has one profiler"
            )
        _running[:] = [session]
    try:
        yield
    finally:
        if session in _running:
            _running.remove(session)
