"""Every number that the explorer and the advice show, recomputed from the frames of the run."""

import re

import numpy as np
import polars as pl
import pytest
from summary_runs import RUNS, phases_of, productive

import tpunb as tp
from tpunb.analysis.advice import candidates
from tpunb.text import duration, percent, short_time
from tpunb.widgets import phase_view

NUMBER = re.compile(r"[\d.,]+ (?:%|s|ms|µs|ns|min|h)")


def ratio(rows, column):
    """The share of the steps' time, of those that know it."""
    known = rows.drop_nulls(column).filter(pl.col("dur_ps") > 0)
    return None if known.is_empty() else known[column].sum() / known["dur_ps"].sum()


@pytest.mark.parametrize("name", RUNS)
def test_the_facts_of_a_phase_are_those_of_the_frames(name):
    phases = phases_of(name)
    steps = phases.steps
    labels = phases.labels.to_numpy()
    time = productive(steps, labels)
    for label in sorted({*labels.tolist()}):
        facts = dict(phase_view.describe(phases, label, {})["facts"]["rows"])
        rows = steps.frame.filter(pl.Series(labels == label))
        full = rows.filter(pl.col("traced") == "full")
        whole = rows.filter(pl.col("traced") != "partial")["dur_ps"]
        assert facts.pop("Steps") == f"{rows.height:,} ({full.height:,} traced in full)"
        share = time[labels == label].sum() / time.sum()
        without, whole_time = short_time(time[labels == label].sum()), short_time(rows["dur_ps"].sum())
        assert facts.pop("Time") == f"{without} without waits, {whole_time} with them"  # the base of the share, too
        assert facts.pop("Share") == f"{percent(share, 1)} of step time without waits"
        assert facts.pop("Step") == f"{short_time(rows['dur_ps'].median())} (median)"
        variation = whole.std(ddof=0) / whole.mean()
        assert facts.pop("Variation") == f"{percent(variation, None)} of mean step time"
        idle, waited = ratio(rows, "idle_ps"), ratio(rows, "input_ps")
        assert facts.pop("Idle", None) == (None if idle is None else f"{percent(idle, None)} of step time")
        assert facts.pop("Input wait", None) == (None if waited is None else f"{percent(waited, None)} of step time")
        drift, confidence = phases.frame.filter(phase=label).select("drift", "confidence").row(0)
        by_first = None if drift is None else f"{100 * drift:+.0f} % of step time, last tenth of steps by first"
        assert facts.pop("Drift", None) == by_first
        assert facts.pop("Confidence", None) == (None if confidence is None else f"{confidence:.2f} of 1")
        step, took = re.fullmatch(r"step ([\d,]+), (.*)", facts.pop("Representative")).groups()
        chosen = full.filter(step=int(step.replace(",", "")))
        assert short_time(chosen["dur_ps"].item()) == took
        assert facts == {}


@pytest.mark.parametrize("name", RUNS)
def test_the_numbers_of_advice_are_those_of_the_frames(name):
    phases = phases_of(name)
    steps = phases.steps
    goodput = tp.goodput(phases) if steps.wall is not None else None
    all_ps = steps.frame["dur_ps"].sum()
    labels = phases.labels.to_numpy()
    wasted_ps = dict(candidates(phases).filter(pl.col("phase").is_null()).select("id", "wasted_ps").rows())
    for row in tp.advise(phases).iter_rows(named=True):
        saved = duration(row["saves_ps"])
        if row["phase"] is None:
            assert f" took {duration(wasted_ps[row['id']])} of {duration(goodput.wall_ps)} " in row["sentence"]
            assert row["saves_ps"] <= wasted_ps[row["id"]] <= goodput.frame["time_ps"].max()
            continue
        subject, sentence = re.split(r"(?<=time)\. ", row["sentence"], maxsplit=1)
        rows = steps.frame.filter(pl.Series(labels == row["phase"]))
        full = rows.filter(pl.col("traced") == "full")
        assert subject.endswith(f" could save up to {saved} of {duration(all_ps)} step time")
        assert row["saves_ps"] <= rows["dur_ps"].sum()
        shown = sentence.split(" of the phase's step time")[0].split()[-2:-1]
        if row["rule"] == "input":
            parts = [full[f"{part}_ps"].fill_null(0).to_numpy() for part in ("infeed", "input", "idle")]
            idle = parts[2] if full["idle_ps"].null_count() == 0 else full["dur_ps"].to_numpy()
            waits = parts[0] + np.minimum(np.maximum(parts[1] - parts[0], 0), idle)
            assert shown == [f"{100 * waits.sum() / full['dur_ps'].sum():.3g}"]
        elif row["rule"] == "idle":
            assert float(shown[0]) <= 100 * full["idle_ps"].sum() / full["dur_ps"].sum() + 0.05
            assert float(shown[0]) >= 2
        elif row["rule"] == "compile":
            firsts = steps.frame.filter(pl.int_range(pl.len()).over("kind") == 0)
            firsts = firsts.join(rows, on=["host", "step"], how="semi")
            assert sentence == f"Compilation takes {short_time(firsts['compile_ps'].sum())}."
        elif row["rule"] == "stall":
            mean_ps = full["dur_ps"].mean()
            assert f"but take {short_time(mean_ps)} instead of" in sentence
        else:
            assert row["rule"] in {"checkpoint", "summary"}, row["rule"]
