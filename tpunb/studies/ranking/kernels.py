"""Kernels of programs: which arrays the loops of each read and write, in which order, and what that costs."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from tpunb.costs import hlo
from tpunb.costs.hlo_graph import Floats, Instructions, grouped
from tpunb.protobuf.table import Messages, integer, text
from tpunb.studies.ranking import loops

_Loop = tuple[tuple[int, tuple[int, ...]], ...]  # sizes, innermost first, each with its steps along the dimensions
_Orders = dict[int, list[int]]  # of arrays in memory, minor to major, by instruction or parameter
_Stop = Callable[[int], bool]

_MOST_INSTRUCTIONS, _DEEPEST = 10_000, 50  # instructions in a loop; calls in calls
_NO_LOOP = {"parameter", "constant", "get-tuple-element", "bitcast", "after-all", "iota", "partition-id", "replica-id"}
_OPAQUE = {"convolution", "gather", "scatter", "custom-call", "sort", "fft", "rng-bit-generator", "triangular-solve"}
_CALLS = {"call", "while", "conditional", "async-start"}
_VIEWS = {"transpose", "reshape", "bitcast"}
_TILED = {*hlo.ELEMENTWISE, *_VIEWS, "parameter", "copy", "tanh", "exponential"} - {"constant"}
_FUSIBLE = _TILED | {"broadcast", "constant", "concatenate", "slice", "pad", "reverse", "iota"} - {"parameter"}
_FUSING, _PACKING = {*_FUSIBLE, "reduce", "reduce-window"}, {"dot", "convolution"}
_TRIPS = re.compile(r'known_trip_count":\s*\{\s*"n":\s*"(\d{1,9})"')
_SIDES = ((7, 11, 8), (6, 3, 4))  # of a convolution, major to minor: batch, spatial, feature; spatial, input, output


class Kernels(Instructions):
    """Instructions of programs, with the kernels that they become on a CPU.

    Parameters
    ----------
    protos
        ``HloProto`` messages.
    compiled
        Whether the compiler's passes have run; before that, layouts in a program are not those in memory.
    """

    def __init__(self, protos: Messages, *, compiled: bool = True) -> None:
        super().__init__(protos)
        self.protos = protos
        shapes, dot, modules = self.shapes.messages, self.rows.at(self.dot), protos.sub(text(1))
        dims = grouped(*shapes.numbers(3), len(shapes))
        orders = grouped(*shapes.at(shapes.columns(text(5))[0]).numbers(1), len(shapes))
        with np.errstate(all="ignore"):
            items = np.maximum(np.nan_to_num(np.ceil(self.shapes.bytes / self.shapes.elements), posinf=1), 1)
        of_shape = [
            (
                size,
                order if compiled and len(order) == len(size) else [*range(len(size))][::-1],
                int(item),
                float(whole),
            )
            for size, order, item, whole in zip(dims, orders, items, np.nan_to_num(self.shapes.size), strict=True)
        ]
        self._arrays = [of_shape[shape] for shape in self.shape.tolist()]
        self._names = [self.opcodes[code] for code in self.opcode.tolist()]
        self._uses = grouped(self.user, self.operands, self.n)
        self._calls = grouped(self.caller, self.callee, self.n)
        self._members = grouped(self.computation, np.arange(self.n), self.computations)
        self._listed, self._numbers = grouped(*self.rows.numbers(14), self.n), self.rows.columns(integer(9))[0].tolist()
        self._products = [grouped(*dot.numbers(field), self.n) for field in (3, 1, 4, 2)]
        code, configs = self.rows.distinct(self.config)
        trips = [int(match[1]) if (match := _TRIPS.search(config)) else 1 for config in configs]
        self._trips = [trips[row] for row in code.tolist()]
        computations = modules.sub(text(3))
        entry = computations.columns(integer(5))[0] == modules.columns(integer(6))[0][computations.parent]
        self.entry = entry[self.computation]
        """Whether each instruction is of an entry computation."""
        self._entries = [*zip(np.flatnonzero(entry).tolist(), computations.parent[entry].tolist(), strict=True)]
        self._out = np.zeros((len(modules), len(loops.COSTS)))

    def compiled(self) -> Floats:
        """Return how often each of ``COSTS`` occurs in a run of each compiled program, shape (programs, n)."""
        self._out[:] = 0
        for entry, program in self._entries:
            self._run(entry, 1, self._out[program], _DEEPEST)
        return self._out.copy()

    def planned(self, orders: Sequence[Sequence[int]]) -> Floats:
        """Return the same of programs that are not compiled, in the kernels that read their arguments.

        Parameters
        ----------
        orders
            Order of the dimensions of each argument, major to minor; all other arrays have their default order.
        """
        self._out[:] = 0
        for entry, program in self._entries:
            self._plan(entry, dict(enumerate([*order][::-1] for order in orders)), self._out[program], _DEEPEST)
        return self._out.copy()

    def _run(self, computation: int, times: int, out: Floats, depth: int) -> None:
        """Add the kernels of a computation of a compiled program: each instruction, or what is fused into it."""
        for row in self._members[computation] if depth else ():
            name, calls = self._names[row], [callee for callee in self._calls[row] if callee < self.computations]
            if name in _CALLS:
                for callee in calls:
                    self._run(callee, times * self._trips[row], out, depth - 1)
            elif name == "fusion" and calls:
                root = int(self.root[calls[0]])
                results = [] if root >= self.n else self._uses[root] if self._names[root] == "tuple" else [root]
                for result in results:
                    out += times * self._kernel(
                        result, self._loop(result), lambda used: self._names[used] == "parameter"
                    )
            elif name not in (*_NO_LOOP, "tuple"):
                out += times * self._kernel(row, self._loop(row), lambda used: True)

    def _plan(self, computation: int, arguments: _Orders, out: Floats, depth: int) -> None:
        """Add the kernels that a computation will become: fusions end where a result is kept."""
        members = self._members[computation] if depth else []
        numbers = {row: self._numbers[row] for row in members if self._names[row] == "parameter"}
        given = {row: arguments[number] for row, number in numbers.items() if number in arguments}
        users: dict[int, set[str]] = {}
        for row in members:
            for used in self._uses[row]:
                users.setdefault(used, set()).add(self._names[row])
        kept = {
            row
            for row in members
            for name in [self._names[row]]
            if name not in _FUSIBLE or not users.get(row, {""}) <= (_FUSING | _PACKING if name in _VIEWS else _FUSING)
        }
        for row in members:
            name, uses = self._names[row], self._uses[row]
            if name == "call":
                passed = {k: given[used] for k, used in enumerate(uses) if used in given}
                for callee in self._calls[row]:
                    self._plan(callee, passed, out, depth - 1)
            elif name in _PACKING:
                for side, used in enumerate(uses[:2]):
                    self._pack(row, side, used, given, kept, out)
            elif name in (*_OPAQUE, *_CALLS, "tuple"):
                for used in {*uses} & {*given}:
                    out += self._copy(used, given)
            elif row in kept and name not in _NO_LOOP:
                out += self._kernel(row, self._loop(row), kept.__contains__, given)

    def _pack(self, row: int, side: int, used: int, given: _Orders, kept: set[int], out: Floats) -> None:
        """Add the kernel that brings an operand of a product into one of the orders that are read."""
        if used >= self.n:
            return
        if self._names[row] == "dot":
            batch, contracted = (self._products[2 * side + k][row] for k in (0, 1))
            free = [dim for dim in range(len(self._arrays[used][0])) if dim not in (*batch, *contracted)]
            orders = [[*batch, *contracted, *free], [*batch, *free, *contracted]][:: 1 if side else -1]
        else:
            numbers = self.rows.at(self.convolution[row : row + 1])
            orders = [
                [
                    int(dim)
                    for field in _SIDES[side]
                    for dim in (numbers.numbers(field)[1] if numbers.numbers(field)[1].size else [0])
                ]
            ]
        for order in orders:
            reads, names = self._reads(used, self._loop(used, order[::-1]), kept.__contains__)
            if not any(read in given for read, _ in reads):
                return
            in_place = [loop and self._in_place(read, loop) for read, loop in reads]
            if names <= _VIEWS | {"parameter"} and all(in_place):
                for read, _ in reads:  # views of arguments, which are read as they are
                    if read in given and given[read] != self._arrays[read][1]:
                        out += self._copy(read, given)
                return
        out += self._kernel(used, self._loop(used, orders[0][::-1]), kept.__contains__, given, order=orders[0][::-1])

    def _in_place(self, read: int, loop: _Loop) -> bool:
        """Return whether a loop visits an array in its default order, element by element."""
        size = math.prod(size for size, _ in loop)
        return loops.merged(self._steps(read, loop), [size]) == [(size, self._arrays[read][2])]

    def _copy(self, used: int, given: _Orders) -> Floats:
        """Return the kernel that copies an argument into the default order."""
        loop, item = self._loop(used), self._arrays[used][2]
        arrays = [(self._steps(used, loop), item), (self._steps(used, loop, given[used]), item)]
        return np.append([1.0, 0.0], loops.cost(arrays, tiled=True))

    def _kernel(
        self, result: int, nest: _Loop, stop: _Stop, given: _Orders | None = None, *, order: list[int] | None = None
    ) -> Floats:
        """Return the counts of a kernel that computes a result; 0 if arrays are given and it reads no one of them."""
        counts = np.zeros(len(loops.COSTS))
        if result >= self.n:
            return counts
        reads, names = self._reads(result, nest, stop)
        if given is not None and not any(read in given for read, _ in reads):
            return counts
        counts[:2] = 1, sum(self._arrays[read][3] for read, loop in reads if loop is None)
        sizes = [size for size, _ in nest]
        arrays = [(self._steps(result, nest, order), self._arrays[result][2])]
        others: list[tuple[loops.Loops, int]] = []
        for read, loop in reads:
            if loop is not None:
                steps = self._steps(read, loop, None if given is None else given.get(read))
                same = loops.merged(steps, sizes)
                (others if same is None else arrays).append((steps if same is None else same, self._arrays[read][2]))
        tiled = not others and names <= _TILED
        counts[2:] = loops.cost([*arrays, *others], tiled=tiled, interchange=not others)
        return counts

    def _loop(self, row: int, order: Iterable[int] | None = None) -> _Loop:
        """Return the loop over a result in its order in memory, or another, minor to major."""
        if row >= self.n:
            return ()
        dims, default = self._arrays[row][:2]
        ranks = range(len(dims))
        chosen = default if order is None else order
        return tuple((dims[dim], tuple(int(dim == k) for k in ranks)) for dim in chosen if dims[dim] != 1)

    def _steps(self, row: int, loop: _Loop, order: list[int] | None = None) -> loops.Loops:
        """Return the loops with the bytes between elements of an array in some order, minor to major."""
        dims, default, step, _ = self._arrays[row]
        bytes_ = [0] * len(dims)
        for dim in default if order is None else order:
            bytes_[dim], step = step, step * dims[dim]
        return [(size, sum(a * b for a, b in zip(along, bytes_, strict=True))) for size, along in loop]

    def _reads(self, result: int, nest: _Loop, stop: _Stop) -> tuple[list[tuple[int, _Loop | None]], set[str]]:
        """Return the arrays in memory that a loop over a result reads, and the opcodes that it computes."""
        if self._names[result] == "parameter":
            return [(result, nest)], {"parameter"}
        pending, names = [(result, nest)], set()
        reads: dict[tuple[int, _Loop | None], None] = {}
        seen = set(pending)
        while pending and len(seen) < _MOST_INSTRUCTIONS:
            row, loop = pending.pop()
            names.add(self._names[row])
            for used, inner in self._operands(row, loop):
                if inner is None or stop(used) or self._names[used] == "parameter":
                    reads[used, inner] = None
                elif (used, inner) not in seen:
                    seen.add((used, inner))
                    pending.append((used, inner))
        return [*reads], names

    def _operands(self, row: int, loop: _Loop) -> list[tuple[int, _Loop | None]]:
        """Return the arrays that an instruction uses in a loop over its result; None for an order that is unseen."""
        name, rank = self._names[row], len(self._arrays[row][0])
        uses = [used for used in self._uses[row] if used < self.n and self._arrays[used][0]]
        listed = self._listed[row]
        if name in (*_OPAQUE, *_CALLS):
            return [(used, None) for used in uses]
        if name == "dot":
            batches, contracts = (self._products[k::2] for k in (0, 1))
            return [
                (used, self._loop(used, self._packed(used, batches[side][row], contracts[side][row], side)))
                for side, used in enumerate(uses[:2])
            ]
        if name == "broadcast":
            return [(used, tuple((size, tuple(steps[dim] for dim in listed)) for size, steps in loop)) for used in uses]
        if name == "transpose":
            back = [listed.index(dim) for dim in range(rank)]
            return [(used, tuple((size, tuple(steps[k] for k in back)) for size, steps in loop)) for used in uses]
        if name == "reduce":
            return [(used, self._reduced(used, listed, loop)) for used in uses[: max(1, len(uses) // 2)]]
        if name in ("bitcast", "reshape"):
            return [(used, self._reshaped(row, used, loop)) for used in uses]
        return [(used, loop if len(self._arrays[used][0]) == rank else None) for used in uses]

    def _packed(self, used: int, batch: list[int], contracted: list[int], side: int) -> list[int]:
        """Return the order, minor to major, in which a product reads an operand once."""
        free = [dim for dim in range(len(self._arrays[used][0])) if dim not in (*batch, *contracted)]
        return [*batch, *(contracted if side else free), *(free if side else contracted)][::-1]

    def _reduced(self, used: int, listed: list[int], loop: _Loop) -> _Loop:
        """Return the loop over the operand of a reduction: along its memory where that is kept."""
        dims, order = self._arrays[used][:2]
        kept = [dim for dim in range(len(dims)) if dim not in listed]
        place = [kept.index(dim) if dim in kept else None for dim in range(len(dims))]
        outer = tuple((size, tuple(0 if k is None else steps[k] for k in place)) for size, steps in loop)
        inner = self._loop(used, [dim for dim in order if dim in listed])
        return (outer[0], *inner, *outer[1:]) if outer and order[0] in kept else (*inner, *outer)

    def _reshaped(self, row: int, used: int, loop: _Loop) -> _Loop:
        """Return the loop over an array of another shape, by the place of elements in row order, or in memory."""
        dims, order = self._arrays[used][:2]
        logical = self._names[row] == "reshape"
        into: dict[int, int] = {}
        place = 1
        for dim in [*range(len(dims))][::-1] if logical else order:
            into[dim], place = place, place * dims[dim]
        nest: list[tuple[int, tuple[int, ...]]] = []
        item = self._arrays[row][2]
        steps = self._steps(row, loop, [*range(len(self._arrays[row][0]))][::-1] if logical else None)
        for left, step in steps:
            place = step // item
            if place == 0:
                nest.append((left, (0,) * len(dims)))
            for dim, by in into.items():  # minor to major
                if left > 1 and 0 < place < by * dims[dim]:
                    move = max(1, place // by)
                    count = min(left, -(-dims[dim] // move))
                    nest.append((count, tuple(move * (k == dim) for k in range(len(dims)))))
                    left, place = -(-left // count), by * dims[dim]
        return tuple(nest)
