"""XProf's tables of operations as a step with layers."""

import json

import polars as pl
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal
from xprof_oracle import Oracle

import tpunb as tp
from tpunb.errors import BadProfile, TpunbError
from tpunb.io import xprof_json

OP = {
    **{"program_id": "12190760917235803885", "category": "convolution fusion", "hlo_op_name": "fusion.1"},
    "hlo_op_expression": "%fusion.1 = bf16[8,128]{1,0:T(8,128)} fusion(%a, %b), kind=kOutput",
    **{"tf_op_name": "jit(step)/dense/dot_general:", "occurrences": 4, "total_time": 3.0, "total_self_time": 2.0},
    **{"model_flop_rate": 1000, "measured_memory_bw": 2},  # GFLOP/s, GiB/s
}


def table(*rows, **properties):
    ids = dict.fromkeys(key for row in rows for key in row)
    cells = [{"c": [{"v": row.get(key)} for key in ids]} for row in rows]
    return {"cols": [{"id": key} for key in ids], "rows": cells, "p": properties}


def loaded(folder, **tables):
    for name, content in tables.items():
        (folder / f"{name}.json").write_text(json.dumps([content]))
    return tp.load(folder)


def test_rates_times_times_are_work(tmp_path):
    idle = {"category": "IDLE", "hlo_op_name": "IDLE", "total_time": 9, "total_self_time": 9}
    call = OP | {"category": "custom-call", "hlo_op_name": "call", "model_flop_rate": 0, "measured_memory_bw": 0}
    steps = tp.steps(loaded(tmp_path, hlo_stats=table(OP, idle, call)))
    assert steps.frame.select("step", "rule", "dur_ps").rows() == [(0, "whole", 4 * 10**6)]
    names = ["hlo_op", "program", "count", "total_ps", "self_ps", "flops", "bytes", "layer", "shape"]
    (dot, unknown) = steps.layers.select(names).rows()
    program = 12190760917235803885 - 2**64
    assert dot == (
        "fusion.1",
        program,
        4,
        3 * 10**6,
        2 * 10**6,
        3e6,
        3e-6 * 2**31,
        "dense",
        "bf16[8,128]{1,0:T(8,128)}",
    )
    assert unknown[5:7] == (None, None)


def test_a_roofline_model_names_its_device(tmp_path):
    op = {"category": "fusion", "operation": "fusion.1", "step": "Total", "include_infeed_outfeed": True, "rank": 1}
    op |= {key: OP[key] for key in ("occurrences", "total_time", "total_self_time", "model_flop_rate")}
    op |= {"hlo_module_id": "7", "measured_memory_bw": 2}
    rows = (op | {"category": "Program"}, op, op | {"include_infeed_outfeed": False}, op | {"step": "5"})
    profile = loaded(tmp_path, roofline_model=table(*rows, device_type="TPU v6 Lite"))
    assert profile.hardware["kind"].to_list() == ["TPU v6 Lite"]
    roof = tp.roofline(tp.steps(profile), "instruction")
    assert roof.frame.select("what", "program", "count", "flops").rows() == [("fusion.1", 7, 4, 3e6)]
    assert roof.device.name == "TPU v6e"
    both = loaded(tmp_path, hlo_stats=table(OP))  # operations of one, device of the other
    assert tp.roofline(tp.steps(both), "layer").frame["what"].to_list() == ["dense"]
    assert len(tp.steps(tp.load(tmp_path / "roofline_model.json")).layers) == 1


STEP = {"stepnum": "1", "computeTimeMs": 12.5, "idleTimeMs": 0.5}


