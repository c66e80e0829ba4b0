"""A list of protobuf messages is a table: sub-messages are rows, scalar fields are columns.

Nothing is decoded before it is asked for, so what nobody reads (the HLO of a program) costs one jump. The
loops are compiled and run without the GIL; they trust no byte, and a broken one ends as ``BadProfile``.

A field is named by its tag, ``integer(3)`` or ``text(2)``: one of another wire type is unknown, as it is to
protobuf. Positions fit 31 bits, so a string is one Int64: position << 32 | length.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt
from numba import njit

from tpunb.errors import BadProfile

Int = np.int64
Ints = npt.NDArray[np.int64]
Positions = npt.NDArray[np.int32]
Bytes = npt.NDArray[np.uint8]
_P = ParamSpec("_P")
_R = TypeVar("_R")

_CORRUPT = np.int64(-1)
_PADDING = 32  # zero bytes after the last one: a tag and a value (20 bytes at most) cannot run off the buffer
_TAGS = 128  # tags below take one byte; no field of interest has another


def integer(field: int) -> int:
    """Return the tag of a field of whole numbers."""
    return field << 3


def text(field: int) -> int:
    """Return the tag of a field of strings, bytes or messages."""
    return field << 3 | 2


def _compiled(loop: Callable[_P, _R]) -> Callable[_P, _R]:
    kernel: Callable[_P, _R] = njit(nogil=True, cache=True, error_model="numpy")(loop)
    return kernel


def _inlined(part: Callable[_P, _R]) -> Callable[_P, _R]:
    """Compile into its callers: a call a field would double their time."""
    kernel: Callable[_P, _R] = njit(nogil=True, error_model="numpy", inline="always")(part)
    return kernel


@_inlined
def _varint(data: Bytes, at: Int) -> tuple[Int, Int]:
    """Return a varint and the position after it, -1 if it has more than the ten bytes allowed."""
    result = np.int64(0)
    for shift in range(0, 70, 7):
        byte = np.int64(data[at])
        at += 1
        result |= (byte & 127) << shift
        if byte < 128:
            return result, at
    return result, _CORRUPT


@_inlined
def _field(data: Bytes, at: Int, stop: Int) -> tuple[Int, Int, Int]:
    """Return the tag and the value at `at`, and the position after them (-1: corrupt)."""
    tag, at = _varint(data, at)
    wire, value = tag & 7, np.int64(0)
    if at < 0 or at > stop or tag < 8:
        return tag, value, _CORRUPT
    if wire == 0:
        value, at = _varint(data, at)
    elif wire == 2:
        length, at = _varint(data, at)
        if at < 0 or length < 0 or length > stop - at:
            return tag, value, _CORRUPT
        value = np.int64(at) << 32 | length
        at += length
    elif wire == 1 or wire == 5:
        for k in range(8 if wire == 1 else 4):
            value |= np.int64(data[at]) << (8 * k)
            at += 1
    else:  # a group, or what was never defined
        at = _CORRUPT
    return tag, value, at if at <= stop else _CORRUPT


@_compiled
def _find(data: Bytes, span: Positions, wanted: int, out: Positions) -> int:
    """Write (parent, start, stop) of each sub-message, or count where `out` is short; ~row if corrupt."""
    found = 0
    for row in range(span.shape[1]):
        at, end = np.int64(span[0, row]), np.int64(span[1, row])
        while at < end:
            tag, value, at = _field(data, at, end)
            if at < 0:
                return ~row
            if tag == wanted:
                if found < out.shape[1]:
                    out[0, found], out[1, found], out[2, found] = row, value >> 32, at
                found += 1
    return found


@_compiled
def _read(data: Bytes, span: Positions, slot: Ints, out: Ints) -> int:
    """Write the last value of every field with a slot; ~row if corrupt."""
    for row in range(span.shape[1]):
        at, end = np.int64(span[0, row]), np.int64(span[1, row])
        while at < end:
            tag, value, at = _field(data, at, end)
            if at < 0:
                return ~row
            if tag < slot.size and slot[tag] >= 0:
                out[slot[tag], row] = value
    return 0


@_compiled
def _pick(data: Bytes, span: Positions, wanted: int, group: Ints, keys: Ints, out: Ints, kind: Bytes) -> int:
    """Write the values of entries with a key of their group; rows of ``keys``: group's first, key, column."""
    for row in range(span.shape[1]):
        low, high = keys[0, group[row]], keys[0, group[row] + 1]
        at, end = np.int64(span[0, row]), np.int64(span[1, row])
        while at < end and low < high:
            tag, entry, at = _field(data, at, end)
            if at < 0:
                return ~row
            if tag != wanted:
                continue
            inner, key, value, last = entry >> 32, np.int64(0), np.int64(0), np.int64(0)
            while inner < at:
                tag, got, inner = _field(data, inner, at)
                if inner < 0:
                    return ~row
                if tag == 8:
                    key = got
                elif tag < 128:
                    value, last = got, tag
            for k in range(low, high):
                if keys[1, k] == key:
                    out[keys[2, k], row], kind[keys[2, k], row] = value, last
    return 0


@_compiled
def _lookup(group: Ints, key: Ints, first: Ints, keys: Ints, out: Ints) -> None:
    """Write where each key lies among the sorted keys of its group (the last of equals), or -1."""
    for row in range(key.size):
        bottom, high = first[group[row]], first[group[row] + 1]
        low = bottom
        while low < high:
            middle = (low + high) >> 1
            if keys[middle] <= key[row]:
                low = middle + 1
            else:
                high = middle
        out[row] = low - 1 if low > bottom and keys[low - 1] == key[row] else -1


