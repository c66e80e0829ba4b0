"""Host meets device: by hand-over, run or correlation, through threads, and on clocks that disagree."""

import gzip
import json
from decimal import Decimal
from itertools import accumulate, pairwise

import polars as pl
import pytest
from capture_loops import until
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from stand_in import StandIn

import tpunb as tp
from tpunb import schema
from tpunb.step_stats import boundaries, launches, reduce
from tpunb.testing import toy_events

CPU, TPU, GPU = "/host:CPU", "/device:TPU:0", "/device:GPU:0"
US = 1_000_000


def linked(events, **ids):
    """Give events, by their place, the ids of `sends`, `receives` and `launch`."""
    columns = {
        name: pl.Series([ids.get(name, {}).get(row) for row in range(events.height)], dtype=schema.EVENTS[name])
        for name in ("flow_out", "flow_in", "correlation_id")
    }
    return events.with_columns(**columns)


STEPS = [(CPU, "python", "train", 0, 10, 1), (CPU, "python", "train", 10, 10, 2), (CPU, "python", "train", 20, 10, 3)]


def on_device(events):
    intervals, rule = boundaries.find(events)
    rows = intervals.filter(pl.col("plane").is_not_null()).sort("start_ps")
    assert rule == "annotation"
    return [(row["step"], row["start_ps"] // US, row["end_ps"] // US) for row in rows.iter_rows(named=True)]


LATE = toy_events(
    *STEPS,
    (CPU, "python", "Enqueue", 2, 1),  # 3: each step launches one run, which starts long after the step is over
    (CPU, "python", "Enqueue", 12, 1),
    (CPU, "python", "Enqueue", 22, 1),
    (TPU, "XLA Modules", "jit_f", 100, 40),  # 6
    (TPU, "XLA Modules", "jit_f", 150, 40),
    (TPU, "XLA Modules", "jit_f", 200, 40),
    (TPU, "XLA Ops", "fusion.1", 100, 40),
    (TPU, "XLA Ops", "fusion.1", 150, 40),
    (TPU, "XLA Ops", "fusion.1", 200, 40),
)


@pytest.mark.parametrize(
    "ids",
    [
        {"flow_out": {3: 7, 4: 8, 5: 9}, "flow_in": {6: 7, 7: 8, 8: 9}},
        {"correlation_id": {3: 7, 4: 8, 5: 9, 6: 7, 7: 8, 8: 9}},
    ],
    ids=["hand-over", "run"],
)
def test_a_run_belongs_to_the_step_that_launched_it_however_late(ids):
    events = linked(LATE, **ids)
    assert on_device(events) == [
        (1, 0, 140),
        (2, 140, 190),
        (3, 190, 240),
    ]  # from the host's begin, or the device's end
    steps = reduce.reduce(events, boundaries.find(events)[0])
    assert steps.frame.select("step", "start_ps", "dur_ps", "device_ps", "idle_ps").rows() == [
        (1, 0, 140 * US, 40 * US, 100 * US),
        (2, 140 * US, 50 * US, 40 * US, 10 * US),
        (3, 190 * US, 50 * US, 40 * US, 10 * US),
    ]


def test_what_a_device_did_before_is_no_part_of_the_first_step():
    earlier = toy_events((TPU, "XLA Modules", "jit_f", 20, 70), (TPU, "XLA Ops", "fusion.1", 20, 70))
    of_lines = earlier.with_columns(pl.col("lane") + 1)
    events = linked(pl.concat([LATE, of_lines]), correlation_id={3: 7, 4: 8, 5: 9, 6: 7, 7: 8, 8: 9, LATE.height: 6})
    assert on_device(events) == [(1, 90, 140), (2, 140, 190), (3, 190, 240)]


def test_without_links_what_ran_in_a_steps_time_is_its():
    assert on_device(LATE) == []
    steps = reduce.reduce(LATE, boundaries.find(LATE)[0])
    assert steps.ops.filter(pl.col("side") == "device").is_empty()  # all of it ran after the last step's end


def test_the_way_leads_back_through_the_threads_that_handed_the_work_on():
    events = linked(
        toy_events(
            *STEPS,
            (CPU, "python", "Execute", 12, 1),  # 3: in step 2, hands over to the pool
            (CPU, "pool", "Scheduled", 45, 10),  # 4: takes it up when step 3 is over, hands over to the runtime
            (CPU, "pool", "Issue", 50, 1),  # 5: nested in it
            (CPU, "runtime", "StartRegion", 70, 0),  # 6: a mark without length
            (CPU, "runtime", "DoEnqueueProgram", 71, 5),  # 7
            (TPU, "XLA Modules", "jit_f", 90, 10),  # 8
        ),
        flow_out={3: 100, 5: 101, 7: 102},
        flow_in={4: 100, 6: 101, 8: 102},
    )
    assert on_device(events) == [(2, 10, 100)]


def test_a_launch_outside_every_step_makes_none():
    events = linked(
        toy_events(*STEPS, (CPU, "python", "Enqueue", 35, 1), (TPU, "XLA Modules", "jit_g", 40, 5)),
        flow_out={3: 7},
        flow_in={4: 7},
    )
    assert on_device(events) == []


def test_a_steps_line_wins_over_launches():
    events = linked(
        toy_events(
            *STEPS,
            (CPU, "python", "Enqueue", 2, 1),
            (TPU, "Steps", "2", 50, 10),
            (TPU, "XLA Modules", "jit_f", 50, 10),
        ),
        flow_out={3: 7},
        flow_in={5: 7},
    )
    assert on_device(events) == [(2, 50, 60)]


def test_kernels_are_linked_one_by_one():
    events = linked(
        toy_events(
            *STEPS,
            (CPU, "python", "cuLaunchKernel", 8, 1),
            (CPU, "python", "cuLaunchKernel", 9, 1),
            (CPU, "python", "cuLaunchKernel", 12, 1),
            (GPU, "Stream #1", "gemm", 9, 2),
            (GPU, "Stream #1", "gemm", 11, 5),  # runs in step 2's time, but for step 1
            (GPU, "Stream #1", "relu", 17, 1),
        ),
        correlation_id={3: 1, 4: 2, 5: 3, 6: 1, 7: 2, 8: 3},
    )
    assert on_device(events) == [(1, 0, 16), (2, 16, 20)]
    ops = reduce.reduce(events, boundaries.find(events)[0]).ops
    assert sorted(ops.filter(pl.col("side") == "device").select("step", "op", "count").rows()) == [
        (1, "gemm", 2),
        (2, "relu", 1),
    ]


def of_streams(*kernels, steps=6, step_us=100):
    """Steps one after the other; each kernel is (step, stream, start, duration), launched in its step."""
    host = [(CPU, "python", "train", step_us * i, step_us, i) for i in range(steps)]
    sent = [(CPU, "python", "cudaLaunchKernel", step_us * step + 1, 1) for step, *_ in kernels]
    ran = [(GPU, f"Stream #{stream}", f"k{stream}", start, dur) for _, stream, start, dur in kernels]
    n = len(kernels)
    ids = {steps + row + copy * n: row + 1 for row in range(n) for copy in (0, 1)}
    events = linked(toy_events(*host, *sent, *ran), correlation_id=ids)
    return reduce.reduce(events, boundaries.find(events)[0])


@pytest.mark.parametrize(
    ("lag", "busy", "first"), [(50, [90, *[80] * 5], 130), (90, [90, *[80] * 5], 170), (120, [100, *[90] * 4, 80], 200)]
)
def test_a_stream_that_runs_ahead_does_not_say_when_steps_begin(lag, busy, first):
    """Each step copies 10 us at once, and multiplies 80 us on another stream, later, however many steps behind."""
    copies = [(i, 20, 100 * i + 1, 10) for i in range(6)]
    run = of_streams(*copies, *((i, 7, 100 * i + lag, 80) for i in range(6)))
    assert [ps // US for ps in run.frame["dur_ps"]] == [first, *[100] * 5]
    assert [ps // US for ps in run.frame["device_ps"]] == busy
    launched = run.ops.filter(pl.col("side") == "device").group_by("step").agg(pl.col("self_ps").sum())
    assert launched["self_ps"].to_list() == [90 * US] * 6


def test_layers_of_a_captured_run_are_of_the_steps_that_launched_them(tmp_path):
    """Each step of 10 ms launches a copy that runs at once, and a product that runs 9 ms later on another stream."""
    events = []
    for step in range(6):
        at, both = 10_000 * step, (("Memcpy HtoD", "gpu_memcpy", 20, 100, 1000), ("gemm", "kernel", 7, 9000, 8000))
        events.append({"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}", "ts": at, "dur": 9990})
        for number, (name, kind, stream, lag, dur) in enumerate(both, 2 * step + 1):
            sent = {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": at + 10 * number - 20 * step, "dur": 3}
            ran = {"cat": kind, "name": name, "ts": at + lag, "dur": dur, "tid": stream}
            args = {"correlation": number, "device": 0, "stream": stream}
            events += [{"ph": "X", **sent, "args": {"correlation": number}}, {"ph": "X", **ran, "args": args}]
    trace = json.dumps({"schemaVersion": 1, "traceEvents": events}).encode()
    with tp.capture(tmp_path / "run", source=StandIn(trace), keep="all", schedule=tp.Schedule(window=0.01)) as run:
        until(lambda: run.status.windows)
    steps = tp.steps(tp.load(tmp_path / "run")).full()
    of_step = pl.col("self_ps").filter(side="device").sum() // US
    for rows in (steps.ops, steps.layers.filter(pl.col("step") < 6)):
        assert rows.group_by("step").agg(of_step).sort("step").rows() == [(step, 9000) for step in range(6)]


@examples(60)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 300), st.integers(1, 60)), min_size=1, max_size=4),
    st.integers(1, 5),
)
def test_steps_have_the_time_of_the_device_and_what_they_launched(launches, steps):
    free, kernels = {}, []
    for step in range(steps):
        for stream, lag, dur in launches:
            start = max(100 * step + 1 + lag, free.get(stream, 0))
            free[stream] = start + dur
            kernels.append((step, stream, start, dur))
    run = of_streams(*kernels, steps=steps)
    spans = run.devices.select(pl.col("start_ps") // US, end=(pl.col("start_ps") + pl.col("dur_ps")) // US).rows()
    assert all(end == begin for (_, end), (begin, _) in pairwise(spans))
    busy = {at for _, _, start, dur in kernels for at in range(start, start + dur)}
    assert run.devices["device_ps"].sum() == len(busy & {*range(spans[0][0], spans[-1][1])}) * US
    launched = run.ops.filter(pl.col("side") == "device").group_by("step").agg(pl.col("self_ps").sum()).sort("step")
    assert launched["self_ps"].to_list() == [sum(dur for *_, dur in launches) * US] * steps


@pytest.mark.parametrize("cut", [False, True])
def test_a_step_after_the_last_that_the_busiest_device_recorded_is_unknown(cut):
    """The profiler's buffer filled up in step 2: a copy on another device is not all that the devices did."""
    launched = [(CPU, "python", "hipModuleLaunchKernel", 100 * i + 10 + 25 * k, 1) for i in range(2) for k in range(2)]
    copied = [(CPU, "python", "hipMemcpyAsync", 100 * i + 5, 1) for i in range(3)]
    steps = [(CPU, "python", "train", 100 * i, 90, i) for i in range(4)]
    kernels = [(GPU, "Stream #1", "gemm", 100 * i + 12 + 25 * k, 25) for i in range(2) for k in range(2)]
    launched, kernels = (rows[: 3 if cut else 4] for rows in (launched, kernels))
    copies = [("/device:GPU:1", "Stream #2", "copy", 100 * i + 7, 5) for i in range(3)]
    evaluation = [(CPU, "python", "eval", 400, 50, 4)]  # no device runs steps of this kind
    n = len(launched) + len(copied)
    ids = {4 + row + copy * n: row + 1 for row in range(n) for copy in (0, 1)}
    events = linked(toy_events(*steps, *launched, *copied, *kernels, *copies, *evaluation), correlation_id=ids)
    run = reduce.reduce(events, boundaries.find(events)[0])
    assert run.frame.select("step", "kind", "traced", "device_ps").rows() == [
        (0, "train", "full", 27_500_000),
        (1, "train", *(("partial", None) if cut else ("full", 27_500_000))),
        (2, "train", "partial", None),
        (3, "train", "partial", None),
        (4, "eval", "full", None),
    ]
    assert run.devices["step"].to_list() == ([0, 0] if cut else [0, 1, 0, 1])


def test_a_step_whose_runs_have_no_launch_is_not_lost():
    runs = [(GPU, "Stream #1", "gemm", 10 * i + 2, 5) for i in range(3)]
    events = toy_events(*STEPS, (CPU, "python", "cuLaunchKernel", 1, 1), *runs)
    events = linked(events, correlation_id={3: 1, 4: 1, 5: 2, 6: 3})
    run = reduce.reduce(events, boundaries.find(events)[0])
    assert run.frame.select("traced", "device_ps").rows() == [("full", 5 * US)] * 3


def test_a_steps_line_says_that_a_step_was_recorded():
    lines = [(TPU, "Steps", str(i), 10 * i - 10, 9) for i in (1, 2, 3)]
    ops = [(TPU, "XLA Ops", "fusion.1", 10 * i - 9, 4) for i in (1, 2, 3)]
    events = toy_events(*STEPS, (CPU, "python", "Enqueue", 0, 1), (TPU, "XLA Modules", "jit_f", 1, 5), *lines, *ops)
    events = linked(events, flow_out={3: 7}, flow_in={4: 7})
    run = reduce.reduce(events, boundaries.find(events)[0])
    assert run.frame.select("traced", "device_ps").rows() == [("full", 4 * US)] * 3


# -- XLA on the host's own threads ----------------------------------------------------------------------------


def on_threads(*, launches, runs):
    """JAX on the CPU: every step asks for a run at once; the runs follow one another, later, on a pool."""
    steps = [(CPU, "python", "train", 10 * i, 10, i) for i in range(4)]
    asked = [
        (CPU, "python", "CommonPjRtLoadedExecutable::ExecuteHelperOnSingleDevice", 10 * i + 2, 1) for i in launches
    ]
    ran = [(CPU, "pool", "dot.1", 50 + 20 * i, 15) for i in runs]
    events = toy_events(*steps, *asked, *ran)
    ran_at = range(len(steps) + len(asked), events.height)
    events = linked(events, correlation_id={row: 1000 + row for row in ran_at})
    hlo = ["dot.1" if row in ran_at else None for row in range(events.height)]
    return events.with_columns(hlo_op=pl.Series(hlo, dtype=schema.NAME))


def test_runs_on_host_threads_are_paired_in_order():
    events = on_threads(launches=range(4), runs=range(4))
    assert on_device(events) == [(0, 0, 65), (1, 65, 85), (2, 85, 105), (3, 105, 125)]
    steps = reduce.reduce(events, boundaries.find(events)[0])
    assert steps.devices["device"].unique().to_list() == [launches.CPU]
    assert steps.frame["device_ps"].to_list() == [15 * US] * 4
    on_devices = steps.ops.filter(pl.col("side") == "device")
    assert on_devices.select("op", "count").rows() == [("MatMul", 1)] * 4


def test_launches_that_a_window_missed_are_those_before_it():
    assert [step for step, *_ in on_device(on_threads(launches=[1, 2, 3], runs=range(4)))] == [1, 2, 3]


def test_launches_that_had_not_run_when_a_window_ended_are_the_last():
    assert [step for step, *_ in on_device(on_threads(launches=range(4), runs=[0, 1, 2]))] == [0, 1, 2]


def test_no_run_is_paired_with_a_launch_after_it():
    """Three runs were queued before the window: they are nobody's, and the last one is the first launch's."""
    assert [step for step, *_ in on_device(on_threads(launches=range(4), runs=[-3, -2.9, -2.8, 0]))] == [0]


def test_runs_of_many_devices_meet_their_launch_by_its_number():
    """JAX over several CPU devices: one launch names no device, and four runs bear its number."""
    steps = [(CPU, "python", "train", 10 * i, 10, i) for i in range(2)]
    asked = [(CPU, "python", "CommonPjRtLoadedExecutable::Execute (jit_f)", 10 * i + 2, 1) for i in range(2)]
    ran = [(CPU, f"pool/{device}", "dot.1", 50 + 20 * i, 15) for i in range(2) for device in range(4)]
    events = toy_events(*steps, *asked, *ran)
    run_of = [None, None, 0, 1, *(i for i in range(2) for _ in range(4))]
    events = linked(events, correlation_id={row: 100 + run for row, run in enumerate(run_of) if run is not None})
    hlo = [None] * 4 + ["dot.1"] * 8
    assert on_device(events.with_columns(hlo_op=pl.Series(hlo, dtype=schema.NAME))) == [(0, 0, 65), (1, 65, 85)]


def test_steps_whose_work_the_window_no_longer_saw_are_partial():
    intervals, _ = boundaries.find(on_threads(launches=range(4), runs=[0, 1]))
    seen = intervals.filter(pl.col("plane").is_null()).sort("step")["traced"].to_list()
    assert seen == ["full", "full", "partial", "partial"]


# -- clocks ---------------------------------------------------------------------------------------------------


def test_clocks_that_agree_give_the_delay():
    events = linked(LATE, flow_out={3: 7, 4: 8}, flow_in={6: 7, 7: 8})
    assert launches.clocks(events).rows() == [("toy", TPU, "flow", 2, 2, 118 * US, 0, 2)]


def test_a_run_before_its_launch_measures_the_skew_and_no_delay_is_negative():
    events = linked(
        toy_events(
            (CPU, "python", "Enqueue", 400, 1),
            (CPU, "python", "Enqueue", 500, 1),
            (TPU, "XLA Modules", "jit_f", 20, 9),  # 380 us before it was asked for
            (TPU, "XLA Modules", "jit_f", 140, 9),  # 360 us
        ),
        correlation_id={0: 1, 1: 2, 2: 1, 3: 2},
    )
    assert launches.clocks(events).rows() == [("toy", TPU, "run", 2, 2, 10 * US, 380 * US, 1)]


def test_a_device_without_links_has_none():
    events = linked(toy_events((TPU, "XLA Modules", "jit_f", 20, 9)), correlation_id={0: 5})
    assert launches.clocks(events).rows() == [("toy", TPU, None, 1, 0, None, None, None)]
    assert launches.clocks(toy_events((CPU, "python", "f", 0, 1))).is_empty()


@examples(30)
@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(-1000, 1000), st.integers(0, 5)), min_size=1, max_size=20))
def test_no_statistic_of_the_clocks_is_ever_negative(runs):
    host = [(CPU, "python", "Enqueue", 2000 + sent, 1) for sent, _, _ in runs]
    device = [(TPU, "XLA Modules", "jit_f", 2000 + sent + delay, 1) for sent, delay, _ in runs]
    ids = {row: key for row, (_, _, key) in enumerate(runs)}
    events = linked(toy_events(*host, *device), correlation_id=ids | {row + len(host): key for row, key in ids.items()})
    row = launches.clocks(events).row(0, named=True)
    assert row["linked"] == row["launches"] == len(runs)
    assert row["skew_ps"] >= 0
    assert row["delay_ps"] >= 0
    assert 0 <= row["queue_length"] <= row["launches"]


