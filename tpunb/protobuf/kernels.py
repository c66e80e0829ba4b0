"""Loops over protobuf's wire format: compiled, without the GIL, safe for corrupt input.

Each takes messages as start and stop positions in one buffer, and returns ``~row`` if the message of a row is corrupt.
Zeros after the buffer (:data:`tpunb.protobuf.PADDING`) allow reading ahead: a tag and a value take at most 20 bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt
from numba import njit

from tpunb.compiled import compiled

Int = np.int64
Ints = npt.NDArray[np.int64]
Rows = npt.NDArray[np.int32]  # numbers of rows, and positions
Bytes = npt.NDArray[np.uint8]
_P = ParamSpec("_P")
_R = TypeVar("_R")

_CORRUPT = np.int64(-1)


def _inlined(part: Callable[_P, _R]) -> Callable[_P, _R]:
    """Compile into the callers: a call per field would double their time."""
    kernel: Callable[_P, _R] = njit(nogil=True, error_model="numpy", inline="always")(part)
    return kernel


@_inlined
def _word(data: Bytes, at: Int, size: Int) -> np.uint64:
    """Return the next bytes, eight or `size` of them, as one number: a branch per byte would often be mispredicted."""
    word = np.uint64(0)
    for k in range(8):
        word |= np.uint64(data[np.uint64(at + k)]) << np.uint64(8 * k)
    return word << np.uint64(64 - 8 * min(size, np.int64(8)))


@_inlined
def _varint(data: Bytes, at: Int) -> tuple[Int, Int]:
    """Return a varint and the position after it, -1 if it has more than the ten bytes allowed."""
    result = np.int64(data[np.uint64(at)])
    if result < 128:  # most are short
        return result, at + 1
    result &= 127
    word = _word(data, at + 1, np.int64(8))
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
    else:  # a group, or undefined
        at = _CORRUPT
    return tag, value, at if at <= stop else _CORRUPT


@compiled
def find(data: Bytes, start: Rows, stop: Rows, wanted: int, out: Rows) -> int:
    """Write (parent, start, stop) of each sub-message, or count where `out` is short; ~row if corrupt."""
    count = 0
    for row in range(start.size):
        at, end = np.int64(start[row]), np.int64(stop[row])
        while at < end:
            tag, value, at = _field(data, at, end)
            if at < 0:
                return ~row
            if tag == wanted:
                if count < out.shape[1]:
                    out[0, count], out[1, count], out[2, count] = row, value >> 32, at
                count += 1
    return count


@compiled
def numbers(data: Bytes, start: Rows, stop: Rows, field: int, out: Ints) -> int:
    """Write (parent, value) of each number of a field, or count where `out` is short; ~row if corrupt."""
    count = 0
    for row in range(start.size):
        at, end = np.int64(start[row]), np.int64(stop[row])
        while at < end:
            tag, value, at = _field(data, at, end)
            if at < 0:
                return ~row
            if tag == field << 3:
                if count < out.shape[1]:
                    out[0, count], out[1, count] = row, value
                count += 1
            elif tag == field << 3 | 2:
                place = value >> 32
                while place < at:
                    value, place = _varint(data, place)
                    if place < 0 or place > at:
                        return ~row
                    if count < out.shape[1]:
                        out[0, count], out[1, count] = row, value
                    count += 1
    return count


@compiled
def read(data: Bytes, start: Rows, stop: Rows, slot: Ints, out: Ints) -> int:
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


@_inlined
def _slot(base: Int, size: int, key: Int) -> np.uint64:
    """Return the first slot of an entry in a hash table: in maps of small keys, each has one of its own."""
    return np.uint64(base + key + (key >> 16) * 40503) & np.uint64(size - 1)


@compiled
def index(base: Ints, table: Rows, owners: Rows, keys: Ints) -> None:
    """Fill a hash table of the rows of entries, -1 if free; the last of equal keys of an owner wins."""
    for row in range(keys.size):
        slot = _slot(base[owners[row]], table.size, keys[row])
        other = np.int64(table[slot])
        while other >= 0 and (keys[other] != keys[row] or owners[other] != owners[row]):
            slot = (slot + np.uint64(1)) & np.uint64(table.size - 1)
            other = np.int64(table[slot])
        table[slot] = row


@compiled
def lookup(base: Ints, table: Rows, owners: Rows, keys: Ints, owner: Rows, key: Ints, out: Rows) -> None:
    """Write the row of each entry, the number of entries if it is missing."""
    for at in range(key.size):
        slot = _slot(base[owner[at]], table.size, key[at])
        row = np.int64(table[slot])
        while row >= 0 and (keys[row] != key[at] or owners[row] != owner[at]):
            slot = (slot + np.uint64(1)) & np.uint64(table.size - 1)
            row = np.int64(table[slot])
        out[at] = row if row >= 0 else keys.size


@compiled
def scan(
    data: Bytes,
    start: Rows,
    stop: Rows,
    owner: Rows,
    slot: Ints,
    out: Ints,
    wanted: int,
    base: Ints,
    table: Rows,
    owners: Rows,
    keys: Ints,
    place: Rows,
    unkeyed: Rows,
    values: Ints,
    kinds: Bytes,
    used: Bytes,
) -> int:
    """Read fields like `read`, and values of key-value entries into the column of their key in ``place``, if above -1.

    ``unkeyed`` has the column of the key 0, which is not written; ``used`` marks columns with a value.
    """
    for row in range(np.uint64(start.size)):
        at, end, plane = np.int64(start[row]), np.int64(stop[row]), owner[row]
        while at < end:
            tag, entry, at = _field(data, at, end)
            if at < 0:
                return int(~np.int64(row))  # unsigned, it would be no negative number
            if tag != wanted:
                if tag < slot.size and slot[np.uint64(tag)] >= 0:
                    out[np.uint64(slot[np.uint64(tag)]), row] = entry
                continue
            inner, column, value, last = entry >> 32, np.int64(unkeyed[plane]), np.int64(0), np.int64(0)
            while inner < at:
                tag, got, inner = _field(data, inner, at)
                if inner < 0:
                    return int(~np.int64(row))
                if tag == 8:
                    first = _slot(base[plane], table.size, got)
                    key_row = np.int64(table[first])
                    while key_row >= 0 and (keys[np.uint64(key_row)] != got or owners[np.uint64(key_row)] != plane):
                        first = (first + np.uint64(1)) & np.uint64(table.size - 1)
                        key_row = np.int64(table[first])
                    column = np.int64(place[np.uint64(key_row)]) if key_row >= 0 else np.int64(-1)
                    if column < 0:
                        break  # the value is not requested
                elif tag < 128:
                    value, last = got, tag
            if column >= 0:
                values[np.uint64(column), row], kinds[np.uint64(column), row] = value, last
                if last > 0:
                    used[np.uint64(column)] = 1
    return 0


@compiled
def times(line: Rows, line_ns: Ints, offset: Ints, dur: Ints, out: Ints) -> int:
    """Write the start of events in picoseconds and durations of 0 and more; ~row if they exceed Int64."""
    most = np.int64(2**63 - 1)
    for row in range(line.size):
        ns, length = line_ns[line[row]], max(dur[row], np.int64(0))  # some profilers write negative durations
        start = ns * 1000 + offset[row]
        wrapped = ((ns * 1000 ^ start) & (offset[row] ^ start)) < 0
        if wrapped or ns > most // 1000 or ns < -(most // 1000) or start > most - length:
            return ~row
        out[0, row], out[1, row] = start, length
    return 0


@compiled
def intern(data: Bytes, refs: Ints, table: Rows, firsts: Rows, out: Rows) -> int:
    """Write the number of each string among the distinct ones and their first rows; return their count.

    ``table`` is a hash table of numbers, -1 if free; its size is a power of 2 above the number of strings.
    """
    count, mask = np.int64(0), np.uint64(table.size - 1)
    for row in range(refs.size):
        at, length = refs[row] >> 32, refs[row] & 0xFFFFFFFF
        digest = np.uint64(length)
        for k in range(0, length, 8):
            digest = (digest ^ _word(data, at + k, length - k)) * np.uint64(0x9E3779B97F4A7C15)
            digest ^= digest >> np.uint64(32)
        slot = np.int64(digest & mask)
        while True:
            number = np.int64(table[slot])
            if number < 0:
                number = np.int64(count)
                table[slot] = count
                firsts[count] = row
                count = count + 1
                break
            other = refs[firsts[number]]
            same = (other & 0xFFFFFFFF) == length
            place = np.int64(0)
            while same and place < length:
                same = _word(data, (other >> 32) + place, length - place) == _word(data, at + place, length - place)
                place += 8
            if same:
                break
            slot = np.int64((slot + 1) & mask)
        out[row] = number
    return int(count)


@compiled
def join(data: Bytes, refs: Ints, out: Bytes) -> None:
    """Write the strings behind references, one after the other, with one byte left out after each."""
    place = np.int64(0)
    for row in range(refs.size):
        at, length = refs[row] >> 32, refs[row] & 0xFFFFFFFF
        for k in range(length):
            out[place + k] = data[at + k]
        place += length + 1
