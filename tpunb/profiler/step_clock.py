"""Record every step of a run with a host clock, with its causes, and open the framework's step annotation.

A Keras step lasts from the request of its batch to that of the next: what runs between batches (callbacks,
checkpoints) counts towards the step before, and is recorded with its cause. Steps do not nest; inside a step that the
program marks itself, Keras' steps are ignored.

A launch on a device may return long before its work is done. A step lasts until its work is, and the next begins no
earlier; waits for input, saves and whatever else runs meanwhile take no time of their own.
"""

from __future__ import annotations

import sys
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from statistics import median
from threading import Thread, current_thread, get_ident
from time import monotonic, monotonic_ns, sleep, thread_time_ns
from typing import Any, NamedTuple, TypeVar

from tpunb.errors import warn_user
from tpunb.instrument.events import EventLog
from tpunb.instrument.keras import STEP_FUNCTION, running_method
from tpunb.instrument.sink import END_OF_DATA, Holds, Result, What
from tpunb.profiler.in_flight import InFlight, Work
from tpunb.profiler.limits import LIMITS
from tpunb.profiler.stall_sampler import Progress
from tpunb.schema import ACCOUNTS, PEERS
from tpunb.signals import Spent
from tpunb.step_stats.batch_size import Size, added
from tpunb.step_stats.step_fold import IDLE_NS, MARKS, NEXT, Event, StepTimes, event_size
from tpunb.text import cut, plain
from tpunb.training.program import user_frame

Annotate = Callable[[str, int], AbstractContextManager[Any] | None]
"""Opens the framework's step annotation: (kind, step number) -> context manager; None while nothing traces."""

S = TypeVar("S")
T = TypeVar("T")

ACCOUNT_OF = {
    "save": "checkpoint save",
    "restore": "checkpoint restore",
    "evaluate": "evaluation",
    "wait": PEERS,
    "callback": "callbacks",
    "trace": "program startup",
    "lower": "program startup",
    "compile": "program startup",
    "collect": "garbage collection",
}
"""The account that the time of an event belongs to."""
_WORK = {"trace": "tracing", "lower": "lowering", "compile": "compiling"}

_ANY = object()
_WHOLE = ("fit", "evaluation", "checkpoint save", "checkpoint restore", "resuming", "tuning")  # spans of any length
_AROUND = ("fit", "resuming", "tuning")  # spans that hold steps


class StepRecord(NamedTuple):
    """One step by the host clock."""

    step: int
    kind: str
    start_ns: int  # by the monotonic clock
    end_ns: int
    input_ns: int | None = None  # of it, waiting for input; None if unknown
    callbacks_ns: int | None = None  # of it, in callbacks of the framework
    dispatch_ns: int | None = None  # of it, before the framework is asked to compute
    rule: str = "mark"  # of ``tpunb.schema.RULE``
    launches_ns: tuple[int, int] | None = None  # when the host launched its work, if not from start to end
    done: bool = True  # whether start and end are known; if not, they are those of its launches
    peers_ns: int | None = None  # of it, without work where a rank waits for others; None if it has none
    size: Size | None = None  # of its batches, None if none was fetched


@dataclass(eq=False, slots=True)
class OpenStep:
    """A step by the time of the host, which may run ahead of its devices."""

    step: int
    kind: str
    start_ns: int
    annotation: AbstractContextManager[Any] | None = None
    complete: bool = True
    explicit: bool = False
    rule: str = "mark"
    input_ns: int | None = None
    callbacks_ns: int | None = None
    dispatch_ns: int | None = None
    requested: bool = False  # its batch, while the batch itself has not begun
    lasts: bool = False  # to the next step, rather than to the end of a mark
    end_ns: int = 0
    next_ns: int | None = None  # when the next begins
    launched_ns: int = 0  # when its last launch returned
    work: Work | None = None  # of that launch
    owner: tuple[int, int | None] = (0, None)  # thread and task that began it
    what: What | None = None  # that marked it
    number: int | None = None  # of the program
    begun_ns: int = 0  # when the program ran on after its mark: the fetch of its batch may come before
    dispatched_ns: int = 0  # when the framework was asked to compute
    size: Size | None = None  # of its batches
    batches: list[Event] = field(default_factory=list)  # that are not in it yet

    def launched(self, work: Work | None, now_ns: int) -> None:
        """Record a launch."""
        if self.work is not None:
            self.work.superseded = True
        self.work, self.launched_ns = work, now_ns

    @property
    def host_end_ns(self) -> int:
        """When the host began the next step, or ended this one if there is none yet."""
        return self.end_ns if self.next_ns is None else self.next_ns

    def record(self, end_ns: int) -> StepRecord:
        """Return it by the time of the host."""
        causes = self.input_ns, self.callbacks_ns, self.dispatch_ns
        size = (
            added([*([self.size] if self.size else []), *map(event_size, self.batches)]) if self.batches else self.size
        )
        record = StepRecord(self.step, self.kind, self.start_ns, max(self.start_ns, end_ns), *causes, self.rule)
        return record._replace(size=size)


