"""Chrome traces of every dialect as events."""

import gzip
import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tpunb import schema
from tpunb.errors import BadProfile
from tpunb.io import trace_json


def events(*items):
    return trace_json.events(json.dumps([*items]).encode(), source="toy")


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
    assert frame.row(0) == ("", "/device:TPU:0", "XLA Ops", 0, "op", None, None, None, 10_000_000, 5_000_000)


def test_a_thread_without_a_name_bears_its_number():
    assert events(DEVICE, span(tid=77))["line"].to_list() == ["77"]


def test_lanes_tell_threads_of_one_name_apart():
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
    trace = f'[{{"ph": "X", "ts": {written}, "dur": {written}, "name": "a"}}]'
    frame = trace_json.events(trace.encode(), source="toy")
    assert frame.select("start_ps", "dur_ps").row(0) == (picoseconds, picoseconds)


@given(times=st.lists(st.integers(-(2**62), 2**62), min_size=1, max_size=5))
@settings(max_examples=200, deadline=None)
def test_every_picosecond_survives(times):
    digits = [f"{'-' if ps < 0 else ''}{abs(ps) // 10**6}.{abs(ps) % 10**6:06}" for ps in times]
    items = ", ".join(f'{{"ph": "X", "ts": {text}, "dur": 0, "name": "a"}}' for text in digits)
    assert trace_json.events(f"[{items}]".encode(), source="toy")["start_ps"].to_list() == times


def test_a_device_event_names_its_framework_op_and_its_hlo():
    args = {"tf_op": "jit(f)/add:", "hlo_op": "fusion.1", "hlo_module": "jit_f"}
    assert events(DEVICE, span(args=args)).select("tf_op", "hlo_op").row(0) == ("jit(f)/add", "fusion.1")
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


@pytest.mark.parametrize(("text", "step"), [("12", 12), (12, 12), ("0", 0), ("train 12", None), ("", None)])
def test_step_numbers_are_digits(text, step):
    assert events(HOST, span("train", args={"step_num": text}))["step_num"].to_list() == [step]


def test_only_complete_events_count():
    others = [{"ph": phase, "ts": 1, "name": "b"} for phase in "BEsfiC"]
    assert events(span("a"), *others, {}, 3, None)["name"].to_list() == ["a"]


def test_half_a_character_does_not_stop_a_trace():
    trace = rb'[{"ph": "X", "ts": 0, "pid": "\ud800", "tid": "\ud800", "name": "a\ud83d"}]'
    assert trace_json.events(trace, source="toy").select("line", "name").row(0) == ("?", "a?")


def test_an_object_and_a_list_are_the_same_trace():
    items = [DEVICE, span()]
    trace = json.dumps({"displayTimeUnit": "ns", "traceEvents": items}).encode()
    assert trace_json.events(trace, source="toy").equals(events(*items))


def test_a_trace_of_no_events_is_an_empty_frame():
    assert trace_json.events(b'{"traceEvents": [{}]}', source="toy").equals(schema.empty(schema.EVENTS))


# -- PyTorch --------------------------------------------------------------------------------------------------


def test_pytorch_events_lie_where_their_category_says():
    frame = events(
        span("aten::mm", cat="cpu_op", pid="python", tid="main"),
        span("gemm", cat="kernel", pid=0, tid=7, args={"device": 3, "stream": 7}),
        span("Memcpy", cat="gpu_memcpy", pid=1, tid=8, args={}),
        named("process_name", "python3", pid="python"),
    )
    assert frame["plane"].to_list() == ["/host:CPU", "/device:GPU:3", "/device:GPU:1"]
    assert frame["line"].to_list() == ["main", "7", "8"]
    assert frame["tf_op"].null_count() == 3


def test_times_since_1970_keep_their_nanoseconds():
    items = '{"ph": "X", "ts": 1695835533123456.789, "name": "a"}, {"ph": "X", "ts": 1695835533123457.790, "name": "b"}'
    frame = trace_json.events(f"[{items}]".encode(), source="toy")
    assert frame["start_ps"].to_list() == [0, 1_001_000]
    assert frame["dur_ps"].to_list() == [0, 0]


