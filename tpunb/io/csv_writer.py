"""Write phases and their operations as CSV."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from tpunb import schema
from tpunb.io.storage import write_atomically


def csv(folder: Path, phases: pl.DataFrame, top: pl.DataFrame) -> list[Path]:
    """Write ``phases.csv``, ``operations_host.csv`` and ``operations_device.csv``; return their paths.

    Headers contain the units. Text that a spreadsheet would run as a formula gets an apostrophe in front.

    Parameters
    ----------
    folder
        Target folder; it is created.
    phases
        ``tpunb.schema.PHASES``.
    top
        ``tpunb.schema.TOP``.
    """
    tables = {
        "phases.csv": phases.select(
            "phase",
            "steps",
            pl.col("full").alias("steps traced in full"),
            _text("kinds").alias("kinds"),
            pl.col("first_step").alias("first step"),
            _ms("start_ps").alias("start (ms)"),
            _ms("dur_ps").alias("total time (ms)"),
            (pl.col("share") * 100).fill_nan(None).round(4).alias("share of productive time (%)"),
            _ms("step_ps").alias("median step time (ms)"),
            _ms("device_ps").alias("device time (ms)"),
            _ms("idle_ps").alias("idle time (ms)"),
        )
    }
    for side in schema.SIDE.categories:
        tables[f"operations_{side}.csv"] = top.filter(pl.col("side") == side).select(
            "phase",
            "rank",
            _text("op").alias("operation"),
            pl.col("count").alias("calls"),
            _ms("total_ps").alias("total time (ms)"),
            _ms("self_ps").alias("self time (ms)"),
            (pl.col("share") * 100).fill_nan(None).round(4).alias("share of self time (%)"),
            _text("layer").alias("layer"),
            _text("source").alias("source line"),
        )
    return [write_atomically(folder / name, table.write_csv().encode()) for name, table in tables.items()]


def _ms(column: str) -> pl.Expr:
    return (pl.col(column) / 1e9).round(6)  # to the nanosecond


def _text(column: str) -> pl.Expr:
    text = pl.col(column).cast(pl.String)
    return pl.when(text.str.contains(r"^[=+\-@\t\r\n]")).then("'" + text).otherwise(text)
