"""Record runs of the paper's workloads: ``python -m tpunb.workloads.record NAME [NAME ...]``.

Each is a whole training under a capture: statistics only, what was done in each step, and in ``about.toml`` how it was
done and what a step costs. This project's own samples are recorded so; `--address` or `--tpu` records the same on a
TPU.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import fill
from typing import Any

import numpy as np
import polars as pl

from tpunb.errors import need
from tpunb.io import load, run_folder
from tpunb.recorder import TPU, Address, Schedule, Source, capture
from tpunb.stepping import steps
from tpunb.tuning.nouns import Tuning
from tpunb.tuning.tuner import tune
from tpunb.workloads.catalogue import WORKLOADS
from tpunb.workloads.cost import cost
from tpunb.workloads.recordings import ABOUT, FORMS, TRUTH, TUNED, parted
from tpunb.workloads.scaling import Plan

COMPARED = ("qanet-squad", "retinanet-coco", "resnet-imagenet")
"""The workloads of Figures 14 to 16: those whose runs took the paper more than twenty minutes."""
SAMPLES = (*WORKLOADS, *(f"{name}-{form}" for name in COMPARED for form in FORMS))
"""The names of what this project records and ships."""

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
    """Train a workload under a capture, and return the folder of what was recorded.

    Parameters
    ----------
    name
        Of a workload; with "-naive" behind it, of its naive form; with "-tuned", of that form with the values that
        `tpunb.tune` finds for it. All are watched back to back, as the paper did.
    folder
        Where the run's own folder, of that name, is made; a run that is there by that name is replaced, anything else
        refused.
    scale, data
        As `Workload.build` takes them.
    tpu
        The name or address of a Cloud TPU to train on, as ``tf.distribute.cluster_resolver`` takes it.
    source
        What to profile; this process, if None.

    Raises
    ------
    TpunbError, ValueError
        When no workload is called so, or as `Workload.build`.
    """
    of, form = parted(name)
    target = Path(folder) / name
    if run_folder.is_run(target):
        shutil.rmtree(target)
    did = Diary()
    with TemporaryDirectory() as scratch:
        how: Any = {"naive": form is not None, "folder": Path(scratch) / "records", "data": data}
        with _on(tpu):
            begun = time.perf_counter()
            tuning = tune(of.job(scale, **how), budget=_BUDGET) if form == TUNED else None
            searched = time.perf_counter() - begun
            model, training = of.build(scale, **how)
        asked = of.evaluation(scale, **how)
        fed = training if tuning is None else tuning.apply(training)
        with capture(target, source=source, schedule=Schedule.continuous(), keep="none"):
            begun = time.perf_counter()
            of.train(model, fed, asked, scratch, scale=scale, callbacks=[did.callback()])
            seconds = time.perf_counter() - begun
        costs = {split: cost(model, dataset, split) for split, dataset in (("train", training), ("eval", asked))}
    did.frame().write_parquet(target / TRUTH)
    about = _how_it_was_made(name, scale, target, seconds) | {
        "data": "a folder of real data" if data is not None else "made by the workload, of the real shapes",
        "device": f"TPU {tpu}" if tpu else _device(),
    }
    if tuning is not None:
        about |= _how_it_was_tuned(tuning, searched)
    if tpu is None:
        about["matrix_flops"] = matrix_flops()
    tables = {split: {"flops": one.flops, "bytes": one.bytes} for split, one in costs.items()}
    (target / ABOUT).write_text(_toml(about, {"cost": tables}), encoding="utf-8")
    return target


def _how_it_was_made(name: str, scale: float, target: Path, seconds: float) -> dict[str, Any]:
    of, form = parted(name)
    found = steps(load(target))
    return {
        "name": name,
        "what": f"{of.model} on {of.dataset}" + (f", the {form} input pipeline" if form else ""),
        "run": _in_words(of.plan(scale)),
        "workload": of.name,
        "scale": scale,
        "recorded": f"{datetime.now(UTC):%Y-%m-%d}",
        "versions": f"tensorflow {version('tensorflow')}, keras {version('keras')}, python {platform.python_version()}",
        "seconds": round(seconds, 2),
        "steps": len(found),
        "seen_in_full": len(found.full()),
        "keeps": "statistics only",
        "again": f"python -m tpunb.workloads.record --scale {scale:g} {name}",
    }


def _how_it_was_tuned(tuning: Tuning, seconds: float) -> dict[str, Any]:
    return {
        "tuning_seconds": round(seconds, 2),
        "tuning": [*tuning.said],
        "values": tuning.as_code().splitlines(),
        "speedup": [round(one, 4) for one in tuning.speedup],
    }


def _device() -> str:
    """Return what TensorFlow computes on."""
    tf = need("tensorflow", extra="tensorflow")
    graphics = tf.config.list_physical_devices("GPU")
    if not graphics:
        return f"CPU, {os.cpu_count()} cores, {platform.machine()}"
    return (
        f"GPU, {len(graphics)} x {tf.config.experimental.get_device_details(graphics[0]).get('device_name', 'unknown')}"
    )


class Diary:
    """What a fit did in each of its steps, by Keras' own callbacks."""

    def __init__(self) -> None:
        self.did: list[str] = []

    def callback(self) -> Any:
        """Return what tells it."""
        keras = need("keras", extra="tensorflow")
        return keras.callbacks.LambdaCallback(
            on_train_batch_begin=lambda batch, logs: self.did.append("train"),
            on_test_batch_begin=lambda batch, logs: self.did.append("test"),
        )

    def frame(self) -> pl.DataFrame:
        """Return ``step``, by the number that a capture gives it, and what it ``did``: "train" or "test".

        An epoch's checkpoint is saved after its evaluation, within the last step of either.
        """
        return pl.DataFrame(
            {"step": range(len(self.did)), "did": self.did}, schema={"step": pl.Int64, "did": pl.String}
        )


