"""The chart of a pipeline: workers by stage, and the chain of one step."""

import json
from dataclasses import replace
from itertools import pairwise

import polars as pl
import pytest
from pod_jobs import job
from simulate.pipeline import Pipeline

import tpunb as tp
from tpunb import charts
from tpunb.charts import render
from tpunb.errors import TpunbError


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    path = tmp_path_factory.mktemp("pipeline") / "job.parquet"
    Pipeline(worker={(1, 2): 1.6}, steps=5).table().write_parquet(path)
    return tp.hosts(path)


def tables(chart):
    spec = chart.to_dict()
    return [spec["datasets"][part["data"]["name"]] for part in spec["vconcat"]]


def test_cells_are_the_slowdown_by_each_worker(found):
    chart = charts.pipeline(found)
    cells = {(row["stage"], row["rank"]): row for row in tables(chart)[0]}
    assert len(cells) == 12
    assert max(cells, key=lambda place: cells[place]["slowdown"]) == (1, 2)
    assert cells[1, 2]["about"] == f"stage 1, data-parallel rank 2: {cells[1, 2]['shown']}"
    worker = found.what_if.filter(part="worker").row(0, named=True)
    assert cells[1, 2]["slowdown"] == pytest.approx(worker["slowdown"], abs=1e-4)
    assert "cause: worker" in chart.to_dict()["title"]["subtitle"][0]


def test_the_chain_is_that_of_a_step_without_gaps(found):
    rows = tables(charts.pipeline(found, step=3))[1]
    chain = found.critical.filter(step=3)
    assert len(rows) == len(chain)
    assert rows[0]["begin"] == 0
    assert all(one["end"] == pytest.approx(two["begin"], abs=2e-6) for one, two in pairwise(rows))
    assert rows[-1]["end"] == pytest.approx(chain["dur_ps"].sum() / 1e12, abs=1e-5)
    assert {row["kind"] for row in rows} == {"forward", "backward", "communication", "other computation"}


def test_names_are_text_and_the_chart_draws_itself(found):
    evil = pl.when(pl.col("host").str.starts_with("rank5 ")).then(pl.lit("<script>\x1b stage 1")).otherwise("host")
    chart = charts.pipeline(replace(found, critical=found.critical.with_columns(host=evil)))
    assert "\x1b" not in json.dumps(chart.to_dict(), ensure_ascii=False)
    assert render.png(chart)[:4] == b"\x89PNG"
    assert "<script" not in render.svg(chart)


def test_what_is_no_pipeline_is_refused(found):
    with pytest.raises(TypeError, match="found parameter of pipeline must be Hosts"):
        charts.pipeline(found.frame)
    with pytest.raises(TpunbError, match="the job has no pipeline that was replayed"):
        charts.pipeline(tp.hosts(job([[[10, 20, 50]]])))
    with pytest.raises(ValueError, match=r"must be a step that was replayed\. Got 99 instead"):
        charts.pipeline(found, step=99)
