"""HLO instructions of compiled programs, from the ``Hlo Proto`` of an XPlane.

On GPU and CPU only the program says which framework op and which category an instruction has. Of source locations only
the part without private paths is kept, see :func:`tpunb.costs.hlo.relative`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import lru_cache

import numpy as np
import polars as pl

from tpunb import schema
from tpunb.errors import BadProfile
from tpunb.protobuf.table import Ints, Messages, Rows, integer, text
from tpunb.text import cut

# tags of xla/service/hlo.proto and xla/xla_data.proto
_MODULE, _COMPUTATIONS, _INSTRUCTIONS, METADATA = text(1), text(3), text(2), text(7)
_NAME, _OPCODE, _SHAPE, _FUSION_KIND, _GROUPS, _DEVICES = text(1), text(2), text(3), text(11), text(49), text(87)
NAMES = _NAME, _OPCODE, _FUSION_KIND
_OP_TYPE, OP_NAME, _FILE, _LINE, _FRAME = text(1), text(2), text(3), integer(4), integer(15)
_STACK, _FILES, _LOCATIONS, _FRAMES = text(17), text(1), text(3), text(4)  # of a module, of its stack frames
_TYPE, _DIMENSIONS, _PARTS, _LAYOUT, _MINOR_TO_MAJOR = integer(2), 3, text(4), text(5), 1
_LISTED, _IOTA = text(1), text(2)
TUPLE = 13
TYPES = dict(enumerate(["pred", "s8", "s16", "s32", "s64", "u8", "u16", "u32", "u64", "f16", "f32", "f64"], 1)) | {
    **{14: "opaque", 15: "c64", 16: "bf16", 17: "token", 18: "c128", 19: "f8e5m2", 20: "f8e4m3fn", 21: "s4", 22: "u4"},
    **{23: "f8e4m3b11fnuz", 24: "f8e5m2fnuz", 25: "f8e4m3fnuz", 26: "s2", 27: "u2", 28: "f8e4m3", 29: "f8e3m4"},
    **{30: "s1", 31: "u1", 32: "f4e2m1fn", 33: "f8e8m0fnu"},
}

INSTRUCTIONS: schema.Schema = {
    "proto": pl.UInt32(),  # row of the program in the input
    "module": schema.NAME,  # name of the program
    "hlo_op": schema.NAME,  # name of the instruction
    "tf_op": schema.NAME,  # framework op that it comes from, or null
    "op_type": schema.NAME,  # type of that op, or null
    "opcode": schema.NAME,
    "category": schema.NAME,
}
"""One row per instruction."""

DETAILS: schema.Schema = {"proto": pl.UInt32()} | {
    name: schema.INSTRUCTIONS[name] for name in ("hlo_op", "shape", "bytes", "source", "groups")
}
"""One row per instruction: where it is in the source, and the shape of its result."""

_PROGRAM = re.compile(r"\(([0-9]{1,20})\)\Z")
_FUSIONS = {"kLoop": "loop fusion", "kInput": "input fusion", "kOutput": "output fusion", "kCustom": "custom fusion"}
_FORMATTING = ["copy", "dynamic-reshape", "reshape", "transpose"]
ELEMENTWISE = [
    *("abs", "add", "and", "atan2", "bitcast-convert", "cbrt", "ceil", "clamp", "compare", "complex", "constant"),
    *("convert", "cosine", "count-leading-zeros", "divide", "erf", "exponential", "exponential-minus-one", "floor"),
    *("imag", "is-finite", "log", "log-plus-one", "logistic", "maximum", "minimum", "multiply", "negate", "not", "or"),
    *("popcnt", "power", "real", "reduce-precision", "remainder", "round-nearest-afz", "round-nearest-even", "rsqrt"),
    *("select", "shift-left", "shift-right-arithmetic", "shift-right-logical", "sign", "sine", "sqrt"),
    *("stochastic-convert", "subtract", "tan", "tanh", "xor"),
]
_CATEGORIES = dict.fromkeys(_FORMATTING, "data formatting") | dict.fromkeys(ELEMENTWISE, "non-fusion elementwise")


def category(opcode: str, fusion_kind: str = "") -> str:
    """Return the category of an instruction, as in XProf's HLO statistics.

    The profiler of a TPU, which has the contents of fusions, writes "convolution fusion" for output fusions.

    >>> category("fusion", "kLoop"), category("copy"), category("all-reduce")
    ('loop fusion', 'data formatting', 'all-reduce')
    """
    if opcode == "fusion":
        return _FUSIONS.get(fusion_kind, opcode)
    return _CATEGORIES.get(opcode, opcode)


TOLERANCE = 0.01
"""Share by which FLOPs of a product that a profiler reports may differ from those by its shapes."""

_DIMS = re.compile(r"\b[a-z]\w*\[([0-9]{1,18}(?:,[0-9]{1,18})*)\]")


@lru_cache(1 << 12)
def product(text: str) -> int | None:
    """Return the FLOPs of a custom call by its text, if the shapes are those of a matrix product; else None.

    >>> product("%call.1 = bf16[64,256]{1,0} custom-call(bf16[64,128]{1,0} %a, bf16[256,128]{1,0} %b), target=...")
    4194304
    """
    result, called, operands = text.partition(" custom-call(")
    parts = result.partition(" = ")[2], operands.partition("custom_call_target")[0]
    of_result, shapes = ([[*map(int, dims.split(","))] for dims in _DIMS.findall(part)] for part in parts)
    factors = [dims for dims in shapes if len(dims) > 1][:2]
    if not called or len(of_result) != 1 or len(of_result[0]) < 2 or len(factors) < 2:
        return None
    *batch, rows, columns = of_result[0]
    for inner in factors[0][-2:]:
        if all(
            dims[:-2] == batch and sorted(dims[-2:]) == sorted([size, inner])
            for dims, size in zip(factors, (rows, columns), strict=True)
        ):
            flops = 2 * math.prod([*batch, rows, columns, inner])
            return flops if flops < 2**62 else None
    return None


def program(name: str) -> int | None:
    """Return the id of a program, as events refer to it, as Int64; None if its name has none.

    It is in the name of the event metadata with the program, whose key is another number in some captures.

    >>> program("jit_step(6)"), program("jit_f(12190760917235803885)")
    (6, -6255983156473747731)
    """
    number = _PROGRAM.search(name)
    return None if number is None else (int(number[1]) + 2**63) % 2**64 - 2**63


def instructions(protos: Messages) -> pl.DataFrame:
    """Return the instructions of programs: ``INSTRUCTIONS``, in their order; a damaged program has no rows."""
    return undamaged(protos, read_instructions, INSTRUCTIONS)


def details(protos: Messages) -> pl.DataFrame:
    """Return shape, source and replica groups of the instructions of programs, as `instructions`: ``DETAILS``."""
    return undamaged(protos, _details, DETAILS)


def undamaged(protos: Messages, read: Callable[[Messages], pl.DataFrame], columns: schema.Schema) -> pl.DataFrame:
    """Return what a function reads of programs, without the damaged ones: with their row in `proto`."""
    if not len(protos):
        return pl.DataFrame(schema=columns)
    try:
        return read(protos)
    except BadProfile:  # one by one, without the damaged ones
        frames = [pl.DataFrame(schema=columns)]
        for row in range(len(protos)):
            with suppress(BadProfile):
                frames.append(read(protos[row : row + 1]).with_columns(proto=pl.lit(row, pl.UInt32)))
        return pl.concat(frames)


def parts(protos: Messages) -> tuple[Messages, Messages, Messages, Rows]:
    """Return modules, computations and instructions of programs, and the row of the module of each instruction."""
    modules = protos.sub(_MODULE)
    computations = modules.sub(_COMPUTATIONS)
    rows = computations.sub(_INSTRUCTIONS)
    return modules, computations, rows, computations.parent[rows.parent]


def read_instructions(protos: Messages) -> pl.DataFrame:
    """Return the instructions of programs as `instructions`, but raise BadProfile for a damaged one."""
    modules, _, rows, module = parts(protos)
    metadata, *of_names = rows.columns(METADATA, *NAMES)
    op_type, op_name = rows.at(metadata).columns(_OP_TYPE, OP_NAME)
    columns = {
        "proto": pl.Series(modules.parent[module].astype(np.uint32)),
        "module": _words(modules, modules.columns(_NAME)[0]).gather(pl.Series(module)),
        "tf_op": _words(rows, op_name),
        "op_type": _words(rows, op_type),
        **names(rows, *of_names),
    }
    return pl.DataFrame({name: columns[name] for name in INSTRUCTIONS})


def names(rows: Messages, name: Ints, opcode: Ints, kind: Ints) -> dict[str, pl.Series]:
    """Return the columns hlo_op, opcode and category of instructions, from their `NAMES`."""
    op, opcodes = rows.distinct(opcode)
    fusion, kinds = rows.distinct(kind)
    pair = op.astype(np.int64) * len(kinds) + fusion
    used = np.bincount(pair) > 0
    pairs = (divmod(number, len(kinds)) for number in np.flatnonzero(used).tolist())
    words = [category(opcodes[first], kinds[second]) or None for first, second in pairs]
    return {
        "hlo_op": pl.Series([word or None for word in rows.text(name)], dtype=schema.NAME),  # mostly distinct
        "opcode": pl.Series([word or None for word in opcodes], dtype=schema.NAME)[op.view(np.uint32)],
        "category": pl.Series(words, dtype=schema.NAME)[np.cumsum(used)[pair] - 1],
    }


def _words(rows: Messages, refs: Ints) -> pl.Series:
    code, words = rows.distinct(refs)
    return pl.Series([word or None for word in words], dtype=schema.NAME)[code.view(np.uint32)]


def _details(protos: Messages) -> pl.DataFrame:
    modules, _, rows, module = parts(protos)
    name, shape, *groups = rows.columns(_NAME, _SHAPE, _GROUPS, _DEVICES)
    code, _ = rows.distinct(shape)
    shapes = [_shape(rows.at(shape[row : row + 1])) for row in np.unique(code, return_index=True)[1].tolist()]
    grouped = np.flatnonzero(groups[0] | groups[1]).tolist()
    of_row = {row: _groups(rows[row : row + 1]) for row in grouped}
    columns = {
        "proto": pl.Series(modules.parent[module].astype(np.uint32)),
        "hlo_op": _words(rows, name),
        "shape": pl.Series([cut(text, 120) or None for text in shapes], dtype=schema.NAME).gather(code),
        "bytes": pl.Series(list(map(shape_bytes, shapes)), dtype=pl.Int64).gather(code),
        "source": _sources(rows, modules, module),
        "groups": pl.Series([of_row.get(row) for row in range(len(rows))], dtype=pl.String),
    }
    return pl.DataFrame(columns, schema=DETAILS)


def _shape(shape: Messages, depth: int = 0) -> str:
    """Return a shape as HLO text."""
    kind, layout = (column.item() for column in shape.columns(_TYPE, _LAYOUT))
    if kind == TUPLE:
        parts = shape.sub(_PARTS) if depth < 8 else shape[:0]
        return f"({', '.join(_shape(parts[row : row + 1], depth + 1) for row in range(len(parts)))})"
    order = _joined(shape.at(np.array([layout])), _MINOR_TO_MAJOR)
    ordered = f"{{{order}}}" if order else ""
    return f"{TYPES[kind]}[{_joined(shape, _DIMENSIONS)}]{ordered}" if kind in TYPES else ""


def _joined(message: Messages, field: int) -> str:
    """Return the numbers of a repeated field as text."""
    return ",".join(map(str, message.numbers(field)[1].tolist()))


def _groups(instruction: Messages) -> str | None:
    """Return the replica groups of one instruction as HLO text."""
    devices = instruction.sub(_DEVICES)
    iota = devices.sub(_IOTA)[-1:]
    if len(iota):
        count, size = (column.item() for column in iota.columns(integer(1), integer(2)))
        shape, order = _joined(iota, 3), _joined(iota, 4)
        return f"[{count},{size}]<=[{shape}]" + (f"T({order})" if "," in order else "")
    groups = instruction.sub(_GROUPS)
    groups = groups if len(groups) else devices.sub(_LISTED)
    members = [_joined(groups[row : row + 1], 1) for row in range(len(groups))]
    return f"{{{','.join(f'{{{ids}}}' for ids in members)}}}" if members else None


def _sources(rows: Messages, modules: Messages, module: Rows) -> pl.Series:
    """Return file and line of instructions, or those of their stack frame."""
    file, line, frame = rows.at(rows.columns(METADATA)[0]).columns(_FILE, _LINE, _FRAME)
    stacks = modules.sub(_STACK)
    frames, locations, files = (stacks.sub(tag) for tag in (_FRAMES, _LOCATIONS, _FILES))

    def member(table: Messages, number: Ints) -> Ints:
        """Return the row of the member of each module with a number from 1, else that after the last."""
        begin, end = (np.searchsorted(stacks.parent[table.parent], module, side) for side in ("left", "right"))
        return np.where((number > 0) & (number <= end - begin), begin + np.clip(number, 0, 2**31) - 1, len(table))

    location = np.append(frames.columns(integer(1))[0], 0)[member(frames, frame)]
    at = member(locations, location)
    number, of_frame = (np.append(column, 0)[at] for column in locations.columns(integer(1), integer(3)))
    start, stop = (positions.astype(np.int64) for positions in (files.start, files.stop))
    has_file = (file & 0xFFFFFFFF) > 0
    file = np.where(has_file, file, np.append(start << 32 | (stop - start), 0)[member(files, number)])
    code, paths = rows.distinct(file)
    lines = np.where(has_file, line, of_frame) & 0x7FFFFFFF
    pairs, code = np.unique(code.astype(np.int64) << 32 | lines, return_inverse=True)
    places = [(relative(paths[pair >> 32]), pair & 0xFFFFFFFF) for pair in pairs.tolist()]
    words = [f"{path}:{number}".removesuffix(":0") if path else None for path, number in places]
    return pl.Series(words, dtype=schema.NAME).gather(pl.Series(code))


def relative(path: str) -> str:
    """Return a source path without the folders of a person: from the installed package on, else the file name.

    >>> relative("/home/me/lib/python3.11/site-packages/keras/layers.py"), relative("/home/me/model.py:41")
    ('keras/layers.py', 'model.py:41')
    """
    package = re.split(r"(?:site|dist)-packages[/\\\\]", path)
    return package[-1] if len(package) > 1 else re.split(r"[/\\\\]", path)[-1]


def shape_bytes(shape: str) -> int | None:
    """Return the size of a shape without padding, of a tuple the sum; None if it has no array.

    >>> shape_bytes("(f32[8,128]{1,0:T(8,128)}, pred[])"), shape_bytes("token[]")
    (4097, None)
    """
    arrays = re.findall(r"\b(?:pred|[a-z]+(\d+)\w*)\[([\d,<=]*)\]", shape)
    bits = sum(int(width or 8) * math.prod(map(int, re.findall(r"\d{1,19}", dims))) for width, dims in arrays)
    return -(-bits // 8) if arrays and bits < 2**63 else None


def replica_groups(instruction: str) -> str | None:
    """Return the replica groups of an instruction as it is printed; None if it has none.

    >>> replica_groups("%a = f32[] all-reduce(%b), replica_groups=[2,4]<=[8], to_apply=%add")
    '[2,4]<=[8]'
    """
    groups = re.search(r"replica_groups=(\{\{[\d,{}]*\}\}|\[[\d,]+\]<=\[[\d,]+\](?:T\([\d,]+\))?)", instruction)
    return groups[1] if groups else None


def described(rows: pl.DataFrame) -> pl.DataFrame:
    """Return size and replica groups of instructions by `shape` and `text`, the instruction as it is printed."""
    return rows.with_columns(
        bytes=pl.Series([None if shape is None else shape_bytes(shape) for shape in rows["shape"]], dtype=pl.Int64),
        groups=pl.Series([None if text is None else replica_groups(text) for text in rows["text"]], dtype=pl.String),
        shape=pl.Series([None if shape is None else cut(shape, 120) for shape in rows["shape"]], dtype=pl.String),
    )


def merged(sources: Iterable[Iterable[pl.DataFrame]], host: str) -> pl.DataFrame:
    """Return ``tpunb.schema.INSTRUCTIONS`` of several sources, best first.

    What two descriptions of one instruction in one source disagree on is null, as is what none has.
    """
    columns = {name: dtype for name, dtype in schema.INSTRUCTIONS.items() if name != "host"}
    tables = [pl.DataFrame(schema=columns)]
    for frames in sources:
        rows = [
            frame.select(pl.col(name).cast(dtype) for name, dtype in columns.items() if name in frame.columns)
            for frame in frames
        ]
        values = pl.exclude("program", "hlo_op").drop_nulls()
        table = pl.concat([pl.DataFrame(schema=columns), *rows], how="diagonal").drop_nulls("hlo_op")
        by_op = table.group_by("program", "hlo_op", maintain_order=True)
        tables.append(by_op.agg(pl.when(values.n_unique() == 1).then(values.first())))
    best = pl.concat(tables).group_by("program", "hlo_op", maintain_order=True).agg(pl.all().drop_nulls().first())
    return schema.check(best.with_columns(host=pl.lit(host)), schema.INSTRUCTIONS, "instructions")
