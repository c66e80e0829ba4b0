"""HLO programs as graphs: instructions, the sizes of their shapes, their operands and the computations they call."""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterable
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import polars as pl

from tpunb import schema
from tpunb.io import hlo
from tpunb.io import protobuf_kernels as loops
from tpunb.io.protobuf_table import Ints, Messages, Rows, integer, text
from tpunb.step_stats import op_names

Floats = npt.NDArray[np.float64]  # NaN where unknown
Mask = npt.NDArray[np.bool_]

POINTER = 8
"""Bytes of a pointer."""

# tags and fields of xla/service/hlo.proto and xla/xla_data.proto
_MODULE, _COMPUTATIONS, _INSTRUCTIONS, _SHAPE = text(1), text(3), text(2), text(3)
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
        modules = protos.sub(_MODULE)
        computations = modules.sub(_COMPUTATIONS)
        self.rows = rows = computations.sub(_INSTRUCTIONS)
        self.proto = modules.parent[computations.parent[rows.parent]]
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


OPS: schema.Schema = {"proto": pl.UInt32()} | {
    name: schema.INSTRUCTIONS[name] for name in ("hlo_op", "tf_op", "part", "category")
}
"""One row per instruction; several framework ops are joined by ";", as in the metadata of HLO."""

_PART_NAMES = [None, "forward", "backward", "update", op_names.MIXED]
_FORWARD, _BACKWARD, _UPDATE = 1, 2, 3
_CONTAINS = ("fusion", "call", "async-start")
_COMPUTES = ("dot", "convolution", "custom-call")
_INPUTS = ("parameter", "constant")  # whose names are of arguments, and of any user of an equal constant
_FORMATTING = (*_INPUTS, "bitcast", "broadcast", "convert", "copy", "get-tuple-element", "iota", "reshape", "transpose")
_LEVELS = 2  # of computations in computations that name an instruction
_MOST_FRAMEWORK_OPS = 8  # of one instruction
_NEAR = 16  # instructions of an update, and operands of each, that are searched for the parameter
_JVP = re.compile(r"jvp\(((?:[^()]|\((?:[^()]|\([^()]*\))*\))*)\)")


def ops(protos: Messages) -> pl.DataFrame:
    """Return framework op, part and category of the instructions of programs: ``OPS``, in their order."""
    return hlo.undamaged(protos, _ops, OPS)


def _ops(protos: Messages) -> pl.DataFrame:
    rows = hlo.read_instructions(protos)
    names = rows["tf_op"].cast(pl.String).to_list()
    graph = _Named(protos, names)
    tf_op = pl.Series(names, dtype=pl.String).cast(schema.NAME)
    part = pl.Series([_PART_NAMES[number] for number in graph.parts], dtype=schema.INSTRUCTIONS["part"])
    return rows.with_columns(tf_op=tf_op, part=part).select(*OPS)


