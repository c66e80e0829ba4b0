"""Protobuf messages as tables: sub-messages are rows, scalar fields are columns.

Fields are decoded on request. A field is identified by its tag, ``integer(3)`` or ``text(2)``; one of another wire type
is unknown, as in protobuf. Positions fit 31 bits, so a string is one Int64: position << 32 | length.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from tpunb.errors import BadProfile
from tpunb.protobuf import LIMIT, PADDING
from tpunb.protobuf import kernels as loops
from tpunb.protobuf.kernels import Bytes, Ints, Rows

__all__ = ["Bytes", "Ints", "MessageMaps", "Messages", "Rows", "integer", "text"]

_TAGS = 128  # tags below take one byte; nearly all fields of interest do


def integer(field: int) -> int:
    """Return the tag of a field of whole numbers."""
    return field << 3


def text(field: int) -> int:
    """Return the tag of a field of strings, bytes or messages."""
    return field << 3 | 2


@dataclass(frozen=True, eq=False)
class Messages:
    """Messages of one type in one buffer."""

    source: str  # of the bytes, for errors
    buffer: Bytes  # the file, and zeros after it
    start: Rows  # position of the first byte of each message
    stop: Rows  # position after the last byte
    parent: Rows  # row of the enclosing message, in the table of those

    @classmethod
    def of(cls, data: bytes | Bytes, *, source: str) -> Messages:
        """Return `data` as a table of one row, without a copy if `PADDING` zeros follow it in its array."""
        size = len(data)
        if size >= LIMIT:
            raise BadProfile(f"{source}: {size} bytes; a protobuf message has less than 2 GiB")
        buffer = _with_padding(data)
        if buffer is None:
            buffer = np.zeros(size + PADDING, np.uint8)
            buffer[:size] = np.frombuffer(data, np.uint8)
        return cls(source, buffer, np.zeros(1, np.int32), np.array([size], np.int32), np.zeros(1, np.int32))

    @classmethod
    def joined(cls, files: Sequence[Bytes], *, source: str) -> Messages:
        """Return several files as a table of one row each, in one buffer; raises as `of`."""
        stop = np.cumsum([len(data) for data in files])
        whole = cls.of(np.concatenate([*files, np.zeros(PADDING, np.uint8)])[:-PADDING], source=source)
        start = np.append(0, stop[:-1])
        return replace(
            whole, start=start.astype(np.int32), stop=stop.astype(np.int32), parent=whole.parent.repeat(stop.size)
        )

    def __len__(self) -> int:
        return self.parent.size

    def __getitem__(self, rows: slice | npt.NDArray[np.bool_ | np.int64]) -> Messages:
        return Messages(self.source, self.buffer, self.start[rows], self.stop[rows], self.parent[rows])

    def _checked(self, outcome: int) -> int:
        if outcome >= 0:
            return outcome
        size = self.buffer.size - PADDING
        first = bytes(self.buffer[: min(size, 1 << 20)])
        problem = f"the message at byte {self.start[~outcome]} of {size} is cut or corrupt"
        problem += f"; the first bytes are {first[:16]!r}"
        hint = "copy the file again; it was truncated while written or copied, or is of another format"
        if _saved_as_text(first):
            problem += "; bytes of 0x80 and above were replaced by EF BF BD"
            hint = "copy the original as binary; this file was read and saved as text"
        raise BadProfile(f"{self.source}: no whole protobuf: {problem}", hint=hint)

    def sub(self, tag: int) -> Messages:
        """Return the sub-messages (or strings) of a field, in file order."""
        likely = int((self.stop.astype(np.int64) - self.start).sum()) // 16  # a second pass if messages are shorter
        out = np.empty((3, likely), np.int32)
        for _ in range(2):
            count = self._checked(loops.find(self.buffer, self.start, self.stop, tag, out))
            if count <= out.shape[1]:
                break
            out = np.empty((3, count), np.int32)
        out = out[:, :count]
        return Messages(self.source, self.buffer, out[1], out[2], out[0])

    def numbers(self, field: int) -> tuple[Ints, Ints]:
        """Return the values of a repeated field of whole numbers, each with its row, in file order."""
        out = np.empty((2, 2 * len(self)), np.int64)  # likely enough
        for _ in range(2):
            count = self._checked(loops.numbers(self.buffer, self.start, self.stop, field, out))
            if count <= out.shape[1]:
                break
            out = np.empty((2, count), np.int64)
        return out[0, :count], out[1, :count]

    def columns(self, *tags: int) -> list[Ints]:
        """Return one array per field: values, or references to strings; 0 where it is not set."""
        out = np.zeros((len(tags), len(self)), np.int64)
        self._checked(loops.read(self.buffer, self.start, self.stop, _slots(tags), out))
        return list(out)

    def scan(
        self, tags: Sequence[int], tag: int, maps: MessageMaps, owner: Rows, place: Rows, n: int
    ) -> tuple[Ints, Ints, Bytes, Bytes]:
        """Return fields as `columns` does, and values of key-value entries with number `tag`, all in one pass.

        Values and their tags, 0 without an entry, are (n, rows); `place` has the column of each key of `maps`, or -1.
        """
        out, values = np.zeros((len(tags), len(self)), np.int64), np.zeros((n, len(self)), np.int64)
        kinds, used = np.zeros((n, len(self)), np.uint8), np.zeros(n, np.uint8)
        unkeyed = np.append(place, np.int32(-1))[maps.unkeyed]
        args = (owner, _slots(tags), out, tag, *maps.table, place, unkeyed, values, kinds, used)
        self._checked(loops.scan(self.buffer, self.start, self.stop, *args))
        return out, values, kinds, used

    def text(self, refs: Ints) -> list[str]:
        """Return the strings behind references, bytes that are not UTF-8 replaced."""
        joined = np.zeros(int((refs & 0xFFFFFFFF).sum()) + refs.size, np.uint8)  # a zero after each
        loops.join(self.buffer, refs, joined)
        texts = str(joined.data, "utf8", "replace").split("\0")[:-1]
        if len(texts) == refs.size:
            return texts
        view = self.buffer.data  # zeros in strings
        return [str(view[r >> 32 : (r >> 32) + (r & 0xFFFFFFFF)], "utf8", "replace") for r in refs.tolist()]

    def strings(self, tag: int) -> list[str]:
        """Return every string of a repeated field."""
        rows = self.sub(tag)
        start, stop = rows.start.astype(np.int64), rows.stop.astype(np.int64)
        return self.text(start << 32 | (stop - start))

    def at(self, refs: Ints) -> Messages:
        """Return the messages behind references."""
        start = refs >> 32
        stop = start + (refs & 0xFFFFFFFF)
        rows = np.arange(refs.size, dtype=np.int32)
        return Messages(self.source, self.buffer, start.astype(np.int32), stop.astype(np.int32), rows)

    def distinct(self, refs: Ints) -> tuple[Rows, list[str]]:
        """Return the index of each reference among the distinct strings, and these strings."""
        row, firsts = self.different(refs)
        return row, self.text(refs[firsts])

    def different(self, refs: Ints) -> tuple[Rows, Rows]:
        """Return the index of each reference among those to different bytes, and the first row of each of these."""
        table = np.full(1 << max(4, (2 * refs.size).bit_length()), -1, np.int32)
        firsts, row = np.empty(refs.size, np.int32), np.empty(refs.size, np.int32)
        count = loops.intern(self.buffer, refs, table, firsts, row)
        return row, firsts[:count]


def _with_padding(data: bytes | Bytes) -> Bytes | None:
    """Return the array that begins with `data` and ends with `PADDING` zeros, or None."""
    if not isinstance(data, np.ndarray) or not isinstance(data.base, np.ndarray):
        return None
    whole = data.base
    fits = whole.dtype == data.dtype == np.uint8 and whole.ndim == 1 and whole.size == data.size + PADDING
    return whole if fits and whole.ctypes.data == data.ctypes.data and not whole[data.size :].any() else None


def _saved_as_text(first: bytes) -> bool:
    """Return whether these bytes were decoded and encoded as UTF-8, which is unlikely for binary data."""
    try:
        return "\ufffd" in codecs.getincrementaldecoder("utf8")().decode(first)
    except UnicodeDecodeError:
        return False


def _slots(tags: Sequence[int]) -> Ints:
    slot = np.full(max(_TAGS, 1 + max(tags, default=0)), -1, np.int64)
    slot[list(tags)] = np.arange(len(tags))
    return slot


class MessageMaps:
    """A field ``map<int64, message>`` of several messages: `keys` and `values`, one row per entry.

    The `parent` of a value is the row of the message that has the map.
    """

    def __init__(self, messages: Messages, tag: int) -> None:
        entries = messages.sub(tag)
        self.keys, refs = entries.columns(integer(1), text(2))
        self.values = replace(entries.at(refs), parent=entries.parent)
        count, most = np.bincount(entries.parent, minlength=len(messages)), np.zeros(len(messages), np.int64)
        np.maximum.at(most, entries.parent, self.keys)
        base = np.append(0, np.cumsum(np.clip(most, count, 4 * count) + 1)).astype(np.int64)  # room for every small key
        table = np.full(1 << (2 * int(base[-1])).bit_length(), -1, np.int32)
        loops.index(base, table, entries.parent, self.keys)
        self.table = base, table, entries.parent, self.keys
        self.unkeyed = self.rows(np.arange(len(messages), dtype=np.int32), np.zeros(len(messages), np.int64))

    def __len__(self) -> int:
        return self.keys.size

    def rows(self, owner: Rows, key: Ints) -> Rows:
        """Return the row in `values` of each key of the map of its owner, ``len(values)`` if it is missing."""
        out = np.empty(key.size, np.int32)
        loops.lookup(*self.table, owner, key, out)
        return out
