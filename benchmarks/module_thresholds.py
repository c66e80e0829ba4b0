"""Halve and double each threshold of a module, and print what changes in the recorded corpus.

``python benchmarks/module_thresholds.py MODULE [--only NAME,...] [--entries REGEX]``, such as
``tpunb.analysis.time_line``: thresholds are the numbers in constants of the module, and the fields of its `LIMITS`.
Each variation judges all entries of the corpus anew: it prints the checks of ``tests/judged_runs.py`` that fail and
those that hold by it, and the entries in which an account moves by more than 2 points of run time. The last line is
one JSON object: of each threshold, the number of checks and of entries that either variation changes. One that changes
nothing is to go.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import fields, replace
from functools import partial
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest.mock import patch

sys.path.extend(str(Path(__file__).parents[1] / folder) for folder in ("", "tests"))

import judged_runs
import polars as pl

import tpunb as tp
from tpunb.errors import TpunbError

POINTS = 0.02  # of run time, by which an account moves


def thresholds(module: str) -> dict[str, float]:
    """Return the numbers in constants of a module by name, "LIMITS.name" those of its limits."""
    values = {
        name: value for name, value in vars(import_module(module)).items() if re.fullmatch("_?[A-Z][A-Z_]*", name)
    }
    if limits := values.get("LIMITS"):
        values |= {f"LIMITS.{each.name}": getattr(limits, each.name) for each in fields(limits)}
    return {name: value for name, value in values.items() if type(value) in (int, float)}


def variations(module: str, only: set[str]) -> Iterator[tuple[str, float]]:
    """Yield each threshold with half of its value, and twice."""
    for name, value in thresholds(module).items():
        if not only or name in only:
            yield from ((name, type(value)(value * factor)) for factor in (0.5, 2))


def varied(module: str, name: str, value: float) -> ExitStack:
    """Return a context in which a threshold has another value, in each module that imports it."""
    outer, _, inner = name.rpartition(".")
    name = outer or name
    before: Any = vars(import_module(module))[name]
    after = replace(before, **{inner: value}) if outer else value
    stack = ExitStack()
    for other in [each for title, each in sys.modules.items() if title.startswith("tpunb.")]:
        if vars(other).get(name) is before:
            stack.enter_context(patch.object(other, name, after))
    return stack


def judged(run: Path, truth: dict[str, Any]) -> tuple[dict[str, bool], dict[str, float]]:
    """Return which checks of an entry hold, and the share of each account in run time."""
    try:
        steps = tp.steps(run)
        checks, _ = judged_runs._judged(steps, truth)
        goodput = tp.goodput(steps)
    except TpunbError:
        return {}, {}
    times = goodput.frame.group_by("account").agg(pl.col("time_ps").sum())
    return checks, {account: (time_ps or 0) / max(goodput.wall_ps, 1) for account, time_ps in times.rows()}


def changes(name: str, module: str, only: set[str]) -> list[tuple[str, float, list[str], float]]:
    """Return (threshold, value, checks that change, largest move of an account) of an entry."""
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(judged_runs.CORPUS / f"{name}.zip") as entry:
        entry.extractall(folder)
        truth = json.loads(Path(folder, "truth.json").read_text())
        truth = {key: value for key, value in truth.items() if value is not None}
        found = []
        with warnings.catch_warnings(action="ignore"):
            checks, accounts = judged(Path(folder), truth)
            for threshold, value in variations(module, only):
                with varied(module, threshold, value):
                    others, shares = judged(Path(folder), truth)
                changed = [
                    f"{'+' if others.get(key) else '-'}{name}:{key}" for key in checks if checks[key] != others.get(key)
                ]
                moves = [abs(accounts.get(key, 0) - shares.get(key, 0)) for key in {*accounts, *shares}]
                found.append((threshold, value, changed, max(moves, default=0.0)))
        return found


def main() -> None:
    """Print what each variation changes, in a line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("module")
    parser.add_argument("--only", default="", help="names of thresholds, separated by commas; all if left out")
    parser.add_argument("--entries", default="", help="regular expression of entries; all if left out")
    options = parser.parse_args()
    only = {*filter(None, options.only.split(","))}
    os.environ.setdefault("POLARS_MAX_THREADS", "1")
    names = [name for name in judged_runs.entries() if re.search(options.entries, name)]
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        answers = [*pool.map(partial(changes, module=options.module, only=only), names, chunksize=2)]
    before, summary = thresholds(options.module), dict[str, dict[str, int]]()
    for rows in zip(*answers, strict=True):
        threshold, value = rows[0][:2]
        checks = [check for row in rows for check in row[2]]
        moved = sum(row[3] > POINTS for row in rows)
        print(f"{threshold} {before[threshold]} -> {value}: {moved} entries moved; {' '.join(checks) or 'no check'}")
        sums = summary.setdefault(threshold, {"checks": 0, "moved": 0})
        sums |= {"checks": sums["checks"] + len(checks), "moved": sums["moved"] + moved}
        summary[threshold] = sums
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
