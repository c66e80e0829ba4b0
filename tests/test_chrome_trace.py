"""Chrome traces of every dialect as events."""

import gc
import gzip
import json
import re

import polars as pl
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from link_ids import flow_id, run_launch
from stand_in import xspace

import tpunb as tp
from tpunb import schema
from tpunb.errors import BadProfile
from tpunb.io import chrome_trace, xplane


def events(*items):
    return chrome_trace.read(json.dumps([*items]).encode(), source="toy")[0]


def span(name="op", **more):
    return {"ph": "X", "pid": 1, "tid": 2, "ts": 10, "dur": 5, "name": name} | more


def named(kind, name, **ids):
    return {"ph": "M", "name": kind, "args": {"name": name}} | ids


DEVICE = named("process_name", "/device:TPU:0", pid=1)
HOST = named("process_name", "/host:CPU", pid=1)


# -- TensorFlow and JAX ---------------------------------------------------------------------------------------


def test_planes_and_lines_are_named_by_metadata_events_wherever_they_stand():
    frame = events(span(), DEVICE, named("thread_name", "XLA Ops", pid=1, tid=2), {})
    assert frame.schema == schema.EVENTS
    known = {"host": "", "plane": "/device:TPU:0", "line": "XLA Ops", "lane": 0, "name": "op"}
    known |= {"start_ps": 10_000_000, "dur_ps": 5_000_000}
    assert frame.row(0, named=True) == dict.fromkeys(schema.EVENTS) | known


def test_a_thread_without_a_name_is_named_by_its_number():
    assert events(DEVICE, span(tid=77))["line"].to_list() == ["77"]


def test_threads_of_one_name_have_distinct_lanes():
    names = [named("thread_name", "tf_Compute", pid=1, tid=tid) for tid in (5, 6)]
    frame = events(HOST, *names, span(tid=5), span(tid=6), span(tid=5), span(pid=9, tid=5))
    assert frame["lane"].to_list() == [0, 1, 0, 2]
    assert frame["line"].to_list() == ["tf_Compute", "tf_Compute", "tf_Compute", "5"]


@pytest.mark.parametrize(
    ("written", "picoseconds"),
    [
        ("1178934.0624", 1178934062400),
        ("0.000225", 225),
        ("1e-06", 1),
        ("7771111.878", 7771111878000),
        ("9000000000000.000001", 9000000000000000001),
        ("0.0000004", 0),
        ("3", 3_000_000),
        ("-1.5", -1_500_000),
    ],
)
def test_microseconds_become_picoseconds_exactly(written, picoseconds):
    trace = f'[{{"ph": "X", "ts": {written}, "dur": {written.strip("-")}, "name": "a"}}]'
    frame = chrome_trace.read(trace.encode(), source="toy")[0]
    assert frame.select("start_ps", "dur_ps").row(0) == (picoseconds, abs(picoseconds))


@given(times=st.lists(st.integers(-(2**62), 2**62), min_size=1, max_size=5))
@examples(50)
def test_every_picosecond_survives(times):
    digits = [f"{'-' if ps < 0 else ''}{abs(ps) // 10**6}.{abs(ps) % 10**6:06}" for ps in times]
    items = ", ".join(f'{{"ph": "X", "ts": {text}, "dur": 0, "name": "a"}}' for text in digits)
    assert chrome_trace.read(f"[{items}]".encode(), source="toy")[0]["start_ps"].to_list() == times


def test_a_device_event_names_its_framework_op_and_its_hlo():
    args = {"tf_op": "jit(f)/add:", "hlo_op": "fusion.1", "hlo_module": "jit_f"}
    assert events(DEVICE, span(args=args)).select("tf_op", "hlo_op").row(0) == ("jit(f)/add", "fusion.1")
    launched = events("/host:CPU", span(args={"hlo_op": "fusion.1", "correlation_id": "7"}))
    assert launched.select("hlo_op", "correlation_id").row(0) == (None, 7)
    args = {"annotation": "a/MatMul:MatMul#id=3#"}
    assert events(DEVICE, span(args=args)).select("tf_op", "hlo_op").row(0) == ("a/MatMul:MatMul", None)


def test_a_host_event_of_the_framework_is_named_by_its_type():
    frame = events(
        HOST,
        span("dense/MatMul:MatMul"),
        span("MatMul", args={"long_name": "dense/MatMul:MatMul"}),
        span("Iterator::Map"),
        span("$file.py:12 fit"),
    )
    assert frame["name"].to_list() == ["MatMul", "MatMul", "Iterator::Map", "$file.py:12 fit"]
    assert frame["tf_op"].to_list() == ["dense/MatMul:MatMul", "dense/MatMul:MatMul", None, None]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({"hlo_category": "convolution fusion"}, {"category": "convolution fusion", "hlo_op": "op"}),
        ({"model_flops": "4096", "flops": "1"}, {"flops": 4096}),
        ({"flops": "7"}, {"flops": 7}),
        ({"bytes_accessed": "128", "memory_access_breakdown": "<opaque bytes>"}, {"bytes": 128}),
        ({"device_offset_ps": "3", "device_duration_ps": "2536615"}, {"device_dur_ps": 2536615}),
        ({"tf_op": "XlaModule:", "bytes_accessed": "many", "flops": "-1"}, {}),
        ({"step_name": "12"}, {"name": "12"}),
    ],
)
def test_columns_of_a_device_operation(args, said):
    frame = events(DEVICE, span(args=args))
    known = {"host": "", "plane": "/device:TPU:0", "line": "2", "lane": 0, "name": "op"}
    known |= {"start_ps": 10_000_000, "dur_ps": 5_000_000}
    assert frame.row(0, named=True) == dict.fromkeys(schema.EVENTS) | known | said


PRODUCT = "%c.1 = f32[2048,1024]{1,0} custom-call(f32[2048,2048]{1,0} %a, f32[2048,1024]{1,0} %b), target=x"


@pytest.mark.parametrize(
    ("text", "reported", "flops"),
    [
        (PRODUCT, 2**33, 2**33),
        (PRODUCT, 1_076_900_000, None),  # one turn of the loop in a Pallas kernel
        (PRODUCT, 0, None),
        (PRODUCT.replace("custom-call(", "custom-call(s32[]{:T(128)} %n, s32[256]{0} %at, "), 2**30, None),
        (PRODUCT.replace("2048,1024]{1,0} custom", "8,2048,1024]{2,1,0} custom"), 5, 5),  # no product of two
        (PRODUCT.replace("custom-call", "fusion"), 5, 5),
        (PRODUCT.replace("2048", "9" * 40), 5, 5),
        ("%c.1 = (f32[2,2]{1,0}, f32[2,2]{1,0}) custom-call(f32[2,2]{1,0} %a, f32[2,2]{1,0} %b)", 5, 5),
    ],
)
def test_flops_of_a_custom_call_are_null_where_shapes_say_otherwise(text, reported, flops):
    args = {"hlo_category": "custom-call", "model_flops": str(reported), "long_name": text}
    assert events(DEVICE, span(args=args))["flops"].to_list() == [flops]


