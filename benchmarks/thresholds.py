"""Halve and double each threshold, and print what changes in the recorded corpus.

``python benchmarks/thresholds.py [--only REGEX] [--entries REGEX]``: thresholds are the numbers in constants of
``tpunb.analysis``, ``tpunb.step_stats``, ``tpunb.frames`` and ``tpunb.cluster``, the fields of their `LIMITS`, and the
numbers in conditions of causes. A change is another cause, account or remedy, another list of advice, an account that
moves by more than 2 points of run time, other kinds of steps, or a check of ``tests/judged_runs.py`` that fails (-) or
holds (+) by it. Many are varied at once, and apart where something changes. The last line is one JSON object: how many
thresholds there are, and how many of them change nothing: these are to go.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import fields, replace
from functools import partial
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from pkgutil import iter_modules
from types import FunctionType
from typing import Any
from unittest.mock import patch
from weakref import WeakKeyDictionary

sys.path.extend(str(Path(__file__).parents[1] / folder) for folder in ("", "tests"))

import judged_runs
import polars as pl

import tpunb as tp
from tpunb.analysis import advice, causes
from tpunb.analysis.verdict import verdict

FACTORS = 0.5, 2.0
POINTS = 0.02  # of run time, by which an account moves
OF_STEPS = "step_stats", "frames", "cluster"  # packages whose thresholds decide what steps and phases are
Variation = tuple[str, float]


def thresholds() -> dict[str, float]:
    """Return each threshold by its name: ``package.module.NAME``, ``package.limits.LIMITS.name``, ``T101 path``."""
    found: dict[str, float] = {}
    for package in ("analysis", *OF_STEPS):
        for module in iter_modules(import_module(f"tpunb.{package}").__path__):
            title = f"{package}.{module.name}"
            names = vars(import_module(f"tpunb.{title}"))
            own = re.findall(r"^[A-Za-z_][A-Z_, ]*(?::[^=\n]*)? = ", Path(names["__file__"]).read_text(), re.M)
            for name in re.findall(r"\b_?[A-Z][A-Z_]+\b", " ".join(own)):
                if type(names.get(name)) in (int, float):
                    found[f"{title}.{name}"] = names[name]
                elif name == "LIMITS":
                    found |= {
                        f"{title}.LIMITS.{each.name}": getattr(names[name], each.name) for each in fields(names[name])
                    }
    found |= {f"{cause.id} {path}": value for cause in causes.CAUSES for path, value in _literals(_tree(cause.when))}
    return {name: value for name, value in found.items() if type(value) in (int, float) and value not in (0, 1)}


def _tree(expression: pl.Expr) -> Any:
    return json.loads(expression.meta.serialize(format="json"))


def _literals(node: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """Yield the path of each number in a serialised expression, and the number."""
    pairs = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in pairs:
        yield from _literals(value, f"{path}/{key}")
    if isinstance(node, float):
        yield path, node


def _scaled(expression: pl.Expr, path: str, factor: float) -> pl.Expr:
    """Return an expression with the number at a path times a factor."""
    tree = _tree(expression)
    *outer, last = [int(key) if key.isdigit() else key for key in path.split("/")[1:]]
    node = tree
    for key in outer:
        node = node[key]
    node[last] *= factor
    return pl.Expr.deserialize(io.StringIO(json.dumps(tree)), format="json")


@contextmanager
def varied(variations: list[Variation]) -> Iterator[None]:
    """Give thresholds other values, in each module that imports them."""
    modules = [module for title, module in sys.modules.items() if title.startswith("tpunb.")]
    with ExitStack() as stack:
        for name, factor in variations:
            if " " in name:
                cause_id, path = name.split(" ")
                table = tuple(
                    replace(cause, when=_scaled(cause.when, path, factor)) if cause.id == cause_id else cause
                    for cause in advice.CAUSES
                )
                stack.enter_context(patch.object(advice, "CAUSES", table))
                continue
            title, _, inner = name.partition(".LIMITS.")
            title, _, constant = (f"{title}.LIMITS" if inner else title).rpartition(".")
            before = vars(sys.modules[f"tpunb.{title}"])[constant]
            value = getattr(before, inner) if inner else before
            value = type(value)(value * factor)
            after = replace(before, **{inner: value}) if inner else value
            for module in modules:
                if vars(module).get(constant) is before:
                    stack.enter_context(patch.object(module, constant, after))
        yield


def _forget() -> None:
    """Empty what is memoised of steps and phases."""
    for title, module in list(sys.modules.items()):
        if title.startswith("tpunb."):
            for function in vars(module).values():
                for cell in function.__closure__ or () if isinstance(function, FunctionType) else ():
                    if isinstance(cell.cell_contents, WeakKeyDictionary):
                        cell.cell_contents.clear()


def judged(load: Callable[[], tp.Phases], truth: dict[str, Any]) -> tuple[Any, dict[str, float], dict[str, bool]]:
    """Return what is decided of an entry, the share of each account in run time, and which checks hold."""
    _forget()
    try:
        phases = load()
        if phases.steps.wall is None:
            return "no record of time", {}, {}
        goodput, answer, ranked = tp.goodput(phases), verdict(phases), advice.candidates(phases)
        checks, _ = judged_runs.checked(phases, truth)
    except Exception as error:  # noqa: BLE001 - a value that no code expects changes everything
        return str(error), {}, {}
    kinds = dict(sorted(phases.steps.frame["kind"].value_counts().rows()))
    decided = (answer and (answer.cause, answer.account, answer.action, answer.healthy), ranked["id"].to_list(), kinds)
    times = goodput.frame.group_by("account").agg(pl.col("time_ps").sum()).rows()
    return decided, {account: (time or 0) / max(goodput.wall_ps, 1) for account, time in times}, checks


def changes(name: str, variations: list[Variation]) -> list[tuple[Variation, str]]:
    """Return the variations that change an entry, and how."""
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(judged_runs.CORPUS / f"{name}.zip") as entry:
        entry.extractall(folder)
        truth = {key: value for key, value in json.loads(Path(folder, "truth.json").read_text()).items() if value}
        phases: list[tp.Phases] = []

        def again() -> tp.Phases:
            return tp.phases(tp.steps(folder))

        def once() -> tp.Phases:
            return phases[0]

        def how(load: Callable[[], tp.Phases], part: list[Variation]) -> str:
            with varied(part):
                decided, shares, checks = judged(load, truth)
            changed = [f"{'-+'[checks[key]]}{key}" for key in checks if checks[key] != usual[2].get(key)]
            moves = [abs(usual[1].get(key, 0) - shares.get(key, 0)) for key in {*usual[1], *shares}]
            if decided != usual[0] and not changed:
                changed.append("decided" if decided[0] != usual[0][0] else "listed")
            return " ".join([*changed, *["moved"] * (max(moves, default=0.0) > POINTS)])

        def apart(load: Callable[[], tp.Phases], part: list[Variation]) -> Iterator[tuple[Variation, str]]:
            if not part or not (what := how(load, part)):
                return
            if len(part) == 1:
                yield part[0], what
            else:
                yield from apart(load, part[: len(part) // 2])
                yield from apart(load, part[len(part) // 2 :])

        found: list[tuple[Variation, str]] = []
        with warnings.catch_warnings(action="ignore"):
            usual = judged(again, truth)
            for load in (again, once):
                if load is once and usual[1]:
                    phases.append(again())
                for factor in FACTORS:
                    part = [each for each in variations if each[0].startswith(OF_STEPS) == (load is again)]
                    part = [each for each in part if each[1] == factor]
                    for start in range(0, len(part) if usual[1] or load is again else 0, 12):
                        found += apart(load, part[start : start + 12])
        return found


def main() -> None:
    """Print what each variation changes, in a line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="regular expression of thresholds; all if left out")
    parser.add_argument("--entries", default="", help="regular expression of entries; all if left out")
    options = parser.parse_args()
    os.environ.setdefault("POLARS_MAX_THREADS", "1")
    names = [name for name in judged_runs.entries() if re.search(options.entries, name)]
    values = {name: value for name, value in thresholds().items() if re.search(options.only, name)}
    variations = [(name, factor) for factor in FACTORS for name in values]
    changed: dict[Variation, list[str]] = {}
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        found = pool.map(partial(changes, variations=variations), names, chunksize=2)
        for name, rows in zip(names, found, strict=True):
            for variation, what in rows:
                changed.setdefault(variation, []).append(f"{name}: {what}")
    for name, value in values.items():
        for factor in FACTORS:
            entries = changed.get((name, factor), [])
            print(f"{name} {value:g} x {factor:g}: {len(entries)} entries; {'; '.join(entries[:4])}")
    idle = [name for name in values if not any((name, factor) in changed for factor in FACTORS)]
    print(json.dumps({"entries": len(names), "thresholds": len(values), "without effect": idle}))


if __name__ == "__main__":
    main()
