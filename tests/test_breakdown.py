"""Where a step's time went: each figure spelled out, and null where the capture does not know it."""

from itertools import pairwise

import polars as pl
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

import tpunb as tp
from tpunb import schema
from tpunb.step_stats import boundaries, launches, reduce
from tpunb.testing import toy_events

CPU, TPU, TPU1, GPU = "/host:CPU", "/device:TPU:0", "/device:TPU:1", "/device:GPU:0"
US = 1_000_000
TIMES = ["device_ps", "idle_ps", "infeed_ps", "outfeed_ps", "transfer_ps", "collective_ps"]
HARDWARE = pl.DataFrame(
    [("toy", TPU, "TPU v9", 1e12, 1e9, 0.25), ("toy", TPU1, "TPU v9", 1e12, 1e9, 0.25)],
    schema=schema.HARDWARE,
    orient="row",
)


def step_of(*rows, hardware=HARDWARE, **columns):
    """The one step of 100 microseconds on the host, and rows of a device spelled as toy events."""
    events = toy_events((CPU, "python", "train", 0, 100, 1), *rows)
    spelled = {
        name: pl.Series([None, *values], dtype=schema.EVENTS[name], strict=False) for name, values in columns.items()
    }
    events = events.with_columns(**spelled)
    return reduce.reduce(events, boundaries.find(events)[0], hardware)


