"""Steps of a recorded run, by the fold of its events, whatever the capture took for steps."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import polars as pl

from tpunb import schema
from tpunb.frames.steps import RunEvents
from tpunb.instrument.events import MOST_NAMES
from tpunb.instrument.sink import END_OF_DATA, Signature, What
from tpunb.step_stats.step_fold import BY_THEN, HANDLERS, IDLE_NS, Event, Step, StepFold, StepTimes
from tpunb.text import plain, short_time

_WHOLE = ".fit"  # ends the names of methods whose marks hold the steps of a training
_IDLE_PS = IDLE_NS * 1000
_OF_STEPS = pl.col("event").cast(pl.String).is_in([*HANDLERS])
_MEASURED = ("input_ps", "callbacks_ps", "dispatch_ps", "peers_ps")
_MICROSECOND = 1_000_000
_Thread = tuple[str, int]  # of a host


class LoadedStep(NamedTuple):
    """A step with its number, and its times as its work was done, in picoseconds."""

    number: int
    start: int
    end: int
    input: int | None
    step: Step


def loaded_steps(run: RunEvents, until: int | None = None) -> list[LoadedStep]:
    """Return the steps of a recorded run, those with numbers below `until`, in the order in which they were found."""
    done = _done(run.events)
    found, times, next_number = list[LoadedStep](), StepTimes(), 0
    for step in _folded(_recorded(run, done)):
        number = next_number if step.number is None else max(step.number, next_number)
        if until is not None and number >= until:
            break
        next_number, end, launch = number + 1, step.end, step.launch
        if launch is not None and (launch.event == "call" or launch.end in done):
            end = max(end, times.done(launch.end, *done.get(launch.end, (None, None))))
        placed = times.of(step.start, end, step.input)
        placed = (step.start, step.end, step.input) if step.rule == "keras" else placed  # which waits for its work
        found.append(LoadedStep(number, *placed, step))
    return found


def judged_again(
    ticks: pl.DataFrame, run: RunEvents, until: int | None = None
) -> tuple[pl.DataFrame, pl.DataFrame | None]:
    """Return the rows of ``TICKS`` of `loaded_steps`, and (host, step, to) of the recorded ones that are still steps.

    The second is None if all are, and none has another number. What was measured in a recorded step is of the loaded
    step that it is in the midst of. Times that differ by less than a microsecond, which events lack, are as recorded;
    likewise those of runs of an earlier version, whose events do not say when work was done.
    """
    measured = [pl.when(pl.col(name).count() > 0).then(pl.col(name).sum()).name.keep() for name in _MEASURED]
    recorded = ticks.group_by("host", "step", maintain_order=True).agg(
        pl.col("found_by").first(),
        pl.col("start_ps").min().alias("from_ps"),
        pl.col("end_ps").max().alias("until_ps"),
        *measured,
    )
    columns: schema.Schema = {"to": pl.Int64(), "kind": pl.String(), "rule": pl.String()}
    columns |= dict.fromkeys(("start_ps", "end_ps", "waited_ps"), pl.Int64())
    rows = [(number, of.kind, of.rule, *times) for number, *times, of in loaded_steps(run, until)]
    loaded = pl.DataFrame(rows, columns, orient="row")
    if unchanged := recorded["step"].equals(loaded["to"]) and recorded["found_by"].equals(loaded["rule"]):
        moved = recorded.with_columns(to="step", same=pl.lit(value=True))
    else:
        moved = _moved(recorded, loaded)
    sums = moved.group_by("to").agg(
        pl.col("from_ps", "until_ps").filter("same").first(), *measured, same=pl.col("same").all() & (pl.len() == 1)
    )
    has_ends = run.events.filter(pl.col("event") == "done")["end_of"].null_count() == 0
    same = [
        (pl.col(name) - pl.col(by)).abs().lt(_MICROSECOND) if has_ends else pl.col(name).is_not_null()
        for name, by in (("from_ps", "start_ps"), ("until_ps", "end_ps"))
    ]
    found = loaded.join(sums, on="to", how="left", maintain_order="left").select(
        host=pl.lit(run.events["host"][0]),
        step="to",
        kind="kind",
        start_ps=pl.when(same[0]).then("from_ps").otherwise("start_ps"),
        end_ps=pl.when(same[1]).then("until_ps").otherwise("end_ps"),
        input_ps=pl.when("same").then("input_ps").otherwise("waited_ps"),
        callbacks_ps="callbacks_ps",
        dispatch_ps="dispatch_ps",
        found_by="rule",
        peers_ps="peers_ps",
    )
    return found, None if unchanged else moved.filter("same").unique("to").select("host", "step", "to")


def _moved(recorded: pl.DataFrame, loaded: pl.DataFrame) -> pl.DataFrame:
    """Return the recorded steps that are in the midst of a loaded one, with its number, and whether it is the same."""
    middle = (pl.col("start_ps") + pl.col("end_ps")) // 2
    loaded = loaded.select("to", "start_ps", "end_ps", middle_ps=middle).sort("start_ps")
    at = (pl.col("from_ps") + pl.col("until_ps")) // 2
    moved = recorded.with_columns(at_ps=at).sort("at_ps").join_asof(loaded, left_on="at_ps", right_on="start_ps")
    moved = moved.filter(pl.col("at_ps") <= pl.col("end_ps"))
    middles = loaded["middle_ps"].sort()
    within = middles.search_sorted(moved["until_ps"], "right") - middles.search_sorted(moved["from_ps"], "left")
    return moved.with_columns(same=(within == 1) & pl.col("middle_ps").is_between("from_ps", "until_ps"))


def steps_of(run: RunEvents) -> list[Step]:
    """Return the steps of a recorded run by the time of the host."""
    return _folded(_recorded(run, _done(run.events)))


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
            event = event._replace(follows=at - max(min(free, at), marked) < _IDLE_PS)
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

    def __init__(self, run: RunEvents) -> None:
        self._steps = steps_of(run)
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
