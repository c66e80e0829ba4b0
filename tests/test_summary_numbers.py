"""Every number of the summary, recomputed from the frames of the run."""

import re

import numpy as np
import polars as pl
import pytest
from summary_runs import RUNS, phases_of, productive

import tpunb as tp
from tpunb.testing import toy_steps
from tpunb.text import short_time
from tpunb.widgets import phase_view
from tpunb.widgets.summary import Summary


def cell(value, form, factor=1):
    return "–" if value is None or np.isnan(value) else format(factor * value, form)


@pytest.mark.parametrize("name", RUNS)
def test_the_numbers_of_the_summary_are_those_of_the_frames(name):
    phases = phases_of(name)
    steps = phases.steps
    labels = phases.labels.to_numpy()
    time = productive(steps, labels)
    share = {label: time[labels == label].sum() / time.sum() for label in {*labels.tolist()}}
    table, *tops = phase_view.tables(phases)
    assert len(table["rows"]) == len(share)
    for cells in table["rows"]:
        row = dict(zip(table["columns"], cells, strict=True))
        label = int(row["Id"])
        rows = steps.frame.filter(pl.Series(labels == label))
        timed = rows.filter(pl.col("traced") != "partial")["dur_ps"]
        idle = rows.drop_nulls("idle_ps")
        figures = [f"{rows.height:,}", f"{(rows['traced'] == 'full').sum():,}"]
        if not (rows["traced"] == "full").any():
            figures[1] = "clock only"
        figures += [cell(share[label], ".1f", 100), short_time(rows["dur_ps"].median())]
        figures += [cell(timed.std(ddof=0) / timed.mean(), ".1f", 100)]
        figures += [cell(idle["idle_ps"].sum() / idle["dur_ps"].sum() if idle.height else None, ".1f", 100)]
        columns = ["Steps", "Traced", "Share (%)", "Step", "CV (%)", "Idle (%)"]
        assert [row.get(name, "–") for name in columns] == figures
    real = sorted((part for label, part in share.items() if label >= 0), reverse=True)
    headline = Summary(None, steps, phases).headline
    found = re.search(r"top 3 cover ([\d.]+) % of step time without waits", headline)
    assert found[1] == f"{100 * sum(real[:3]):.1f}"
    assert ("explained variance" in headline) == (len({*phases.fitted}) > 1)
    for top in tops:
        side = top["caption"].split(", ")[-2]
        full = steps.frame.filter(pl.Series(labels == phases.longest.id), pl.col("traced") == "full")
        assert top["caption"].endswith(f"{full.height:,} step{'s'[: full.height != 1]} traced in full")
        ops = steps.ops.filter(pl.col("side") == side).join(full, on=["host", "step"], how="semi")
        sums = ops.group_by(pl.col("op").cast(pl.String)).agg(pl.col("self_ps", "count").sum())
        of = {op: (self_ps, count) for op, self_ps, count in sums.iter_rows()}
        total = sums["self_ps"].sum()
        for op, part, self_ms, calls in top["rows"]:
            self_ps, count = of[op]
            assert (part, self_ms, calls) == (f"{100 * self_ps / total:.1f}", short_time(self_ps), f"{count:,}")


def test_what_was_not_measured_is_not_0():
    phases = tp.phases(toy_steps("aaabbb", traced="fffnnn"))
    frame = phases.steps.frame.with_columns(kind=pl.Series(["train"] * 3 + ["eval"] * 3))
    phases = tp.phases(type(phases.steps)(frame, phases.steps.ops))
    facts = dict(phase_view.describe(phases, 1, {})["facts"]["rows"])
    assert {*facts}.isdisjoint({"Idle", "MXU", "Confidence", "Input wait"})
    assert phases.frame.filter(phase=1).select("input", "input_ps", "idle").row(0) == (None, None, None)
