"""Charts of sweeps: what is drawn are the rows, and names in them are not trusted."""

import polars as pl
import pytest
from toy_sweeps import CHIP, KNEE, MS, grid, sweep

import tpunb as tp
from tpunb.charts import render
from tpunb.errors import IncompatibleRuns, TpunbError
from tpunb.studies.sweeps import Sweep, charts

EVIL = "<script>alert(1)</script>\x1b\u202e"
POINTS = grid(lambda batch, width: max(1, batch / 64) * width / 8, flops_util=0.25)


def rows_of(chart, layer=0):
    spec = chart.to_dict()
    part = spec["layer"][layer] if "layer" in spec else spec["vconcat"][layer]
    part = part["layer"][0] if "layer" in part else part
    return spec["datasets"][part.get("data", spec.get("data"))["name"]]


def test_the_heat_map_has_a_cell_per_pair_of_values():
    chart = charts.heatmap(POINTS, x="batch", y="width", value="examples_per_s")
    cells = {(row["across"], row["up"]): row["text"] for row in rows_of(chart, 1)}
    assert cells["16", "8"] == "16k"
    assert cells["128", "16"] == "32k"
    assert len(cells) == 8
    spec = chart.to_dict()
    assert spec["layer"][1]["encoding"]["x"]["sort"] == ["16", "32", "64", "128"]
    assert spec["layer"][1]["encoding"]["y"]["sort"] == ["16", "8"]
    assert spec["title"] == {"text": "Examples per second by batch and width", "subtitle": ["toy with JAX 0.7"]}


def test_cells_without_a_point_that_ran_are_drawn_with_their_state():
    state = pl.when(pl.col("batch") == 128).then(pl.lit("out of memory")).otherwise("state")
    chart = charts.heatmap(Sweep(POINTS.frame.with_columns(state=state), POINTS.parameters), x="batch", y="width")
    assert [row["about"] for row in rows_of(chart)] == [
        "batch=128, width=8: out of memory",
        "batch=128, width=16: out of memory",
    ]
    assert len(rows_of(chart, 1)) == 6


def test_the_heat_map_is_the_median_over_other_parameters():
    tpu = tp.studies.sweeps.paradnn.measured("TPU v2")
    chart = charts.heatmap(tpu, x="batch", y="nodes")
    cell = next(row for row in rows_of(chart, 1) if (row["across"], row["up"]) == ("16384", "4096"))
    median = tpu.ok.filter(batch=16_384, nodes=4096)["flops_util"].median()
    assert cell["value"] == pytest.approx(median)
    assert chart.to_dict()["title"]["subtitle"][0].endswith("median over layers, input, output")


def test_wrong_axes_are_refused():
    with pytest.raises(ValueError, match=r"x and y of heatmap must be two of batch, width\. Got 'batch' and 'batch'"):
        charts.heatmap(POINTS, x="batch", y="batch")
    with pytest.raises(ValueError, match=r"Got 'height'|'height' instead"):
        charts.heatmap(POINTS, x="batch", y="height")
    with pytest.raises(ValueError, match="The value parameter of heatmap must be a column of numbers"):
        charts.heatmap(POINTS, x="batch", y="width", value="state")
    with pytest.raises(TpunbError, match="no point of the sweep has joules"):
        charts.heatmap(POINTS, x="batch", y="width", value="joules")
    with pytest.raises(TypeError, match="The sweep parameter of heatmap must be a Sweep"):
        charts.heatmap(POINTS.frame, x="batch", y="width")


def test_speedups_are_points_by_flops_with_their_interval():
    a, b = sweep([1, 1, 2, 2], spread=0.1, flops=1e9), sweep([2, 2, 2, 2], spread=0.1, flops=1e9, framework="torch")
    chart = charts.speedups(a, b, colour="batch")
    assert [(row["hue"], row["ratio"], row["by"]) for row in rows_of(chart, 2)] == [
        (16, 2.0, 1e9),
        (32, 2.0, 1e9),
        (64, 1.0, 1e9),
        (128, 1.0, 1e9),
    ]
    assert rows_of(chart, 2)[0]["about"] == "batch=16: 2.00x [1.64, 2.44], faster"
    assert chart.to_dict()["title"]["subtitle"][0] == "toy with JAX 0.7 against toy with torch 0.7"
    assert rows_of(charts.speedups(a.speedup(b)), 2)[0]["hue"] == "all"
    with pytest.raises(
        ValueError, match=r"The colour parameter of speedups must be one of batch\. Got 'nodes' instead"
    ):
        charts.speedups(a, b, colour="nodes")
    with pytest.raises(IncompatibleRuns):
        charts.speedups(a, grid(lambda batch, width: 1))