def matrix_flops() -> float:
    """Return the floating-point operations a second that this machine does on matrices of float32, at its best.

    What TensorFlow makes of two square matrices of 1,536, on all cores: the peak that shares of it are told by, where
    no maker's figure is that of the machine at hand.
    """
    tf = need("tensorflow", extra="tensorflow")
    numbers = np.random.default_rng(0)
    one, other = (tf.constant(numbers.random((_SIDE, _SIDE), dtype=np.float32)) for _ in range(2))
    took = []
    for _ in range(_TIMES + 1):  # the first sets up
        begun = time.perf_counter()
        tf.linalg.matmul(one, other).numpy()
        took.append(time.perf_counter() - begun)
    return float(2 * _SIDE**3 / min(took[1:]))


def _on(tpu: str | None) -> AbstractContextManager[Any]:
    """Return the block in which a model is built for a Cloud TPU."""
    if tpu is None:
        return nullcontext()
    tf = need("tensorflow", extra="tensorflow")
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=tpu)
    tf.config.experimental_connect_to_cluster(resolver)
    tf.tpu.experimental.initialize_tpu_system(resolver)
    return tf.distribute.TPUStrategy(resolver).scope()  # type: ignore[no-any-return]


def _source(tpu: str | None, address: str | None) -> Source | None:
    """Return what to profile: the addresses that were named, else the TPU's, unless it is this machine's own."""
    if address:
        return Address(*address.split(","))
    return None if tpu in (None, "", "local") else TPU(tpu)


def _in_words(plan: Plan) -> str:
    every = "each" if plan.eval_every == 1 else f"every {plan.eval_every}"
    return (
        f"{plan.epochs} epochs of {plan.epoch_steps} training steps of {plan.batch} examples, "
        f"{plan.eval_steps} evaluation steps after {every}, a checkpoint at the end of each epoch"
    )


def _toml(about: Mapping[str, Any], tables: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    """Return plain facts as TOML: strings, numbers and lists of strings are written as in JSON."""
    lines = [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in about.items()]
    for above, parts in tables.items():
        for name, facts in parts.items():
            lines += ["", f"[{above}.{name}]", *(f"{key} = {value!r}" for key, value in facts.items())]
    return "\n".join(lines) + "\n"


def main(given: Sequence[str] | None = None) -> None:
    """Record what the command line names."""
    parser = argparse.ArgumentParser(
        prog="python -m tpunb.workloads.record",
        description="Record whole runs of the paper's workloads.",
        epilog=fill("Names: " + ", ".join(SAMPLES), break_on_hyphens=False),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", nargs="+", help="a workload, also with -naive or -tuned behind it; or all")
    parser.add_argument("--to", default="runs", help="the folder for the runs (default: runs)")
    parser.add_argument("--scale", type=float, default=0.0, help="from 0, a minute on two cores, to 1, the paper's")
    parser.add_argument("--data", help="a folder of real examples as TFRecord files")
    parser.add_argument(
        "--tpu", help="the name or address of a Cloud TPU to train on and to profile; on a TPU VM: local"
    )
    parser.add_argument("--address", help="HOST:PORT[,HOST:PORT] of the profiler service, in place of the TPU's own")
    asked = parser.parse_args(given)
    for name in _all(asked.name):
        source = _source(asked.tpu, asked.address)
        made = record(name, asked.to, scale=asked.scale, data=asked.data, tpu=asked.tpu, source=source)
        size = sum(file.stat().st_size for file in made.rglob("*") if file.is_file())
        print(f"{made}: {steps(load(made))}, {size / 1e3:.0f} kB", flush=True)


def _all(names: Iterable[str]) -> list[str]:
    return [one for name in names for one in (SAMPLES if name == "all" else [name])]


if __name__ == "__main__":
    main()
