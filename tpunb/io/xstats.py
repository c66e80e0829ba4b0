"""Stats of an XPlane's events, event metadata and planes, by name.

A stat may be a string, a reference to a string, or a signed or unsigned number; each is read as the requested type, and
null if it is of another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from tpunb import schema
from tpunb.io import event_ids
from tpunb.io.protobuf_table import Bytes, Ints, MessageMap, Messages, Rows, integer, text

_NAME = text(2)
_DOUBLE, _UINT64, _INT64, _STR, _BYTES, _REF = 2 << 3 | 1, integer(3), integer(4), text(5), text(6), integer(7)

Ids = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]

_NONE = np.uint64(2**64 - 1)
_FLOW = np.uint64(event_ids.MULTIPLIER)


class StatNames:
    """The stats metadata of a plane: names of stats, and strings that stats refer to."""

    def __init__(self, plane: Messages, tag: int) -> None:
        self.metadata = MessageMap(plane, tag)
        self.words = self.metadata.values.text(self.metadata.values.columns(_NAME)[0])
        self._key = dict(zip(self.words, self.metadata.keys.tolist(), strict=True))  # the last of equal names

    def read(self, messages: Messages, tags: Sequence[int], tag: int, names: Sequence[str]) -> tuple[list[Ints], Stats]:
        """Return fields of messages, and the stats `names` in their field `tag`, read in one pass."""
        columns = {name: column for column, name in enumerate(name for name in names if name in self._key)}
        keys = {self._key[name]: column for name, column in columns.items()}
        fields, values, kinds = messages.scan(tags, tag, keys, len(columns))
        used = {name: column for name, column in columns.items() if kinds[column].any()}
        return list(fields), Stats(self, messages, used, values, kinds)


@dataclass(frozen=True, eq=False)
class Stats:
    """Stats of messages, one value per message; `column` has the names of those that any message has."""

    names: StatNames
    messages: Messages
    column: Mapping[str, int]
    values: Ints
    kinds: Bytes

    def _column(self, name: str) -> tuple[Ints, Bytes]:
        """Return values and types of a stat, 0 where a message does not have it."""
        if name in self.column:
            return self.values[self.column[name]], self.kinds[self.column[name]]
        return np.zeros(len(self.messages), np.int64), np.zeros(len(self.messages), np.uint8)

    def text(self, name: str, clean: Callable[[str], str] = str) -> pl.Series:
        """Return a stat as text, each cleaned; null if it is empty, of another type, or missing."""
        if name not in self.column:
            return nulls(schema.NAME, len(self.messages))
        value, kind = self._column(name)
        words = [""]
        code = np.zeros(kind.size, np.int32)
        refs, strings = np.flatnonzero(kind == _REF), np.flatnonzero(kind == _STR)
        if refs.size:
            code[refs] = len(words) + self.names.metadata.rows(value[refs])
            words += [*self.names.words, ""]
        if strings.size:
            row, distinct = self.messages.distinct(value[strings])
            code[strings] = len(words) + row
            words += distinct
        return gather(as_names([clean(word) or None for word in words]), code)

    def integer(self, name: str) -> pl.Series:
        """Return a stat as Int64: integers, and strings of digits; null elsewhere."""
        if name not in self.column:
            return nulls(pl.Int64(), len(self.messages))
        value, kind = self._column(name)
        number = (kind == _INT64) | ((kind == _UINT64) & (value >= 0))
        if not ((kind == _STR) | (kind == _REF)).any():
            return _masked(value, number)
        digits = self.text(name).cast(pl.String)
        read = digits.set(~digits.str.contains(r"^[0-9]{1,18}$"), None).cast(pl.Int64)
        return pl.Series(value).zip_with(pl.Series(number), read)

    def bytes(self, name: str) -> tuple[Ints, Mask]:
        """Return references to the bytes of a stat, empty if missing, and which messages have it."""
        value, kind = self._column(name)
        return np.where(kind == _BYTES, value, 0), kind == _BYTES

    def real(self, name: str) -> pl.Series:
        """Return a stat as Float64; null if it is negative, not a number, or missing."""
        value, kind = self._column(name)
        number = np.where(kind == _DOUBLE, value.view(np.float64), value.astype(np.float64))
        valid = np.isin(kind, (_DOUBLE, _INT64, _UINT64)) & (number >= 0) & np.isfinite(number)
        return _masked(number, valid)

    def flow(self, kind: str, number: str) -> pl.Series:
        """Return ids of flows, see :func:`tpunb.io.event_ids.flow_id`."""
        kinds, _ = self._numbers(kind)
        numbers, valid = self._numbers(number)
        return _masked((kinds + np.uint64(1)) * _FLOW + numbers, valid)

    def launch(self, ordinal: int | None) -> pl.Series:
        """Return ids of launches from correlation id, else run and device, see :mod:`tpunb.io.event_ids`.

        Parameters
        ----------
        ordinal
            Number of the device of these events; None for a host, whose events name the device, or none for a run on
            host threads.
        """
        runs, valid = self._numbers("run_id")
        devices, named = self._numbers("device_ordinal")
        valid &= ~named | (devices != _NONE)  # TensorFlow does not count runs on host threads: all are -1
        if ordinal is None:
            is_thunk = self._column("hlo_op")[1] != 0
            devices = np.where(is_thunk | ~named, _NONE, devices)
        else:
            devices = np.full_like(runs, ordinal)
        correlations, _ = self._numbers("correlation_id")
        correlated = correlations != 0
        numbers = np.where(correlated, correlations, runs * _FLOW + devices + np.uint64(1))
        return _masked(numbers, correlated | valid)

    @property
    def calls_driver(self) -> Mask:
        """Which events are calls of a device's driver: only these have a correlation id."""
        return np.asarray(self._numbers("correlation_id")[0] != 0)

    def number(self, name: str) -> pl.Series:
        """Return an id as Int64; numbers from 2^63 wrap."""
        numbers, valid = self._numbers(name)
        return _masked(numbers.view(np.int64), valid)

    def _numbers(self, name: str) -> tuple[Ids, Mask]:
        """Return a stat as unsigned integers, 0 if it is none, and where it is one."""
        value, kind = self._column(name)
        valid = (kind == _INT64) | (kind == _UINT64)
        return np.where(valid, value, 0).view(np.uint64), valid


