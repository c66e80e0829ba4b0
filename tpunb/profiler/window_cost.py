"""Estimate the time that profiler windows cost a training, from the steps in them and around them."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

import numpy as np

from tpunb.profiler.limits import LIMITS
from tpunb.step_stats.batch_means import error, means

_PENDING = 20_000  # steps between the request of a window and its reduction


class TimedStep(NamedTuple):
    """A step on the caller's clock, in seconds."""

    kind: str
    start_s: float
    end_s: float
    input_s: float = 0.0  # of it, waiting for input
    other_s: float = 0.0  # of it, in callbacks: no window slows them

    @property
    def seconds(self) -> float:
        """Its time without callbacks."""
        return max(0.0, self.end_s - self.start_s - self.other_s)


class Estimate(NamedTuple):
    """A time lost in seconds, or its share of run time, with a 95 % interval."""

    value: float
    low: float
    high: float


@dataclass
class _Window:
    span_s: float  # from its request to its reduction, without those of the window before
    done_s: float
    before: dict[str, list[float]]
    inside: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    after: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    @property
    def is_complete(self) -> bool:
        """Whether it was followed by enough steps: of one kind, the others may be over."""
        return any(len(self.after[kind]) >= LIMITS.compared_steps for kind in self.inside)


class _Loss(NamedTuple):
    seconds: float
    variance: float
    of_s: float  # time of the steps that were compared


class WindowCosts:
    """Compare the steps in each window, and while it is collected and reduced, with those before and after it."""

    def __init__(self) -> None:
        self._requests: list[float] = []  # of windows that are not reduced
        self._pending: deque[TimedStep] = deque(maxlen=_PENDING)  # steps since the first of them
        self._before: defaultdict[str, deque[float]] = defaultdict(lambda: deque(maxlen=LIMITS.compared_steps))
        self._windows: list[_Window] = []  # that still take steps after them
        self._losses: list[_Loss] = []  # of the others
        self._span_s = 0.0  # of all windows
        self._done_s = -math.inf
        self._untraced = 0
        self.guess = LIMITS.guessed_cost_share
        self._latest: list[_Loss] = []  # of the windows, until they change

    @property
    def pending(self) -> bool:
        """Whether a requested window is not reduced yet."""
        return bool(self._requests)

    @property
    def measured(self) -> bool:
        """Whether enough steps ran outside windows to compare with."""
        return self._untraced >= LIMITS.fewest_compared

    def open(self, requested_s: float) -> None:
        """Record the request of a window."""
        self._requests.append(requested_s)

    def cancel(self, requested_s: float) -> None:
        """Forget a request."""
        if requested_s in self._requests:
            self._requests.remove(requested_s)

    def add(self, step: TimedStep) -> bool:
        """Record a step, in order of time; return whether it is known to have run outside windows."""
        if self._requests and step.end_s > self._requests[0]:
            self._pending.append(step)
            return False
        if step.start_s < self._done_s and self._windows:
            self._windows[-1].inside[step.kind].append(step.seconds)
            return False
        self._add_untraced(step)
        return True

    def close(self, requested_s: float, begin_s: float, done_s: float) -> list[TimedStep]:
        """Record that a requested window was reduced, and return the steps that it may have traced."""
        self.cancel(requested_s)
        begin_s = max(begin_s, self._done_s)
        pending, self._pending = [*self._pending], deque(maxlen=_PENDING)
        for step in pending:
            if step.end_s <= begin_s:  # the source waited for a framework
                self._add_untraced(step)
        window = _Window(max(0.0, done_s - begin_s), done_s, {kind: [*times] for kind, times in self._before.items()})
        self._span_s += window.span_s
        self._done_s = max(self._done_s, done_s)
        self._windows.append(window)
        self._latest.clear()
        inside = [step for step in pending if step.start_s < done_s and step.end_s > begin_s]
        for step in inside:
            window.inside[step.kind].append(step.seconds)
        for step in pending:
            if step.start_s >= done_s and step.end_s > begin_s:
                self.add(step)
        return inside

    def _add_untraced(self, step: TimedStep) -> None:
        self._untraced += 1
        self._before[step.kind].append(step.seconds)
        for window in self._windows:
            if len(after := window.after[step.kind]) < LIMITS.compared_steps and step.start_s >= window.done_s:
                after.append(step.seconds)
                self._latest.clear()

    @property
    def share(self) -> float:
        """The share of windows, with collection and reduction, that is lost: the guess, corrected by the steps."""
        losses = self._compared()
        lost_s, of_s = sum(loss.seconds for loss in losses), sum(loss.of_s for loss in losses)
        return min(0.95, max(0.0, lost_s + self.guess * LIMITS.guess_weight_s) / (of_s + LIMITS.guess_weight_s))

    @property
    def cost(self) -> Estimate:
        """The time lost to all windows; time in them without comparable steps is lost at the same rate."""
        losses, share = self._compared(), self.share
        lost_s, of_s = sum(loss.seconds for loss in losses), sum(loss.of_s for loss in losses)
        rest_s = share * max(0.0, self._span_s - of_s)
        variance = sum(loss.variance for loss in losses)
        if (n := len(losses)) >= LIMITS.fewest_compared:
            # steps of one window may share a disturbance: use the spread of windows
            apart = sum((loss.seconds - lost_s / of_s * loss.of_s) ** 2 for loss in losses)
            variance = max(variance, apart * n / (n - 1))
        lost_s += rest_s
        width_s = math.hypot(LIMITS.interval_errors * math.sqrt(variance), rest_s)
        ends = lost_s, lost_s - width_s, lost_s + width_s
        return Estimate(*(min(self._span_s, max(0.0, end_s)) for end_s in ends))

    def _compared(self) -> list[_Loss]:
        """Return the losses of all windows; those of the last ones change with the steps after them."""
        if not self._latest:
            while self._windows and (len(self._windows) > LIMITS.open_windows or self._windows[0].is_complete):
                self._losses += _losses(self._windows.pop(0))
            self._latest = [loss for window in self._windows for loss in _losses(window)]
        return [*self._losses, *self._latest]


def _losses(window: _Window) -> list[_Loss]:
    """Return what the steps in a window took beyond those around it, if there are enough."""
    seconds = variance = of_s = 0.0
    for kind, inside in window.inside.items():
        before, after = window.before.get(kind, []), window.after[kind]
        if len(before) + len(after) < LIMITS.fewest_compared:
            continue
        longest = 3 * median([*before, *after]) + LIMITS.other_work_s
        before, after, inside = ([s for s in times if s <= longest] for times in (before, after, inside))
        if not inside:
            continue
        traced, around = np.array(inside), np.array([*before, *after])
        change, n = float(traced.mean() - around.mean()), len(inside)
        drift = (np.mean(before) - np.mean(after)) / 2 if before and after else 0.0
        of_mean = max(_squared_error(around), float(drift) ** 2)
        seconds += n * change
        variance += n**2 * (of_mean + (_squared_error(traced) if n > 1 else float(around.var(ddof=1))))
        of_s += float(traced.sum())
    return [_Loss(min(seconds, window.span_s), variance, of_s)] if of_s else []


def _squared_error(times: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    return float(error(means(times), len(times)))
