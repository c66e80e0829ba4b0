"""Loops over protobuf's wire format: compiled, without the GIL, safe for corrupt input.

Each takes messages as start and stop positions in one buffer, and returns ``~row`` if the message of a row is corrupt.
Zeros after the buffer (:data:`tpunb.io.storage.PADDING`) allow reading ahead: a tag and a value take at most 20 bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt
from numba import njit

Int = np.int64
Ints = npt.NDArray[np.int64]
Rows = npt.NDArray[np.int32]  # numbers of rows, and positions
Bytes = npt.NDArray[np.uint8]
_P = ParamSpec("_P")
_R = TypeVar("_R")

_CORRUPT = np.int64(-1)


def _compiled(loop: Callable[_P, _R]) -> Callable[_P, _R]:
    kernel: Callable[_P, _R] = njit(nogil=True, cache=True, error_model="numpy")(loop)
    return kernel


def _inlined(part: Callable[_P, _R]) -> Callable[_P, _R]:
    """Compile into the callers: a call per field would double their time."""
    kernel: Callable[_P, _R] = njit(nogil=True, error_model="numpy", inline="always")(part)
    return kernel


@_inlined
def _varint(data: Bytes, at: Int) -> tuple[Int, Int]:
    """Return a varint and the position after it, -1 if it has more than the ten bytes allowed."""
    result = np.int64(data[np.uint64(at)])
    if result < 128:  # most are short
        return result, at + 1
    result &= 127
    # the next eight bytes in one word: a branch per byte would often be mispredicted
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
    else:  # a group, or undefined
        at = _CORRUPT
    return tag, value, at if at <= stop else _CORRUPT


@_compiled
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


@_compiled
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


@_compiled
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


@_compiled
def scan(
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
    """Read fields like `read`, and write the values of key-value entries by the column of their key.

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
                        break  # the value is not requested
                elif tag < 128:
                    value, last = got, tag
            if column >= 0:
                values[np.uint64(column), row], kinds[np.uint64(column), row] = value, last
    return 0


@_compiled
def intern(data: Bytes, refs: Ints, table: Rows, firsts: Rows, out: Rows) -> int:
    """Write the number of each string among the distinct ones and their first rows; return their count.

    ``table`` is a hash table of numbers, -1 if free; its size is a power of 2 above the number of strings.
    """
    count, mask = np.int64(0), np.uint64(table.size - 1)
    for row in range(refs.size):
        at, length = refs[row] >> 32, refs[row] & 0xFFFFFFFF
        digest = np.uint64(14695981039346656037)  # FNV-1a
        for k in range(at, at + length):
            digest = (digest ^ np.uint64(data[k])) * np.uint64(1099511628211)
        slot = np.int64((digest ^ (digest >> np.uint64(32))) & mask)
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
                same = data[(other >> 32) + place] == data[at + place]
                place += 1
            if same:
                break
            slot = np.int64((slot + 1) & mask)
        out[row] = number
    return int(count)
