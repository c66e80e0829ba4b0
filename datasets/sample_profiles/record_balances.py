"""Record workloads at balances of input and device: ``python datasets/sample_profiles/record_balances.py [NAME ...]``.

The naive program runs at widths of the model from the unit to 1; at those where its device idles as the paper's on TPU
v2, and computes faster by the ratios of TPU v3 to that; and there also on other data. Workloads of Figures 14 to 16 run
with hand-optimised and with tuned input too. A run's name is its width, form and round, so the command continues where
it stopped; all of it takes about an hour on two cores without other work. `--address` or `--tpu` records on a TPU.

The package has its runs in one file: recording begins with those in it, and `--pack` puts the recorded ones back.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import polars as pl

from tpunb.analysis import machine
from tpunb.analysis.goodput import goodput
from tpunb.analysis.roofline import roofline
from tpunb.frames import Steps
from tpunb.frames.conversion import write_atomically
from tpunb.frames.hardware import Device
from tpunb.io import load, run_folder
from tpunb.profiler.capture import Schedule, Source, capture
from tpunb.step_stats.reduce import steps
from tpunb.step_stats.self_time import unions
from tpunb.studies.frameworks import keras, strategy
from tpunb.studies.paper import about
from tpunb.studies.paper.balances import FASTER, OTHER_DATA, V2, V3_MEMORY
from tpunb.studies.paper.record import source_of
from tpunb.studies.paper.recordings import ABOUT, BALANCES, HAND, NAIVE, PACKED, PLAN, TUNED, unpack
from tpunb.studies.paper.tables import published
from tpunb.studies.paper.workloads.balance import pin, strays
from tpunb.studies.paper.workloads.catalogue import workload
from tpunb.studies.paper.workloads.cost import Cost
from tpunb.studies.paper.workloads.workload import Workload
from tpunb.text import plural
from tpunb.training.state import TrainingState, digest, variables_of
from tpunb.tuning.results import Tuning
from tpunb.tuning.tuner import tune

COMPARED = ("qanet-squad", "retinanet-coco", "resnet-imagenet")
"""Workloads of Figures 14 to 16: those whose runs took more than twenty minutes in the paper."""

SAME_MODEL = {
    "qanet-squad-half": "qanet-squad",
    "retinanet-coco-half": "retinanet-coco",
    "resnet-cifar10": "resnet-imagenet",
}
"""Workloads whose model at a width is that of another, compiled already."""

_POINTS, _ROUNDS, _LIGHT = 6, 3, 1  # widths of a curve; rounds; the width of those with less idle time that is tuned
_LONGEST_S, _FEWEST, _HOUR_S = 25.0, 4, 3600.0  # of a run; steps of an epoch
_SLOWER, _OTHERS = 1.4, 0.10  # of a busy machine: probe by the fastest, and share of the processors that others use
_PROBES, _PROBE = 75, 100_000


@dataclass(frozen=True)
class Point:
    """A run at a balance."""

    name: str  # of the workload
    width: int  # of its model
    form: str  # of its input pipeline
    round: int

    def __str__(self) -> str:
        return f"{self.name}-width-{self.width}-{self.form}-{self.round}"


@dataclass(frozen=True)
class Options:
    """Options of a recording: seconds of a run, times that it is tried, and those of `tpunb.studies.paper.record`."""

    seconds: float = 3.5
    tries: int = 3
    data: str | None = None
    tpu: str | None = None
    source: Source | None = None
    budget_s: float = 40.0  # of a tuning


def widths(unit: int) -> list[int]:
    """Return the widths of a curve, from the unit to 1, in even ratios.

    >>> widths(32)
    [32, 16, 8, 4, 2, 1]
    """
    return list(dict.fromkeys(round(unit ** (1 - place / (_POINTS - 1))) for place in range(_POINTS)))


def width_of(device_s: float, times: Mapping[int, float]) -> int | None:
    """Return the width at which a step of the device takes so many seconds, between measured ones; None beyond them.

    >>> width_of(3.0, {1: 1.0, 4: 2.0, 16: 4.0})
    9
    """
    known = sorted(times)
    logs = np.maximum.accumulate([math.log(times[each]) for each in known])
    if not logs[0] <= math.log(device_s) <= logs[-1]:
        return None
    return round(math.exp(float(np.interp(math.log(device_s), logs, np.log(known)))))


def record_balances(name: str, folder: str | os.PathLike[str], options: Options | None = None) -> None:
    """Record the runs of a workload that are missing in a folder; print a line for each.

    Raises
    ------
    TpunbError
        No workload has that name; or the process may use one core only, or TensorFlow has started.
    """
    options = options or Options()
    with strategy(options.tpu), TemporaryDirectory() as scratch:
        session = Session(workload(name).name, Path(folder), options, Path(scratch))
        print(f"{name}: {session.cores}", flush=True)
        for number in range(1, _ROUNDS + 1):
            session.round(number)


class Session:
    """The recording of one workload in this process, whose threads it pins."""

    def __init__(self, name: str, folder: Path, options: Options, scratch: Path) -> None:
        self.name, self.options, self.scratch, self.folder = name, options, scratch, folder / name
        self.cores = pin()
        self.unit = workload(name).spec.UNIT
        file = self.folder / PLAN
        empty: dict[str, Any] = {"epoch_steps": {}, "marks": {}, "tuning": {}, "probe_s": math.inf}
        self.plan: dict[str, Any] = json.loads(file.read_text()) if file.exists() else empty
        self._models: dict[tuple[str, int], tuple[Any, TrainingState]] = {}
        self._costs: dict[tuple[str, int], dict[str, Cost]] = {}
        self._chip = None if options.tpu else self._on(self.cores.device, machine.measured)
        for _ in range(10):
            self._probe()

    def round(self, number: int) -> None:
        """Record the runs of a round in random order; those of one width follow each other."""
        curve, order = widths(self.unit), random.Random(number)
        for width in order.sample(curve, len(curve)):
            self._forms(width, number, order, compared=width == curve[_LIGHT])
        for mark in FASTER:
            if mark not in self.plan["marks"]:
                self.plan["marks"][mark] = self._mark(mark)
                self._save()
        for searched in self.times().keys() - {*curve, *self.plan["marks"].values()}:
            shutil.rmtree(self.folder / str(Point(self.name, searched, NAIVE, 1)))
        for width in dict.fromkeys(each for each in self.plan["marks"].values() if each is not None):
            marked = [mark for mark, of in self.plan["marks"].items() if of == width]
            self._forms(width, number, order, compared=marked != [V3_MEMORY])
            for other in OTHER_DATA[self.name] if marked != [V3_MEMORY] else ():
                self.record(Point(other, width, NAIVE, number))

    def _forms(self, width: int, number: int, order: random.Random, *, compared: bool) -> None:
        forms = [NAIVE, HAND, TUNED] if compared and self.name in COMPARED else [NAIVE]
        for form in order.sample(forms, len(forms)):
            self.record(Point(self.name, width, form, number))

    def _mark(self, mark: str) -> int | None:
        """Return the width at which the naive program's device idles, or computes, as marked; None if none does."""
        width: int | None = None
        for _ in range(2):  # the second time with the width found in the first
            times = self.times()
            if mark == V2:
                idle = published("idle").filter(device="TPU v2")["value"].item()
                device_s = fmean(step_s - device_s for step_s, device_s in times.values()) * (1 - idle) / idle
            elif self.plan["marks"].get(V2) is None:
                return None
            else:
                device_s = times[self.plan["marks"][V2]][1] / FASTER[mark]
            if (width := width_of(device_s, {each: found[1] for each, found in times.items()})) is None:
                return None
            self.record(Point(self.name, width, NAIVE, 1))
        return width

    def times(self) -> dict[int, tuple[float, float]]:
        """Return the seconds of a step of the naive program, and of its device, by width, in the first round."""
        files = self.folder.glob(f"{self.name}-width-*-{NAIVE}-1/{ABOUT}")
        found = [tomllib.loads(file.read_text(encoding="utf-8")) for file in files]
        return {each["width"]: (each["step_s"], each["device_s"]) for each in found}

    # -- one run ---------------------------------------------------------------------------------------------------

    def record(self, point: Point) -> None:
        """Record a run unless it exists, again while the machine is busy."""
        target, busy = self.folder / str(point), True
        if (target / ABOUT).exists():
            return
        model, state = self._model(point)
        times = 0
        while busy and times < self.options.tries:  # with data that begin anew, as a shuffle goes on from pass to pass
            times, metadata = times + 1, self._once(point, model, state, self._data(point))
            busy = metadata["busy"]
        shutil.rmtree(target, ignore_errors=True)
        _keep_statistics(self.scratch / "run", target, with_ops=point.round == 1)
        if self._chip is not None:
            (target / run_folder.DEVICE).write_text(self._chip.to_json())
        about.write(target, metadata | {"name": str(point), "times": times}, self._costs[point.name, point.width])
        result = f"{metadata['seconds']:.1f} s, recorded {plural(times, 'time')}{', busy machine' * busy}"
        print(f"{point}: {result}", flush=True)

    def _once(self, point: Point, model: Any, state: TrainingState, data: tuple[Any, Any]) -> dict[str, Any]:
        """Train once, and return the facts of the run."""
        workload_, moved = self._workload(point), list[str]()
        watch = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: moved.extend(strays(self.cores)))
        state.restore()
        shutil.rmtree(self.scratch / "run", ignore_errors=True)
        whole = Schedule.fixed(2 * _LONGEST_S, every=_HOUR_S)  # one window, which ends with the run
        before = self._probe()
        with capture(self.scratch / "run", source=self.options.source, schedule=whole, keep="all") as run:
            begun = time.perf_counter()
            history = workload_.train(model, *data, self.scratch / str(point.width), callbacks=[watch])
            seconds = time.perf_counter() - begun
        after, profile = self._probe(), load(run)
        if (point.name, point.width) not in self._costs:
            self._costs[point.name, point.width] = _costs(steps(profile), self._chip)
        used = goodput(profile).load.drop_nulls(["machine_cpu", "cpu"])
        others = float((used["machine_cpu"] - used["cpu"]).mean() or 0.0)  # type: ignore[arg-type]  # of floats
        slower = max(before, after) / self.plan["probe_s"]
        full = steps(profile).full().frame.filter(kind="train").drop_nulls("device_ps")
        both = overlap(profile.events)
        tuned = self.plan["tuning"][str(point.width)] if point.form == TUNED else {}
        return about.facts(workload_, profile, seconds) | {
            "balance": workload_.balance,
            **{name: getattr(point, name) for name in ("width", "form", "round")},
            "device": f"TPU {self.options.tpu}" if self.options.tpu else "a processor core, by XLA",
            "cores": str(self.cores),
            "held": not moved if self.cores.device is not None else None,
            "overlap": None if both is None else round(both, 4),
            **{name: full[f"{short}_ps"].median() / 1e12 for name, short in _TIMES.items() if len(full)},  # type: ignore[operator]
            "output": digest([history.history], variables_of(model)),
            "slower": round(slower, 3),
            "others": round(others, 3),
            "busy": slower > _SLOWER or others > _OTHERS or seconds > _LONGEST_S,
            "again": f"python datasets/sample_profiles/record_balances.py {self.name}",
            **{name: value for name, value in tuned.items() if name != "best"},
        }

    def _workload(self, point: Point) -> Workload:
        steps_ = self.plan["epoch_steps"].get(str(point.width), _FEWEST)
        return workload(point.name).at_balance((self.unit / point.width) ** 2, epoch_steps=steps_)

    def _model(self, of: Point) -> tuple[Any, TrainingState]:
        """Return the model of a run, traced and compiled, and its initial state; count the steps of its width."""
        if (key := (SAME_MODEL.get(of.name, of.name), of.width)) not in self._models:
            point = replace(of, form=NAIVE)
            model, data = self._workload(point).build(**self._options(point))
            model.optimizer.build(model.trainable_variables)
            state = TrainingState.capture(variables_of(model))
            evaluation = self._data(point)[1].take(1)
            with capture(schedule=Schedule.ticks()):  # its steps are traced as those of the runs
                model.fit(data.take(1), validation_data=evaluation, shuffle=False, verbose=0)
                begun = time.perf_counter()
                model.fit(data.take(_FEWEST), shuffle=False, verbose=0)
                step_s = (time.perf_counter() - begun) / _FEWEST
            state.restore()
            epochs = self._workload(point).plan().epochs
            count = max(_FEWEST, round(min(self.options.seconds, _LONGEST_S) / epochs / step_s))
            self.plan["epoch_steps"].setdefault(str(of.width), count)
            self._save()
            self._models[key] = model, state
        return self._models[key]

    def _data(self, point: Point) -> tuple[Any, Any]:
        """Return the data of training and evaluation; of the tuned form, with the values that `tune` chose once."""
        options, tuning = self._options(point), self.plan["tuning"]
        data = self._workload(point).training(**options)
        if point.form == TUNED and str(point.width) not in tuning:
            model, state = self._model(point)
            found = tune(model, data, budget=self.options.budget_s)
            state.restore()
            tuning[str(point.width)] = {
                "best": dict(found.best),
                "tuning_seconds": round(found.seconds, 2),
                "tuning": [*map(str, found.messages)],
                "values": found.as_code().splitlines(),
            }
            self._save()
        if point.form == TUNED:
            data = Tuning((), tuning[str(point.width)]["best"]).apply(data)
        return data, self._workload(point).evaluation(**options)

    def _options(self, point: Point) -> Any:
        return {"naive": point.form != HAND, "folder": self.scratch / "records", "data": self.options.data}

    def _probe(self) -> float:
        """Return the seconds of a fixed computation on the slower of both cores; keep the fewest seen."""
        slowest = 0.0
        for core in (self.cores.device, self.cores.input):
            taken = self._on(core, lambda: [_probed() for _ in range(_PROBES)])
            self.plan["probe_s"] = min(self.plan["probe_s"], *taken)
            slowest = max(slowest, median(taken))
        return slowest

    def _on(self, core: int | None, measure: Any) -> Any:
        """Return what a function measures on a core."""
        if core is None or self.cores.input is None:
            return measure()
        os.sched_setaffinity(0, {core})
        try:
            return measure()
        finally:
            os.sched_setaffinity(0, {self.cores.input})

    def _save(self) -> None:
        write_atomically(self.folder / PLAN, json.dumps(self.plan, indent=1).encode())


