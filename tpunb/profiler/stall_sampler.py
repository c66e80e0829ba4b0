"""Sample the stack of the training thread, most of all while a step, or the gap between steps, lasts too long.

The sampler's own thread checks the progress of the training 50 times a second, and 25 times after ten seconds. Code in
C that holds the interpreter lock delays the sampler too; the first sample after it still finds the line that called the
code, and is marked as locked. Of the threads of a capture that wait for the lock meanwhile, the first to get it takes
this sample: the training continues as soon as that one releases it.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import queue
import selectors
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice, takewhile
from typing import NamedTuple

import polars as pl
import psutil

from tpunb import schema
from tpunb.profiler.limits import LIMITS
from tpunb.profiler.stacks import RawFrame, StackTable, outwards, stacks

_SPOTS, _STALLS = 512, 4096  # at most: stacks counted in a stall, stalls between two takes

WAITING = {module.__file__ for module in (threading, queue, selectors)}


class Progress(NamedTuple):
    """Where the training is."""

    thread: int | None  # that trains
    since_ns: int | None  # last sign of progress, by the monotonic clock
    step: int | None  # None between steps
    account: str | None  # of tpunb.schema.ACCOUNTS, None if unknown
    typical_ns: int  # typical step time
    computes: bool = False  # whether work is in flight


class Where(NamedTuple):
    """Where the training is: numbers in a `StackTable`."""

    stack: int | None  # None if it cannot be read, or the table is full
    others: tuple[int, ...]  # of threads at work, for which the training may wait


class Place(NamedTuple):
    """Where samples of a stall were taken."""

    where: Where
    samples: int  # a late sample counts as those that it replaces
    locked: bool  # whether one was late


class Stall(NamedTuple):
    """A time without progress."""

    start_ns: int
    end_ns: int
    step: int | None
    account: str | None
    samples: int
    places: tuple[Place, ...]  # most samples first


class _Seen(NamedTuple):
    """A late sample of another thread."""

    progress: Progress
    where: Where
    late_ns: int


@dataclass(slots=True)
class _Open:
    start_ns: int
    step: int | None
    account: str | None
    places: Counter[Where] = field(default_factory=Counter)
    locked: set[Where] = field(default_factory=set)
    samples: int = 0

    def add(self, where: Where, late_ns: int) -> None:
        locked = late_ns > LIMITS.stall_late_ns
        samples = 1 + (late_ns // LIMITS.stall_sample_ns if locked else 0)
        self.samples += samples
        if where in self.places or len(self.places) < _SPOTS:
            self.places[where] += samples
            if locked:
                self.locked.add(where)

    def stall(self, end_ns: int) -> Stall:
        places = tuple(Place(where, count, where in self.locked) for where, count in self.places.most_common())
        return Stall(self.start_ns, end_ns, self.step, self.account, self.samples, places)


class _Work:
    """How much a thread works between two looks, on Linux."""

    def __init__(self) -> None:
        self._files: dict[int, int | None] = {}  # by thread
        self._last: tuple[int, int, int] = 0, 0, 0  # thread, its time, and when that was read

    def share(self, thread: int | None) -> float | None:
        """Return the share of the time since the last call in which a thread had or awaited a processor, if known."""
        if thread not in self._files:
            self._files[thread or 0] = self._open(thread)
        if (file := self._files.get(thread or 0)) is None:
            return None
        try:
            had_ns, awaited_ns, *_ = map(int, os.pread(file, 100, 0).split())
        except (OSError, ValueError):  # it has ended
            return None
        now_ns = time.monotonic_ns()
        (of, before_ns, then_ns), self._last = self._last, (thread or 0, had_ns + awaited_ns, now_ns)
        return min((had_ns + awaited_ns - before_ns) / max(now_ns - then_ns, 1), 1.0) if of == thread else None

    def close(self) -> None:
        """Close the files."""
        while self._files:
            if (file := self._files.popitem()[1]) is not None:
                os.close(file)

    def _open(self, thread: int | None) -> int | None:
        """Return a file of times of a thread that Python knows."""
        for each in threading.enumerate():
            if each.ident == thread:
                with suppress(OSError):
                    return os.open(f"/proc/self/task/{each.native_id}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        return None


class StallSampler:
    """Sample where the training is in stalls; `progress` is called in the sampler's thread."""

    def __init__(
        self, progress: Callable[[], Progress], *, enabled: bool = True, clock: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._progress, self._clock = progress, clock
        # without an interpreter lock, the frames of a running thread cannot be read
        self._enabled = enabled and getattr(sys, "_is_gil_enabled", lambda: True)()
        self._process = os.getpid()
        self._running = threading.Lock()  # released by `stop`; half of an event's cost per wait
        self._thread = threading.Thread(target=self._run, name="tpunb-stalls", daemon=True)
        self._open: _Open | None = None
        self._seen: _Seen | None = None
        self._due_ns = sys.maxsize  # when the sampler looks next
        self._finished: deque[Stall] = deque(maxlen=_STALLS)
        self.stacks = StackTable()
        self._samples: deque[tuple[object, ...]] = deque(maxlen=LIMITS.most_samples)  # STACK_SAMPLES, in nanoseconds
        # time, thread, event and stack of what launched a step
        self._launches: deque[tuple[int, int, str, list[RawFrame]]] = deque(maxlen=LIMITS.most_launches)
        self._sampled_ns, self._sampled, self._stands_for = 0, 0, 1
        self._work = _Work()
        self._interval_s = self._set_s = 0.0
        self._late_ns, self._is_late = 0, False  # since the last sample that stands for others; the last look
        self.failure: Exception | None = None  # that ended the sampling

    def start(self) -> None:
        """Start the sampler's thread."""
        if self._enabled:
            self._running.acquire()
            self._interval_s = sys.getswitchinterval()
            # code that holds the interpreter lock for less than this is seen as what comes after it
            self._set_s = min(self._interval_s, LIMITS.switch_s)
            sys.setswitchinterval(self._set_s)
            try:
                self._thread.start()
            except RuntimeError:  # too many
                self._running.release()
                self.restore_interval()
                raise

    def stop(self) -> None:
        """End the sampling; an unfinished stall ends now."""
        if self._process == os.getpid() and self._running.locked():  # a forked process has no sampler
            self._running.release()
            self.restore_interval()
            self._thread.join(10.0)  # it wakes 25 times a second at least

    def restore_interval(self) -> None:
        """Let threads keep the interpreter lock as long as before, unless the program has set that since."""
        if self._interval_s and math.isclose(sys.getswitchinterval(), self._set_s):  # whole microseconds
            sys.setswitchinterval(self._interval_s)

    def take(self) -> list[Stall]:
        """Return the stalls that ended since the last call, in order."""
        return [self._finished.popleft() for _ in range(len(self._finished))]

    def take_samples(self, host: str, origin_ns: int) -> pl.DataFrame:
        """Return where the training was since the last call, as a frame of ``tpunb.schema.STACK_SAMPLES``."""
        launches = [self._launches.popleft() for _ in range(len(self._launches))]
        looks = [self._samples.popleft() for _ in range(len(self._samples))]
        looks += [
            (time_ns, thread, None, False, event, 0, False, self.stacks.add(frames), (), None)
            for time_ns, thread, event, frames in launches
        ]
        data = [(host, (time_ns - origin_ns) * 1000, *look) for time_ns, *look in looks]  # type: ignore[operator]
        return pl.DataFrame(data, schema=schema.STACK_SAMPLES, orient="row")

    def on_launch(self, event: str) -> None:
        """Record the stack of the calling thread, which launches a step; another thread reads sources."""
        if self._thread.is_alive():
            stack = outwards(sys._getframe(1))
            frames = [RawFrame(frame.f_code, frame.f_lasti, frame.f_globals) for frame in stack]
            self._launches.append((self._clock(), threading.get_ident(), event, frames))

    def on_wake(self) -> None:
        """Sample in another thread that wakes while the sampler is overdue."""
        late_ns = self._clock() - self._due_ns
        if late_ns <= LIMITS.stall_late_ns or self._seen is not None or not self._running.locked():
            return
        progress = self._progress()
        frames = self._stacks(progress)
        if progress.thread in frames and self._elapsed_ns(progress) > _limit_ns(progress):
            self._seen = _Seen(progress, self._where(frames, progress), min(late_ns, self._elapsed_ns(progress)))

    def _stacks(self, progress: Progress) -> dict[int, list[RawFrame]]:
        """Return the stacks of all threads; none if the training has gone on meanwhile."""
        frames = stacks()
        return frames if self._progress().since_ns == progress.since_ns else {}

    def _elapsed_ns(self, progress: Progress) -> int:
        return 0 if progress.since_ns is None else self._clock() - progress.since_ns

    def _run(self) -> None:
        try:
            delay_ns, now_ns = 0, self._clock()
            while not self._running.acquire(timeout=delay_ns / 1e9):
                before_ns, now_ns = now_ns, self._clock()
                delay_ns = self._look(now_ns - before_ns - delay_ns)
                self._due_ns = self._clock() + delay_ns
            self._finish(self._clock())
            self._work.close()
        except Exception as error:  # noqa: BLE001  must never reach the training
            self.failure = error.with_traceback(None)  # which would hold frames of the program

    def _look(self, late_ns: int) -> int:
        """Sample in a stall; return the time until the next look."""
        progress, now_ns = self._progress(), self._clock()
        since_ns = progress.since_ns
        self._late_ns = min(self._late_ns + late_ns, LIMITS.stall_late_ns)
        self._is_late = late_ns > LIMITS.switch_s * 1e9 * 50
        if self._seen is not None:
            seen, self._seen, late_ns = self._seen, None, 0
            self._add(seen.progress, seen.where, seen.late_ns)
        if self._open is not None and since_ns != self._open.start_ns:
            self._finish(now_ns if since_ns is None else since_ns)
        is_due = now_ns - self._sampled_ns >= self._idle_ns
        if progress.computes and is_due:
            stack = stacks().get(progress.thread or 0)
            self._keep(now_ns, progress, Where(None if stack is None else self.stacks.add(stack), ()))
        if since_ns is None or progress.thread is None:
            return self._idle_ns
        elapsed_ns, limit_ns = now_ns - since_ns, _limit_ns(progress)
        if elapsed_ns <= limit_ns:
            if is_due:
                frames = stacks()
                if progress.thread in frames:
                    self._keep(now_ns, progress, self._where(frames, progress))
            return min(max(limit_ns - elapsed_ns, LIMITS.stall_sample_ns), self._idle_ns)
        frames = self._stacks(progress)
        if progress.thread in frames:
            where = self._where(frames, progress)
            self._add(progress, where, min(late_ns, elapsed_ns))
            if is_due:
                self._keep(now_ns, progress, where)
        return LIMITS.stall_sample_ns

    def _where(self, frames: Mapping[int, list[RawFrame]], progress: Progress) -> Where:
        """Return the stack of the thread that trains, and of those at work, if it may wait for them."""
        thread, numbers = progress.thread or 0, list[int | None]()
        if progress.account in (None, "data loading"):
            numbers = [self.stacks.add(stack) for stack in islice(_at_work(frames, thread), LIMITS.most_threads)]
        return Where(self.stacks.add(frames[thread]), tuple(number for number in numbers if number is not None))

    @property
    def _idle_ns(self) -> int:
        return LIMITS.stall_idle_ns * self._stands_for

    def _keep(self, now_ns: int, progress: Progress, where: Where) -> None:
        """Keep a look, and how many samples it stands for: later ones, which are rarer, for more."""
        self._sampled_ns, stands_for = now_ns, self._stands_for
        if self._is_late and not progress.computes:  # for those that it replaces, too
            late, self._late_ns = divmod(self._late_ns, LIMITS.stall_idle_ns)
            stands_for += late
        state = progress.thread, progress.account, progress.computes, None
        self._samples.append((now_ns, *state, stands_for, self._is_late, *where, self._work.share(progress.thread)))
        self._sampled += 1
        self._stands_for = 1 if self._sampled < LIMITS.frequent_samples else LIMITS.rare_samples

    def _add(self, progress: Progress, where: Where, late_ns: int) -> None:
        """Add a sample to the open stall, or to a new one."""
        if self._open is not None and self._open.start_ns != progress.since_ns:
            self._finish(progress.since_ns or self._clock())
        self._open = self._open or _Open(progress.since_ns or self._clock(), progress.step, progress.account)
        self._open.add(where, late_ns)

    def _finish(self, end_ns: int) -> None:
        """Keep the open stall, if any."""
        if self._open is not None:
            self._finished.append(self._open.stall(end_ns))
            self._open = None


def _limit_ns(progress: Progress) -> int:
    """Return the time without progress after which it is a stall."""
    return max(LIMITS.stall_steps * progress.typical_ns, LIMITS.stall_shortest_ns)


def rows(stalls: Iterable[Stall], host: str, origin_ns: int) -> pl.DataFrame:
    """Return stalls of a host as a frame of ``tpunb.schema.STACK_STALLS``; the origin is by the monotonic clock."""
    data = [
        (
            *(host, (stall.start_ns - origin_ns) * 1000, (stall.end_ns - stall.start_ns) * 1000),
            *(stall.step, stall.account, place.samples / stall.samples, place.samples, place.locked, *place.where),
        )
        for stall in stalls
        for place in stall.places
    ]
    return pl.DataFrame(data, schema=schema.STACK_STALLS, orient="row")


def _at_work(frames: Mapping[int, list[RawFrame]], thread: int) -> Iterator[list[RawFrame]]:
    """Yield the stacks of threads that a thread may wait for: neither the profiler's, nor what waits for others."""
    busy = {other: stack for other, stack in frames.items() if stack[0].f_code.co_filename not in WAITING}
    busy.pop(thread, None)
    if busy:
        skipped = {other.ident for other in threading.enumerate() if other.name.startswith("tpunb-")}
        skipped.add(threading.main_thread().ident)
        yield from (stack for other, stack in busy.items() if other not in skipped)


_ROWS = 86_400  # at most between two takes


def _launcher(process: psutil.Process) -> psutil.Process:
    """Return the process whose descendants are the job: that of ``tpunb run``, or what started ranks; else itself."""
    job = process
    with suppress(psutil.Error, OSError):
        if "TPUNB_RUN_ANCESTOR" in os.environ and (hook := os.environ.get("PYTHONPATH", "").partition(os.pathsep)[0]):
            of_job = takewhile(lambda each: each.environ().get("PYTHONPATH", "").startswith(hook), process.parents())
            job = deque([job, *of_job], 1).pop()
        if job is process and ("LOCAL_RANK" in os.environ or multiprocessing.parent_process()):
            job = process.parent() or process
    return job


class ProcessLoad:
    """The load of a process, this one without another, and of its machine; times are by the monotonic clock."""

    def __init__(self, process: psutil.Process | None = None) -> None:
        self._process = process or psutil.Process()
        self._launcher = _launcher(self._process)
        self._processors = psutil.cpu_count() or 1
        self._children: dict[int, psutil.Process] = {}  # that the last sample saw, such as workers
        self._sampled_ns: int | None = None
        self._rows: deque[tuple[int, float, float, int]] = deque(maxlen=_ROWS)
        self.failure: Exception | None = None  # that ended the sampling

    def sample(self, now_ns: int) -> None:
        """Record the load since the last sample, if that was at least a second ago; for one thread."""
        start_ns = self._sampled_ns
        if self.failure is not None or (start_ns is not None and now_ns - start_ns < LIMITS.load_ns):
            return
        try:  # both are shares of the time since the last call in this thread: the first has no meaning
            cpu = (self._process.cpu_percent() + self._cpu_of_job()) / 100 / self._processors
            machine_cpu = psutil.cpu_percent() / 100
            rss_bytes = self._process.memory_info().rss
        except (psutil.Error, OSError, NotImplementedError) as error:  # a sandbox may hide the figures
            self.failure = error
            return
        self._sampled_ns = now_ns
        if start_ns is not None:
            self._rows.append((start_ns, min(cpu, 1.0), machine_cpu, rss_bytes))

    def _cpu_of_job(self) -> float:
        """Return the percent of a processor of workers and other ranks, of those that the last sample saw too."""
        if self._launcher is not self._process and not self._launcher.is_running():
            self._launcher = self._process
        job = [self._launcher, *self._launcher.children(recursive=True)]
        present = {each.pid: each for each in job if each != self._process}
        self._children = {pid: self._children.get(pid, child) for pid, child in present.items()}
        percent = 0.0
        for child in self._children.values():
            with suppress(psutil.Error):  # it has ended
                percent += child.cpu_percent()
        return percent

    def take(self, host: str, origin_ns: int) -> pl.DataFrame:
        """Return the load since the last call as a frame of ``tpunb.schema.LOAD``."""
        taken = [self._rows.popleft() for _ in range(len(self._rows))]
        data = [(host, (start_ns - origin_ns) * 1000, *figures) for start_ns, *figures in taken]
        return pl.DataFrame(data, schema=schema.LOAD, orient="row")