def as_names(words: Sequence[str | None]) -> pl.Series:
    """Return names as a column."""
    return pl.Series(words, dtype=schema.NAME)


def gather(values: pl.Series, code: Rows | Ints | pl.Series) -> pl.Series:
    """Return the value of each code."""
    if values.null_count() == len(values):
        return nulls(values.dtype, len(code))
    return values[code]  # quicker than `gather`, which builds a query


def coalesce(values: pl.Series, *others: pl.Series) -> pl.Series:
    """Return the first value that is not null of each row."""
    for other in others:
        if values.null_count() and other.null_count() < len(other):
            values = other if values.null_count() == len(values) else values.zip_with(values.is_not_null(), other)
    return values


def nulls(dtype: pl.DataType, n: int) -> pl.Series:
    """Return a column of nulls."""
    return _null(dtype).new_from_index(0, n)


@cache
def _null(dtype: pl.DataType) -> pl.Series:
    return pl.Series([None], dtype=dtype)


_DTYPES = {np.dtype(np.int64): pl.Int64(), np.dtype(np.uint64): pl.UInt64(), np.dtype(np.float64): pl.Float64()}


def _masked(values: npt.NDArray[Any], valid: Mask) -> pl.Series:
    if not valid.any():
        return nulls(_DTYPES[values.dtype], values.size)
    series = pl.Series(values)
    return series if valid.all() else series.set(pl.Series(~valid), None)
