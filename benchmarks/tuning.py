"""What tuning gains on naive input pipelines, beside AUTOTUNE and the best of an exhaustive grid, and that it is safe.

``python benchmarks/tuning.py [--quick] [--parts io,short]``, in one process. Each kind of naive pipeline
(`pipelines.KINDS`) is tuned by ``tpunb.tune`` with its default search. A grid tries the same parallel calls for all
stages, private threads and sizes of the prefetch, each with each. Then the naive pipeline, a careful user's with
AUTOTUNE, the best of the grid and what was found train in turns, each with data begun anew; AUTOTUNE is given seconds
to settle in every turn. Medians of the turns' ratios stand with their intervals: order statistics that hold the median
at 95 %, of fewer than six turns the least and the greatest. ``--quick`` takes ``io`` with a smaller grid and search,
the original's example with one point for a grid and a search of one proposal, and the twelve small pipelines with fewer
values. The last line is JSON:

``io``, ``python``, ``cpu``, ``mixed``, ``original``
    ``vs_naive`` and ``vs_autotune``, milliseconds of a step by ours; ``of_best``, those of the grid's best by ours;
    ``search_s``, the seconds of all of ``tune``.
``short``
    Of ten jobs (`pipelines.KINDS` and `pipelines.SHORT`), in fits of about 20 s: how many end ``sooner`` under
    ``tp.tuning.tuned`` than without, and how many ``later`` by more than 3 %, by the medians of fits in turns.
``grain``
    Of ten pipelines of Grain, see `grain_pipelines`; null without Grain.
``loader``
    Of ten DataLoaders of PyTorch, see `loaders`; null without PyTorch.
``pipelines``
    Of twelve small ones, how many were ``rewritten`` and gave the same elements, ``refused`` with a reason,
    ``crashed`` or gave ``different`` ones.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # for who runs this file by another way than its name

import pipelines
from overhead import interval

import tpunb as tp
from tpunb.errors import TpunbError
from tpunb.tfdata.graph import AUTOTUNE
from tpunb.training.state import arrays
from tpunb.tuning.parameters import Kind, Parameter, Value
from tpunb.tuning.pipeline import Pipeline
from tpunb.tuning.position import BatchSource
from tpunb.tuning.results import format_values
from tpunb.tuning.tournament import Budget
from tpunb.tuning.trial import TrialError, TrialRunner

Values = Mapping[str, Value]

LATER = 1.03
"""Time of a tuned fit by that of one that is not, above which it ends later."""


@dataclass(frozen=True)
class Plan:
    """How a kind is measured.

    Attributes
    ----------
    calls, threads, prefetch
        Of the grid: the values to take; None for all that the parameters have up to `MOST`.
    short
        Steps before and in the measurement of a point of the grid.
    again
        How many of the best points are measured again, longer.
    turns, warm, steps
        Of the measurement in turns, and steps before and in each of them.
    settle_s
        Seconds for AUTOTUNE to settle, in every turn.
    budget
        Of the search.
    """

    calls: tuple[int, ...] | None = None
    threads: tuple[int, ...] | None = None
    prefetch: tuple[int, ...] | None = None
    short: tuple[int, int] = (4, 6)
    again: int = 3
    turns: int = 6
    warm: int = 8
    steps: int = 25
    settle_s: float = 3.0
    budget: Budget | None = None


MOST = {"calls": 16, "threads": 32, "prefetch": 2}
"""The bounds of the grid; AUTOTUNE besides, where a parameter takes it."""

ONE_BY_ONE = Plan((2, 4, 16, AUTOTUNE), (0, 8, 32), (0,), (2, 3), again=0, turns=4, warm=3, steps=5)
FULL = {"io": Plan(), "python": Plan(), "cpu": Plan(), "mixed": Plan(), "original": ONE_BY_ONE}
QUICK = {
    "io": Plan((8, 16), (32,), (2,), again=0, turns=1, warm=3, steps=10, settle_s=0.5, budget=Budget(60, 2)),
    "original": Plan((16,), (32,), (0,), (1, 1), 0, turns=1, warm=1, steps=2, settle_s=0, budget=Budget(60, 2)),
}


def grid(parameters: Iterable[Parameter], plan: Plan) -> list[dict[str, Value]]:
    """Return the points of a grid: the same number of calls for all stages, private threads, sizes of the prefetch.

    A stage with fewer calls in its domain gets the most of them.
    """
    free = [parameter for parameter in parameters if parameter.verdict != "locked"]
    axes = [
        (Kind.CALLS, plan.calls, MOST["calls"]),
        (Kind.POOL, plan.threads, MOST["threads"]),
        (Kind.PREFETCH, plan.prefetch, MOST["prefetch"]),
    ]
    groups = [[parameter for parameter in free if parameter.kind is kind] for kind, _, _ in axes]
    values = [_values(group, wanted, most) for group, (_, wanted, most) in zip(groups, axes, strict=True)]
    return [
        {
            parameter.name: _value(parameter, value)
            for group, value in zip(groups, point, strict=True)
            for parameter in group
        }
        for point in product(*values)
    ]


def _values(parameters: list[Parameter], wanted: tuple[int, ...] | None, most: int) -> list[int]:
    if wanted is not None:
        return list(wanted)
    return sorted({int(value) for parameter in parameters for value in parameter.domain if int(value) <= most})


def _value(parameter: Parameter, value: int) -> Value:
    """Return the greatest value of a domain that is at most `value`."""
    if value == AUTOTUNE:
        return AUTOTUNE if AUTOTUNE in parameter.domain else parameter.current
    return max(int(candidate) for candidate in parameter.domain if int(candidate) <= value)


def best_of(job: tp.tuning.Job, plan: Plan) -> dict[str, Value]:
    """Return the point of the grid with the least time of a step; print how many there were."""
    begun = time.perf_counter()
    with TrialRunner(job, sizes=plan.short) as runner:
        runner.calibrate()
        points = grid(runner.pipeline.parameters, plan)

        def seconds(point: Values) -> float:
            try:
                return runner.trial(point).seconds
            except TrialError:
                return float("inf")

        best = sorted(points, key=seconds)
        if plan.again:
            best = sorted(best[: plan.again], key=lambda point: statistics.median(seconds(point) for _ in range(5)))
    taken = time.perf_counter() - begun
    print(f"  grid: {len(points)} points in {taken:.0f} s, best {format_values(best[0])}")
    return best[0]


def in_turns(job: tp.tuning.Job, data: Mapping[str, Any], plan: Plan) -> dict[str, list[float]]:
    """Return the milliseconds of a step for each dataset, one figure a turn; in each, they run in random order.

    Every turn begins the data anew: an iterator that stood while others ran would have filled its buffers, and that
    of AUTOTUNE, twice as large whenever it is found empty, would last for the whole turn.
    """
    training = job.training

    def run(source: BatchSource, steps: int) -> float:
        outputs, begun = None, time.perf_counter()
        for _ in range(steps):
            outputs = source.execute(training)
        for _ in arrays([outputs]):  # waits until it is computed
            pass
        return (time.perf_counter() - begun) / steps * 1e3

    def turn(name: str) -> float:
        source = BatchSource(data[name], iter(data[name]))
        settled = time.perf_counter() + (plan.settle_s if name == "autotune" else 0)
        run(source, plan.warm)
        while time.perf_counter() < settled:
            run(source, 2)
        return run(source, plan.steps)

    taken: dict[str, list[float]] = {name: [] for name in data}
    for _ in range(plan.turns):
        for name in random.sample(list(data), len(data)):
            taken[name].append(turn(name))
    return taken


def ratios(taken: Mapping[str, list[float]]) -> dict[str, list[float]]:
    """Return the median and interval of each time by ours, turn by turn."""
    names = {"vs_naive": "naive", "vs_autotune": "autotune", "of_best": "grid"}
    pairs = {figure: zip(taken[name], taken["ours"], strict=True) for figure, name in names.items()}
    return {figure: interval([other / ours for other, ours in pair]) for figure, pair in pairs.items()}


def measured(name: str, folder: Path, plan: Plan) -> dict[str, float]:
    """Return the figures of a kind; print what was found."""
    kind = pipelines.KINDS[name]

    def naive() -> Any:
        import keras  # noqa: F401

        return kind.data(folder, None)

    print(f"{name}: {kind.about}", flush=True)
    naive()  # writes the files, and imports what a program has imported when it is tuned
    tuning = tp.tune(kind.job(naive), budget=plan.budget)
    print(f"  tuned in {tuning.seconds:.1f} s: {tuning}")
    for message in tuning.messages:
        print(f"  {message}")
    job = kind.job(naive)
    best = best_of(job, plan)
    data = {
        "naive": naive(),
        "autotune": kind.data(folder, AUTOTUNE),
        "grid": Pipeline(naive()).build(best),
        "ours": tuning.apply(naive()),
    }
    taken = in_turns(job, data, plan)
    print("  " + ", ".join(f"{one} {statistics.median(each):.1f} ms" for one, each in taken.items()))
    found = ratios(taken)
    print("  " + ", ".join("{} {:.2f} [{:.2f}, {:.2f}]".format(one, *each) for one, each in found.items()), flush=True)
    return {one: round(each[0], 3) for one, each in found.items()} | {"search_s": round(tuning.seconds, 1)}


def late_trial(folder: Path, steps: int = 150) -> None:
    """Print the time of a trial from a checkpoint late in a run, beside a run to that point."""
    kind = pipelines.KINDS["io"]
    job = kind.job(lambda: kind.data(folder, None))
    model, data = job.parts
    begun = time.perf_counter()
    with tp.checkpointing(folder / "late", every=steps), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a delay cannot be saved; trials find their place without
        model.fit(data, epochs=1, steps_per_epoch=steps, shuffle=False, verbose=0)
    ran = time.perf_counter() - begun
    saved = tp.checkpoints(folder / "late")
    begun = time.perf_counter()
    with TrialRunner(kind.job(lambda: kind.data(folder, None)), saved[-1]) as runner:
        once = time.perf_counter() - begun
        runner.calibrate()
        spent = runner.trial({}).spent
        turns = sum(runner.sizes)
    print(
        f"A trial at step {saved[-1].step}: {spent:.2f} s for its {turns} steps, after {once:.1f} s, once, to find the "
        f"place; to run to that step again takes {ran:.1f} s, {ran / spent:.0f} times as long, and at step 5,000, "
        f"extrapolated, {ran / steps * 5000:.0f} s"
    )


def short_fits(names: Iterable[str], folder: Path, *, seconds: float, turns: int) -> dict[str, int]:
    """Return how many jobs end sooner and later when they are tuned while they run; print a line for each."""
    counts = {"sooner": 0, "later": 0}
    print(f"Fits of about {seconds:.0f} s, tuned while they run:", flush=True)
    for name in names:
        steps, found = _steps(name, folder, seconds), None
        taken: dict[bool, list[float]] = {False: [], True: []}
        for turn in range(turns):
            for tuned in (False, True) if turn % 2 else (True, False):
                once, online = _fit_once(name, folder, steps, tuned=tuned)
                taken[tuned].append(once)
                found = online or found
        plain, tuned_s = (statistics.median(each) for each in taken.values())
        counts["sooner"] += tuned_s < plain
        counts["later"] += tuned_s > LATER * plain
        print(f"  {name}: {plain:.1f} s, tuned {tuned_s:.1f} s. {found.headline if found else ''}", flush=True)
    return counts


def _steps(name: str, folder: Path, seconds: float) -> int:
    """Return the steps of a fit of so many seconds."""
    _, few, most = (_fit_once(name, folder, steps, tuned=False)[0] for steps in (2, 2, 22))  # the first compiles
    return max(round(seconds * 20 / max(most - few, 1e-3)), 20)


def _fit_once(name: str, folder: Path, steps: int, *, tuned: bool) -> tuple[float, Any]:
    """Return the seconds of a fit with data begun anew, and what became of its tuning."""
    import keras

    keras.backend.clear_session()
    model, data = pipelines.fitted(name, folder)
    begun = time.perf_counter()
    with tp.tuning.tuned() if tuned else nullcontext() as online, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a dataset is not shuffled by fit
        model.fit(data, steps_per_epoch=steps, epochs=1, verbose=0)
    return time.perf_counter() - begun, online


def judged(make: Callable[[], Any], tries: int = 2) -> tuple[str, str]:
    """Return what becomes of a pipeline when its parameters change, and why: rewritten, refused, crashed, different."""
    try:
        pipeline = Pipeline(make())
        if pipeline.refusal is not None:
            return "refused", pipeline.refusal
        expected, dice = _elements(make()), random.Random(5)
        free = [parameter for parameter in pipeline.parameters if parameter.verdict != "locked"]
        drawn = [{parameter.name: dice.choice(parameter.domain) for parameter in free} for _ in range(tries)]
        for values in ({}, {parameter.name: parameter.domain[-1] for parameter in free}, *drawn):
            if _elements(pipeline.build(values)) != expected:
                return "different", format_values(values)
    except TpunbError as error:
        return "refused", str(error)
    except Exception as error:  # noqa: BLE001  that is what is counted
        return "crashed", f"{type(error).__name__}: {error}".splitlines()[0]
    return "rewritten", f"{len(free)} parameters"


def small_ones(folder: Path, tries: int = 2) -> dict[str, int]:
    """Return what became of the twelve, with so many values by chance; print a line each."""
    counts = {"rewritten": 0, "refused": 0, "crashed": 0, "different": 0}
    print("Twelve small pipelines, two epochs each, element by element:")
    for name, make in pipelines.twelve(folder).items():
        what, why = judged(make, tries)
        counts[what] += 1
        print(f"  {name}: {what}, {why}")
    return counts


def _elements(dataset: Any, epochs: int = 2) -> list[Any]:
    """Return the elements of some epochs as plain values."""
    import tensorflow as tf

    def plain(part: Any) -> Any:
        return part.dtype.name, part.shape.as_list(), part.numpy().tolist()

    return [[tf.nest.map_structure(plain, element) for element in dataset] for _ in range(epochs)]


NEEDS = {"grain": "grain", "loader": "torch"}
"""Packages of the parts that need more than TensorFlow."""


def grain_figures(*, quick: bool) -> dict[str, Any]:
    """Return the figures of Grain's pipelines, or of one."""
    import grain_pipelines

    if quick:
        return grain_pipelines.figures(["source"], turns=1, budget=Budget(60, 2), most=2)
    return grain_pipelines.figures()