@pytest.mark.parametrize(
    ("plane", "args", "launch"),
    [
        ("/device:TPU:3", {"run_id": "850"}, run_launch(850, 3)),
        ("/host:CPU", {"run_id": "850", "device_ordinal": "3"}, run_launch(850, 3)),
        ("/host:CPU", {"run_id": "850"}, run_launch(850, -1)),
        ("/host:CPU", {"run_id": "850", "device_ordinal": "3", "hlo_op": "dot.1"}, run_launch(850, -1)),
        ("/host:CPU", {"run_id": "-1", "device_ordinal": "-1", "hlo_op": "dot.1"}, None),  # TensorFlow's
        ("/host:CPU", {"device_ordinal": "3"}, None),
        ("/device:CUSTOM:Megascale", {"run_id": "-1"}, run_launch(2**64 - 1, 0)),
        ("/device:GPU:0", {"correlation_id": "77", "run_id": "850"}, 77),
        ("/host:CPU", {"correlation_id": "-1"}, 2**64 - 1),
        ("/host:CPU", {"correlation_id": "0"}, None),
        ("/host:CPU", {"correlation": 12, "External id": 4}, 12),
        ("/host:CPU", {"correlation": "word"}, None),
    ],
)
def test_a_launch_and_its_run_share_an_id(plane, args, launch):
    assert events(named("process_name", plane, pid=1), span(args=args))["correlation_id"].to_list() == [launch]


def test_flows_have_ids_of_type_and_number():
    frame = events(
        HOST,
        span(args={"_pt": "12", "_p": "-5"}),
        span(args={"_ct": "12", "_c": str(2**64 - 5)}),
        span(args={"_p": "7"}),
        span(args={"_pt": "12"}),
    )
    assert frame["flow_out"].to_list() == [flow_id(12, -5), None, flow_id(0, 7), None]
    assert frame["flow_in"].to_list() == [None, flow_id(12, -5), None, None]


def test_before_step_num_a_step_was_named_on_the_event_that_began_it():
    run = span("FunctionRun", args={"step_name": "train 3"})
    assert events(HOST, run, span())["step_num"].to_list() == [3, None]
    assert events(HOST, run, span("train", args={"step_num": "9"}))["step_num"].to_list() == [None, 9]
    assert events(DEVICE, run)["step_num"].to_list() == [None]


@pytest.mark.parametrize(("text", "step"), [("12", 12), (12, 12), ("0", 0), ("train 12", None), ("", None)])
def test_step_numbers_are_digits(text, step):
    assert events(HOST, span("train", args={"step_num": text}))["step_num"].to_list() == [step]


def test_only_complete_events_count():
    others = [{"ph": phase, "ts": 1, "name": "b"} for phase in "BsfiC"]
    assert events(span("a"), *others, {}, 3, None)["name"].to_list() == ["a"]


def test_half_a_character_does_not_stop_a_trace():
    trace = rb'[{"ph": "X", "ts": 0, "pid": "\ud800", "tid": "\ud800", "name": "a\ud83d"}]'
    assert chrome_trace.read(trace, source="toy")[0].select("line", "name").row(0) == ("?", "a?")
    whole, cut = rb'[{"ph": "X", "ts": 0, "name": "\ud83d\ude00"}]', b'[{"ph": "X", "ts": 0, "name": "a\xe2\x82"}]'
    assert chrome_trace.read(whole, source="toy")[0]["name"].to_list() == ["\N{GRINNING FACE}"]
    assert chrome_trace.read(cut, source="toy")[0]["name"].to_list() == ["a\N{REPLACEMENT CHARACTER}"]


def test_an_invalid_number_in_an_unused_field_is_ignored():
    trace = b'[{"ph": "X", "ts": 0, "name": "a", "args": {"Concrete Inputs": [NaN], "x": Infinity}}]'
    assert chrome_trace.read(trace, source="toy")[0]["name"].to_list() == ["a"]


def test_the_collector_is_as_it_was():
    for turn, on in ((gc.disable, False), (gc.enable, True)):
        turn()
        events(span())
        assert gc.isenabled() is on


def test_an_object_and_a_list_are_the_same_trace():
    items = [DEVICE, span()]
    trace = json.dumps({"displayTimeUnit": "ns", "traceEvents": items}).encode()
    assert chrome_trace.read(trace, source="toy")[0].equals(events(*items))


def test_a_trace_of_no_events_is_an_empty_frame():
    assert chrome_trace.read(b'{"traceEvents": [{}]}', source="toy")[0].equals(pl.DataFrame(schema=schema.EVENTS))


# -- PyTorch --------------------------------------------------------------------------------------------------


def test_pytorch_events_lie_where_their_category_says():
    frame = events(
        span("aten::mm", cat="cpu_op", pid="python", tid="main"),
        span("gemm", cat="kernel", pid=0, tid=7, args={"device": 3, "stream": 7}),
        span("Memcpy", cat="gpu_memcpy", pid=1, tid=8, args={}),
        named("process_name", "python3", pid="python"),
    )
    assert frame["plane"].to_list() == ["/host:CPU", "/device:GPU:3", "/device:GPU:1"]
    assert frame["line"].to_list() == ["main", "Stream #7", "Stream #8"]
    assert frame["tf_op"].null_count() == 3


def torch(*items, **top):
    data = json.dumps({"schemaVersion": 1, "traceEvents": [*items]} | top).encode()
    return chrome_trace.read(data, source="toy")[0]


def at(ts, dur, name, cat, **args):
    pid, tid = (args["device"], args["stream"]) if "stream" in args else (4711, 4711)
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}


def step(number, begin):
    """Spell a step of 100 us whose two kernels, of 30 and 20 us, start 40 us after they are launched."""
    first, second = 10 * number + 1, 10 * number + 2
    return [
        at(begin, 100, f"ProfilerStep#{number}", "user_annotation"),
        at(begin + 10, 20, "cudaLaunchKernel", "cuda_runtime", correlation=first),
        at(begin + 40, 20, "cudaLaunchKernel", "cuda_runtime", correlation=second),
        at(begin + 50, 30, "gemm", "kernel", device=0, stream=7, correlation=first),
        at(begin + 80, 20, "relu", "kernel", device=0, stream=7, correlation=second),
    ]


TORCH = [*step(0, 1000.5), *step(1, 1100.5), *step(2, 1200.5)]


def test_a_spelled_run_of_pytorch_has_its_steps(tmp_path):
    trace = tmp_path / "rank.trace.json"
    trace.write_text(json.dumps({"schemaVersion": 1, "traceEvents": TORCH}))
    profile = tp.load(trace)
    assert (profile.events.height, profile.span_ps) == (15, 300_000_000)
    steps = tp.steps(profile)
    facts = steps.frame.select("step", "kind", "device_ps", "traced")
    assert facts.rows() == [(number, "ProfilerStep", 50_000_000, "full") for number in range(3)]
    assert steps.frame["dur_ps"][:2].to_list() == [100_000_000] * 2
    on_device = steps.ops.filter(pl.col("side") == "device").sort("step", "op").select("step", "op", "count", "self_ps")
    kernels = [("gemm", 1, 30_000_000), ("relu", 1, 20_000_000)]
    assert on_device.rows() == [(number, *kernel) for number in range(3) for kernel in kernels]
    clocks = profile.clocks.select("device", "link", "launches", "linked", "delay_ps")
    assert clocks.rows() == [("/device:GPU:0", "correlation", 6, 6, 40_000_000)]


