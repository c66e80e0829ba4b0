"""Statistics of an XPlane's events, event metadata and planes, by name.

One statistic may be a string here, a reference to a string there and a number elsewhere, signed or unsigned:
each is read as what is asked for, and null where it is something else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from tpunb import ids, schema
from tpunb.io.protobuf_table import Bytes, Ints, MessageMap, Messages, Rows, integer, text

_NAME = text(2)
_DOUBLE, _UINT64, _INT64, _STR, _BYTES, _REF = 2 << 3 | 1, integer(3), integer(4), text(5), text(6), integer(7)

Ids = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]

_NONE = np.uint64(2**64 - 1)
_FLOW = np.uint64(ids.MULTIPLIER)


class StatNames:
    """The statistics that a plane knows: their names, and the words that others refer to."""

    def __init__(self, plane: Messages, tag: int) -> None:
        self.metadata = MessageMap(plane, tag)
        self.words = self.metadata.values.text(self.metadata.values.columns(_NAME)[0])
        self._key = dict(zip(self.words, self.metadata.keys.tolist(), strict=True))  # of equal names the last

    def read(self, messages: Messages, tags: Sequence[int], tag: int, names: Sequence[str]) -> tuple[list[Ints], Stats]:
        """Return fields of messages, and the statistics `names` in their field `tag`, read in one pass."""
        known = {name: column for column, name in enumerate(name for name in names if name in self._key)}
        keys = {self._key[name]: column for name, column in known.items()}
        fields, values, kinds = messages.scan(tags, tag, keys, len(known))
        seen = {name: column for name, column in known.items() if kinds[column].any()}
        return list(fields), Stats(self, messages, seen, values, kinds)


@dataclass(frozen=True, eq=False)
class Stats:
    """Statistics of messages, one value a message; `column` has the names of those that any message bears."""

    names: StatNames
    messages: Messages
    column: Mapping[str, int]
    values: Ints
    kinds: Bytes

    def __contains__(self, name: object) -> bool:
        return name in self.column

    def has(self, name: str) -> Mask:
        """Say which messages bear the statistic."""
        if name not in self.column:
            return np.zeros(len(self.messages), np.bool_)
        there: Mask = self.kinds[self.column[name]] != 0
        return there

    def text(self, name: str, clean: Callable[[str], str] = str) -> pl.Series:
        """Return a statistic as words, each cleaned; null where it is empty, no text, or not there."""
        if name not in self.column:
            return _nulls(schema.NAME, len(self.messages))
        value, kind = self.values[self.column[name]], self.kinds[self.column[name]]
        words = [""]
        code = np.zeros(kind.size, np.int32)
        refs, strings = np.flatnonzero(kind == _REF), np.flatnonzero(kind == _STR)
        if refs.size:
            code[refs] = len(words) + self.names.metadata.rows(value[refs])
            words += [*self.names.words, ""]
        if strings.size:
            row, own = self.messages.distinct(value[strings])
            code[strings] = len(words) + row
            words += own
        return gather(as_words([clean(word) or None for word in words]), code)

    def whole(self, name: str) -> pl.Series:
        """Return a statistic as Int64: whole numbers, and strings of digits; null elsewhere."""
        if name not in self.column:
            return _nulls(pl.Int64(), len(self.messages))
        value, kind = self.values[self.column[name]], self.kinds[self.column[name]]
        number = (kind == _INT64) | ((kind == _UINT64) & (value >= 0))
        if not ((kind == _STR) | (kind == _REF)).any():
            return _known(value, number)
        digits = self.text(name).cast(pl.String)
        read = digits.set(~digits.str.contains(r"^[0-9]{1,18}$"), None).cast(pl.Int64)
        return pl.Series(value).zip_with(pl.Series(number), read)

    def bytes(self, name: str) -> tuple[Ints, Mask]:
        """Return references to a statistic's bytes, empty where there are none, and where a message bears it."""
        if name not in self.column:
            return np.zeros(len(self.messages), np.int64), np.zeros(len(self.messages), np.bool_)
        value, known = self.values[self.column[name]], self.kinds[self.column[name]] == _BYTES
        return np.where(known, value, 0), known

    def real(self, name: str) -> pl.Series:
        """Return a statistic as Float64; null where it is negative, no number, or not there."""
        if name not in self.column:
            return _nulls(pl.Float64(), len(self.messages))
        value, kind = self.values[self.column[name]], self.kinds[self.column[name]]
        number = np.where(kind == _DOUBLE, value.view(np.float64), value.astype(np.float64))
        known = np.isin(kind, (_DOUBLE, _INT64, _UINT64)) & (number >= 0) & np.isfinite(number)
        return _known(number, known)

    def flow(self, kind: str, number: str) -> pl.Series:
        """Return the ids of hand-overs of a kind: see :func:`tpunb.ids.flow_id`."""
        if number not in self.column:
            return _nulls(pl.UInt64(), len(self.messages))
        kinds, _ = self._numbers(kind)
        numbers, known = self._numbers(number)
        return _known((kinds + np.uint64(1)) * _FLOW + numbers, known)

    def launch(self, ordinal: int | None) -> pl.Series:
        """Return the ids of launches: a correlation id, else the run and the device: see :mod:`tpunb.ids`.

        Parameters
        ----------
        ordinal
            Of the device whose events these are; None for a host, whose events name the device: those that name none
            ask for a run on the host's own threads, as an operation that ran there says itself.
        """
        if "run_id" not in self and "correlation_id" not in self:
            return _nulls(pl.UInt64(), len(self.messages))
        runs, known = self._numbers("run_id")
        devices, named = self._numbers("device_ordinal")
        known &= ~named | (devices != _NONE)  # TensorFlow counts no runs of XLA on the host's threads: all are -1
        if ordinal is None:
            own = self.has("hlo_op") | ~named
            devices = np.where(own, _NONE, devices)
        else:
            devices = np.full_like(runs, ordinal)
        correlations, _ = self._numbers("correlation_id")
        correlated = correlations != 0  # 0 stands for none
        numbers = np.where(correlated, correlations, runs * _FLOW + devices + np.uint64(1))
        return _known(numbers, correlated | known)

    def number(self, name: str) -> pl.Series:
        """Return a statistic that is a name rather than a count as Int64, numbers of 2^63 and more wrapped."""
        if name not in self.column:
            return _nulls(pl.Int64(), len(self.messages))
        numbers, known = self._numbers(name)
        return _known(numbers.view(np.int64), known)

    def _numbers(self, name: str) -> tuple[Ids, Mask]:
        """Return a statistic as unsigned numbers, 0 where it is none, and where it is one."""
        if name not in self.column:
            return np.zeros(len(self.messages), np.uint64), np.zeros(len(self.messages), np.bool_)
        value, kind = self.values[self.column[name]], self.kinds[self.column[name]]
        whole = (kind == _INT64) | (kind == _UINT64)
        return np.where(whole, value, 0).view(np.uint64), whole


def as_words(words: Sequence[str | None]) -> pl.Series:
    """Return words as a column of frames."""
    return pl.Series(words, dtype=schema.NAME)


def gather(words: pl.Series, code: Rows | Ints) -> pl.Series:
    """Return the word of each code."""
    if words.null_count() == len(words):
        return _nulls(schema.NAME, code.size)
    return words.gather(pl.Series(code))


def first(one: pl.Series, *others: pl.Series) -> pl.Series:
    """Return, where a series is null, the next one's value."""
    for other in others:
        if one.null_count() and other.null_count() < len(other):
            one = other if one.null_count() == len(one) else one.zip_with(one.is_not_null(), other)
    return one


def _nulls(dtype: pl.DataType, n: int) -> pl.Series:
    return pl.Series([None], dtype=dtype).new_from_index(0, n)


def _known(value: npt.NDArray[Any], known: Mask) -> pl.Series:
    series = pl.Series(value)
    return series if known.all() else series.set(pl.Series(~known), None)
