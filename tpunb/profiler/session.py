"""The threads of a capture (paper III.A).

The recording thread writes a window, which another process reduces, while the profiling thread already requests the
next. A third one writes the latest steps each second, whatever these two do.
"""

from __future__ import annotations

import atexit
import logging
import math
import os
import queue
import sys
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import polars as pl

from tpunb.errors import CaptureBusy, MissingExtra, TpunbError, warn_user
from tpunb.instrument.keras import keras_runs
from tpunb.io.run_folder import keep_refuted
from tpunb.io.run_writer import RunWriter
from tpunb.profiler.in_flight import InFlight
from tpunb.profiler.limits import LIMITS
from tpunb.profiler.recorder import Keep, RunRecorder, check_memory, journal_row
from tpunb.profiler.schedule import Schedule, WindowRequest, WindowResult, WindowScheduler
from tpunb.profiler.sources import Source
from tpunb.profiler.sources.frameworks import NotInUse
from tpunb.profiler.standing import StandingWatch
from tpunb.profiler.step_clock import StepClock, StepRecord
from tpunb.profiler.trackers import Trackers, live_metrics
from tpunb.profiler.windows import LOCAL, WindowResponse
from tpunb.signals import Spent
from tpunb.text import duration, estimated_overhead, format_error, percent, plural, windows_cover

_log = logging.getLogger("tpunb")


class Status(NamedTuple):
    """The state of a capture."""

    steps: int  # completed; of remote workers those traced in full
    kind: str | None  # of the running step
    phase: int | None  # of the last fully traced step
    phases: int  # so far
    windows: int  # without failed ones
    failed: int
    observed: float  # share of run time that windows recorded, 0 to 1
    overhead: float | None  # lost to windows and checkpoints, of the run time without: 0.02 is 2 %; None until measured
    seconds: float  # since the start
    state: str  # "running", "finished", or why it ended
    saving: float = 0.0  # seconds spent on checkpointing
    productive: float | None = None  # share of run time in the usual work of steps, 0 to 1; None without steps
    overhead_interval: tuple[float, float] | None = None  # 95 % interval of the overhead
    standing: float | None = None  # seconds for which the training has stood still, None if it does not
    samples_per_s: float | None = None  # of step time in the latest training steps of this process
    tokens_per_s: float | None = None

    def __str__(self) -> str:
        """Return the status as one plain line."""
        windows = windows_cover(self.windows, self.observed) + (f" ({self.failed:,} failed)" if self.failed else "")
        cost = "not measured yet"
        if self.overhead is not None:
            cost = estimated_overhead(self.overhead, self.overhead_interval)
        parts = [
            "profiling" if self.state == "running" else self.state,
            *([] if self.standing is None else [f"no step for {duration(self.standing * 1e12)}"]),
            plural(self.steps, "step") + (f", now {self.kind}" if self.kind else ""),
            "no phase yet" if self.phase is None else f"phase {self.phase:,}, {self.phases:,} so far",
            *(
                f"{rate:,.4g} {name}/s" if rate < 1000 else f"{rate:,.0f} {name}/s"
                for name, rate in (("samples", self.samples_per_s), ("tokens", self.tokens_per_s))
                if rate is not None
            ),
            *([] if self.productive is None else [f"{percent(self.productive)} of run time productive"]),
            *([windows, f"cost of windows {cost}"] if self.windows or self.failed else ["no window yet"]),
        ]
        return " · ".join([*parts, *([f"checkpointing {self.saving:.1f} s"] if self.saving >= 0.05 else [])])