_TIMES = {"step_s": "dur", "device_s": "device", "input_s": "input"}


def _probed() -> float:
    begun = time.perf_counter()
    sum(range(_PROBE))
    return time.perf_counter() - begun


def _costs(recorded: Steps, chip: Device | None) -> dict[str, Cost]:
    """Return the work of a step of each kind, by the compiled program."""
    costs, full = {}, recorded.full()
    for kind in ("train", "eval"):
        of_kind = replace(full, frame=full.frame.filter(pl.col("kind").cast(pl.String) == kind))
        if len(of_kind) and of_kind.read_layers is not None:
            row = roofline(of_kind, device=chip).frame.row(0, named=True)
            if row["flops"] is not None and row["bytes"] is not None:
                roof_ps = row["self_ps"] - (row["headroom_ps"] or 0)
                numbers = row["flops"], row["bytes"], roof_ps / 1e12
                costs[kind] = Cost(*(number / len(of_kind) for number in numbers))
    return costs


def overlap(events: pl.DataFrame) -> float | None:
    """Return the share of the device's busy time in which the private thread prepared input; None without either.

    A pipeline that does not work ahead has none: it works in the thread that asks for a batch.
    """
    busy = events.filter(pl.col("hlo_op").is_not_null())
    prepared = events.filter(pl.col("line").cast(pl.String).str.starts_with("tf_data_private"))
    if busy.is_empty() or prepared.is_empty():
        return None
    whole = _length(busy)
    return (whole + _length(prepared) - _length(pl.concat([busy, prepared]))) / whole


