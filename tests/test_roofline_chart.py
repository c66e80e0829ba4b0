"""The roofline and the stack of a run, drawn."""

from dataclasses import replace

import pytest
from layer_rows import AGAIN, CALL, COPY, DENSE, NORM, UNIT, layers

import tpunb as tp
from tpunb import charts
from tpunb.charts import render
from tpunb.charts.roofline import stack
from tpunb.errors import TpunbError
from tpunb.frames.hardware import Device, Level

EVIL = "<script>alert(1)</script>\x1b\u202e"


def rows_of(chart, layer):
    spec = chart.to_dict()
    return spec["datasets"][spec["layer"][layer].get("data", spec.get("data"))["name"]]


def test_points_are_rows_with_flops_and_the_roof_has_its_ridge():
    chart = charts.roofline(tp.roofline(layers(DENSE, NORM, COPY, CALL), "instruction", device=UNIT))
    points = rows_of(chart, 4)
    assert [(row["name"], row["intensity"], row["rate"], row["bound"]) for row in points] == [
        ("add", 0.2, 0.1e12, "memory"),
        ("dot", 2.0, 0.8e12, "compute"),
    ]
    spec = chart.to_dict()
    assert spec["title"]["text"] == "Roofline by instruction · unit"
    assert spec["title"]["subtitle"][0] == "2 rows, 2 without known FLOPs not shown"
    assert {row["about"] for row in rows_of(chart, 0)} == {"memory 1,000 GB/s", "bf16 1 TFLOP/s, ridge at 1 FLOP/byte"}
    ends = [(row["line"], row["intensity"], row["rate"]) for row in rows_of(chart, 0)]
    assert ends == [("memory", 0.05, 0.05e12), ("memory", 1.0, 1e12), ("bf16", 1.0, 1e12), ("bf16", 8.0, 1e12)]
    assert spec["layer"][4]["encoding"]["x"]["scale"]["type"] == "log"
    assert spec["layer"][4]["encoding"]["y"]["scale"]["type"] == "log"


def test_other_data_types_and_faster_memories_have_lines_of_their_own():
    chip = Device("two", 1e12, 1e9, 1e12, "none", peaks={"f32": 5e11, "int8": 4e12}, levels=(Level("L2", 1e3, 4e12),))
    chart = charts.roofline(tp.roofline(layers(DENSE, shape="f32[8]{0}"), device=chip))
    assert {row["line"] for row in rows_of(chart, 0)} == {"memory", "L2", "bf16", "f32"}  # nothing is of int8


def test_points_are_drawn_without_a_roof_where_the_peaks_are_unknown():
    roof = tp.roofline(layers(DENSE, NORM), "instruction")
    chart = charts.roofline(roof)
    assert roof.device is None
    assert render.svg(chart)
    assert "dot: 800.0 GFLOP/s at 2 FLOP/byte, 1e-07 ms self time" in chart.description
    assert chart.to_dict()["title"]["subtitle"][-1].startswith("self time: 1 ")


def test_a_roofline_without_flops_is_not_drawn():
    with pytest.raises(TpunbError, match="no row of the roofline has FLOPs and bytes"):
        charts.roofline(tp.roofline(layers(CALL), device=UNIT))
    with pytest.raises(TypeError, match="The roof parameter of roofline must be a Roofline"):
        charts.roofline(layers(CALL))


def spans(chart):
    return {(row["level"], row["name"]): (row["from"], row["until"]) for row in rows_of(chart, 0)}


def test_the_stack_divides_the_mean_step_by_layer_and_what_is_within():
    chart = stack(layers(DENSE, AGAIN, NORM, COPY))  # two steps
    found = {thing: (round(1e9 * begin), round(1e9 * end)) for thing, (begin, end) in spans(chart).items()}
    assert found == {
        ("step", "step, mean of 2"): (0, 165),
        ("layer", "dense"): (0, 110),
        ("layer", "norm"): (110, 160),
        ("layer", "unattributed"): (160, 165),
        **{(level, "dot"): (0, 110) for level in ("operation", "instruction")},
        **{(level, "add"): (110, 160) for level in ("operation", "instruction")},
        **{(level, "copy-done"): (160, 165) for level in ("operation", "instruction")},
    }
    assert chart.to_dict()["layer"][0]["encoding"]["y"]["sort"] == ["step", "layer", "operation", "instruction"]


def test_the_nameless_come_last_at_their_level_and_empty_levels_are_left_out():
    large = (0, None, None, None, 1000, None, None)
    chart = stack(layers(large, NORM))
    assert spans(chart)["layer", "unattributed"][0] == pytest.approx(100 / 1e9)
    assert {level for level, _ in spans(stack(layers(large)))} == {"step"}


def test_a_stack_needs_operations_on_a_device():
    with pytest.raises(TpunbError, match="no operation ran on a device"):
        stack(layers())
    with pytest.raises(TypeError, match="The steps parameter of stack must be Steps"):
        stack(3)


def test_names_of_profiles_are_text():
    steps = replace(layers((0, EVIL, EVIL, EVIL, 100, 80.0, 40.0), NORM), name=EVIL)
    chip = replace(UNIT, name=EVIL)
    for chart in (stack(steps), charts.roofline(tp.roofline(steps, "layer", device=chip))):
        for drawn in (render.svg(chart), render.inline(chart)):
            assert "<script" not in drawn
            assert not {"\x1b", "\u202e"} & {*drawn}
        assert render.png(chart)


def test_real_tpus_and_gpus_are_drawn(real_profiles):
    steps = tp.steps(tp.load(real_profiles / "gpu-mi300x_jax08_gemm.xplane.pb"), by="whole")
    assert len(rows_of(charts.roofline(tp.roofline(steps, "instruction", device="MI300X")), 4)) == 6
    assert ("operation", "unattributed") not in spans(stack(steps))