@_compiled
def _digest(data: Bytes, refs: Ints, out: npt.NDArray[np.uint64]) -> None:
    """Write the FNV-1a hash of each string."""
    for row in range(refs.size):
        at, length = refs[row] >> 32, refs[row] & 0xFFFFFFFF
        digest = np.uint64(14695981039346656037)
        for k in range(at, at + length):
            digest = (digest ^ np.uint64(data[k])) * np.uint64(1099511628211)
        out[row] = digest


@dataclass(frozen=True, eq=False)
class Messages:
    """Messages of one type in one buffer."""

    source: str  # of the bytes, for errors
    buffer: Bytes  # the file, and zeros after it
    span: Positions  # start and stop of each message
    parent: Ints  # row, in the table it was taken from, of the message that each lies in

    @classmethod
    def of(cls, data: bytes, *, source: str) -> Messages:
        """Return the table of one row that `data` is; ``BadProfile`` from 2 GiB on."""
        size = len(data)
        if size >= 2**31 - _PADDING:
            raise BadProfile(f"{source}: {size} bytes; a protobuf message ends before 2 GiB")
        buffer = np.zeros(size + _PADDING, np.uint8)
        buffer[:size] = np.frombuffer(data, np.uint8)
        return cls(source, buffer, np.array([[0], [size]], np.int32), np.zeros(1, np.int64))

    def __len__(self) -> int:
        return self.parent.size

    def _sound(self, outcome: int) -> int:
        if outcome >= 0:
            return outcome
        at, size = self.span[0, ~outcome], self.buffer.size - _PADDING
        raise BadProfile(
            f"{self.source}: no whole protobuf: the message at byte {at} of {size} is cut or corrupt",
            hint="the file was cut while written or copied, or is of another format",
        )

    def sub(self, tag: int) -> Messages:
        """Return the sub-messages (or strings) of a field, in file order."""
        out = np.empty((3, 0), np.int32)
        for _ in range(2):  # count, then write
            found = self._sound(_find(self.buffer, self.span, tag, out))
            out = out if out.shape[1] == found else np.empty((3, found), np.int32)
        return Messages(self.source, self.buffer, out[1:], out[0].astype(np.int64))

    def columns(self, *tags: int) -> list[Ints]:
        """Return one array a field: its values, or references to its strings; 0 where it is not set."""
        slot = np.full(_TAGS, -1, np.int64)
        slot[list(tags)] = np.arange(len(tags))
        out = np.zeros((len(tags), len(self)), np.int64)
        self._sound(_read(self.buffer, self.span, slot, out))
        return list(out)

    def pick(self, tag: int, group: Ints, wanted: Sequence[Mapping[int, int]], columns: int) -> tuple[Ints, Bytes]:
        """Return values of key-value entries: sub-messages with a key in field 1 and a value in any other.

        ``wanted[group[row]]`` maps the keys of interest in a row to columns of the answer: values of shape
        (columns, rows), and their tags, 0 where there is no such entry.
        """
        pairs = [pair for keys in wanted for pair in keys.items()]
        keys = np.zeros((3, max(len(pairs), len(wanted)) + 1), np.int64)
        keys[0, 1 : len(wanted) + 1] = np.cumsum([len(one) for one in wanted])
        keys[1:, : len(pairs)] = np.array(pairs, np.int64).reshape(-1, 2).T
        out, kind = np.zeros((columns, len(self)), np.int64), np.zeros((columns, len(self)), np.uint8)
        self._sound(_pick(self.buffer, self.span, tag, group, keys, out, kind))
        return out, kind

    def text(self, refs: Ints) -> list[str]:
        """Return the strings behind references, bytes that are not UTF-8 replaced."""
        view = self.buffer.data
        return [str(view[r >> 32 : (r >> 32) + (r & 0xFFFFFFFF)], "utf8", "replace") for r in refs.tolist()]

    def strings(self, tag: int) -> list[str]:
        """Return every string of a repeated field."""
        found = self.sub(tag)
        start, stop = found.span.astype(np.int64)
        return self.text(start << 32 | (stop - start))

    def distinct(self, refs: Ints) -> tuple[Ints, list[str]]:
        """Return the distinct strings behind references, and the row in them of each reference."""
        digest = np.empty(refs.size, np.uint64)
        _digest(self.buffer, refs, digest)
        _, first, row = np.unique(digest, return_index=True, return_inverse=True)
        return row.astype(np.int64), self.text(refs[first])


class MessageMap:
    """A field ``map<int64, message>`` of every row of a table: `keys` and `values`, one row an entry."""

    def __init__(self, messages: Messages, tag: int) -> None:
        entries = messages.sub(tag)
        key, ref = entries.columns(integer(1), text(2))
        span = np.stack([ref >> 32, (ref >> 32) + (ref & 0xFFFFFFFF)]).astype(np.int32)
        self.values = Messages(messages.source, messages.buffer, span, entries.parent)
        self.keys = key
        order = np.lexsort((key, entries.parent))  # stable, so the last of equals wins
        self._sorted, self._order = key[order], np.append(order, len(entries))
        self._first = np.searchsorted(entries.parent, np.arange(len(messages) + 1)).astype(np.int64)

    def rows(self, parent: Ints, key: Ints) -> Ints:
        """Return the row in `values` of each (row of the table, key), ``len(values)`` where there is none."""
        out = np.empty(key.size, np.int64)
        _lookup(parent, key, self._first, self._sorted, out)
        found: Ints = self._order[out]
        return found
