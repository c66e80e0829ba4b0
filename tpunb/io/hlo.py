"""HLO instructions of compiled programs, from the ``Hlo Proto`` of an XPlane.

On GPU and CPU only the program says which framework op and which category an instruction has. Source locations are
never read, because they contain private paths.
"""

from __future__ import annotations

import re
from contextlib import suppress

import numpy as np
import polars as pl

from tpunb import schema
from tpunb.errors import BadProfile
from tpunb.io.protobuf_table import Ints, Messages, text

# tags of xla/service/hlo.proto and xla/xla_data.proto
_MODULE, _COMPUTATIONS, _INSTRUCTIONS, _METADATA = text(1), text(3), text(2), text(7)
_NAME, _OPCODE, _FUSION_KIND = text(1), text(2), text(11)
_OP_TYPE, _OP_NAME = text(1), text(2)

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

_PROGRAM = re.compile(r"\(([0-9]{1,20})\)\Z")
_FUSIONS = {"kLoop": "loop fusion", "kInput": "input fusion", "kOutput": "output fusion", "kCustom": "custom fusion"}
_FORMATTING = ["copy", "dynamic-reshape", "reshape", "transpose"]
_ELEMENTWISE = [
    *("abs", "add", "and", "atan2", "bitcast-convert", "cbrt", "ceil", "clamp", "compare", "complex", "constant"),
    *("convert", "cosine", "count-leading-zeros", "divide", "erf", "exponential", "exponential-minus-one", "floor"),
    *("imag", "is-finite", "log", "log-plus-one", "logistic", "maximum", "minimum", "multiply", "negate", "not", "or"),
    *("popcnt", "power", "real", "reduce-precision", "remainder", "round-nearest-afz", "round-nearest-even", "rsqrt"),
    *("select", "shift-left", "shift-right-arithmetic", "shift-right-logical", "sign", "sine", "sqrt"),
    *("stochastic-convert", "subtract", "tan", "tanh", "xor"),
]
_CATEGORIES = dict.fromkeys(_FORMATTING, "data formatting") | dict.fromkeys(_ELEMENTWISE, "non-fusion elementwise")


def category(opcode: str, fusion_kind: str = "") -> str:
    """Return the category of an instruction, as in XProf's HLO statistics.

    The profiler of a TPU, which has the contents of fusions, writes "convolution fusion" for output fusions.

    >>> category("fusion", "kLoop"), category("copy"), category("all-reduce")
    ('loop fusion', 'data formatting', 'all-reduce')
    """
    if opcode == "fusion":
        return _FUSIONS.get(fusion_kind, opcode)
    return _CATEGORIES.get(opcode, opcode)


def program(name: str) -> int | None:
    """Return the id of a program, as events refer to it, as Int64; None if its name has none.

    Parameters
    ----------
    name
        Name of the event metadata with the program; its key is another number in some captures.

    >>> program("jit_step(6)"), program("jit_f(12190760917235803885)")
    (6, -6255983156473747731)
    """
    number = _PROGRAM.search(name)
    return None if number is None else (int(number[1]) + 2**63) % 2**64 - 2**63


def instructions(protos: Messages) -> pl.DataFrame:
    """Return the instructions of programs: ``INSTRUCTIONS``, in their order.

    Parameters
    ----------
    protos
        ``HloProto`` messages; a damaged one has no rows, since events can be read without it.
    """
    try:
        return _instructions(protos)
    except BadProfile:  # one by one, without the damaged ones
        frames = [schema.empty(INSTRUCTIONS)]
        for row in range(len(protos)):
            with suppress(BadProfile):
                frames.append(_instructions(protos[row : row + 1]).with_columns(proto=pl.lit(row, pl.UInt32)))
        return pl.concat(frames)


def _instructions(protos: Messages) -> pl.DataFrame:
    modules = protos.sub(_MODULE)
    computations = modules.sub(_COMPUTATIONS)
    rows = computations.sub(_INSTRUCTIONS)
    module = computations.parent[rows.parent]
    name, opcode, kind, metadata = rows.columns(_NAME, _OPCODE, _FUSION_KIND, _METADATA)
    op_type, op_name = rows.at(metadata).columns(_OP_TYPE, _OP_NAME)
    columns = {
        "proto": pl.Series(modules.parent[module].astype(np.uint32)),
        "module": _words(modules, modules.columns(_NAME)[0]).gather(pl.Series(module)),
        "hlo_op": _words(rows, name),
        "tf_op": _words(rows, op_name),
        "op_type": _words(rows, op_type),
        "opcode": _words(rows, opcode),
        "category": _categories(rows, opcode, kind),
    }
    return pl.DataFrame(columns, schema=INSTRUCTIONS)


def _words(rows: Messages, refs: Ints) -> pl.Series:
    code, words = rows.distinct(refs)
    return pl.Series([word or None for word in words], dtype=schema.NAME).gather(pl.Series(code))


def _categories(rows: Messages, opcode: Ints, kind: Ints) -> pl.Series:
    op, opcodes = rows.distinct(opcode)
    fusion, kinds = rows.distinct(kind)
    pairs, code = np.unique(op.astype(np.int64) << 32 | fusion, return_inverse=True)
    words = [category(opcodes[pair >> 32], kinds[pair & 0xFFFFFFFF]) or None for pair in pairs.tolist()]
    return pl.Series(words, dtype=schema.NAME).gather(pl.Series(code))