def test_an_annotation_of_the_device_is_no_kernel_and_no_mark():
    frame = torch(
        at(0, 9, "ProfilerStep#12", "user_annotation"),
        at(0, 9, "ProfilerStep#12", "gpu_user_annotation", device=0, stream=7),
        at(0, 9, "Stream Synchronize", "cuda_sync", device=0, stream=7),
    )
    assert frame["step_num"].to_list() == [12, None, None]
    assert frame["name"].to_list() == ["ProfilerStep", "ProfilerStep#12", "Stream Synchronize"]
    assert frame["plane"].to_list() == ["/host:CPU", "/device:GPU:0", "/device:GPU:0"]
    assert frame["line"].to_list() == ["4711", "Annotations", "Annotations"]


def test_names_of_pytorch_stay_except_python_frames():
    names = {"train.py(3): main": "python_function", "aten::addmm": "cpu_op", "nccl:all_reduce": "user_annotation"}
    frame = torch(*(at(0, 9, name, cat) for name, cat in names.items()))
    assert frame["name"].to_list() == ["$train.py(3): main", "aten::addmm", "nccl:all_reduce"]
    assert frame["tf_op"].null_count() == 3


@pytest.mark.parametrize(
    ("op", "kernel"),
    [
        ({"cat": "cpu_op", "args": {"External id": 7}}, {"External id": 7}),
        ({"cat": "Operator", "args": {"External id": 7}}, {"external id": 7, "External id": 8}),
        ({"cat": "cpu_op", "args": {"External id": "7"}}, {"External id": 7}),
    ],
)
def test_a_kernel_has_the_operator_of_its_external_id(op, kernel):
    frame = torch(
        at(0, 9, "aten::mul", "cpu_op", **{"External id": 6}),
        at(0, 9, "aten::mm", "cpu_op") | op,
        at(20, 9, "gemm", "kernel", device=0, stream=7, **kernel),
    )
    assert frame.select("name", "tf_op").rows() == [("aten::mul", None), ("aten::mm", None), ("gemm", "aten::mm")]


@pytest.mark.parametrize(
    ("name", "category", "args"),
    [
        ("aten::mm", "cpu_op", {"External id": 8}),
        ("aten::mm", "cpu_op", {}),
        ("aten::mm", "user_annotation", {"External id": 7}),
        ("nccl:all_reduce", "Operator", {"External id": 7}),  # kernels keep their names, in which it would be an op
        (None, "cpu_op", {"External id": 7}),
    ],
)
def test_a_kernel_without_an_operator_of_its_id_has_none(name, category, args):
    host = at(0, 9, name, category, **args)
    frame = torch(host, at(20, 9, "gemm", "kernel", device=0, stream=7, **{"External id": 7}))
    assert frame["tf_op"].null_count() == 2


def test_the_time_in_which_the_profiler_watched_is_no_event():
    whole = at(0, 1000, "PyTorch Profiler (0)", "Trace")
    assert torch(whole, at(500, 1, "aten::mm", "cpu_op")).select("name", "start_ps").rows() == [("aten::mm", 0)]


def test_what_the_profiler_itself_does_is_its_own():
    frame = torch(at(0, 9, "Activity Buffer Request", "overhead"), at(20, 9, "aten::mm", "cpu_op"))
    assert frame.select("name", "category").rows() == [("Activity Buffer Request", "profiler"), ("aten::mm", None)]


@pytest.mark.parametrize(
    ("info", "host"), [({"rank": 3, "world_size": 8}, "rank 3"), ({}, ""), ([], ""), ({"rank": "x"}, ""), (None, "")]
)
def test_a_distributed_run_has_its_rank_as_host(info, host):
    frame = torch(at(0, 1, "aten::mm", "cpu_op"), distributedInfo=info)
    assert frame["host"].to_list() == [host]
    assert chrome_trace.hardware(torch(*TORCH, distributedInfo={"rank": 1}), {})["host"].to_list() == ["rank 1"]


def test_a_device_is_that_of_the_argument_else_of_the_process():
    kernel = {"ph": "X", "cat": "Kernel", "ts": 0, "dur": 1, "name": "k"}
    frame = torch(kernel | {"pid": 5, "tid": 6}, kernel, kernel | {"pid": 5, "tid": "stream 6", "args": {"stream": 6}})
    places = [("/device:GPU:5", "Stream #6"), ("/device:GPU:0", "Stream #0"), ("/device:GPU:5", "Stream #6")]
    assert frame.select("plane", "line").rows() == places


def test_times_since_1970_keep_their_nanoseconds():
    items = '{"ph": "X", "ts": 1695835533123456.789, "name": "a"}, {"ph": "X", "ts": 1695835533123457.790, "name": "b"}'
    frame = chrome_trace.read(f"[{items}]".encode(), source="toy")[0]
    assert frame["start_ps"].to_list() == [0, 1_001_000]
    assert frame["dur_ps"].to_list() == [0, 0]


def test_times_since_the_machine_started_begin_at_0():
    assert torch(at(7119854938716.254, 1, "a", "cpu_op"))["start_ps"].to_list() == [0]
    assert events(span(ts=7119854938716.254))["start_ps"].to_list() == [7119854938716254000]


# -- hardware -------------------------------------------------------------------------------------------------


def test_hardware_is_the_planes_of_devices():
    frame = events(DEVICE, span(), span(), span(cat="kernel", pid=4, args={"device": 0}), span(cat="cpu_op", pid=5))
    found = chrome_trace.hardware(frame, {})
    assert found.schema == schema.HARDWARE
    assert found.rows() == [
        ("", "/device:TPU:0", "TPU", None, None, None),
        ("", "/device:GPU:0", "GPU", None, None, None),
    ]


@pytest.mark.parametrize(
    ("properties", "kind", "peak"),
    [
        ([{"id": 1, "name": "other"}, {"id": 0, "name": "NVIDIA B200"}], "NVIDIA B200", 2250e12),
        ([{"id": 0, "name": "NVIDIA B999"}], "NVIDIA B999", None),
        ([{"id": 0, "name": "NVIDIA H200"}], "NVIDIA H200", 989e12),
        ([{"id": 0}], "GPU", None),
        ([{"id": 0, "name": None}, "word", None, {}], "GPU", None),
        ([{"id": [0], "name": "NVIDIA B200"}, {"id": "0", "name": ""}], "GPU", None),
        ({"id": 0, "name": "NVIDIA B200"}, "GPU", None),
        (None, "GPU", None),
    ],
)
def test_pytorch_names_its_devices(properties, kind, peak):
    trace = {"schemaVersion": 1, "deviceProperties": properties, "traceEvents": TORCH}
    found = chrome_trace.read(json.dumps(trace).encode(), source="toy")[1]
    assert found.select("device", "kind", "peak_flops").rows() == [("/device:GPU:0", kind, peak)]


