"""Notice that a training stands still: no step ends, and nothing that is known to take long is at work."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from tpunb.profiler.limits import LIMITS
from tpunb.profiler.stacks import RawFrame, stacks
from tpunb.profiler.step_clock import StepClock
from tpunb.step_stats.sample_places import PACKAGES
from tpunb.text import cut, plain
from tpunb.training.program import home_of, is_user_code

_WORKING = {None, "program startup", "checkpoint save", "checkpoint restore", "evaluation", "tuning", "resuming"}
"""Accounts, None in code of the program, in which one that computes, reads or writes may be for long."""

_KERNEL = "ipykernel"  # in the files of a notebook's kernel


class Work(NamedTuple):
    """What a process and its children have done so far."""

    process_s: float  # of processors, without the threads of the capture
    children_s: float  # of those that run now
    io_bytes: int  # read and written


class Standstill(NamedTuple):
    """A time in which no step ended."""

    since_ns: int  # the last sign of progress, by the monotonic clock
    step: int  # that was the last
    recorded_ns: int  # until when it is recorded


class StandingWatch:
    """Look each second whether the training continues; `record` is called with each stretch in which it does not.

    Parameters
    ----------
    clock
        The clock of steps.
    record
        Called with begin and end of a stretch by the monotonic clock, and with what `seen` returns, None once the
        training continues.
    measure
        Returns what the process has done so far.
    now
        The monotonic clock, in nanoseconds.
    """

    def __init__(
        self,
        clock: StepClock,
        record: Callable[[int, int, dict[str, Any] | None], None],
        measure: Callable[[], Work] | None = None,
        now: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._clock, self._record, self._now = clock, record, now
        self._children = Children()
        self._measure = measure or self._children.work
        self._token: tuple[Any, ...] = ()
        self._since_ns = self._worked_ns = now()
        self._works: list[tuple[int, Work]] = []  # of the last seconds
        self._usual_ns: dict[tuple[Any, ...], int] = {}  # longest time that was spent at a place and ended
        self._place: tuple[Any, ...] = ()
        self.current: Standstill | None = None

    def look(self) -> None:
        """Look once."""
        clock, now_ns = self._clock, self._now()
        if (token := (clock.count, signalled_ns := clock.signalled_ns)) != self._token:
            self._go_on(now_ns)
            self._token, self._since_ns, self._works = token, min(now_ns, signalled_ns or now_ns), []
            return
        elapsed_ns = now_ns - self._since_ns
        if elapsed_ns < LIMITS.standing_s * 1e9 / 2:
            return
        self._children.look()
        if (standing := self.current) is not None:
            rest_s = LIMITS.standing_look_s if elapsed_ns < LIMITS.standing_rare_s * 1e9 else LIMITS.standing_rest_s
            if now_ns - standing.recorded_ns >= rest_s * 1e9:
                self.current = standing._replace(recorded_ns=now_ns)
                self._record(standing.recorded_ns, now_ns, self.seen(now_ns))
            return
        self._works = [*self._works[-LIMITS.standing_works :], (now_ns, self._measure())]
        works, limit_ns = self._limit_ns()
        if works and elapsed_ns < limit_ns and len(self._works) > 1:
            self._worked_ns = now_ns
        since_ns = self._since_ns if works else max(self._since_ns, self._worked_ns)
        if now_ns - since_ns < limit_ns:
            return
        place = None if clock.has_lost_its_thread else _place(clock)
        if place is None or elapsed_ns < 2 * self._usual_ns.get(place, 0):
            return
        self._place = place
        self.current = Standstill(since_ns, clock.count - 1, now_ns)
        self._record(since_ns, now_ns, self.seen(now_ns))

    @property
    def seconds(self) -> float | None:
        """For how long no step has ended, None if the training continues."""
        standing = self.current
        return None if standing is None else (self._now() - standing.since_ns) / 1e9

    def end(self) -> None:
        """Record what is left of a standstill as the run ends."""
        if (standing := self.current) is not None:
            self.current = None
            self._record(standing.recorded_ns, self._now(), self.seen(self._now()))

    def _go_on(self, now_ns: int) -> None:
        """Learn how long the program may be at a place without a step."""
        if (standing := self.current) is not None:
            self.current = None
            self._usual_ns[self._place] = max(self._usual_ns.get(self._place, 0), now_ns - self._since_ns)
            self._record(standing.recorded_ns, now_ns, None)

    def _limit_ns(self) -> tuple[bool, float]:
        """Return whether the program is at work that may last, and how long no step may end."""
        clock = self._clock
        shortest_ns = max(LIMITS.standing_s * 1e9, LIMITS.standing_steps * clock.usual_ns)
        process, children, io_bytes = self._shares()
        children_work = children >= LIMITS.standing_busy
        works = children_work or process >= LIMITS.standing_busy or io_bytes >= LIMITS.standing_io
        may_last = clock.account in _WORKING or (clock.account == "data loading" and children_work)
        if clock.count < LIMITS.standing_first:  # what comes first may take long: it compiles, or loads
            may_last, works = True, works or clock.progress().computes
        if works and may_last:
            return True, max(shortest_ns, LIMITS.standing_working_s * 1e9)
        return False, shortest_ns

    def _shares(self) -> tuple[float, float, float]:
        """Return processors of the process and its children, and bytes a second, over the last seconds."""
        if len(self._works) < 2:
            return 1.0, 0.0, 0.0
        (first_ns, first), (last_ns, last) = self._works[0], self._works[-1]
        seconds = max((last_ns - first_ns) / 1e9, 1e-3)
        return (
            (last.process_s - first.process_s) / seconds,
            (last.children_s - first.children_s) / seconds,
            (last.io_bytes - first.io_bytes) / seconds,
        )

    def seen(self, now_ns: int) -> dict[str, Any]:
        """Return what is seen of a standstill: stacks of all threads, innermost call first, and the children."""
        since_ns = self._since_ns if self.current is None else self.current.since_ns
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        found = {thread: stack for thread, stack in _stacks().items() if not names.get(thread, "").startswith("tpunb-")}
        order = sorted(found, key=lambda thread: thread != self._clock.thread)
        process, children, _ = self._shares()
        now_s = time.time()
        return {
            "since": _iso(now_s - (now_ns - since_ns) / 1e9),
            "seen": _iso(now_s),
            "seconds": round((now_ns - since_ns) / 1e9, 1),
            "step": self._clock.count - 1,
            "account": self._clock.account,
            "processors": round(process, 2),
            "processors_of_children": round(children, 2),
            "threads": [
                {
                    "name": cut(plain(names.get(thread, "?")), 80),
                    "trains": thread == self._clock.thread,
                    "innermost": _home(found[thread]),
                    "frames": [_frame(frame) for frame in found[thread][: LIMITS.standing_frames]],
                }
                for thread in order[: LIMITS.most_threads]
            ],
            "children": self._children.described()[: LIMITS.most_threads],
        }


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def _home(stack: list[RawFrame]) -> str:
    """Return whose the innermost function is: of the "program", of "python", or of a "library", which may wait."""
    for file in (frame.f_code.co_filename for frame in stack):
        if is_user_code(file):
            return "program"
        if (home := home_of(file)) != "tpunb":
            return "python" if home == "python" and not PACKAGES.search(file) else "library"
    return "python"


def _frame(frame: RawFrame) -> str:
    code = frame.f_code
    return cut(plain(f"{code.co_filename}:{frame.f_lineno} in {code.co_qualname}"), LIMITS.longest_name)


def _stacks() -> dict[int, list[RawFrame]]:
    """Return the stacks of all threads; none without an interpreter lock: those of running ones cannot be read."""
    return stacks() if getattr(sys, "_is_gil_enabled", lambda: True)() else {}


def _place(clock: StepClock) -> tuple[Any, ...] | None:
    """Return where the thread that trains is: the account, and the innermost function of the program.

    None between cells of a notebook, where its kernel waits for the next.
    """
    codes = [frame.f_code for frame in _stacks().get(clock.thread, ())]
    function = next((code for code in codes if is_user_code(code.co_filename)), None)
    if function is None and clock.account is None and any(_KERNEL in code.co_filename for code in codes):
        return None
    return clock.account, function


class Children:
    """The child processes of a process, this one without another, and how those ended that did."""

    def __init__(self, process: psutil.Process | None = None) -> None:
        self._process = process or psutil.Process()
        self._running: dict[int, tuple[psutil.Process, str]] = {}
        self._ended: dict[int, str] = {}

    def look(self) -> None:
        """Look which children run, and which have ended since the last look."""
        with suppress(psutil.Error, OSError):
            present = {child.pid: child for child in self._process.children(recursive=True)}
            for pid, child in present.items():
                if pid not in self._running:
                    self._running[pid] = child, _name(child)
            for pid in [*self._running]:
                if (how := _ended(pid, present.get(pid))) is not None:
                    _, name = self._running.pop(pid)
                    self._ended[pid] = f"{name}: {how}"

    def work(self) -> Work:
        """Return what this process and its children have done so far."""
        process, children, io_bytes = 0.0, 0.0, 0
        with suppress(psutil.Error, OSError):
            ours = {each.native_id for each in threading.enumerate() if each.name.startswith("tpunb-")}
            threads = self._process.threads()
            process = sum(each.user_time + each.system_time for each in threads if each.id not in ours)
        with suppress(psutil.Error, OSError, AttributeError):  # not everywhere
            io = self._process.io_counters()
            io_bytes = io.read_chars + io.write_chars
        for child, _ in [*self._running.values()]:
            with suppress(psutil.Error, OSError):
                times = child.cpu_times()
                children += times.user + times.system
        return Work(process, children, io_bytes)

    def described(self) -> list[dict[str, Any]]:
        """Return the children that have ended, and those that run, with their state."""
        rows = [
            {"process": pid, "name": how.rpartition(": ")[0], "state": how.rpartition(": ")[2]}
            for pid, how in self._ended.items()
        ]
        for pid, (child, name) in [*self._running.items()]:
            with suppress(psutil.Error, OSError):
                rows.append({"process": pid, "name": name, "state": child.status()})
        return rows


def _name(process: psutil.Process) -> str:
    """Return the name of a process, of a script its own: other words may be secret."""
    name = "process"
    with suppress(psutil.Error, OSError):
        name = process.name()
        words = process.cmdline()[1:]
        name = Path(words[0]).name if words and not words[0].startswith("-") else name
    return cut(plain(name), 80)


def _ended(pid: int, child: psutil.Process | None) -> str | None:
    """Return how a child has ended, None if it runs."""
    with suppress(psutil.Error, OSError):
        if child is not None and child.status() != psutil.STATUS_ZOMBIE:
            return None
    with suppress(OSError, AttributeError):  # not a child of this process itself, or waited for
        result = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if result is not None:
            killed = result.si_code in (os.CLD_KILLED, os.CLD_DUMPED)
            return f"ended with signal {result.si_status}" if killed else f"ended with code {result.si_status}"
    return "ended"