@pytest.mark.parametrize("tool", ["hlo_stats", "roofline_model"])
def test_operations_beside_steps_of_the_run_have_its_roofline(tmp_path, tool):
    op = OP if tool == "hlo_stats" else {**OP, "operation": "fusion.1", "step": "Total"}
    profile = loaded(tmp_path, overview_page=table(STEP, device_type="TPU v6 Lite"), **{tool: table(op)})
    assert tp.steps(profile).frame.select("step", "dur_ps").rows() == [(1, 13 * 10**9)]
    for by in ("run", "instruction"):
        roof = tp.roofline(profile, by)
        assert roof.frame.select("count", "flops").rows() == [(4, 3e6)]
        assert roof.device.name == "TPU v6e"
    assert tp.roofline(profile, "step").frame["what"].to_list() == ["unattributed"]
    assert tp.roofline(tp.phases(profile)).frame["what"].to_list() == ["unattributed"]
    assert not tp.phases(profile).top(sources=True)["source"].count()


def test_operations_of_both_tables_count_once(tmp_path):
    model = table({**OP, "operation": "fusion.1", "step": "Total"})
    profile = loaded(tmp_path, overview_page=table(STEP), hlo_stats=table(OP), roofline_model=model)
    assert tp.roofline(profile).frame["flops"].to_list() == [3e6]


def test_operations_beside_memory_are_a_step(tmp_path):
    used = {"heapAllocatedBytes": "8", "freeMemoryBytes": "4"}
    snapshots = [{"timeOffsetPs": "5", "aggregationStats": used, "activityMetadata": {}}]
    memory = {"memoryProfilePerAllocator": {"0": {"memoryProfileSnapshots": snapshots}}}
    (tmp_path / "memory_profile.json").write_text(json.dumps(memory))
    profile = loaded(tmp_path, hlo_stats=table(OP))
    assert tp.roofline(profile).frame["flops"].to_list() == [3e6]
    assert profile.memory["in_use_bytes"].to_list() == [8]


def test_a_table_without_operations_is_refused(tmp_path):
    with pytest.raises(BadProfile, match="the tables have no operations") as error:
        loaded(tmp_path, hlo_stats=table())
    assert "CPU" in error.value.hint
    with pytest.raises(TpunbError, match="is a table of XProf, not a raw profile"):
        tp.load([tmp_path / "hlo_stats.json"])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**40), 10**40) | st.floats(allow_nan=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*OP, "v", "c", "rows"]), inner),
    max_leaves=9,
)


@examples(30)
@given(st.fixed_dictionaries({key: JSON | st.just(value) for key, value in OP.items()}))
def test_any_values_are_a_profile_or_refused(row):
    try:
        found = xprof_json.op_profile({"hlo_stats.json": json.dumps([table(row)]).encode()}, "toy", "toy")
    except BadProfile:
        return
    assert tp.roofline(tp.steps(found), device="TPU v3").frame["self_ps"].item() >= 0


@given(JSON)
def test_any_json_is_a_profile_or_refused(value):
    with pytest.raises(BadProfile):
        xprof_json.op_profile({"hlo_stats.json": json.dumps(value).encode()}, "toy", "toy")


@pytest.mark.parametrize("tool", ["hlo_stats", "roofline_model"])
def test_tables_of_a_real_capture_give_its_roofline(real_profiles, tmp_path, tool):
    capture = real_profiles / "tpu-v6e-4_jax_host-offload.xplane.pb"
    (content, *_) = Oracle.of(capture, tmp_path).tables(tool)
    (tmp_path / "tables").mkdir()
    names = ["what", "program", "count", "self_ps", "flops", "bytes", "rate", "intensity", "bound", "headroom_ps"]
    by_table, by_capture = (
        tp.roofline(steps, "instruction", device="TPU v6e").frame.sort("what").select(names)
        for steps in (tp.steps(loaded(tmp_path / "tables", **{tool: content})), tp.steps(tp.load(capture), by="whole"))
    )
    assert len(by_capture) == 17
    headroom = pl.col("headroom_ps").cast(pl.Float64)
    assert_frame_equal(by_table.with_columns(headroom), by_capture.with_columns(headroom), rel_tol=1e-9, abs_tol=1.0)
