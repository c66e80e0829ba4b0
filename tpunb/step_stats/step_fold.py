"""Fold the events of a run into its steps: live, one event at a time, and at load, with the same result.

What the program or a library marks is a step. Other loops have parts: one begins when a batch is fetched; without
fetches, when a compiled function is called again or an optimizer has updated. Parts become steps by what is known best:

- an optimizer updates: a step is what leads to one, several batches if gradients are accumulated; batches in a row
  without gradients are an evaluation;
- batches are fetched: a step is one batch and what is computed with it;
- compiled functions are called: a step lasts from one call of a function to its next.

Which events make a step, and its kind, follow from the order of a thread's events alone; only its end depends on when
the work was done. A step's role comes from marks, gradients and updates, what functions take and return, the mode of
the model, and the place in the loop, in this order; names break ties.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from itertools import chain, islice, takewhile
from math import prod
from operator import index
from statistics import median
from typing import Any, Final, NamedTuple, SupportsIndex

from tpunb.instrument.sink import Signature, What
from tpunb.step_stats.batch_size import Size, added, size_of
from tpunb.step_stats.sample_places import is_evaluation

TRAIN, EVALUATION = "train", "eval"

LOOP_CALLS: Final = 3
"""Calls of a compiled function, from which on it is called in a loop: two may be a trial and the training."""
IDLE_PARTS: Final = 3
"""Fetches in a row without gradients, from streams that lead to no update, before they are an evaluation."""
IDLE_NS: Final = 5_000_000
"""Idle time of the devices before a launch after a step, from which on it is not of that step."""
UNSETTLED_PARTS: Final = 64
"""Parts that wait for an update of an optimizer: most batches whose gradients are accumulated."""
UNSETTLED_MOVES: Final = 256
"""The like of a policy before its first update, whose role is not known yet: a quarter would split one of 100 moves."""

_MOST_EVENTS = 16  # of a part, that a step names

MARKS: Final = {"keras": "keras", "tpunb": "mark"}
"""Rules by the library that marks a step, "annotation" of others; these fetch its batches, too."""
NEXT: Final = "its call of the next"
"""What ended a step that is marked by its begin alone: it lasts until its last launch, if there is any."""
UNTIL_THEN: Final = "worked until then"
BY_THEN: Final = "done by then"
"""What was seen of work that was done: when, or that it was before; an earlier version did not record which."""
_MARKED = {*MARKS.values(), "annotation"}


class Event(NamedTuple):
    """An event of a thread; a mark is two, its begin and its end."""

    event: str
    start: int
    end: int
    what: What | None = None
    key: Hashable = None
    place: Hashable = None
    arrays: Signature | None = None
    end_of: str | None = None
    number: SupportsIndex | None = None  # of the program; elements that the mask of a batch keeps
    edge: str | None = None  # of a mark: "begin", "end", "join" if it is of the step before, or "drop" if of none
    follows: bool = True  # whether the devices worked until this launch
    work: Any = None  # of this launch


@dataclass(slots=True)
class Step:
    """A step by the time of the host, which may run ahead of its devices.

    Launches after the end of a mark are added to its step as they come.
    """

    kind: str
    rule: str  # of ``tpunb.schema.RULE``
    reason: str  # why it is of its kind
    start: int
    end: int
    next: int | None  # when the next begins, if that is known
    input: int | None  # of it, waiting for input; None if no batch was fetched
    launch: Event | None  # its last
    events: tuple[Event, ...]  # that make it, in order
    number: int | None = None  # of the program
    is_over: bool = False  # of a mark: whether there was a launch since that is of no step
    size: Size | None = None  # of its batches, None if none was fetched

    @property
    def is_marked(self) -> bool:
        """Whether the program or a library marks it."""
        return self.rule in _MARKED


class _Arrays(NamedTuple):
    """What a compiled function does with arrays."""

    returns_state: bool = True  # whether it returns arrays like those that it takes, as a step does
    inputs: int = 0  # how many it takes
    kinds: frozenset[str] = frozenset()  # of the state that it returns, else of what it takes
    measures: bool = False  # whether it returns numbers alone
    reads: frozenset[str] = frozenset()  # kinds of arrays that it takes, and returns none of
    reads_most: bool = False  # whether it takes more of those than it returns of a state


def _arrays_of(signature: Signature) -> _Arrays:
    """Return what a function does with arrays, by what one of its calls took and returned.

    >>> _arrays_of(Signature("2 float32[2,3], int", "float32[2,3], float32[]"))[:4]
    (True, 3, frozenset({'float32[2,3]'}), False)
    """
    takes, returns = _counted(signature.takes), _counted(signature.returns)
    taken, returned = (
        {kind for kind in takes if _is_array(kind)},
        {kind: n for kind, n in returns.items() if _is_array(kind)},
    )
    returns_state = 2 * sum(n for kind, n in returned.items() if kind in taken) >= max(sum(returned.values()), 1)
    measures = bool(returns) and not returned and all(kind.endswith("]") for kind in returns)
    reads = frozenset(taken - {*returned})
    reads_most = sum(takes[kind] for kind in reads) > sum(n for kind, n in returned.items() if kind in taken)
    kinds = frozenset(taken & {*returned} if returns_state else taken)
    return _Arrays(returns_state, sum(takes.values()), kinds, measures, reads, reads_most)


def _counted(kinds: str) -> dict[str, int]:
    """Return how often each kind is in the text of a signature."""
    found = (re.fullmatch(r"(?:(\d+) )?(.+)", kind) for kind in kinds.split(", "))
    return {match[2]: int(match[1] or 1) for match in found if match}


def _is_array(kind: str) -> bool:
    """Return whether a kind is of arrays of several elements."""
    match = re.search(r"\[([\d,]*)\]$", kind)
    return match is not None and prod(map(int, filter(None, match[1].split(",")))) > 1


@dataclass(eq=False, slots=True)
class Part:
    """A part of a loop, which may be a step or a part of one."""

    start: int
    last: int  # the last event
    streams: set[Hashable] = field(default_factory=set)  # that batches were fetched from
    input: int = 0
    # compiled functions, with the first call of each and the launch before it
    functions: dict[str, tuple[Event, Event | None]] = field(default_factory=dict)
    updates: list[Hashable] = field(default_factory=list)  # the optimizers
    learns: bool = False  # whether gradients were taken
    learned_since: bool = False  # whether they were since the last update
    # whether a model is in the mode to evaluate as its batch is fetched, or no batch of the whole pass led to gradients
    evaluates: bool = False
    read_out: bool = False  # whether the end of its data was found since
    launch: Event | None = None  # the last
    is_over: bool = False  # whether there was a launch since that is of no step
    batches: int | None = None  # parts before it whose gradients it adds, once that is known
    next: int | None = None  # when the next part begins
    size: Size | None = None  # of its batches
    events: list[Event] = field(default_factory=list)

    def launched(self, event: Event) -> None:
        """Add a launch."""
        self.launch, self.last = event, event.end

    @property
    def end(self) -> int:
        """When its last launch returned; without one, when the next part began."""
        return self.launch.end if self.launch else self.next or self.last


@dataclass(eq=False, slots=True)
class Mark:
    """A step that the program or a library marks, while it is open."""

    begin: Event
    kind: str
    rule: str
    start: int
    input: int | None
    launch: Event | None = None
    events: list[Event] = field(default_factory=list)
    size: Size | None = None


class StepFold:
    """Steps of one thread from its events, in the order in which they ended.

    All that it knows is in its attributes; the time that it is now, and other threads, are not.
    """

    def __init__(self) -> None:
        self.part: Part | None = None  # that is not over
        self.mark: Mark | None = None  # that is open
        self.marked_step: Step | None = None  # the last, while launches may be added to it
        self._last: Step | None = None  # of any rule
        self.is_marked = False  # whether the program marks its steps
        self.kind = TRAIN  # of the last step
        self.calls = Counter[str]()  # of compiled functions
        self.learning = set[str]()  # functions that take gradients
        self._fetching = Counter[str]()  # their calls without a batch: in a loop, they fetch it
        self.marked = set[str]()  # functions that are called in marked steps
        self.evaluates_since: int | None = None  # since when a model is in the mode to evaluate
        self.model_since: int | None = None  # when a model was first called
        self._parts = deque[Part]()  # that are over, and may be a part of a step
        self._fetch: tuple[int, int, Event, Size] | None = None  # before a mark: start, time, the last, and size
        self._optimizers = dict[frozenset[Hashable], str]()  # kinds of steps
        self._trained = set[Hashable]()  # streams of the batches that led to the last update
        self._whole = set[frozenset[Hashable]]()  # sets of streams that parts had fetched from as they ended
        self._evaluated = set[Hashable]()  # streams of batches that did not
        self._teaching = set[Hashable]()  # streams whose pass, until now, had gradients
        self._arrays = dict[str, _Arrays]()  # by function
        self._repeating = set[str]()  # functions that took a state twice: another updates it
        self._acting = dict[str, Hashable]()  # functions whose calls in a row lead to an update, and their lines
        self._accumulated: int | None = None  # parts before the last update that took its gradients
        self._trainer = _Arrays()  # of the function that trains: it returns a state and takes most
        self._kinds = dict[str, tuple[str, str]]()  # of steps by function, each with its reason
        self._places = dict[str, set[Hashable]]()  # of the program, where steps of training call a function
        self._by_gradients = False  # whether parts with gradients were found to be steps: no optimizer is known
        self._resumed: int | None = None  # when the last fetch found the end of its data
        self._begun: int | None = None  # when the first gradient was prepared
        self._steps = list[Step]()  # that the event in hand has made

    def add(self, event: Event) -> list[Step]:
        """Return the steps that an event shows to be whole, which others may have made."""
        if (handle := HANDLERS.get(event.event)) is not None:
            handle(self, event)
        return self._made()

    def finish(self) -> list[Step]:
        """Return the steps that are left, as the run or the thread is over."""
        self.evaluates_since = None
        self._end_loop()
        return self._made()

    @property
    def is_idle(self) -> bool:
        """Whether no event may be of a step that is not whole yet."""
        return self.part is None and not self._parts

    def _made(self) -> list[Step]:
        if not self._steps:
            return self._steps
        made, self._steps = self._steps, []
        return made

    # -- events ----------------------------------------------------------------------------------------------------

    def _on_fetch(self, event: Event) -> None:
        stream, time = event.key, max(0, event.end - event.start)
        if stream is None:  # of no batch, such as the start of workers
            return
        if self.mark is not None:
            self.mark.input = (self.mark.input or 0) + time
            self.mark.size = _enlarged(self.mark.size, event)
            _note(self.mark.events, event)
        elif event.what is not None and event.what.library in MARKS:  # the end of what it marks
            self._join(event.end, time)
        elif self.is_marked:
            if event.end_of:
                self._fetch = None
            elif self._fetch is not None and self._fetch[2].key == stream:  # several batches for one step
                self._fetch = self._fetch[0], self._fetch[1] + time, event, added([self._fetch[3], event_size(event)])
            else:
                self._fetch = event.start, time, event, event_size(event)
        elif event.end_of:
            self._resumed = event.end
            for each in (*self._parts, *([self.part] if self.part else [])):
                if stream in each.streams and not each.read_out:
                    each.read_out, each.evaluates = True, each.evaluates or stream not in self._teaching
            self._teaching.discard(stream)
            if self.part is not None and stream in self.part.streams:
                self._end_part(event.end if self.part.launch is None else None)
        else:
            part = self.part
            if part is None or part.functions or part.updates or part.learns or self._is_next(part, stream):
                part = self._begin_part(event.start)
                part.evaluates = self.evaluates_since is not None
            part.streams.add(stream)
            part.input += time
            part.size = _enlarged(part.size, event)
            part.last = event.end
            _note(part.events, event)

    def _is_next(self, part: Part, stream: Hashable) -> bool:
        """Return whether a fetch from a stream begins a part, rather than adds to the batches of one."""
        streams = part.streams
        if streams & self._trained or not streams:
            return stream in streams or (part.evaluates and bool(streams))
        # a validation, as some trainers end it without having found the end of its data
        alone = stream in self._trained and frozenset({stream}) in self._whole
        return stream in streams or frozenset(streams) in self._whole or alone

    def _on_call(self, event: Event) -> None:
        function, what = event.key, event.what
        if not isinstance(function, str):  # of a model, for the first time
            self.model_since = self.model_since or event.end
            self._begun = self._begun or event.end
            return
        if what is not None and what.library == "keras":  # the work of a step that it marks
            return
        if event.arrays is not None:
            self._describe(function, event.arrays)
        is_part = what is not None and what.is_part_of_steps
        if self.mark is not None and self._is_evaluation(function) and self._has_trained(self.mark):
            self._end_mark(self.mark, self.mark.begin._replace(end=event.start, edge="end"))  # the rest evaluates
        if self.mark is not None:
            if self.mark.rule != "keras":
                self.mark.launch = event
            _note(self.mark.events, event)
            self.marked.add(function)
            return
        self._follow(event, is_part=is_part)
        if self.is_marked and (is_part or function in self.marked or not self._is_evaluation(function)):
            return
        part = self.part
        if is_part:
            if part is not None:
                part.is_over = part.is_over or not event.follows
                if not part.is_over:
                    part.launched(event)
            return
        again = part is not None and not part.updates and function in part.functions
        if again and part is not None and part.streams:  # whose batch another function has taken
            again = self._fetching[function] >= LOOP_CALLS and function != next(iter(part.functions))
        acts = self._acting.get(function) == event.place and function in self._acting
        if part is not None and again and acts and part.functions.keys() <= self._acting.keys():
            again = False
        elif part is None or again or self._turns(part, function):
            if part is not None and again and function != next(iter(part.functions)):
                self._split(part, function)
            part = self._begin_part(event.start)
            self._fetching[function] += function in self.learning
        self.calls[function] += 1
        if function not in part.functions:
            part.functions[function] = event, part.launch
            _note(part.events, event)
        part.launched(event)

    def _follow(self, event: Event, *, is_part: bool) -> None:
        """Add a launch to the marked step that has ended, if the devices were not idle since."""
        step = self.marked_step
        if step is not None and step.rule != "keras":
            step.is_over = step.is_over or not event.follows
            if not step.is_over and (is_part or event.key in self.marked):
                step.launch = event

    def _on_gradient(self, event: Event) -> None:
        if isinstance(event.key, str):  # of a function, as it is traced: whatever its name, it trains
            self.learning.add(event.key)
            for name in [*self._kinds]:
                if name not in self.learning | self._arrays.keys() and self._kinds[name][0] == TRAIN:
                    del self._kinds[name]  # it was called first, and nothing else is known of it
            return
        if self.evaluates_since is not None:  # only a part of the model is in that mode
            self.evaluates_since = None
            for each in self._parts:
                each.evaluates = False
        if self.mark is not None:
            _note(self.mark.events, event)
        if self.is_marked or self.mark is not None:
            return
        part = self.part
        if part is None:
            part = self._begin_part(self._resumed or self._begun or event.start)
        elif part.learns and not (part.streams or part.updates or self._optimizers):
            part = self._begin_part(part.last)  # no optimizer may be known to this program: then this is a step
        part.learns, part.learned_since, part.last = True, True, event.end
        self._teaching |= part.streams
        _note(part.events, event)

    def _on_update(self, event: Event) -> None:
        if self.mark is not None:
            self.mark.launch = self.mark.launch if event.work is None else event
            _note(self.mark.events, event)
        if self.is_marked or self.mark is not None:
            return
        part, optimizer = self.part, event.key
        again = part is not None and (part.learned_since or optimizer in part.updates)
        if part is not None and again and part.updates and not part.streams:  # a loop without fetches
            launched, events = part.end, part.events
            part.events = [event for event in events if event.end <= launched]
            part = self._begin_part(launched)
            part.events = [event for event in events if event.end > launched]
        elif part is None:
            part = self._begin_part(self._resumed or self._begun or event.start)
        part.learned_since = False
        part.updates.append(optimizer)
        self._teaching |= part.streams
        part.launched(event)
        _note(part.events, event)
        self._trained = part.streams or self._trained

    def _on_mode(self, event: Event) -> None:
        if event.what is not None and event.what.name.endswith(".eval"):
            self.evaluates_since = self.evaluates_since or event.end
            if (part := self.part) is not None and not (part.learns or part.updates or part.functions):
                part.evaluates = True  # its batch was fetched first
        else:
            self.evaluates_since = None

    def _on_mark(self, event: Event) -> None:
        mark = self.mark
        if event.edge == "begin":
            self.mark = self._begin_mark(event)
        elif mark is not None:
            is_empty = mark.rule == "annotation" and bool(self.marked) and all(e.event == "fetch" for e in mark.events)
            self.mark = None
            if event.edge == "join" or (event.edge == "end" and is_empty):
                self._join(event.end, mark.input or 0)
            elif event.edge == "end":
                self._end_mark(mark, event)

    @staticmethod
    def _has_trained(mark: Mark) -> bool:
        """Return whether an annotated step has called a function that does not evaluate by its name."""
        return mark.rule == "annotation" and mark.launch is not None and not is_evaluation(str(mark.launch.key))

    def _end_mark(self, mark: Mark, event: Event) -> None:
        """Make a step of a mark, which ends with an event."""
        self.mark = None
        end, reason = event.end, f"{event.what.library if event.what else 'the program'} marks it"
        if event.end_of == NEXT and mark.launch is not None:
            end = mark.launch.end
        self.marked_step = Step(
            *(mark.kind, mark.rule, reason, mark.start, end, None, mark.input, mark.launch, (*mark.events, event)),
            number=None if event.number is None else index(event.number),
            size=mark.size,
        )
        self._append(self.marked_step)

    def _join(self, end: int, waited: int) -> None:
        """Add time, of which it waited for input, to the last step, as nothing was left for another."""
        self.marked_step = None
        if (step := self._last) is not None:
            step.end, step.input = max(step.end, end), (step.input or 0) + waited

    def _begin_mark(self, event: Event) -> Mark:
        rule = MARKS.get(event.what.library if event.what else "tpunb", "annotation")
        start, time, size = event.start, None, None
        events = list[Event]()
        if rule == "keras":
            if self.part is not None and self.part.launch is not None:
                self._end_part(event.start)
        else:
            parts = [*self._parts, *([self.part] if self.part else [])]
            functions = [name for part in parts for name in part.functions]
            again = any(self._is_evaluation(name) and self.calls[name] >= LOOP_CALLS for name in functions)
            if not again and (not self.is_marked or len(self._parts) + 1 < LOOP_CALLS):  # no loop
                for part in parts:
                    first = next((call for call, _ in part.functions.values()), None)
                    if first is not None and first.follows and not part.streams and self.marked_step is not None:
                        self.marked_step.launch = part.launch  # right after its mark
                self.part = None
                self._parts.clear()
            self._end_loop()
            self.is_marked = True
            if self._fetch is not None:
                start, time, fetch, size = self._fetch
                events, self._fetch = [fetch], None
        return Mark(event, str(event.key), rule, start, time, None, events, size)

    # -- parts of the loop -----------------------------------------------------------------------------------------

    def _begin_part(self, start: int) -> Part:
        self._end_part(start)
        self._resumed = self._begun = None
        self.part = Part(start, start)
        return self.part

    def _end_part(self, following: int | None) -> None:
        """End the part, if any; without the start of the next one its loop is over."""
        if (part := self.part) is not None:
            self.part = None
            self._whole.add(frozenset(part.streams))
            part.next = following
            self._parts.append(part)
        self._settle(final=part is not None and following is None)

    def _end_loop(self) -> None:
        if self.part is not None:
            self._end_part(None)
        self._settle(final=True)  # batches of an evaluation, whose end was found

    def _split(self, part: Part, function: str) -> None:
        """Split a part where another loop has begun, of a function that it is now called again."""
        call, launch = part.functions[function]
        names = [*part.functions]
        rest = Part(call.start, part.last, launch=part.launch)
        for name in names[names.index(function) :]:
            rest.functions[name] = part.functions.pop(name)
        rest.events = [event for event in part.events if event.end >= call.end]
        part.events = [event for event in part.events if event.end < call.end]
        part.launch, part.next = launch, call.start
        self._parts.append(part)
        self.part = rest

    def _turns(self, part: Part, function: str) -> bool:
        """Return whether a call ends the training of a part, or the evaluation before it."""
        first = next(iter(part.functions), None)
        if first is None or part.updates or self._measures(first) == (measures := self._measures(function)):
            return False
        return measures or not part.streams

    # -- functions -------------------------------------------------------------------------------------------------

    def _describe(self, function: str, signature: Signature) -> None:
        """Note what a function takes and returns, and whether it took a state again that it does not update."""
        if function not in self._arrays:
            self._arrays[function] = arrays = _arrays_of(signature)
            if arrays.returns_state and arrays.inputs > self._trainer.inputs:
                self._trainer = arrays
        if signature.repeats is not None and self._arrays[function].returns_state:
            (self._repeating.add if signature.repeats == "taken" else self._repeating.discard)(function)

    def _of(self, function: str) -> _Arrays:
        return self._arrays.get(function, _UNKNOWN)

    def _is_evaluation(self, function: str) -> bool:
        """Return whether a function evaluates by its name, and nothing else is known of it."""
        return function not in self.learning and is_evaluation(function)

    def _measures(self, function: str) -> bool:
        """Return whether a function takes most of the state of the training, and returns numbers alone."""
        arrays, state = self._of(function), self._trainer.kinds
        return arrays.measures and bool(state) and 2 * len(state & arrays.kinds) >= len(state)

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

    def _update(self, parts: list[Part]) -> None:
        """Make a step of the parts that led to an update: the last, and those before it of its stream."""
        last = parts[-1]
        first = len(parts) - 1
        streams = last.streams or self._trained  # the end of data may be found before the last step
        while first and (parts[first - 1].streams & streams or parts[first - 1].learns):
            first -= 1
        between = [at for at in range(first, len(parts) - 1) if parts[at].evaluates and parts[at].read_out]
        first = max([first, *(at + 1 for at in between if not parts[at].learns)])  # on data of the training
        for part in parts[:first]:
            if not self._join_left_over(part):
                self._add([part], EVALUATION, "fetches", "its batches led to no update")
        kinds, optimizers = self._optimizers, frozenset(last.updates)
        kind = kinds.setdefault(optimizers, f"{TRAIN} {len(kinds) + 1}" if kinds else TRAIN)
        self._add(parts[first:], kind, "optimizer", "an optimizer updates the parameters")

    def _join_left_over(self, part: Part) -> bool:
        """Add gradients that no update follows at once to the step before; return whether it trains."""
        last = self._last
        if not (part.learns and self._optimizers and last is not None and last.kind.startswith(TRAIN)):
            return False
        self._join(part.next or part.last, part.input)
        return True

    def _call(self, part: Part, *, final: bool) -> bool:
        """Make a step of a part that called functions; return False if it is not known yet whether it is one."""
        if (acts := self._acts(final=final)) is None:
            return False
        if acts:
            for each in acts:
                self._parts.popleft()
                self._acting |= {name: call.place for name, (call, _) in each.functions.items()}
            part = self._parts[0]
            kind, reason = self._kind_of(next(filter(self.learning.__contains__, part.functions)), measures=False)
            self._add([*acts, part], kind, "calls", reason)
            return True
        gradients = list[Part]()  # parts whose gradients it adds
        if self._repeating & part.functions.keys():
            ahead = next((at for at, each in enumerate(self._parts) if self._trains(each)), None)
            if ahead is None and not final and len(self._parts) < UNSETTLED_PARTS:
                return False
            if ahead is None:
                self._repeating -= part.functions.keys()
            elif self._batches(ahead) == ahead:
                gradients = [self._parts.popleft() for _ in range(ahead)]
                part = self._parts[0]
        function = self._function(part)
        measures = function is not None and self._measures(function)
        again = function is not None and (measures or self.calls[function] >= LOOP_CALLS)
        rounds = sum(not any(map(self._measures, each.functions)) for each in self._parts)
        if not again and not final and rounds < LOOP_CALLS:
            return False
        if function is not None and again:
            fetches = bool(part.streams) and self.learning.isdisjoint(part.functions)
            kind, reason = self._kind_of(function, measures=measures, fetches=fetches)
            place = part.functions[function][0].place
            if kind == TRAIN:
                for name, (call, _) in part.functions.items():
                    self._places.setdefault(name, set()).add(call.place)
            elif place not in self._places.get(function, {place}):
                kind, reason = EVALUATION, "a part of the training alone is called, from another line"
            self._add([*gradients, part], kind, "fetches" if part.streams else "calls", reason)
        return True

    def _acts(self, *, final: bool) -> list[Part] | None:
        """Return the first parts if a policy acts in them for the update in the next; None if that is not known yet.

        What acts takes no gradients and reads the state that another function updates, once after all of them.
        """
        acts = [*takewhile(lambda part: not part.streams and all(map(self._may_act, part.functions)), self._parts)]
        after = [*islice(self._parts, len(acts), len(acts) + 2)]
        if not acts or (not after and len(acts) >= UNSETTLED_MOVES):
            return []
        if len(after) < 2 and not final:
            return None
        learner = next(filter(self.learning.__contains__, after[0].functions), None) if after else None
        if learner is None or any(not self._may_act(next(iter(part.functions), "")) for part in after[1:]):
            return []
        state = self._of(learner).kinds
        read = (self._of(name).reads & state for part in acts for name in part.functions)
        return acts if all(2 * len(kinds) >= len(state) for kinds in read) else []

    def _may_act(self, function: str) -> bool:
        """Return whether a function takes no gradients, and mostly arrays that it does not update."""
        arrays = self._of(function)
        has_role = function in self.learning or arrays.measures or self._is_evaluation(function)
        return arrays.reads_most and not has_role

    def _kind_of(self, function: str, *, measures: bool, fetches: bool = False) -> tuple[str, str]:
        """Return the kind of the steps of a function, which may begin with a fetch, and why."""
        if measures:
            self._kinds[function] = EVALUATION, "it takes most of the state of the training, and returns numbers alone"
        elif function not in self._kinds:
            evaluates, returns_state = self._is_evaluation(function), self._of(function).returns_state
            trains = (name for name, (kind, _) in self._kinds.items() if kind == TRAIN)
            learns = function in self.learning and function not in self._places  # or it is a part of their steps
            is_other = any(name in self.learning or not learns for name in trains)
            is_other |= function in self._repeating
            if evaluates:
                found = EVALUATION, "the name of the function alone says that it evaluates"
            elif returns_state and not is_other:
                gradients = "it takes gradients, and is" if function in self.learning else "it is"
                found = TRAIN, f"{gradients} the first function in a loop that returns a state like the one it takes"
            elif fetches and self.learning and function not in self._arrays:
                found = EVALUATION, "its batches led to no gradients, which another function takes"
            else:
                found = re.sub(r"[^\w.]+", " ", function).strip() or "step", "the role of the function is unknown"
            self._kinds[function] = found
        return self._kinds[function]

    def _function(self, part: Part) -> str | None:
        """Return the function of a step: one that returns a state, and takes more than those that prepare data."""
        names = [name for name in part.functions if name not in self._repeating] or [*part.functions]
        usual = [name for name in names if self.calls[name] >= LOOP_CALLS] or names
        return max(usual, key=lambda name: (*self._of(name)[:2], name in self.learning), default=None)

    def _trains(self, part: Part) -> bool:
        """Return whether a part is known to update the state."""
        name = self._function(part)
        usual = name is not None and name not in self._repeating and self.calls[name] >= LOOP_CALLS
        return usual and self._of(str(name)).returns_state

    def _batches(self, at: int) -> int:
        """Return how many parts before one that updates lead to it: as many as before the last, of the same lines."""
        last = self._parts[at]
        if last.batches is None:
            lines = {name: call.place for name, (call, _) in last.functions.items()}
            before = (self._parts[each].functions for each in reversed(range(at)))
            same = (
                bool(each) and all(lines.get(name) == call.place for name, (call, _) in each.items()) for each in before
            )
            found = sum(takewhile(bool, same))
            last.batches = found if self._accumulated is None else min(found, self._accumulated)
            self._accumulated = found
        return last.batches

    def _evaluate(self, *, final: bool) -> bool:
        """Make steps of batches in a row without gradients; return False if it is not known yet whether they are."""
        learning = [part.learns for part in self._parts]
        if any(learning):
            many = len(learning) >= UNSETTLED_PARTS
            if not (many or final or (self._by_gradients and not self._optimizers)):
                return False
            self._by_gradients = self._by_gradients or many
        elif not (self.model_since or self.calls or self._optimizers):
            self._parts.clear()  # nothing computes: the program looks at its data
            return True
        else:
            streams = {stream for part in self._parts for stream in part.streams}
            # several batches for one step may be fetched at once; `_update` says so
            certain = streams <= self._evaluated or (self._trained and not streams & self._trained)
            if len(learning) < (IDLE_PARTS if certain else UNSETTLED_PARTS) and not final:
                return False
            self._evaluated |= streams - self._trained
        self._trained |= {stream for part in self._parts if part.learns for stream in part.streams}
        while self._parts:
            part = self._parts.popleft()
            rule = "fetches" if part.streams else "gradients"
            if self._join_left_over(part):
                continue
            if part.learns:
                self._add([part], TRAIN, rule, "gradients were taken, and no optimizer is known")
            elif part.evaluates or not part.streams & self._trained:
                self._add([part], EVALUATION, rule, "batches in a row led to no gradients")
            else:
                self._teaching |= part.streams  # the rest of its pass is no evaluation alone
        return True

    def _add(self, parts: list[Part], kind: str, rule: str, reason: str) -> None:
        first, last = parts[0], parts[-1]
        self.kind = kind
        fetched = sum(part.input for part in parts) if any(part.streams for part in parts) else None
        end, following = max(first.start, last.end), last.next or last.end
        events = tuple(first.events if first is last else chain.from_iterable(part.events for part in parts))
        sizes = [part.size for part in parts if part.streams]
        size = added(sizes) if sizes else None
        self._append(Step(kind, rule, reason, first.start, end, following, fetched, last.launch, events, size=size))

    def _append(self, step: Step) -> None:
        self._last = step
        self._steps.append(step)


_UNKNOWN = _Arrays()
HANDLERS: dict[str, Callable[[StepFold, Event], None]] = {
    "fetch": StepFold._on_fetch,
    "call": StepFold._on_call,
    "gradient": StepFold._on_gradient,
    "update": StepFold._on_update,
    "mode": StepFold._on_mode,
    "mark": StepFold._on_mark,
}


def event_size(event: Event) -> Size:
    """Return the size of a batch that was fetched."""
    return size_of(event.arrays, None if event.number is None else index(event.number))


def _enlarged(size: Size | None, event: Event) -> Size | None:
    """Return the size of some batches and the one that an event fetched, if it did not find their end."""
    if event.end_of:
        return size
    return event_size(event) if size is None else added([size, event_size(event)])


def _note(events: list[Event], event: Event) -> None:
    if len(events) < _MOST_EVENTS:
        events.append(event)


TYPICAL_LAUNCHES: Final = 31
"""Launches of which it is known how long their work took, that the usual time of the others is the median of."""


class StepTimes:
    """When steps that come in order begin and end, as their work is done, in any unit of time.

    A step begins once the work of the one before is done, and lasts until its own is. Work takes as long as is usual
    where it is not known when it was done.
    """

    def __init__(self) -> None:
        self._until = self._free = 0  # when the last step was over, and the last work done
        self._recent = deque[int](maxlen=TYPICAL_LAUNCHES)

    def done(self, launched: int, done: int | None = None, by: int | None = None) -> int:
        """Return when work was done: as it is known, or as is usual, but by a time; launches come in order."""
        begin = max(launched, self._free)
        if done is None:
            usual = begin + (int(median(self._recent)) if self._recent else 0)
            done = max(launched, usual if by is None else min(usual, by))
        elif done > launched:
            self._recent.append(max(0, done - begin))
        self._free = max(done, self._free)
        return done

    def of(self, start: int, end: int, waited: int | None) -> tuple[int, int, int | None]:
        """Return start, end and wait for input of a step, of which the host knows these and when its work was done."""
        begin = max(start, self._until)
        self._until = max(begin, end)
        return begin, self._until, None if waited is None else max(0, waited - (begin - start))
