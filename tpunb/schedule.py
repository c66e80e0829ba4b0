"""When a capture asks for windows: a budget of slow-down, spent where a window teaches most.

A `Schedule` is what the caller wishes; a `Planner` follows it through one run. It is told of steps and windows as they
end, by a clock that is the caller's, and answers when the next window is due, how long it lasts, and why.
"""

from __future__ import annotations

import math
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from numbers import Real
from statistics import median
from typing import NamedTuple

ENOUGH = 20
"""Steps that a window holds at least, and that are seen in full before a kind of step counts as known."""

LONGEST_S = 60.0
"""What a profiler service grants a window at most."""

_MOST_EVENTS = 1_000_000  # a service drops what comes after
_STEPS = 50  # of a window that follows a budget: its cost goes with its length, what it teaches hardly
_EDGES = 2  # steps that a window cuts, one at each end
_TRIES = 3  # windows without one whole step of a kind, before it is left alone
_SHORTEST_S = 0.1  # below it the window costs more than it watches
_BLIND_S = 0.25  # of a window before any step has ended: more would be compiling, or more steps than teach anything
_GUESS = 1.2  # slow-down of a watched step, until it is measured: a small model on a shared CPU
_PACE = 1.5  # a step this many times slower or faster than any that was watched is another kind of step
_MEASURED = 3  # times, before a slow-down is told
_RECENT = 50  # steps that tell how long a step takes
_NOW = 10  # steps that tell how long it takes now


@dataclass(frozen=True)
class Schedule:
    """When windows are asked for.

    With a budget, the default, three windows follow one another as soon as steps run; then one is asked for every ten
    seconds, sooner when the run does something that no window has seen yet, and each only once the budget has paid
    for it: what windows cost is measured on the steps in them and around them. A window is as short as 50 steps
    allow, and as long as 20 need.

    Parameters
    ----------
    window
        Seconds a window watches; with a budget, at most, unless 20 steps take longer.
    every
        Seconds from one window's beginning to the next's; 0 asks back to back, as the paper did.
    burst
        Windows in a row at the beginning.
    budget
        By how much the windows may slow the whole run: 0.02 is 2 %. Checkpoints that are saved meanwhile are paid from
        it too. None follows `window` and `every` to the letter.

    Raises
    ------
    ValueError
        When a parameter is out of its range.

    >>> Schedule.continuous()
    Schedule(window=1.0, every=0.0, burst=0, budget=None)
    """

    window: float = 1.0
    every: float = 10.0
    burst: int = 3
    budget: float | None = 0.02

    def __post_init__(self) -> None:
        self._check("window", self.window, 0.01, LONGEST_S, "in [0.01, 60] seconds")
        self._check("every", self.every, 0, math.inf, "0 seconds or more")
        if isinstance(self.burst, bool) or not isinstance(self.burst, int) or self.burst < 0:
            raise ValueError(
                f"The burst parameter of Schedule must be an int of 0 or more. Got {self.burst!r} instead."
            )
        if self.budget is not None:
            self._check("budget", self.budget, 0, 1, "in [0, 1] or None")

    def _check(self, name: str, value: object, low: float, high: float, words: str) -> None:
        if isinstance(value, bool) or not isinstance(value, Real) or not low <= float(value) <= high:
            raise ValueError(f"The {name} parameter of Schedule must be {words}. Got {value!r} instead.")

    @classmethod
    def fixed(cls, window: float = 1.0, every: float = 10.0) -> Schedule:
        """Ask for a window of this length this often, whatever it costs."""
        return cls(window, every, 0, None)

    @classmethod
    def continuous(cls, window: float = 1.0) -> Schedule:
        """Ask for one window right after another, as the paper did."""
        return cls(window, 0.0, 0, None)

    @classmethod
    def ticks(cls) -> Schedule:
        """Ask for no window at all: every step is noted by the clock alone."""
        return cls(1.0, math.inf, 0, None)


class Ask(NamedTuple):
    """The next window: when it is due, on the caller's clock, how long it watches, and why."""

    due_s: float
    seconds: float
    why: str


class Seen(NamedTuple):
    """What became of a window that was asked for."""

    asked_s: float
    watched_s: float  # 0 for one that failed
    done_s: float  # when it was collected and reduced
    events: int = 0
    full: Mapping[str, int] = {}  # steps seen in full, by their mark
    new_phase: bool = False  # whether it ended in a phase that no window before it saw
    scarce: bool = False  # whether it ended in a phase of which hardly a step was seen yet
    step_s: float = 0.0  # median of the steps it saw in full; 0 for none
    queue_s: float = 0.0  # by how much the devices lagged behind the host