class CaptureSession:
    """The threads of a capture, and the state that they share."""

    def __init__(
        self, writer: RunWriter, source: Source, schedule: Schedule, *, keep: Keep, until: int | None = None
    ) -> None:
        self._entered_ns = time.monotonic_ns()
        self._origin_ns = self._entered_ns  # of the run, whose time is that of its block
        self.writer, self.source, self._schedule, self._keep, self._until = writer, source, schedule, keep, until
        self.clock = StepClock(
            self._annotate, until=until, reached=lambda: self.stop(f"stopped at step {until}", wait=False)
        )
        if hasattr(source, "boundary"):
            self.clock.boundary = self._boundary
        self._at_boundary = False  # whether the source begins or ends a session in the thread that trains
        self.import_watchers: list[Callable[[], None]] = []  # called regularly: what has been imported since?
        self.resumed: list[str] = []  # sentences on fits that were resumed from a checkpoint
        self.loop: Any = None  # what libraries report to
        self.on_end: Callable[[], None] = lambda: None  # called as the block or the thread that trains has ended
        self.spawned_by = ""  # process that started this one by ``multiprocessing``
        self.defers = False  # whether windows that are not reduced by the end are left to readers
        self.stacks = True  # whether to sample them in stalls
        self.trackers = Trackers((), None)
        self.leave: Callable[..., object] = self.__exit__  # leaves the block as a `with` statement does
        self.is_over = False  # whether its block has been left
        self.settled = threading.Event()  # the first window is over, or none is due soon
        self._ended = threading.Event()
        self._abandoned = threading.Event()  # its end was interrupted or took too long: threads write no more
        self._forked = False  # whether this is a copy in a forked process, without threads
        self._other_profiler: str | None = None  # the program's own, while it runs
        self._tracing = threading.Event()  # a window is requested
        self.clock.is_traced = self._tracing.is_set
        self._programs_s = 0.0  # when compiled programs may be requested again
        self._programs_rest_s = LIMITS.programs_s  # between the last request and that
        self._responses: queue.Queue[WindowResponse | bytes | None] = queue.Queue(maxsize=4)
        self._requests = 0
        self._events_due_ns = 0  # when the thread that trains writes events to the journal again
        self._state = "running"
        self._span_ns: int | None = None  # length of the run, once it has ended
        self._failure: BaseException | None = None
        self._end_lock = threading.RLock()  # a signal handler may stop the run while it ends
        self._finalized = False
        self._recording, self._profiling = (
            self._thread("recording", self._record),
            self._thread("profiling", self._profile),
        )
        self._tailing, self._closing = self._thread("tailing", self._write_tails), self._thread("closing", self._close)
        self._tracking = self._thread("tracking", self._track)

    def _thread(self, name: str, work: Callable[[], object], *, daemon: bool = True) -> threading.Thread:
        """Return a thread whose errors are the failure of the run, never a traceback."""

        def guarded() -> None:
            try:
                work()
            except (Exception, pl.exceptions.PanicException) as error:  # noqa: BLE001  nothing else would report it
                self._fail(error)

        return threading.Thread(target=guarded, name=f"tpunb-{name}", daemon=daemon)

    # -- the block -----------------------------------------------------------------------------------------------

    def begin_at(self, origin_ns: int) -> None:
        """Record from an earlier moment of this process on; what was before the entry of the block is not observed."""
        self._origin_ns = min(origin_ns, self._entered_ns)

    def open(self) -> None:
        """Reach the source and open the run; raise for what the user asked for and cannot have."""
        self.source.start()  # first: a capture that cannot begin must not have moved an earlier run away
        self._boundary()  # the source learns that there are some
        try:
            self.writer.open()
        except (CaptureBusy, MissingExtra):
            raise
        except (OSError, TpunbError) as error:
            self.writer = RunWriter(None)
            self.writer.open()
            warn_user(f"the run is kept in memory, until this process ends: {format_error(error)}", RuntimeWarning, 4)

    def __enter__(self) -> CaptureSession:
        self.clock.events.origin_ns = self._origin_ns
        self.clock.on_step, self.clock.on_span = self._on_step, self.writer.span
        self.scheduler = WindowScheduler(self._schedule, self._origin_ns / 1e9)
        self.recorder = RunRecorder(self.writer, self.clock, self.scheduler, self._keep, self._origin_ns)
        self.standing = StandingWatch(self.clock, self.recorder.stand)
        self._write_facts()
        captures.add(self)
        self._entered_in = threading.get_ident()
        atexit.register(self.leave_open)
        self.clock.mark_progress()
        try:
            self._recording.start()  # first, since it empties the queue of the next
            self._profiling.start()
            self._tailing.start()
            if self.trackers:
                self._tracking.start()
            if self.stacks:
                self.recorder.stalls.start()
        except RuntimeError as error:  # there are too many: what they would write is written at the end
            if not self._profiling.is_alive():
                self._responses.put(None)
                self.settled.set()
            warn_user(f"the capture has fewer threads, and may record no windows: {error}", RuntimeWarning, 6)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        self.is_over = True
        if self._forked:  # the run is the parent's
            return
        opened = self.clock.opened
        trains_on = keras_runs() or (opened is not None and opened.owner[0] != threading.get_ident())
        try:
            try:
                self.clock.discard()
                self.on_end()
                if kind is None:
                    self.clock.drain()
            finally:
                is_left = kind is None or kind is GeneratorExit
                self.stop(f"ended by {kind.__name__}" if kind and not is_left else "left open" if kind else "finished")
            while self._closing.is_alive():
                if threading.get_ident() == self._entered_in:
                    self._boundary()
                self._closing.join(LIMITS.plan_s)  # an unlimited wait would not be interruptible
        except BaseException:
            self._abandoned.set()
            self._state = "interrupted while closing"
            self._finalize()
            raise
        finally:
            captures.discard(self)
            atexit.unregister(self.leave_open)
        if trains_on and kind is None:
            problem = "a thread still trains as the captured block ends: its steps from here on are not recorded"
            warn_user(f"{problem}; join the thread in the block", RuntimeWarning, stacklevel=3)
        if self._failure is not None:
            message = f"the recording of {self.writer.source} is incomplete: {format_error(self._failure)}"
            if isinstance(self._failure, OSError):
                message += "; free some space on the disk, and leave the folder in place while the block runs"
            if error is None:
                warn_user(message, RuntimeWarning, stacklevel=3)
            else:
                error.add_note(message)  # the block's exception must stay the one that is raised

    def give_up(self, error: BaseException) -> None:
        """Record nothing, since the capture could not begin."""
        self.clock.close()
        self._ended.set()
        self._state = f"not captured: {format_error(error)}"
        with suppress(Exception):  # the same disk
            self.writer.close()
        warn_user(f"the program runs without a capture: {format_error(error)}", RuntimeWarning, 4)

    def leave_open(self) -> None:
        """Leave the block for the program: at its end, before Python stops the threads that write the run."""
        if not self._forked:
            self.leave(GeneratorExit, GeneratorExit(), None)

    def drop(self) -> None:
        """Leave the block in a thread of its own, as it was collected as garbage: a lock may be held in this thread."""
        if self.is_over or self._forked or sys.is_finalizing():
            return
        self.is_over = True
        with suppress(RuntimeError):  # else as the program ends
            self._thread("leaving", self.leave_open, daemon=False).start()
        problem = f"the capture into {self.writer.source} ends here: its context manager was collected as garbage"
        warn_user(f"{problem}; write `with tp.capture(...)`, or keep it until you leave it", RuntimeWarning, 3)

    def stop(self, state: str = "stopped", *, wait: bool = True) -> None:
        """End the capture while the block continues; return at once, without `wait` even while another thread does."""
        if self._forked or sys.is_finalizing():  # a thread that starts then waits forever
            return
        if not self._end_lock.acquire(blocking=wait):
            return
        try:
            if self._ended.is_set():
                return
            self._state = state
            self._span_ns = time.monotonic_ns() - self._origin_ns
            self.clock.catch_up()  # another thread may do that now, and reach the last step
            if self._ended.is_set():  # the last step was reached here
                return
            self.clock.close()
            self._ended.set()
            self.recorder.stalls.stop()
            try:
                self._closing.start()
            except RuntimeError:  # too many, or from Python 3.12 on, as the interpreter ends
                self._close()
        finally:
            self._end_lock.release()

    def note_begin(self) -> None:
        """Record the time since the first line of the block, in which the program waited for the capture."""
        self.recorder.spend("begin of the capture", self._entered_ns)

    def _on_step(self, record: StepRecord) -> None:
        """Write a step as it ends, where a kill leaves it, and the events until then, of many short steps together."""
        self.writer.step(journal_row(record, self.clock.steps_before))
        if record.end_ns >= self._events_due_ns:
            self._events_due_ns = record.end_ns + LIMITS.events_rest_ns
            self.writer.events(self.clock.events)

    def on_spent(self, spent: Spent) -> None:
        """Record time of known cause, and charge checkpoints to the budget."""
        self.clock.on_spent(spent)
        if spent.account == "checkpoint save" and spent.detail == "tpunb":
            self.scheduler.on_saved((spent.end_ns - spent.start_ns) / 1e9)

    def _boundary(self) -> None:
        """Let the source do what is due between steps, in the thread that trains."""
        if self._forked or not hasattr(self.source, "boundary"):
            return
        self._at_boundary, due, begun_ns = True, False, time.monotonic_ns()
        try:
            due = getattr(self.source, "is_due", False)
            self.source.boundary()
        except Exception as error:  # noqa: BLE001  a user's source must not end the training
            self._fail(error)
        finally:
            self._at_boundary = False
            if due:
                self.recorder.spend("begin or end of a window", begun_ns)

    def _annotate(self, kind: str, number: int) -> AbstractContextManager[Any] | None:
        """Annotate a step while a profiler runs: none records what began before it did."""
        if not self._tracing.is_set() and self._other_profiler is None:
            return None
        try:
            return self.source.step(kind, number)
        except Exception as error:  # noqa: BLE001  a user's source must not end the training
            self._fail(error)
            return None

    def _fail(self, error: BaseException) -> None:
        """Keep the first failure, which is reported at the end."""
        self._failure = self._failure or error

    @property
    def _seconds(self) -> float:
        """The length of the run so far."""
        return (time.monotonic_ns() - self._origin_ns if self._span_ns is None else self._span_ns) / 1e9

    @property
    def status(self) -> Status:
        """The state of the capture."""
        if not hasattr(self, "recorder"):
            return Status(0, None, None, 0, 0, 0, 0.0, None, 0.0, self._state)
        step, recorder, seconds = self.clock.open_step(), self.recorder, self._seconds
        overhead = self.scheduler.overhead(self._origin_ns / 1e9 + seconds)
        return Status(
            steps=max(self.clock.count, recorder.full),  # steps of remote workers are known from windows only
            kind=None if step is None else step.kind,
            phase=recorder.phase,
            phases=recorder.phases,
            windows=recorder.windows,
            failed=recorder.failed,
            observed=min(1.0, recorder.traced_ps / 1e12 / max(seconds, 1e-9)),
            overhead=None if overhead is None else overhead.value,
            seconds=seconds,
            state=self._state if self._failure is None else f"{self._state}, incomplete: {self._failure}",
            saving=self.scheduler.saved_s,
            productive=min(1.0, recorder.productive_ns / 1e9 / max(seconds, 1e-9)) if self.clock.count else None,
            overhead_interval=None if overhead is None else (overhead.low, overhead.high),
            standing=None if self.is_over else self.standing.seconds,
            **recorder.throughput(),
        )

    # -- beside other profilers, and after a fork ------------------------------------------------------------------

    def on_profiler_start(self, framework: str) -> None:
        """End the running window and request none while the program's own profiler runs."""
        if self._at_boundary or threading.current_thread() is self._profiling:  # a session of `Torch`
            return
        self._other_profiler = framework
        until = time.monotonic() + LIMITS.yield_s
        while self._tracing.is_set() and not self._ended.is_set() and time.monotonic() < until:
            with suppress(TpunbError):  # the window may have just ended
                self.source.stop()
            self._boundary()
            time.sleep(0.05)

    def on_profiler_stop(self) -> None:
        """Request windows again."""
        if self._at_boundary or threading.current_thread() is self._profiling:
            return
        self._other_profiler = None
        self.scheduler.reset_failures()

    def settle(self) -> None:
        """Wait, before a fork, for the first window."""
        settle(self.settled, lambda: bool(getattr(self.source, "is_due", False)))

    def disown(self) -> None:
        """Become, in a forked process, a copy that records nothing: the run and its threads are the parent's."""
        self._forked = True
        self.recorder.stalls.restore_interval()
        self.clock.in_flight = InFlight()  # a thread of the parent may hold the lock of the other
        self.clock.catch_up = lambda: None  # likewise
        self.clock.close()
        self._ended = threading.Event()  # a thread of the parent may hold the lock of the other
        self._ended.set()

    # -- the profiling thread --------------------------------------------------------------------------------------

    def _profile(self) -> None:
        try:
            while not self._ended.is_set():
                if self._schedule.budget is not None:
                    self.recorder.collect_steps(wait=False)
                if self.recorder.programs.missing and time.monotonic() > self._programs_s:
                    self._programs_s = math.inf  # until the recording thread has the answer
                    self._responses.put(self._request_programs())
                step, now_s = self.clock.open_step(), time.monotonic()
                kind = None if step is None else step.kind
                running_s = 0.0 if step is None else (step.end_ns - step.start_ns) / 1e9
                request = self.scheduler.next_window(now_s, kind, running_s)
                if request.due_s > now_s + LIMITS.fork_s:
                    self.settled.set()
                if request.due_s > now_s:
                    # less often in a run that lasts: each look takes the interpreter lock from the training
                    look_s = max(LIMITS.plan_s, (now_s - self._origin_ns / 1e9) / 50)
                    look_s = LIMITS.poll_s if self._schedule.budget is None else min(look_s, LIMITS.poll_s)
                    self._ended.wait(min(request.due_s - now_s, look_s))
                    self.recorder.stalls.on_wake()
                    continue
                self._check_imports()
                self._request(request, kind)
        except Exception as error:  # noqa: BLE001  a user's source may raise anything
            self._fail(error)
        finally:
            self._tracing.clear()
            self.settled.set()
            self._responses.put(None)

    def _request(self, request: WindowRequest, kind: str | None) -> None:
        """Request one window, and queue the response."""
        check_memory()
        if not self._requests:  # its threads start now
            self.settled.clear()
        requested_ns, profiled, lead_ns = time.monotonic_ns(), True, self.recorder.system_clock.look()
        self.recorder.on_request(requested_ns, request.seconds, kind)
        self._tracing.set()
        try:
            if self._other_profiler is not None:  # checked while `_tracing` is set: `on_profiler_start` waits for it
                raise TpunbError(f"given up: {self._other_profiler} was profiling")
            if (announce := getattr(self.source, "announce", None)) is not None:
                announce(request.reason)
            response = self.source.window(request.seconds)
            if abs(self.recorder.system_clock.look() - lead_ns) >= LIMITS.clock_jump_ns:
                raise TpunbError("the system clock, by which profilers record, jumped")
        except TpunbError as error:
            response = dict.fromkeys(self.source.facts().get("workers", [LOCAL]), error)
            profiled = not isinstance(error, NotInUse)
        except BaseException:
            self.recorder.cancel_request()
            raise
        finally:
            self._tracing.clear()
            self.settled.set()
            if profiled:
                self.recorder.spend("window", requested_ns, "window")
        workers = {LOCAL: response} if isinstance(response, bytes) else response
        received_ns = time.monotonic_ns()
        if all(isinstance(data, TpunbError) for data in workers.values()):
            self.scheduler.on_window(WindowResult(requested_ns / 1e9, 0.0, received_ns / 1e9))
        self._responses.put(WindowResponse(self._requests, request.reason, requested_ns, received_ns, workers, lead_ns))
        self._requests += 1

    def _request_programs(self) -> bytes:
        """Return an XSpace with all compiled programs of this process, empty if there is none now."""
        begun_ns = time.monotonic_ns()
        data = b""
        if hasattr(self.source, "programs"):
            self._tracing.set()  # `on_profiler_start` waits for it, too
            try:
                if self._other_profiler is None:
                    with suppress(TpunbError):  # another session may profile
                        data = self.source.programs()
                    self.recorder.spend("request of programs", begun_ns)
            finally:
                self._tracing.clear()
        self._programs_rest_s = max(
            LIMITS.programs_s, 100 * (time.monotonic_ns() - begun_ns) / 1e9
        )  # 1 % of the time at most
        return data

    def _check_imports(self) -> None:
        for check in self.import_watchers:
            check()

    # -- the recording thread --------------------------------------------------------------------------------------

    def _start_reducer(self) -> None:
        """Let what reduces windows be loaded beside the training."""
        begun_ns = time.monotonic_ns()
        try:
            if self.writer.has_journal_only:
                return
            self.recorder.reducer.start()
        except (OSError, ValueError) as error:  # the first window says so
            _log.debug("%s: %s", self.writer.name, error)
        self.recorder.spend("loading", begun_ns)

    def _record(self) -> None:
        try:
            self._start_reducer()
            self._record_windows()
        finally:
            self.recorder.reducer.close()

    def _record_windows(self) -> None:
        self._facts_s = self._part_s = self._log_s = time.monotonic()
        response: WindowResponse | bytes | None
        profiling = writable = True
        # steps are recorded even if the source has failed; the end takes what is left of the queue
        while (profiling or not self._ended.is_set()) and not self._abandoned.is_set():
            try:
                response = self._responses.get(timeout=LIMITS.poll_s)
                profiling = profiling and response is not None
            except queue.Empty:
                response = None
                self.recorder.stalls.on_wake()
            if writable and not self._abandoned.is_set():
                try:
                    self._check_imports()
                    if isinstance(response, WindowResponse) and self.defers and self._ended.is_set():
                        self.recorder.defer(response)
                        continue
                    self._write(response)
                except (Exception, pl.exceptions.PanicException) as error:  # noqa: BLE001  must not end the training
                    self._fail(error)
                    writable = False
                    self.stop("stopped")
        if writable and not (self._abandoned.is_set() or self.defers) and self.recorder.programs.missing:
            try:
                self.recorder.write_programs(self._request_programs())
            except (Exception, pl.exceptions.PanicException) as error:  # noqa: BLE001  must not end the training
                self._fail(error)

    def _write(self, response: WindowResponse | bytes | None) -> None:
        """Write a window if there is one, and regularly the steps and ``run.json``."""
        now_s = time.monotonic()
        if isinstance(response, bytes):
            self.recorder.write_programs(response)
            self._programs_s = now_s + self._programs_rest_s
        elif response is not None:
            begun_ns = time.monotonic_ns()
            if self.recorder.write(response):
                self._write_facts()
            self.recorder.spend("reduction of a window", begun_ns, "reduce")
            self._part_s = now_s
        if self.clock.has_lost_its_thread:  # whose last step nothing else ends, such as that of a worker of Ray
            self.on_end()
        self.recorder.collect_steps()
        self.recorder.sample_load()
        if now_s - self._part_s > LIMITS.part_s:
            self.recorder.write_part()
            self._part_s = now_s
        if now_s - self._facts_s > LIMITS.facts_s:
            self._write_facts()
            self._facts_s = now_s
        if now_s - self._log_s > LIMITS.log_s:
            _log.info("%s: %s", self.writer.name, self.status)
            self._log_s = now_s

    def _write_tails(self) -> None:
        looks, workers = True, [LOCAL]
        with suppress(Exception):  # of a user's source
            workers = self.source.facts().get("workers", workers)
        while not self._ended.wait(LIMITS.tail_s):
            try:
                self.recorder.write_tail()
            except (Exception, pl.exceptions.PanicException) as error:  # noqa: BLE001  must not end the training
                self._fail(error)
                self.stop("stopped")
            trains_here = LOCAL in workers or self.clock.count  # else steps end unseen, on other machines
            if looks and trains_here and not self._at_boundary:
                try:
                    self.standing.look()
                except Exception as error:  # noqa: BLE001  the run is complete without
                    _log.info("%s: standstills are not seen any more: %s", self.writer.name, format_error(error))
                    looks = False

    @property
    def sends(self) -> bool:
        """Whether this process sends to trackers: alone, or the first of its job."""
        return not self._forked and str(self.recorder.group.facts().get("rank") or 0) == "0"

    def _track(self) -> None:
        """Send rates to trackers until the end."""
        while not self._ended.wait(LIMITS.track_s):
            if self.sends:
                self.trackers.send(live_metrics(self.status), self.clock.count)

    def _write_facts(self, state: str = "running") -> None:
        """Write ``run.json``; what reads it takes a run with another state for whole."""
        try:
            facts = self.source.facts()
        except Exception as error:  # noqa: BLE001  a user's source may raise anything
            self._fail(error)
            facts = {}
        options = {"keep": self._keep, "until": self._until, "source": repr(self.source)}
        self.recorder.write_facts(
            {
                **facts,
                **({"resumed": self.resumed} if self.resumed else {}),
                "options": {**vars(self._schedule), **options},
                "state": state if self._failure is None or state == "running" else f"{state}, incomplete",
                "failure": None if self._failure is None else format_error(self._failure),
                **({} if self._span_ns is None else {"span_ps": self._span_ns * 1000}),
            },
            self._seconds,
        )

    # -- the end -----------------------------------------------------------------------------------------------

    def _close(self) -> None:
        """End the last window early, wait for the threads, and write the rest."""
        begun_s = time.monotonic()
        try:
            self.standing.end()
        except Exception as error:  # noqa: BLE001  the rest is to be written
            self._fail(error)
        for thread in (self._profiling, self._recording):
            while thread.is_alive() and not self._abandoned.is_set():
                # a process must not end while a profiler records it
                is_deferred = self.defers and not self._tracing.is_set()
                if time.monotonic() > begun_s + (LIMITS.deferred_collect_s if is_deferred else LIMITS.collect_s):
                    break
                if thread is self._profiling:
                    self._stop_source()
                thread.join(LIMITS.poll_s)
        if not self._abandoned.is_set():
            if self._recording.is_alive():
                self._abandoned.set()
                if not self.defers:
                    self._fail(TimeoutError("the last window did not come back in time"))
                for response in [self._responses.get() for _ in range(self._responses.qsize())]:
                    if isinstance(response, WindowResponse) and self.defers:
                        self.recorder.defer(response)
            self._finalize()

    def _stop_source(self) -> None:
        try:
            self.source.stop()
        except TpunbError:  # the window may have just ended
            pass
        except Exception as error:  # noqa: BLE001  a user's source may raise anything
            self._fail(error)

    def _finalize(self) -> None:
        """Write the last steps and the final state, once."""
        with self._end_lock:
            if self._finalized:
                return
            self._finalized = True
        try:
            self.recorder.reducer.end()  # what it still does is left to readers
            with self.recorder.final() as free:
                if not free:
                    self._fail(TimeoutError("the write in progress did not end"))
                last = partial(self.recorder.collect_steps, final=True)
                facts = partial(self._write_facts, self._state)  # the state is that of a whole run: after all else
                writes = last, self.recorder.write_part, self.recorder.write_unreduced, facts
                for write in writes if free else ():
                    try:
                        write()
                    except (Exception, pl.exceptions.PanicException) as error:  # noqa: BLE001  the next may succeed
                        self._fail(error)
        finally:
            self.writer.close()
            if self.writer.moved is not None and isinstance(self.writer.source, Path):
                with suppress(OSError):
                    keep_refuted(self.writer.source, [Path(self.writer.moved)])


class Capture(Protocol):
    """A capture that must survive forks."""

    def settle(self) -> None:
        """Wait, for a while, until its threads have started: the first window is over, or none is due soon."""

    def disown(self) -> None:
        """Become, in a forked process, a copy that records nothing."""


captures: weakref.WeakSet[Capture] = weakref.WeakSet()
"""The running captures of this process."""


def settle(settled: threading.Event, is_due: Callable[[], bool]) -> None:
    """Wait once, and only for a while, unless a window waits for the thread that trains, which may be this one."""
    until_s = time.monotonic() + LIMITS.fork_s
    while time.monotonic() < until_s and not settled.wait(LIMITS.plan_s) and not is_due():
        pass
    settled.set()


def _before() -> None:
    for capture in list(captures):
        capture.settle()


def _in_child() -> None:
    for capture in list(captures):
        capture.disown()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_child=_in_child)
