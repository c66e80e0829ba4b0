"""Hardware counters and memory: read from raw captures, per step, and over time in a chart."""

import gzip
import json
import math
import time

import altair as alt
import polars as pl
import pytest
from planes import US, Plane, written
from xprof_oracle import Oracle

import tpunb as tp
from tpunb import schema
from tpunb.errors import BadProfile, NoSteps, TpunbError
from tpunb.io import run_folder, xplane, xprof_json
from tpunb.io.run_writer import RunWriter

TPU = "/device:TPU:0"


@pytest.fixture
def counted(xplane_pb2, tmp_path):
    """Two steps of 100 us; the matrix unit is used for 80 and 40 % of the first, and 10 % of the second."""
    space = xplane_pb2.XSpace(hostnames=["a"])
    Plane(space, "/host:CPU").line("python", *(("train", 100 * n, 100, {"step_num": n}) for n in (0, 1)))
    tpu = Plane(space, TPU)
    tpu.line("XLA Ops", *(("fusion.1", start, 50, {"hlo_category": "loop fusion"}) for start in (10, 110)))
    samples = [(0, 30, 80.0), (30, 10, 40.0), (100, 10, 10.0), (110, 10, math.nan), (120, 10, -5.0)]
    rows = [("MXU", start, dur, {"% util": value}) for start, dur, value in samples]
    rows += [("Vector ALU", 0, 40, {"% util": 25}), ("XLU", 0, 40, {})]
    tpu.line("_counters_", *rows, id=2**63 - 1)
    return tp.load(written(space, tmp_path))


def test_counters_keep_their_value(counted):
    assert counted.counters.schema == schema.COUNTERS
    assert counted.counters.rows() == [
        ("a", TPU, "MXU", 0, 30 * US, 0.8),
        ("a", TPU, "MXU", 30 * US, 10 * US, 0.4),
        ("a", TPU, "MXU", 100 * US, 10 * US, 0.1),
        ("a", TPU, "MXU", 110 * US, 10 * US, None),  # not a number
        ("a", TPU, "MXU", 120 * US, 10 * US, None),  # negative
        ("a", TPU, "Vector ALU", 0, 40 * US, 0.25),
        ("a", TPU, "XLU", 0, 40 * US, None),
    ]


def test_the_matrix_unit_of_a_step_is_the_mean_of_its_samples_by_time(counted):
    steps = tp.steps(counted)
    assert steps.devices.select("step", "mxu_util").rows() == [(0, pytest.approx(0.7)), (1, pytest.approx(0.1))]
    assert steps.frame["mxu_util"].to_list() == steps.devices["mxu_util"].to_list()
    assert set(steps.ops["op"]) == {"fusion"}  # a counter is no operation


def test_counters_over_time_are_drawn(counted):
    chart = tp.charts.counters(counted)
    assert isinstance(chart, alt.TopLevelMixin)
    assert "at most: MXU 80 %; Vector ALU 25 %" in chart.to_dict()["description"]
    (rows,) = chart.to_dict()["datasets"].values()
    drawn = [(row["second"], row["value"]) for row in rows if row["name"] == "MXU"]
    assert drawn == [(pytest.approx(second, abs=1e-6), value) for second, value in [(0, 80), (30e-6, 40), (1e-4, 10)]]


def test_a_profile_without_counters_has_no_rows_and_no_chart(xplane_pb2, tmp_path):
    space = xplane_pb2.XSpace()
    Plane(space, "/host:CPU").line("python", ("train", 0, 10, {"step_num": 1}))
    profile = tp.load(written(space, tmp_path))
    assert profile.counters.schema == schema.COUNTERS
    assert profile.memory.schema == schema.MEMORY
    assert profile.counters.is_empty()
    assert profile.memory.is_empty()
    with pytest.raises(tp.TpunbError, match="holds no hardware counters"):
        tp.charts.counters(profile)
    with pytest.raises(tp.TpunbError, match="holds no memory in use"):
        tp.charts.memory(profile)


def used(in_use, free, peak, size, **stats):
    numbers = {"bytes_allocated": in_use, "bytes_available": free, "peak_bytes_in_use": peak, "allocation_bytes": size}
    return numbers | stats


