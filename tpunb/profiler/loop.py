"""Find the steps of a training loop that marks none, from what frameworks are asked to do in it.

A part of the loop begins when a batch is fetched; without fetches, when a compiled function is called again or an
optimizer has updated. Parts become steps by what the frameworks know best:

- an optimizer updates: a step is what leads to one, several batches if gradients are accumulated; batches in a row
  without gradients are an evaluation;
- batches are fetched: a step is one batch and what is computed with it;
- compiled functions are called: a step lasts from one call of a function to its next.

Where the program marks its steps itself, and in Keras' methods, all this only adds facts to them.
"""

from __future__ import annotations

import logging
import re
from collections import Counter, deque
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import wraps
from itertools import takewhile
from time import monotonic_ns
from types import CodeType
from typing import Any

from tpunb.instrument.keras import keras_runs
from tpunb.instrument.sink import END_OF_DATA, Arrays, Result, Signature, What
from tpunb.profiler.in_flight import Work
from tpunb.profiler.limits import LIMITS
from tpunb.profiler.step_clock import OpenStep, StepClock, StepRecord
from tpunb.signals import Spent
from tpunb.step_stats.sample_places import is_evaluation
from tpunb.text import format_error
from tpunb.training.graph_work import step_flops
from tpunb.training.program import user_frame

TRAIN, EVALUATION = "train", "eval"
_log = logging.getLogger("tpunb")


def _harmless(method: Callable[..., None]) -> Callable[..., None]:
    """Return a method that never raises: after its first failure, the loop finds no more steps."""

    @wraps(method)
    def guarded(self: Loop, *args: Any, **kwargs: Any) -> None:
        if self.failure is None:
            try:
                method(self, *args, **kwargs)
            except Exception as error:  # noqa: BLE001  must never reach the training
                self.fail(error)

    return guarded


_Line = tuple[CodeType, int]


def _line() -> _Line | None:
    """Return the line of the program that called."""
    frame = user_frame()
    return None if frame is None else (frame.f_code, frame.f_lineno)


@dataclass(eq=False, slots=True)
class _Part:
    start_ns: int
    streams: set[Hashable] = field(default_factory=set)  # that batches were fetched from
    input_ns: int = 0
    # compiled functions, and of the first call of each its start, the launch before it, and the line of the program
    functions: dict[str, tuple[int, int, Work | None, _Line | None]] = field(default_factory=dict)
    updates: list[Hashable] = field(default_factory=list)  # the optimizers
    learns: bool = False  # whether gradients were taken
    learned_since: bool = False  # whether they were since the last update
    evaluates: bool = False  # whether it began with a fetch while a model of PyTorch is in the mode to evaluate
    launched_ns: int = 0  # when the last launch or update returned
    work: Work | None = None  # of that launch
    follows: bool = False  # whether the devices worked until its first launch
    over: bool = False  # whether there was a launch since that is of no step
    batches: int | None = None  # parts before it whose gradients it adds, once that is known
    last_ns: int = 0  # the last signal
    next_ns: int | None = None  # when the next part begins

    def launched(self, work: Work | None, now_ns: int) -> None:
        if self.work is not None:
            self.work.superseded = True
        self.work, self.launched_ns, self.last_ns = work, now_ns, now_ns

    @property
    def end_ns(self) -> int:
        return self.launched_ns or self.next_ns or self.last_ns


