"""When work that was launched on a device is done, which may be long after its launch has returned.

One thread waits for it, in order of launch, and wakes at most a hundred times a second. Of shorter steps only some are
waited for; the others are estimated from these.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from tpunb.instrument.sink import Result
from tpunb.profiler.limits import LIMITS
from tpunb.step_stats.step_fold import BY_THEN, UNTIL_THEN


@dataclass(eq=False, slots=True)
class Work:
    """The work of a launch; of a superseded one, a later launch of the same step has more."""

    launched_ns: int
    result: Result | None
    done_ns: int | None = None
    by_ns: int | None = None  # at the latest, if it is not known when it was done
    settled: bool = False  # whether no more will be known
    superseded: bool = False

    @property
    def runs(self) -> bool:
        """Whether it is not done yet, as far as is known: it may be long before it is settled."""
        result = self.result
        if self.settled or self.by_ns is not None or result is None:
            return False
        with suppress(Exception):  # deleted: not known
            return not result.is_ready()
        return True


@dataclass(eq=False)
class InFlight:
    """Find out when work is done, in a thread that begins with the first launch."""

    clock: Callable[[], int] = time.monotonic_ns
    _queue: deque[Work] = field(default_factory=deque)
    _unfinished: deque[Work] = field(default_factory=deque)  # of the queue and taken from it, in the same order
    _launched: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _closed: bool = False
    # takes when work was launched, when it was seen done, and `UNTIL_THEN` or `BY_THEN`
    on_done: Callable[[int, int, str], object] = lambda *_: None

    def watch(self, result: Result | None, launched_ns: int) -> Work:
        """Return the work of a launch; it settles once it is done, at once if it is done already."""
        work = Work(launched_ns, result)
        with suppress(Exception):  # deleted already: `_wait` finds that too
            if result is None or result.is_ready():
                work.done_ns, work.result, work.settled = launched_ns, None, True
                if result is not None:
                    self.on_done(launched_ns, launched_ns, UNTIL_THEN)
                return work
        if self._closed:
            work.result, work.settled = None, True
            return work
        while self._unfinished and self._unfinished[0].settled:
            self._unfinished.popleft()
        self._unfinished.append(work)
        self._queue.append(work)
        if not self._launched.is_set():  # which takes a lock
            self._launched.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="tpunb-in-flight", daemon=True)
            try:
                self._thread.start()
            except RuntimeError:  # too many: what is in flight stays unknown
                self.close()
                self._run()
        return work

    def returned(self, now_ns: int) -> None:
        """Record that the program has waited for a result itself: all that is ready was done by now.

        The thread here finds out only once it gets the interpreter lock, milliseconds later if the program computes.
        """
        with suppress(Exception):  # of a deleted result: `_wait` finds that too
            while self._unfinished:
                work = self._unfinished[0]
                if not work.settled and (result := work.result) is not None:
                    if not result.is_ready():
                        break
                    work.by_ns = work.by_ns or now_ns
                self._unfinished.popleft()

    def close(self) -> None:
        """Wait for nothing more; what is in flight stays unknown."""
        self._closed = True
        self._launched.set()

    def _run(self) -> None:
        while not self._closed:
            self._launched.wait()
            self._launched.clear()  # before the queue is read: what is launched from now on is seen in the next turn
            begun_ns = self.clock()
            while self._queue and not self._closed:
                waited = self._wait(self._queue.popleft())
                if waited and self.clock() - begun_ns < LIMITS.watch_rest_s * 1e9:  # short steps: leave some out
                    time.sleep(LIMITS.watch_rest_s)
                begun_ns = self.clock()
        while self._queue:
            work = self._queue.popleft()
            work.result, work.settled = None, True

    def _wait(self, work: Work) -> bool:
        """Settle work; return whether it had to be waited for."""
        waited, result = False, work.result
        # what is deleted, or donated to the next step, is not known; what failed, the program finds itself
        with suppress(Exception):
            if not work.superseded and result is not None:
                waited = not result.is_ready()
                if waited:
                    result.block_until_ready()
                    now_ns = self.clock()
                    work.done_ns = min(now_ns, work.by_ns or now_ns)
                else:
                    work.by_ns = work.by_ns or self.clock()
                by_then = work.done_ns is None
                self.on_done(work.launched_ns, work.done_ns or work.by_ns or 0, BY_THEN if by_then else UNTIL_THEN)
        work.result, work.settled = None, True
        return waited