# -- waits of an idle device ----------------------------------------------------------------------------------


def devices(*steps):
    """DEVICES of the GPU: number, start and length of each step in microseconds."""
    rows = [("toy", GPU, step, start * US, dur * US, 0, 0) for step, start, dur in steps]
    names = ["host", "device", "step", "start_ps", "dur_ps", "device_ps", "idle_ps"]
    return schema.check(pl.DataFrame(rows, schema=names, orient="row"), schema.DEVICES, "devices")


def waits(events, *steps):
    rows = launches.with_waits(devices(*steps), events).select("step", "host_wait_ps", "kernel_wait_ps").rows()
    return [(step, *(None if wait is None else wait / US for wait in by)) for step, *by in rows]


KERNELS = linked(
    toy_events(
        *((CPU, "python", "cudaLaunchKernel", sent, 1) for sent in (5, 6, 7, 50, 51, 300)),
        (GPU, "Stream #7", "a", 10, 10),  # 10 us idle before: launched at 5, after the step began
        (GPU, "Stream #7", "b", 22, 8),  # 2 us idle: launched while a ran or earlier
        (GPU, "Stream #8", "c", 25, 15),  # overlaps b
        (GPU, "Stream #7", "d", 60, 10),  # 20 us idle: launched at 50, c ended at 40
        (GPU, "Stream #7", "e", 120, 80),  # 50 us idle, though launched at 51: neither
        (GPU, "Stream #7", "f", 310, 10),  # 110 us idle, over the edge of the steps at 250
    ),
    correlation_id={0: 1, 1: 2, 2: 3, 3: 4, 4: 5, 5: 6, 6: 1, 7: 2, 8: 3, 9: 4, 10: 5, 11: 6},
)