class StepClock:
    """Record the number, kind, start and end of every step before `until`; one thread at a time calls it."""

    def __init__(
        self, annotate: Annotate, *, until: int | None = None, reached: Callable[[], None] = lambda: None
    ) -> None:
        self._annotate = annotate
        self._until = sys.maxsize if until is None else until
        self._reached = reached
        self.is_closed = False
        self._open: OpenStep | None = None
        self._next = 0
        self.count = 0  # completed steps
        self.metadata: dict[str, str] = {}  # of the model that runs
        self.steps_before: int | None = None  # training steps of the job before step 0, if known
        self.step_flops: set[float | None] = set()  # of the training steps of models that were fitted
        self.fitted: tuple[Any, Any] | None = None  # model and data of the last fit
        self._ended: deque[OpenStep] = deque()  # `take` makes records of them
        self._last: OpenStep | None = None  # that ended, while later launches may belong to it
        self._unnoted: deque[tuple[OpenStep, int]] = deque()  # that are to be handed on, with their ends
        self._computed_ns = self._ended_ns = 0  # when the last marked step had computed, and ended
        self.has_peers = False  # whether other ranks take part in the steps
        self._waits: deque[tuple[int, int]] = deque(maxlen=LIMITS.most_samples)  # for them: start and time
        self._launches = False  # whether there was any launch
        self.events = EventLog(user_frame)
        self.in_flight = InFlight(on_done=self._on_done)
        self._times = StepTimes()
        self._latest: Work | None = None
        self.annotates = False  # whether the clock enters an annotation of the framework now
        self.on_step: Callable[[StepRecord], None] = lambda _: None  # called as a step ends, in the thread that trains
        self.on_span: Callable[[Spent], None] = lambda _: None  # likewise, as a span ends
        self.boundary: Callable[[], None] = lambda: None  # called between steps: a source may have something to do
        self.on_mark: Callable[[Event], tuple[int, int | None, Size | None] | None] = lambda _: (
            None
        )  # as a mark begins and ends
        self.on_fetch: Callable[[Event], None] = lambda _: None  # called as a batch of a marked step is fetched
        self.current: Callable[[], StepRecord | None] = lambda: None  # the step of a loop without marks
        self.folded_ns: Callable[[], int] = lambda: 0  # when the last event of such a loop ended
        self.catch_up: Callable[[], object] = lambda: None  # makes steps of such a loop, of what happened until now
        self.is_traced: Callable[[], bool] = lambda: False  # whether a window is requested
        self.again: tuple[str, str | None] = "", None  # a function that is compiled now, and why again
        self._warned = False
        self._spans: deque[tuple[Spent, Work | None]] = deque()  # with the work in flight at their start
        self._thread = get_ident()  # that trains
        self._trainer: Thread | None = None  # the same, if it began to train in the block
        self._accounts: list[str] = []  # that the program is in now
        self._other_ns = 0  # spans within waits for input
        self._progress_ns = monotonic_ns()
        self._recent: defaultdict[str, deque[int]] = defaultdict(lambda: deque(maxlen=LIMITS.typical_steps))  # by kind
        # and the steps it is of
        self._typical: tuple[tuple[int, str | None] | None, int] = (None, LIMITS.first_step_ns)

    def begin(
        self,
        kind: str,
        *,
        step: int | None = None,
        complete: bool = True,
        explicit: bool = False,
        rule: str = "keras",
        what: What | None = None,
    ) -> OpenStep | None:
        """Begin a step, which ends the one before; return it for `end`, or None if the clock is closed.

        Inside an `explicit` step, which the program marks itself, it returns None and changes nothing. A step that is
        not `complete` waits for a call of `complete`.
        """
        if (ending := self._open) is not None:
            if ending.explicit:
                if explicit:
                    self._check_owner(ending)
                return None
            self.end()
        self.boundary()
        if self.is_closed:
            return None
        what = what or What(next((library for library in MARKS if MARKS[library] == rule), rule), "", "")
        begun_ns = monotonic_ns()
        fetch = self.on_mark(Event("mark", begun_ns, begun_ns, what, kind, edge="begin"))
        number = self._next
        if step is not None:  # the program numbers its steps
            number, self.steps_before = self._rising(step, warn=rule == "mark"), 0
        if number >= self._until:
            self.close()
            self._reached()
            return None
        self._next = number + 1
        self.annotates = True
        annotation = self._annotate(kind, number)
        self._thread = get_ident()
        start_ns = self._progress_ns = monotonic_ns()
        owner = _owner() if explicit else (self._thread, None)
        opened = OpenStep(number, kind, start_ns, annotation, complete, explicit, rule, owner=owner)
        opened.what, opened.number, opened.begun_ns = what, step, start_ns
        if fetch is not None:  # before the mark
            opened.start_ns, opened.input_ns, opened.size = fetch
        if self._last is not None:
            self._last.next_ns, self._last = opened.start_ns, None
        if annotation is not None:
            annotation.__enter__()
        self.annotates = False
        self._open = opened
        return opened

    def add(self, step: OpenStep) -> None:
        """Record a step of a loop without marks; its number is given here."""
        if self.is_closed:
            return
        step.step = self._next
        if step.step >= self._until:
            self.close()
            self._reached()
            return
        self._next += 1
        self._ended.append(step)
        self._unnoted.append((step, step.end_ns))
        self._recent[step.kind].append(step.end_ns - step.start_ns)
        self.count += 1

    def launch(self, result: Result | None, now_ns: int) -> tuple[Work, bool]:
        """Return the work of a launch, and whether the devices, or the last marked step, worked until then."""
        self._launches = True
        before, step = self._latest, self._open or self._last
        work = self._latest = self.in_flight.watch(result, now_ns)
        free_ns = 0  # when the devices had done what was launched before
        if before is not None:
            free_ns = before.done_ns or before.by_ns or (0 if before.settled else now_ns)
        return work, now_ns - max(free_ns, 0 if step is None else step.end_ns) < IDLE_NS

    def extend(self, work: Work) -> None:
        """Let work belong to the step that is marked, or was last."""
        if (step := self._open or self._last) is not None:
            step.launched(work, work.launched_ns)

    def _on_done(self, launched_ns: int, done_ns: int, seen: str) -> None:
        self.events.add("done", None, None, launched_ns, done_ns, end_of=seen)

    @property
    def opened(self) -> OpenStep | None:
        """The open step, which Keras or the program marks."""
        return self._open

    @property
    def thread(self) -> int:
        """The thread that trains."""
        return self._thread

    @property
    def account(self) -> str | None:
        """The account that the program is in now, None if it is in none that is known."""
        return next(iter(self._accounts[-1:]), None)

    @property
    def signalled_ns(self) -> int:
        """When a step, or a part of one, ended last; 0 if none has."""
        return max(self._ended_ns, self._computed_ns, self.folded_ns())

    @property
    def usual_ns(self) -> int:
        """Usual time of a step of the longest kind, 0 without steps."""
        return max((_usual_ns(recent.copy()) for recent in [*self._recent.values()] if recent), default=0)

    def is_in(self, account: str) -> bool:
        """Return whether the program is in an account now."""
        return account in self._accounts

    @property
    def loads(self) -> bool:
        """Whether the program waits for input now."""
        return self.is_in("data loading")

    def adopt(self) -> None:
        """Take this thread for the one that trains."""
        if not self.is_adopted:
            self._thread, self._trainer = get_ident(), current_thread()

    @property
    def is_adopted(self) -> bool:
        """Whether this thread began to train in the block."""
        return self._trainer is not None and self._thread == get_ident()

    @property
    def kinds(self) -> list[str]:
        """Kinds of the steps that ended."""
        return sorted(kind for kind, recent in [*self._recent.items()] if recent)

    @property
    def has_lost_its_thread(self) -> bool:
        """Whether the thread that trained has ended, and no other trains."""
        return self._trainer is not None and not self._trainer.is_alive()

    def _check_owner(self, opened: OpenStep) -> None:
        """Warn once if another thread or task marks a step inside an open one, which is not recorded."""
        if opened.owner != _owner() and not self._warned:
            self._warned = True
            problem = f"two threads or tasks mark steps at once: those inside step {opened.step} are not recorded"
            warn_user(f"{problem}; mark the steps of one", stacklevel=5)

    def _rising(self, step: int, *, warn: bool) -> int:
        """Return a number of the program, or the next if it is not above the last."""
        if warn and step < self._next and not self._warned:
            self._warned = True
            warn_user(f"step {step} is not above the last; steps are numbered on from {self._next}", stacklevel=5)
        return max(step, self._next)

    def close(self) -> None:
        """Stop recording steps and drop the open one."""
        self.is_closed = True
        self.events.close()
        self.in_flight.close()

    def complete(self) -> None:
        """Mark the open step as complete; it lasts until the next begins."""
        self._progress_ns = monotonic_ns()
        if self._open is not None:
            self._open.complete = True

    def computed(self) -> None:
        """Complete the open step, which has computed: a kill from now on cannot undo that."""
        self.complete()
        if (step := self._open) is not None and not step.explicit and not self.is_closed:
            if step.dispatched_ns:
                self.events.add("call", step.what, step.kind, step.dispatched_ns, self._progress_ns)
            before_ns, self._computed_ns = self._computed_ns, self._progress_ns
            self._note(step, self._progress_ns, before_ns)

    def waited(self, start_ns: int, worked_ns: int, what: What | None = None) -> int:
        """Record and return what the thread did not work in a call in which ranks wait for each other."""
        # from the start by the clock, and by that of the thread: a backward pass computes, too
        end_ns = monotonic_ns()
        wait_ns = max(0, end_ns - start_ns - (thread_time_ns() - worked_ns))
        if what is not None:  # else of `during`, which records it
            self.events.add("wait", what, None, end_ns - wait_ns, end_ns)
        self._waits.append((start_ns, wait_ns))
        return wait_ns

    def _note(self, step: OpenStep, end_ns: int, before_ns: int) -> None:
        """Hand on a step that ends, some time after the one before; short ones of a library with those that follow."""
        self._unnoted.append((step, end_ns))
        if step.explicit or end_ns - before_ns >= LIMITS.events_rest_ns or len(self._unnoted) > LIMITS.tail_steps:
            self.settle()

    def settle(self) -> None:
        """Make steps of what happened until now, and hand on those that have ended."""
        self.catch_up()
        while self._unnoted:
            try:
                step, end_ns = self._unnoted.popleft()
            except IndexError:  # another thread hands it on
                return
            if step.end_ns not in (0, end_ns):  # it had computed, and has ended since
                continue
            record = step.record(end_ns)
            if self.has_peers:
                waits = self._waits.copy()
                record = record._replace(peers_ns=sum(ns for at, ns in waits if step.start_ns <= at < end_ns))
            self.on_step(record)

    def _peers_ns(self, step: OpenStep) -> int | None:
        """Return how long a step waited for other ranks, None if there are none; steps come in order."""
        total_ns = 0
        while self._waits and self._waits[0][0] < step.end_ns:
            start_ns, wait_ns = self._waits.popleft()
            total_ns += wait_ns if start_ns >= step.start_ns else 0
        return total_ns if self.has_peers else None

    def draw(
        self,
        function: Callable[[S], T],
        source: S,
        what: What | None = None,
        holds: Callable[[Hashable, T], Holds] | None = None,
    ) -> T:
        """Return ``function(source)``, and record its time as input wait, but for checkpoints and trials within it."""
        step, other_ns, end_of, arrays, kept = self._open, self._other_ns, None, None, None
        start_ns = self.enter("data loading")
        try:
            batch = function(source)
            try:
                arrays, kept = (None, None) if holds is None else holds(id(source), batch)
            except Exception:  # noqa: BLE001  a batch that is not understood ends no training
                arrays, kept = None, None
            return batch
        except StopIteration:
            end_of = END_OF_DATA
            raise
        finally:
            end_ns = self.leave()
            self.events.add("fetch", what, id(source), start_ns, end_ns, end_of=end_of, arrays=arrays, number=kept)
            fetch = Event("fetch", start_ns, end_ns, what, id(source), arrays=arrays, end_of=end_of, number=kept)
            self.on_fetch(fetch)
            waited_ns = end_ns - start_ns - (self._other_ns - other_ns)
            if step is not None and step is self._open and self.trains_here:
                step.input_ns = (step.input_ns or 0) + (waited_ns if waited_ns > 0 else 0)
                if end_of is None:
                    step.batches.append(fetch)

    def request(self, kind: str, what: What | None = None) -> None:
        """Begin a step with the request of its batch."""
        if (step := self.begin(kind, complete=False, what=what)) is not None:
            step.requested = True

    def forget_input(self) -> None:
        """Let the wait for input of the open step be unknown: its batches are drawn as it computes."""
        if self._open is not None:
            self._open.input_ns = None

    def begin_batch(self, kind: str, detail: str | None = None, what: What | None = None) -> None:
        """Begin a step, unless the request of its batch did: what the iterator took since then is `detail`."""
        if (step := self._open) is not None and step.requested:
            step.requested, step.what = False, what
            self.add_span(Spent("data loading", detail, self._progress_ns, monotonic_ns()))
        else:
            self.begin(kind, complete=False, what=what)

    def dispatched(self) -> None:
        """Record that the open step computes from now on."""
        if (step := self._open) is not None and not step.explicit:
            step.dispatched_ns = monotonic_ns()
            step.dispatch_ns = max(
                0, step.dispatched_ns - step.start_ns - (step.input_ns or 0) - (step.callbacks_ns or 0)
            )

    @contextmanager
    def within(self, account: str, detail: str | None = None, **event: Any) -> Iterator[None]:
        """Record the block as a span of an account, and as the event of `on_spent`."""
        start_ns = self.enter(account)
        try:
            yield
        finally:
            self.on_spent(Spent(account, detail, start_ns, self.leave()), **event)

    @contextmanager
    def during(self, event: str, what: What, reason: str | None = None) -> Iterator[None]:
        """Record the block as an event: of calls of a kind within each other, the outer is what the program does."""
        account = ACCOUNT_OF[event]
        if not self.trains_here or self.is_in(account):
            yield
            return
        start_ns, worked_ns = self.enter(account), thread_time_ns()
        try:
            yield
        finally:
            wait_ns = self.waited(start_ns, worked_ns) if event == "wait" else None
            end_ns = self.leave()
            self.past(event, what, start_ns if wait_ns is None else end_ns - wait_ns, end_ns, reason)

    def past(self, event: str, what: What, start_ns: int, end_ns: int, reason: str | None = None) -> None:
        """Record an event that has ended."""
        account = ACCOUNT_OF[event]
        if end_ns - start_ns < LIMITS.shortest_span_ns and account not in _WHOLE:  # as most garbage collections
            return
        detail = what.name
        if event in _WORK:
            method = running_method() if detail == STEP_FUNCTION else None
            detail = cut(f"{_WORK[event]} {f'the step of {method}' if method else detail}")
            detail += f" again for {cut(plain(reason), 120)}" if reason else ""
        event, key = "trace" if event == "lower" else event, what.name if event in _WORK else None
        self.on_spent(Spent(account, detail, start_ns, end_ns), event=event, what=what, key=key, end_of=reason)

    def enter(self, account: str) -> int:
        """Let `progress` say that the program is in this account until `leave`; return the time."""
        self._accounts.append(account)
        self._progress_ns = monotonic_ns()
        return self._progress_ns

    def leave(self) -> int:
        """End what `enter` began; return the time."""
        self._accounts.pop()
        self._progress_ns = monotonic_ns()
        return self._progress_ns

    def calls(self, callbacks: Iterable[Any], hook: str) -> Iterator[Any]:
        """Yield the callbacks whose hook is called, and record the time until the next is asked for."""
        step, running = self._open, None
        self._accounts.append("callbacks")
        begun_ns = start_ns = end_ns = self._progress_ns = monotonic_ns()
        try:
            for running in callbacks:
                yield running
                end_ns = self._progress_ns = monotonic_ns()
                if end_ns - start_ns >= LIMITS.shortest_span_ns:
                    self._called(running, hook, start_ns, end_ns)
                start_ns = end_ns
                running = None
        finally:
            self._accounts.pop()
            if running is not None:  # the call raised
                end_ns = monotonic_ns()
                self._called(running, hook, start_ns, end_ns)
            if step is not None and self._open is step:
                step.callbacks_ns = (step.callbacks_ns or 0) + max(0, end_ns - begun_ns)

    def _called(self, callback: object, hook: str, start_ns: int, end_ns: int) -> None:
        kind = type(callback)
        what = What(kind.__module__.partition(".")[0], kind.__module__, f"{kind.__qualname__}.{hook}")
        self.on_spent(Spent("callbacks", f"{kind.__name__}.{hook}", start_ns, end_ns), what=what)

    def on_spent(
        self,
        spent: Spent,
        *,
        event: str | None = None,
        what: What | None = None,
        key: str | None = None,
        end_of: str | None = None,
    ) -> None:
        """Record what a library did: as an event, that of the account without another, and as a span."""
        account = ACCOUNTS.get(spent.account)
        if event := event or (account.event if account else ""):
            self.events.add(event, what, key, spent.start_ns, spent.end_ns, end_of=end_of)
        self.add_span(spent)

    def add_span(self, spent: Spent) -> None:
        """Record a span of the thread that trains, unless it is part of a wait for input."""
        whole, dur_ns = spent.account in _WHOLE, spent.end_ns - spent.start_ns
        waits = "data loading" in self._accounts
        if self.is_closed or not self.trains_here or not (whole or (dur_ns >= LIMITS.shortest_span_ns and not waits)):
            return
        self._spans.append((spent, None if spent.account in _AROUND else self._latest))
        self.on_span(spent)
        if waits:  # our own work as Keras asks for the next batch
            self._other_ns += max(0, dur_ns)

    @property
    def trains_here(self) -> bool:
        """Whether this thread trains."""
        return self._thread == get_ident()

    def progress(self) -> Progress:
        """Return when the program last gave a sign of progress, and where it is."""
        step, account = self._open, self.account
        # a callback is long by the shortest kind of step, whichever it is called in
        key = self.count, None if step is None or account == "callbacks" else step.kind
        if key != self._typical[0]:
            of_kind = self._recent.get(key[1] or "")
            usual = map(_usual_ns, [of_kind.copy()] if of_kind else [each.copy() for each in [*self._recent.values()]])
            self._typical = key, min(usual, default=LIMITS.first_step_ns)
        computes = self._latest is not None and self._latest.runs  # the program may well wait for that
        since_ns = None if self.is_closed or computes else self._progress_ns
        number, computes = None if step is None else step.step, computes and not self.is_closed
        return Progress(self._thread, since_ns, number, account, self._typical[1], computes)

    def mark_progress(self, now_ns: int | None = None) -> None:
        """Give a sign of progress."""
        self._progress_ns = now_ns or monotonic_ns()

    def take_spans(self) -> list[Spent]:
        """Return the spans that ended since the last call."""
        taken = []
        while self._spans:
            spent, work = self._spans[0]
            if work is not None and not work.settled and not self.is_closed:
                break
            self._spans.popleft()
            if work is not None and work.done_ns is not None and work.done_ns > spent.start_ns:
                spent = spent._replace(start_ns=min(work.done_ns, spent.end_ns))
            taken.append(spent)
        return taken

    def end(self, step: object = _ANY) -> None:
        """End the open step; if `step` is given, only if it is that one, and never for None.

        An incomplete one, as Keras begins at the end of data of unknown length, becomes part of the step before.
        """
        ending = self._open
        if ending is None or (step is not _ANY and step is not ending):
            return
        self._open = None
        self._exit(ending)
        if not ending.complete:
            self._next = ending.step
            ending.step -= 1
        end_ns = monotonic_ns()
        if ending.step >= 0 and not self.is_closed:
            ending.end_ns = self._progress_ns = end_ns
            self._ended.append(ending)
            if ending.explicit and ending.complete:
                self._last = ending
            end_of = (NEXT if ending.lasts else None) if ending.complete else END_OF_DATA
            self.events.add(
                "mark", ending.what, ending.kind, ending.begun_ns, end_ns, end_of=end_of, number=ending.number
            )
            if ending.complete:
                self._note(ending, end_ns, self._ended_ns)
                self._ended_ns = end_ns
                self._recent[ending.kind].append(ending.end_ns - ending.start_ns)
                self.count += 1
        self._unmark(ending, end_ns, "end" if ending.complete else "join")

    @staticmethod
    def _exit(step: OpenStep) -> None:
        annotation, step.annotation = step.annotation, None
        if annotation is not None:
            annotation.__exit__(None, None, None)

    def _unmark(self, step: OpenStep, end_ns: int, edge: str) -> None:
        self.on_mark(Event("mark", step.begun_ns, end_ns, step.what, step.kind, number=step.number, edge=edge))

    def exit(self, *, done: bool) -> None:
        """End the open step of a framework's loop; if an exception ended the loop, drop an incomplete one."""
        if self._open is not None and not self._open.explicit:
            (self.end if done else self.discard)()

    def discard(self) -> None:
        """End the open step, or drop it if it is incomplete."""
        step = self._open
        if step is not None and not step.complete:
            self._open = None
            self._next = step.step
            self._exit(step)
            self._unmark(step, monotonic_ns(), "drop")
        self.end()

    def open_step(self) -> StepRecord | None:
        """Return the open step as if it ended now."""
        self.catch_up()
        step = self._open
        return self.current() if step is None else step.record(monotonic_ns())

    def take(self, *, final: bool = False) -> list[StepRecord]:
        """Return the steps whose work is done since the last call, in order; at the end, all."""
        self.settle()
        taken = []
        while self._ended and (final or self._is_done(self._ended[0])):  # the training may end a step at any moment
            taken.append(self._record(self._ended.popleft()))
        return taken

    def untaken(self) -> list[StepRecord]:
        """Return the steps that `take` did not return yet, by the time of the host."""
        self.settle()
        return [
            step.record(step.host_end_ns)._replace(done=step.work is None or step.work.settled)
            for step in self._ended.copy()
        ]

    def _is_done(self, step: OpenStep) -> bool:
        if not self._launches or step.rule == "keras":
            return True
        later = step.next_ns is not None or monotonic_ns() - step.end_ns > LIMITS.late_launch_ns
        return later and (step.work is None or step.work.settled)

    def _record(self, step: OpenStep) -> StepRecord:
        """Return a step from the end of the work before it, if it began earlier, to the end of its own."""
        end_ns = step.launched_ns if step.lasts and step.launched_ns else step.end_ns
        if (work := step.work) is not None:
            end_ns = max(end_ns, self._times.done(work.launched_ns, work.done_ns, work.by_ns))
        start_ns, end_ns, waited_ns = self._times.of(step.start_ns, end_ns, step.input_ns)
        record = step.record(step.host_end_ns)._replace(peers_ns=self._peers_ns(step))
        if step.rule == "keras":
            return record
        return record._replace(
            start_ns=start_ns,
            end_ns=end_ns,
            input_ns=waited_ns,
            # where the host runs ahead, it launches a step before the devices begin it
            launches_ns=(record.start_ns, record.end_ns) if start_ns > step.start_ns else None,
        )

    def drain(self) -> None:
        """Wait for work in flight, at most for a time; an interrupt ends the wait."""
        until = monotonic() + LIMITS.drain_s
        while self._latest is not None and not self._latest.settled and monotonic() < until:
            sleep(LIMITS.watch_rest_s / 10)


def _owner() -> tuple[int, int | None]:
    """Return the thread, and the task of asyncio, that runs now."""
    tasks = sys.modules.get("asyncio.tasks")
    try:
        return get_ident(), None if tasks is None else id(tasks.current_task())
    except (RuntimeError, AttributeError):  # no loop runs in this thread, or it is being imported
        return get_ident(), None


def _usual_ns(recent: deque[int]) -> int:
    """Return the typical step time: the first steps may compile, so that the shortest of a few is usual."""
    return int(median(recent)) if len(recent) > 4 else min([*recent, *[LIMITS.first_step_ns] * (len(recent) < 2)])
