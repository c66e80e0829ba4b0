"""What each threshold of the analysis changes over the corpus, when halved and doubled.

``python benchmarks/thresholds.py`` judges every entry of ``tests/corpus`` for each of them, which takes half an hour of
two cores; ``--quick`` every 24th entry for the causes alone. One that changes no verdict is without effect there.
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
ROOMS = ("advice", "verdict", "metrics")  # modules with thresholds of their own, beside the conditions of causes
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


def thresholds(*, causes_alone):
    """Return the name and value of each threshold: of conditions of causes, and of constants of modules."""
    from tpunb.analysis.causes import CAUSES

    found = {}
    for cause in CAUSES:
        for path, value in literals(json.loads(cause.when.meta.serialize(format="json"))):
            found["causes", cause.id, path] = value
    for room in () if causes_alone else ROOMS:
        module = __import__(f"tpunb.analysis.{room}", fromlist=["_"])
        for name, value in vars(module).items():
            if name.isupper() and isinstance(value, int | float) and not isinstance(value, bool):
                found[room, name, ()] = value
    return found


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

        def verdicts(*, anew=False):
            of = {name: replace(run, steps=replace(run.steps)) if anew else run for name, run in runs.items()}
            return {name: _short(module.verdict(phases)) for name, phases in of.items()}

        usual, table = verdicts(), causes.CAUSES
        for (room, name, path), factor in varied:
            varies = advice if room == "causes" else sys.modules[f"tpunb.analysis.{room}"]
            attribute, value = ("CAUSES", table) if room == "causes" else (name, getattr(varies, name))
            if room == "causes":
                new = tuple(
                    replace(cause, when=scaled(cause.when, path, factor)) if cause.id == name else cause
                    for cause in table
                )
            else:
                new = type(value)(value * factor)
            setattr(varies, attribute, new)
            found = verdicts(anew=room == "metrics")  # of which sums are memoised
            setattr(varies, attribute, value)
            changed[room, name, path, factor] = [run for run in runs if found[run] != usual[run]]
    return changed


def _short(answer):
    return None if answer is None else (answer.cause, answer.account, answer.action, answer.healthy)


def main():
    """Print each threshold with the entries that change, and as JSON how many thresholds change none."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    names = sorted(path.stem for path in CORPUS.glob("*.zip"))[:: 24 if quick else 1]
    values = thresholds(causes_alone=quick)
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
        print(f"{key[0]:8} {key[1]:24} {value:8.3g}  halved {len(halved):3}  doubled {len(doubled):3}  {some}")
    print(json.dumps({"entries": len(names), "thresholds": len(values), "without effect": without}))


if __name__ == "__main__":
    main()