class Planner:
    """Follows a schedule through one run. Several threads may tell and ask.

    Parameters
    ----------
    schedule
        What the caller wishes.
    began_s
        When the run began, on the caller's clock.
    """

    def __init__(self, schedule: Schedule, began_s: float) -> None:
        self.schedule = schedule
        self._began_s = began_s
        self._lock = threading.RLock()  # a finalizer of the program's own profiler may forgive in the midst of it
        self._asked_s = -math.inf  # when the last window was asked for
        self._until_s = began_s  # when the last one, and its reduction, was done
        self._asks = 0
        self._came = 0
        self._came_s = began_s  # when the last window that came was asked for
        self._failures = 0
        self._last = Seen(began_s, 0.0, began_s)
        self._spans: deque[tuple[float, float]] = deque(maxlen=8)  # when windows watched and were reduced
        self._times: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=_RECENT))  # of steps, by mark
        self._outside: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=_RECENT))  # of those unwatched
        # of those that the last windows watched
        self._inside: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=4 * _RECENT))
        self._unmeasured: list[tuple[str, float]] = []  # step times in windows, by mark, one a window
        self._ratios: deque[float] = deque(maxlen=15)  # slow-downs by a window
        self._saved_s = 0.0  # by checkpoints
        self._watched_s = 0.0  # by all windows, with their collection and reduction
        self._full: Counter[str] = Counter()
        self._tries: Counter[str] = Counter()  # windows asked for while a mark ran
        self._paces: dict[str, list[float]] = defaultdict(list)  # step times at which a window watched, by mark
        self._mark: str | None = None  # of the last step that ended

    def tell_steps(self, steps: Iterable[tuple[str, float, float]]) -> None:
        """Hear of steps that ended: (mark, start, end), in seconds of the caller's clock."""
        with self._lock:
            for mark, start_s, end_s in steps:
                self._mark = mark
                now = end_s > self._asked_s >= self._until_s  # a window is under way
                watched = now or any(begin < end_s and start_s < end for begin, end in self._spans)
                self._times[mark].append(end_s - start_s)
                (self._inside if watched else self._outside)[mark].append(end_s - start_s)
            for mark, time_s in [*self._unmeasured]:
                # the first windows are measured by the steps after them: before them there were none
                if len(outside := self._outside[mark]) >= _NOW:
                    self._ratios.append(time_s / max(median(outside), 1e-9))
                    self._unmeasured.remove((mark, time_s))

    def tell_window(self, seen: Seen) -> None:
        """Hear what became of the window that was asked for last; of its steps first."""
        with self._lock:
            if seen.watched_s:
                self._last = seen
            done_s, self._until_s = self._until_s, seen.done_s
            self._failures = 0 if seen.watched_s else self._failures + 1
            self._unmeasured += [(mark, median(times)) for mark, times in self._inside.items() if len(times) >= 3]
            del self._unmeasured[:-_RECENT]
            self._inside.clear()
            self._full.update(seen.full)
            for mark in seen.full:
                if times := [*(self._outside[mark] or self._times[mark])][-_NOW:]:
                    self._paces[mark] = [*self._paces[mark], median(times)][-_RECENT:]
            if seen.watched_s:
                self._came += 1
                self._came_s = seen.asked_s
                self._spans.append((seen.asked_s, seen.done_s))
                # one is reduced while the next one watches
                self._watched_s += max(0.0, seen.done_s - max(seen.asked_s, done_s))

    def tell_asked(self, now_s: float, mark: str | None = None) -> None:
        """Hear that a window is being asked for, and the mark of the step that runs."""
        with self._lock:
            self._asked_s = now_s
            self._asks += 1
            self._tries[mark or ""] += 1

    def tell_saved(self, seconds: float) -> None:
        """Hear that saving a checkpoint took so long: it is paid from the same budget."""
        with self._lock:
            self._saved_s += seconds

    @property
    def saved_s(self) -> float:
        """Seconds that saving checkpoints took."""
        return self._saved_s

    def forgive(self) -> None:
        """Hear that what made windows fail is over."""
        with self._lock:
            self._failures = 0

    def overhead(self, now_s: float) -> float | None:
        """Return by how much windows and checkpoints have slowed the run so far, as a share of its time without them.

        None until the slow-down was measured a few times: steps inside windows beside steps outside.
        """
        with self._lock:
            if self._asks and len(self._ratios) < _MEASURED:
                return None
            rest_s = now_s - self._began_s - self._spent_s
            return self._spent_s / rest_s if rest_s > 0 else 0.0

    def ask(self, now_s: float, mark: str | None = None) -> Ask:
        """Return the next window, as things stand; ask again before it is due.

        Parameters
        ----------
        now_s
            The caller's clock.
        mark
            Of the step that runs now, if there is one.
        """
        with self._lock:
            seconds = self._seconds(mark)
            if self._budget is None:
                due_s = self._asked_s + self.schedule.every if self._asks else self._began_s
                due_s = math.inf if math.isinf(self.schedule.every) else due_s
                return Ask(self._after_failures(due_s), seconds, "evenly" if self.schedule.every else "continuous")
            due_s, why = self._wish(mark, now_s)
            paid_s = self._began_s + (self._spent_s + self._cost(seconds)) / max(self._budget, 1e-9)
            if why != "start":
                due_s = max(due_s, paid_s)
            return Ask(self._after_failures(due_s), seconds, why)

    @property
    def _budget(self) -> float | None:
        return self.schedule.budget

    def _wish(self, mark: str | None, now_s: float) -> tuple[float, str]:
        """Return when a window would teach most, and why."""
        evenly_s = self._came_s + self.schedule.every
        if self._came < self.schedule.burst:
            # what runs before the first step is mostly tracing and compiling: one window of that is enough
            running = not self._asks or bool(self._times or self._full)  # of a remote worker only windows tell
            return (now_s if running else evenly_s), "start"
        if self._last.new_phase:
            return now_s, "new phase"
        if self._last.scarce or (mark is not None and self._is_new(mark)):
            return now_s, "under-sampled"
        return evenly_s, "evenly"

    def _is_new(self, mark: str) -> bool:
        """Say whether steps like those that run now were hardly seen yet."""
        recent = [*self._outside[mark]][-_NOW:]
        if self._full[mark] < ENOUGH:
            return self._full[mark] > 0 or self._tries[mark] < _TRIES  # some are too long for any window
        if len(recent) < _NOW:
            return False
        pace = median(recent)
        return all(max(pace, one) > _PACE * min(pace, one) for one in self._paces[mark])

    def _seconds(self, mark: str | None) -> float:
        if self._budget is None:
            return self.schedule.window
        seconds = min(self.schedule.window, math.inf if self._times else _BLIND_S)
        steps = self._times.get(mark or "") or self._times.get(self._mark or "")
        if step_s := median(steps) if steps else self._last.step_s:
            seconds = max((ENOUGH + _EDGES) * step_s, min(seconds, max(_SHORTEST_S, _STEPS * step_s)))
        # work that a window's steps launch must still run in it
        seconds = max(seconds, 2 * self._last.queue_s)
        if self._last.watched_s and self._last.events:
            seconds = min(seconds, _MOST_EVENTS / 2 / self._last.events * self._last.watched_s)
        return max(0.01, min(seconds, LONGEST_S))

    @property
    def _spent_s(self) -> float:
        return self._saved_s + self._watched_s * self._share

    @property
    def _share(self) -> float:
        """The part of a watched time by which the run was slowed: 1 less the inverse of the slow-down."""
        if len(self._ratios) < _MEASURED:  # one lucky measurement is not to make windows free
            return 1.0 - 1.0 / max(_GUESS, *self._ratios, 0.0)
        return 1.0 - 1.0 / max(float(median(self._ratios)), 1.0)

    def _cost(self, seconds: float) -> float:
        """Return by how many seconds a window will slow the run, collection and reduction included."""
        last = self._last
        stretch = (last.done_s - last.asked_s) / last.watched_s if last.watched_s else 1.5
        return seconds * max(1.0, min(stretch, 10.0)) * self._share

    def _after_failures(self, due_s: float) -> float:
        """Put a window off after others that failed: 0.2 s, then twice as long, up to 5 s."""
        if not self._failures:
            return due_s
        return max(due_s, self._until_s + min(5.0, 0.2 * 2.0 ** min(self._failures - 1, 10)))
