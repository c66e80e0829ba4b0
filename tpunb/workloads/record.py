"""Record runs of the paper's workloads: ``python -m tpunb.workloads.record NAME [NAME ...]``.

Each is a whole training under a capture that keeps statistics only. ``truth.parquet`` holds the kind of each step,
``about.toml`` facts about the recording and the cost of a step. The samples of this project are recorded this way;
`--address` or `--tpu` records on a TPU.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import fill
from typing import Any

import numpy as np
import polars as pl

from tpunb.io import load, run_folder
from tpunb.profiler.capture import TPU, Address, Schedule, Source, capture
from tpunb.step_stats.reduce import steps
from tpunb.text import plural
from tpunb.tuning.tuner import tune
from tpunb.workloads.catalogue import WORKLOADS
from tpunb.workloads.cost import Cost, cost
from tpunb.workloads.frameworks import keras, tf
from tpunb.workloads.recordings import ABOUT, FORMS, TRUTH, TUNED, parted
from tpunb.workloads.scaling import Plan

COMPARED = ("qanet-squad", "retinanet-coco", "resnet-imagenet")
"""Workloads of Figures 14 to 16: those whose runs took more than twenty minutes in the paper."""
SAMPLES = (*WORKLOADS, *(f"{name}-{form}" for name in COMPARED for form in FORMS))
"""Names of the runs that this project ships."""

_BUDGET = 40.0  # seconds of tuning
_SIDE, _TIMES = 1536, 20


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
        Name of a workload; followed by "-naive" for its naive form, or by "-tuned" for that form with the values from
        `tpunb.tune`.
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
    workload, form = parted(name)
    target = Path(folder) / name
    if run_folder.is_run(target):
        shutil.rmtree(target)
    kinds: list[str] = []
    log = keras.callbacks.LambdaCallback(
        on_train_batch_begin=lambda batch, logs: kinds.append("train"),
        on_test_batch_begin=lambda batch, logs: kinds.append("eval"),
    )
    with TemporaryDirectory() as scratch:
        options: Any = {"naive": form is not None, "folder": Path(scratch) / "records", "data": data}
        with _strategy(tpu):
            begin = time.perf_counter()
            tuning = tune(workload.job(scale, **options), budget=_BUDGET) if form == TUNED else None
            tuning_seconds = time.perf_counter() - begin
            model, training = workload.build(scale, **options)
        evaluation = workload.evaluation(scale, **options)
        fed = training if tuning is None else tuning.apply(training)
        with capture(target, source=source, schedule=Schedule.continuous(), keep="none"):
            begin = time.perf_counter()
            workload.train(model, fed, evaluation, scratch, scale=scale, callbacks=[log])
            seconds = time.perf_counter() - begin
        costs = {split: cost(model, dataset, split) for split, dataset in (("train", training), ("eval", evaluation))}
    truth = pl.DataFrame({"step": range(len(kinds)), "did": kinds}, schema={"step": pl.Int64, "did": pl.String})
    truth.write_parquet(target / TRUTH)
    metadata = _run_facts(name, scale, target, seconds) | {
        "data": "a folder of real data" if data is not None else "synthetic, with the shapes of the real data",
        "device": f"TPU {tpu}" if tpu else _device(),
    }
    if tuning is not None:
        metadata |= {
            "tuning_seconds": round(tuning_seconds, 2),
            "tuning": [*map(str, tuning.messages)],
            "values": tuning.as_code().splitlines(),
            "speedup": [round(ratio, 4) for ratio in tuning.speedup],
        }
    if tpu is None:
        metadata["matrix_flops"] = matrix_flops()
    (target / ABOUT).write_text(_toml(metadata, costs), encoding="utf-8")
    return target


def _run_facts(name: str, scale: float, target: Path, seconds: float) -> dict[str, Any]:
    workload, form = parted(name)
    recorded = steps(load(target))
    return {
        "name": name,
        "what": f"{workload.model} on {workload.dataset}" + (f", the {form} input pipeline" if form else ""),
        "run": _describe(workload.plan(scale)),
        "workload": workload.name,
        "scale": scale,
        "recorded": f"{datetime.now(UTC):%Y-%m-%d}",
        "versions": f"tensorflow {version('tensorflow')}, keras {version('keras')}, python {platform.python_version()}",
        "seconds": round(seconds, 2),
        "steps": len(recorded),
        "seen_in_full": len(recorded.full()),
        "keeps": "statistics only",
        "again": f"python -m tpunb.workloads.record --scale {scale:g} {name}",
    }


def _device() -> str:
    """Return the devices that TensorFlow computes on."""
    if not (gpus := tf.config.list_physical_devices("GPU")):
        return f"CPU, {plural(os.cpu_count() or 1, 'core')}, {platform.machine()}"
    details = tf.config.experimental.get_device_details(gpus[0])
    return f"GPU, {len(gpus)} x {details.get('device_name', 'unknown')}"


def matrix_flops() -> float:
    """Return the peak FLOP/s of this machine on float32 matrices: TensorFlow's product of two of 1536 x 1536.

    Utilisation on machines without a published peak is relative to it.
    """
    numbers = np.random.default_rng(0)
    left, right = (tf.constant(numbers.random((_SIDE, _SIDE), dtype=np.float32)) for _ in range(2))
    seconds = []
    for _ in range(_TIMES + 1):  # the first is warm-up
        begin = time.perf_counter()
        tf.linalg.matmul(left, right).numpy()
        seconds.append(time.perf_counter() - begin)
    return float(2 * _SIDE**3 / min(seconds[1:]))


def _strategy(tpu: str | None) -> AbstractContextManager[Any]:
    """Return the scope of the distribution strategy for a Cloud TPU."""
    if tpu is None:
        return nullcontext()
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=tpu)
    tf.config.experimental_connect_to_cluster(resolver)
    tf.tpu.experimental.initialize_tpu_system(resolver)
    return tf.distribute.TPUStrategy(resolver).scope()  # type: ignore[no-any-return]


def _source(tpu: str | None, address: str | None) -> Source | None:
    """Return the source to profile: the addresses if given, else the TPU unless it is local."""
    if address:
        return Address(*address.split(","))
    return None if tpu in (None, "", "local") else TPU(tpu)


def _describe(plan: Plan) -> str:
    every = "each" if plan.eval_every == 1 else f"every {plan.eval_every}"
    return (
        f"{plural(plan.epochs, 'epoch')} of {plural(plan.epoch_steps, 'training step')} of "
        f"{plural(plan.batch, 'example')}, "
        f"{plural(plan.eval_steps, 'evaluation step')} after {every}, a checkpoint at the end of each epoch"
    )


def _toml(metadata: Mapping[str, Any], costs: Mapping[str, Cost]) -> str:
    """Return facts and costs as TOML: strings, numbers and lists of strings are written as in JSON."""
    lines = [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in metadata.items()]
    for split, counts in costs.items():
        lines += ["", f"[cost.{split}]", f"flops = {counts.flops!r}", f"bytes = {counts.bytes!r}"]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Record the runs named on the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tpunb.workloads.record",
        description="Record whole runs of the paper's workloads.",
        epilog=fill("Names: " + ", ".join(SAMPLES), break_on_hyphens=False),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", nargs="+", help="a workload, optionally followed by -naive or -tuned; or all")
    parser.add_argument("--to", default="runs", help="folder of the runs (default: runs)")
    parser.add_argument(
        "--scale", type=float, default=0.0, help="from 0 (a minute on two cores) to 1 (the paper's size)"
    )
    parser.add_argument("--data", help="folder of real examples as TFRecord files")
    parser.add_argument("--tpu", help="name or address of a Cloud TPU to train on and profile; on a TPU VM: local")
    parser.add_argument("--address", help="HOST:PORT[,HOST:PORT] of the profiler service to use instead of the TPU's")
    options = parser.parse_args(arguments)
    for name in (each for given in options.name for each in (SAMPLES if given == "all" else [given])):
        source = _source(options.tpu, options.address)
        folder = record(name, options.to, scale=options.scale, data=options.data, tpu=options.tpu, source=source)
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        print(f"{folder}: {steps(load(folder))}, {size / 1e3:.0f} kB", flush=True)


if __name__ == "__main__":
    main()
