"""Runs that differ from each other in one thing, for comparisons."""

from dataclasses import replace

import polars as pl

import tpunb as tp
from tpunb.testing import toy_steps


def by_letter(pattern, **more):
    """Toy phases, one a letter: phase 0 is the letter a."""
    steps = toy_steps(pattern, **more)
    return tp.phases(steps, lambda full: [ord(pattern[step]) - ord("a") for step in full.frame["step"]])


def stretched(run, factor):
    """The same phases, their steps and operations `factor` times as long."""
    times = (pl.col("^.*_ps$") * factor).round().cast(pl.Int64)
    steps = replace(run.steps, frame=run.steps.frame.with_columns(times), ops=run.steps.ops.with_columns(times))
    return replace(run, steps=steps)


EVERY = pl.lit(True)


def renamed(run, of=EVERY):
    """The same phases, their operations of other names."""
    name = pl.when(of).then(pl.format("other_{}", "op")).otherwise(pl.col("op").cast(pl.String))
    return replace(run, steps=replace(run.steps, ops=run.steps.ops.with_columns(op=name)))


def metadata_of(run, **facts):
    return replace(
        run, steps=replace(run.steps, metadata={fact.replace("_", " "): word for fact, word in facts.items()})
    )


def matched(comparison):
    return comparison.frame.select("phase_a", "phase_b").sort("phase_a").rows()