def test_an_idle_device_waits_for_its_host_or_for_the_kernel():
    assert waits(KERNELS, (1, 0, 250), (2, 250, 100)) == [(1, 10 + 20 + 50, 2), (2, 60, 0)]
    # a step counts what is within it: from 65 on, nothing waits until 120
    assert waits(KERNELS, (1, 35, 20), (2, 55, 10)) == [(1, 15, 0), (2, 5, 0)]
    assert waits(KERNELS, (1, 21, 1)) == [(1, 0, 1)]


def test_the_waits_of_a_device_without_links_are_unknown():
    assert waits(linked(KERNELS), (1, 0, 250)) == [(1, None, None)]
    assert launches.with_waits(pl.DataFrame(schema=schema.DEVICES), KERNELS).is_empty()


def test_most_launches_in_the_queue():
    assert launches.clocks(KERNELS)["queue_length"].to_list() == [3]  # at 7, before a starts


@pytest.mark.parametrize(
    ("wait", "launch", "expected"),
    [
        ((5, 26), 60, 26),  # the device runs dry from 30 to 62: without the wait, 26 us less
        ((5, 26), 31, 3),
        ((28, 3), 60, 3),  # the host is late anyway
        ((5, 0), 60, 0),
        ((5, 26), 20, 0),  # launched meanwhile, by another thread
    ],
)
@pytest.mark.parametrize("name", ["cudaStreamSynchronize", "hipDeviceSynchronize", "aten::item"])
def test_a_device_waits_for_a_host_that_waited_for_it(name, wait, launch, expected):
    """The first run ends at 30; what idles before the next is the wait's, up to its length, if nothing is between."""
    events = linked(
        toy_events(
            *((CPU, "python", "cudaLaunchKernel", sent, 1) for sent in (1, launch)),
            (GPU, "Stream #7", "a", 2, 28),
            (GPU, "Stream #7", "b", max(launch, 30) + 2, 8),
            (CPU, "python", name, *wait),
        ),
        correlation_id={0: 1, 1: 2, 2: 1, 3: 2},
    )
    rows = launches.with_waits(devices((1, 0, 100)), events)
    assert rows["sync_wait_ps"].item() == expected * US <= rows["host_wait_ps"].item()


