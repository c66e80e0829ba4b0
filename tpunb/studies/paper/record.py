"""Record runs of the paper's workloads: ``python -m tpunb.studies.paper.record NAME [NAME ...]``.

Each is a whole training under a capture that keeps statistics only. ``truth.parquet`` holds the kind of each step,
``about.toml`` facts about the recording and the cost of a step. The samples of this project are recorded this way;
`--address` or `--tpu` records on a TPU.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import fill
from typing import Any

import polars as pl

from tpunb.analysis import machine
from tpunb.io import load, run_folder
from tpunb.profiler.capture import TPU, Address, Schedule, Source, capture
from tpunb.step_stats.reduce import steps
from tpunb.studies.frameworks import keras, strategy, tf
from tpunb.studies.paper import about
from tpunb.studies.paper.recordings import TRUTH
from tpunb.studies.paper.workloads.catalogue import WORKLOADS, workload
from tpunb.studies.paper.workloads.cost import cost
from tpunb.text import plural


def record(
    name: str,
    folder: str | os.PathLike[str],
    *,
    scale: float = 0.0,
    data: str | os.PathLike[str] | None = None,
    tpu: str | None = None,
    source: Source | None = None,
) -> Path:
    """Train a workload under a capture with back-to-back windows, and return the folder of the run.

    Parameters
    ----------
    name
        Name of a workload.
    folder
        Folder in which the run's folder is created. A run of that name is replaced, any other folder is refused.
    scale, data
        Arguments of `Workload.build`.
    tpu
        Name or address of a Cloud TPU to train on, for ``tf.distribute.cluster_resolver``.
    source
        Source to profile; this process by default.

    Raises
    ------
    TpunbError, ValueError
        No workload has that name, or as in `Workload.build`.
    """
    found = workload(name)
    target = Path(folder) / name
    if run_folder.is_run(target):
        shutil.rmtree(target)
    kinds: list[str] = []
    log = keras.callbacks.LambdaCallback(
        on_train_batch_begin=lambda batch, logs: kinds.append("train"),
        on_test_batch_begin=lambda batch, logs: kinds.append("eval"),
    )
    with TemporaryDirectory() as scratch:
        options: Any = {"folder": Path(scratch) / "records", "data": data}
        with strategy(tpu):
            model, training = found.build(scale, **options)
        evaluation = found.evaluation(scale, **options)
        with capture(target, source=source, schedule=Schedule.continuous(), keep="none"):
            begin = time.perf_counter()
            found.train(model, training, evaluation, scratch, scale=scale, callbacks=[log])
            seconds = time.perf_counter() - begin
        costs = {split: cost(model, dataset, split) for split, dataset in (("train", training), ("eval", evaluation))}
    truth = pl.DataFrame({"step": range(len(kinds)), "did": kinds}, schema={"step": pl.Int64, "did": pl.String})
    truth.write_parquet(target / TRUTH)
    metadata = about.facts(found, load(target), seconds, scale) | {
        "again": f"python -m tpunb.studies.paper.record --scale {scale:g} {name}",
        "data": "a folder of real data" if data is not None else "synthetic, with the shapes of the real data",
        "device": f"TPU {tpu}" if tpu else _device(),
        "matrix_flops": machine.measured().peak_flops if tpu is None else None,
    }
    about.write(target, metadata, costs)
    return target


def _device() -> str:
    """Return the devices that TensorFlow computes on."""
    if not (gpus := tf.config.list_physical_devices("GPU")):
        return f"CPU, {plural(os.cpu_count() or 1, 'core')}, {platform.machine()}"
    details = tf.config.experimental.get_device_details(gpus[0])
    return f"GPU, {len(gpus)} x {details.get('device_name', 'unknown')}"


def source_of(tpu: str | None, address: str | None) -> Source | None:
    """Return the source to profile: the addresses if given, else the TPU unless it is local."""
    if address:
        return Address(*address.split(","))
    return None if tpu in (None, "", "local") else TPU(tpu)


def main(arguments: Sequence[str] | None = None) -> None:
    """Record the runs named on the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tpunb.studies.paper.record",
        description="Record whole runs of the paper's workloads.",
        epilog=fill("Names: " + ", ".join(WORKLOADS), break_on_hyphens=False),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", nargs="+", help="a workload; or all")
    parser.add_argument("--to", default="runs", help="folder of the runs (default: runs)")
    parser.add_argument(
        "--scale", type=float, default=0.0, help="from 0 (a minute on two cores) to 1 (the paper's size)"
    )
    parser.add_argument("--data", help="folder of real examples as TFRecord files")
    parser.add_argument("--tpu", help="name or address of a Cloud TPU to train on and profile; on a TPU VM: local")
    parser.add_argument("--address", help="HOST:PORT[,HOST:PORT] of the profiler service to use instead of the TPU's")
    options = parser.parse_args(arguments)
    for name in (each for given in options.name for each in (WORKLOADS if given == "all" else [given])):
        source = source_of(options.tpu, options.address)
        folder = record(name, options.to, scale=options.scale, data=options.data, tpu=options.tpu, source=source)
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        print(f"{folder}: {steps(load(folder))}, {size / 1e3:.0f} kB", flush=True)


if __name__ == "__main__":
    main()
