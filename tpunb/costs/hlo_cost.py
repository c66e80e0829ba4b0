"""Work of HLO instructions: FLOPs, transcendentals and bytes, by the rules of XLA's ``HloCostAnalysis``.

A ``while`` counts one iteration, a ``conditional`` the largest of its branches. Calls of cuBLAS and cuDNN, hipBLAS and
MIOpen are counted from their shapes and configuration. Simpler than XLA: a fusion reads a parameter of a nested fusion
whole, and a transpose that leaves the bytes in place counts as a copy.
"""

from __future__ import annotations

import re

import numpy as np
import polars as pl

from tpunb import schema
from tpunb.compiled import compiled
from tpunb.costs import hlo
from tpunb.costs.hlo_graph import Floats, Instructions, Mask, spans
from tpunb.protobuf.table import Ints, Messages, integer, text

WORK: schema.Schema = {
    **{name: hlo.INSTRUCTIONS[name] for name in ("proto", "hlo_op", "opcode", "category")},
    "dtype": schema.INSTRUCTIONS["dtype"],
    **dict.fromkeys(["flops", "transcendentals", "bytes"], pl.Float64()),
}
"""One row per instruction: the work of one run of it, null where it is unknown."""

# tags and fields of xla/service/hlo.proto and xla/xla_data.proto
_FEATURE_GROUPS, _BATCH_GROUPS = integer(50), integer(58)
_FFT_LENGTH, _CONTRACTED, _WINDOW_DIMENSIONS = 32, 1, text(1)
_IN_BATCH, _IN_FEATURE, _OUT_FEATURE = integer(7), integer(8), integer(10)
_SPATIAL = 11, 6, 12  # dimensions of input, kernel and output

_MOST_WORK = 2.0**63  # work of one run: XLA's own sizes are Int64
_LEVELS = 2  # of computations in computations whose products are found
_INLINE = 8  # elements of a constant that code contains
_LARGEST = 2.0**31  # dimension of a convolution
_POSITIONS = 1 << 24  # window positions that are counted in all programs of a file
_TYPES = pl.Series([hlo.TYPES.get(kind) for kind in range(max(hlo.TYPES) + 1)], dtype=schema.NAME)

_TRANSCENDENTAL = {
    *("acosh", "atan2", "cbrt", "cosine", "erf", "exponential", "exponential-minus-one", "log", "log-plus-one"),
    *("logistic", "power", "rsqrt", "sine", "sqrt", "tan", "tanh"),
}
_ELEMENTWISE = {*hlo.ELEMENTWISE, "acos", "asin", "asinh", "atanh", "cosh", "sinh"} - _TRANSCENDENTAL - {"constant"}
_NO_FLOPS = {
    *("add-dependency", "after-all", "all-gather", "all-gather-done", "all-gather-start", "all-reduce-done"),
    *("all-to-all", "async-done", "async-update", "bitcast", "broadcast", "collective-broadcast"),
    *("collective-permute", "collective-permute-done", "collective-permute-start", "concatenate", "constant", "copy"),
    *("copy-done", "copy-start", "domain", "dynamic-reshape", "dynamic-slice", "dynamic-update-slice", "gather"),
    *("get-dimension-size", "get-tuple-element", "infeed", "iota", "optimization-barrier", "outfeed", "pad"),
    *("parameter", "partition-id", "ragged-all-to-all", "recv", "recv-done", "replica-id", "reshape", "reverse"),
    *("rng-get-and-update-state", "send", "send-done", "set-dimension-size", "slice", "transpose", "tuple"),
}
_NO_BYTES = ("parameter", "constant", "get-tuple-element", "bitcast", "after-all", "add-dependency", "domain")
_RUNS = ("call", "while", "async-start", "conditional")  # whose work is that of the computations
_APPLIES = ("reduce", "reduce-window", "map", "select-and-scatter", "scatter")  # that apply computations to elements
_GEMM, _CONV = ("__cublas$gemm", "__cublas$lt$matmul"), "__cudnn$conv"
_BATCHED, _BATCHED_GEMM = 3, re.compile(r'"lhs_batch_dimensions"\s*:\s*\["?\d')
_REMAT, _REMAT_NAME = re.compile(r"rematted_computation"), re.compile(r"\.remat\d*\b")  # of JAX, and of XLA itself
_GRADIENT, _FORWARD, _NAMELESS = (re.compile(text) for text in (r"transpose\(|gradient_tape", r"jvp\(", "^$"))
_PARTS = ("forward", "backward", "recomputation", None)
_TRIPS = re.compile(r'"known_trip_count"\s*:\s*\{\s*"n"\s*:\s*"(\d{1,12})"')
_HARMLESS = re.compile(
    "^$|Sharding|SPMD|ShardShape|AllocateBuffer|TopK|callback|annotate_device|MoveTo|Annotate|^lapack_|cusolver|cub|"
    "X64|PadToStatic|SliceToDynamic|ApproxTopK|Pin|Unpin|RngBitGenerator|threefry|prng|LayoutConstraint"
)  # custom calls that compute no products
_GEMM_DIMENSIONS = re.compile(r'"lhs_contracting_dimensions"\s*:\s*\[([\s\d",]*)\]')