@pytest.mark.parametrize(
    ("names", "kinds"),
    [
        (["AMD Instinct MI300X", "AMD Instinct MI300X"], ["AMD Instinct MI300X"] * 2),
        (["AMD Instinct MI300X VF"], ["AMD Instinct MI300X VF"] * 2),
        (["AMD Instinct MI300X", "AMD Instinct MI210"], ["GPU", "GPU"]),
    ],
)
def test_rocm_counts_the_devices_of_events_otherwise(names, kinds):
    properties = [{"id": number, "name": name} for number, name in enumerate(names)]
    kernels = [at(0, 9, "gemm", "kernel", device=device, stream=0) for device in (2, 3)]
    trace = {"schemaVersion": 1, "deviceProperties": properties, "traceEvents": kernels}
    found = chrome_trace.read(json.dumps(trace).encode(), source="toy")[1]
    assert found["kind"].to_list() == kinds
    assert found["peak_flops"].to_list() == [None if kind == "GPU" else 1307.4e12 for kind in kinds]


def mtia(ts, dur, name, category="mtia_ccp_events", **args):
    return {"ph": "X", "cat": category, "name": name, "pid": 9, "tid": 408, "ts": ts, "dur": dur, "args": args}


def test_an_accelerator_of_another_maker_is_a_device(tmp_path):
    label = {"ph": "M", "name": "process_labels", "pid": 9, "args": {"labels": "MTIA 9"}}
    trace = tmp_path / "rank.trace.json"
    items = [
        label,
        at(0, 100, "ProfilerStep#4", "user_annotation"),
        at(1, 2, "runFunction", "mtia_runtime", correlation=7),
        mtia(2, 1, "synchronize", "mtia_runtime", correlation=8),
        mtia(10, 60, "fc-dtype_Float", stream=1, correlation=7),
        mtia(70, 10, "dma_request", direction="HOST_TO_DEVICE"),
        mtia(0, 95, "event_wait", stream=1),
    ]
    trace.write_text(json.dumps({"schemaVersion": 1, "deviceProperties": [], "traceEvents": items}))
    profile = tp.load(trace)
    assert profile.hardware.rows() == [("", "/device:MTIA:9", "MTIA", None, None, None)]
    assert profile.events["plane"].to_list() == [*["/host:CPU"] * 3, *["/device:MTIA:9"] * 3]
    assert profile.events["line"].to_list()[3:] == ["Stream #1", "Stream #408", "Annotations"]
    assert tp.steps(profile).frame.select("step", "device_ps").rows() == [(4, 70_000_000)]


def test_an_unknown_kind_of_work_on_a_device_is_said_and_its_time_null(tmp_path):
    label = {"ph": "M", "name": "process_labels", "pid": 9, "args": {"labels": "NPU 9"}}
    items = [label, at(0, 100, "ProfilerStep#4", "user_annotation"), mtia(10, 60, "gemm", "npu_task")]
    trace = tmp_path / "rank.trace.json"
    trace.write_text(json.dumps({"schemaVersion": 1, "traceEvents": items}))
    with pytest.warns(UserWarning, match="1 event of devices in categories not known as their work: npu_task"):
        profile = tp.load(trace)
    assert profile.hardware["device"].to_list() == ["/device:NPU:9"]
    assert tp.steps(profile).frame["device_ps"].to_list() == [None]


@pytest.mark.parametrize("category", ["python_function", "cpu_op", "user_annotation", "cuda_driver", "overhead"])
def test_host_events_of_a_process_with_the_number_of_a_gpu_stay_on_the_host(category):
    label = {"ph": "M", "name": "process_labels", "pid": 0, "args": {"labels": "GPU 0"}}
    frame = torch(label, at(0, 9, "f", category) | {"pid": 0})
    assert frame["plane"].to_list() == ["/host:CPU"]


def described(pid, name, label=None, thread=None):
    """Names of a process, with its label and one of its threads."""
    texts = {"process_name": {"name": name}, "process_labels": {"labels": label}, "thread_name": {"name": thread}}
    events = [{"ph": "M", "pid": pid, "tid": 408, "name": kind, "args": args} for kind, args in texts.items()]
    return [event for event in events if None not in event["args"].values()]


def written(tmp_path, *items):
    (tmp_path / "trace_view.json").write_text(json.dumps(items))
    return tmp_path / "trace_view.json"


@pytest.mark.parametrize(("label", "device"), [("NPU", "/device:NPU:9"), ("NPU 3", "/device:NPU:3")])
def test_tasks_of_an_npu_are_work_and_what_describes_them_is_left_out(tmp_path, label, device):
    items = [
        *described(7, "Python", "CPU"),
        *described(9, "Ascend Hardware", label, "Stream 3"),
        *described(5, "Overlap Analysis", label, "Free"),
        *described(6, "HCCL"),
        at(0, 100, "ProfilerStep#4", "cpu_op") | {"pid": 7},
        mtia(10, 40, "aclnnMm", None, **{"Task Type": "AI_CORE"}),
        mtia(50, 20, "hcom_allReduce__868", None, **{"Task Type": "Other"}),
        mtia(70, 25, "EVENT_WAIT", None, **{"Task Type": "EVENT_WAIT_SQE"}),
        mtia(5, 90, "a range of the program", None, **{"Physic Stream Id": 3}),
        mtia(0, 10, "Free", None) | {"pid": 5},
        mtia(50, 20, "hcom_allReduce__868", None) | {"pid": 6},
    ]
    with pytest.warns(UserWarning, match="2 events left out that describe those of Ascend Hardware: HCCL, Overlap An"):
        profile = tp.load(written(tmp_path, *items))
    assert profile.hardware["device"].to_list() == [device]
    steps = tp.steps(profile)
    assert steps.frame.select("step", "device_ps", "idle_ps", "collective_ps").rows() == [
        (4, 60 * 10**6, 40 * 10**6, 20 * 10**6)
    ]
    lines = profile.events.filter(pl.col("plane").cast(pl.String) == device)["line"].cast(pl.String).to_list()
    assert lines == ["Stream #3", "Stream #3", "Annotations", "Annotations"]


def test_a_process_may_have_the_name_of_an_accelerator_instead_of_a_label(tmp_path):
    items = [
        *described(9, "NPU 2"),
        at(0, 100, "ProfilerStep#4", "user_annotation"),
        mtia(10, 40, "matmul", "kernel"),
        mtia(50, 20, "job 5", "privateuse1_driver"),
        mtia(80, 10, "prepare", "privateuse1_runtime"),
    ]
    profile = tp.load(written(tmp_path, *items))
    assert profile.hardware["device"].to_list() == ["/device:NPU:2"]
    assert tp.steps(profile).frame["device_ps"].to_list() == [60 * 10**6]


