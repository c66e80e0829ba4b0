"""The steps of a recorded run: its events are read in the order in which they ended, and folded as they were live."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import polars as pl

from tpunb.frames.steps import RunEvents
from tpunb.instrument.events import MOST_NAMES
from tpunb.instrument.sink import END_OF_DATA, Signature, What
from tpunb.step_stats.step_fold import BY_THEN, HANDLERS, IDLE_NS, Event, Step, StepFold, StepTimes
from tpunb.text import plain, short_time

_OF_STEPS = pl.col("event").cast(pl.String).is_in([*HANDLERS])
_WHOLE = ".fit"  # ends the names of methods whose marks hold the steps of a training
_Thread = tuple[str, int]  # of a host


def steps_of(run: RunEvents, until: int | None = None) -> list[Step]:
    """Return the steps of a recorded run with numbers below `until`, with these, and as their work was done."""
    done = _done(run.events)
    steps, times, following = list[Step](), StepTimes(), 0
    for step in _folded(_recorded(run, done)):
        step.number = following if step.number is None else max(step.number, following)
        if until is not None and step.number >= until:
            break
        following, end, launch = step.number + 1, step.end, step.launch
        if launch is not None and (launch.event == "call" or launch.end in done):
            end = max(end, times.done(launch.end, *done.get(launch.end, (None, None))))
        placed = times.of(step.start, end, step.input)
        if step.rule != "keras":  # which waits for its work
            step.start, step.end, step.input = placed
        steps.append(step)
    return steps


def are_whole(run: RunEvents) -> bool:
    """Return whether each event that makes steps has a row of its own, and all that it refers to is known."""
    counted = run.events.filter(_OF_STEPS, pl.col("count") > 1)
    return counted.is_empty() and all(frame.height < MOST_NAMES for frame in run[1:])


def _folded(events: Iterable[tuple[_Thread, Event]]) -> list[Step]:
    steps, folds = list[Step](), dict[_Thread, StepFold]()
    for thread, event in events:
        fold = folds.get(thread) or folds.setdefault(thread, StepFold())
        steps += fold.add(event)
    return steps + [step for fold in folds.values() for step in fold.finish()]


_Done = Mapping[int, tuple[int | None, int | None]]


def _done(events: pl.DataFrame) -> _Done:
    """Return when launched work was done, and if that is not known, by when, by the end of its launch."""
    rows = events.filter(pl.col("event") == "done").select("start_ps", "end_ps", "end_of")
    return {launched: (None, end) if end_of == BY_THEN else (end, None) for launched, end, end_of in rows.iter_rows()}


def _recorded(run: RunEvents, done: _Done) -> Iterator[tuple[_Thread, Event]]:
    """Return the events that make steps, each with its host and thread, in the order in which they ended."""
    names = {(host, number): What(*(text or "" for text in what)) for host, number, *what in run.names.rows()}
    keys = {(host, number): name for host, number, name in run.keys.rows()}
    arrays = {(host, number): Signature(*texts) for host, number, *texts in run.signatures.rows()}
    rows = list[tuple[int, _Thread, Event]]()
    columns = "host", "thread", "event", "start_ps", "end_ps", "what", "place", "key", "arrays", "end_of", "number"
    for host, thread, kind, start, end, what, place, key, signature, end_of, number, count in (
        run.events.filter(_OF_STEPS).select(*columns, "count").iter_rows()
    ):
        named, of = keys.get((host, key)), names.get((host, what))
        event = Event(kind, start, end, of, named or key, place or 0, arrays.get((host, signature)), end_of, number)
        if kind == "mark" and (named is None or (of is not None and of.name.endswith(_WHOLE))):
            continue  # a method that trains
        for part in [event] if count == 1 else _spread(event, count):
            if kind == "mark":
                rows.append((part.start, (host, thread), part._replace(end=part.start, edge="begin")))
                part = part._replace(edge="join" if end_of == END_OF_DATA else "end")
            rows.append((part.end, (host, thread), part))
    rows.sort(key=lambda row: row[0])
    return _following(rows, done)


def _following(rows: Iterable[tuple[int, _Thread, Event]], done: _Done) -> Iterator[tuple[_Thread, Event]]:
    """Yield threads and events, of launches whether the devices worked until then."""
    free, marked = 0, 0  # when launched work was seen done at the latest, and the last mark ended
    for at, thread, event in rows:
        if event.event == "mark":
            marked = at if event.edge == "end" and (event.what is None or event.what.library != "keras") else 0
        elif event.event == "call" and isinstance(event.key, str):
            event = event._replace(follows=at - max(min(free, at), marked) < IDLE_NS * 1000)
            free = max(free, *filter(None, done.get(at, (at,))))
        elif event.event == "update" and at in done:
            event, free = event._replace(work=True), max(free, *filter(None, done[at]))
        yield thread, event


def _spread(event: Event, count: int) -> list[Event]:
    """Return events of which one row is known, since they were too frequent, as if they followed each other."""
    ends = [event.start + (event.end - event.start) * at // count for at in range(count + 1)]
    return [event._replace(start=start, end=end) for start, end in pairwise(ends)]


class Explanations(Sequence[str]):
    """Why each step of a run is one, of its kind, from the events that make it, in the order of the steps' numbers."""

    def __init__(self, run: RunEvents, until: int | None = None) -> None:
        self._steps = steps_of(run, until)
        self._places = {number: place for _, number, *place in run.places.rows()}

    def __len__(self) -> int:
        return len(self._steps)

    def __getitem__(self, at: Any) -> Any:
        step = self._steps[at]
        lines = [f'"{step.kind}" by the rule "{step.rule}": {step.reason}', *map(self._line, step.events)]
        return "\n".join(map(plain, lines))

    def _line(self, event: Event) -> str:
        what = event.key if event.what is None else event.what.name
        file, line, function = self._places.get(event.place, ("", "", ""))
        name = re.split(r"[\\/]", file)[-1]
        place = f"  {name}:{line} in {function}" if name else ""
        kinds = f"  ({event.arrays.takes}) -> {event.arrays.returns}" if event.arrays else ""
        took = short_time(event.end - event.start)
        return f"  {event.start / 1e12:10.6f} s  {took:>9}  {event.event:8} {what}{place}{kinds}"