def loader_figures(*, quick: bool) -> dict[str, Any]:
    """Return the figures of DataLoaders, or of one."""
    import loaders

    return loaders.quick() if quick else loaders.figures()


def main() -> None:
    """Print what was measured, and the ratios."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--quick", action="store_true", help="two kinds, coarsely, and the small pipelines")
    options.add_argument("--parts", help="keys of the last line, separated by commas; all by default")
    chosen = options.parse_args()
    quick = chosen.quick
    os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    plans = QUICK if quick else FULL
    parts = chosen.parts.split(",") if chosen.parts else [*plans, "short", "grain", "loader", "pipelines"]
    bounds = ", ".join(f"{name} up to {most}" for name, most in MOST.items())
    print("quick: smaller grids, shorter searches" if quick else f"grids: {bounds}, and AUTOTUNE; original: fewer")
    if quick:
        print(f"left out: {', '.join(name for name in FULL if name not in QUICK)}, and the trial late in a run")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        names = ["python"] if quick else [*pipelines.KINDS, *pipelines.SHORT]
        measures: dict[str, Callable[[], Any]] = {
            **{kind: partial(measured, kind, folder, plan) for kind, plan in plans.items()},
            "short": lambda: short_fits(names, folder, seconds=3 if quick else 20, turns=1 if quick else 3),
            "grain": lambda: grain_figures(quick=quick),
            "loader": lambda: loader_figures(quick=quick),
            "pipelines": lambda: small_ones(folder, tries=1 if quick else 2),
        }
        missing = [part for part, package in NEEDS.items() if part in parts and find_spec(package) is None]
        if missing:
            print(f"left out, as a package is missing: {', '.join(missing)}")
        result = {part: None if part in missing else measures[part]() for part in parts}
        if not quick and not chosen.parts:
            late_trial(folder)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
