"""Convert ParaDnn's published measurements: ``python datasets/paradnn/convert.py FOLDER``.

FOLDER holds the JSON files of https://github.com/Emma926/paradnn (Apache-2.0), which this script reads as they are. It
replaces the Parquet files in ``tpunb/studies/sweeps/paradnn``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import polars as pl

from tpunb.frames.hardware import DEVICES
from tpunb.studies.sweeps import Sweep
from tpunb.studies.sweeps.paradnn import HERE, ORIGIN

PARAMETERS = ("layers", "nodes", "input", "output", "batch")
LABEL = r"layer_(?<layers>\d+)-node_(?<nodes>\d+)-input_(?<input>\d+)-output_(?<output>\d+)-bs_(?<batch>\d+)"


def points(labels: list[str]) -> pl.DataFrame:
    """Return the parameters that labels name, and what follows them."""
    frame = pl.DataFrame({"label": labels})
    fields = frame["label"].str.extract_groups(LABEL + r"-?(?<category>.*)").struct.unnest()
    return fields.with_columns(pl.col(PARAMETERS).cast(pl.Int64))


def runs(data: dict[str, Any], device: str, shards: int, states: dict[str, str]) -> Sweep:
    """Return the runs of one platform; published FLOPs are of one shard."""
    numbers = {name: data[name] for name in ("step_per_sec", "example_per_sec", "params", "flops", "fl")}
    rate = pl.col("flops") * shards * 1e9  # GFLOP/s of a shard
    ok = pl.DataFrame(numbers).select(
        weights=pl.col("params").round().cast(pl.Int64),
        flops=pl.col("fl") * shards * 1e9,
        step_ps=(1e12 / pl.col("step_per_sec")).round().cast(pl.Int64),
        examples_per_s="example_per_sec",
        flops_util=rate / DEVICES[device].peak_flops,
        state=pl.lit("ok"),
    )
    failed = points(data["err_jobs"]).with_columns(state=pl.Series([states[each] for each in data["states"]]))
    frame = pl.concat([points(data["labels"]).hstack(ok), failed], how="diagonal").sort(PARAMETERS)
    facts = {"device": device, "framework": "TensorFlow", "mode": "train"}
    frame = frame.with_columns(examples="batch", **{name: pl.lit(value) for name, value in facts.items()})
    return Sweep(frame.drop("category"), PARAMETERS, metadata=ORIGIN)


def traces(data: dict[str, Any]) -> pl.DataFrame:
    """Return the profiled runs: 10 s each on a TPU v2 board."""
    board = DEVICES["TPU v2 board"]
    figures = {
        "flops_util": "flops_perc",
        "flops_util_mean": "flops_perc_m",
        "flops_util_std": "flops_perc_std",
        "hbm_util": "memory_bandwidth",
        "infeed": "infeed",
        "infeed_mean": "infeed_m",
        "infeed_std": "infeed_std",
    }
    shares = pl.DataFrame({name: data[published] for name, published in figures.items()}) / 100
    work = pl.DataFrame({"bytes": data["rawMB"], "intensity": data["intensity"]}).with_columns(pl.col("bytes") * 1e6)
    rate = pl.col("flops_util") * board.peak_flops
    frame = points(data["labels"]).drop("category").hstack(shares).hstack(work).with_columns(rate=rate)
    return frame.sort(PARAMETERS)


def categories(data: dict[str, Any]) -> pl.DataFrame:
    """Return the HLO categories of the profiled runs, without figures of a time near 0."""
    figures = {"share": "time_perc", "flops_util": "flops_perc", "hbm_util": "memory_bandwidth"}
    shares = pl.DataFrame({name: data[published] for name, published in figures.items()}, strict=False) / 100
    work = pl.DataFrame({"bytes": data["rawMB"], "intensity": data["intensity"]}, strict=False)
    frame = points(data["labels"]).hstack(shares).hstack(work.with_columns(pl.col("bytes") * 1e6))
    possible = pl.when(pl.col("flops_util") <= 1).then("flops_util")
    frame = frame.with_columns(flops_util=possible, intensity=pl.col("intensity").fill_nan(None))
    return frame.sort(*PARAMETERS, "share", descending=[False] * 5 + [True])


def main(folder: Path) -> None:
    """Write all tables."""
    published = {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}
    runs(published["tpu_fc"], "TPU v2 board", 8, {"OOM": "out of memory"}).save(HERE / "tpu_v2.parquet")
    unfinished = {"no error but not finished": "failed: not finished"}
    runs(published["gpu_fc"], "V100", 1, unfinished).save(HERE / "v100.parquet")
    for name, table in (
        ("traces", traces(published["fc_trace_10sec"])),
        ("categories", categories(published["fc_trace_10sec_opbreakdown"])),
    ):
        table.write_parquet(HERE / f"{name}.parquet", compression="zstd", compression_level=19, metadata=ORIGIN)
    for path in sorted(HERE.glob("*.parquet")):
        print(f"{path.name}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
