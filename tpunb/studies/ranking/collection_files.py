"""Measured configurations in files, and those that this project recorded."""

from __future__ import annotations

from collections.abc import Iterable
from os import PathLike
from pathlib import Path

import polars as pl

from tpunb import schema
from tpunb.errors import BadProfile
from tpunb.studies.ranking.columns import CONFIGURATIONS
from tpunb.studies.ranking.measured import Measured, of_programs
from tpunb.text import format_error, plain

HERE = Path(__file__).parent / "layouts.parquet"
_FILE: schema.Schema = {
    "name": pl.String(),
    "family": pl.String(),
    "hlo": pl.Binary(),  # of the first configuration alone
    "program": pl.Binary(),
    **CONFIGURATIONS,
}


def recorded() -> list[Measured]:
    """Return the collection of this project: entry layouts of common layers in JAX, on one core of a CPU.

    ``tpunb/studies/ranking/about.toml`` states how it was recorded.
    """
    return read_collection(HERE)


def write_collection(path: str | PathLike[str], measured: Iterable[Measured]) -> None:
    """Write what `collect` returned as Parquet, with the programs."""
    frames = []
    for each in measured:
        hlo = [each.hlo, *[None] * (len(each) - 1)]
        columns = {"hlo": pl.Series(hlo, dtype=pl.Binary), "program": pl.Series([*each.programs], dtype=pl.Binary)}
        frames.append(each.frame.with_columns(name=pl.lit(each.name), family=pl.lit(each.family), **columns))
    # one page a column: equal parts of programs are compressed once
    whole = pl.concat(frames).select(*_FILE)
    whole.write_parquet(Path(path), compression="zstd", compression_level=22, data_page_size=1 << 26)


def read_collection(path: str | PathLike[str]) -> list[Measured]:
    """Read what `write_collection` wrote.

    Raises
    ------
    BadProfile
        If the file is damaged, or no such collection.
    """
    try:
        frame = schema.check(pl.read_parquet(Path(path)), _FILE, "collection")
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise BadProfile(f"{plain(str(path))} is damaged, or no Parquet file: {format_error(error)}") from error
    return [
        of_programs(
            rows["name"][0],
            rows["family"][0],
            rows.select(*CONFIGURATIONS),
            rows["hlo"][0],
            rows["program"].to_list(),
        )
        for rows in frame.partition_by("name", "family")
    ]