@pytest.mark.parametrize("category", [None, "task"])
def test_processes_that_are_not_known_as_devices_are_named(tmp_path, category):
    items = [
        *described(9, "Accelerator A"),
        at(0, 100, "ProfilerStep#4", "user_annotation"),
        mtia(10, 40, "mm", category),
    ]
    with pytest.warns(UserWarning, match="1 event of processes that are not known as devices: Accelerator A"):
        profile = tp.load(written(tmp_path, *items))
    assert tp.steps(profile).frame["device_ps"].to_list() == [None]


@pytest.mark.parametrize(
    ("name", "args", "category"),
    [
        ("dma_request", {"direction": "HOST_TO_DEVICE"}, "host to device copy"),
        ("dma_request", {"direction": "DEVICE_TO_HOST"}, "device to host copy"),
        ("dma_request", {}, "copy"),
        ("Memcpy M2D", {}, "host to device copy"),
        ("MEMCPY_ASYNC", {}, "copy"),
    ],
)
def test_transfers_of_any_accelerator_have_a_category(tmp_path, name, args, category):
    label = described(9, "MTIA 9", "MTIA 9")
    step = at(0, 100, "ProfilerStep#4", "user_annotation")
    profile = tp.load(written(tmp_path, *label, step, mtia(70, 10, name, **args)))
    assert tp.steps(profile).ops.filter(side="device")["category"].to_list() == [category]


# -- time on a stream -----------------------------------------------------------------------------------------


def kernels(*times, **args):
    return [at(start, dur, "k", "kernel", device=0, stream=7, **args) for start, dur in times]


@pytest.mark.parametrize(
    ("times", "durs"),
    [
        ([(0, 10), (10, 5)], [10, 5]),
        ([(0, 3_400_000), (10, 5), (20, 5)], [10, 5, 5]),
        ([(20, 5), (0, 12), (10, 5)], [5, 10, 5]),
        ([(0, 9), (0, 5)], [9, 0]),
        ([(0, 9), (4, 0)], [9, 0]),  # a moment
    ],
)
def test_a_kernel_ends_where_the_next_of_its_stream_begins(times, durs):
    found = chrome_trace.read(json.dumps({"traceEvents": kernels(*times)}).encode(), source="toy")
    assert [ps // 10**6 for ps in found.events["dur_ps"]] == durs
    past = sum(dur for _, dur in times) - sum(durs)
    assert bool(found.notes) is bool(past)
    assert all(note.startswith("1 kernel recorded as running when the next") for note in found.notes)


def test_branches_of_a_graph_and_other_streams_run_together():
    for args in ({"graph node id": 3}, {"stream": 8}):
        other = kernels((0, 100))[0]
        other["args"] |= args
        assert torch(other, *kernels((10, 5)))["dur_ps"].to_list() == [100_000_000, 5_000_000]


def test_less_than_a_percent_past_the_next_is_the_devices_own_overlap():
    found = chrome_trace.read(json.dumps(kernels((0, 1000), (999, 1000))).encode(), source="toy")
    assert (found.events["dur_ps"].to_list(), found.notes) == ([999_000_000, 1_000_000_000], [])


def test_events_without_a_time_are_left_out_and_counted():
    late, lost = 1_700_000_000_000_000, at(0, 0, "lost", "kernel", device=0, stream=7)
    items = [at(late, 5, "a", "cpu_op"), lost, at(None, 5, "b", "cpu_op"), at(late + 9, 5, "c", "cpu_op")]
    items.append(at(late + 20, -late - 20, "its end was never written", "cpu_op"))
    for base in (0, late * 1000 // 2):
        moved = [{**item, "ts": item["ts"] and item["ts"] - base / 1000} for item in items]
        moved[1]["ts"] = -base / 1000
        trace = {"schemaVersion": 1, "baseTimeNanoseconds": base, "traceEvents": moved}
        found = chrome_trace.read(json.dumps(trace).encode(), source="toy")
        assert found.events.select("name", "start_ps").rows() == [("a", 0), ("c", 9_000_000)]
        assert found.notes == ["3 events left out: without a time, or with an end before it"]
        assert found.origin_ns == late * 1000


# -- several processes ----------------------------------------------------------------------------------------


def process(pid, device, *, lag, steps=3, late=0):
    """Spell the steps of one process: each launches a kernel of 50 us that starts after `lag`."""
    for number in range(steps):
        begin, ids = 100 * number + late, {"correlation": number + 1, "External id": number + 1}
        for name, category, start, dur in (
            (f"ProfilerStep#{number}", "user_annotation", begin, 99),
            (f"aten::op{pid}", "cpu_op", begin + 5, 20),
            ("cudaLaunchKernel", "cuda_runtime", begin + 10, 5),
        ):
            args = {"correlation": number + 1} if category == "cuda_runtime" else {"External id": number + 1}
            yield at(start, dur, name, category, **args) | {"pid": pid, "tid": pid}
        yield at(begin + 10 + lag, 50, "gemm", "kernel", device=device, stream=7, **ids)


@pytest.mark.parametrize("late", [0, 3, 60])
@pytest.mark.parametrize("lag", [20, 110])
def test_two_processes_that_mark_steps_are_two_hosts_with_ids_of_their_own(tmp_path, lag, late):
    items = [*process(100, 0, lag=lag), *process(200, 1, lag=lag, late=late)]
    trace = tmp_path / "both.trace.json"
    trace.write_text(json.dumps({"schemaVersion": 1, "traceEvents": items}))
    profile = tp.load(trace)
    hosts = ["process 100", "process 200"]
    assert profile.windows["host"].to_list() == profile.hardware["host"].to_list() == hosts
    assert profile.hardware["device"].to_list() == ["/device:GPU:0", "/device:GPU:1"]
    rows = tp.steps(profile).frame.sort("host", "step").select("host", "step", "device_ps").rows()
    assert rows == [(host, step, 50_000_000) for host in hosts for step in range(3)]
    assert profile.clocks["delay_ps"].to_list() == [lag * 10**6] * 2
    of_devices = profile.events.filter(pl.col("tf_op").is_not_null()).select("host", "tf_op").unique().sort("host")
    assert of_devices.rows() == [(f"process {pid}", f"aten::op{pid}") for pid in (100, 200)]


@pytest.mark.parametrize("rows", [(0, 0), ("rank 0 GPU 0", "rank 1 GPU 0")], ids=["shared rows", "rows of their own"])
def test_devices_of_one_number_are_those_of_the_processes_that_launch_on_them(tmp_path, rows):
    items = [
        item | ({"pid": row} if item["cat"] == "kernel" else {})
        for pid, late, row in zip((100, 200), (0, 30), rows, strict=True)
        for item in process(pid, 0, lag=20, late=late)  # the kernels overlap
    ]
    trace = tmp_path / "both.trace.json"
    trace.write_text(json.dumps({"schemaVersion": 1, "traceEvents": items}))
    profile = tp.load(trace)
    hosts = ["process 100", "process 200"]
    assert profile.hardware.select("host", "device").rows() == [(host, "/device:GPU:0") for host in hosts]
    rows = tp.steps(profile).frame.sort("host", "step").select("host", "step", "device_ps").rows()
    assert rows == [(host, step, 50_000_000) for host in hosts for step in range(3)]
    assert profile.notes == ()


def test_a_file_of_several_processes_keeps_them_beside_other_files(tmp_path):
    for name, pids in (("a", (100, 200)), ("b", (100, 300))):
        items = [item for device, pid in enumerate(pids) for item in process(pid, device, lag=20)]
        (tmp_path / f"{name}.trace.json").write_text(json.dumps({"schemaVersion": 1, "traceEvents": items}))
    profile = tp.load(tmp_path)
    hosts = ["a process 100", "a process 200", "b process 100", "b process 300"]
    assert profile.windows["host"].to_list() == profile.hardware["host"].to_list() == hosts
    assert profile.events["host"].unique().sort().cast(pl.String).sort().to_list() == hosts
    assert sorted(tp.steps(profile).frame["host"].unique()) == hosts


def test_a_process_that_only_launches_has_ids_of_its_own_and_no_host():
    other = [item for item in process(200, 1, lag=20) if item["cat"] != "user_annotation"]
    frame = torch(*process(100, 0, lag=20), *other)
    assert frame["host"].unique().to_list() == [""]
    ids = frame.filter(pl.col("name") == "gemm")["correlation_id"]
    assert ids.n_unique() == 6
    assert frame.filter(pl.col("name") == "cudaLaunchKernel")["correlation_id"].to_list() == ids.to_list()


# -- a trace of the viewer that is cut ------------------------------------------------------------------------


@pytest.fixture
def cut(tmp_path, monkeypatch):
    """A trace that ends at its 11th event, which is one more than the limit because of its time."""
    monkeypatch.setattr(chrome_trace, "_VIEWER_EVENTS", 10)
    train = [span("train", tid=1, ts=100 * n, dur=99, args={"step_num": str(n)}) for n in range(4)]
    ops = [span("op", ts=100 * n + 10 * k, dur=9) for n in range(4) for k in range(2)][:-1]
    path = tmp_path / "vm.trace.json"
    path.write_text(json.dumps({"displayTimeUnit": "ns", "traceEvents": [HOST, *train, *ops, {}]}))
    return path


def test_a_cut_trace_is_not_wholly_observed(cut):
    with pytest.warns(UserWarning, match=r"^vm.trace.json: cut at 11 events, .* is missing$"):
        profile = tp.load(cut)
    assert profile.is_cut
    assert "100%" not in repr(profile)
    assert tp.steps(profile).frame["step"].to_list() == [0, 1, 2]  # the last goes on after the cut


def test_the_xplane_beside_a_cut_trace_is_read(cut, tmp_path):
    whole = tmp_path / "vm.xplane.pb"
    steps = [(n, 100 * n, 100 * n + 90) for n in range(6)]
    whole.write_bytes(xspace(0, 10_000, steps, [("MatMul", begin, end) for _, begin, end in steps]))
    with pytest.warns(UserWarning, match=r"^vm.xplane.pb: read instead of vm.trace.json, cut at 11 events"):
        profile = tp.load(cut)
    assert not profile.is_cut
    assert len(tp.steps(profile)) == 6


def test_a_trace_of_pytorch_has_no_such_limit(monkeypatch):
    monkeypatch.setattr(chrome_trace, "_VIEWER_EVENTS", len(TORCH))
    trace = json.dumps({"schemaVersion": 1, "traceEvents": TORCH}).encode()
    assert not chrome_trace.read(trace, source="toy").is_cut


# -- JSON as tools write it -----------------------------------------------------------------------------------

WRITTEN = {"schemaVersion": 1, "trace_name": "TRACE", "traceEvents": [*TORCH, at(1000.5, 9, "NAME", "cpu_op", x=1)]}
TEXT = json.dumps(WRITTEN)


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (TEXT.replace("NAME", "\x08\x01a\tb\n").encode(), "\x08\x01a\tb\n"),
        (TEXT.replace("TRACE", r"C:\Users\someone\logs\w.json").encode(), "NAME"),
        (TEXT.replace("NAME", r"re\d\u12 \\\\").encode(), "re\\d\\u12 \\\\"),
        *(
            (TEXT.replace('"x": 1', f'"x": {word}').encode(), "NAME")
            for word in ("nan", "-inf", "NAN", "Inf", "-nan(ind)")
        ),
        (TEXT.replace('"x": 1', '"x": [1, -1.#IND, 1.#QNAN0, "nan, ]",],').encode(), "NAME"),
        (TEXT[:-2].encode() + b" ,\n]\n,}", "NAME"),
        (TEXT.encode() + bytes(300), "NAME"),
        (b"\xef\xbb\xbf" + TEXT.encode(), "NAME"),
        (TEXT.encode("utf-16"), "NAME"),
        (json.dumps(WRITTEN["traceEvents"])[:-1].encode() + b",\n", "NAME"),
        (json.dumps(WRITTEN["traceEvents"])[:-1].encode(), "NAME"),
    ],
)
def test_a_dialect_of_json_is_read(data, name):
    found = chrome_trace.read(data, source="toy")[0]
    assert (len(found), found["name"][-1]) == (16, name)
    assert int(found["dur_ps"].sum()) == int(torch(*WRITTEN["traceEvents"])["dur_ps"].sum())


