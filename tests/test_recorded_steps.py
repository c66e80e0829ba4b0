"""Steps of recorded runs: made of their events as they are loaded, by the rules of today."""

import zipfile
from pathlib import Path

import polars as pl
import pytest

import tpunb as tp
from tpunb.io import parquet
from tpunb.io.run_folder import TABLES
from tpunb.step_stats import recorded_steps, step_fold

CORPUS = Path(__file__).parent / "corpus"


@pytest.fixture
def folder(tmp_path):
    with zipfile.ZipFile(CORPUS / "torch_validates_often.zip") as archive:
        archive.extractall(tmp_path)
    return tmp_path


def record(folder, *tables, **changed):
    """Let tables of the run folder hold something else."""
    for table in tables:
        for path in folder.rglob(f"{table}.parquet"):
            frame = (parquet.scan if table == "ops" else parquet.read)([path], TABLES[table]).lazy().collect()
            path.write_bytes(parquet.pack(frame.with_columns(**changed), TABLES[table]))


def facts(folder):
    steps = tp.steps(tp.load(folder))
    assert steps.full().count > 0
    return steps.frame.select("step", "kind", "rule", "start_ps", "dur_ps", "input_ps", "traced")


def test_steps_that_were_recorded_with_wrong_roles_are_judged_again(folder):
    right = facts(folder)
    record(folder, "ticks", kind=pl.lit("predict"))
    assert facts(folder).equals(right)


def test_steps_that_were_recorded_as_one_are_told_apart_again(folder):
    right = facts(folder)
    record(folder, "ticks", "steps", "ops", step=pl.col("step") // 2)
    again = tp.steps(tp.load(folder))
    columns = "step", "kind", "rule"
    assert again.frame.select(columns).equals(right.select(columns))
    assert again.ops.is_empty()  # what a window measured is of two steps


def test_a_rule_that_changes_changes_the_steps_of_recorded_runs(folder, monkeypatch):
    before = tp.steps(tp.load(folder)).frame
    assert set(before["rule"]) == {"optimizer"}
    monkeypatch.setitem(step_fold.HANDLERS, "update", lambda fold, event: None)
    steps = tp.steps(tp.load(folder))
    assert set(steps.frame["rule"]) == {"gradients"}
    assert "no optimizer is known" in steps.explain(0)


def test_steps_whose_events_are_not_whole_are_as_recorded(folder, monkeypatch):
    record(folder, "ticks", kind=pl.lit("predict"))
    monkeypatch.setattr(recorded_steps, "MOST_NAMES", 1)
    assert set(tp.steps(tp.load(folder)).frame["kind"]) == {"predict"}
