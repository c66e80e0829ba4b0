"""ParaDnn's published measurements of fully connected networks on a TPU v2 board and a V100.

Wang, Wei, Brooks: Benchmarking TPU, GPU, and CPU Platforms for Deep Learning (2019), https://arxiv.org/abs/1907.10701.
The data are from https://github.com/Emma926/paradnn at commit 60a25ff, under the Apache License 2.0, converted by
``datasets/paradnn/convert.py``. The repository has no measurements of TPU v3, nor of CNNs and RNNs.
"""

from __future__ import annotations

from pathlib import Path

import polars as pl

from tpunb.analysis.roofline import Roofline
from tpunb.studies.sweeps.results import Sweep

__all__ = ["categories", "measured", "roofline", "time_shares", "traces"]

HERE = Path(__file__).parent
ORIGIN = {
    "origin": "https://github.com/Emma926/paradnn",
    "commit": "60a25ff",
    "licence": "Apache-2.0",
    "changes": "converted to columns; TPU FLOPs of a shard are multiplied by its 8 shards",
}
_FILES = {"TPU v2": "tpu_v2", "TPU v2 board": "tpu_v2", "V100": "v100"}
_POINT = ("layers", "nodes", "input", "output", "batch")
_SHARDS = 8  # cores of the board


def measured(device: str) -> Sweep:
    """Return the training runs on a device: "TPU v2" (a board of four chips) or "V100".

    Step times have no intervals, and no data type is recorded. Weights and FLOPs are rounded to three or four digits.

    Raises
    ------
    ValueError
        If there are no measurements of the device.

    >>> measured("V100")
    Sweep(270 points of layers, nodes, input, output, batch, 176 ok, V100, TensorFlow (version not recorded))
    """
    if device not in _FILES:
        raise ValueError(
            f"The device parameter of measured must be one of {', '.join(_FILES)}. Got {device!r} instead."
        )
    return Sweep.read(HERE / f"{_FILES[device]}.parquet")


def traces() -> pl.DataFrame:
    """Return the 230 profiled runs on the TPU v2 board.

    Columns: the parameters; ``flops_util`` and ``infeed`` of the best of several profiles, as shares of the peak and
    of time, each also as ``_mean`` and ``_std``; ``hbm_util``, ``bytes``, ``intensity`` (FLOP/byte), ``rate`` (FLOP/s).
    """
    return pl.read_parquet(HERE / "traces.parquet")


def categories() -> pl.DataFrame:
    """Return the 2,029 HLO categories of the profiled runs, with their share of the time.

    Figures that cannot be, such as FLOP/s over the peak in a time near 0, and an intensity without bytes are null.
    """
    return pl.read_parquet(HERE / "categories.parquet")


def time_shares() -> pl.DataFrame:
    """Return the shares of `categories`, with a row "unattributed" per run for the rest of its time."""
    shares = categories().select(*_POINT, "category", "share")
    rest = shares.group_by(_POINT, maintain_order=True).agg(
        category=pl.lit("unattributed"), share=(1 - pl.col("share").sum()).clip(0)
    )
    return pl.concat([shares, rest]).sort(_POINT, maintain_order=True)


def roofline() -> Roofline:
    """Return the roofline of the profiled runs, each as the work of one of the eight cores of the board.

    Its ``on("TPU v3")`` models them on the next chip, core by core: at most 123 : 45 = 2.73 times the speed where
    compute binds, 900 : 600 = 1.50 times where memory does. The authors' slides compare boards: 420 : 180 = 2.33.
    """
    flops = pl.col("bytes") * pl.col("intensity")
    time = (flops / pl.col("rate") * 1e12).round().cast(pl.Int64)
    of_core = {"flops": flops / _SHARDS, "bytes": pl.col("bytes") / _SHARDS}
    return Sweep(traces().with_columns(step_ps=time, state=pl.lit("ok"), **of_core), _POINT).roofline("TPU v2")