def test_times_may_be_text():
    written = [{**item, "ts": str(item["ts"]), "dur": f"{item['dur']}.0"} for item in TORCH]
    assert torch(*written).equals(torch(*TORCH))


EVENT = '{{\n    "name": "{}", "ph": "X", "ts": 170000000000000{}.123, "args": {{\n      "x": [1.25]\n    }}\n  }}'


@pytest.mark.parametrize(
    ("head", "end"),
    [
        ('{\n  "schemaVersion": 1,\n  "traceEvents": [\n  ', ',\n  {"name": "last"}\n  ],"traceName": "x" }'),
        ('{\n  "traceEvents": [\n  {"name": "first"}\n  ],\n  "other": [\n  ', "\n  ]}"),  # further lists
        ('{\n  "other": [\n  ', '\n  ],\n  "traceEvents": [\n  {"name": "last"}\n  ]}'),
        ("[\n  ", "\n  ]"),
        ('{\n  "traceEvents": [\n  ', '\n  ],"traceName": nan }'),  # a dialect
    ],
)
def test_a_trace_that_is_parsed_in_parts_is_the_same(head, end):
    names = ["plain", "\\ud83d half", "\\n  },\\n  {", 'a \\" quote', "],", "}, {", "},{0"]
    text = head + ",\n  ".join(EVENT.format(name, at) for at, name in enumerate(names * 5)) + end
    expected = _parsed(text, whole=True)
    assert {item.ts[-4:] for item in expected[1] if item.ts} == {".123"} or "other" in expected[0]
    assert _parsed(text) == expected
    compact = re.sub(r"\s+(?=[{}])", "", text)
    assert _parsed(compact) == _parsed(compact, whole=True)
    for cut in range(len(head), len(text), 97):
        assert _parsed(text[:cut]) == _parsed(text[:cut], whole=True)