def _length(events: pl.DataFrame) -> int:
    """Return the time in which at least one of some events runs."""
    start, dur = events.sort("start_ps").select("start_ps", "dur_ps").get_columns()
    count, one_group = len(events), np.zeros(len(events), np.uint32)
    return int(unions(one_group, start.to_numpy(), (start + dur).to_numpy(), np.ones(count, bool), 1)[0])


def _keep_statistics(run: Path, target: Path, *, with_ops: bool) -> None:
    """Copy a run without its raw windows and programs; of repeated rounds, also without operations."""
    left_out = {"programs.parquet", *(() if with_ops else ("ops.parquet",))}
    shutil.copytree(run / "parts", target / "parts", ignore=lambda _, names: left_out & {*names})
    facts = json.loads((run / run_folder.RUN).read_text())
    facts["options"]["keep"] = "none"
    (target / run_folder.RUN).write_text(json.dumps(facts | {"name": target.name}, indent=1))


def pack(folder: Path) -> None:
    """Put the runs at balances of a folder into one file, and remove theirs."""
    home = folder / BALANCES
    files = sorted(path for path in home.rglob("*") if path.is_file())
    names, contents = [file.relative_to(home).as_posix() for file in files], [file.read_bytes() for file in files]
    frame = pl.DataFrame({"file": names, "content": contents})
    frame.write_parquet(folder / PACKED, compression="zstd", compression_level=9, row_group_size=len(frame))
    shutil.rmtree(home)