class Loop:
    """The loop that the thread that trains is in; all methods but `current` are called in that thread."""

    def __init__(self, clock: StepClock) -> None:
        self.clock = clock
        clock.fetched, clock.paused, clock.current = self._take_fetch, self._pause, self.current
        self.failure: Exception | None = None
        self.on_launch: Callable[[str], None] = lambda event: None  # called within the program's functions
        self._launched = False
        self._part: _Part | None = None
        self._parts: deque[_Part] = deque()  # that are over, and may be a part of a step
        self._fetch: tuple[Hashable, int, int] | None = None  # before a mark: stream, start, time
        self._marked: set[str] = set()  # functions that are called in marked steps
        self._calls: Counter[str] = Counter()  # of compiled functions
        self._optimizers: dict[frozenset[Hashable], str] = {}  # kinds of steps
        self._trained: set[Hashable] = set()  # streams of the batches that led to the last update
        self._whole: set[frozenset[Hashable]] = set()  # sets of streams that parts had fetched from as they ended
        self._evaluated: set[Hashable] = set()  # streams of batches that did not
        self._arrays: dict[str, Arrays] = {}  # by function
        self._repeating: set[str] = set()  # functions that took a state twice: another updates it
        self._learning: set[str] = set()  # functions that take gradients
        self._accumulated: int | None = None  # parts before the last update that took its gradients
        self._trainer = Arrays()  # of the function that trains: it returns a state and takes most
        self._kinds: dict[str, str] = {}  # of steps by function
        self._lines: dict[str, set[_Line | None]] = {}  # of the program, where steps of training call a function
        self._kind = TRAIN  # of the last step
        self._by_gradients = False  # whether parts with gradients were found to be steps: no optimizer is known
        self._resumed_ns: int | None = None  # when the last fetch found the end of its data
        self._begun_ns: int | None = None  # when the first gradient was prepared
        self._computes = False  # whether a model of PyTorch was called
        self._evaluates_ns: int | None = None  # since when a model of PyTorch is in the mode to evaluate

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
        if not (self._part or self._parts or self.clock.count or self.clock.opened or keras_runs()):
            self.clock.adopt()

    @_harmless
    def fetched(
        self, stream: Hashable, start_ns: int, end_ns: int, *, over: bool = False, what: What | None = None
    ) -> None:
        """Record that a batch was fetched from a stream of data, or its end found."""
        self.clock.events.add("fetch", what, stream, start_ns, end_ns, end_of=END_OF_DATA if over else None)
        step = self.clock.opened
        if step is not None:
            if step.explicit:
                step.input_ns = (step.input_ns or 0) + max(0, end_ns - start_ns)
        elif self.clock.marked:
            if over:
                self._fetch = None
            elif self._fetch is not None and self._fetch[0] == stream:  # several batches for one step
                self._fetch = stream, self._fetch[1], self._fetch[2] + end_ns - start_ns
            else:
                self._fetch = stream, start_ns, end_ns - start_ns
        elif over:
            self.clock.add_span(Spent("data loading", None, start_ns, end_ns))
            self._resumed_ns = end_ns
            if self._part is not None and stream in self._part.streams:
                self._end(end_ns if self._part.launched_ns == 0 else None)
        else:
            part = self._part
            if part is None or part.launched_ns or part.learns or self._is_next(part.streams, stream):
                part = self._begin(start_ns)
                part.evaluates = self._evaluates_ns is not None
            part.streams.add(stream)
            part.input_ns += max(0, end_ns - start_ns)
            part.last_ns = end_ns
            self.clock.boundary()

    def _is_next(self, streams: set[Hashable], stream: Hashable) -> bool:
        """Return whether a fetch from a stream begins a part, rather than adds to the batches of one."""
        if streams & self._trained or not streams:
            return stream in streams
        # a validation, as some trainers end it without having found the end of its data
        alone = stream in self._trained and frozenset({stream}) in self._whole
        return stream in streams or frozenset(streams) in self._whole or alone

    def is_described(self, function: str) -> bool:
        """Return whether it is known what a compiled function takes and returns."""
        return function in self._arrays

    def describe(self, function: str, arrays: Arrays) -> None:
        """Record what a compiled function does with arrays."""
        self._arrays[function] = arrays
        if arrays.returns_state and arrays.inputs > self._trainer.inputs:
            self._trainer = arrays

    def takes_gradients(self, function: str, *, what: What | None = None) -> None:
        """Record that a compiled function takes gradients, as its tracing shows: whatever its name, it trains."""
        now_ns = monotonic_ns()
        self.clock.events.add("gradient", what, function, now_ns, now_ns)
        self._learning.add(function)

    def _is_evaluation(self, function: str) -> bool:
        """Return whether a function evaluates by its name, and nothing else is known of it."""
        return function not in self._learning and is_evaluation(function)

    def repeats(self, function: str, *, on: bool) -> None:
        """Record whether a function that returns such arrays as it takes was called with the same ones again."""
        (self._repeating.add if on else self._repeating.discard)(function)

    def _measures(self, function: str) -> bool:
        """Return whether a function takes most of the state of the training, and returns numbers alone."""
        arrays, state = self._of(function), self._trainer.kinds
        return arrays.measures and bool(state) and 2 * len(state & arrays.kinds) >= len(state)

    def _of(self, function: str) -> Arrays:
        return self._arrays.get(function, Arrays())

    def _turns(self, part: _Part, function: str) -> bool:
        """Return whether a call ends the training of a part, or the evaluation before it."""
        first = next(iter(part.functions), None)
        if first is None or part.updates or self._measures(first) == (measures := self._measures(function)):
            return False
        return measures or not part.streams

    @_harmless
    def called(
        self,
        function: str,
        begun_ns: int,
        now_ns: int,
        result: Result | None,
        *,
        library: bool = False,
        what: What | None = None,
        signature: Signature | None = None,
    ) -> None:
        """Record that a compiled function was called, and computes; one of the library itself begins no step."""
        self.clock.events.add("call", what, function, begun_ns, now_ns, arrays=signature)
        within = library or function in self._marked
        work, follows = self.clock.launch(result, now_ns, after=within)
        if self.clock.opened is not None:
            self._marked.add(function)
            return
        self.clock.mark_progress()
        if self.clock.marked and (within or not self._is_evaluation(function)):
            return
        part = self._part
        if library:
            if part is not None:
                part.over = part.over or not follows
                if not part.over:
                    part.launched(work, now_ns)
            return
        again = part is not None and not part.streams and not part.updates and function in part.functions
        if part is None or again or self._turns(part, function):
            if part is not None and again and function != next(iter(part.functions)):
                self._split(part, function)
            self.clock.boundary()
            part = self._begin(begun_ns)
            part.follows = follows
        self._calls[function] += 1
        if self._calls[function] <= LIMITS.loop_calls:
            self._note_launch("gradient" if function in self._learning else "call")
        if function not in part.functions:
            part.functions[function] = begun_ns, part.launched_ns, part.work, _line()
        part.launched(work, now_ns)

    @_harmless
    def evaluates(self, *, on: bool, what: What | None = None) -> None:
        """Record that a model is set to evaluate, or to train: in between, if it does not learn, is an evaluation."""
        now_ns = monotonic_ns()
        self.clock.events.add("mode", what, None, now_ns, now_ns)
        self._set_mode(evaluates=on)

    def _set_mode(self, *, evaluates: bool) -> None:
        if evaluates:
            self._evaluates_ns = self._evaluates_ns or monotonic_ns()
        elif (begun_ns := self._evaluates_ns) is not None:
            self._evaluates_ns = None
            if not self._computes:  # a copy of a model that is not called yet
                return
            self.clock.add_span(Spent("evaluation", None, begun_ns, monotonic_ns()))

    @_harmless
    def learned(self, begun_ns: int, *, what: What | None = None) -> None:
        """Record that gradients were taken, since `begun_ns`."""
        self.clock.events.add("gradient", what, None, begun_ns, monotonic_ns())
        if self._evaluates_ns is not None:  # only a part of the model is in that mode
            self._evaluates_ns = None
            for each in self._parts:
                each.evaluates = False
        if self.clock.marked or self.clock.opened is not None:
            return
        part = self._part
        if part is None:
            part = self._begin(self._resumed_ns or self._begun_ns or begun_ns)
        elif part.learns and not (part.streams or part.updates or self._optimizers):
            self.clock.boundary()
            part = self._begin(part.last_ns)  # no optimizer may be known to this program: then this is a step
        part.learns, part.learned_since, part.last_ns = True, True, monotonic_ns()
        self.clock.mark_progress()

    @_harmless
    def prepared(self, *, what: What | None = None) -> None:
        """Record that the first step has begun, with a call of a model."""
        now_ns = monotonic_ns()
        self.clock.events.add("call", what, None, now_ns, now_ns)
        self._begun_ns, self._computes = self._begun_ns or now_ns, True

    @_harmless
    def updated(
        self, optimizer: Hashable, begun_ns: int, now_ns: int, result: Result | None, *, what: What | None = None
    ) -> None:
        """Record that an optimizer has updated the parameters, as far as the host knows."""
        self.clock.events.add("update", what, optimizer, begun_ns, now_ns)
        work = None if result is None else self.clock.launch(result, now_ns)[0]
        if self.clock.marked or self.clock.opened is not None:
            return
        self.clock.adopt()
        self.clock.mark_progress()
        if not self._launched:
            self._note_launch("update")
        part = self._part
        again = part is not None and (part.learned_since or optimizer in part.updates)
        if part is not None and again and part.updates and not part.streams:  # a loop without fetches
            part = self._begin(part.launched_ns)
        elif part is None:
            part = self._begin(self._resumed_ns or self._begun_ns or begun_ns)
        part.learned_since = False
        part.updates.append(optimizer)
        part.launched(work, now_ns)
        if not part.streams:
            self.clock.boundary()
        self._trained = part.streams or self._trained

    def fitted(self, model: Any) -> None:
        """Record the FLOPs of a step of a model of Keras that was fitted, None if they are unknown."""
        flops = None
        with suppress(Exception):  # a function of another version of Keras
            flops = step_flops(model)
        self.clock.step_flops.add(flops)

    @_harmless
    def close(self) -> None:
        """Record that the block is over, or the thread that trained."""
        self._set_mode(evaluates=False)  # the last evaluation
        self._over()

    def _over(self) -> None:
        if self._part is not None:
            self._end(None)
        self._settle(final=True)  # batches of an evaluation, whose end was found

    def _note_launch(self, event: str) -> None:
        self._launched = True
        self.on_launch(event)

    def current(self) -> StepRecord | None:
        """Return the running step as if it ended now."""
        part = self._part
        if part is None:
            return None
        return StepRecord(self.clock.count, self._kind, part.start_ns, max(monotonic_ns(), part.start_ns))

    def _take_fetch(self) -> tuple[int, int] | None:
        """Return start and time of the fetch before a mark, which ends a loop without marks."""
        if not self._launched:
            self._note_launch("mark")
        if len(self._parts) + 1 < LIMITS.loop_calls or not self.clock.marked:  # no loop
            rest = [*self._parts, *([self._part] if self._part else [])]
            self._part = None
            self._parts.clear()
            for part in rest:
                if part.follows and part.work is not None:
                    self.clock.extend(part.work)
        self._over()
        fetch, self._fetch = self._fetch, None
        return None if fetch is None else fetch[1:]

    @_harmless
    def _pause(self) -> None:
        """End the part before a step of Keras, in the order in which both are recorded."""
        if self._part is not None and self._part.launched_ns:
            self._end(monotonic_ns())

    # -- parts of the loop -----------------------------------------------------------------------------------------

    def _begin(self, start_ns: int) -> _Part:
        self._end(start_ns)
        self._resumed_ns = self._begun_ns = None
        self._part = _Part(start_ns, last_ns=start_ns)
        return self._part

    def _end(self, next_ns: int | None) -> None:
        """End the part, if any; without `next_ns` its loop is over."""
        if (part := self._part) is not None:
            self._part = None
            self._whole.add(frozenset(part.streams))
            part.next_ns = next_ns
            self._parts.append(part)
        self._settle(final=part is not None and next_ns is None)

    def _split(self, part: _Part, function: str) -> None:
        """Split a part where another loop has begun, of a function that it is now called again."""
        begun_ns, launched_ns, work, _ = part.functions[function]
        names = [*part.functions]
        rest = _Part(begun_ns, last_ns=part.last_ns, launched_ns=part.launched_ns, work=part.work)
        for name in names[names.index(function) :]:
            rest.functions[name] = part.functions.pop(name)
        part.launched_ns, part.work, part.next_ns = launched_ns, work, begun_ns
        self._parts.append(part)
        self._part = rest

    # -- steps -----------------------------------------------------------------------------------------------------

    def _settle(self, *, final: bool) -> None:
        """Make steps of the parts that are over, as far as it is known what they are."""
        while self._parts:
            at = next((at for at, part in enumerate(self._parts) if part.updates), None)
            if at is not None:
                self._update([self._parts.popleft() for _ in range(at + 1)])
            elif any(part.functions for part in self._parts):
                if not self._call(self._parts[0], final=final):
                    return
                self._parts.popleft()
            elif not self._evaluate(final=final):
                return

    def _update(self, parts: list[_Part]) -> None:
        """Make a step of the parts that led to an update: the last, and those before it of its stream."""
        last = parts[-1]
        first = len(parts) - 1
        streams = last.streams or self._trained  # the end of data may be found before the last step
        while first and (parts[first - 1].streams & streams or parts[first - 1].learns):
            first -= 1
        while parts[first].evaluates and first < len(parts) - 1:  # on the data of the training
            first += 1
        for part in parts[:first]:
            self._add([part], EVALUATION, "fetches")
        optimizers = frozenset(last.updates)
        kind = self._optimizers.setdefault(
            optimizers, TRAIN if not self._optimizers else f"{TRAIN} {len(self._optimizers) + 1}"
        )
        self._add(parts[first:], kind, "optimizer")

    def _call(self, part: _Part, *, final: bool) -> bool:
        """Make a step of a part that called functions; return False if it is not known yet whether it is one."""
        gradients = list[_Part]()  # parts whose gradients it adds
        if self._repeating & part.functions.keys():
            ahead = next((at for at, each in enumerate(self._parts) if self._trains(each)), None)
            if ahead is None and not final and len(self._parts) < LIMITS.unsettled_parts:
                return False
            if ahead is None:
                self._repeating -= part.functions.keys()
            elif self._batches(ahead) == ahead:
                gradients = [self._parts.popleft() for _ in range(ahead)]
                part = self._parts[0]
        function = self._function(part)
        measures = function is not None and self._measures(function)
        again = function is not None and (measures or self._calls[function] >= LIMITS.loop_calls)
        rounds = sum(not any(map(self._measures, each.functions)) for each in self._parts)
        if not again and not final and rounds < LIMITS.loop_calls:
            return False
        if function is not None and again:
            if measures:
                self._kinds[function] = EVALUATION
            elif function not in self._kinds:
                evaluates = self._is_evaluation(function)
                trains = self._of(function).returns_state and not evaluates
                train = trains and not self._repeating & {function} and TRAIN not in self._kinds.values()
                name = EVALUATION if evaluates else re.sub(r"[^\w.]+", " ", function).strip()
                self._kinds[function] = TRAIN if train else name or "step"
            kind, line = self._kinds[function], part.functions[function][-1]
            if kind == TRAIN:
                for name, (*_, of_training) in part.functions.items():
                    self._lines.setdefault(name, set()).add(of_training)
            elif line not in self._lines.get(function, {line}):  # a part of the training alone, from elsewhere
                kind = EVALUATION
            self._add([*gradients, part], kind, "fetches" if part.streams else "calls")
        return True

    def _function(self, part: _Part) -> str | None:
        """Return the function of a step: one that returns a state, and takes more than those that prepare data."""
        names = [name for name in part.functions if name not in self._repeating] or [*part.functions]
        usual = [name for name in names if self._calls[name] >= LIMITS.loop_calls] or names
        return max(usual, key=lambda name: self._of(name)[:2], default=None)

    def _trains(self, part: _Part) -> bool:
        """Return whether a part is known to update the state."""
        name = self._function(part)
        usual = name is not None and name not in self._repeating and self._calls[name] >= LIMITS.loop_calls
        return usual and self._of(str(name)).returns_state

    def _batches(self, at: int) -> int:
        """Return how many parts before one that updates lead to it: as many as before the last, of the same lines."""
        last = self._parts[at]
        if last.batches is None:
            lines = {name: line for name, (*_, line) in last.functions.items()}
            before = (self._parts[each].functions for each in reversed(range(at)))
            same = (bool(each) and all(lines.get(name) == line for name, (*_, line) in each.items()) for each in before)
            found = sum(takewhile(bool, same))
            last.batches = found if self._accumulated is None else min(found, self._accumulated)
            self._accumulated = found
        return last.batches

    def _evaluate(self, *, final: bool) -> bool:
        """Make steps of batches in a row without gradients; return False if it is not known yet whether they are."""
        learning = [part.learns for part in self._parts]
        if any(learning):
            many = len(learning) >= LIMITS.unsettled_parts
            if not (many or final or (self._by_gradients and not self._optimizers)):
                return False
            kind = TRAIN  # with an optimizer that is not known
            self._by_gradients = self._by_gradients or many
        else:
            kind, streams = EVALUATION, {stream for part in self._parts for stream in part.streams}
            # several batches for one step may be fetched at once; `_update` says so
            certain = streams <= self._evaluated or (self._trained and not streams & self._trained)
            if len(learning) < (LIMITS.idle_parts if certain else LIMITS.unsettled_parts) and not final:
                return False
            self._evaluated |= streams - self._trained
        while self._parts:
            part = self._parts.popleft()
            if part.learns or (kind == EVALUATION and (part.evaluates or not part.streams & self._trained)):
                self._add([part], kind, "fetches" if part.streams else "gradients")
        return True

    def _add(self, parts: list[_Part], kind: str, rule: str) -> None:
        first, last = parts[0], parts[-1]
        self._kind = kind
        self.clock.add(
            OpenStep(
                step=-1,
                kind=kind,
                start_ns=first.start_ns,
                rule=rule,
                input_ns=sum(part.input_ns for part in parts) if any(part.streams for part in parts) else None,
                end_ns=max(first.start_ns, last.end_ns),
                next_ns=last.next_ns or last.end_ns,
                launched_ns=last.launched_ns,
                work=last.work,
            )
        )
