"""Stats of an XPlane's events, event metadata and planes, by name.

A stat may be a string, a reference to a string, or a signed or unsigned number; each is read as the requested type, and
null if it is of another. Columns are NumPy arrays, because a column of Polars costs as much as a thousand events.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from tpunb import schema
from tpunb.io.event_ids import flow_id, run_launch
from tpunb.protobuf.table import Bytes, Ints, MessageMaps, Messages, Rows, integer, text

_NAME = text(2)
_DOUBLE, _UINT64, _INT64, _STR, _BYTES, _REF = 2 << 3 | 1, integer(3), integer(4), text(5), text(6), integer(7)

Ids = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]

_NONE = np.uint64(2**64 - 1)


@dataclass(frozen=True, eq=False)
class Numbers:
    """A column of numbers; None stands for a column of nulls."""

    values: npt.NDArray[Any]
    valid: Mask

    def take(self, rows: Rows) -> Numbers:
        """Return some rows."""
        return Numbers(self.values.take(rows), self.valid.take(rows))


class Words:
    """The distinct texts of a file; columns of text hold their numbers, 0 for null."""

    def __init__(self) -> None:
        self._number: dict[str | None, int] = {None: 0}
        self._series = pl.Series([None], dtype=schema.NAME)
        self._lock = threading.Lock()

    def add(self, words: Iterable[str | None]) -> Rows:
        """Return the number of each text."""
        words, number = [*words], self._number
        with self._lock:
            new = [word for word in dict.fromkeys(words) if word not in number]
            number.update(zip(new, count(len(number)), strict=False))
            return np.fromiter(map(number.__getitem__, words), np.int32, len(words))

    def series(self) -> pl.Series:
        """Return the texts so far by number."""
        with self._lock:
            if len(self._series) < len(self._number):
                self._series = pl.Series([*self._number], dtype=schema.NAME)
            return self._series


class StatNames:
    """The stats metadata of planes: names of stats, and strings that stats refer to."""

    def __init__(self, planes: Messages, tag: int, words: Words) -> None:
        self.metadata, self.words = MessageMaps(planes, tag), words
        values = self.metadata.values
        self._text, self.texts = values.distinct(values.columns(_NAME)[0])
        self._at = {text: at for at, text in enumerate(self.texts)}

    def read(
        self, messages: Messages, planes: Rows, tags: Sequence[int], tag: int, names: Sequence[str]
    ) -> tuple[list[Ints], Stats]:
        """Return fields of messages of planes, and the stats `names` in their field `tag`, read in one pass."""
        columns = {name: column for column, name in enumerate(name for name in names if name in self._at)}
        of_text = np.full(len(self.texts), -1, np.int32)
        of_text[[self._at[name] for name in columns]] = np.arange(len(columns))
        fields, values, kinds, used = messages.scan(tags, tag, self.metadata, planes, of_text[self._text], len(columns))
        columns = {name: column for name, column in columns.items() if used[column]}
        return list(fields), Stats(self, messages, planes, columns, values, kinds)

    def referred(self, plane: Rows, key: Ints, clean: Callable[[str], str]) -> Rows:
        """Return the numbers of the strings that stats refer to, each cleaned."""
        at = np.append(self._text, len(self.texts))[self.metadata.rows(plane, key)]
        used = np.zeros(len(self.texts) + 1, bool)
        used[at] = True
        rows = np.flatnonzero(used[:-1])
        number = np.zeros(used.size, np.int32)
        number[rows] = self.words.add(clean(self.texts[row]) or None for row in rows.tolist())
        return np.asarray(number[at])


@dataclass(frozen=True, eq=False)
class Stats:
    """Stats of messages, one value per message; `column` has the names of those that any message has."""

    names: StatNames
    messages: Messages
    planes: Rows
    column: Mapping[str, int]
    values: Ints
    kinds: Bytes

    def __getitem__(self, rows: Mask) -> Stats:
        return Stats(
            self.names, self.messages[rows], self.planes[rows], self.column, self.values[:, rows], self.kinds[:, rows]
        )

    def text(self, name: str, clean: Callable[[str], str] = str) -> Rows | None:
        """Return a stat as text, each cleaned; null if it is empty, of another type, or missing."""
        if name not in self.column:
            return None
        value, kind = self.values[self.column[name]], self.kinds[self.column[name]]
        numbers = np.zeros(kind.size, np.int32)
        refs, strings = np.flatnonzero(kind == _REF), np.flatnonzero(kind == _STR)
        if refs.size:
            numbers[refs] = self.names.referred(self.planes[refs], value[refs], clean)
        if strings.size:
            row, distinct = self.messages.distinct(value[strings])
            numbers[strings] = self.names.words.add(clean(word) or None for word in distinct)[row]
        return numbers

    def integer(self, name: str) -> Numbers | None:
        """Return a stat as Int64: integers, and strings of digits; null elsewhere."""
        if name not in self.column:
            return None
        value, kind = self.values[self.column[name]], self.kinds[self.column[name]]
        valid = (kind == _INT64) | ((kind == _UINT64) & (value >= 0))
        if not ((kind == _STR) | (kind == _REF)).any():
            return Numbers(value, valid)
        digits = self.series(name).cast(pl.String)
        read = digits.set(~digits.str.contains(r"^[0-9]{1,18}$"), None).cast(pl.Int64)
        return Numbers(np.where(valid, value, read.fill_null(0).to_numpy()), valid | read.is_not_null().to_numpy())

    def series(self, name: str, clean: Callable[[str], str] = str) -> pl.Series:
        """Return a stat as a column of text."""
        return as_text(self.names.words, self.text(name, clean), len(self.messages))

    def bytes(self, name: str) -> tuple[Ints, Mask]:
        """Return references to the bytes of a stat, empty if missing, and which messages have it."""
        if name not in self.column:
            return np.zeros(len(self.messages), np.int64), np.zeros(len(self.messages), bool)
        value, kind = self.values[self.column[name]], self.kinds[self.column[name]]
        return np.where(kind == _BYTES, value, 0), kind == _BYTES

    def real(self, name: str) -> Numbers | None:
        """Return a stat as Float64; null if it is negative, not a number, or missing."""
        if name not in self.column:
            return None
        value, kind = self.values[self.column[name]], self.kinds[self.column[name]]
        number = np.where(kind == _DOUBLE, value.view(np.float64), value.astype(np.float64))
        return Numbers(number, np.isin(kind, (_DOUBLE, _INT64, _UINT64)) & (number >= 0) & np.isfinite(number))

    def flow(self, kind: str, number: str) -> Numbers | None:
        """Return ids of flows, see :func:`tpunb.io.event_ids.flow_id`."""
        if number not in self.column:
            return None
        kinds, _ = self._ids(kind)
        numbers, valid = self._ids(number)
        return Numbers(flow_id(kinds, numbers), valid)

    def launch(self, ordinals: Ints | None) -> Numbers | None:
        """Return ids of launches from correlation id, else run and device, see :mod:`tpunb.io.event_ids`.

        `ordinals` are the numbers of the events' devices; None for hosts, whose events may name the device.
        """
        if not {"run_id", "correlation_id"} & self.column.keys():
            return None
        runs, valid = self._ids("run_id")
        devices, named = self._ids("device_ordinal")
        valid &= ~named | (devices != _NONE)  # TensorFlow does not count runs on host threads: all are -1
        if ordinals is None:
            is_thunk = self.kinds[self.column["hlo_op"]] != 0 if "hlo_op" in self.column else False
            devices = np.where(is_thunk | ~named, _NONE, devices)
        else:
            devices = ordinals.view(np.uint64)
        correlations, _ = self._ids("correlation_id")
        correlated = correlations != 0
        return Numbers(np.where(correlated, correlations, run_launch(runs, devices)), correlated | valid)

    @property
    def calls_driver(self) -> Mask:
        """Which events are calls of a device's driver: only these have a correlation id."""
        return np.asarray(self._ids("correlation_id")[0] != 0)

    def number(self, name: str) -> Numbers | None:
        """Return an id as Int64; numbers from 2^63 wrap."""
        if name not in self.column:
            return None
        numbers, valid = self._ids(name)
        return Numbers(numbers.view(np.int64), valid)

    def _ids(self, name: str) -> tuple[Ids, Mask]:
        """Return a stat as unsigned integers, 0 if it is none, and where it is one."""
        if name not in self.column:
            return np.zeros(len(self.messages), np.uint64), np.zeros(len(self.messages), bool)
        value, kind = self.values[self.column[name]], self.kinds[self.column[name]]
        valid = (kind == _INT64) | (kind == _UINT64)
        return np.where(valid, value, 0).view(np.uint64), valid