def test_the_line_of_python_that_waits_longest():
    frames = ["/home/a/train.py(7): fit", "torch/_tensor.py(1): item", "<built-in method item of Tensor>"]
    python = [(CPU, "main", f"${frame}", at, 30 - 2 * at) for at, frame in enumerate(frames)]
    short = [(CPU, "main", "$/home/a/eval.py(9): log", 40, 9), (CPU, "main", "aten::item", 41, 5)]
    waits = [(CPU, "main", "aten::item", 3, 20), (CPU, "other", "cudaStreamSynchronize", 0, 90)]  # without frames
    events = toy_events(*python, *short, *waits)
    assert launches.sync_place(events) == "train.py:7 in fit"
    assert launches.sync_place(KERNELS) is None


@examples(30)
@given(
    runs=st.lists(st.tuples(*[st.integers(0, 200)] * 3), min_size=1, max_size=12),
    cuts=st.lists(st.integers(1, 299), max_size=4, unique=True),
)
def test_waits_of_steps_are_the_picoseconds_of_gaps_by_their_cause(runs, cuts):
    """Each microsecond is classified by itself, from the next run and the end of those before."""
    runs = [(sent, sent + delay, dur) for sent, delay, dur in runs]
    host = [(CPU, "python", "launch", sent, 1) for sent, _, _ in runs]
    ids = {row: row % len(runs) + 1 for row in range(2 * len(runs))}
    events = linked(toy_events(*host, *((GPU, "Stream #7", "k", at, dur) for _, at, dur in runs)), correlation_id=ids)
    edges = [0, *sorted(cuts), 300]
    found = [[0, 0] for _ in edges[1:]]
    for at in range(300):
        if any(start <= at < start + dur for _, start, dur in runs) or all(start <= at for _, start, _ in runs):
            continue
        start, sent = min((start, sent) for sent, start, _ in runs if start > at)
        begin = max([0, *(start + dur for _, start, dur in runs if start <= at)])
        number = sum(edge <= at for edge in edges) - 1
        if sent > begin:
            found[number][0] += 1
        elif start - begin < 30:
            found[number][1] += 1
    steps = [(number, begin, end - begin) for number, (begin, end) in enumerate(pairwise(edges))]
    assert waits(events, *steps) == [(number, *by) for number, by in enumerate(found)]