def _parsed(text, *, whole=False):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chrome_trace, "_PART", len(text) if whole else 150)
        try:
            facts, items = chrome_trace._opened(text.encode(), "file")
            return {name: value for name, value in facts.items() if name != "traceEvents"}, items
        except BadProfile as error:
            return str(error)


def test_begin_and_end_are_one_event():
    begun = [{key: value for key, value in item.items() if key != "dur"} | {"ph": "B"} for item in TORCH]
    ends = [{"ph": "E", "pid": item["pid"], "tid": item["tid"], "ts": item["ts"] + item["dur"]} for item in TORCH]
    order = sorted([*enumerate(begun), *enumerate(ends)], key=lambda row: (row[1]["ts"], row[1]["ph"] == "B", -row[0]))
    # those that begin last end first
    pairs = [item for _, item in order]
    found = torch(*pairs)
    key = ["name", "start_ps", "dur_ps", "correlation_id", "step_num"]
    assert found.select(key).sort(key).equals(torch(*TORCH).select(key).sort(key))


def test_what_begins_and_never_ends_is_counted():
    items = [
        {"ph": phase, "pid": 1, "tid": 2, "ts": ts, "name": name}
        for phase, ts, name in [("E", 0, "z"), ("B", 1, "a"), ("B", 2, "b"), ("E", 5, "b"), ("B", 9, "c")]
    ]
    found = chrome_trace.read(json.dumps(items).encode(), source="toy")
    assert found.events.select("name", "start_ps", "dur_ps").rows() == [("b", 2_000_000, 3_000_000)]
    assert found.notes == ["2 events left out: begun, never ended"]


def test_a_huge_text_is_refused_at_once(monkeypatch):
    monkeypatch.setattr(chrome_trace, "_GAP", 1000)
    with pytest.raises(BadProfile, match="bad: no quotation mark from byte 1,000 to 2,000"):
        chrome_trace.read(b'[{"ph": "X", "ts": 0, "name": "' + b"a" * 4000 + b'"}]', source="bad")


# -- what is no trace -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "bad: the file is empty"),
        (b"\x0a\x05abc", r"bad: not JSON: expected value at byte 1 of 5, which has b'\\x05abc'"),
        (b"\xff\xfe{", "bad: not JSON"),
        (b'{"traceEvents": [{"ph": "X"', "bad: not JSON: it ends at byte 27: expected ',' delimiter"),
        (b'{"traceEvents": [{"ph": "X', "bad: not JSON: it ends at byte 26: Unterminated string"),
        (
            b'{"traceEvents": [{"ph" "X"}]}',
            r"bad: not JSON: expected ':' delimiter at byte 23 of 29, which has b'\"X\"",
        ),
        (b'{"d": "C:\\Users\\me", "x": nan, "\xc3\xa9": oops}', "expected value at byte 37 of 42, which has b'oops}'"),
        (b'[{"ph": "X", "ts": NaN}]', "event None has ts None, not a number"),
        (b"[" * 100_000, "bad: not JSON"),
        (b'{"cols": 1, "rows": 2}', r"no Chrome trace: an object with \['cols', 'rows'\]"),
        (b'{"traceEvents": 3}', "no Chrome trace"),
        (b"[]", "no Chrome trace: a list"),
        (b"[1, 2]", "no Chrome trace: a list"),
        (b'"text"', "no Chrome trace: a str"),
        (b'[{"ph": "X", "name": "a"}]', "event 'a' has ts None, not a number"),
        (b'[{"ph": "X", "name": "a", "ts": "1 s"}]', "event 'a' has ts '1 s', not a number"),
        (b'[{"ph": "X", "name": "a", "ts": 1, "dur": null}]', "event 'a' has dur None, not a number"),
        (b'[{"ph": "X", "name": "a", "ts": true}]', "event 'a' has ts True, not a number"),
        (b'[{"ph": "X", "name": "a", "ts": 1e999999999}]', "event 'a' has ts"),
        (b'[{"ph": "X", "ts": 1e28}, {"ph": "X", "ts": 2e27}]', "do not fit Int64"),
        (b'[{"ph": "X", "ts": 0, "dur": 1e28}]', "do not fit Int64"),
    ],
)
def test_an_invalid_trace_is_described(data, said):
    with pytest.raises(BadProfile, match=said) as caught:
        chrome_trace.read(data, source="bad")[0]
    assert "\n" not in str(caught.value)


ARGS = [
    "name",
    "device",
    "stream",
    "correlation",
    "correlation_id",
    "run_id",
    "device_ordinal",
    "step_num",
    "step_name",
]
ARGS += ["tf_op", "annotation", "long_name", "_p", "_pt", "_c", "_ct", "device_duration_ps", "model_flops"]


@pytest.mark.parametrize("depth", [900, *range(930, 1000, 3)])
def test_deep_values_stop_nothing(depth):
    deep = "[" * depth + "]" * depth
    for key in ("name", "pid", "tid", "cat", "args", "ts"):
        fields = {"ts": "0", "args": "{}"} | {key: deep}
        text = ", ".join(f'"{name}": {value}' for name, value in fields.items())
        try:
            found = chrome_trace.read(f'[{{"ph": "X", {text}}}]'.encode(), source="any")[0].height
        except BadProfile as error:
            found = str(error).partition(": ")[0]
        assert found in (1, "any")


ARGS += ["External id", "graph node id", "labels", "hlo_category", "name", "direction", "Task Type"]
TIMES = ["1.5", "1700000000000000", 1_700_000_000_000_000, "1e3", "NaN", None]
CATEGORIES = [
    "privateuse1_driver",
    "kernel",
    "cpu_op",
    "python_function",
    "cuda_runtime",
    "mtia_ccp_events",
    "npu_task",
    "user_annotation",
]

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["ph", "ts", "dur", "pid", "tid", "cat", "args", "name"]), inner)
        | st.dictionaries(st.sampled_from(ARGS), inner | st.integers(-(2**64), 2**65).map(str), max_size=4)
        | st.fixed_dictionaries(
            {"ph": st.sampled_from("XMBE"), "ts": st.integers(0, 9) | st.sampled_from(TIMES) | inner, "args": inner},
            optional={
                "cat": st.sampled_from(CATEGORIES) | inner,
                "pid": st.sampled_from([1, 2]) | inner,
                "name": st.sampled_from(["ProfilerStep#1", "process_labels", "process_name", "event_wait"]) | inner,
                "dur": st.integers(0, 99) | st.sampled_from(TIMES),
            },
        )
    ),
    max_leaves=12,
)


@given(items=st.lists(JSON))
@examples(50)
def test_any_json_is_a_trace_or_a_bad_profile(items):
    try:
        found = chrome_trace.read(json.dumps({"traceEvents": items}).encode(), source="any")[0].schema
    except BadProfile as error:
        found = str(error).partition(": ")[0]
    assert found in (schema.EVENTS, "any")


