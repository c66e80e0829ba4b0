"""Buffers of compiled programs: which instruction's result each holds, and the allocation it is part of."""

from __future__ import annotations

import numpy as np
import polars as pl

from tpunb import schema
from tpunb.io import hlo, hlo_ops
from tpunb.io.hlo_graph import member_rows
from tpunb.io.protobuf_table import Ints, Messages, integer, text
from tpunb.step_stats import op_names

# tags of xla/service/hlo.proto
_MODULE, _COMPUTATIONS, _INSTRUCTIONS, _ID = text(1), text(3), text(2), integer(35)
_ASSIGNMENT, _LOGICAL, _ALLOCATIONS, _DEFINED_AT = text(3), text(1), text(3), text(3)
_ALLOCATION = [
    integer(field) for field in (1, 2, 3, 5, 7, 12)
]  # index, size, thread-local, parameter, live out, constant
_ASSIGNED, _OF, _OFFSET, _SIZE = text(9), integer(1), integer(2), integer(3)
_BUFFER_ID, _INSTRUCTION_ID = integer(1), integer(4)

BUFFERS: schema.Schema = {"proto": pl.UInt32()} | {
    name: dtype for name, dtype in schema.BUFFERS.items() if name not in ("host", "program")
}
"""One row per buffer of an allocation, one of an allocation without any."""


def buffers(protos: Messages) -> pl.DataFrame:
    """Return the buffers of programs: ``BUFFERS``.

    Parameters
    ----------
    protos
        ``HloProto`` messages; a damaged one has no rows, nor has one without buffer assignment.
    """
    return hlo.undamaged(protos, _buffers, BUFFERS)


def _buffers(protos: Messages) -> pl.DataFrame:
    assignments = protos.sub(_ASSIGNMENT)
    allocations, logical = assignments.sub(_ALLOCATIONS), assignments.sub(_LOGICAL)
    index, size, thread_local, parameter, live_out, constant = allocations.columns(*_ALLOCATION)
    proto = assignments.parent[allocations.parent].astype(np.int64)
    of_buffers = assignments.parent[logical.parent].astype(np.int64)
    assigned = allocations.sub(_ASSIGNED)
    wanted, offset, bytes_ = assigned.columns(_OF, _OFFSET, _SIZE)
    ids, defined_at = logical.columns(_BUFFER_ID, _DEFINED_AT)
    buffer = member_rows(of_buffers, ids, proto[assigned.parent], wanted)
    instruction = np.append(_instructions(protos, of_buffers, logical.at(defined_at)), -1)[buffer]
    frame = pl.DataFrame(
        {
            "allocation_row": assigned.parent.astype(np.int64),
            "offset_bytes": offset,
            "bytes": bytes_,
            "row": instruction,
        }
    )
    kind = np.select(
        [(parameter > 0) & (live_out > 0), parameter > 0, live_out > 0, constant > 0, thread_local > 0],
        ["donated argument", "argument", "output", "constant", "thread-local"],
        "temporary",
    )
    whole = pl.DataFrame(
        {
            "proto": proto,
            "allocation": index,
            "kind": kind,
            "allocation_bytes": size,
            "allocation_row": np.arange(len(index)),
        }
    )
    named = hlo_ops.ops(protos).with_row_index("row").select("row", "hlo_op", "tf_op", "part")
    rows = whole.join(frame, on="allocation_row", how="left", maintain_order="left_right").join(
        named.cast({"row": pl.Int64}), on="row", how="left", maintain_order="left"
    )
    ops = rows["tf_op"].unique().drop_nulls().cast(pl.String)
    layer = (
        pl.col("tf_op")
        .cast(pl.String)
        .replace_strict(ops, [*map(op_names.layer, ops)], default=None, return_dtype=pl.String)
    )
    sizes = (
        pl.when(pl.col(name) >= 0).then(name).alias(name) for name in ("allocation_bytes", "bytes", "offset_bytes")
    )
    return rows.with_columns(*sizes, layer=layer).select(pl.col(name).cast(dtype) for name, dtype in BUFFERS.items())


def _instructions(protos: Messages, scope: Ints, defined_at: Messages) -> Ints:
    """Return the row of the instruction that defines each buffer, -1 where there is none."""
    modules = protos.sub(_MODULE)
    computations = modules.sub(_COMPUTATIONS)
    rows = computations.sub(_INSTRUCTIONS)
    proto = modules.parent[computations.parent[rows.parent]].astype(np.int64)
    found = member_rows(proto, rows.columns(_ID)[0], scope, defined_at.columns(_INSTRUCTION_ID)[0])
    return np.where(found < len(rows), found, -1)
