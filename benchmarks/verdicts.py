"""Compare the first sentence of the verdict with the cause of a waste that was put into a program, or with none.

``python benchmarks/verdicts.py [--quick] [--programs NAME,...] [--busy]``: sixty programs of `programs.wastes`, in JAX,
TensorFlow with Keras, and PyTorch, each in a process of its own, after its imports; those with a waste run again
without it. ``--busy`` runs them beside a process that computes; ``--quick`` runs ten of them, two at a time, once. The
last line is one JSON object:

``cause``
    Share of the programs with a waste whose first sentence or action names it: the account, and words for the cause.
``amount``
    Share of the programs with a waste in one account in which that account is within a tenth of run time of it: of what
    the program measures, without what tracing adds (its blocks within a window take the median of the others), or,
    compared with the repaired program, of the difference in run time.
``remedy``
    Share of the programs with a promised saving in which the repaired program saves at least half of it; null if none.
``false_alarms``
    Number of programs without a waste that are not called healthy, of those that ran.
``deviation``
    Largest share of run time in "step time deviation" without a cause, of all programs.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.extend(map(str, Path(__file__).parents[:2]))  # whichever way this file is run

import polars as pl

import tpunb as tp
from programs.wastes import PROGRAMS, jax_loops, keras_fits, torch_loops, wasted_s  # noqa: F401
from tpunb.analysis.verdict import verdict

QUICK = (
    *("jax_sleeps_in_each_step", "jax_does_nothing_but_sleep", "jax_jit_in_each_step", "jax_reports_over_the_network"),
    *("torch_slow_dataset", "torch_reads_csv_rows", "torch_asks_another_process", "torch_waits_for_a_lock"),
    *("torch_healthy_recurrent", "keras_slow_callback"),
)


def warm_up(framework: str) -> None:
    """Import a framework, and what it imports when it is used first."""
    module = importlib.import_module("keras" if framework == "tensorflow" else framework)
    if framework == "jax":
        module.numpy.ones(1)
    elif framework == "torch":
        module.optim.Adam([module.ones(1)])


def windows_s(run: Path) -> list[tuple[float, float]]:
    """Return begin and end of the windows of a run in seconds since 1970."""
    origin_s = json.loads(Path(run, "run.json").read_text())["origin_ns"] / 1e9
    windows = tp.load(run).stored.wall.spans.filter(account="profiler", detail="window")
    begins_s = origin_s + windows["start_ps"] / 1e12
    return [*zip(begins_s, begins_s + windows["dur_ps"] / 1e12, strict=True)]


def measure(name: str, repaired: bool) -> dict[str, Any]:
    """Capture a program in this process; return its verdict and its times."""
    each = PROGRAMS[name]
    warm_up(name.partition("_")[0])
    with tempfile.TemporaryDirectory() as folder:
        with tp.capture(Path(folder, "run"), keep="none") as run:
            each.train(run, repaired)
        phases, windows = tp.phases(tp.load(Path(folder, "run"))), windows_s(Path(folder, "run"))
    answer, goodput = verdict(phases), tp.goodput(phases)
    unnamed = goodput.frame.filter(pl.col("account") == "step time deviation", pl.col("detail").is_null())
    return {
        "sentence": str(answer),
        "account": answer.account if answer else None,
        "promised_s": (answer.saves_ps or 0) / 1e12 if answer else 0.0,
        "wall_s": (goodput.wall_ps - goodput.time_ps("profiler")) / 1e12,
        "account_s": sum(goodput.time_ps(account) for account in each.accounts) / 1e12,
        "wasted_s": wasted_s(windows),
        "deviation": float(unnamed["time_ps"].sum()) / goodput.wall_ps,
    }


def compare(name: str, spoiled: dict[str, Any], repaired: dict[str, Any] | None) -> dict[str, Any]:
    """Return which figures of a program are right, and print them."""
    each = PROGRAMS[name]
    named = re.search(each.words, spoiled["sentence"]) and (not each.accounts or spoiled["account"] in each.accounts)
    figures: dict[str, Any] = {"deviation": round(spoiled["deviation"], 3)}
    if each.words:
        figures["cause"] = bool(named)
    else:
        figures["healthy"] = spoiled["sentence"].startswith("Healthy")
    times = f"of {spoiled['wall_s']:.2f} s"
    if each.accounts and (each.measures or repaired):
        truth_s = spoiled["wasted_s"] if each.measures else spoiled["wall_s"] - repaired["wall_s"]
        account_s = spoiled["account_s"] - (0.0 if each.measures else repaired["account_s"])
        figures["amount"] = abs(account_s - truth_s) <= 0.1 * spoiled["wall_s"]
        times = f"wasted {truth_s:.2f}, account {account_s:.2f} {times}"
    if repaired:
        saved_s = spoiled["wall_s"] - repaired["wall_s"]
        if spoiled["promised_s"] > 0:
            figures["remedy"] = saved_s >= spoiled["promised_s"] / 2
        times = f"promised {spoiled['promised_s']:.2f}, saved {saved_s:.2f}, {times}"
    print(f"{name}: {', '.join(f'{key} {value}' for key, value in figures.items())}; {times}")
    print(f"  {spoiled['sentence']}", flush=True)
    return figures


def measured(name: str, *options: str) -> dict[str, Any]:
    """Return what a program measures in a process of its own."""
    command = [sys.executable, __file__, "--program", name, *options]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()[-1])


def main() -> None:
    """Print the comparison, and one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=f"{len(QUICK)} of the programs, none repaired")
    parser.add_argument("--programs", default=",".join(PROGRAMS), help="names, separated by commas")
    parser.add_argument("--busy", action="store_true", help="beside a process that computes")
    parser.add_argument("--program", help=argparse.SUPPRESS)
    parser.add_argument("--repaired", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "JAX_PLATFORMS": "cpu"}
    if options.program:
        print(json.dumps(measure(options.program, options.repaired)))
        return
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if options.busy else None
    done = []
    try:
        if options.quick:  # most of them sleep
            with ThreadPoolExecutor(2) as pool:
                for name, spoiled in zip(QUICK, pool.map(measured, QUICK), strict=True):
                    done.append(compare(name, spoiled, None))
        else:
            for name in options.programs.split(","):
                repaired = measured(name, "--repaired") if PROGRAMS[name].words else None
                done.append(compare(name, measured(name), repaired))
    finally:
        if busy is not None:
            busy.kill()
            busy.wait()
    shares = {key: [each[key] for each in done if key in each] for key in ("cause", "amount", "remedy")}
    last = {key: round(sum(values) / len(values), 3) if values else None for key, values in shares.items()}
    last["false_alarms"] = sum(not each["healthy"] for each in done if "healthy" in each)
    last["deviation"] = max(each["deviation"] for each in done)
    print(json.dumps(last))


if __name__ == "__main__":
    main()
