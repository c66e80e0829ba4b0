"""Feed what frameworks are asked to do, as events, to the fold of steps, and its steps to the clock, live.

The thread that trains only notes an event; the threads that record fold it as they take steps. In windows alone, where
a profiler may have to begin or end between two steps, the thread that trains folds each at once.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Hashable
from contextlib import suppress
from functools import wraps
from threading import RLock, get_ident
from time import monotonic_ns
from typing import Any

from tpunb.instrument.keras import LIBRARY, keras_runs
from tpunb.instrument.sink import END_OF_DATA, Holds, Result, Signature, What
from tpunb.profiler.limits import LIMITS
from tpunb.profiler.step_clock import OpenStep, StepClock, StepRecord
from tpunb.signals import Spent
from tpunb.step_stats.batch_size import Size
from tpunb.step_stats.step_fold import LOOP_CALLS, Event, Step, StepFold
from tpunb.text import format_error
from tpunb.training.graph_work import step_flops

_log = logging.getLogger("tpunb")


def _harmless(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that never raises: after its first failure, the loop finds no more steps."""

    @wraps(method)
    def guarded(self: Loop, *args: Any, **kwargs: Any) -> Any:
        if self.failure is None:
            try:
                return method(self, *args, **kwargs)
            except Exception as error:  # noqa: BLE001  must never reach the training
                self.fail(error)
        return None

    return guarded


