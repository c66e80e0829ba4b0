"""Halve and double each threshold in the conditions of causes, and print which verdicts change in the corpus.

``python benchmarks/cause_thresholds.py`` judges every entry of ``tests/corpus`` for each of them; ``--quick`` every
24th. One that changes no verdict is without effect there. Constants of modules: ``benchmarks/module_thresholds.py``.
"""

import argparse
import io
import json
import os
import sys
import tempfile
import warnings
import zipfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

CORPUS = Path(__file__).parents[1] / "tests" / "corpus"
FACTORS = (0.5, 2.0)


def literals(node, path=()):
    """Yield the path of each number in a serialised expression, and the number."""
    if isinstance(node, dict):
        for key, value in node.items():
            yield from literals(value, (*path, key))
    elif isinstance(node, list):
        for key, value in enumerate(node):
            yield from literals(value, (*path, key))
    elif isinstance(node, float) and node not in (0.0, 1.0):
        yield path, node


def scaled(expression, path, factor):
    """Return an expression with the number at a path times a factor."""
    import polars as pl

    tree = json.loads(expression.meta.serialize(format="json"))
    node = tree
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] *= factor
    return pl.Expr.deserialize(io.StringIO(json.dumps(tree)), format="json")


def thresholds():
    """Return the value of each threshold by the id of its cause and its path there."""
    from tpunb.analysis.causes import CAUSES

    conditions = {cause.id: json.loads(cause.when.meta.serialize(format="json")) for cause in CAUSES}
    return {(name, path): value for name, condition in conditions.items() for path, value in literals(condition)}


def judged(names, varied):
    """Return the verdicts of entries: of each threshold and factor those that are not the one without."""
    import tpunb as tp
    from tpunb.analysis import advice, causes
    from tpunb.errors import TpunbError

    module = sys.modules["tpunb.analysis.verdict"]
    module.candidates = advice.candidates.__wrapped__  # which is memoised
    runs, changed = {}, {}
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(action="ignore"):
        for name in names:
            with zipfile.ZipFile(CORPUS / f"{name}.zip") as entry:
                entry.extractall(Path(folder, name))
            try:
                runs[name] = tp.phases(Path(folder, name))
                tp.goodput(runs[name])
            except TpunbError:  # a run without steps
                runs.pop(name, None)

        def verdicts():
            return {name: _short(module.verdict(phases)) for name, phases in runs.items()}

        usual, table = verdicts(), causes.CAUSES
        for (name, path), factor in varied:
            advice.CAUSES = tuple(
                replace(cause, when=scaled(cause.when, path, factor)) if cause.id == name else cause for cause in table
            )
            found = verdicts()
            changed[name, path, factor] = [run for run in runs if found[run] != usual[run]]
        advice.CAUSES = table
    return changed


def _short(answer):
    return None if answer is None else (answer.cause, answer.account, answer.action, answer.healthy)


def main():
    """Print each threshold with the entries that change, and as JSON how many thresholds change none."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    names = sorted(path.stem for path in CORPUS.glob("*.zip"))[:: 24 if quick else 1]
    values = thresholds()
    varied = [(key, factor) for key in values for factor in FACTORS]
    os.environ.setdefault("POLARS_MAX_THREADS", "1")
    changed = {}
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        for part in pool.map(judged, (names[0::2], names[1::2]), (varied, varied)):
            for key, runs in part.items():
                changed.setdefault(key, []).extend(runs)
    without = 0
    for key, value in values.items():
        halved, doubled = (changed[(*key, factor)] for factor in FACTORS)
        without += not halved and not doubled
        some = ", ".join([*halved, *doubled][:3])
        print(f"{key[0]:8} {value:8.3g}  halved {len(halved):3}  doubled {len(doubled):3}  {some}")
    print(json.dumps({"entries": len(names), "thresholds": len(values), "without effect": without}))


if __name__ == "__main__":
    main()