def main(arguments: Sequence[str] | None = None) -> None:
    """Record the workloads named on the command line, each in a process whose threads it can pin."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="*", help=f"of {', '.join(OTHER_DATA)} (default: all)")
    parser.add_argument("--to", default=str(Path(__file__).parent), help="folder of the runs (default: the samples)")
    parser.add_argument("--seconds", type=float, default=Options.seconds, help="of training in a run (default: 3.5)")
    parser.add_argument("--tries", type=int, default=Options.tries, help="of a run on a busy machine (default: 3)")
    parser.add_argument("--data", help="folder of real examples as TFRecord files")
    parser.add_argument("--tpu", help="name or address of a Cloud TPU to train on and profile; on a TPU VM: local")
    parser.add_argument("--address", help="HOST:PORT[,HOST:PORT] of the profiler service to use instead of the TPU's")
    parser.add_argument("--pack", action="store_true", help="put the recorded runs into one file, and end")
    options = parser.parse_args(arguments)
    if options.pack:
        pack(Path(options.to))
        return
    if (packed := Path(options.to, PACKED)).exists() and not packed.with_name(BALANCES).exists():
        unpack(packed, packed.parent)
    if len(options.name) == 1:
        source = source_of(options.tpu, options.address)
        chosen = Options(options.seconds, options.tries, options.data, options.tpu, source)
        record_balances(options.name[0], Path(options.to) / BALANCES, chosen)
        return
    flags = [
        f"--{key}={value}" for key, value in vars(options).items() if key not in ("name", "pack") and value is not None
    ]
    for name in options.name or OTHER_DATA:
        subprocess.run([sys.executable, __file__, name, *flags], check=True)


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    main()
