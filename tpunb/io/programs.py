"""Compiled programs: what is known of their instructions, wherever the programs are stored."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress

import numpy as np
import polars as pl

from tpunb import schema
from tpunb.costs import hlo, hlo_cost
from tpunb.costs.hlo_graph import member_rows
from tpunb.errors import BadProfile
from tpunb.io import hlo_names, storage
from tpunb.io.storage import Location
from tpunb.protobuf.table import Ints, Messages, integer, text
from tpunb.step_stats import op_names

_MODULE, _NAME = text(1), text(1)  # of xla/service/hlo.proto


def describe(protos: Messages, ids: pl.Series) -> list[pl.DataFrame]:
    """Return the columns of ``tpunb.schema.INSTRUCTIONS`` that programs give, as frames to be merged."""
    work = hlo_cost.work(protos).select("proto", "hlo_op", "dtype", "flops", "transcendentals", bytes_accessed="bytes")
    return [
        frame.with_columns(program=ids.gather(frame["proto"]))
        for frame in (hlo.details(protos), hlo_names.ops(protos), work)
    ]


def complete(frame: pl.DataFrame, kept: Mapping[tuple[str, int], Location], kind: str) -> pl.DataFrame:
    """Return a frame of windows, "instructions", "buffers" or "protos", with rows of the programs kept beside them.

    `kept` are the files of programs by host and id; those whose rows the frame has are not read.
    """
    if kind != "instructions":
        read, columns = (buffers_of, schema.BUFFERS) if kind == "buffers" else (protos_of, schema.PROTOS)
        frames = [read(proto, ids).with_columns(host=pl.lit(host)) for host, ids, proto in _others(kept, frame)]
        return pl.concat([frame, *(schema.check(rows, columns, kind) for rows in frames)])
    counted = frame.filter(pl.col("flops").is_not_null())
    rows = defaultdict[str, list[pl.DataFrame]](list)
    for host, program, proto in _others(kept, counted):
        rows[host] += describe(proto, program)
    frames = [frame.filter(~pl.col("host").is_in([*rows]))]
    for host, frames_of_host in rows.items():
        frames.append(hlo.merged([[frame.filter(pl.col("host") == host)], frames_of_host], host))
    return schema.check(pl.concat(frames), schema.INSTRUCTIONS, "instructions")


def buffers_of(protos: Messages, ids: pl.Series) -> pl.DataFrame:
    """Return ``tpunb.schema.BUFFERS`` of programs, without the host."""
    rows = buffers(protos)
    return rows.with_columns(program=ids.gather(rows["proto"])).drop("proto")


def protos_of(protos: Messages, ids: pl.Series) -> pl.DataFrame:
    """Return ``tpunb.schema.PROTOS`` of programs, without the host and without damaged ones."""
    rows: list[tuple[int | None, str, bytes]] = []
    for row, program in enumerate(ids):
        with suppress(BadProfile):
            modules = protos[row : row + 1].sub(_MODULE)
            content = protos.buffer[protos.start[row] : protos.stop[row]].tobytes()
            rows += [(program, name, content) for name in modules.text(modules.columns(_NAME)[0])]
    columns = {name: dtype for name, dtype in schema.PROTOS.items() if name != "host"}
    return pl.DataFrame(rows, columns, orient="row")


def _others(kept: Mapping[tuple[str, int], Location], frame: pl.DataFrame) -> Iterator[tuple[str, pl.Series, Messages]]:
    """Yield host, id and ``HloProto`` of the kept programs that are not in a frame, without damaged ones."""
    listed = set(frame.select("host", "program").unique().iter_rows())
    for (host, program), file in kept.items():
        if (host, program) not in listed:
            with suppress(BadProfile):
                proto = Messages.of(storage.read(file), source=str(file))
                yield host, pl.Series([program], dtype=pl.Int64), proto


# tags of xla/service/hlo.proto
_ASSIGNMENT, _LOGICAL, _ALLOCATIONS, _DEFINED_AT = text(3), text(1), text(3), text(3)
# index, size, thread-local, parameter, live out and constant
_ALLOCATION = [integer(field) for field in (1, 2, 3, 5, 7, 12)]
_ASSIGNED, _OF, _OFFSET, _SIZE = text(9), integer(1), integer(2), integer(3)
_ID, _BUFFER_ID, _INSTRUCTION_ID = integer(35), integer(1), integer(4)

BUFFERS: schema.Schema = {"proto": pl.UInt32()} | {
    name: dtype for name, dtype in schema.BUFFERS.items() if name not in ("host", "program")
}
"""One row per buffer of an allocation, one of an allocation without any."""


def buffers(protos: Messages) -> pl.DataFrame:
    """Return the buffers of programs: ``BUFFERS``; a damaged one, or one without buffer assignment, has no rows."""
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
    row_of = assigned.parent.astype(np.int64)
    frame = pl.DataFrame({"allocation_row": row_of, "offset_bytes": offset, "bytes": bytes_, "row": instruction})
    kind = np.select(
        [(parameter > 0) & (live_out > 0), parameter > 0, live_out > 0, constant > 0, thread_local > 0],
        ["donated argument", "argument", "output", "constant", "thread-local"],
        "temporary",
    )
    whole = pl.DataFrame({"proto": proto, "allocation": index, "kind": kind, "allocation_bytes": size})
    whole = whole.with_columns(allocation_row=pl.int_range(pl.len()))
    named = hlo_names.ops(protos).select("hlo_op", "tf_op", "part", row=pl.int_range(pl.len()))
    rows = whole.join(frame, on="allocation_row", how="left", maintain_order="left_right")
    rows = rows.join(named, on="row", how="left", maintain_order="left")
    ops = rows["tf_op"].unique().drop_nulls().cast(pl.String)
    layers = {op: op_names.layer(op) for op in ops}
    layer = pl.col("tf_op").cast(pl.String).replace_strict(layers, default=None, return_dtype=pl.String)
    sizes = ("allocation_bytes", "bytes", "offset_bytes")
    sized = rows.with_columns(*(pl.when(pl.col(name) >= 0).then(name).alias(name) for name in sizes), layer=layer)
    return sized.select(pl.col(name).cast(dtype) for name, dtype in BUFFERS.items())


def _instructions(protos: Messages, scope: Ints, defined_at: Messages) -> Ints:
    """Return the row of the instruction that defines each buffer, -1 where there is none."""
    modules, _, rows, module = hlo.parts(protos)
    proto = modules.parent[module].astype(np.int64)
    defining = member_rows(proto, rows.columns(_ID)[0], scope, defined_at.columns(_INSTRUCTION_ID)[0])
    return np.where(defining < len(rows), defining, -1)
