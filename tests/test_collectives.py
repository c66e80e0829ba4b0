"""Collectives: instances over devices, who came last, and bandwidths whose answers are visible."""

import json

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from planes import US, Plane, op, written

import tpunb as tp
from tpunb import schema
from tpunb.step_stats.collectives import replica_groups


def capture(xplane_pb2, tmp_path, ops, *devices, step=200):
    """A capture of two steps; each device is a list of (op, start, duration) in microseconds."""
    space = xplane_pb2.XSpace(hostnames=["a"])
    Plane(space, "/host:CPU").line("python", *(("train", step * n, step, {"step_num": n}) for n in (0, 1)))
    for number, runs in enumerate(devices):
        tpu = Plane(space, f"/device:TPU:{number}")
        tpu.line("XLA Ops", *((ops[name][0], start, dur, {}) for name, start, dur in runs))
        for text, short, stats in ops.values():
            entry = tpu.plane.event_metadata[tpu.key(text, tpu.plane.event_metadata)]
            entry.display_name = short
            for stat, value in stats.items():
                kind = "str_value" if isinstance(value, str) else "uint64_value"
                entry.stats.add(metadata_id=tpu.key(stat, tpu.plane.stat_metadata), **{kind: value})
    return tp.steps(tp.load(written(space, tmp_path)))


