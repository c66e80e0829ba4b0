"""The two threads of a capture: one asks the profiler for windows, one reduces them and writes.

Paper III.A: while the recording thread stores a profile, the profiling thread already requests the next.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, NamedTuple

import polars as pl

from tpunb import forks
from tpunb.errors import TpunbError
from tpunb.io.run_writer import RunWriter
from tpunb.marking import StepClock
from tpunb.recording import Keep, Recording
from tpunb.schedule import Ask, Schedule, Seen
from tpunb.sources import Source
from tpunb.windows import OURS, Answer

_COLLECT_S = 120.0  # how long the last window may take to come back
_YIELD_S = 30.0  # how long the program's own profiler waits for ours to end
_LOOK_S = 0.1  # how often the plan is looked at again
_TURN_S = 0.2  # how often waiting hears of an interrupt
_NOTED_S = 10.0  # how often steps are written where no window is
_BEAT_S = 30.0  # how often run.json says that the run goes on
_LOG_S = 60.0  # how often the log does

_NOTHING = nullcontext()

_log = logging.getLogger("tpunb")


class Status(NamedTuple):
    """How a capture stands."""

    steps: int  # that ended; of remote workers those seen in full
    mark: str | None  # of the step that runs
    phase: int | None  # of the last step seen in full, by the online scan
    phases: int  # that the scan has found so far
    windows: int  # that came back
    failed: int  # that did not
    observed: float  # share of the time in which a window watched, 0 to 1
    overhead: float | None  # estimated slow-down by watching: 0.02 is 2 %; None while nothing is measured yet
    seconds: float  # since the beginning
    state: str  # "running", "finished", or why it ended
    saving: float = 0.0  # seconds that checkpoints took

    def __str__(self) -> str:
        """Return it as one plain line, for a log or for the eye."""
        if self.overhead is None:
            lag = "not measured yet"
        else:
            lag = f"about {100 * self.overhead:.1f} %" if self.overhead >= 0.0005 else "under 0.1 %"
        windows = f"{self.windows:,} window{'' if self.windows == 1 else 's'}"
        windows += f" ({self.failed:,} failed)" if self.failed else ""
        parts = [
            "watching" if self.state == "running" else self.state,
            f"{self.steps:,} step{'' if self.steps == 1 else 's'}" + (f", {self.mark} now" if self.mark else ""),
            "no phase yet" if self.phase is None else f"phase {self.phase:,} now, {self.phases:,} so far",
            f"observed {100 * self.observed:.0f} % in {windows}",
            f"slow-down {lag}",
        ]
        parts = parts if self.windows or self.failed else [*parts[:3], "no window yet"]
        return " · ".join([*parts, *([f"saving took {self.saving:.1f} s"] if self.saving >= 0.05 else [])])


class Watcher:
    """The two threads of a capture, and what they share.

    Parameters
    ----------
    writer
        Where the run is written.
    source
        Where windows come from.
    schedule
        When they are asked for.
    keep
        Which raw windows stay.
    until
        The step at which the capture ends, if any.
    opened
        Told of each phase that the run comes to for the first time.
    """

    def __init__(
        self,
        writer: RunWriter,
        source: Source,
        schedule: Schedule,
        *,
        keep: Keep,
        until: int | None = None,
        opened: Callable[[int], None] = lambda phase: None,
    ) -> None:
        self.writer, self.source, self.schedule, self.keep, self.until = writer, source, schedule, keep, until
        self._opened = opened
        self.clock = StepClock(self._annotate, until=until, reached=lambda: self.stop(f"stopped at step {until}"))
        self.lookouts: list[Callable[[], None]] = []  # told now and then: has something been imported since?
        self._ended = threading.Event()
        self._abandoned = threading.Event()  # closing was interrupted: whoever is late writes nothing any more
        self._left = False
        self._foreign = False  # whether we are a copy in a forked process, without threads
        self._guest: str | None = None  # the program's own profiler, while it runs
        self._watching = threading.Event()  # a window is under way
        self.settled = threading.Event()  # the first is over, or none is near
        self._answers: queue.Queue[Answer | None] = queue.Queue(maxsize=4)
        self._asked = 0
        self._state = "running"
        self._span_ns: int | None = None  # how long the run lasted, once it is over
        self._failure: BaseException | None = None
        self._once = threading.RLock()  # a signal handler may stop the run in the midst of its end
        self._worded = False
        self._asking = threading.Thread(target=self._ask, name="tpunb-profiling", daemon=True)
        self._writing = threading.Thread(target=self._record, name="tpunb-recording", daemon=True)
        self._closing = threading.Thread(target=self._close, name="tpunb-closing", daemon=True)

    # -- the block -----------------------------------------------------------------------------------------------

    def __enter__(self) -> Watcher:
        from tpunb import self_time  # noqa: F401  compiled by its import: now, not beside the training
        from tpunb.io import xplane

        xplane.warm()
        self.source.start()  # first: a capture that cannot begin must not have moved an earlier run away
        self.writer.open()
        try:
            self.recording = Recording(self.writer, self.clock, self.schedule, self.keep, self._opened)
            self._tell()
        except BaseException:
            self.writer.close()
            raise
        forks.begun(self)
        self._asking.start()
        self._writing.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        self._left = True
        if self._foreign:  # a child that left the block too: the run is its parent's
            return
        try:
            try:
                self.clock.abandon()
            finally:
                self.stop("finished" if kind is None else f"ended by {kind.__name__}")
            while self._closing.is_alive():
                self._closing.join(_TURN_S)  # in short turns: a wait without end would not hear of an interrupt
        except BaseException:
            self._abandoned.set()
            self._state = "interrupted while closing"
            self._last_words()
            raise
        finally:
            forks.ended(self)
        if self._failure is not None:
            told = f"the recording of {self.writer.source} is incomplete: {self._failure!r}"
            if error is None:
                warnings.warn(told, RuntimeWarning, stacklevel=3)
            else:
                error.add_note(told)  # the exception of the block goes on, and stays the one that is seen

    def stop(self, state: str = "stopped") -> None:
        """End the capture now; the block goes on unwatched. Returns at once."""
        if self._foreign:
            return
        with self._once:
            if self._ended.is_set():
                return
            self._state = state
            self._span_ns = time.time_ns() - self.recording.origin_ns
            self.clock.close()
            self._ended.set()
            self._closing.start()

    def _annotate(self, mark: str, number: int) -> AbstractContextManager[Any]:
        """Mark a step in the profile, where one is being taken: no profiler records what began before it did."""
        if not self._watching.is_set() and self._guest is None:
            return _NOTHING
        try:
            return self.source.step(mark, number)
        except Exception as broken:  # noqa: BLE001  a source of the user's own must not end the training
            self._failure = self._failure or broken
            return _NOTHING

    @property
    def _seconds(self) -> float:
        """How long the run has lasted."""
        return (time.time_ns() - self.recording.origin_ns if self._span_ns is None else self._span_ns) / 1e9

    @property
    def status(self) -> Status:
        """How it stands."""
        tick, recording, seconds = self.clock.open_tick(), self.recording, self._seconds
        return Status(
            steps=max(self.clock.count, recording.full),  # of remote workers only windows tell
            mark=None if tick is None else tick.mark,
            phase=recording.reducer.phase,
            phases=len(recording.reducer.scan),
            windows=recording.came,
            failed=recording.failed,
            observed=min(1.0, recording.watched_ps / 1e12 / max(seconds, 1e-9)),
            overhead=recording.planner.overhead(recording.origin_ns / 1e9 + seconds),
            seconds=seconds,
            state=self._state if self._failure is None else f"{self._state}, incomplete: {self._failure}",
            saving=recording.planner.saved_s,
        )

    def saved(self, seconds: float) -> None:
        """Hear that saving a checkpoint took so long."""
        self.recording.planner.tell_saved(seconds)

    # -- beside other profilers, and after a fork ------------------------------------------------------------------

    def give_way(self, who: str) -> None:
        """End the running window and ask for none while the program's own profiler runs; return when it is free."""
        self._guest = who
        until = time.monotonic() + _YIELD_S
        while self._watching.is_set() and not self._ended.is_set() and time.monotonic() < until:
            with suppress(TpunbError):  # the window may have ended by itself between two looks
                self.source.stop()
            time.sleep(0.05)

    def go_on(self) -> None:
        """Ask for windows again, from now on."""
        self._guest = None
        self.recording.planner.forgive()

    @property
    def is_over(self) -> bool:
        """Whether its block has been left."""
        return self._left

    def disown(self) -> None:
        """Become a copy that records nothing: after a fork the run stays the parent's, and its threads with it."""
        self._foreign = True
        self.clock.close()
        self._ended = threading.Event()  # the lock of the other may be held by a thread that is not here
        self._ended.set()

    # -- the profiling thread --------------------------------------------------------------------------------------

    def _ask(self) -> None:
        try:
            while not self._ended.is_set():
                tick, now_s = self.clock.open_tick(), time.time()
                mark = None if tick is None else tick.mark
                plan = self.recording.planner.ask(now_s, mark)
                if plan.due_s > now_s + forks.WAIT_S:
                    self.settled.set()
                if plan.due_s > now_s:
                    self._ended.wait(min(plan.due_s - now_s, _LOOK_S))
                    continue
                self._look_out()
                self._watch(plan, mark)
        except Exception as broken:  # noqa: BLE001  a source of the user's own may do anything; told at the end
            self._failure = self._failure or broken
        finally:
            self._watching.clear()
            self.settled.set()
            self._answers.put(None)

    def _watch(self, plan: Ask, mark: str | None) -> None:
        """Ask for one window, and hand on what came of it."""
        planner, asked_ns = self.recording.planner, time.time_ns()
        planner.tell_asked(asked_ns / 1e9, mark)
        self.recording.under_way.append(asked_ns)
        self._watching.set()
        try:
            if self._guest is not None:  # looked at while `_watching` is set: who gives way waits for that
                raise TpunbError(f"given up: {self._guest} was profiling")
            answer = self.source.window(plan.seconds)
        except TpunbError as refused:
            answer = dict.fromkeys(self.source.facts().get("workers", [OURS]), refused)
        except BaseException:
            self.recording.under_way.pop()  # nothing comes of it
            raise
        finally:
            self._watching.clear()
            self.settled.set()
        workers = {OURS: answer} if isinstance(answer, bytes) else answer
        answered_ns = time.time_ns()
        if all(isinstance(data, TpunbError) for data in workers.values()):
            planner.tell_window(Seen(asked_ns / 1e9, 0.0, answered_ns / 1e9))
        self._answers.put(Answer(self._asked, plan.why, asked_ns, answered_ns, workers))
        self._asked += 1

    def _look_out(self) -> None:
        for look in self.lookouts:
            look()

    # -- the recording thread --------------------------------------------------------------------------------------

    def _record(self) -> None:
        self._beat_s = self._noted_s = self._log_s = time.monotonic()
        answer: Answer | None
        asking = writable = True
        while asking or not self._ended.is_set():  # steps are noted though the source has broken
            try:
                answer = self._answers.get(timeout=_TURN_S)
                asking = asking and answer is not None
            except queue.Empty:
                answer = None
            if writable and not self._abandoned.is_set():
                try:
                    self._look_out()
                    self._turn(answer)
                except (Exception, pl.exceptions.PanicException) as broken:  # noqa: BLE001  must not end the training
                    self._failure, writable = self._failure or broken, False
                    self.stop("stopped")

    def _turn(self, answer: Answer | None) -> None:
        """Write a window if there is one, the steps now and then, and more seldom that the run goes on."""
        recording, now_s = self.recording, time.monotonic()
        own = recording.reducer.own
        if answer is not None:
            recording.write(answer)
            self._noted_s = now_s
        if recording.reducer.own != own:  # under whose name its windows are read
            self._tell()
        recording.note()
        if now_s - self._noted_s > _NOTED_S:
            recording.part()
            self._noted_s = now_s
        if now_s - self._beat_s > _BEAT_S:
            self._tell()
            self._beat_s = now_s
        if now_s - self._log_s > _LOG_S:
            _log.info("%s: %s", self.writer.name, self.status)
            self._log_s = now_s

    def _tell(self) -> None:
        """Write how the run stands."""
        try:
            facts = self.source.facts()
        except Exception as broken:  # noqa: BLE001  a source of the user's own may do anything; told at the end
            self._failure, facts = self._failure or broken, {}
        self.recording.tell(
            {
                **facts,
                "options": {**vars(self.schedule), "keep": self.keep, "until": self.until, "source": repr(self.source)},
                "state": self._state if self._failure is None else f"{self._state}, incomplete",
                **({} if self._span_ns is None else {"span_ps": self._span_ns * 1000}),
            },
            self._seconds,
        )

    # -- the end -----------------------------------------------------------------------------------------------

    def _close(self) -> None:
        """End the last window now rather than when its time is up, and write what is left."""
        deadline = time.monotonic() + _COLLECT_S
        while self._asking.is_alive() and time.monotonic() < deadline and not self._abandoned.is_set():
            try:
                self.source.stop()
            except TpunbError:  # the window may have ended by itself between two looks
                pass
            except Exception as broken:  # noqa: BLE001  a source of the user's own may do anything; told at the end
                self._failure = self._failure or broken
            self._asking.join(_TURN_S)
        while self._writing.is_alive() and time.monotonic() < deadline and not self._abandoned.is_set():
            self._writing.join(_TURN_S)
        if not self._abandoned.is_set():
            if self._writing.is_alive():
                self._abandoned.set()
                self._failure = self._failure or TimeoutError("the last window did not come back in time")
            self._last_words()

    def _last_words(self) -> None:
        """Write the steps since the last part, and how it ended; once, whoever comes first."""
        with self._once:
            if self._worded:
                return
            self._worded = True
        try:
            with self.recording.last() as free:
                if not free:
                    self._failure = self._failure or TimeoutError("what was being written did not come to an end")
                for word in (self.recording.note, self.recording.part, self._tell) if free else ():
                    try:
                        word()
                    except (Exception, pl.exceptions.PanicException) as broken:  # noqa: BLE001  the next may be heard
                        self._failure = self._failure or broken
        finally:
            self.writer.close()
