"""ParaDnn's measurements: the published counts and figures come out of what is shipped."""

import runpy
from pathlib import Path

import polars as pl
import pytest

import tpunb as tp
from tpunb.frames.hardware import DEVICES

paradnn = tp.studies.sweeps.paradnn
ROOT = Path(__file__).parents[1]
ONE = {"layers": 4, "nodes": 512, "input": 2000, "output": 1000}


@pytest.fixture(scope="module")
def tpu():
    return paradnn.measured("TPU v2")


@pytest.fixture(scope="module")
def gpu():
    return paradnn.measured("V100")


def states(sweep):
    return dict(sweep.frame["state"].value_counts().rows())


def test_runs_that_ended_and_those_that_did_not(tpu, gpu):
    assert states(tpu) == {"ok": 1724, "out of memory": 220}
    assert states(gpu) == {"ok": 176, "failed: not finished": 94}
    assert tpu.parameters == gpu.parameters == ("layers", "nodes", "input", "output", "batch")


def test_the_origin_and_the_licence_are_in_the_data(tpu, gpu):
    for sweep in (tpu, gpu):
        assert sweep.metadata["origin"] == "https://github.com/Emma926/paradnn"
        assert (sweep.metadata["commit"], sweep.metadata["licence"]) == ("60a25ff", "Apache-2.0")
    for table in ("traces", "categories"):
        assert pl.read_parquet_metadata(paradnn.HERE / f"{table}.parquet")["licence"] == "Apache-2.0"
    assert sum(path.stat().st_size for path in paradnn.HERE.glob("*.parquet")) < 150e3


def test_weights_and_flops_are_those_of_the_formula(tpu, gpu):
    layers, nodes, wide, out, batch = (pl.col(name) for name in tpu.parameters)
    products = nodes**2 * (layers - 1) + nodes * (wide + out)
    for sweep, most in ((tpu, 1.13), (gpu, 1.02)):
        weights = pl.col("weights") / (products + nodes * layers + out)
        flops = pl.col("flops") / (6 * batch * products)
        ratios = sweep.ok.select(weights=weights, flops=flops)
        assert ratios["weights"].is_between(0.995, 1.005).all()  # published in three or four digits
        assert ratios["flops"].is_between(0.99, most).all()


def test_the_device_is_the_board(tpu, gpu):
    assert tpu.ok["device"].unique().to_list() == ["TPU v2 board"]
    board = DEVICES["TPU v2 board"]
    assert (board.peak_flops, board.bandwidth) == (180e12, 2400e9)
    assert round(100 * tpu.ok["flops_util"].max(), 1) == 64.3
    assert round(100 * gpu.ok["flops_util"].max(), 1) == 69.0
    rate = pl.col("flops") / pl.col("step_ps") * 1e12 / pl.col("flops_util")
    assert tpu.ok.select((rate / 180e12 - 1).abs().max()).item() < 0.01  # FLOPs have three digits


def test_speedups_at_the_points_in_common(tpu, gpu):
    speedup = tpu.speedup(gpu)
    ratio = speedup.frame["ratio"]
    assert len(speedup) == 176
    assert (round(ratio.min(), 2), round(ratio.max(), 2), round(ratio.mean(), 2)) == (0.21, 11.70, 4.79)
    assert ratio.filter(ratio < 1).len() == 40
    assert round(speedup.geometric_mean, 2) == 2.78
    assert speedup.geometric_mean * gpu.speedup(tpu).geometric_mean == pytest.approx(1)
    text = str(speedup)
    assert "faster" not in text  # no interval is published
    assert "TPU v2 board with TensorFlow (version not recorded)" in text
    assert "40 of 176 points below 1" in text


@pytest.mark.parametrize(
    ("log", "weights", "r_squared"),
    [
        (False, {"nodes": 0.466, "batch": 0.472, "layers": 0.123, "input": -0.041, "output": -0.013}, 0.429),
        (True, {"nodes": 0.809, "batch": 0.527, "layers": 0.184, "input": 0.014, "output": -0.009}, 0.911),
    ],
)
def test_sensitivity_on_the_tpu(tpu, log, weights, r_squared):
    answer = tpu.sensitivity(log=log)
    assert dict(answer.frame.rows()) == pytest.approx(weights, abs=0.001)
    assert answer.r_squared == pytest.approx(r_squared, abs=0.001)