# -- hardware -------------------------------------------------------------------------------------------------


def test_hardware_is_the_planes_of_devices():
    frame = events(DEVICE, span(), span(), span(cat="kernel", pid=4, args={"device": 0}), span(cat="cpu_op", pid=5))
    found = trace_json.hardware(frame)
    assert found.schema == schema.HARDWARE
    assert found.rows() == [("", "/device:TPU:0", "TPU", None, None), ("", "/device:GPU:0", "GPU", None, None)]


# -- what is no trace -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "bad: the file is empty"),
        (b"\x0a\x05abc", "bad: no JSON: .* 5 bytes, the first"),
        (b"\xff\xfe{", "bad: no JSON"),
        (b'{"traceEvents": [{"ph": "X"', "bad: no JSON: .* 27 bytes"),
        (b'[{"ph": "X", "ts": NaN}]', "bad: no JSON: NaN is no JSON number"),
        (b"[" * 100_000, "bad: no JSON"),
        (b'{"cols": 1, "rows": 2}', r"no Chrome trace: an object with \['cols', 'rows'\]"),
        (b'{"traceEvents": 3}', "no Chrome trace"),
        (b"[]", "no Chrome trace: a list"),
        (b"[1, 2]", "no Chrome trace: a list"),
        (b'"text"', "no Chrome trace: a str"),
        (b'[{"ph": "X", "name": "a"}]', "event 'a' has ts None, not a number"),
        (b'[{"ph": "X", "name": "a", "ts": "1"}]', "event 'a' has ts '1', not a number"),
        (b'[{"ph": "X", "name": "a", "ts": true}]', "event 'a' has ts True, not a number"),
        (b'[{"ph": "X", "name": "a", "ts": 1e999999999}]', "event 'a' has ts"),
        (b'[{"ph": "X", "ts": 1e28}, {"ph": "X", "ts": 0}]', "do not fit Int64"),
        (b'[{"ph": "X", "ts": 0, "dur": 1e28}]', "do not fit Int64"),
    ],
)
def test_what_is_no_trace_says_what_was_seen(data, said):
    with pytest.raises(BadProfile, match=said) as caught:
        trace_json.events(data, source="bad")
    assert "\n" not in str(caught.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["ph", "ts", "dur", "pid", "tid", "cat", "args", "name"]), inner)
        | st.fixed_dictionaries({"ph": st.sampled_from("XM"), "ts": inner, "args": inner, "cat": inner})
    ),
    max_leaves=12,
)


@given(items=st.lists(JSON))
@settings(max_examples=200, deadline=None)
def test_any_json_is_a_trace_or_a_bad_profile(items):
    try:
        found = trace_json.events(json.dumps({"traceEvents": items}).encode(), source="any").schema
    except BadProfile as error:
        found = str(error).partition(": ")[0]
    assert found in (schema.EVENTS, "any")


# -- real captures --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def captures():
    root = os.environ.get("TPUNB_DATA")
    if not root:
        pytest.skip("real captures: set TPUNB_DATA to their folder")
    return lambda name: gzip.decompress(Path(root, "profiles", name).read_bytes())


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
    frame = trace_json.events(data, source=name)
    assert frame.height == count
    assert trace_json.hardware(frame)["device"].to_list() == devices
    spans = [one for one in json.loads(data)["traceEvents"] if one.get("ph") == "X"]
    assert frame["start_ps"].to_list() == [round(one["ts"] * 1_000_000) for one in spans]


def test_the_ops_of_a_tpu_are_busy_for_67_ms(captures):
    frame = trace_json.events(captures("tpu_vllm-qwen3.trace.json.gz"), source="vllm")
    ops = frame.filter((frame["plane"] == "/device:TPU:0") & (frame["line"] == "XLA Ops"))
    assert ops.height == 3454
    assert ops["dur_ps"].sum() / 1e9 == pytest.approx(67.2, abs=0.5)