def work(protos: Messages) -> pl.DataFrame:
    """Return the work of the instructions of programs: ``WORK``, in their order; exact up to 2**53.

    Null for custom calls, what XLA does not count, and what contains such an instruction or calls itself.
    """
    return hlo.undamaged(protos, _work, WORK)


def _work(protos: Messages) -> pl.DataFrame:
    with np.errstate(all="ignore"):  # NaN and infinity are null
        table = _Costs(protos)
        counts = dict(zip(("flops", "transcendentals", "bytes"), table.work(), strict=True))
        kind = table.dtypes()
        dtype = _TYPES[np.where((kind > 0) & (kind < len(_TYPES)), kind, 0)]
    columns = {
        name: pl.Series(np.where((count >= 0) & (count < _MOST_WORK), count, np.nan), nan_to_null=True)
        for name, count in counts.items()
    }
    proto = pl.Series(table.proto.astype(np.uint32))
    return pl.DataFrame({"proto": proto, **hlo.names(table.rows, *table.texts), "dtype": dtype, **columns})


PRODUCTS: schema.Schema = {
    "proto": pl.UInt32(),  # row of the program in the input
    "dtype": pl.String(),  # of the operands
    "attention": pl.Boolean(),  # whether both operands have batch dimensions, as those of attention have
    "part": pl.String(),  # "forward", "backward", "recomputation", or null if XLA left no name
    "flops": pl.Float64(),  # null where `unknown` says why
    "unknown": pl.String(),
}
"""One row per kind of matrix products and convolutions of a program."""


def products(protos: Messages) -> pl.DataFrame:
    """Return the FLOPs of products in one run of each program, with each turn of its loops: ``PRODUCTS``."""
    with np.errstate(all="ignore"):
        return hlo.undamaged(protos, lambda those: _Costs(those).products(), PRODUCTS)