# -- real captures --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "devices"),
    [
        ("tpu-v6e-4_jax_host-offload", {"flow": [105, 103, 103, 103]}),
        ("gpu-v100_tf2_bert_steps", {"correlation": [19, 759, 778]}),
        ("gpu-mi300x_jax_conv", {"correlation": [53, 25]}),
        ("gpu-mi300x_jax08_gemm", {"correlation": [54]}),
        ("gpu-1080ti_julia", {"correlation": [1, 1]}),
    ],
)
def test_every_run_of_the_real_captures_is_linked(real_profiles, name, devices):
    clocks = tp.load(real_profiles / f"{name}.xplane.pb").clocks
    assert {link: rows["launches"].to_list() for (link,), rows in clocks.group_by("link")} == devices
    assert (clocks["linked"] == clocks["launches"]).all()
    assert (clocks["skew_ps"] == 0).all()
    assert (clocks["delay_ps"] > 0).all()


PYTORCH = ["gpu-v100_pytorch_resnet50-workers0.pt.trace.json.gz", "gpu-b200_pytorch_vllm.trace.json.gz"]


@pytest.mark.parametrize("name", PYTORCH)
def test_waits_and_queue_are_those_of_the_json(real_profiles, name):
    trace = json.loads(gzip.decompress((real_profiles / name).read_bytes()), parse_float=Decimal)
    items = [item for item in trace["traceEvents"] if item["ph"] == "X" and item["cat"] != "Trace"]
    first = min(item["ts"] for item in items)
    calls = {"Runtime", "cuda_runtime", "cuda_driver"}
    sent = {item["args"]["correlation"]: item["ts"] for item in items if item["cat"] in calls}
    kinds = {"kernel", "memcpy", "memset"}
    kernels = [item for item in items if item["cat"].lower().removeprefix("gpu_") in kinds]
    free, expected, changes = first, [0, 0], []
    for kernel in sorted(kernels, key=lambda kernel: kernel["ts"]):
        start, launched = kernel["ts"], sent.get(kernel["args"]["correlation"])
        if launched is not None:
            changes += [(launched, 1), (start, -1)]
            expected[0] += max(start - free, 0) * (launched > free)
            expected[1] += max(start - free, 0) * (launched <= free and start - free < 30)
        free = max(free, start + kernel["dur"])
    profile = tp.load(real_profiles / name)
    steps = tp.steps(profile, by="whole").devices
    assert steps.select("host_wait_ps", "kernel_wait_ps").rows() == [tuple(wait * US for wait in expected)]
    assert profile.clocks["queue_length"].to_list() == [max(accumulate(by for _, by in sorted(changes)))]