def first_word(*columns: Rows | None) -> Rows | None:
    """Return the first text that is not null of each row."""
    best = None
    for column in columns:
        if column is not None:
            best = column if best is None else np.where(best, best, column)
    return best


def first_number(*columns: Numbers | None) -> Numbers | None:
    """Return the first number that is not null of each row."""
    present = [column for column in columns if column is not None]
    best = present[0] if present else None
    for other in present[1:]:
        if best is not None and not best.valid.all():
            best = Numbers(np.where(best.valid, best.values, other.values), best.valid | other.valid)
    return best


def as_text(words: Words, numbers: Rows | None, n: int) -> pl.Series:
    """Return texts by number as a column of n rows."""
    return nulls(schema.NAME, n) if numbers is None else words.series()[numbers]


def as_series(column: Numbers | None, n: int, dtype: pl.DataType | None = None) -> pl.Series:
    """Return a column of n numbers, of Int64 if nothing else is said and all are null."""
    if column is None:
        return nulls(dtype or pl.Int64(), n)
    series = pl.Series(column.values)
    return series if column.valid.all() else series.set(pl.Series(~column.valid), None)


def nulls(dtype: pl.DataType, n: int) -> pl.Series:
    """Return a column of nulls."""
    return _null(dtype).new_from_index(0, n)


@cache
def _null(dtype: pl.DataType) -> pl.Series:
    return pl.Series([None], dtype=dtype)
