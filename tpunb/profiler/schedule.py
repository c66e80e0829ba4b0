"""Decide when to request profiler windows, within a budget of profiling overhead."""

from __future__ import annotations

import math
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from numbers import Real
from statistics import median
from typing import Literal, NamedTuple

from tpunb.errors import check_whole
from tpunb.profiler.limits import LIMITS
from tpunb.profiler.window_cost import Estimate, TimedStep, WindowCosts


@dataclass(frozen=True)
class Schedule:
    """When windows are requested.

    With a budget, the default, windows are requested where the steps are: three as soon as steps return in steady time,
    then one every ten seconds, earlier when another kind of step appears, or steps of another pace or input wait. Each
    is requested only once the budget has paid for it: the cost of windows is measured from the steps in them and around
    them. A window covers 10 to 50 steps, 20 until its kind is well sampled; fewer if its trace is large.

    Parameters
    ----------
    window
        Seconds per window; with a budget the maximum, unless 10 steps, at first 20, take longer.
    every
        Seconds from the start of one window to the start of the next; 0 requests them back to back, as in the paper.
    burst
        Number of windows at the start, a few steps apart.
    budget
        Profiling overhead allowed over the whole run: 0.02 is 2 %. It also covers checkpoints that are saved during
        the capture. "auto" allows 10 % of a run of 5 to 20 seconds, 5 % up to a minute and 2 % of a longer one. None
        follows `window` and `every` exactly, but a window of PyTorch ends when its trace is large (docs/capture.md).

    Raises
    ------
    ValueError
        If a parameter is out of its range.

    >>> Schedule.continuous()
    Schedule(window=1.0, every=0.0, burst=0, budget=None)
    """

    window: float = 1.0
    every: float = 10.0
    burst: int = 3
    budget: float | Literal["auto"] | None = "auto"

    def __post_init__(self) -> None:
        self._check("window", self.window, 0.01, LIMITS.longest_window_s, "in [0.01, 60] seconds")
        self._check("every", self.every, 0, math.inf, "0 seconds or more")
        object.__setattr__(self, "burst", check_whole("Schedule", "burst", self.burst, 0))
        if self.budget is not None and self.budget != "auto":
            self._check("budget", self.budget, 0, 1, "in [0, 1], 'auto' or None")

    def _check(self, name: str, value: object, low: float, high: float, domain: str) -> None:
        if isinstance(value, bool) or not isinstance(value, Real) or not low <= float(value) <= high:
            raise ValueError(f"The {name} parameter of Schedule must be {domain}. Got {value!r} instead.")

    @classmethod
    def fixed(cls, window: float = 1.0, every: float = 10.0) -> Schedule:
        """Request windows of this length at this interval, whatever they cost."""
        return cls(window, every, 0, None)

    @classmethod
    def continuous(cls, window: float = 1.0) -> Schedule:
        """Request one window right after another, as in the paper."""
        return cls(window, 0.0, 0, None)

    @classmethod
    def ticks(cls) -> Schedule:
        """Request no windows: steps are recorded by the host clock alone."""
        return cls(1.0, math.inf, 0, None)

    def age_s(self, lost_s: float) -> float:
        """Return the age of the run, in seconds, from which it may have lost this much to windows."""
        if self.budget != "auto":
            return lost_s / max(self.budget or 0.0, 1e-9)
        age_s, ages = 0.0, LIMITS.overhead_by_age
        for (from_s, share), (until_s, _) in zip(ages, [*ages[1:], (math.inf, 0)], strict=True):
            if lost_s > share * from_s:
                age_s = min(lost_s / share, until_s)
        return age_s


class WindowRequest(NamedTuple):
    """The next window: when it is due on the caller's clock, its length, and the reason for it."""

    due_s: float
    seconds: float
    reason: str


class WindowResult(NamedTuple):
    """The outcome of a requested window."""

    requested_s: float
    traced_s: float  # 0 if it failed
    done_s: float  # when it was collected and reduced
    events: int = 0
    full: Mapping[str, int] = {}  # fully traced steps by kind
    new_phase: bool = False  # whether it ended in a phase that no earlier window saw
    undersampled: bool = False  # whether it ended in a phase with few traced steps
    step_s: float = 0.0  # median time of its fully traced steps; 0 without any
    queue_s: float = 0.0  # lag of the devices behind the host


