"""Measure what a report names, its size, and whether it distinguishes slower runs from equal ones.

``python benchmarks/report.py [--quick] [--programs NAME,...] [--pairs N]``: programs of `programs.wastes`, each in a
process of its own, with a fault or healthy; the sizes of the reports on the samples and on these runs; and pairs of
synthetic runs with the noise of machines, equal or with steps 3 % longer, of 600 steps each. Their noise is one of four
kinds in turn: scatter of 3 %; steps correlated over ten; 2 % of the steps with a stall of their own length; a drift of
1 % over the run. Each run is 0.3 % (one standard deviation) off the others. ``--quick`` takes four programs and ten
pairs. The last line is one JSON object:

``named``
    Share of the programs with a fault whose verdict, first accounts or first action name it.
``false_alarms``
    Number of healthy programs that are not called healthy, or for which something is to be done that saves 3 % or more.
``bytes``
    Size of the largest report.
``regressions``
    Share of the pairs with steps 3 % longer for which ``slowdown`` answers slower.
``equal``
    Share of the equal pairs for which it does not.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.extend(map(str, Path(__file__).parents[:2]))  # whichever way this file is run

import numpy as np
import polars as pl

import tpunb as tp
from programs.wastes import PROGRAMS, jax_loops, keras_fits, torch_loops  # noqa: F401
from tpunb.analysis import compare, slowdown
from tpunb.testing import toy_steps

QUICK = ("torch_slow_dataset", "torch_waits_for_a_lock", "jax_sleeps_in_each_step", "torch_healthy_recurrent")
STEPS, SLOWER, MEAN_PS = 600, 0.03, 10**10
SAMPLES = ("keras_cnn", "keras_transformer", "pod")
WORTH = 0.03  # of run time, of an action in a healthy program


def measure(name: str) -> dict[str, Any]:
    """Capture a program in this process, and return its report."""
    from verdicts import warm_up

    warm_up(name.partition("_")[0])
    with tempfile.TemporaryDirectory() as folder:
        with tp.capture(Path(folder, "run"), keep="none") as run:
            PROGRAMS[name].train(run, False)
        return dict(tp.report(Path(folder, "run")).content)


def measured(name: str) -> dict[str, Any]:
    """Return the report on a program that runs in a process of its own."""
    command = [sys.executable, __file__, "--program", name]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def judge(name: str, report: dict[str, Any]) -> dict[str, bool]:
    """Return whether a fault is named, or a healthy program has a false alarm, and print the verdict."""
    each, verdict = PROGRAMS[name], report["verdict"]
    print(f"{name}: {verdict['sentence']}", flush=True)
    if not each.words:
        worth = [action for action in report["actions"] if action["saves"] and action["saves"]["share"] >= WORTH]
        return {"false_alarm": not verdict["healthy"] or bool(worth)}
    accounts = {verdict["account"]} | {account["account"] for account in report["accounts"][:2]}
    return {
        "named": bool(re.search(each.words, verdict["sentence"]))
        and (not each.accounts or accounts & {*each.accounts} != set())
    }


def noise(kind: int, random: np.random.Generator) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the logarithms of step times with one of four kinds of noise."""
    log = random.normal(0, 0.03 if kind == 0 else 0.02, STEPS) + random.normal(0, 0.003)
    if kind == 1:
        slow = random.normal(0, 0.004, STEPS)
        for step in range(1, STEPS):
            slow[step] += 0.9 * slow[step - 1]
        log += slow
    if kind == 2:
        log += np.log1p((random.random(STEPS) < 0.02) * random.exponential(1.0, STEPS))
    if kind == 3:
        log += np.linspace(0, random.normal(0, 0.01), STEPS)
    return log


def synthetic(kind: int, random: np.random.Generator, slower: float = 0.0) -> tp.Phases:
    """Return a run of steps of one kind, whose times a clock recorded."""
    durs = np.round(MEAN_PS * np.exp(noise(kind, random)) * (1 + slower)).astype(np.int64)
    steps = toy_steps("a" * STEPS, traced="f" * 4 + "n" * (STEPS - 4))
    frame = steps.frame.with_columns(start_ps=pl.Series(np.cumsum(durs) - durs), dur_ps=pl.Series(durs))
    return tp.phases(replace(steps, frame=frame))


def pairs(count: int) -> Iterator[tuple[bool | None, bool | None]]:
    """Yield the answers on a pair of equal runs, and on a pair of which the second is slower."""
    for number in range(count):
        random, kind = np.random.default_rng(number), number % 4
        baseline, equal, slower = (synthetic(kind, random, slow) for slow in (0.0, 0.0, SLOWER))
        answers = [slowdown(compare(baseline, run), SLOWER) for run in (equal, slower)]
        print(f"pair {number}, noise {kind}", *(f"  {answer.sentence}" for answer in answers), sep="\n", flush=True)
        yield answers[0].slower, answers[1].slower


def main() -> None:
    """Print the figures, and one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=f"{len(QUICK)} programs, ten pairs")
    parser.add_argument("--programs", help="names, separated by commas; all if left out")
    parser.add_argument("--pairs", type=int, default=40, help="number of pairs of each kind")
    parser.add_argument("--program", help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "JAX_PLATFORMS": "cpu"}
    if options.program:
        print(json.dumps(measure(options.program)))
        return
    names = options.programs.split(",") if options.programs else QUICK if options.quick else [*PROGRAMS]
    with ThreadPoolExecutor(2 if options.quick else 1) as pool:
        reports = [*pool.map(measured, names)]
    judged = [judge(name, report) for name, report in zip(names, reports, strict=True)]
    answers = [*pairs(10 if options.quick else options.pairs)]
    sizes = [len(tp.analysis.Report(report, {}).to_json().encode()) for report in reports]
    sizes += [len(tp.report(tp.sample(name)).to_json().encode()) for name in SAMPLES]
    named = [each["named"] for each in judged if "named" in each]
    last = {
        "named": round(sum(named) / len(named), 3) if named else None,
        "false_alarms": sum(each.get("false_alarm", False) for each in judged),
        "bytes": max(sizes),
        "regressions": sum(slower is True for _, slower in answers) / len(answers),
        "equal": sum(slower is not True for slower, _ in answers) / len(answers),
    }
    if options.quick:
        print("left out:", ", ".join(name for name in PROGRAMS if name not in names))
    print(json.dumps(last))


if __name__ == "__main__":
    main()
