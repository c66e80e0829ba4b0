"""HLO instructions as profilers describe them in text: shape, source line and replica groups."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

import polars as pl

from tpunb import schema
from tpunb.text import cut


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
    """Return size and replica groups of instructions that a profiler describes.

    Parameters
    ----------
    rows
        Columns `shape` and `text`, the instruction as it is printed.
    """
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
    tables = [schema.empty(columns)]
    for frames in sources:
        rows = [
            frame.select(pl.col(name).cast(dtype) for name, dtype in columns.items() if name in frame.columns)
            for frame in frames
        ]
        values = pl.exclude("program", "hlo_op").drop_nulls()
        table = pl.concat([schema.empty(columns), *rows], how="diagonal").drop_nulls("hlo_op")
        by_op = table.group_by("program", "hlo_op", maintain_order=True)
        tables.append(by_op.agg(pl.when(values.n_unique() == 1).then(values.first())))
    best = pl.concat(tables).group_by("program", "hlo_op", maintain_order=True).agg(pl.all().drop_nulls().first())
    return schema.check(best.with_columns(host=pl.lit(host)), schema.INSTRUCTIONS, "instructions")