class _Named(Instructions):
    """Instructions with the names of framework ops, which this completes, and their parts."""

    def __init__(self, protos: Messages, names: list[str | None]) -> None:
        super().__init__(protos)
        self.names = names
        for row in np.flatnonzero(self.where(*_INPUTS)).tolist():
            names[row] = None
        for _ in range(_LEVELS):
            self._name_by_contents()
        edges = self.operands < self.n
        order = np.argsort(self.operands[edges], kind="stable")
        self._users = grouped(self.operands[edges][order], self.user[edges][order], self.n)
        self._uses = grouped(self.user[edges], self.operands[edges], self.n)
        self.parts = [_PART_NAMES.index(place(name or "")[1]) for name in names]
        self._find_updates()
        inputs = self.where(*_INPUTS).tolist()
        self._name_by_users(update=False)
        self._name_gradients()
        self._name_by_users(update=False)
        self._spread([row for row in range(self.n) if names[row] and not inputs[row]], self._users)
        self._name_by_users(update=True)

    def _name_by_contents(self) -> None:
        """Name instructions by the ops in their computation that are of other layers or parts than their own."""
        contains = self.where(*_CONTAINS)[self.caller] & (self.callee < self.computations)
        used: Mask = np.isin(self.computation, self.callee[contains])
        works = (~self.where(*_FORMATTING)).tolist()
        inside, other = dict[int, Counter[str]](), dict[int, Counter[str]]()
        for row in np.flatnonzero(used).tolist():
            if name := self.names[row]:
                counted = (inside if works[row] else other).setdefault(int(self.computation[row]), Counter())
                counted[name] += 1
        for row, computation in zip(self.caller[contains].tolist(), self.callee[contains].tolist(), strict=True):
            fused = inside.get(computation) or (None if self.names[row] else other.get(computation))
            if fused:
                self.names[row] = _joined(self.names[row], (name for name, _ in fused.most_common()))

    def _find_updates(self) -> None:
        """Set the part of what depends on gradients and is itself neither forward nor backward."""
        pending = deque(row for row, part in enumerate(self.parts) if part in (_BACKWARD, len(_PART_NAMES) - 1))
        seen = set(pending)
        while pending:
            for user in self._users[pending.popleft()]:
                if user not in seen:
                    seen.add(user)
                    pending.append(user)
                    if self.names[user] and not self.parts[user]:
                        self.parts[user] = _UPDATE

    def _spread(self, named: Iterable[int], neighbours: list[list[int]]) -> None:
        """Give instructions without a name that of the nearest named one, breadth first."""
        pending = deque(named)
        while pending:
            row = pending.popleft()
            for other in neighbours[row]:
                if self.names[other] is None:
                    self.names[other], self.parts[other] = self.names[row], self.parts[row]
                    pending.append(other)

    def _name_by_users(self, *, update: bool) -> None:
        named = (row for row in range(self.n) if self.names[row] and (update or self.parts[row] != _UPDATE))
        self._spread([*named], self._uses)

    def _name_gradients(self) -> None:
        """Name products that only an update uses by the forward op that uses the same parameter as the update."""
        computes = self.where(*_COMPUTES)
        contains = self.where("fusion")[self.caller] & (self.callee < self.computations)
        fused = np.isin(self.callee, self.computation[computes]) & contains
        leaves = self.where(*_FORMATTING).tolist()
        products: Ints = np.union1d(np.flatnonzero(computes), self.caller[fused])
        for row in products.tolist():
            if self.names[row] is None and (found := self._updated(row, leaves)) is not None:
                self.names[row] = _gradient(found)
                self.parts[row] = _BACKWARD

    def _updated(self, row: int, leaves: list[bool]) -> str | None:
        """Return the forward op whose parameter the users of a gradient update; None unless it is of one layer."""
        pending, seen, found = deque([row]), {row}, dict[str | None, str]()
        while pending and len(seen) < _NEAR:
            for user in self._users[pending.popleft()][:_NEAR]:
                if user in seen or not (self.parts[user] == _UPDATE or self.names[user] is None):
                    continue
                seen.add(user)
                pending.append(user)
                for operand in self._uses[user][:_NEAR] if self.parts[user] == _UPDATE else ():
                    name = self.names[operand]
                    if name and leaves[operand] and self.parts[operand] == _FORWARD:
                        found.setdefault(place(name)[0], name)
        return next(iter(found.values())) if len(found) == 1 else None


@lru_cache(1 << 14)
def place(name: str) -> tuple[str | None, str | None]:
    """Return layer and part of a framework op."""
    return op_names.layer(name), op_names.part(name)


def _joined(main: str | None, names: Iterable[str]) -> str:
    """Return framework ops of different layers or parts, joined; `main` first."""
    kept = dict[tuple[str | None, str | None], str]()
    for joined in (*([main] if main else []), *names):
        for name in joined.split(";"):
            if len(kept) < _MOST_FRAMEWORK_OPS:
                kept.setdefault(place(name), name)
    return ";".join(kept.values())


def _gradient(name: str) -> str:
    """Return the framework op of the gradient of an op.

    >>> _gradient("model/conv2d/convolution"), _gradient("jit(f)/jvp(Model)/Conv_0/conv")
    ('gradient_tape/model/conv2d/convolution', 'jit(f)/transpose(jvp(Model))/Conv_0/conv')
    """
    first = name.partition(";")[0]
    gradient, count = _JVP.subn(r"transpose(jvp(\1))", first)
    return gradient if count else f"gradient_tape/{first}"
