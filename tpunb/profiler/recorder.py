"""Reduce the windows of a capture, write the run part by part, and report the results to the scheduler."""

from __future__ import annotations

import math
import os
import socket
import sys
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from importlib import metadata
from statistics import median
from typing import Any, Literal

import polars as pl
import psutil

from tpunb import schema, signals
from tpunb.frames.hardware import cpu_threads
from tpunb.instrument import misfits
from tpunb.io import run_folder
from tpunb.io.run_folder import JournalRow
from tpunb.io.run_writer import RunWriter
from tpunb.profiler import stall_sampler
from tpunb.profiler.limits import LIMITS
from tpunb.profiler.process_group import ProcessGroup
from tpunb.profiler.reducer_process import ReducerProcess
from tpunb.profiler.schedule import WindowResult, WindowScheduler
from tpunb.profiler.stall_sampler import ProcessLoad, StallSampler
from tpunb.profiler.step_clock import StepClock, StepRecord
from tpunb.profiler.window_cost import TimedStep
from tpunb.profiler.windows import RawWindowPolicy, ReducedWindow, WindowResponse, window_facts
from tpunb.schema import STANDING
from tpunb.signals import Spent
from tpunb.step_stats.batch_size import Size
from tpunb.text import format_error

try:
    import resource
except ImportError:  # Windows, which has no such limit
    resource = None  # type: ignore[assignment]

Keep = Literal["none", "phases", "all"]