def test_speedups_without_flops_are_by_the_throughput_of_the_other():
    chart = charts.speedups(sweep([1, 1, 1, 1]), KNEE)
    assert chart.to_dict()["layer"][2]["encoding"]["x"]["title"] == "examples per second of toy"


def test_sensitivity_is_bars_the_largest_first():
    tpu = tp.studies.sweeps.paradnn.measured("TPU v2")
    chart = charts.sensitivity(tpu)
    assert [(row["term"], row["text"]) for row in rows_of(chart)] == [
        ("batch", "0.472"),
        ("nodes", "0.466"),
        ("layers", "0.123"),
        ("input", "-0.041"),
        ("output", "-0.013"),
    ]
    assert chart.to_dict()["title"]["subtitle"] == ["R² 0.429"]
    assert "logarithm" in charts.sensitivity(tpu.sensitivity(log=True)).to_dict()["title"]["text"]
    with pytest.raises(TypeError, match="The answer parameter of sensitivity must be a Sensitivity or a Sweep"):
        charts.sensitivity(tpu.frame)


def test_latency_and_throughput_share_an_axis():
    chart = charts.latency(sweep([1, 1, 1, 2], spread=0.1, p95_ps=3 * MS))
    rows = rows_of(chart)
    assert [(row["value"], row["step_ps"], row["p95_ps"], row["low_ps"]) for row in rows] == [
        (16, 1.0, 3.0, 0.9),
        (32, 1.0, 3.0, 0.9),
        (64, 1.0, 3.0, 0.9),
        (128, 2.0, 3.0, 1.8),
    ]
    assert rows[0]["about"] == "batch 16: median 1 ms, p95 3 ms, 16k per second"
    panels = chart.to_dict()["vconcat"]
    assert [panel["layer"][1]["encoding"]["y"]["title"] for panel in panels] == [
        "step time (ms)",
        "examples per second",
    ]
    assert panels[0]["layer"][0]["encoding"]["x"]["scale"]["type"] == "log"
    several = charts.latency(POINTS).to_dict()["title"]["subtitle"][0]
    assert several == "toy with JAX 0.7, median of up to 2 combinations"
    with pytest.raises(ValueError, match="The parameter of latency must be of numbers, of batch"):
        charts.latency(KNEE, "nodes")
    with pytest.raises(TpunbError, match="no point of the sweep ran"):
        charts.latency(sweep([None] * 4))


def test_the_roofline_of_a_sweep_has_a_point_for_each_of_its_own():
    points = Sweep(grid(lambda batch, width: 1, bytes=1e6).frame, ("batch", "width"), CHIP)
    chart = tp.charts.roofline(points.roofline())
    assert chart.to_dict()["title"]["text"] == "Roofline by point · toy"
    assert len(rows_of(chart, 4)) == 8


def test_more_rows_than_points_are_counted():
    widths = range(1, 301)
    points = Sweep(grid(lambda batch, width: 1, widths=widths, batches=(1,), bytes=1e6).frame, ("batch", "width"), CHIP)
    subtitle = tp.charts.roofline(points.roofline()).to_dict()["title"]["subtitle"][0]
    assert subtitle.startswith("250 rows, 50 of less headroom not shown")


EACH = [
    lambda s: charts.heatmap(s, x="batch", y=EVIL),
    lambda s: charts.speedups(s, s, colour=EVIL),
    lambda s: charts.sensitivity(s.sensitivity("step_ps")),
    lambda s: charts.latency(s, "batch"),
    lambda s: tp.charts.roofline(s.roofline()),
]


@pytest.mark.parametrize("draw", EACH)
def test_names_are_not_trusted_and_every_chart_is_drawn(draw):
    frame = POINTS.frame.rename({"width": EVIL}).with_columns(device=pl.lit(EVIL), bytes=1e6, version=pl.lit(EVIL))
    chart = draw(Sweep(frame, ("batch", EVIL), CHIP))
    page = render.inline(chart)
    assert "<script>" not in page
    assert "\x1b" not in page
    assert "\u202e" not in page
    assert render.png(chart)[:4] == b"\x89PNG"