class _Costs(Instructions):
    """Work of the instructions of programs."""

    def work(self) -> list[Floats]:
        """Return FLOPs, transcendentals and bytes of every instruction."""
        flops, transcendentals = self._computed()
        moved, times = self._moved(), self._times()
        runs = self.where(*_RUNS)[self.caller].astype(float)
        return self._with_computations([flops, transcendentals, moved], [times, times, runs])

    def products(self) -> pl.DataFrame:
        """Return the FLOPs of products in one run of each program: ``PRODUCTS``."""
        product, flops = self._products(), np.zeros(self.n)
        for count in (self._dot, self._convolution):
            chosen, counted = count()
            flops[chosen] = counted
        op_name = self.rows.at(self.rows.columns(hlo.METADATA)[0]).columns(hlo.OP_NAME)[0]
        again = self._texts_match(op_name, _REMAT) | self._texts_match(self.texts[0], _REMAT_NAME)
        gradient = self._texts_match(op_name, _GRADIENT)
        part = np.where(
            again, 2, np.where(self._texts_match(op_name, _NAMELESS), self._parts(gradient, op_name), gradient)
        )
        batched = np.bincount(
            self.rows.at(np.where(self.where("dot"), self.dot, 0)).numbers(_BATCHED)[0], minlength=self.n
        )
        is_attention = (batched > 0) | self._texts_match(self.config, _BATCHED_GEMM)
        kind = np.append(self.shapes.kind[self.shape], 0)[self.operand(0)].astype(np.int64)
        columns = [each[product].tolist() for each in (kind, is_attention, part)]
        groups = [*dict.fromkeys(zip(*columns, strict=True))]
        counts = [
            np.where(product & (kind == of) & (is_attention == attends) & (part == which), flops, 0.0)
            for of, attends, which in groups
        ]
        trips = self._trips()
        loops = np.where(np.isnan(trips), 1.0, trips)[self.caller]
        totals = self._with_computations(counts, [loops] * len(counts)) if counts else []
        is_open = np.isnan(trips) & (sum(totals, np.zeros(self.n)) > 0)  # a loop of unknown length around products
        called = np.zeros(self.computations + 1, bool)
        called[self.callee] = True
        outer = ~called[self.computation]
        whys = {}
        for row in np.flatnonzero(is_open | self._is_foreign()):
            target = self.targets[self.target[row]] if self.where("custom-call")[row] else ""
            whys[int(self.proto[row])] = f"its custom call {target}" if target else "how often its loops run"
        programs = 1 + int(self.proto.max(initial=-1))
        rows = [
            (proto, _TYPES[of], attends, _PARTS[which], None if proto in whys else value, whys.get(proto))
            for (of, attends, which), each in zip(groups, totals, strict=True)
            for proto, value in enumerate(np.bincount(self.proto[outer], each[outer], programs).tolist())
            if value or proto in whys
        ]
        return pl.DataFrame(rows, PRODUCTS, orient="row")

    def _parts(self, gradient: Mask, op_name: Ints) -> Ints:
        """Return the part of instructions without a name of their own by the named ones around them, 3 if unclear."""
        forward = self._texts_match(op_name, _FORWARD) & ~gradient
        sides = np.array([np.bincount(self.computation, of, self.computations) > 0 for of in (forward, gradient)])
        caller = np.full(self.computations + 1, -1)
        caller[self.callee] = self.computation[self.caller]
        for _ in range(_LEVELS + 1):
            nameless = ~sides.any(axis=0) & (caller[: self.computations] >= 0)
            sides = np.where(nameless, sides[:, caller[: self.computations]], sides)
        of_computation: Ints = np.where(sides.all(axis=0), 3, sides[1])
        return of_computation[self.computation]

    def _texts_match(self, column: Ints, pattern: re.Pattern[str]) -> Mask:
        """Return whether a text of each instruction has a pattern."""
        code, texts = self.rows.distinct(column)
        found: Mask = np.array([pattern.search(text) is not None for text in texts], bool)[code]
        return found

    def _trips(self) -> Floats:
        """Return how often each ``while`` runs its body, NaN if XLA does not know; 1 for all else."""
        trips, loops = np.ones(self.n), np.flatnonzero(self.where("while"))
        code, configs = self.rows.distinct(self.config)
        counts = np.array([float(found[1]) if (found := _TRIPS.search(text)) else np.nan for text in configs])
        trips[loops] = counts[code[loops]]
        return trips

    def _is_foreign(self) -> Mask:
        """Return which custom calls may compute products that are not counted."""
        harmless = np.array([_HARMLESS.search(target) is not None for target in self.targets], bool)[self.target]
        foreign: Mask = self.where("custom-call") & ~harmless & ~self.calls(*_GEMM, _CONV)
        return foreign

    def _products(self) -> Mask:
        return self.where("dot", "convolution") | self.calls(*_GEMM, _CONV)

    def dtypes(self) -> Ints:
        """Return the type of the operands of each product and of what contains one, else that of the result."""
        kind = self.shapes.kind[self.shape].astype(np.int64)
        product = self._products()
        kind[product] = np.append(kind, 0)[self.operand(0)[product]]
        contains = self.where("fusion", "call")[self.caller]
        caller, callee = self.caller[contains], self.callee[contains]
        for _ in range(_LEVELS):
            inside = np.zeros(self.computations + 1, np.int64)
            inside[self.computation[product]] = kind[product]
            kind[caller] = np.where(inside[callee] > 0, inside[callee], kind[caller])
            product[caller] |= inside[callee] > 0
        return kind

    def _computed(self) -> tuple[Floats, Floats]:
        """Return FLOPs and transcendentals, without those of the computations that instructions call."""
        elements, first = self.elements, self.of(self.elements, self.operand(0))
        flops = np.where(self.where(*_ELEMENTWISE), elements, np.nan)
        flops[self.where(*_NO_FLOPS, *_RUNS, *_APPLIES, *_TRANSCENDENTAL, "fusion", "rng", "rng-bit-generator")] = 0
        sort, reduced = self.where("sort"), self.where("all-reduce", "all-reduce-start")
        flops[sort] = (first * np.where(first > 1, np.ceil(np.log2(first)), 0))[sort]
        flops[reduced] = self.all_elements[reduced]
        solve, cholesky = self.where("triangular-solve"), self.where("cholesky")
        last = self.dim(self.operand(0), np.full(self.n, -1))
        flops[solve] = (2 * last * self.of(elements, self.operand(1)))[solve]
        flops[cholesky] = np.floor(last * first / 3)[cholesky]
        for count in (self._fft, self._dot, self._convolution):
            chosen, counted = count()
            flops[chosen] = counted
        transcendentals = np.where(self.where(*_TRANSCENDENTAL, "rng"), elements, np.where(np.isnan(flops), np.nan, 0))
        random = self.where("rng-bit-generator")
        transcendentals[random] = self.all_elements[random]
        return flops, transcendentals

    def _fft(self) -> tuple[Ints, Floats]:
        chosen = np.flatnonzero(self.where("fft"))
        if not chosen.size:
            return chosen, np.zeros(0)
        owner, length = self.rows[self.where("fft")].numbers(_FFT_LENGTH)
        logs = np.ones(chosen.size)
        np.multiply.at(logs, owner, np.floor(np.log2(np.maximum(length, 1))))
        return chosen, 8 * logs * self.of(self.elements, self.operand(0)[chosen])

    def _dot(self) -> tuple[Ints, Floats]:
        dots, calls = self.where("dot"), np.flatnonzero(self.calls(*_GEMM))
        owner, number = self.rows.at(np.where(dots, self.dot, 0)).numbers(_CONTRACTED)
        code, configs = self.rows.distinct(self.config[calls])
        contracted = [_contracted(config) for config in configs]
        owner = np.append(owner, np.repeat(calls, np.array([len(numbers) for numbers in contracted], int)[code]))
        number = np.append(number, np.array([k for row in code.tolist() for k in contracted[row]], np.int64))
        flops = 2 * self.elements
        np.multiply.at(flops, owner, self.dim(self.operand(0)[owner], number))
        chosen = np.append(np.flatnonzero(dots), calls)
        return chosen, flops[chosen]

    def _convolution(self) -> tuple[Ints, Floats]:
        """Count multiplications and additions of the window positions inside the input, as a forward convolution."""
        convolution = self.where("convolution") | self.calls(_CONV)
        chosen = np.flatnonzero(convolution)
        if not chosen.size:
            return chosen, np.zeros(0)
        of_input, of_kernel = (self.calls(_CONV + suffix)[chosen] for suffix in ("BackwardInput", "BackwardFilter"))
        first, second = (self.operand(k)[chosen] for k in (0, 1))
        lhs, kernel = np.where(of_input, chosen, first), np.where(of_kernel, chosen, second)
        out = np.where(of_input, first, np.where(of_kernel, second, chosen))
        numbers = self.rows.at(self.convolution[chosen])
        batch, feature, out_feature = numbers.columns(_IN_BATCH, _IN_FEATURE, _OUT_FEATURE)
        groups = self.rows[convolution].columns(_FEATURE_GROUPS, _BATCH_GROUPS)
        per_feature, per_batch = (np.maximum(each, 1) for each in groups)
        macs = np.floor(self.dim(lhs, feature) / per_feature) * self.dim(out, out_feature)
        macs *= np.floor(self.dim(lhs, batch) / per_batch)
        window = self.rows.at(self.window[chosen]).sub(_WINDOW_DIMENSIONS)
        at = window.parent.astype(np.int64)
        nth = np.arange(len(window)) - spans(at, chosen.size)[0][at]
        sizes = []
        for rows, field in zip((lhs, kernel, out), _SPATIAL, strict=True):
            owner, spatial = numbers.numbers(field)
            begin, count = spans(owner, chosen.size)
            inside = nth < count[at]
            number = np.append(spatial, -2)[np.where(inside, begin[at] + nth, spatial.size)]
            sizes.append(self.dim(rows[at], number))
        np.multiply.at(macs, at, _positions(window, *sizes))
        return chosen, 2 * macs

    def _moved(self) -> Floats:
        """Return bytes of operands and result, without those of ``_RUNS``."""
        size, user = self.size, self.user
        sizes = self.of(size, self.operands)
        first, second, third = (self.of(size, self.operand(k)) for k in (0, 1, 2))
        moved = self.all_bytes + np.bincount(user, sizes, self.n)
        moved[self.where(*_NO_BYTES, *_RUNS)] = 0
        updates = np.where(self.position > self.operand_count[user] // 2, sizes, 0)
        indices = self.of(size, self.operand(self.operand_count // 2))
        for opcodes, rule in (
            (("tuple",), size),
            (("slice",), 2 * size),
            (("dynamic-slice", "gather"), 2 * size + second),
            (("dynamic-update-slice",), 2 * second + third),
            (("scatter",), 3 * np.bincount(user, updates, self.n) + indices),
            (("triangular-solve",), size + first / 2 + second),
            (("cholesky",), first),
            (("infeed",), self.all_bytes),
            (("outfeed",), np.bincount(user, self.of(self.all_bytes, self.operands), self.n)),
            (("fusion",), self._of_fusions()),
            (("custom-call",), np.full(self.n, np.nan)),
        ):
            moved = np.where(self.where(*opcodes), rule, moved)
        array = self.shapes.bytes[self.shape]  # the result; the other part of the tuple is scratch memory
        counted: Floats = np.where(self.calls(*_GEMM, _CONV), array + np.bincount(user, sizes, self.n), moved)
        return counted

    def _of_fusions(self) -> Floats:
        """Return what each fusion writes and reads: slices where it uses slices, constants that code cannot contain."""
        updated = self.of(self.size, self.operand(1))
        written = np.where(self.where("dynamic-update-slice"), updated, self.all_bytes)
        parts = np.bincount(self.user, self.of(written, self.operands), self.n)
        moved = self.of(np.where(self.where("tuple"), parts, written), self.root)
        inlined = self.elements <= _INLINE
        constants = np.where(self.where("constant") & ~inlined, self.size, 0)
        reads = np.where(self.where("parameter"), self._reads(), 0)
        moved = moved + np.bincount(self.computation, constants + reads, self.computations)
        inside = np.full(self.n, self.computations)
        inside[self.caller[::-1]] = self.callee[::-1]  # the first
        return self.of(moved, inside)

    def _reads(self) -> Floats:
        """Return the bytes that the users of each instruction read: slices, or once the whole."""
        edges = np.flatnonzero(self.operands < self.n)
        pair = self.user[edges].astype(np.int64) * self.n + self.operands[edges]
        _, first = np.unique(pair, return_index=True)
        edge = edges[first]
        user, used, leading = self.user[edge], self.operands[edge], self.position[edge] == 0
        slices = self.where("slice")[user] | self.where("dynamic-slice")[user] & leading
        updates = self.where("dynamic-update-slice")[user] & leading
        copies = self.where("broadcast", "reshape")[user]
        part = np.where(slices, self.size[user], np.where(copies, self.all_bytes[used], 0))
        whole = np.zeros(self.n)
        shared = used[~(slices | updates | copies)]
        whole[shared] = self.all_bytes[shared]
        return whole + np.bincount(used, part, self.n)

    def _times(self) -> Floats:
        """Return how often each call of a computation runs it in one run of the caller."""
        elements = self.elements
        times = np.ones(self.n)
        window = self.rows.at(self.window).sub(_WINDOW_DIMENSIONS)
        size, low, high = (column.astype(float) for column in window.columns(integer(1), integer(3), integer(4)))
        volume = np.ones(self.n)
        np.multiply.at(volume, window.parent, size)
        windows = (volume - 1) * elements
        # XLA counts the sum of a whole dimension for each of its elements as a reduction and a broadcast
        at = window.parent.astype(np.int64)
        span = self.dim(at, np.arange(at.size) - spans(at, self.n)[0][at])
        whole = (low == high) & (size == 2 * low + 1) & (low == span - 1) & (low > 0)
        only = np.bincount(at, size != 1, self.n) * np.bincount(at, (low != 0) | (high != 0), self.n) == 1
        chosen = whole & only[at] & ~self.shapes.tuple[self.shape[at]]
        windows[at[chosen]] = (elements[at] / span + span - 1)[chosen]
        first, source = (self.of(elements, self.operand(k)) for k in (0, 1))
        updates = self.of(elements, self.operand(self.operand_count // 2 + 1))
        for opcode, counted in (
            ("reduce", np.maximum(first - elements, 0)),
            ("reduce-window", windows),
            ("map", elements),
            ("scatter", updates),
            ("select-and-scatter", source),
        ):
            times = np.where(self.where(opcode), counted, times)
        times = times[self.caller]
        selects = self.where("select-and-scatter")[self.caller] & (np.diff(self.caller, prepend=-1) != 0)
        return np.where(selects, times * (volume[self.caller] - 1), times)

    def _with_computations(self, counts: list[Floats], factors_of: list[Floats]) -> list[Floats]:
        """Add the work of the computations that instructions call, innermost first; NaN where they call themselves."""
        used = np.flatnonzero(self.where(*_RUNS, *_APPLIES, "fusion")[self.caller])
        caller, callee = self.caller[used], self.callee[used]
        outer = self.computation[caller]
        branch = self.where("conditional")[caller]
        totals = np.array(
            [np.append(np.bincount(self.computation, each, self.computations), np.nan) for each in counts]
        )
        added, by_callee = np.full((len(counts), used.size), np.nan), np.argsort(callee, kind="stable")
        calls, uses = spans(outer, self.computations + 1), spans(callee[by_callee], self.computations + 1)
        factors, largest = np.array([each[used] for each in factors_of]), np.zeros((len(counts), self.n))
        graph = *calls, *uses, outer[by_callee], callee, np.where(branch, caller, -1)
        _add_calls(*graph, factors, largest, totals, added)
        return [each + np.bincount(caller, more, self.n) for each, more in zip(counts, added, strict=True)]


@compiled
def _add_calls(
    first: Ints,
    calls: Ints,
    begin: Ints,
    uses: Ints,
    users: Ints,
    callee: Ints,
    conditional: Ints,
    factors: Floats,
    largest: Floats,
    totals: Floats,
    added: Floats,
) -> None:
    """Write the work of each call, and add it to the total of its computation, innermost first."""
    pending, done = calls.copy(), np.full(calls.size, -1)
    last = np.count_nonzero(pending == 0)
    done[:last] = np.flatnonzero(pending == 0)
    for number in done:  # grows
        if number < 0:
            break
        for edge in range(first[number], first[number] + calls[number]):
            for kind in range(len(totals)):
                factor, row = factors[kind, edge], conditional[edge]
                gain = factor * totals[kind, callee[edge]] if factor != 0 else 0.0
                if row >= 0:
                    before = largest[kind, row]
                    largest[kind, row] = before if gain <= before else gain
                    gain = largest[kind, row] - before
                added[kind, edge] = gain
                totals[kind, number] += gain
        for user in users[begin[number] : begin[number] + uses[number]]:
            pending[user] -= 1
            if not pending[user]:
                done[last] = user
                last += 1


def _contracted(config: str) -> list[int]:
    """Return the contracted dimensions of the left operand of a GEMM; -2, which there is not, if they are not given."""
    match = _GEMM_DIMENSIONS.search(config)
    return [int(number) for number in re.findall(r"\d{1,9}", match[1])] if match else [-2]


def _positions(window: Messages, of_input: Floats, of_kernel: Floats, of_output: Floats) -> Floats:
    """Return for each window dimension how many pairs of a kernel and an output element meet an input element."""
    columns = window.columns(integer(2), integer(3), integer(5), integer(6))
    low, (stride, dilation, base) = columns[1], (np.maximum(columns[k], 1) for k in (0, 2, 3))
    swap = of_output < of_kernel
    short, long = np.minimum(of_kernel, of_output), np.maximum(of_kernel, of_output)
    limits = [long, of_input, stride.astype(float), dilation.astype(float), base.astype(float), np.abs(low * 1.0)]
    counted = np.all([limit <= _LARGEST for limit in limits], axis=0)
    counted &= np.cumsum(np.where(counted, short, 0)) <= _POSITIONS
    times = np.where(counted, short, 0).astype(np.int64)
    row = np.repeat(np.arange(len(window)), times)
    step, pace = np.where(swap, stride, dilation), np.where(swap, dilation, stride)
    divisor = np.gcd(pace, base)
    every = base // divisor
    pairs = zip((pace // divisor % every).tolist(), every.tolist(), strict=True)
    inverse = np.array([pow(a, -1, m) if ok else 0 for (a, m), ok in zip(pairs, counted, strict=True)], np.int64)
    last = (np.where(counted, of_input, 0).astype(np.int64) - 1) * base
    end = np.where(counted, long, 0).astype(np.int64) - 1
    start = (np.arange(row.size) - (np.cumsum(times) - times)[row]) * step[row] - low[row]
    # start + pace * j is inside the input for j from `begin` to `end`, and an element of it for each `every`-th j
    pace, divisor, every = pace[row], divisor[row], every[row]
    begin, end = np.maximum(-(start // pace), 0), np.minimum((last[row] - start) // pace, end[row])
    phase = (-(start // divisor) % every) * inverse[row] % every
    met = np.maximum((end - phase) // every - (begin - 1 - phase) // every, 0) * (start % divisor == 0) * (end >= begin)
    return np.where(counted, np.bincount(row, met, len(window)), np.nan)