def test_memory_is_what_allocators_report(xplane_pb2, tmp_path):
    space = xplane_pb2.XSpace(hostnames=["a"])
    gpu = {"allocator_name": "GPU_0_bfc"}
    Plane(space, "/host:CPU").line(
        "python",
        ("MemoryAllocation", 1, 0, used(30, 70, 40, 20, tf_op="model/dense:MatMul", **gpu)),
        ("MemoryAllocation", 2, 0, used(50, 40, 60, 7, bytes_reserved=10, index_on_host=1)),
        ("MatMul", 2, 1, {}),
        ("MemoryDeallocation", 3, 0, used(10, 90, 40, 20, **gpu)),
        ("MemoryDeallocation", 4, 0, used(-10, 110, 40, 20, **gpu)),  # freed twice
        ("MemoryDeallocation", 5, 0, {}),
        ("MemoryAllocation", 6, 0, used(2**63 - 1, 2**63 - 1, -1, -(2**63), bytes_reserved=2**63 - 1)),
    )
    profile = tp.load(written(space, tmp_path))
    assert profile.memory.schema == schema.MEMORY
    assert profile.memory.drop("host").rows() == [
        ("GPU_0_bfc", 1 * US, 20, 30, 40, 100, "model/dense:MatMul"),
        ("1", 2 * US, 7, 60, 60, 100, None),
        ("GPU_0_bfc", 3 * US, -20, 10, 40, 100, None),
        ("GPU_0_bfc", 4 * US, -20, None, 40, None, None),
        (None, 5 * US, None, None, None, None, None),
        (None, 6 * US, -(2**63), None, None, None, None),
    ]
    text = tp.charts.memory(profile).to_dict()["description"]
    assert "GPU_0_bfc 3e-08 GB" in text


def window(xplane_pb2, begin_ns, number, host="a"):
    """A capture of one step and one allocation, 2 us after its start."""
    space = xplane_pb2.XSpace(hostnames=[host])
    task = Plane(space, "Task Environment")
    for name, ns in (("profile_start_time", begin_ns), ("profile_stop_time", begin_ns + 100_000)):
        task.plane.stats.add(metadata_id=task.key(name, task.plane.stat_metadata), uint64_value=ns)
    step = ("train", 0, 100, {"step_num": number})
    Plane(space, "/host:CPU").line("python", step, ("MemoryAllocation", 2, 0, used(number, 5, 9, 1)))
    return space.SerializeToString()


def test_memory_of_several_files_is_in_the_time_and_under_the_hosts_of_the_profile(xplane_pb2, tmp_path):
    begin = 1_700_000_000_000_000_000
    for name, data in [("x", window(xplane_pb2, begin, 1)), ("y", window(xplane_pb2, begin + 7_000, 1))]:
        (tmp_path / f"{name}.xplane.pb").write_bytes(data)
    profile = tp.load(tmp_path)
    events = profile.events.filter(pl.col("name") == "MemoryAllocation").select(
        pl.col("host").cast(pl.String), "start_ps"
    )
    assert profile.memory.select("host", "start_ps").rows() == events.rows()
    assert events["start_ps"].to_list() == [2 * US, 9 * US]
    assert events["host"].n_unique() == 2


def test_memory_of_a_run_is_that_of_its_raw_windows(xplane_pb2, tmp_path):
    begin, writer = time.time_ns(), RunWriter(tmp_path)
    for number in (0, 1):
        writer.raw(number, "a", window(xplane_pb2, begin + 7_000 * number, number))
    facts = {"tpunb": run_folder.VERSION, "name": "toy", "origin_ns": begin}
    (tmp_path / run_folder.RUN).write_text(json.dumps(facts))
    assert tp.load(tmp_path).memory.select("start_ps", "in_use_bytes").rows() == [(2 * US, 0), (9 * US, 1)]


@pytest.mark.parametrize(
    "name", ["tpu-v6e-4_jax_host-offload", "gpu-v100_tf2_bert_steps", "gpu-mi300x_jax_conv", "gpu-1080ti_julia"]
)
def test_memory_of_real_captures_is_that_of_xprof(real_profiles, tmp_path, name):
    pytest.importorskip("xprof")
    (tables,) = Oracle.of(real_profiles / f"{name}.xplane.pb", tmp_path).tables("memory_profile")
    expected = {}
    for allocator, table in tables["memoryProfilePerAllocator"].items():
        summary = table["profileSummary"]
        expected[allocator] = int(summary["peakStats"]["peakBytesInUse"]), int(summary["memoryCapacity"])
    memory = xplane.memory((real_profiles / f"{name}.xplane.pb").read_bytes(), source=name)
    peaks = memory.group_by("allocator").agg(pl.col("in_use_bytes", "capacity_bytes").max())
    assert {row[0]: row[1:] for row in peaks.rows()} == expected
    assert json.dumps(tp.charts.memory(tp.load(real_profiles / f"{name}.xplane.pb")).to_dict())
    file = tmp_path / "host.memory_profile.json"
    file.write_text(json.dumps(tables))
    exported = tp.load(file).memory
    columns = ["allocator", "in_use_bytes", "peak_bytes", "capacity_bytes"]
    assert exported["host"].unique().to_list() == ["host"]
    assert sorted(exported.select(columns).rows()) == sorted(memory.select(columns).rows())
    assert sorted(exported["size_bytes"].drop_nulls()) == sorted(memory["size_bytes"].drop_nulls())


