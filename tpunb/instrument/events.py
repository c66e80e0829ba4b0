"""What the libraries of a program were asked to do, as it happens: events, without any judgement.

An event is a call of a library that has ended, or a moment: who called what, from which line of the program, and when.
Any thread adds events, garbage collection at any moment, so that nothing here waits for a lock. The thread that adds
one notes it with its place; all else is done where rows are taken: as frames for the run folder, as bytes for its
journal.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import count
from operator import index
from struct import Struct
from threading import get_ident
from time import monotonic_ns
from types import FrameType
from typing import Any, Final, NamedTuple, SupportsIndex

import polars as pl

from tpunb import schema
from tpunb.instrument.sink import Signature, What
from tpunb.text import cut, plain

MOST_A_SECOND: Final = 1_000
"""Events of a kind, key, place and thread in a second: the others are one row that counts them and sums their times."""

MOST_NOTED: Final = 4_096
"""Events that wait to be rows, 1 MB, before the thread that adds one makes rows itself."""

MOST_ROWS: Final = 65_536
"""Rows that wait to be taken, 7 MB: what comes beyond is counted as lost, after 6 s at 10,000 events a second."""

MOST_NAMES: Final = 4_096
"""Different values of a kind, such as places: later ones are unknown. A large program has a few hundred."""

ROW = Struct("<qqqqqIIIIHHHxx")
"""Thread, start, end, sum of times, number, count, what, place, key, arrays, reason, event. Times are microseconds
since the origin. Ids, and numbers of events, begin at 1: a row of zeros holds none."""

FIELDS: Mapping[str, tuple[str, ...]] = {
    "names": ("library", "module", "name"),
    "places": ("file", "line", "function"),
    "keys": ("name",),
    "signatures": ("takes", "returns", "repeats"),
    "reasons": ("text",),
}
"""What is numbered, by the name of its table, and the columns beside its number."""

_COLUMNS = ("thread", "start", "end", "busy", "number", "count", "what", "place", "key", "arrays", "end_of", "event")
_NO_NUMBER: Final = -1
_EVENTS = {event: number for number, event in enumerate(schema.RUN_EVENT_KINDS, 1)}
_MOST_US: Final = 9 * 10**12  # 104 days: in picoseconds they fit Int64
_LONGEST, _LONGEST_IN_LINE = 1_024, 160  # characters of a text


class _Ids(dict[Hashable, int]):
    """Numbers of different values, from 1 in order of first use; 0 for None, and for values beyond the most."""

    def __init__(self) -> None:
        super().__init__({None: 0})
        self._numbers = count(1)
        self.unwritten, self.unjournaled = deque[tuple[int, Any]](), deque[tuple[int, Any]]()

    def __missing__(self, value: Hashable) -> int:
        if len(self) > MOST_NAMES:
            return 0
        made = next(self._numbers)
        if (number := self.setdefault(value, made)) == made:  # else another thread was faster
            self.unwritten.append((number, value))
            self.unjournaled.append((number, value))
        return number


class _Rate:
    """Events of one kind, key, place and thread in a second, and the row that counts those beyond the most."""

    __slots__ = ("count", "excess", "second")

    def __init__(self) -> None:
        self.second, self.count = -1, 0
        self.excess: list[list[int]] = []  # rows that count; the thread that pops one owns it


class EventLog:
    """Events of a run, until they are taken for its folder and its journal.

    Parameters
    ----------
    frame
        Returns the innermost frame of the program in this thread, or None.
    """

    def __init__(self, frame: Callable[[], FrameType | None]) -> None:
        self.origin_ns = monotonic_ns()  # of the run, by the monotonic clock; times are since then
        self.failure: Exception | None = None  # after which nothing is recorded
        self._closed = False
        self.lost = 0  # events that found no room
        self._frame = frame
        self._ids = {name: _Ids() for name in FIELDS}
        self._names, self._places, self._keys, self._signatures, self._reasons = self._ids.values()
        self._rates: dict[tuple[str, int, int, int], _Rate] = {}
        self._lines: dict[tuple[int, int], tuple[int, object]] = {}  # places by code and instruction, with the code
        self._noted = deque[tuple[Any, ...]]()  # events that are no rows yet
        self._rows, self._unjournaled = deque[bytes](), deque[bytes](maxlen=MOST_ROWS)

    def add(
        self,
        event: str,
        what: What | None,
        key: Hashable,
        start_ns: int,
        end_ns: int,
        *,
        arrays: Signature | None = None,
        end_of: str | None = None,
        number: SupportsIndex | None = None,
    ) -> int:
        """Record an event of this thread that has ended; return the id of its place, 0 if that is unknown.

        It never raises, and waits for nothing.

        Parameters
        ----------
        event
            One of ``tpunb.schema.RUN_EVENT_KINDS``.
        what
            What was called.
        key
            Which stream, function, optimizer or model it was called for: a number or a text.
        start_ns, end_ns
            When it began and ended, by the monotonic clock; the same for a moment.
        arrays
            What a function took and returned, in its first calls, or what a batch holds.
        end_of
            What a fetch or mark ended with; how a compilation differs from the last; how work was seen done.
        number
            Number of a step that the program gives; of a batch, elements that its mask keeps.
        """
        place = 0
        if self._closed:
            return place
        try:
            if (frame := self._frame()) is not None:
                code = frame.f_code
                at = id(code), frame.f_lasti
                place = (self._lines.get(at) or self._new_line(at, frame))[0]
            self._noted.append((get_ident(), event, what, key, start_ns, end_ns, place, arrays, end_of, number))
            if len(self._noted) >= MOST_NOTED:
                self._pack()
        except Exception as error:  # noqa: BLE001  must never reach the training
            self._fail(error)
        return place

    def _new_line(self, at: tuple[int, int], frame: FrameType) -> tuple[int, object]:
        """Return the id of a place, for which Python counts lines from the first of a function on: 60 µs of a long one.

        The code is kept, so that no other has its address.
        """
        if len(self._lines) >= MOST_NAMES:
            self._lines = {}
        code = frame.f_code
        line = self._lines[at] = self._places[code.co_filename, frame.f_lineno, code.co_qualname], code
        return line

    def _fail(self, error: Exception) -> None:
        self.failure, self._closed = error.with_traceback(None), True

    def _pack(self) -> None:
        """Make rows of the events noted so far; several threads may."""
        try:
            while self._noted:
                try:
                    noted = self._noted.popleft()
                except IndexError:  # another thread has taken it
                    return
                self._add_row(noted)
        except Exception as error:  # noqa: BLE001  must never reach the training
            self._fail(error)

    def _add_row(self, noted: tuple[Any, ...]) -> None:
        thread, event, what, key, start_ns, end_ns, place, arrays, end_of, number = noted
        start, end = (start_ns - self.origin_ns) // 1000, (end_ns - self.origin_ns) // 1000
        key_id = self._keys[key]
        kind = event, key_id, place, thread
        rate = self._rates.get(kind) or self._new_rate(kind)
        second = end // 1_000_000
        if rate.second != second:
            rate.second, rate.count = second, 0
            if rate.excess:
                self._settle(rate)
        rate.count += 1
        if rate.count > MOST_A_SECOND:
            with suppress(IndexError):  # there is none, or another thread has taken it
                counted = rate.excess.pop()
                counted[2], counted[3], counted[5] = max(counted[2], end), counted[3] + end - start, counted[5] + 1
                rate.excess.append(counted)
                return
        row = (
            *(thread, start, end, end - start, _NO_NUMBER if number is None else index(number), 1),
            *(self._names[what], place, key_id, self._signatures[arrays], self._reasons[end_of], _EVENTS[event]),
        )
        if rate.count > MOST_A_SECOND:
            rate.excess.append([*row])
        else:
            self._put(row)

    def _put(self, row: Sequence[int]) -> None:
        packed = ROW.pack(*row)
        if len(self._rows) < MOST_ROWS:
            self._rows.append(packed)
        else:
            self.lost += row[5]
        self._unjournaled.append(packed)

    def _new_rate(self, of: tuple[str, int, int, int]) -> _Rate:
        if len(self._rates) >= MOST_NAMES:  # such as of many threads
            self._settle(*self._rates.copy().values())
            self._rates = {}
        return self._rates.setdefault(of, _Rate())

    def _settle(self, *rates: _Rate) -> None:
        """Add the rows that count events of these rates."""
        for rate in rates:
            with suppress(IndexError):  # there is none any more
                while True:
                    self._put(rate.excess.pop())

    def close(self) -> None:
        """Record nothing more, and add the rows that count what was too frequent."""
        self._closed = True
        self._pack()
        self._settle(*self._rates.copy().values())

    # -- for the run folder, in the recording thread -------------------------------------------------------------------

    def take(self) -> Taken:
        """Return what was recorded since the last call whose result was handed to `forget`."""
        self._pack()
        second = (monotonic_ns() - self.origin_ns) // 1_000_000_000
        self._settle(*(rate for rate in self._rates.copy().values() if rate.excess and rate.second < second - 1))
        rows = [*self._rows.copy()]  # before what they refer to
        new = {name: [*ids.unwritten.copy()] for name, ids in self._ids.items()}
        return Taken(rows, new, {number: str(text) for text, number in self._reasons.copy().items() if number})

    def forget(self, taken: Taken) -> None:
        """Drop what was taken, once it is written."""
        for _ in taken.rows:
            self._rows.popleft()
        for name, ids in self._ids.items():
            for _ in taken.new[name]:
                ids.unwritten.popleft()

    # -- for the journal -----------------------------------------------------------------------------------------------

    def take_unjournaled(self) -> tuple[list[bytes], list[bytes]]:
        """Return packed rows, and lines of what has got a number, since the last call; for one thread at a time."""
        self._pack()
        rows = _emptied(self._unjournaled)  # before what they refer to
        return rows, [_line(name, *of) for name, ids in self._ids.items() for of in _emptied(ids.unjournaled)]


def _emptied(queue: deque[Any]) -> list[Any]:
    return [queue.popleft() for _ in range(len(queue))]


class Taken(NamedTuple):
    """What was taken of a log."""

    rows: list[bytes]
    new: dict[str, list[tuple[int, Any]]]  # what has got a number, by the name of its table
    reasons: dict[int, str]  # all so far

    def tables(self, host: str) -> dict[str, pl.DataFrame]:
        """Return the tables of a run folder, those without rows left out."""
        tables = {"events": frame_of(b"".join(self.rows), host, self.reasons)}
        for name in NAMED:
            rows = [(host, number, *_fields(name, value)) for number, value in self.new[name]]
            tables[name] = pl.DataFrame(rows, NAMED[name], orient="row")
        return {name: frame for name, frame in tables.items() if frame.height}


NAMED: Mapping[str, schema.Schema] = {
    "names": schema.RUN_NAMES,
    "places": schema.RUN_PLACES,
    "keys": schema.RUN_KEYS,
    "signatures": schema.RUN_SIGNATURES,
}
"""The tables of what events refer to by numbers."""


def _fields(table: str, value: Any) -> tuple[Any, ...]:
    """Return the columns of a numbered value."""
    if table == "keys":
        return (cut(value, _LONGEST) if isinstance(value, str) else None,)
    return (value,) if table == "reasons" else tuple(value)


def frame_of(packed: bytes, host: str, reasons: Mapping[int, str]) -> pl.DataFrame:
    """Return packed rows as ``tpunb.schema.RUN_EVENTS``; those that hold no event, or cannot be, are left out."""
    rows = [*ROW.iter_unpack(packed[: len(packed) // ROW.size * ROW.size])]  # arrays would import a part of NumPy
    frame = pl.DataFrame(rows, dict.fromkeys(_COLUMNS, pl.Int64), orient="row").filter(
        pl.col("event").is_between(1, len(_EVENTS)),
        pl.col("count") > 0,
        pl.col("end").is_between(pl.col("start"), _MOST_US),
        pl.col("busy").is_between(0, _MOST_US),
        pl.col("start") > -_MOST_US,
    )
    several = pl.col("count") > 1
    return frame.select(
        host=pl.lit(host),
        thread="thread",
        start_ps=pl.col("start").clip(0) * 1_000_000,
        end_ps=pl.col("end").clip(0) * 1_000_000,
        event=pl.col("event").replace_strict(
            {number: event for event, number in _EVENTS.items()}, return_dtype=pl.String
        ),
        **{name: pl.col(name).replace(0, None) for name in ("what", "place", "key", "arrays")},
        end_of=pl.col("end_of").replace_strict(reasons, default=None, return_dtype=pl.String),
        number=pl.col("number").replace(_NO_NUMBER, None),
        count="count",
        busy_ps=pl.when(several).then(pl.col("busy") * 1_000_000),
    ).cast(schema.RUN_EVENTS)  # type: ignore[arg-type]


def _line(table: str, number: int, value: Any) -> bytes:
    """Return a line that `named_of` reads."""
    fields = (text if text is None else cut(plain(str(text)), _LONGEST_IN_LINE) for text in _fields(table, value))
    return "\t".join([table, str(number), *("" if text is None else text for text in fields)]).encode(errors="replace")


def named_of(lines: Iterable[bytes], host: str) -> tuple[dict[str, pl.DataFrame], dict[int, str]]:
    """Return the tables of `NAMED`, and the reasons, that lines hold; others are left out."""
    rows: dict[str, list[tuple[Any, ...]]] = {name: [] for name in FIELDS}
    for line in lines:
        table, number, *fields = [*line.decode(errors="replace").split("\t"), ""]
        if number.isdecimal() and len(fields) == len(FIELDS.get(table, ())) + 1:
            rows[table].append((host, number, *(text or None for text in fields[:-1])))
    texts = {name: pl.DataFrame(rows[name], dict.fromkeys(NAMED[name], pl.String), orient="row") for name in NAMED}
    frames = {name: frame.cast(NAMED[name], strict=False).drop_nulls("id") for name, frame in texts.items()}  # type: ignore[arg-type]
    return frames, {int(number): str(text) for _, number, text in rows["reasons"]}