@given(items=st.lists(JSON), ts=st.integers(0, 99), data=st.data())
@examples(50)
def test_a_dialect_says_the_same_as_json(items, ts, data):
    """Single backslashes, control characters, words of C and commas at the end leave no other trace of themselves."""
    mark = {"ph": "X", "ts": ts, "dur": 1, "name": "MARK", "args": {"x": None, "deep": [[1], {"a": 2}]}}
    plain = json.dumps({"traceEvents": [*items, mark]})
    word = data.draw(st.sampled_from(["nan", "-Infinity", "INF", "null", "-nan(ind)"]))
    gap = data.draw(st.sampled_from([",", " , ", ",\n\t", ""]))
    written = (
        plain.replace('"x": null', f'"x": {word}')
        .replace("MARK", "\x01 \\M\t")
        .replace('{"a": 2}]', '{"a": 2}' + gap + "]")
    )
    assert written.endswith("]}")
    written = f"{written[:-2]}{gap}]{gap}}}"
    try:
        expected = chrome_trace.read(plain.encode(), source="any")
    except BadProfile as error:
        with pytest.raises(BadProfile) as caught:
            chrome_trace.read(written.encode(), source="any")
        assert str(caught.value) == str(error)  # noqa: PT017  both forms are refused alike
        return
    found = chrome_trace.read(written.encode(), source="any")
    assert found[0].drop("name").equals(expected[0].drop("name"))
    assert (
        found[0]["name"]
        .cast(pl.String)
        .str.replace("\x01 \\M\t", "MARK", literal=True)
        .equals(expected[0]["name"].cast(pl.String))
    )


@given(
    kernels_of=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 50), st.integers(-5, 60)), max_size=12),
    graph=st.integers(0, 1),
)
@examples(50)
def test_time_on_a_stream_never_overlaps(kernels_of, graph):
    items = [
        at(start, dur, f"k{n}", "kernel", device=0, stream=stream) for n, (stream, start, dur) in enumerate(kernels_of)
    ]
    frame = torch(*items).filter(pl.col("dur_ps") > 0).sort("lane", "start_ps", "dur_ps")
    end = pl.col("start_ps") + pl.col("dur_ps")
    assert frame.select((end > pl.col("start_ps").shift(-1).over("lane")).any()).item() is not True
    # the union of a stream is what it was
    for stream in range(4):
        was = {us for s, start, dur in kernels_of if s == stream for us in range(start, start + dur)}
        lines = frame.filter(pl.col("line") == f"Stream #{stream}")
        assert lines["dur_ps"].sum() // 10**6 <= len(was)


# -- real captures --------------------------------------------------------------------------------------------


@pytest.fixture
def captures(real_profiles):
    return lambda name: gzip.decompress((real_profiles / name).read_bytes())


@pytest.mark.parametrize(
    ("name", "count", "devices"),
    [
        ("cpu_tf2_keras", 798, []),
        ("cpu_julia", 138, []),
        ("gpu-1080ti_julia", 41, ["/device:GPU:0", "/device:GPU:1"]),
        ("tpu_vllm-qwen3", 10_312, ["/device:TPU:0", "/device:TPU:1"]),
    ],
)
def test_real_captures_are_read_whole(captures, name, count, devices):
    data = captures(f"{name}.trace.json.gz")
    frame = chrome_trace.read(data, source=name)[0]
    assert frame.height == count
    assert chrome_trace.hardware(frame, {})["device"].to_list() == devices
    spans = [one for one in json.loads(data)["traceEvents"] if one.get("ph") == "X"]
    assert frame["start_ps"].to_list() == [round(one["ts"] * 1_000_000) for one in spans]


@pytest.mark.parametrize(
    ("name", "missing"), [("cpu_julia", []), ("gpu-1080ti_julia", ["MemoryAllocation", "MemoryDeallocation"])]
)
def test_both_forms_of_one_run_have_equal_events(captures, real_profiles, name, missing):
    exported = chrome_trace.read(captures(f"{name}.trace.json.gz"), source=name)[0]
    raw = xplane.read((real_profiles / f"{name}.xplane.pb").read_bytes(), source=name)[0]
    assert sorted(raw.filter(pl.col("name").cast(pl.String).is_in(missing))["name"].unique()) == missing
    raw = raw.filter(~pl.col("name").cast(pl.String).is_in(missing))  # 14 of the 55 of the GPU: XProf leaves them out
    facts = ["plane", "line", "name", "start_ps", "dur_ps", "hlo_op", "step_num", "correlation_id"]
    # an event without length is one of a picosecond in the export; all other times agree to the picosecond
    expected = raw.with_columns(pl.col("dur_ps").clip(1)).select(facts)
    words = pl.col("plane", "line", "name", "hlo_op").cast(pl.String)
    both = [frame.with_columns(words).sort(facts[:5]) for frame in (expected, exported.select(facts))]
    assert both[0].equals(both[1])
    assert raw.height == {"cpu_julia": 138, "gpu-1080ti_julia": 41}[name]


def test_a_keras_run_of_2020_has_one_step(real_profiles):
    steps = tp.steps(tp.load(real_profiles / "cpu_tf2_keras.trace.json.gz"))
    assert steps.frame.select("step", "kind", "dur_ps").rows() == [(0, "FunctionRun", 84_553_000_000)]


def test_ops_of_a_tpu_have_their_stats(captures):
    frame = chrome_trace.read(captures("tpu_vllm-qwen3.trace.json.gz"), source="vllm")[0]
    for number in (0, 1):
        of_device = frame.filter(pl.col("plane").cast(pl.String) == f"/device:TPU:{number}")
        ops = of_device.filter(pl.col("line").cast(pl.String) == "XLA Ops")
        assert ops.height == 3454
        assert (
            ops.select("category", "hlo_op", "flops", "bytes", "device_dur_ps").null_count().sum_horizontal().item()
            == 0
        )
        runs = of_device.filter(pl.col("correlation_id").is_not_null())
        assert runs["line"].cast(pl.String).unique().to_list() == ["XLA Modules"]
    ops = frame.filter((pl.col("plane").cast(pl.String) == "/device:TPU:0") & pl.col("category").is_not_null())
    convolutions = ops.filter(pl.col("category").cast(pl.String) == "convolution fusion")
    assert convolutions["device_dur_ps"].sum() / 1e9 == pytest.approx(42.3, abs=0.05)
    # what the host's clock makes of all of them differs by 17 ns from the device's own
    assert ops["device_dur_ps"].sum() / 1e9 == pytest.approx(67.2, abs=0.05)
    assert abs(ops["device_dur_ps"].sum() - ops["dur_ps"].sum()) < 20_000


def test_the_runs_of_a_tpu_meet_their_launches(real_profiles):
    clocks = tp.load(real_profiles / "tpu_vllm-qwen3.trace.json.gz").clocks
    assert clocks.select("device", "link", "launches", "linked").rows() == [
        ("/device:TPU:0", "run", 4, 4),
        ("/device:TPU:1", "run", 4, 4),
    ]
