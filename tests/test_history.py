"""Runs over time: a row per run of a folder, its chart, and the magic that shows both."""

import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest
from chart_checks import EVIL, texts_of
from stand_in import StandIn

import tpunb as tp
from tpunb import charts, schema
from tpunb.charts import render
from tpunb.errors import ProfileNotFound, TpunbError
from tpunb.magic import History

SAMPLE = Path(__file__).parents[1] / "datasets" / "sample_profiles" / "keras_cnn"
START = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)


def copy(to, **facts):
    """Copy the sample to a folder, with other facts."""
    shutil.copytree(SAMPLE, to)
    path = to / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **facts}))


def frame(*rows):
    """Return RUNS of (name, program, goodput, step in ps), a day apart."""
    columns = ("name", "program", "goodput", "step_ps")
    facts = [
        {**dict.fromkeys(schema.RUNS), "started": START + timedelta(days=n), **dict(zip(columns, row, strict=True))}
        for n, row in enumerate(rows)
    ]
    return pl.DataFrame(facts, schema=schema.RUNS)


def test_runs_at_any_depth_are_rows_in_order_of_their_starts(tmp_path):
    copy(tmp_path / "late", origin_ns=2_000_000_000_000_000_000)
    copy(tmp_path / "a" / "b" / "early", origin_ns=1_000_000_000_000_000_000, name="late")
    runs = tp.runs(tmp_path)
    assert runs.schema == schema.RUNS
    assert runs["name"].to_list() == ["a/b/early", "late"]
    assert runs["started"].to_list() == [
        datetime(2001, 9, 9, 1, 46, 40, tzinfo=UTC),
        datetime(2033, 5, 18, 3, 33, 20, tzinfo=UTC),
    ]
    row = runs.row(0, named=True)
    profile = tp.load(SAMPLE)
    assert row["program"].startswith("Sequential of 2 Conv2D")
    assert (row["device"], row["wall_ps"], row["steps"], row["phases"]) == ("CPU", profile.span_ps, 480, 3)
    assert row["goodput"] == pytest.approx(tp.goodput(profile).ratio)
    assert row["step_ps"] == tp.steps(profile).frame["dur_ps"].median()


def test_a_run_is_a_row_of_its_own_name(tmp_path):
    copy(tmp_path / "x", name="mine")
    assert tp.runs(tmp_path / "x")["name"].to_list() == ["mine"]
    assert tp.runs(str(tmp_path / "x") + "/")["name"].to_list() == ["mine"]


def test_a_run_without_steps_or_facts_has_nulls(tmp_path):
    with tp.capture(tmp_path / "empty", source=StandIn()):
        pass
    (row,) = tp.runs(tmp_path).iter_rows(named=True)
    assert row["steps"] == 0
    assert [row[name] for name in ("program", "goodput", "step_ps", "phases")] == [None] * 4
    assert row["wall_ps"] > 0


def test_damaged_and_foreign_folders_are_left_out_with_a_warning(tmp_path):
    copy(tmp_path / "good")
    copy(tmp_path / "broken")
    (tmp_path / "broken" / "run.json").write_bytes(b"no JSON")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "run.json").write_text('{"id": 3}')
    (tmp_path / "loose").write_text("a file")
    with pytest.warns(UserWarning, match="2 runs left out: broken: .*run.json.*; other: .*no 'tpunb'"):
        assert tp.runs(tmp_path)["name"].to_list() == ["good"]


def test_a_folder_without_runs_is_named(tmp_path):
    with pytest.raises(ProfileNotFound, match="contains no run"):
        tp.runs(tmp_path)
    with pytest.raises(ProfileNotFound, match="nothing is at"):
        tp.runs(tmp_path / "nowhere")


def test_runs_behind_a_url_are_read():
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.put(str(SAMPLE), "/history/deep/one", recursive=True)
    try:
        assert tp.runs("memory://history")["name"].to_list() == ["deep/one"]
    finally:
        memory.rm("/history", recursive=True)


# -- its chart --------------------------------------------------------------------------------------------------------


def points(chart):
    spec = chart.to_dict()
    return [spec["datasets"][panel["data"]["name"]] for panel in spec["vconcat"]]


def test_each_run_is_a_point_of_goodput_and_of_step_time():
    chart = charts.history(frame(("a", "net", 0.5, 2_000_000_000), ("b", "net", None, 4_000_000_000)))
    for rows in points(chart):
        assert [(row["run"], row["goodput"], row["step_ms"]) for row in rows] == [("a", 50.0, 2.0), ("b", None, 4.0)]
    assert "a: 2026-01-02 03:04 UTC, net, goodput 50 %, step time 2 ms" in chart.description
    assert "2 runs, 2026-01-02 03:04 UTC to 2026-01-03 03:04 UTC" in texts_of(chart)
    assert render.png(chart)


def test_runs_never_share_a_name_nor_programs_a_line():
    rows = points(charts.history(frame(*(("run", "net" * 40 + end + "net" * 40, 0.5, 10**9) for end in "aab"))))[0]
    assert [row["run"] for row in rows] == ["run", "run (2)", "run (3)"]
    first, second, third = (row["program"] for row in rows)
    assert first == second != third


def test_names_are_text():
    runs = frame(*((name, name, 0.5, 10**9) for name in EVIL))
    texts_of(charts.history(runs))  # which asserts it
    assert "<script" not in History(runs)._repr_mimebundle_()["text/html"]


def test_what_is_no_frame_of_runs_is_refused():
    with pytest.raises(TypeError, match="must be a frame of runs"):
        charts.history("runs/")
    with pytest.raises(TpunbError, match="no run to draw"):
        charts.history(pl.DataFrame(schema=schema.RUNS))