def rows_of(steps, *columns):
    assert steps.collectives.schema == schema.COLLECTIVES
    short = pl.col("device", "last").str.strip_prefix("/device:TPU:").cast(pl.Int64)
    rows = steps.collectives.with_columns(short, pl.col("^.*_ps$") // US)
    return rows.sort("step", "name", "instance", "device").select("step", "device", "instance", *columns).rows()


def test_who_came_last_and_how_long_the_others_waited(xplane_pb2, tmp_path):
    ops = {"a": op("all-reduce.1", "all-reduce", "{{0,1,2,3}}"), "f": op("fusion.1", "loop fusion", "")}
    # all end at 50, and in the second step at 250: device 2 begins last, then device 0
    devices = [
        [("f", 0, 5), ("a", start, 50 - start), ("a", later, 250 - later)]
        for start, later in zip((10, 20, 40, 30), (240, 210, 210, 230), strict=True)
    ]
    steps = capture(xplane_pb2, tmp_path, ops, *devices)
    assert rows_of(steps, "dur_ps", "wait_ps", "last") == [
        (0, 0, 1, 40, 30, 2),
        (0, 1, 1, 30, 20, 2),
        (0, 2, 1, 10, 0, 2),
        (0, 3, 1, 20, 10, 2),
        (1, 0, 1, 10, 0, 0),
        (1, 1, 1, 40, 30, 0),
        (1, 2, 1, 40, 30, 0),
        (1, 3, 1, 20, 10, 0),
    ]
    assert set(steps.collectives["groups"]) == {"{{0,1,2,3}}"}
    assert set(steps.collectives["bytes"]) == {4000}
    speed = 4000 / 10e-6  # of the 10 us after the last began
    assert steps.collectives["algorithm_bandwidth"].to_list() == pytest.approx([speed] * 8)
    assert steps.collectives["bus_bandwidth"].to_list() == pytest.approx([speed * 2 * 3 / 4] * 8)


@pytest.mark.parametrize("groups", ["{{0,1},{2,3},{8,9}}", "[2,2]<=[4]"])
def test_a_device_waits_for_its_own_group(xplane_pb2, tmp_path, groups):
    ops = {"a": op("all-gather.1", "all-gather", groups)}
    steps = capture(xplane_pb2, tmp_path, ops, *([("a", start, 50 - start)] for start in (10, 20, 40, 30)))
    assert rows_of(steps, "wait_ps", "last") == [(0, 0, 1, 10, 1), (0, 1, 1, 0, 1), (0, 2, 1, 0, 2), (0, 3, 1, 10, 2)]
    assert steps.collectives.sort("device")["bus_bandwidth"][0] == pytest.approx(4000 / 30e-6 / 2)


def test_runs_of_one_instruction_are_matched_in_order(xplane_pb2, tmp_path):
    ops = {"a": op("all-reduce.1", "all-reduce", "{}")}
    steps = capture(
        xplane_pb2, tmp_path, ops, [("a", 0, 10), ("a", 50, 10)], [("a", 2, 8), ("a", 45, 15), ("a", 70, 5)]
    )
    assert rows_of(steps, "wait_ps", "last") == [
        *((0, 0, 1, 2, 1), (0, 1, 1, 0, 1)),
        *((0, 0, 2, 0, 0), (0, 1, 2, 5, 0)),
        (0, 1, 3, None, None),  # the other device has no third run
    ]


def test_an_asynchronous_transfer_lasts_from_its_start_to_the_end_of_its_wait(xplane_pb2, tmp_path):
    whole = "(f32[500]{0}, f32[1000]{0})"
    ops = {
        "s": op("all-gather-start.1", "all-gather-start", "{{0,1}}", whole),
        "d": op("all-gather-done.1", "all-gather-done", "{{0,1}}"),
    }
    early = [("d", 0, 3), ("s", 10, 1), ("d", 40, 20)]  # its first part is before the step
    steps = capture(xplane_pb2, tmp_path, ops, early, [("s", 15, 1), ("d", 40, 20)])
    assert rows_of(steps, "op", "dur_ps", "wait_ps", "bytes") == [
        (0, 0, 0, "all-gather", 3, None, 4000),
        (0, 0, 1, "all-gather", 50, 5, 4000),
        (0, 1, 1, "all-gather", 45, 0, 4000),
    ]


def test_the_bytes_of_a_transfer_are_those_of_its_result_even_where_only_its_start_ran(xplane_pb2, tmp_path):
    ops = {
        "s": op("all-gather-start.1", "all-gather-start", "{{0,1}}", "(f32[500]{0}, f32[1000]{0})"),
        "d": op("all-gather-done.1", "all-gather-done", "{{0,1}}"),
    }
    steps = capture(xplane_pb2, tmp_path, ops, [("s", 10, 30)], [("s", 20, 20)])  # as the kernels of a GPU
    assert rows_of(steps, "dur_ps", "wait_ps", "bytes") == [(0, 0, 1, 30, 10, 4000), (0, 1, 1, 20, 0, 4000)]


def test_the_bytes_of_a_reduce_scatter_are_those_before_it(xplane_pb2, tmp_path):
    ops = {"a": op("reduce-scatter.1", "reduce-scatter", "[1,4]<=[4]")}
    steps = capture(xplane_pb2, tmp_path, ops, *([("a", 10, 10)] for _ in range(4)))
    assert steps.collectives.select("bytes", "bus_bandwidth").unique().row(0) == (
        16000,
        pytest.approx(16000 / 10e-6 * 3 / 4),
    )


def test_groups_of_absent_devices_and_damaged_ones_are_ignored(xplane_pb2, tmp_path):
    for groups in ("{{0,7},{5,6}}", "{{90,91}}", "[2,2]<=[999999999,999999999]", "[3,3]<=[4]"):
        ops = {"a": op("all-reduce.1", "all-reduce", groups)}
        steps = capture(xplane_pb2, tmp_path, ops, [("a", 10, 10)])
        assert rows_of(steps, "dur_ps", "wait_ps", "last") == [(0, 0, 1, 10, None, None)]


def test_a_step_without_collectives_has_no_rows(xplane_pb2, tmp_path):
    steps = capture(xplane_pb2, tmp_path, {"f": op("fusion.1", "loop fusion", "")}, [("f", 0, 5)])
    assert rows_of(steps) == []


def nccl(tmp_path, *kernels, calls=()):
    """A trace of PyTorch: kernels of NCCL of 10 us each, one after the other, with their arguments."""
    stream = {"stream": 7, "device": 0}
    events = [
        {
            "ph": "X",
            "cat": "kernel",
            "name": f"ncclDevKernel_{name}_RING_LL(x)",
            "pid": 0,
            "tid": 7,
            "ts": 20 * n,
            "dur": 10,
        }
        | {"args": stream | {"correlation": n + 1} | args}
        for n, (name, args) in enumerate(kernels)
    ]
    events += [
        {"ph": "X", "cat": "cpu_op", "name": "record_param_comms", "pid": 1, "tid": 1, "ts": 0, "dur": 1, "args": args}
        for args in calls
    ]
    file = tmp_path / "rank0.pt.trace.json"
    file.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events, "distributedInfo": {"rank": 0}}))
    return tp.steps(tp.load(file), by="whole")


def message(inside, outside, dtype="BFloat16", size=8, ranks="[0, 1, 2, 3, 4, 5, 6, 7]"):
    return {"In msg nelems": inside, "Out msg nelems": outside, "dtype": dtype} | {
        "Group size": size,
        "Process Group Ranks": ranks,
    }