def times(frame):
    return [None if value is None else value // US for value in frame.select(TIMES).row(0)]


TPU_OPS = [
    (TPU, "XLA Ops", "infeed.1", 0, 10),
    (TPU, "XLA Ops", "while.1", 10, 60),
    (TPU, "XLA Ops", "fusion.1", 10, 40),  # nested in the loop
    (TPU, "XLA Ops", "all-reduce.1", 50, 20),  # as is this
    (TPU, "XLA Ops", "outfeed.1", 75, 5),
]
CATEGORIES = ["infeed", "while", "loop fusion", "all-reduce", "outfeed"]


def test_a_tpus_time_by_the_categories_of_its_operations():
    steps = step_of(*TPU_OPS, category=CATEGORIES)
    assert times(steps.devices) == times(steps.frame) == [75, 25, 10, 5, 0, 20]
    assert steps.devices["duty_cycle"].item() == pytest.approx(0.6)  # what waits for the host is not its work


def test_work_by_the_device_peaks_and_what_a_loop_repeats_counts_once():
    flops, read, hbm = [None, 50, 10, 40, None], [None, 5000, 2000, 3000, None], [None, 5000, 1500, 2500, None]
    steps = step_of(*TPU_OPS, category=CATEGORIES, flops=[n and n * 10**6 for n in flops], bytes=read, hbm_bytes=hbm)
    row = steps.frame.row(0, named=True)
    assert (row["flops"], row["bytes"]) == (50e6, 5000)
    assert row["flops_util"] == pytest.approx(50e6 / (100e-6 * 1e12))
    assert row["hbm_util"] == pytest.approx(4000 / (100e-6 * 1e9))
    assert row["mxu_util"] == 0.25


def test_two_devices_means_of_times_and_shares_sums_of_work():
    other = [(TPU1, "XLA Ops", "fusion.2", 20, 15)]
    steps = step_of(*TPU_OPS, *other, category=[*CATEGORIES, "loop fusion"], flops=[None, None, 10, None, None, 30])
    assert steps.devices["device_ps"].to_list() == [75 * US, 15 * US]
    row = steps.frame.row(0, named=True)
    assert (row["device_ps"], row["idle_ps"], row["infeed_ps"]) == (45 * US, 55 * US, 5 * US)
    assert row["duty_cycle"] == pytest.approx((0.6 + 0.15) / 2)
    assert row["flops"] == 40


def test_the_flops_of_a_custom_call_are_unknown():
    """The profiler writes 0 for what a custom call computes and moves, and 0 for what a copy computes."""
    ops = [(TPU, "XLA Ops", f"{name}.1", start, dur) for name, start, dur in (("dot", 0, 30), ("kernel", 30, 60))]
    categories = ["convolution fusion", "custom-call", "copy"]
    copy = (TPU, "XLA Ops", "copy.1", 90, 10)
    steps = step_of(*ops, copy, category=categories, flops=[10**6, 0, 0], bytes=[100, 0, 50], hbm_bytes=[100, 0, 50])
    row = steps.frame.row(0, named=True)
    assert (row["flops"], row["bytes"], row["flops_time_share"]) == (1e6, 150, 0.4)
    alone = step_of(ops[1], category=["custom-call"], flops=[0], bytes=[0]).devices.row(0, named=True)
    assert (alone["flops"], alone["bytes"], alone["flops_util"], alone["flops_time_share"]) == (None, None, None, 0)
    known = step_of(ops[1], category=["custom-call"], flops=[7], bytes=[0]).devices.row(0, named=True)
    assert (known["flops"], known["bytes"], known["flops_time_share"]) == (7, None, 1)


def test_busy_idle_and_imbalance_add_up_to_the_step_time():
    events = toy_events(
        *((TPU, line, name, start, 40) for line, name in (("Steps", "1"), ("XLA Ops", "a")) for start in (0,)),
        (TPU1, "Steps", "1", 0, 100),
        (TPU1, "XLA Ops", "a", 0, 60),
    )
    steps = reduce.reduce(events, boundaries.find(events)[0])
    figures = steps.frame.select("dur_ps", "device_ps", "idle_ps", "imbalance_ps").row(0)
    assert [ps // US for ps in figures] == [100, 50, 20, 30]
    assert step_of((TPU, "XLA Ops", "a", 0, 10)).frame["imbalance_ps"].item() is None  # one device


def test_what_a_device_does_not_report_is_null():
    steps = step_of((TPU, "XLA Ops", "fusion.1", 0, 10), hardware=None)
    assert times(steps.frame) == [10, 90, None, None, None, None]
    assert steps.frame.select("flops", "bytes", "flops_util", "hbm_util", "mxu_util").row(0) == (None,) * 5


def test_a_host_without_devices_has_null_device_columns():
    steps = step_of((CPU, "worker", "fc/MatMul:MatMul", 0, 10))
    assert times(steps.frame) == [None] * 6
    assert steps.frame.select(schema.DEVICE_FACTS).row(0) == (None,) * len(schema.DEVICE_FACTS)


def test_copies_and_collectives_of_a_gpu_are_detected_by_name():
    steps = step_of(
        (GPU, "Stream #1(Compute)", "gemm", 0, 30),
        (GPU, "Stream #2(MemcpyH2D)", "MemcpyH2D", 20, 20),  # half of it beside the kernel
        (GPU, "Stream #3(Compute)", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", 50, 10),
    )
    assert times(steps.frame) == [50, 50, None, None, 20, 10]


def test_what_computation_hides_is_not_exposed():
    reduce_ = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
    steps = step_of(
        (GPU, "Stream #7", "gemm", 0, 30),
        (GPU, "Stream #20", reduce_, 5, 20),  # behind the product
        (GPU, "Stream #20", reduce_, 40, 20),
        (GPU, "Stream #7", "relu", 45, 5),  # hides a quarter of it
        (GPU, "Stream #21", "MemcpyH2D", 55, 15),  # computation does not hide it, though a collective does
    )
    names = ["collective_ps", "exposed_collective_ps", "transfer_ps", "exposed_transfer_ps"]
    assert [ps // US for ps in steps.frame.select(names).row(0)] == [40, 15, 15, 15]


def test_a_loop_hides_nothing_of_what_it_runs():
    steps = step_of(*TPU_OPS, category=CATEGORIES)
    assert steps.frame["exposed_collective_ps"].item() == 20 * US


def test_programs_that_xla_runs_on_the_hosts_threads_are_a_devices():
    steps = step_of((CPU, "pool", "dot.1", 10, 30), (CPU, "pool/2", "dot.2", 20, 30), hlo_op=["dot.1", "dot.2"])
    assert steps.devices.select("device", "device_ps", "idle_ps").rows() == [(launches.CPU, 40 * US, 60 * US)]
    assert steps.ops.select("op", "side", "count").rows() == [("MatMul", "device", 2)]


def test_a_hosts_wait_for_its_input_and_its_compilations():
    steps = step_of(
        (CPU, "python", "IteratorGetNext", 5, 20),
        (CPU, "pool", "TfrtCpuClient::Compile", 40, 30),
        (CPU, "pool", "dce", 45, 5),  # within it
        (CPU, "worker", "MatMul", 30, 10),
    )
    assert steps.frame.select("input_ps", "compile_ps").row(0) == (20 * US, 30 * US)


def test_stages_of_the_input_pipeline_without_nested_iterators_and_ops():
    steps = step_of(
        (CPU, "reader", "Iterator::Prefetch::Map", 0, 50),
        (CPU, "reader", "DecodeJpeg", 5, 10),  # an op, as its framework op says
        (CPU, "reader", "PrefetchProduce", 16, 2),  # neither
        (CPU, "reader", "Iterator::Prefetch::Map::TFRecord", 20, 20),
        (CPU, "python", "Iterator::TFRecord", 30, 10),
        (CPU, "python", "InfeedEnqueueTuple", 60, 5),
        (CPU, "python", "IteratorGetNext", 70, 5),  # waits, and reads nothing
        (CPU, "reader", "Iterator::TFRecord", 200, 5),  # after the step
        tf_op=[None, "DecodeJpeg:DecodeJpeg", *[None] * 6],
    )
    assert steps.input_stages.select("stage", pl.col("time_ps") // US, "share").rows() == [
        ("enqueue", 5, 5 / 60),
        ("preprocess", 20, 20 / 60),
        ("read in advance", 20, 20 / 60),
        ("read on demand", 15, 15 / 60),
    ]
    assert step_of(*TPU_OPS).input_stages.is_empty()


def test_a_host_that_shows_no_input_pipeline_may_have_one_all_the_same():
    steps = step_of((CPU, "worker", "MatMul", 30, 10))
    assert steps.frame.select("input_ps", "compile_ps").row(0) == (None, 0)


def test_durations_are_by_the_device_clock_and_starts_by_the_host_clock():
    steps = step_of(
        (TPU, "XLA Ops", "copy-done.1", 0, 40),
        (TPU, "XLA Ops", "fusion.1", 40, 10),
        device_dur_ps=[35 * US, 11 * US],
    )
    assert sorted(steps.ops.select("op", "total_ps", "self_ps").rows()) == [
        ("copy-done", 35 * US, 35 * US),
        ("fusion", 11 * US, 11 * US),
    ]
    assert steps.frame["device_ps"].item() == 50 * US


def test_layers_join_a_step_to_its_layers_ops_and_instructions():
    events = toy_events(
        (CPU, "python", "train", 0, 100, 1),
        (TPU, "XLA Ops", "fusion.1", 0, 10),
        (TPU, "XLA Ops", "fusion.2", 10, 15),
        (TPU, "XLA Ops", "fusion.1", 30, 10),
        (TPU, "XLA Ops", "copy.1", 40, 5),
    ).with_columns(
        tf_op=pl.Series([None, "model/fc/MatMul:MatMul", "jit(f)/model/act/tanh", "model/fc/MatMul:MatMul", None]).cast(
            schema.NAME
        ),
        hlo_op=pl.Series([None, "fusion.1", "fusion.2", "fusion.1", "copy.1"]).cast(schema.NAME),
        flops=pl.Series([None, 5, 6, 7, None], dtype=pl.Int64),
    )
    rows = reduce.reduce(events, boundaries.find(events)[0])
    profile = tp.frames.Profile(
        "toy",
        "toy",
        pl.DataFrame(schema=schema.WINDOWS),
        pl.DataFrame(schema=schema.HARDWARE),
        0,
        read_events=lambda: events,
    )
    layers = tp.steps(profile).layers.sort("total_ps", descending=True)
    assert layers.schema == schema.LAYERS
    assert layers.select("step", "layer", "tf_op", "hlo_op", "op", "count", "flops").rows() == [
        (1, "model/fc", "model/fc/MatMul:MatMul", "fusion.1", "MatMul", 2, 12.0),
        (1, "model/act", "jit(f)/model/act/tanh", "fusion.2", "fusion", 1, 6.0),
        (1, None, None, "copy.1", "Copy", 1, None),
    ]
    assert layers["self_ps"].sum() == rows.ops["self_ps"].sum()


def test_instructions_of_one_name_in_two_programs_are_two_rows():
    events = toy_events(
        (CPU, "python", "train", 0, 100, 1),
        (TPU, "XLA Ops", "fusion.1", 0, 10),
        (TPU, "XLA Ops", "fusion.1", 20, 5),
        (TPU, "XLA Ops", "fusion.1", 30, 5),
    ).with_columns(
        hlo_op=pl.Series([None, "fusion.1", "fusion.1", "fusion.1"]).cast(schema.NAME),
        program=pl.Series([None, 7, 8, 8], dtype=pl.Int64),
    )
    profile = tp.frames.Profile(
        "toy",
        "toy",
        pl.DataFrame(schema=schema.WINDOWS),
        pl.DataFrame(schema=schema.HARDWARE),
        0,
        read_events=lambda: events,
    )
    layers = tp.steps(profile).layers.sort("program")
    assert layers.select("hlo_op", "program", "count", "self_ps").rows() == [
        ("fusion.1", 7, 1, 10 * US),
        ("fusion.1", 8, 2, 10 * US),
    ]


@examples(25)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 100),
            st.integers(0, 50),
            st.sampled_from(["infeed", "outfeed", "all-reduce", "loop fusion", "host send", None]),
        ),
        min_size=1,
        max_size=12,
    )
)
def test_no_time_is_negative_nor_longer_than_the_step(ops):
    steps = step_of(*((TPU, "XLA Ops", "op", start, dur) for start, dur, _ in ops), category=[c for *_, c in ops])
    for row in steps.devices.iter_rows(named=True):
        assert row["device_ps"] + row["idle_ps"] == row["dur_ps"]
        assert all(row[name] is None or 0 <= row[name] <= row["device_ps"] for name in TIMES[2:])
        assert 0 <= row["idle_ps"] <= row["dur_ps"]
        assert 0 <= row["duty_cycle"] <= 1


@given(
    st.lists(st.tuples(st.integers(0, 190), st.integers(1, 200), st.integers(7, 8)), min_size=1, max_size=12),
    st.lists(st.integers(1, 199), min_size=1, max_size=5, unique=True),
)
def test_the_time_of_steps_one_after_the_other_is_that_of_all_they_ran(ops, bounds):
    edges = [0, *sorted(bounds), 200]
    steps = [(CPU, "python", "train", low, high - low, n) for n, (low, high) in enumerate(pairwise(edges))]
    events = toy_events(*steps, *((GPU, f"Stream #{stream}", "op", start, dur) for start, dur, stream in ops))
    reduced = reduce.reduce(events, boundaries.find(events)[0])
    busy = {moment for start, dur, _ in ops for moment in range(start, min(start + dur, 200))}
    assert reduced.devices["device_ps"].sum() == len(busy) * US
    assert (reduced.devices["idle_ps"] >= 0).all()
