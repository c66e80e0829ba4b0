"""Compiled programs: what is known of their instructions, wherever the programs are stored."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress

import polars as pl

from tpunb import schema
from tpunb.errors import BadProfile
from tpunb.io import hlo, hlo_buffers, hlo_cost, hlo_ops, instructions, storage
from tpunb.io.protobuf_table import Messages, text
from tpunb.io.storage import Location

_MODULE, _NAME = text(1), text(1)  # of xla/service/hlo.proto


def describe(protos: Messages, ids: pl.Series) -> list[pl.DataFrame]:
    """Return the columns of ``tpunb.schema.INSTRUCTIONS`` that programs give, as frames to be merged.

    Parameters
    ----------
    protos
        ``HloProto`` messages; a damaged one has no rows.
    ids
        Ids of the programs, in the same order.
    """
    work = hlo_cost.work(protos).select("proto", "hlo_op", "dtype", "flops", "transcendentals", bytes_accessed="bytes")
    return [
        frame.with_columns(program=ids.gather(frame["proto"]))
        for frame in (hlo.details(protos), hlo_ops.ops(protos), work)
    ]


def complete(frame: pl.DataFrame, kept: Mapping[tuple[str, int], Location]) -> pl.DataFrame:
    """Return ``tpunb.schema.INSTRUCTIONS`` with the instructions of the programs that a run holds beside its windows.

    Parameters
    ----------
    frame
        ``tpunb.schema.INSTRUCTIONS`` of the windows.
    kept
        File of each program, by host and id; a damaged one has no rows.
    """
    counted = frame.filter(pl.col("flops").is_not_null())
    rows = defaultdict[str, list[pl.DataFrame]](list)
    for host, program, proto in _others(kept, counted):
        rows[host] += describe(proto, program)
    frames = [frame.filter(~pl.col("host").is_in([*rows]))]
    for host, frames_of_host in rows.items():
        frames.append(instructions.merged([[frame.filter(pl.col("host") == host)], frames_of_host], host))
    return schema.check(pl.concat(frames), schema.INSTRUCTIONS, "instructions")


def buffers_of(protos: Messages, ids: pl.Series) -> pl.DataFrame:
    """Return ``tpunb.schema.BUFFERS`` of programs, without the host."""
    rows = hlo_buffers.buffers(protos)
    return rows.with_columns(program=ids.gather(rows["proto"])).drop("proto")


def with_buffers(frame: pl.DataFrame, kept: Mapping[tuple[str, int], Location]) -> pl.DataFrame:
    """Return ``tpunb.schema.BUFFERS`` with those of the programs that a run holds beside its windows, as `complete`."""
    others = [
        buffers_of(proto, program).with_columns(host=pl.lit(host)) for host, program, proto in _others(kept, frame)
    ]
    return pl.concat([frame, *(schema.check(rows, schema.BUFFERS, "buffers") for rows in others)])


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


def with_protos(frame: pl.DataFrame, kept: Mapping[tuple[str, int], Location]) -> pl.DataFrame:
    """Return ``tpunb.schema.PROTOS`` with those of the programs that a run holds beside its windows, as `complete`."""
    others = [
        protos_of(proto, program).with_columns(host=pl.lit(host)) for host, program, proto in _others(kept, frame)
    ]
    return pl.concat([frame, *(schema.check(rows, schema.PROTOS, "protos") for rows in others)])


def _others(kept: Mapping[tuple[str, int], Location], frame: pl.DataFrame) -> Iterator[tuple[str, pl.Series, Messages]]:
    """Yield host, id and ``HloProto`` of the kept programs that are not in a frame, without damaged ones."""
    known = set(frame.select("host", "program").unique().iter_rows())
    for (host, program), file in kept.items():
        if (host, program) not in known:
            with suppress(BadProfile):
                proto = Messages.of(storage.read(file), source=str(file))
                yield host, pl.Series([program], dtype=pl.Int64), proto