def snapshot(at_us, used, *, size="5", kind="ALLOCATION", **more):
    return {
        "timeOffsetPs": str(at_us * US),
        "aggregationStats": {"stackReservedBytes": "100", "heapAllocatedBytes": str(used), "freeMemoryBytes": "1000"}
        | {"peakBytesInUse": "77"},
        "activityMetadata": {"memoryActivity": kind, "allocationBytes": size, "tfOpName": "dense/MatMul"},
    } | more


def memory_table(*snapshots, sampled=()):
    of_gpu = {"memoryProfileSnapshots": [*snapshots], "sampledTimelineSnapshots": [*sampled]}
    return json.dumps({"memoryProfilePerAllocator": {"GPU_0_bfc": of_gpu}, "numHosts": 1}).encode()


def test_a_memory_profile_that_xprof_exported_is_read(tmp_path):
    first, second = snapshot(3, 10), snapshot(9, 4, size="6", kind="DEALLOCATION")
    (tmp_path / "vm.memory_profile.json.gz").write_bytes(gzip.compress(memory_table(second, sampled=[second, first])))
    profile = tp.load(tmp_path)
    assert profile.memory.rows() == [
        ("vm", "GPU_0_bfc", 3 * US, 5, 110, 77, 1110, "dense/MatMul"),
        ("vm", "GPU_0_bfc", 9 * US, -6, 104, 77, 1104, "dense/MatMul"),
    ]
    with pytest.raises(NoSteps):
        tp.steps(profile)
    with pytest.raises(TpunbError, match="holds no counters"):
        profile.counters  # noqa: B018


def test_a_memory_profile_beside_tables_of_steps_adds_to_them(tmp_path):
    steps = {"cols": [{"id": "stepnum"}, {"id": "stepTimeMs"}], "rows": [{"c": [{"v": "0"}, {"v": 1}]}]}
    (tmp_path / "vm.overview_page.json").write_text(json.dumps([steps]))
    (tmp_path / "vm.memory_profile.json").write_bytes(memory_table(snapshot(3, 10)))
    for path in (tmp_path, tmp_path / "vm.memory_profile.json"):  # a table of the same prefix beside it belongs to it
        profile = tp.load(path)
        assert len(tp.steps(profile)) == 1
        assert profile.memory["in_use_bytes"].to_list() == [110]
    (tmp_path / "vm.memory_profile.json").write_bytes(b"[1]")
    with pytest.warns(UserWarning, match=r"1 file skipped: vm\.memory_profile\.json: JSON, but no memory profile"):
        profile = tp.load(tmp_path)
    assert len(tp.steps(profile)) == 1
    (tmp_path / "vm.overview_page.json").unlink()
    with pytest.raises(BadProfile, match="no memory profile of XProf: a list"):
        tp.load(tmp_path)


@pytest.mark.parametrize(
    ("damage", "row"),
    [
        ({"timeOffsetPs": "-5"}, None),
        ({"timeOffsetPs": None}, None),
        ({"aggregationStats": []}, (5, None, None, None)),
        ({"aggregationStats": {"heapAllocatedBytes": "9" * 30, "freeMemoryBytes": 7.5}}, (5, None, None, None)),
        ({"activityMetadata": {"memoryActivity": "NONE", "allocationBytes": "5"}}, (None, 110, 77, 1110)),
        ({"activityMetadata": {"memoryActivity": "ALLOCATION", "allocationBytes": "0"}}, (None, 110, 77, 1110)),
    ],
)
def test_values_of_an_exported_memory_profile_that_are_unset_or_damaged_are_null(damage, row):
    memory = xprof_json.memory(memory_table(snapshot(3, 10) | damage, "none"), "vm.memory_profile.json")
    columns = ("size_bytes", "in_use_bytes", "peak_bytes", "capacity_bytes")
    assert memory.select(columns).rows() == ([] if row is None else [row])
