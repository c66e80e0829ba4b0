"""What the runs and times that come with the package show: computed once for all tests, in 15 seconds."""

import os
from functools import cache

import once
import polars as pl

import tpunb as tp
from tpunb.studies.paper import WORKLOADS, curves, gains, recorded, recorded_balances

NAMES = [name for name, each in WORKLOADS.items() if not each.reduced]
METHODS = {"OLS": tp.OLS(0.7), "DBSCAN": tp.DBSCAN.paper(), "k-means": tp.KMeans.paper()}

balances = cache(recorded_balances)


def _frame(name, make):
    """Return a frame that is made once for all tests."""
    if once.FOLDER not in os.environ:
        return make()
    folder = once.made(name, lambda folder: make().write_parquet(folder / "frame.parquet"))
    return pl.read_parquet(folder / "frame.parquet")


@cache
def measured():
    """Return the curves and the gains of the runs at balances."""
    return _frame("curves", lambda: curves(balances())), _frame("gains", lambda: gains(balances()))


@cache
def phases():
    """Return what the paper states of the phases of each run of Table I by each of its methods."""

    def make():
        rows = []
        for name in NAMES:
            steps = recorded(name).steps
            for method, options in METHODS.items():
                found = tp.phases(steps, options)
                sweep = found.sweeps.get("threshold")
                at_one = None if sweep is None else sweep.filter(threshold=1.0)["phases"].item()
                rows.append((name, method, len(found), found.coverage(3), found.noise, at_one))
        return pl.DataFrame(rows, schema=["run", "method", "phases", "coverage", "noise", "at_one"], orient="row")

    return _frame("phases", make)


@cache
def ranked(features="program"):
    """Return how well the recorded layouts of each family are ranked by a cost model of the others."""
    evaluate = tp.studies.ranking.CostModel(features).evaluate
    return _frame(f"ranked-{features}", lambda: evaluate(tp.studies.ranking.recorded(), by="family").frame)