def test_waits_are_those_of_hta(real_profiles, tmp_path):
    """HTA leaves out the last step, and the 9.739 ms of step 5 before its first kernel."""
    analysis = pytest.importorskip("hta.trace_analysis", reason="HTA is the oracle: pip install HolisticTraceAnalysis")
    hta = analysis.TraceAnalysis({0: str(real_profiles / PYTORCH[0])}, str(tmp_path))
    theirs = hta.get_idle_time_breakdown(visualize=False)[0]
    profile = tp.load(real_profiles / PYTORCH[0])
    ours = tp.steps(profile).devices.filter(pl.col("step") < 10).select(pl.col("host_wait_ps", "kernel_wait_ps").sum())
    expected = dict(zip(theirs["idle_category"], theirs["idle_time"], strict=True))
    assert expected["other"] == 0
    assert ours.row(0) == ((expected["host_wait"] + 9_739) * US, expected["kernel_wait"] * US)
    queue = hta.get_queue_length_summary()["queue_length"]["max"]
    assert profile.clocks["queue_length"].to_list() == queue.to_list() == [569]


def test_runs_and_ordinals_link_the_v6e_capture_as_well_as_hand_overs(real_profiles):
    events = tp.load(real_profiles / "tpu-v6e-4_jax_host-offload.xplane.pb").events
    by_run = launches.clocks(events.with_columns(flow_in=pl.lit(None, pl.UInt64)))
    assert by_run["link"].to_list() == ["run"] * 4
    assert by_run["linked"].to_list() == by_run["launches"].to_list() == [105, 103, 103, 103]


def test_ids_of_one_host_mean_nothing_on_another():
    """Two hosts count their hand-overs from 1: the pool of b takes up what b's own step 2 handed over, not a's."""
    a = linked(
        toy_events((CPU, "python", "train", 0, 40, 9), (CPU, "python", "Execute", 1, 1), host="a"), flow_out={1: 1}
    )
    b = linked(
        toy_events(
            *STEPS,
            (CPU, "python", "Execute", 12, 1),
            (CPU, "pool", "DoEnqueueProgram", 45, 10),
            (TPU, "XLA Modules", "jit_f", 60, 10),
            host="b",
        ),
        flow_out={3: 1, 4: 2},
        flow_in={4: 1, 5: 2},
    ).with_columns(pl.col("lane") + 10)
    assert on_device(pl.concat([a, b])) == [(2, 10, 70)]