class WindowScheduler:
    """Follow a schedule through one run; safe to call from several threads."""

    def __init__(self, schedule: Schedule, began_s: float) -> None:
        self.schedule = schedule
        self._began_s = began_s
        self._lock = threading.RLock()  # a finalizer of the program's profiler may call in the midst of a method
        self._requested_s = -math.inf  # of the last window
        self._asked: dict[float, float] = {}  # lengths of the windows that are not reduced, by their request
        self._done_s = began_s  # when the last window was collected and reduced
        self._requests = self._answered = 0
        self._windows = 0  # with full steps, or of programs without marks
        self._window_s = began_s  # request time of the last that did not fail
        self._failures = 0  # in a row
        self._last = WindowResult(began_s, 0.0, began_s)
        self._events_per_s = 0.0
        self._overrun = 1.0  # traced time of windows / their length
        self._costs = WindowCosts()
        self.saved_s = 0.0  # seconds spent on checkpointing
        self._times: dict[str, deque[float]] = {}  # of steps by kind, without the first, which compiles
        self._untraced: defaultdict[str, deque[TimedStep]] = defaultdict(lambda: deque(maxlen=LIMITS.current_steps))
        self._rest = 0  # steps since the last window
        self._full: Counter[str] = Counter()
        self._tries: Counter[str] = Counter()  # requests by the kind of the running step
        self._places: Counter[_Place] = Counter()  # full steps by pace and input wait
        self._place_tries: Counter[_Place] = Counter()

    def on_steps(self, steps: Iterable[TimedStep]) -> None:
        """Record completed steps, in order, on the caller's clock."""
        with self._lock:
            for step in steps:
                if step.kind not in self._times:
                    self._times[step.kind] = deque(maxlen=LIMITS.usual_steps)
                    continue
                self._times[step.kind].append(step.end_s - step.start_s)
                if self._costs.add(step):
                    self._untraced[step.kind].append(step)
                    self._rest += 1

    def on_window(self, result: WindowResult) -> None:
        """Record the outcome of a request, after its steps."""
        with self._lock:
            if result.traced_s and not result.events and not result.full:  # late, perhaps, but nothing to reduce
                result = result._replace(done_s=min(result.done_s, result.requested_s + result.traced_s))
            self._done_s, self._rest = result.done_s, 0
            # a window may fail while the one before is reduced; one that waited for its source begins later
            request_s = result.requested_s if result.requested_s in self._asked else next(iter(self._asked), math.inf)
            asked_s = self._asked.pop(request_s, math.inf)
            inside = self._costs.close(request_s, result.requested_s, result.done_s)
            self._failures = 0 if result.traced_s else self._failures + 1
            if not result.traced_s:
                return
            self._last, self._window_s = result, result.requested_s
            self._full.update(result.full)
            self._windows += bool(result.full) or not self._times
            self._answered += 1
            overran = result.traced_s > max(2 * asked_s, asked_s + 1)
            self._overrun = max(1.0, result.traced_s / asked_s * overran, self._overrun / 2)
            if self._times or result.full:  # not while the program compiles
                self._events_per_s = max(result.events / result.traced_s, self._events_per_s / 2)
                of_events = LIMITS.event_cost_s * self._events_per_s
                self._costs.guess = min(LIMITS.guessed_cost_share, LIMITS.least_cost_share + of_events)
            begin_s, end_s = result.requested_s, result.requested_s + result.traced_s
            for kind in {step.kind for step in inside}:
                traced = [s for s in inside if s.kind == kind and s.start_s >= begin_s and s.end_s <= end_s]
                slowdown = self._slowdown(kind, [step.end_s - step.start_s for step in traced])
                self._places.update(_place(kind, s.end_s - s.start_s, s.input_s, slowdown) for s in traced)

    def on_request(self, now_s: float, seconds: float = math.inf, kind: str | None = None) -> None:
        """Record the request of a window, its length, and the kind of the running step."""
        with self._lock:
            self._requested_s = now_s
            self._asked[now_s] = seconds
            self._costs.open(now_s)
            self._requests += 1
            self._tries[kind or ""] += 1
            if (place := self._place_now(kind or "", now_s)) is not None:
                self._place_tries[place] += 1

    def on_cancel(self) -> None:
        """Forget the last request: no window will come of it."""
        with self._lock:
            self._asked.pop(self._requested_s, None)
            self._costs.cancel(self._requested_s)

    def on_saved(self, seconds: float) -> None:
        """Charge the time of a checkpoint to the budget."""
        with self._lock:
            self.saved_s += seconds

    def reset_failures(self) -> None:
        """End the backoff after failed windows: their cause is gone."""
        with self._lock:
            self._failures = 0

    def overhead(self, now_s: float) -> Estimate | None:
        """Return the time lost to windows and checkpoints as a share of the run time without them, with an interval.

        None if there were windows and hardly a step outside them.
        """
        with self._lock:
            if self._requests and not self._costs.measured:
                return None
            lost = [self.saved_s + seconds for seconds in (self._costs.cost if self._requests else (0.0,) * 3)]
            rests = [now_s - self._began_s - seconds for seconds in lost]
            return Estimate(
                *(lost_s / rest_s if rest_s > 0 else 0.0 for lost_s, rest_s in zip(lost, rests, strict=True))
            )

    def next_window(self, now_s: float, kind: str | None = None, running_s: float = 0.0) -> WindowRequest:
        """Return the next window, as planned `running_s` after a step of `kind` began; call again before it is due."""
        every = self.schedule.every
        with self._lock:
            if self.schedule.budget is None:
                seconds, reason = self._within_limits(self.schedule.window), "evenly" if every else "continuous"
                start_s = self._requested_s + every if self._requests else self._began_s
                due_s = math.inf if math.isinf(every) else start_s
            else:
                seconds = self.schedule.window
                due_s, reason = self._most_informative(kind, now_s, running_s)
                if due_s <= now_s:
                    due_s, seconds = self._affordable(self._seconds(kind, reason), reason, now_s, kind)
            if self._failures:  # wait 0.2 s, then twice as long each time, up to 5 s
                due_s = max(due_s, self._done_s + min(5.0, 0.2 * 2.0 ** min(self._failures - 1, 10)))
            return WindowRequest(due_s, seconds, reason)

    def _most_informative(self, kind: str | None, now_s: float, running_s: float) -> tuple[float, str]:
        """Return when a window is most informative, and the reason."""
        evenly_s = max(now_s, self._window_s + self.schedule.every)
        if not self._requests and kind is None and not self._times:  # unmarked or remote steps, or none yet
            return self._began_s + LIMITS.unmarked_start_s, "start"
        if self._costs.pending:
            return math.inf, "evenly"
        if kind is None and self._times:  # between steps
            return evenly_s, "evenly"
        if kind is not None and not self._is_steady(kind, running_s):  # it compiles or stalls: one window is enough
            return (evenly_s if self._requested_s < now_s - running_s else math.inf), "evenly"
        rested = self._rest >= LIMITS.current_steps or now_s >= self._done_s + LIMITS.rest_s
        running = bool(self._times or self._full)  # remote steps are known from windows only
        if self._windows < self.schedule.burst and self._answered < 2 * self.schedule.burst:
            return (now_s if running and rested else evenly_s), "start"
        if kind is not None and (rested or not self._full[kind]) and self._is_new(kind, now_s):
            return now_s, "under-sampled"
        if rested and self._last.new_phase:
            return now_s, "new phase"
        if rested and self._last.undersampled:
            return now_s, "under-sampled"
        return evenly_s, "evenly"

    def _affordable(self, seconds: float, reason: str, now_s: float, kind: str | None) -> tuple[float, float]:
        """Return when the budget has paid for a window, and its length: shorter if that is paid for now."""
        if not self._requests or (reason == "start" and self.schedule.budget != "auto"):
            return now_s, seconds
        lost_s = self.saved_s + self._costs.cost.value
        new = kind is not None and (self._full[kind] < LIMITS.enough_steps or reason == "under-sampled")
        share = LIMITS.budget_share_new if new else LIMITS.budget_share

        def paid_s(length_s: float) -> float:
            return self._began_s + self.schedule.age_s((lost_s + self._cost(length_s)) / share)

        lengths = [seconds]
        if kind is not None and new:
            one_step_s = (LIMITS.cut_steps + 1) * self._step_s(kind)
            shortest_s = max(LIMITS.shortest_window_s, one_step_s, 2 * self._last.queue_s)
            if not self._events_per_s:  # of long steps a part shows what a window costs
                shortest_s = min(shortest_s, self.schedule.window)
            lengths += [s for s in (seconds / 2, seconds / 4, shortest_s) if seconds > s >= shortest_s]
        length_s = next((length_s for length_s in lengths if paid_s(length_s) <= now_s), lengths[-1])
        return max(now_s, paid_s(length_s)), length_s

    def _is_steady(self, kind: str, running_s: float) -> bool:
        """Return whether steps of a kind return in steady time, and the running one is not stalled."""
        times = [*self._times.get(kind, [])]
        last = times[-LIMITS.steady_steps :]
        if len(last) < LIMITS.steady_steps:
            return False
        if len(times) < LIMITS.varied_steps and max(last) > LIMITS.steady_ratio * min(last):
            return False
        usual_s: float = median(times[-LIMITS.current_steps :])
        return running_s <= usual_s + max((LIMITS.stalled_ratio - 1) * usual_s, LIMITS.stalled_s)

    def _is_new(self, kind: str, now_s: float) -> bool:
        """Return whether few steps like the running ones have been traced."""
        if self._full[kind] < LIMITS.enough_steps:  # some steps are too long for any window
            return self._full[kind] > 0 or self._tries[kind] < LIMITS.kind_tries
        if (place := self._place_now(kind, now_s)) is None:
            return False
        near = _near(place)
        steps, tries = (sum(counts[p] for p in near) for counts in (self._places, self._place_tries))
        return steps < LIMITS.place_steps and tries < LIMITS.kind_tries

    def _slowdown(self, kind: str, traced_s: list[float]) -> float:
        """Return how much longer traced steps of a kind took than those just before."""
        before_s = [step.end_s - step.start_s for step in self._untraced[kind]]
        if len(before_s) < LIMITS.steady_steps or not traced_s:
            return 1 / (1 - self._costs.share)
        return max(1.0, median(traced_s) / max(median(before_s), 1e-7))

    def _place_now(self, kind: str, now_s: float) -> _Place | None:
        """Return the pace and input wait of the last steps of a kind outside windows; None for less than three."""
        recent = [*self._untraced[kind]]
        if len(recent) < LIMITS.steady_steps:
            return None
        current = [step for step in recent if step.end_s > now_s - LIMITS.current_s][-LIMITS.current_steps :] or recent
        recent = current if len(current) >= LIMITS.steady_steps else recent[-LIMITS.steady_steps :]
        seconds = median(step.end_s - step.start_s for step in recent)
        return _place(kind, seconds, median(step.input_s for step in recent))

    def _step_s(self, kind: str | None) -> float:
        """Return the usual time of a step, in which a rare stall counts as ten steps."""
        times = self._times.get(kind or "") or max(self._times.values(), key=len, default=())
        if not times:
            return self._last.step_s
        usual_s = median(times)
        return sum(min(time_s, 10 * usual_s) for time_s in times) / len(times)

    def _seconds(self, kind: str | None, reason: str) -> float:
        """Return the length of the next window that follows a budget."""
        seconds = self.schedule.window if self._times else min(self.schedule.window, LIMITS.blind_window_s)
        if step_s := self._step_s(kind):
            missing = LIMITS.enough_steps - self._full[kind or ""]
            lost = self._costs.share if missing <= 0 else max(self._costs.share, LIMITS.least_lost_share)
            step_s /= 1 - lost
            fewest_s = (LIMITS.cut_steps + (missing if missing > 0 else LIMITS.further_steps)) * step_s
            one_step_s = (LIMITS.cut_steps + 1) * step_s
            longest_s = LIMITS.longest_window_s if self._events_per_s else max(2 * seconds, one_step_s)
            most_s = LIMITS.longest_evenly_steps * step_s if reason == "evenly" else fewest_s
            seconds = min(longest_s, max(fewest_s, min(seconds, max(LIMITS.shortest_window_s, most_s))))
        # work that the steps of a window launch must run in it
        return self._within_limits(max(seconds, 2 * self._last.queue_s))

    def _within_limits(self, seconds: float) -> float:
        if self._events_per_s:
            seconds = min(seconds, LIMITS.most_events / 2 / self._events_per_s)
        return max(0.01, min(seconds, LIMITS.longest_window_s) / self._overrun)

    def _cost(self, seconds: float) -> float:
        """Return the seconds that a window will cost with collection and reduction."""
        last, rest_s = self._last, seconds / 2
        if last.traced_s:
            rest_s = (last.done_s - last.requested_s - last.traced_s) * max(1.0, seconds / last.traced_s)
        return (seconds + rest_s) * self._costs.share


_Place = tuple[str, int, int]
"""Kind, pace and input wait of a step: logarithm of its time to base 2, in quarters; quarters of it spent waiting."""


def _place(kind: str, seconds: float, input_s: float, slowdown: float = 1.0) -> _Place:
    seconds = max(seconds, 1e-7)
    return kind, round(4 * math.log2(seconds / slowdown)), round(4 * min(1.0, input_s / seconds))


def _near(place: _Place) -> list[_Place]:
    """Return the places of steps that are less than 1.5 times faster or slower and wait for a similar share."""
    kind, pace, wait = place
    return [(kind, pace + a, wait + b) for a in range(-2, 3) for b in range(-1, 2)]