def test_sensitivity_on_the_gpu_has_no_weight_for_what_was_constant(gpu):
    weights = dict(gpu.sensitivity().frame.rows())
    assert weights.pop("input") is None
    assert weights.pop("output") is None
    assert weights == pytest.approx({"nodes": 0.720, "batch": 0.182, "layers": 0.190}, abs=0.001)
    assert gpu.sensitivity(log=True).r_squared == pytest.approx(0.963, abs=0.001)


def test_saturation_of_one_network(tpu, gpu):
    answer = tpu.filter(**ONE).saturation("batch")
    assert (answer.value, answer.rising) == (16_384, True)
    assert answer.frame.select("below", pl.col("given_away").round(2)).rows() == [(8192, 0.06)]
    answer = gpu.filter(**ONE).saturation("batch")
    assert (answer.value, answer.rising) == (4096, False)
    deep = {**ONE, "layers": 32, "nodes": 2048}
    assert [sweep.filter(**deep).saturation("batch").value for sweep in (tpu, gpu)] == [16_384, 4096]


def test_no_trace_is_above_the_roof():
    traces = paradnn.traces()
    roof = pl.min_horizontal(180e12, 2400e9 * pl.col("intensity"))
    assert len(traces) == 230
    assert traces.filter(pl.col("rate") > roof).is_empty()
    assert traces.filter(pl.col("intensity") >= 75).height == 39
    best = traces.sort("flops_util").row(-1, named=True)
    assert (best["layers"], best["nodes"], best["batch"]) == (32, 4096, 16_384)
    assert round(100 * best["flops_util"], 2) == 70.43
    assert round(best["intensity"]) == 198
    # their HBM utilisation is of a slightly different peak, equal in all rows
    ratio = traces["rate"] / traces["intensity"] / 2400e9 / traces["hbm_util"]
    assert ratio.is_between(1.00657, 1.00659).all()
    assert [traces.filter(pl.col("infeed") > least).height for least in (0.5, 0.05)] == [76, 100]


def test_the_next_chip_is_modelled():
    roof = paradnn.roofline()
    assert dict(roof.frame["bound"].value_counts().rows()) == {"memory": 191, "compute": 39}
    assert roof.frame["above"].null_count() == 230
    model = roof.on("TPU v3")
    assert model.device.name == "TPU v3"
    assert "TPU v3, modelled from TPU v2" in repr(model)
    assert tp.charts.roofline(model).to_dict()["title"]["text"] == "Roofline by point · TPU v3, modelled from TPU v2"
    assert "modelled" not in repr(roof)
    gain = roof.work["self_ps"] / model.work["self_ps"]
    memory = roof.work["flops"] / roof.work["bytes"] < 75
    assert gain.filter(memory).is_between(1.499, 1.501).all()
    assert gain.max() == pytest.approx(123 / 45, rel=1e-6)


def test_time_that_no_category_has_is_shown():
    categories, shares = paradnn.categories(), paradnn.time_shares()
    assert len(categories) == 2029
    point = ["layers", "nodes", "input", "output", "batch"]
    sums = categories.group_by(point).agg(pl.col("share").sum())["share"]
    assert [round(100 * each, 1) for each in (sums.min(), sums.median(), sums.max())] == [34.8, 90.2, 100.0]
    assert len(shares) == 2029 + 230
    assert shares.group_by(point).agg(pl.col("share").sum())["share"].is_between(1 - 1e-9, 1 + 1e-9).all()
    assert shares.filter(category="unattributed")["share"].max() == pytest.approx(1 - sums.min())


def test_figures_that_cannot_be_are_null():
    categories = paradnn.categories()
    assert categories["flops_util"].max() <= 1
    assert categories.filter(category="after-all")["intensity"].null_count() == 230
    assert not categories["intensity"].is_nan().any()


def test_an_unknown_device_is_refused():
    with pytest.raises(ValueError, match=r"must be one of TPU v2, TPU v2 board, V100\. Got 'TPU v3' instead"):
        paradnn.measured("TPU v3")


def test_what_is_shipped_is_what_the_script_converts(tmp_path, monkeypatch, real_profiles):
    script = runpy.run_path(str(ROOT / "datasets" / "paradnn" / "convert.py"))
    monkeypatch.setitem(script["main"].__globals__, "HERE", tmp_path)
    script["main"](real_profiles.parent / "seeds" / "paradnn")
    for path in paradnn.HERE.glob("*.parquet"):
        assert pl.read_parquet(tmp_path / path.name).equals(pl.read_parquet(path))
