"""HLO programs as graphs: instructions, the sizes of their shapes, their operands and the computations they call."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from tpunb.costs import hlo
from tpunb.protobuf import kernels as loops
from tpunb.protobuf.table import Ints, Messages, Rows, integer, text

Floats = npt.NDArray[np.float64]  # NaN where unknown
Mask = npt.NDArray[np.bool_]

POINTER = 8
"""Bytes of a pointer."""

# tags and fields of xla/service/hlo.proto and xla/xla_data.proto
_SHAPE = text(3)
_WINDOW, _CONVOLUTION, _DOT = text(15), text(16), text(30)
_TARGET, _CONFIG, _ID = text(28), text(43), integer(35)
_OPERANDS, _CALLED = 36, 38
_COMPUTATION_ID, _ROOT_ID = integer(5), integer(6)
_TYPE, _DIMENSIONS, _PARTS = integer(2), 3, text(4)

_NESTED = 8  # most levels of tuples in tuples
_BITS = np.full(64, np.nan)
for _kind, _name in hlo.TYPES.items():
    _BITS[_kind] = int((re.search(r"\d+", _name) or ["8"])[0])
_BITS[[14, 17]] = 8 * POINTER, 0  # opaque, token


class Shapes:
    """Sizes of the distinct shapes of instructions; of a tuple also those of its arrays."""

    def __init__(self, shapes: Messages, depth: int = 0) -> None:
        self.messages = shapes
        kind = shapes.columns(_TYPE)[0]
        self.tuple = kind == hlo.TUPLE
        self.kind = kind  # of the first array
        owner, dims = shapes.numbers(_DIMENSIONS)
        self._dims = np.where(dims < 0, np.nan, dims.astype(float))
        self._first, self._rank = spans(owner, len(shapes))
        elements = np.ones(len(shapes))
        np.multiply.at(elements, owner, self._dims)
        stored = np.ceil(elements * _BITS[np.where((kind > 0) & (kind < _BITS.size), kind, 0)] / 8)
        parts = shapes.sub(_PARTS)
        parts = parts[self.tuple[parts.parent]]
        begin, count = spans(parts.parent, len(shapes))
        self.size = np.where(self.tuple, POINTER * count, stored)
        self.elements = self.all_elements = elements  # of the first array; of all
        self.bytes = self.all_bytes = stored
        if not self.tuple.any():
            return
        if depth == _NESTED:
            self.elements = self.all_elements = np.where(self.tuple, np.nan, elements)
            self.bytes = self.all_bytes = np.where(self.tuple, np.nan, stored)
            return
        inner = Shapes(parts, depth + 1)
        head = np.where(self.tuple & (count > 0), begin, len(parts))
        self.kind = np.where(self.tuple, np.append(inner.kind, 0)[head], kind)
        self.elements = np.where(self.tuple, np.append(inner.elements, 0)[head], elements)
        self.bytes = np.where(self.tuple, np.append(inner.bytes, 0)[head], stored)
        sums = [np.bincount(parts.parent, each, len(shapes)) for each in (inner.all_elements, inner.all_bytes)]
        self.all_elements, self.all_bytes = (
            np.where(self.tuple, *pair) for pair in zip(sums, (elements, stored), strict=True)
        )
        of_head = head < len(parts)
        self._first = np.where(of_head, self._dims.size + np.append(inner._first, 0)[head], self._first)
        self._rank = np.where(of_head, np.append(inner._rank, 0)[head], self._rank)
        self._dims = np.append(self._dims, inner._dims)

    def dim(self, shape: Ints, number: Ints) -> Floats:
        """Return dimensions of the first array of shapes, NaN where there is none; -1 is the last."""
        number = np.where(number == -1, self._rank[shape] - 1, number)
        inside = (number >= 0) & (number < self._rank[shape])
        place = np.where(inside, self._first[shape] + np.where(inside, number, 0), self._dims.size)
        return np.append(self._dims, np.nan)[place]


def spans(owner: Ints | Rows, n: int) -> tuple[Ints, Ints]:
    """Return first row and count of the members of each owner, which are in its order."""
    count = np.bincount(owner, minlength=n).astype(np.int64)
    return np.cumsum(count) - count, count


def grouped(owner: Ints | Rows, values: Ints, n: int) -> list[list[int]]:
    """Return the values of each owner, which are in its order."""
    first, count = (column.tolist() for column in spans(owner, n))
    flat = values.tolist()
    return [flat[begin : begin + size] for begin, size in zip(first, count, strict=True)]


def member_rows(scope: Ints, ids: Ints, in_scope: Ints, wanted: Ints) -> Ints:
    """Return the first row with each wanted id in a scope, the number of rows where there is none; scopes in order."""
    scopes = 1 + max(int(each.max(initial=0)) for each in (scope, in_scope))
    table = np.full(1 << (2 * ids.size).bit_length(), -1, np.int32)
    of_ids = spans(scope, scopes)[0], table, scope[::-1].astype(np.int32), ids[::-1].copy()  # the last one is found
    loops.index(*of_ids)
    row = np.empty(wanted.size, np.int32)
    loops.lookup(*of_ids, in_scope.astype(np.int32), wanted, row)
    return np.where(row < ids.size, ids.size - 1 - row.astype(np.int64), ids.size)


class Instructions:
    """The instructions of programs as columns; an operand or computation that is missing is the row after the last."""

    def __init__(self, protos: Messages) -> None:
        modules, computations, rows, module_of_row = hlo.parts(protos)
        self.rows, self.proto = rows, modules.parent[module_of_row]
        self.n, self.computation = len(rows), rows.parent.astype(np.int64)
        fields = (_SHAPE, _ID, _WINDOW, _CONVOLUTION, _DOT, _TARGET, _CONFIG, *hlo.NAMES)
        shape, ids, self.window, self.convolution, self.dot, target, self.config, *self.texts = rows.columns(*fields)
        opcode = self.texts[1]
        (self.opcode, self.opcodes), (self.target, self.targets) = map(rows.distinct, (opcode, target))
        code, firsts = rows.different(shape)
        self.shapes = shapes = Shapes(rows.at(shape[firsts]))
        self.shape = code.astype(np.int64)
        self.size, self.elements = shapes.size[code], shapes.elements[code]
        self.all_elements, self.all_bytes = shapes.all_elements[code], shapes.all_bytes[code]
        owner, wanted = rows.numbers(_OPERANDS)
        self.user, self.operands = owner, member_rows(self.computation, ids, self.computation[owner], wanted)
        self._padded = np.append(self.operands, self.n)
        self.first, self.operand_count = spans(owner, self.n)
        self.position = np.arange(owner.size) - self.first[owner]
        of_computations, roots = computations.columns(_COMPUTATION_ID, _ROOT_ID)
        self.computations, module = len(computations), computations.parent.astype(np.int64)
        self.caller, wanted = rows.numbers(_CALLED)
        self.callee = member_rows(module, of_computations, module[self.computation[self.caller]], wanted)
        self.root = member_rows(self.computation, ids, np.arange(self.computations), roots)

    def where(self, *opcodes: str) -> Mask:
        """Return whether each instruction is of one of some opcodes."""
        wanted = {*opcodes}
        chosen: Mask = np.array([opcode in wanted for opcode in self.opcodes], bool)[self.opcode]
        return chosen

    def calls(self, *prefixes: str) -> Mask:
        """Return whether each instruction is a custom call of a target that starts with one of some prefixes."""
        chosen = np.array([target.startswith(prefixes) for target in self.targets], bool)[self.target]
        return chosen & self.where("custom-call")

    def operand(self, number: int | Ints) -> Ints:
        """Return the row of an operand of every instruction."""
        inside = (number >= 0) & (number < self.operand_count)
        return self._padded[np.where(inside, self.first + np.where(inside, number, 0), self.operands.size)]

    def of(self, values: Floats, row: Ints | Rows) -> Floats:
        """Return the values of rows, NaN of missing ones."""
        return np.append(values, np.nan)[row]

    def dim(self, row: Ints, number: Ints) -> Floats:
        """Return dimensions of the results of rows."""
        present = row < self.n
        dims = self.shapes.dim(np.append(self.shape, 0)[row], number)
        return np.where(present, dims, np.nan)
