"""A list of protobuf messages is a table: sub-messages are rows, scalar fields are columns.

Nothing is decoded before it is asked for, so what nobody reads (the HLO of a program) costs one jump. The
loops are compiled and run without the GIL; they trust no byte, and a broken one ends as ``BadProfile``.

A field is named by its tag, ``integer(3)`` or ``text(2)``: one of another wire type is unknown, as it is to
protobuf. Positions fit 31 bits, so a string is one Int64: position << 32 | length.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt
from numba import njit

from tpunb.errors import BadProfile

Int = np.int64
Ints = npt.NDArray[np.int64]
Rows = npt.NDArray[np.int32]  # numbers of rows, and positions
Bytes = npt.NDArray[np.uint8]
_P = ParamSpec("_P")
_R = TypeVar("_R")

_CORRUPT = np.int64(-1)
PADDING = 32
"""Zero bytes after the last one: a tag and a value (20 bytes at most) cannot run off the buffer."""

LIMIT = 2**31 - PADDING
"""A protobuf message ends before 2 GiB."""

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
    result = np.int64(data[np.uint64(at)])
    if result < 128:  # most are short
        return result, at + 1
    result &= 127
    # the next eight bytes in one word: no branch a byte, which a processor guesses wrong as often as lengths vary
    word = np.uint64(0)
    for k in range(8):
        word |= np.uint64(data[np.uint64(at + 1 + k)]) << np.uint64(8 * k)
    ends = ~word & np.uint64(0x8080808080808080)
    if ends == 0:  # ten bytes: what a negative number takes
        for k in range(8):
            result |= (np.int64(data[np.uint64(at + 1 + k)]) & 127) << (7 + 7 * k)
        top = np.int64(data[np.uint64(at + 9)])
        return result | top << 63, at + 10 if top < 128 else _CORRUPT
    end = ends & (~ends + np.uint64(1))  # the lowest bit
    word &= (end - np.uint64(1)) & np.uint64(0x7F7F7F7F7F7F7F7F)
    word = (word & np.uint64(0x007F007F007F007F)) | (word & np.uint64(0x7F007F007F007F00)) >> np.uint64(1)
    word = (word & np.uint64(0x00003FFF00003FFF)) | (word & np.uint64(0x3FFF00003FFF0000)) >> np.uint64(2)
    word = (word & np.uint64(0x000000000FFFFFFF)) | (word & np.uint64(0x0FFFFFFF00000000)) >> np.uint64(4)
    at += 2
    while end > np.uint64(0x80):
        end >>= np.uint64(8)
        at += 1
    return result | np.int64(word) << 7, at


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
            value |= np.int64(data[np.uint64(at)]) << (8 * k)
            at += 1
    else:  # a group, or what was never defined
        at = _CORRUPT
    return tag, value, at if at <= stop else _CORRUPT


@_compiled
def _find(data: Bytes, start: Rows, stop: Rows, wanted: int, out: Rows) -> int:
    """Write (parent, start, stop) of each sub-message, or count where `out` is short; ~row if corrupt."""
    found = 0
    for row in range(start.size):
        at, end = np.int64(start[row]), np.int64(stop[row])
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
def _read(data: Bytes, start: Rows, stop: Rows, slot: Ints, out: Ints) -> int:
    """Write the last value of every field with a slot; ~row if corrupt."""
    for row in range(start.size):
        at, end = np.int64(start[row]), np.int64(stop[row])
        while at < end:
            tag, value, at = _field(data, at, end)
            if at < 0:
                return ~row
            if tag < slot.size and slot[tag] >= 0:
                out[slot[tag], row] = value
    return 0


@_compiled
def _scan(
    data: Bytes,
    start: Rows,
    stop: Rows,
    slot: Ints,
    out: Ints,
    wanted: int,
    place: Ints,
    far: Ints,
    values: Ints,
    kinds: Bytes,
) -> int:
    """Do what `_read` does, and write the values of key-value entries, by the column of their key, in the same pass.

    ``place[key]`` is the column of a small key or -1; rows of ``far`` are the other keys and their columns.
    """
    for row in range(np.uint64(start.size)):
        at, end = np.int64(start[row]), np.int64(stop[row])
        while at < end:
            tag, entry, at = _field(data, at, end)
            if at < 0:
                return ~row
            if tag != wanted:
                if tag < slot.size and slot[np.uint64(tag)] >= 0:
                    out[np.uint64(slot[np.uint64(tag)]), row] = entry
                continue
            inner, column, value, last = entry >> 32, np.int64(-1), np.int64(0), np.int64(0)
            if place.size > 0:
                column = np.int64(place[0])  # a key of 0 is not written
            while inner < at:
                tag, got, inner = _field(data, inner, at)
                if inner < 0:
                    return ~row
                if tag == 8:
                    column = np.int64(-1)
                    if 0 <= got < place.size:
                        column = np.int64(place[np.uint64(got)])
                    else:
                        for k in range(far.shape[1]):
                            if far[0, k] == got:
                                column = np.int64(far[1, k])
                    if column < 0:
                        break  # nobody wants it, so nobody reads its value
                elif tag < 128:
                    value, last = got, tag
            if column >= 0:
                values[np.uint64(column), row], kinds[np.uint64(column), row] = value, last
    return 0


@_compiled
def _intern(data: Bytes, refs: Ints, table: Rows, firsts: Rows, out: Rows) -> int:
    """Write the number of each string among the distinct ones and the row where each is first; how many there are.

    ``table`` is a hash table of numbers, -1 where free, its size a power of 2 and more than there are strings.
    """
    found, mask = np.int64(0), np.uint64(table.size - 1)
    for row in range(refs.size):
        at, length = refs[row] >> 32, refs[row] & 0xFFFFFFFF
        digest = np.uint64(14695981039346656037)  # FNV-1a
        for k in range(at, at + length):
            digest = (digest ^ np.uint64(data[k])) * np.uint64(1099511628211)
        slot = np.int64((digest ^ (digest >> np.uint64(32))) & mask)
        while True:
            number = np.int64(table[slot])
            if number < 0:
                number = np.int64(found)
                table[slot] = found
                firsts[found] = row
                found = found + 1
                break
            other = refs[firsts[number]]
            same = (other & 0xFFFFFFFF) == length
            place = np.int64(0)
            while same and place < length:
                same = data[(other >> 32) + place] == data[at + place]
                place += 1
            if same:
                break
            slot = np.int64((slot + 1) & mask)
        out[row] = number
    return int(found)


_SMALL = 1 << 16  # keys below are looked up in a table


@dataclass(frozen=True, eq=False)
class Messages:
    """Messages of one type in one buffer."""

    source: str  # of the bytes, for errors
    buffer: Bytes  # the file, and zeros after it
    start: Rows  # where each message begins,
    stop: Rows  # and ends
    parent: Rows  # row, in the table it was taken from, of the message that each lies in

    @classmethod
    def of(cls, data: bytes | Bytes, *, source: str) -> Messages:
        """Return the table of one row that `data` is, without a copy where zeros lie behind it (:func:`with_room`).

        Raises
        ------
        BadProfile
            From 2 GiB on.
        """
        size = len(data)
        if size >= LIMIT:
            raise BadProfile(f"{source}: {size} bytes; a protobuf message ends before 2 GiB")
        buffer = _room_behind(data)
        if buffer is None:
            buffer = np.zeros(size + PADDING, np.uint8)
            buffer[:size] = np.frombuffer(data, np.uint8)
        return cls(source, buffer, np.zeros(1, np.int32), np.array([size], np.int32), np.zeros(1, np.int32))

    def __len__(self) -> int:
        return self.parent.size

    def __getitem__(self, rows: slice) -> Messages:
        return Messages(self.source, self.buffer, self.start[rows], self.stop[rows], self.parent[rows])

    def _sound(self, outcome: int) -> int:
        if outcome >= 0:
            return outcome
        size = self.buffer.size - PADDING
        first = bytes(self.buffer[: min(size, 1 << 20)])
        seen = f"the message at byte {self.start[~outcome]} of {size} is cut or corrupt"
        seen += f"; the first bytes are {first[:16]!r}"
        hint = "the file was cut while written or copied, or is of another format"
        if _saved_as_text(first):
            seen += "; bytes of 0x80 and above were replaced by EF BF BD"
            hint = "the file was once read and saved as text, which cannot be undone: copy the original as binary"
        raise BadProfile(f"{self.source}: no whole protobuf: {seen}", hint=hint)

    def sub(self, tag: int) -> Messages:
        """Return the sub-messages (or strings) of a field, in file order."""
        out = np.empty((3, 0), np.int32)
        for _ in range(2):  # count, then write
            found = self._sound(_find(self.buffer, self.start, self.stop, tag, out))
            out = out if out.shape[1] == found else np.empty((3, found), np.int32)
        return Messages(self.source, self.buffer, out[1], out[2], out[0])

    def columns(self, *tags: int) -> list[Ints]:
        """Return one array a field: its values, or references to its strings; 0 where it is not set."""
        out = np.zeros((len(tags), len(self)), np.int64)
        self._sound(_read(self.buffer, self.start, self.stop, _slots(tags), out))
        return list(out)

    def scan(self, tags: Sequence[int], tag: int, keys: Mapping[int, int], n: int) -> tuple[Ints, Ints, Bytes]:
        """Return fields as `columns` does, and values of key-value entries, all in one pass.

        Parameters
        ----------
        tags
            Of the fields.
        tag
            Of the entries: sub-messages with a key in field 1 and a value in any other.
        keys
            The column, below `n`, of each key that is wanted.

        Returns
        -------
        The fields (len(tags), rows); values of shape (n, rows), and their tags, 0 where there is no such entry.
        """
        out, values = np.zeros((len(tags), len(self)), np.int64), np.zeros((n, len(self)), np.int64)
        kinds = np.zeros((n, len(self)), np.uint8)
        near = {key: column for key, column in keys.items() if 0 <= key < _SMALL}
        place = np.full(max(near, default=-1) + 1, -1, np.int64)
        place[list(near)] = list(near.values())
        far = np.array([*(keys.items() - near.items())], np.int64).reshape(-1, 2).T.copy()
        args = (_slots(tags), out, tag, place, far, values, kinds)
        self._sound(_scan(self.buffer, self.start, self.stop, *args))
        return out, values, kinds

    def text(self, refs: Ints) -> list[str]:
        """Return the strings behind references, bytes that are not UTF-8 replaced."""
        view = self.buffer.data
        return [str(view[r >> 32 : (r >> 32) + (r & 0xFFFFFFFF)], "utf8", "replace") for r in refs.tolist()]

    def strings(self, tag: int) -> list[str]:
        """Return every string of a repeated field."""
        found = self.sub(tag)
        start, stop = found.start.astype(np.int64), found.stop.astype(np.int64)
        return self.text(start << 32 | (stop - start))

    def at(self, refs: Ints) -> Messages:
        """Return the messages behind references."""
        start = refs >> 32
        stop = start + (refs & 0xFFFFFFFF)
        rows = np.arange(refs.size, dtype=np.int32)
        return Messages(self.source, self.buffer, start.astype(np.int32), stop.astype(np.int32), rows)

    def distinct(self, refs: Ints) -> tuple[Rows, list[str]]:
        """Return the row of each reference among the distinct strings, and these."""
        table = np.full(1 << max(4, (2 * refs.size).bit_length()), -1, np.int32)
        firsts, row = np.empty(refs.size, np.int32), np.empty(refs.size, np.int32)
        found = _intern(self.buffer, refs, table, firsts, row)
        return row, self.text(refs[firsts[:found]])


def with_room(size: int) -> Bytes:
    """Return `size` zero bytes to be filled, with the room behind them that spares :meth:`Messages.of` a copy."""
    return np.zeros(size + PADDING, np.uint8)[:size]


def _room_behind(data: bytes | Bytes) -> Bytes | None:
    """Return the array that `data` is the beginning of, where the rest of it are the zeros that we need."""
    if not isinstance(data, np.ndarray) or not isinstance(data.base, np.ndarray):
        return None
    whole = data.base
    fits = whole.dtype == data.dtype == np.uint8 and whole.ndim == 1 and whole.size == data.size + PADDING
    return whole if fits and whole.ctypes.data == data.ctypes.data and not whole[data.size :].any() else None


def _saved_as_text(first: bytes) -> bool:
    """Say whether these bytes were decoded and encoded as UTF-8, which binary ones are by the least of chances."""
    try:
        return "\ufffd" in codecs.getincrementaldecoder("utf8")().decode(first)
    except UnicodeDecodeError:
        return False


def _slots(tags: Sequence[int]) -> Ints:
    slot = np.full(_TAGS, -1, np.int64)
    slot[list(tags)] = np.arange(len(tags))
    return slot


class MessageMap:
    """A field ``map<int64, message>`` of one message: `keys` and `values`, one row an entry."""

    def __init__(self, message: Messages, tag: int) -> None:
        entries = message.sub(tag)
        self.keys, refs = entries.columns(integer(1), text(2))
        self.values = entries.at(refs)
        rows = dict(zip(self.keys.tolist(), range(len(entries)), strict=True))  # the last of equals wins
        keys = np.array(sorted(rows), np.int64)
        self._sorted, self._row = keys, np.array([*(rows[key] for key in keys.tolist()), len(entries)], np.int32)
        self._dense = keys.size > 0 and keys[0] >= 0 and keys[-1] < _SMALL
        if self._dense:
            self._table = np.full(int(keys[-1]) + 2, len(entries), np.int32)
            self._table[keys] = self._row[:-1]

    def rows(self, key: Ints) -> Rows:
        """Return the row in `values` of each key, ``len(values)`` where there is none."""
        if self._dense:
            inside = (key >= 0) & (key < self._table.size)
            found: Rows = self._table[np.where(inside, key, self._table.size - 1)]
            return found
        at = np.searchsorted(self._sorted, key)
        hit = np.append(self._sorted, 0)[at] == key
        hit &= at < self._sorted.size
        elsewhere: Rows = self._row[np.where(hit, at, self._sorted.size)]
        return elsewhere