class Loop:
    """The loop that the thread that trains is in; `current` and `catch_up` are called in others, too."""

    def __init__(self, clock: StepClock) -> None:
        self.clock, self._folds = clock, defaultdict[int, StepFold](StepFold)
        self._latest = self.fold
        clock.on_mark, clock.on_fetch, clock.current = self._mark, self._note, self.current
        clock.catch_up, clock.folded_ns = self.catch_up, lambda: self._folded_ns
        self._noted = deque[tuple[int, Event]]()  # that are not folded yet, each with its thread
        self._folded_ns = 0  # end of the last event that is folded
        self._may_be_idle = True  # whether no event has been noted since the last look that may begin a part
        self._lock, self._folds_now = RLock(), False  # a signal handler may stop the run while it folds
        self._calls = Counter[str]()  # of functions, as far as they may be the first of a loop
        self.failure: Exception | None = None
        self.on_launch: Callable[[str], None] = lambda event: None  # called within the program's functions
        self._launched = False

    @property
    def fold(self) -> StepFold:
        """The fold of this thread: programs may train in several."""
        return self._folds[get_ident()]

    def fail(self, error: Exception) -> None:
        """Find no more steps."""
        self.failure = error.with_traceback(None)
        _log.info("steps without marks are not found any more: %s", format_error(error))

    # -- signals of frameworks -------------------------------------------------------------------------------------

    def is_training(self) -> bool:
        """Return whether this thread trains, outside of Keras' methods, so that its signals count."""
        return self.failure is None and self.clock.trains_here and not keras_runs()

    @_harmless
    def adopt_if_idle(self) -> None:
        """Take this thread, which takes gradients, for the one that trains if no other does so far."""
        clock = self.clock
        if clock.is_adopted or clock.count or clock.opened or keras_runs():
            return
        self.catch_up()
        if not clock.count and all(fold.is_idle for fold in [*self._folds.values()]):
            clock.adopt()

    @_harmless
    def fetched(
        self,
        stream: Hashable,
        start_ns: int,
        end_ns: int,
        *,
        over: bool = False,
        what: What | None = None,
        holds: Holds = (None, None),
    ) -> None:
        """Record that a batch was fetched from a stream of data, with what it holds, or its end found."""
        end_of, (arrays, kept) = END_OF_DATA if over else None, holds
        self.clock.events.add("fetch", what, stream, start_ns, end_ns, end_of=end_of, arrays=arrays, number=kept)
        fetch = Event("fetch", start_ns, end_ns, what, stream, arrays=arrays, end_of=end_of, number=kept)
        step = self.clock.opened
        if step is not None:
            if step.explicit:
                step.input_ns = (step.input_ns or 0) + max(0, end_ns - start_ns)
                if not over:
                    step.batches.append(fetch)
        elif over and not self.fold.is_marked:
            self.clock.add_span(Spent("data loading", None, start_ns, end_ns))
        self._add(fetch)

    @_harmless
    def takes_gradients(self, function: str, *, what: What | None = None) -> None:
        """Record that a compiled function takes gradients, as its tracing shows: whatever its name, it trains."""
        now_ns = monotonic_ns()
        self.clock.events.add("gradient", what, function, now_ns, now_ns)
        self._add(Event("gradient", now_ns, now_ns, what, function))

    @_harmless
    def called(
        self,
        function: str,
        begun_ns: int,
        now_ns: int,
        result: Result | None,
        *,
        what: What | None = None,
        signature: Signature | None = None,
    ) -> None:
        """Record that a compiled function was called, and computes; one of the library itself begins no step."""
        fold = self.fold
        place = self.clock.events.add("call", what, function, begun_ns, now_ns, arrays=signature)
        work, follows = self.clock.launch(result, now_ns)
        if self.clock.opened is None:
            self.clock.mark_progress(now_ns)
        self._add(Event("call", begun_ns, now_ns, what, function, place, signature, follows=follows, work=work))
        if self._calls[function] < LOOP_CALLS:
            self._calls[function] += 1
            self.catch_up()
            if fold.calls[function] == self._calls[function]:  # else it is of a step that is marked
                self._note_launch("gradient" if function in fold.learning else "call")

    @_harmless
    def evaluates(self, *, on: bool, what: What) -> None:
        """Record that a model is set to evaluate, or to train: in between, if it does not learn, is an evaluation."""
        now_ns = monotonic_ns()
        self.clock.events.add("mode", what, None, now_ns, now_ns)
        self.catch_up()
        if not on:
            self._end_evaluation(now_ns)
        self._add(Event("mode", now_ns, now_ns, what))

    def _end_evaluation(self, now_ns: int) -> None:
        fold = self.fold
        if fold.evaluates_since is not None and fold.model_since is not None:  # else a model that is not called yet
            begun_ns = max(fold.evaluates_since, fold.model_since)
            self.clock.add_span(Spent("evaluation", None, begun_ns, now_ns))

    @_harmless
    def learned(self, begun_ns: int, *, what: What | None = None) -> None:
        """Record that gradients were taken, since `begun_ns`."""
        now_ns = monotonic_ns()
        self.clock.events.add("gradient", what, None, begun_ns, now_ns)
        self._add(Event("gradient", begun_ns, now_ns, what))
        self.clock.mark_progress()

    @_harmless
    def prepared(self, *, what: What | None = None, arrays: Signature | None = None) -> None:
        """Record that the first step has begun, with a call of a model."""
        now_ns = monotonic_ns()
        self.clock.events.add("call", what, None, now_ns, now_ns, arrays=arrays)
        self._add(Event("call", now_ns, now_ns, what))

    @_harmless
    def updated(
        self, optimizer: Hashable, begun_ns: int, now_ns: int, result: Result | None, *, what: What | None = None
    ) -> None:
        """Record that an optimizer has updated the parameters, as far as the host knows."""
        self.clock.events.add("update", what, optimizer, begun_ns, now_ns)
        work = None if result is None else self.clock.launch(result, now_ns)[0]
        fold = self.fold
        if not fold.is_marked and self.clock.opened is None:
            self.clock.adopt()
            self.clock.mark_progress()
            if not self._launched:
                self._note_launch("update")
        self._add(Event("update", begun_ns, now_ns, what, optimizer, work=work))

    def fitted(self, model: Any) -> None:
        """Record the FLOPs of a step of a model of Keras that was fitted, None if they are unknown."""
        flops = None
        with suppress(Exception):  # a function of another version of Keras
            flops = step_flops(model)
        self.clock.step_flops.add(flops)

    @_harmless
    def close(self) -> None:
        """Record that the block is over, or the thread that trained."""
        self.catch_up()
        self._end_evaluation(monotonic_ns())
        for fold in [*self._folds.values()]:
            self._record(fold.finish())

    def _note_launch(self, event: str) -> None:
        self._launched = True
        self.on_launch(event)

    def current(self) -> StepRecord | None:
        """Return the running step as if it ended now."""
        part = self._latest.part
        if part is None:
            return None
        return StepRecord(self.clock.count, self._latest.kind, part.start, max(monotonic_ns(), part.start))

    # -- steps -----------------------------------------------------------------------------------------------------

    def _add(self, event: Event) -> None:
        """Note an event of this thread; in a window, fold it, and let the source do what is due between steps."""
        self._may_be_idle = False
        if not self.clock.is_traced():
            self._note(event)
            return
        with self._lock:  # else another thread may fold it
            self._note(event, settles=False)  # which folds it without the source
            begins = self.catch_up()
        if begins:
            self.clock.boundary()

    def _note(self, event: Event, *, settles: bool = True) -> None:
        if self.clock.is_closed or self.failure is not None:
            return
        self._noted.append((get_ident(), event))
        noted, since_ns = len(self._noted), event.end - self._folded_ns
        lasts = noted > LIMITS.most_noted or (noted <= LIMITS.few_noted and since_ns >= LIMITS.events_rest_ns)
        if settles and lasts:
            self._settle()

    @_harmless
    def _settle(self) -> None:
        """Hand on the steps so far: nothing takes them, or they last, and a kill leaves them."""
        self.clock.settle()

    @_harmless
    def catch_up(self) -> bool:
        """Fold the events noted so far, and record the steps that they make; return whether the last begins a part."""
        begins = False
        with self._lock:
            if self._folds_now:
                return False
            self._folds_now = True
            try:
                while self._noted:
                    thread, event = self._noted.popleft()
                    begins, self._folded_ns = self._fold(thread, event), event.end
            finally:
                self._folds_now = False
        return begins

    def _fold(self, thread: int, event: Event) -> bool:
        fold = self._latest = self._folds[thread]
        part = fold.part
        launch = None if part is None else part.launch
        self._record(fold.add(event))
        marked = fold.mark or fold.marked_step
        if marked is not None and marked.launch is event and event.work is not None:
            self.clock.extend(event.work)
        if part is None or fold.part is not part:
            return fold.part is not None
        if launch is not None and launch.work is not None and part.launch is event:
            launch.work.superseded = True  # the step has later work, for which alone is waited
        return False

    @_harmless
    def _mark(self, event: Event) -> tuple[int, int | None, Size | None] | None:
        """Add the begin or the end of a mark, whose step the clock records; return time and size of its fetch."""
        if not self._launched and event.edge == "begin" and not keras_runs():
            self._note_launch("mark")
        if event.what is not None and event.what.library == LIBRARY.name:
            if not self._may_be_idle:
                self.catch_up()
                self._may_be_idle = True
            if self.fold.is_idle:  # nothing of the loop around is a part of this step
                self._note(event)
                return None
        self.catch_up()
        fold = self.fold
        ended = fold.marked_step
        launch = None if ended is None else ended.launch
        self._record(fold.add(event))
        if ended is not None and ended.launch is not None and ended.launch is not launch:
            self.clock.extend(ended.launch.work)
        mark = fold.mark
        return None if mark is None or mark.input is None else (mark.start, mark.input, mark.size)

    def _record(self, steps: list[Step]) -> None:
        for step in steps:
            if step.is_marked:
                continue
            launch = step.launch
            self.clock.add(
                OpenStep(
                    step=-1,
                    kind=step.kind,
                    start_ns=step.start,
                    rule=step.rule,
                    input_ns=step.input,
                    end_ns=step.end,
                    next_ns=step.next,
                    launched_ns=0 if launch is None else launch.end,
                    work=None if launch is None else launch.work,
                    size=step.size,
                )
            )