class RunRecorder:
    """A run while it is written."""

    def __init__(
        self, writer: RunWriter, clock: StepClock, scheduler: WindowScheduler, keep: Keep, origin_ns: int
    ) -> None:
        self._writer, self._clock, self._scheduler, self._keep = writer, clock, scheduler, keep
        self._origin_ns, self.system_clock = origin_ns, SystemClock(origin_ns)
        self.group = ProcessGroup()
        self.reducer = ReducerProcess(socket.gethostname(), origin_ns)
        self.windows, self.failed, self.traced_ps = 0, 0, 0  # traced time: mean over the workers
        self.full = 0  # fully traced steps of one worker
        self._messages: set[str] = set()  # of the profiler
        self._pending: deque[int] = deque()  # request times of windows that are not written yet
        self._lock = threading.RLock()  # an interrupted end may write beside the recording thread
        self._closed = False
        self._unreduced: dict[int, tuple[WindowResponse, list[StepRecord]]] = {}  # windows by number
        self.left = 0  # windows that were written for readers to reduce
        self._raw_windows = RawWindowPolicy()
        self._parts = 0
        self._unwritten: list[StepRecord] = []
        self._tail_s = 0.0  # when they are written next beside a part
        self._recent: list[StepRecord] = []  # that a pending window may overlap
        self._spans: deque[Spent] = deque()  # that no part holds yet; threads add to it without the lock
        self.stalls = StallSampler(clock.progress)
        self._load = ProcessLoad()
        self.programs = ProgramKeeper(writer, self.reducer.programs)
        self.productive_ns = 0  # about: by the median of recent steps
        self._trained = deque[tuple[int, Size | None]](maxlen=LIMITS.latest_steps)  # time and size of each step
        self._recent_ns: defaultdict[str, deque[int]] = defaultdict(lambda: deque(maxlen=LIMITS.typical_steps))

    @property
    def phase(self) -> int | None:
        """The phase of the last fully traced step."""
        return self.reducer.phase

    @property
    def phases(self) -> int:
        """The number of phases so far."""
        return self.reducer.phases

    def on_request(self, requested_ns: int, seconds: float, kind: str | None) -> None:
        """Record the request of a window, its length, and the kind of the running step."""
        self._scheduler.on_request(requested_ns / 1e9, seconds, kind)
        self._pending.append(requested_ns)

    def cancel_request(self) -> None:
        """Forget the last request: no window will come of it."""
        self._pending.pop()
        self._scheduler.on_cancel()

    def collect_steps(self, *, wait: bool = True, final: bool = False) -> None:
        """Take the steps that are done since the last call; without `wait`, only if no write is in progress."""
        if not self._lock.acquire(blocking=wait):
            return
        try:
            ended = self._clock.take(final=final)
            for record in ended:
                exclusive_ns = record.end_ns - record.start_ns - (record.input_ns or 0) - (record.callbacks_ns or 0)
                if record.kind.partition(" ")[0] == "train":
                    dur_ps = (record.end_ns - record.start_ns) * 1000
                    self._trained.append((dur_ps, record.size))
                recent = self._recent_ns[record.kind]
                recent.append(exclusive_ns)
                self.productive_ns += max(0, round(min(exclusive_ns, median(recent))))
            self._unwritten += ended
            self._recent += ended
            self._spans += self._clock.take_spans()
            self._scheduler.on_steps(map(_timed, ended if self._pending else ended[-LIMITS.latest_steps :]))
            # a window that is requested at this moment may not be pending yet
            oldest_ns = min([*self._pending, time.monotonic_ns() - LIMITS.request_moment_ns])
            self._recent = [record for record in self._recent if record.end_ns > oldest_ns]
        finally:
            self._lock.release()

    def throughput(self) -> dict[str, float | None]:
        """Return samples and tokens per second of step time in the latest training steps."""
        trained, rates = [*self._trained], dict[str, float | None]()  # no table: a forked process cannot make one
        for at, name in enumerate(Size._fields):
            counted = [(dur_ps, size[at]) for dur_ps, size in trained if size is not None and size[at] is not None]
            dur_ps = sum(each[0] for each in counted)
            rates[f"{name}_per_s"] = sum(each[1] or 0 for each in counted) / dur_ps * 1e12 if dur_ps else None
        return rates

    def sample_load(self) -> None:
        """Record the load of the process; for one thread."""
        self._load.sample(time.monotonic_ns())

    def write(self, response: WindowResponse) -> bool:
        """Reduce a window and write it; return whether ``run.json`` must be written again."""
        local_worker, records = self.reducer.local_worker, self.defer(response)
        try:
            check_memory()
            reduced = self.reducer.reduce(response, records)
        except (EOFError, OSError) as error:  # its process could not start, or was ended: readers reduce the window
            self._add_messages([f"the process that reduces windows ended: {format_error(error)}"])
            with self._lock:
                if self._closed:
                    return False
                self._write_unreduced(*self._unreduced.pop(response.number))
            self.left += 1
            if self.left == LIMITS.most_unreduced:  # nothing selects of them: more would fill the disk
                self._scheduler.schedule = replace(self._scheduler.schedule, budget=None, every=math.inf)
            self._pending.popleft()
            self._scheduler.on_window(WindowResult(response.requested_ns / 1e9, 0.0, time.monotonic()))
            return False
        with self._lock:
            if self._closed:
                return False
            del self._unreduced[response.number]
            self._write_raw(response.number, reduced)
            if self._keep != "none":  # which keeps no events to name the instructions of
                self.programs.on_window(reduced.ran)
                for host, data in reduced.raw.items() if self.programs.missing else ():
                    self.programs.keep(host, data)
            self.write_part(reduced.tables())
        if reduced.opened and self.phase is not None:
            signals.phase_opened.send(self.phase)
        succeeded = reduced.traced_ps > 0  # counted once the window can be loaded
        self.windows, self.failed = self.windows + succeeded, self.failed + (not succeeded)
        self.full += reduced.full.total()
        self.traced_ps += sum(row["dur_ps"] for row in reduced.windows) // max(len(reduced.windows), 1)
        self._add_messages(reduced.messages)
        self.collect_steps()
        self._pending.popleft()
        answered = any(isinstance(data, bytes) for data in response.workers.values())
        if not succeeded and answered:  # the session reports a window without any answer
            self._scheduler.on_window(WindowResult(response.requested_ns / 1e9, 0.0, time.monotonic()))
        if succeeded:
            start_ps = min(row["start_ps"] for row in reduced.windows if row["dur_ps"])
            result = WindowResult(
                # the source may have waited for a framework
                max(response.requested_ns, self._origin_ns + start_ps // 1000) / 1e9,
                reduced.traced_ps / 1e12,
                time.monotonic(),
                reduced.events,
                dict(reduced.full),
                reduced.opened,
                reduced.undersampled,
                reduced.step_ps / 1e12,
                reduced.queue_ps / 1e12,
            )
            self._scheduler.on_window(result)
        return self.reducer.local_worker != local_worker

    def defer(self, response: WindowResponse) -> list[StepRecord]:
        """Leave a window to `write_unreduced` unless `write` ends before; return the steps that it may overlap."""
        with self._lock:  # no other thread takes steps meanwhile
            self.collect_steps()
            open_step = self._clock.open_step()
            records = [*self._recent, *self._clock.untaken(), *([open_step] if open_step else [])]
            self._unreduced[response.number] = response, records
        return records

    def write_unreduced(self) -> None:
        """Write the windows that are not reduced as they are, for readers of the run to reduce."""
        for response, records in self._unreduced.values():
            self._write_unreduced(response, records)

    def _write_unreduced(self, response: WindowResponse, records: list[StepRecord]) -> None:
        for worker, data in response.workers.items():
            if isinstance(data, bytes):
                self._writer.raw(response.number, worker or self.reducer.host, data)
        self._writer.unreduced(response.number, window_facts(response, records))

    def write_programs(self, data: bytes) -> None:
        """Write the missing programs that an XSpace holds; those that it lacks are unavailable."""
        with self._lock:
            if data and not self._closed:
                for host in {host for host, _ in self.programs.missing}:
                    self.programs.keep(host, data)
                missing = self.programs.missing
                self._add_messages([f"{host}: program {program} is not available" for host, program in missing])
                missing.clear()

    def _add_messages(self, messages: list[str]) -> None:
        self._messages |= set(messages[: max(0, LIMITS.most_messages - len(self._messages))])

    def _write_raw(self, window: int, reduced: ReducedWindow) -> None:
        keep, replaced = self._keep == "all", list[int]()
        if self._keep == "phases" and reduced.raw:
            keep, replaced = self._raw_windows.offer(window, reduced.paces)
        for host, data in reduced.raw.items() if keep else ():
            self._writer.raw(window, host, data)
        for other in replaced:
            self._writer.drop_raw(other)

    def write_part(self, tables: Mapping[str, pl.DataFrame] | None = None) -> None:
        """Write a part: the tables of a window, if any, and the steps that no part holds yet."""
        with self._lock:
            events = self._clock.events.take()
            if self._writer.has_journal_only:
                self._unwritten.clear()
                self._spans.clear()
                self._clock.events.forget(events)
                return
            stalls = [] if self._closed else self.stalls.take()
            if self._closed or not (tables or self._unwritten or self._spans or stalls or events.rows):
                return
            check_memory()
            host, origin_ns = self.reducer.host, self._origin_ns
            spans = [*self._spans]
            clocked = {
                "spans": pl.DataFrame(map(self._span, spans), schema=schema.SPANS, orient="row"),
                "stack_stalls": stall_sampler.rows(stalls, host, origin_ns),
                "stack_samples": self.stalls.take_samples(host, origin_ns),
                "stacks": self.stalls.stacks.unwritten(host),  # after what refers to them
                "load": self._load.take(host, origin_ns),
                "programs": pl.DataFrame(self.programs.take(), schema=run_folder.PROGRAMS, orient="row"),
                **events.tables(host),
                "ticks": self._ticks(),
            }
            self._writer.part(self._parts, {**(tables or {}), **clocked})
            self._parts += 1
            self._unwritten = []
            for _ in spans:  # only now: after a failure the next part has them
                self._spans.popleft()
            self.stalls.stacks.written(clocked["stacks"].height)
            self._clock.events.forget(events)

    def write_tail(self) -> None:
        """Write the steps that no part holds yet, to be overwritten; the journal has them until then."""
        self.system_clock.look()
        self._writer.beat()
        self._writer.events(self._clock.events)
        self.collect_steps()
        with self._lock:
            # to write so many again and again would take too long
            if self._writer.has_journal_only or len(self._unwritten) > LIMITS.tail_steps:
                self.write_part()
            elif self._unwritten and not self._closed and (time.monotonic() >= self._tail_s or not self._journaled):
                check_memory()
                begun_s = time.monotonic()
                self._writer.tail(self._ticks())
                now_s = time.monotonic()
                self._tail_s = now_s + min(100 * (now_s - begun_s), LIMITS.tail_rest_s)  # 1 % of the time

    @property
    def _journaled(self) -> bool:
        """Whether the journal surely has the steps that no part holds yet: it is short, and so are its rows."""
        few = len(self._unwritten) < LIMITS.tail_steps // 2
        return few and all(map(run_folder.fits_journal, {record.kind for record in self._unwritten}))

    def _ticks(self) -> pl.DataFrame:
        return pl.DataFrame(map(self._row, self._unwritten), schema=run_folder.TICKS, orient="row")

    def spend(self, detail: str, start_ns: int, event: str | None = None) -> None:
        """Record work of the profiler since then, beside the training, and the event that it is, if any."""
        self._spans.append(spent := Spent("profiler", detail, start_ns, time.monotonic_ns()))
        self._writer.span(spent)
        if event is not None:
            self._clock.events.add(event, None, None, start_ns, spent.end_ns)

    def stand(self, begin_ns: int, end_ns: int, seen: Mapping[str, Any] | None) -> None:
        """Record a stretch in which the training stood still, and what is seen of it; None once it continues."""
        self._spans.append(spent := Spent(STANDING, None, begin_ns, end_ns))
        self._writer.span(spent)
        self.write_part()  # with the samples of where it stands
        self._writer.standing(seen)

    def _row(self, record: StepRecord) -> tuple[object, ...]:
        """Return a row of TICKS, in the run's time."""
        causes = record.input_ns, record.callbacks_ns, record.dispatch_ns
        times = (record.start_ns - self._origin_ns, record.end_ns - self._origin_ns, *causes)
        *in_ps, peers_ps = (None if ns is None else ns * 1000 for ns in (*times, record.peers_ns))
        size = record.size or (None, None)
        return (self.reducer.host, record.step, record.kind, *in_ps, record.rule, peers_ps, *size)

    def _span(self, spent: Spent) -> tuple[object, ...]:
        """Return a row of SPANS, in the run's time."""
        times = (spent.start_ns - self._origin_ns, max(0, spent.end_ns - spent.start_ns))
        return (self.reducer.host, *(ns * 1000 for ns in times), spent.account, spent.detail)

    def write_facts(self, facts: Mapping[str, Any], seconds: float) -> None:
        """Write ``run.json``, `seconds` after the start; `facts` take precedence."""
        overhead = self._scheduler.overhead(self._origin_ns / 1e9 + seconds)
        self.system_clock.look()
        if (failure := self._clock.events.failure) is not None:
            self._add_messages([f"events of libraries are not recorded any more: {format_error(failure)}"])
        recorded = {
            "name": self._writer.name,
            "started": datetime.fromtimestamp(self.system_clock.started_ns / 1e9, UTC).isoformat(),
            "origin_ns": self.system_clock.started_ns,
            "journal_origin_ns": self._origin_ns,
            "clock_jumps": self.system_clock.jumps[: LIMITS.most_messages],
            "host": self.reducer.host,
            "own_worker": self.reducer.local_worker or None,
            "process": os.getpid(),
            "group": self.group.facts(),
            "earlier_run": self._writer.moved,
            "hardware": [row for rows in self.reducer.hardware.values() for row in rows],
            "overhead": None if overhead is None else overhead.value,
            "overhead_interval": None if overhead is None else [overhead.low, overhead.high],
            "profiler_messages": sorted(self._messages),
            "not_known": misfits()[: LIMITS.most_messages],
            "metadata": {**_processors(), **self._clock.metadata},
            "step_flops": next(iter(flops)) if len(flops := self._clock.step_flops) == 1 else None,
            "steps_before": self._clock.steps_before,
            "causes": True,
            "lost_events": self._clock.events.lost,
            "steps": self._clock.count or self.full,  # those of remote workers are in windows only
            "kinds": self._clock.kinds,
            "versions": _versions("tpunb", "tensorflow", "keras", "jax", "torch", "polars"),
        }
        with self._lock:
            if not self._closed:
                self._writer.facts({**recorded, **facts})

    @contextmanager
    def final(self) -> Iterator[bool]:
        """Allow the last writes in the block; yield whether the write in progress has ended."""
        free = self._lock.acquire(timeout=LIMITS.final_write_s)
        try:
            yield free
        finally:
            self._closed = True
            if free:
                self._lock.release()


def check_memory() -> None:
    """Raise MemoryError where a profiler, or polars, might get no memory, and abort the process."""
    if resource is None or (limit := resource.getrlimit(resource.RLIMIT_AS)[0]) == resource.RLIM_INFINITY:
        return
    if limit - psutil.Process().memory_info().vms < LIMITS.memory_margin:
        margin = f"less than {LIMITS.memory_margin // 1_000_000} MB"
        raise MemoryError(
            f"the limit of this process (ulimit -v) leaves {margin}; raise it, or capture a smaller training"
        )


class SystemClock:
    """The system clock, which names moments, beside the monotonic clock, by which a run is recorded."""

    def __init__(self, origin_ns: int) -> None:
        self._origin_ns, self._lead_ns, self._lock = origin_ns, _lead_ns(), threading.Lock()
        self.started_ns = origin_ns + self._lead_ns  # since the epoch
        self.jumps: list[tuple[int, int]] = []  # time in the run, and length, in picoseconds

    def look(self) -> int:
        """Return its lead over the monotonic clock, and record a jump: it was set, or the machine was suspended."""
        with self._lock:
            if abs(jump_ns := _lead_ns() - self._lead_ns) >= LIMITS.clock_error_ns:
                self._lead_ns += jump_ns
                jump = (time.monotonic_ns() - self._origin_ns) * 1000, jump_ns * 1000
                self.jumps += [jump] * (abs(jump_ns) >= LIMITS.clock_jump_ns)
            return self._lead_ns


def _lead_ns() -> int:
    """Return the system clock less the monotonic clock, by the one of three readings that nothing interrupted."""
    readings = [(time.monotonic_ns(), time.time_ns(), time.monotonic_ns()) for _ in range(3)]
    return min((after_ns - before_ns, system_ns - after_ns) for before_ns, system_ns, after_ns in readings)[1]


def journal_row(record: StepRecord, steps_before: int | None) -> JournalRow:
    """Return a step as a row of the journal."""
    causes = record.input_ns, record.callbacks_ns, record.dispatch_ns
    times = record.start_ns, record.end_ns, *causes
    return JournalRow(record.step, record.kind, *times, record.rule, steps_before, record.peers_ns)


def _timed(record: StepRecord) -> TimedStep:
    causes = (record.input_ns or 0) / 1e9, (record.callbacks_ns or 0) / 1e9
    return TimedStep(record.kind, record.start_ns / 1e9, record.end_ns / 1e9, *causes)


def _versions(*packages: str) -> dict[str, str]:
    versions = {"python": sys.version.split()[0]}
    for package in packages:
        with suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return versions


class ProgramKeeper:
    """Finds the programs that windows ran in XSpaces, and writes them."""

    def __init__(self, writer: RunWriter, find: Callable[..., Mapping[int, tuple[str, bytes]]]) -> None:
        self._find = find
        self.missing: dict[tuple[str, int], set[str]] = {}  # instructions that ran, by host and id of a missing program
        self._writer = writer
        self._seen: set[tuple[str, int]] = set()  # a program is searched for once
        self._rows: list[tuple[str, int, str, str]] = []

    def on_window(self, ran: Mapping[str, pl.DataFrame]) -> None:
        """Add the programs of a window to the missing ones: (program, hlo_op) by host."""
        for host, rows in ran.items():
            for (program,), names in rows.group_by("program"):
                key = host, int(program)
                if key not in self._seen:
                    self._seen.add(key)
                    self.missing[key] = {*names["hlo_op"].cast(pl.String)}

    def keep(self, host: str, data: bytes) -> None:
        """Write the missing programs of a host that an XSpace holds."""
        ran = {program: names for (of, program), names in self.missing.items() if of == host}
        for program, (name, proto) in self._find(data, ran).items():
            self._rows.append((host, program, name, self._writer.program(proto)))
            del self.missing[host, program]

    def take(self) -> list[tuple[str, int, str, str]]:
        """Return (host, program, module, file) of the programs that were written since the last call."""
        rows, self._rows = self._rows, []
        return rows


def _processors() -> dict[str, str]:
    """Return the number of processors that this process may use, and of the machine."""
    return {"processors": str(cpu_threads()), "machine_processors": str(psutil.cpu_count() or 1)}