def test_nccl_kernels_have_the_bytes_and_ranks_that_pytorch_recorded(tmp_path):
    steps = nccl(
        tmp_path,
        ("AllGather", message(1000, 8000)),
        ("ReduceScatter_Sum_f32", message(8000, 1000, "Float")),
        ("AllReduce_Sum_bf16", message(500, 500)),
        ("AllReduce_Sum_bf16", {"External id": 5}),
        ("AllReduce_Sum_bf16", {}),
        calls=[{"External id": 5} | message(250, 250, "Double", 64, "[0, 1, ..., 63]")],
    )
    rows = steps.collectives
    assert rows.select("bytes", "groups").rows() == [
        *((nbytes, "{{0,1,2,3,4,5,6,7}}") for nbytes in (16000, 32000, 1000)),
        *((2000, None), (None, None)),
    ]
    speeds = [16000 / 10e-6 * 7 / 8, 32000 / 10e-6 * 7 / 8, 1000 / 10e-6 * 2 * 7 / 8, 2000 / 10e-6 * 2 * 63 / 64, None]
    assert rows["bus_bandwidth"].to_list() == [None if speed is None else pytest.approx(speed) for speed in speeds]


@pytest.mark.parametrize(
    "damage",
    [
        {"In msg nelems": "many", "Out msg nelems": None},
        {"In msg nelems": -5, "Out msg nelems": True},
        {"dtype": "Quaternion"},
        {"dtype": ["Float"]},
        {"In msg nelems": 2**62, "dtype": "ComplexDouble"},
    ],
)
def test_a_damaged_message_has_unknown_bytes(tmp_path, damage):
    steps = nccl(tmp_path, ("AllGather", message(1000, 8000) | damage))
    assert steps.collectives.select("bytes", "bus_bandwidth").rows() == [(None, None)]


@pytest.mark.parametrize("size", [-1, 0, "8", 2**70])
def test_a_damaged_group_is_that_of_the_capture(tmp_path, size):
    steps = nccl(tmp_path, ("AllReduce", message(1000, 1000, size=size, ranks="[[0, x")))
    assert steps.collectives.select("bytes", "groups", "bus_bandwidth").rows() == [(2000, None, None)]


@given(st.text(alphabet="{}[]<=,T()0123456789", max_size=40))
def test_any_text_is_groups_or_none(text):
    assert all(isinstance(device, int) for group in replica_groups(text) for device in group)


def whole(profile):
    """One step a host, from the first event to the last."""
    end = (pl.col("start_ps") + pl.col("dur_ps")).max()
    return profile.events.group_by("host").agg(pl.col("start_ps").min(), dur_ps=end - pl.col("start_ps").min(), step=0)


@pytest.mark.parametrize(
    ("name", "ops"),
    [
        ("tpu_vllm-qwen3.trace.json.gz", {"all-reduce": 258, "all-gather": 4}),
        ("tpu-v6e-4_jax_host-offload.xplane.pb", {"all-reduce": 12}),
        ("gpu-b200_pytorch_vllm.trace.json.gz", {"multimem_all_reduce_kernel": 73, None: 1}),
    ],
)
def test_collectives_of_real_captures(real_profiles, name, ops):
    steps = tp.steps(tp.load(real_profiles / name), by=whole)
    rows = steps.collectives.with_columns(op=pl.col("op").cast(pl.String))
    counts = dict(rows.group_by("op").len().rows())
    assert sorted(counts.values()) == sorted(ops.values())
    assert {op: counts[op] for op in ops if op} == {op: n for op, n in ops.items() if op}
    by_device = rows.group_by("device").agg(pl.col("dur_ps").sum())
    union = steps.devices.select("device", "collective_ps")
    for dur_ps, collective_ps in by_device.join(union, on="device").select("dur_ps", "collective_ps").rows():
        assert dur_ps == pytest.approx(collective_ps, rel=0.005)  # of all devices, none overlap
    assert (rows["wait_ps"].drop_nulls() >= 0).all()
    if "vllm-qwen3" in name:  # pairs: one of each two came last
        assert (rows["wait_ps"] == 0).sum() == rows.height // 2
        assert (rows["algorithm_bandwidth"].drop_nulls() > 0).all()
    if "b200" in name:  # 201,088 numbers of 2 bytes in 21.953 us, from 8 ranks; the others are no kernels of NCCL
        sent = rows.drop_nulls("bytes").select("bytes", "groups", "bus_bandwidth").row(0)
        assert sent == (402_176, "{{0,1,2,3,4,5,6,7}}", pytest.approx(402_176 / 21.953e-6 * 7 / 8))


def test_statistics_alone_hold_no_collectives():
    with pytest.raises(tp.TpunbError, match="keras_cnn holds no collectives: its capture kept statistics only"):
        _ = tp.steps(tp.sample("keras_cnn")).collectives
