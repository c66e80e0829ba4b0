"""Runs whose numbers are shown, and step time without waits recomputed from their frames."""

from functools import cache

import numpy as np
import polars as pl
from simulate.scenarios import scenario
from simulate.synthetic_runs import synthetic_run

import tpunb as tp
from tpunb.testing import toy_steps

RUNS = {
    "keras_cnn": lambda: tp.steps(tp.sample("keras_cnn")),
    "keras_transformer": lambda: tp.steps(tp.sample("keras_transformer")),
    "toy": lambda: toy_steps("aaabbbz"),
    "clock only": lambda: toy_steps("aaabbb", traced="ffnffp"),
    "one phase": lambda: scenario("60 equal steps").steps,
    "input stalls": lambda: scenario("input stalls").steps,
    "checkpoints": lambda: scenario("checkpoints and evaluation").steps,
    "step times": lambda: scenario("3 step times").steps,
    "outliers": lambda: synthetic_run(1000, 60).steps,
    "hard": lambda: synthetic_run(1000, 60, hard=True).steps,
}


@cache
def phases_of(name):
    return tp.phases(RUNS[name]())


def own(frame):
    """The time of each step without callbacks and its known, or mean, input wait."""
    clock = (pl.col("input_ps").is_not_null() & (pl.col("traced") == "none")).any().over("host", "kind")
    mean = pl.when(~clock).then(pl.col("input_ps").mean().over("host", "kind").round())
    wait = pl.coalesce(pl.col("input_ps").cast(pl.Float64), mean, 0.0).clip(0)
    return frame.select((pl.col("dur_ps") - pl.col("callbacks_ps").fill_null(0) - wait).clip(0)).to_series().to_numpy()


def productive(steps, labels):
    time, kind = own(steps.frame), steps.frame["kind"].fill_null("").to_numpy()
    group = [f"kind {kind[i]}" if label < 0 else f"phase {label}" for i, label in enumerate(labels)]
    usual = {name: np.median(time[[one == name for one in group]]) for name in {*group} if name.startswith("phase")}
    usual |= {f"kind {name}": np.median(time[kind == name]) for name in {*kind.tolist()}}
    median = np.array([usual[name] for name in group])
    return np.where(time > 1.5 * median, median, time)
